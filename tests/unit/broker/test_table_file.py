"""Metadata files: fall-back to the backup, saving off the loop, failed writes (spec store 18)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from sim.memory import ManualClock, MemoryDisk
from tandemmq.broker.table_file import Loaded, TableSaver, load_table, save_or_reject
from tandemmq.errors import ConfigError, RequestRejected
from tandemmq.protocol.hashes import seal_json
from tandemmq.runtime.tasks import TaskScope

PATH = Path("/config/topics.json")
BACKUP = Path("/config/topics.json.bak")


def accept(data: bytes) -> None:
    if data.startswith(b"bad"):
        raise ValueError("bad content")


@pytest.mark.parametrize(
    ("main", "backup", "loaded"),
    [
        (b"good", None, Loaded.FILE),
        (b"bad", b"good", Loaded.BACKUP),
        (b"", b"good", Loaded.BACKUP),
        (b"\x00\x00", b"good", Loaded.BACKUP),
        (None, b"good", Loaded.BACKUP),
        (None, None, Loaded.NOTHING),
        (b"", None, Loaded.NOTHING),
    ],
)
def test_backup_stands_in(main: bytes | None, backup: bytes | None, loaded: Loaded) -> None:
    disk = MemoryDisk()
    for path, data in ((PATH, main), (BACKUP, backup)):
        if data is not None:
            disk.write_atomically(path, data)
    assert load_table(PATH, accept, disk=disk) is loaded


def test_content_that_cannot_be_read_is_not_forgotten() -> None:
    disk = MemoryDisk()
    disk.write_atomically(PATH, b"bad")
    with pytest.raises(ConfigError, match=r"topics\.json"):
        load_table(PATH, accept, disk=disk)


def test_a_turned_bit_in_a_table_is_found() -> None:
    """Also one that turns a number into another number."""
    content = b'{"offsetTable":{"T1@CG":{"0":52}},"dataVersion":{"counter":7}}'
    sealed = seal_json(content)
    assert sealed.startswith(content[:-1])
    assert json.loads(sealed)["offsetTable"] == {"T1@CG": {"0": 52}}
    for at in range(len(sealed)):
        for bit in range(8):
            turned = bytearray(sealed)
            turned[at] ^= 1 << bit
            disk = MemoryDisk()
            disk.write_atomically(PATH, turned)
            disk.write_atomically(BACKUP, seal_json(b"{}"))
            read: list[dict[str, object]] = []
            loaded = load_table(PATH, lambda data, read=read: read.append(json.loads(data)), disk=disk)  # type: ignore[misc]
            if loaded is Loaded.BACKUP:
                assert read == [{}]
                assert disk.read_bytes(PATH.with_name("topics.json.damaged")) == turned
                assert not disk.exists(PATH)
            else:
                assert loaded is Loaded.FILE
                assert read[0]["offsetTable"] == {"T1@CG": {"0": 52}}


def test_who_changes_a_table_by_hand_takes_its_checksum_out() -> None:
    disk = MemoryDisk()
    disk.write_atomically(PATH, seal_json(b'{"a":1}').replace(b"1", b"2", 1))
    with pytest.raises(ConfigError, match="remove its key tandemCrc32"):
        load_table(PATH, accept, disk=disk)
    disk.write_atomically(PATH, b'{"a":2}')
    assert load_table(PATH, accept, disk=disk) is Loaded.FILE


class FlakyDisk(MemoryDisk):
    fails = 0

    def write_atomically(self, path: Path, data: bytes, *, keep_backup: bool = False) -> None:  # type: ignore[override]
        if self.fails:
            self.fails -= 1
            raise OSError(28, "no space left")
        super().write_atomically(path, data, keep_backup=keep_backup)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_changes_of_a_while_are_written_once_and_the_old_content_is_kept() -> None:
    disk, clock = MemoryDisk(), ManualClock()
    saver = TableSaver(disk=disk, clock=clock)
    versions = iter(range(100))
    file = saver.add(PATH, lambda: b"v%d" % next(versions), delay_ms=5_000)
    scope = TaskScope("test")
    scope.start("run", saver.run())
    for _ in range(3):
        saver.mark(file)
    await clock.pass_time(4.9)
    assert not disk.exists(PATH)
    await clock.pass_time(0.2)
    await settle()
    assert disk.read_bytes(PATH) == b"v0"
    saver.mark(file)
    await clock.pass_time(5.1)
    await settle()
    assert (disk.read_bytes(PATH), disk.read_bytes(BACKUP)) == (b"v1", b"v0")
    await scope.close()


async def test_failed_write_is_tried_again() -> None:
    disk, clock = FlakyDisk(), ManualClock()
    disk.fails = 1
    saver = TableSaver(disk=disk, clock=clock)
    file = saver.add(PATH, lambda: b"x", delay_ms=100)
    scope = TaskScope("test")
    scope.start("run", saver.run())
    saver.mark(file)
    await clock.pass_time(0.2)
    await settle()
    assert not disk.exists(PATH)
    await clock.pass_time(2.0)
    await settle()
    assert disk.read_bytes(PATH) == b"x"
    await scope.close()


async def test_save_now_tells_the_caller_what_failed() -> None:
    disk = FlakyDisk()
    disk.fails = 1
    saver = TableSaver(disk=disk, clock=ManualClock())
    file = saver.add(PATH, lambda: b"x", delay_ms=100)
    saver.mark(file)
    with pytest.raises(RequestRejected, match=r"topics\.json.*no space"):
        await save_or_reject(saver, file)
    await saver.save(file)
    assert disk.read_bytes(PATH) == b"x"


async def test_close_writes_what_is_left() -> None:
    disk = MemoryDisk()
    saver = TableSaver(disk=disk, clock=ManualClock())
    file = saver.add(PATH, lambda: b"x", delay_ms=60_000)
    await saver.close()
    assert not disk.exists(PATH)
    saver.mark(file)
    await saver.close()
    assert disk.read_bytes(PATH) == b"x"
