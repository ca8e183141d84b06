"""Changes of settings at run time, in the configuration file."""

from __future__ import annotations

from pathlib import Path

from sim.memory import MemoryDisk
from tandemmq.remoting.settings import save_changes

PATH = Path("/conf/broker.conf")


async def test_a_saved_change_is_not_written_again_over_a_later_edit() -> None:
    disk = MemoryDisk()
    disk.make_dirs(PATH.parent)
    disk.write_atomically(PATH, b"a=0\n")
    unsaved = {"a": "1"}
    assert await save_changes(disk, PATH, unsaved) is None
    disk.write_atomically(PATH, b"a=2\n")
    unsaved["b"] = "3"
    assert await save_changes(disk, PATH, unsaved) is None
    assert disk.read_bytes(PATH) == b"a=2\nb=3\n"


async def test_a_change_that_cannot_be_written_is_written_with_the_next_one() -> None:
    disk = MemoryDisk()
    unsaved = {"a": "1"}
    remark = await save_changes(disk, PATH, unsaved)
    assert remark is not None
    assert remark.startswith("it holds until the next start: broker.conf cannot be ")
    disk.make_dirs(PATH.parent)
    disk.write_atomically(PATH, b"")
    unsaved["b"] = "2"
    assert await save_changes(disk, PATH, unsaved) is None
    assert disk.read_bytes(PATH) == b"a=1\nb=2\n"
