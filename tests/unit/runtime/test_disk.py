"""The real disk and its in-memory counterpart behave alike; also behaviour that only one of them can show."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sim.memory import MemoryDisk
from tandemmq.errors import StoreLocked
from tandemmq.runtime import disk as disk_module
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.ports import Advice, Disk
from waits import PATIENCE_S


@pytest.fixture(params=[RealDisk, MemoryDisk])
def disk(request: pytest.FixtureRequest) -> Disk:
    made: Disk = request.param()
    return made


@pytest.mark.parametrize("sparse", [False, True])
def test_created_file_has_its_full_length_of_zeros(disk: Disk, tmp_path: Path, sparse: bool) -> None:
    path = tmp_path / "deep" / "00000000000000000000"
    file = disk.create(path, 10_000, sparse=sparse)
    assert file.size == 10_000
    assert file.path == path
    assert file.pread(0, 20_000) == bytes(10_000)
    file.close()
    assert disk.size(path) == 10_000
    assert disk.exists(path)
    with pytest.raises(FileExistsError):
        disk.create(path, 10)


def test_real_disk_reserves_blocks_unless_sparse(tmp_path: Path) -> None:
    disk = RealDisk()
    disk.create(tmp_path / "full", 1 << 20).close()
    disk.create(tmp_path / "sparse", 1 << 20, sparse=True).close()
    assert (tmp_path / "full").stat().st_blocks * 512 >= 1 << 20
    assert (tmp_path / "sparse").stat().st_blocks * 512 < 1 << 20


def test_written_pieces_are_read_back_and_seen_by_an_earlier_view(disk: Disk, tmp_path: Path) -> None:
    file = disk.create(tmp_path / "f", 100)
    view = file.view()
    file.pwrite(10, [b"ab", bytearray(b"cd"), memoryview(b"..ef")[2:], b""])
    assert file.pread(10, 6) == b"abcdef"
    assert bytes(view[9:17]) == b"\0abcdef\0"
    assert view.readonly
    file.pwrite(99, [b"z"])
    assert file.pread(98, 5) == b"\0z"
    file.sync()
    for advice in Advice:
        file.advise(advice)
    assert bytes(view[9:17]) == b"\0abcdef\0"
    file.close()


def test_write_over_the_end_is_our_fault(disk: Disk, tmp_path: Path) -> None:
    file = disk.create(tmp_path / "f", 10)
    with pytest.raises(AssertionError):
        file.pwrite(8, [b"abc"])
    with pytest.raises(AssertionError):
        file.pwrite(-1, [b"a"])
    file.close()


def test_slices_of_a_view_outlive_the_file(disk: Disk, tmp_path: Path) -> None:
    file = disk.create(tmp_path / "f", 4096)
    file.pwrite(0, [b"kept"])
    piece = file.view()[:4]
    file.close()
    file.close()
    disk.remove(tmp_path / "f")
    assert bytes(piece) == b"kept"


def test_reopened_file_holds_what_was_written(disk: Disk, tmp_path: Path) -> None:
    file = disk.create(tmp_path / "f", 8)
    file.pwrite(0, [b"12345678"])
    file.close()
    again = disk.open(tmp_path / "f")
    assert (again.size, again.pread(2, 3)) == (8, b"345")
    again.close()
    with pytest.raises(FileNotFoundError):
        disk.open(tmp_path / "missing")


def test_empty_file_has_an_empty_view(disk: Disk, tmp_path: Path) -> None:
    file = disk.create(tmp_path / "f", 0)
    assert bytes(file.view()) == b""
    file.pwrite(0, [])
    file.close()


def test_many_buffers_arrive_in_order(disk: Disk, tmp_path: Path) -> None:
    pieces = [bytes([i % 251]) * (i % 3) for i in range(disk_module.BUFFERS_PER_CALL_MAX * 2 + 7)]
    expected = b"".join(pieces)
    file = disk.create(tmp_path / "f", len(expected) + 5)
    file.pwrite(5, pieces)
    assert file.pread(5, len(expected)) == expected
    file.close()


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev

    def write_seven(descriptor: int, buffers: list[bytes], offset: int) -> int:
        return real(descriptor, [b"".join(buffers)[:7]], offset)

    monkeypatch.setattr(os, "pwritev", write_seven)
    file = RealDisk().create(tmp_path / "f", 40)
    file.pwrite(3, [b"0123456789", b"", b"abcdefghij", b"KLM"])
    assert file.pread(0, 40) == b"\0\0\x000123456789abcdefghijKLM".ljust(40, b"\0")
    file.close()


def test_disk_that_takes_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    file = RealDisk().create(tmp_path / "f", 40)
    with pytest.raises(OSError, match="takes no bytes"):
        file.pwrite(0, [b"x"])
    file.close()


def test_no_file_is_left_when_there_is_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    with pytest.raises(OSError, match="no room") as caught:
        RealDisk().create(tmp_path / "f", 4096)
    assert caught.value.errno == errno.ENOSPC
    assert RealDisk().list(tmp_path) == []


def test_missing_fallocate_falls_back_to_truncate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not here")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    file = RealDisk().create(tmp_path / "f", 4096)
    assert file.size == RealDisk().size(tmp_path / "f") == 4096
    file.close()


def test_list_is_sorted_and_empty_for_a_missing_directory(disk: Disk, tmp_path: Path) -> None:
    assert disk.list(tmp_path / "none") == []
    for name in ("b", "a", "c/d"):
        disk.create(tmp_path / name, 1).close()
    assert disk.list(tmp_path) == ["a", "b", "c"]
    assert disk.list(tmp_path / "c") == ["d"]


def test_remove_takes_files_and_empty_directories(disk: Disk, tmp_path: Path) -> None:
    disk.create(tmp_path / "d" / "f", 1).close()
    with pytest.raises(OSError, match="not empty"):
        disk.remove(tmp_path / "d")
    disk.remove(tmp_path / "d" / "f")
    disk.remove(tmp_path / "d")
    assert not disk.exists(tmp_path / "d")
    with pytest.raises(FileNotFoundError):
        disk.remove(tmp_path / "d")
    disk.make_dirs(tmp_path / "x" / "y")
    assert disk.list(tmp_path / "x") == ["y"]


def test_atomic_write_keeps_the_old_content_beside_it(disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "config" / "topics.json"
    disk.write_atomically(path, b"one", keep_backup=True)
    assert disk.list(path.parent) == ["topics.json"]
    disk.write_atomically(path, b"two", keep_backup=True)
    disk.write_atomically(path, b"three", keep_backup=True)
    assert disk.read_bytes(path) == b"three"
    assert disk.read_bytes(path.with_name("topics.json.bak")) == b"two"
    disk.write_atomically(path, bytearray(b"four"))
    assert disk.read_bytes(path.with_name("topics.json.bak")) == b"two"
    assert disk.list(path.parent) == ["topics.json", "topics.json.bak"]


def test_backup_works_after_a_crash_between_its_two_steps(tmp_path: Path) -> None:
    # The crash left path and backup as two names of one file; rename() between such names does nothing.
    path = tmp_path / "f"
    path.write_bytes(b"old")
    os.link(path, tmp_path / "f.bak")
    os.link(path, tmp_path / "f.bak.tmp")
    RealDisk().write_atomically(path, b"new", keep_backup=True)
    assert path.read_bytes() == b"new"
    assert (tmp_path / "f.bak").read_bytes() == b"old"
    assert RealDisk().list(tmp_path) == ["f", "f.bak"]


def test_failed_atomic_write_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk()
    disk.write_atomically(tmp_path / "f", b"old")

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="broken"):
        disk.write_atomically(tmp_path / "f", b"new", keep_backup=True)
    assert disk.read_bytes(tmp_path / "f") == b"old"
    assert disk.list(tmp_path) == ["f"]


@pytest.fixture
def disk_has_room() -> None:
    """Does nothing: the disk of this machine is used as it is."""


@pytest.mark.usefixtures("disk_has_room")
def test_usage_of_a_path_that_does_not_exist_yet(disk: Disk, tmp_path: Path) -> None:
    total, free = disk.usage(tmp_path / "not" / "yet")
    assert 0 <= free <= total > 0


def test_lock_excludes_this_process_too_until_released(disk: Disk, tmp_path: Path) -> None:
    lock = disk.lock(tmp_path / "store" / "lock")
    assert disk.read_bytes(tmp_path / "store" / "lock") == b"lock"
    with pytest.raises(StoreLocked):
        disk.lock(tmp_path / "store" / "lock")
    lock.release()
    lock.release()
    disk.lock(tmp_path / "store" / "lock").release()


LOCKER = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
except OSError:
    print("refused")
else:
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_lock_is_the_one_that_other_processes_respect(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = RealDisk().lock(path)
    command = [sys.executable, "-c", LOCKER, str(path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "refused\n"
    lock.release()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(StoreLocked):
            RealDisk().lock(path)
        other.communicate("")
    RealDisk().lock(path).release()


def test_boot_id_stays_while_the_machine_runs(disk: Disk) -> None:
    assert disk.boot_id() == disk.boot_id() != ""


async def test_offload_gives_the_result_or_the_error(disk: Disk) -> None:
    assert await disk.offload(max, 1, 2) == 2

    def fail() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await disk.offload(fail)


def test_first_sync_through_a_handle_also_syncs_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for an existing file: the process that created it may have been killed before its own first
    sync.
    """
    synced: list[Path] = []
    monkeypatch.setattr(disk_module, "sync_directory", synced.append)
    file = RealDisk().create(tmp_path / "f", 1)
    file.sync()
    file.sync()
    file.close()
    assert synced == [tmp_path]
    again = RealDisk().open(tmp_path / "f")
    again.sync()
    again.sync()
    again.close()
    assert synced == [tmp_path] * 2


def test_first_sync_covers_directories_that_were_made_for_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(disk_module, "sync_directory", synced.append)
    file = RealDisk().create(tmp_path / "a" / "b" / "f", 1)
    file.sync()
    file.close()
    assert sorted(synced) == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]


def test_a_power_cut_takes_no_directory_that_a_table_or_a_lock_was_put_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(disk_module, "sync_directory", synced.append)
    disk = RealDisk()
    disk.lock(tmp_path / "store" / "lock").release()
    assert synced == [tmp_path]
    disk.write_atomically(tmp_path / "store" / "config" / "deep" / "t.json", b"{}")
    assert sorted(synced[1:]) == [tmp_path / "store" / each for each in (".", "config", "config/deep")]
    synced.clear()
    disk.make_dirs(tmp_path / "store" / "config" / "deep")
    assert synced == []


class Faults:
    """Scripted faults: each attribute is the fault of the next call."""

    def __init__(self) -> None:
        self.create: Callable[[], None] = lambda: None
        self.arrived = -1
        self.sync: Callable[[], None] = lambda: None

    def on_create(self, path: Path, size: int) -> None:
        self.create()

    def on_write(self, path: Path, offset: int, size: int) -> int:
        return size if self.arrived < 0 else min(size, self.arrived)

    def on_sync(self, path: Path) -> None:
        self.sync()


def fail(number: int) -> Callable[[], None]:
    def raise_error() -> None:
        raise OSError(number, os.strerror(number))

    return raise_error


def test_power_cut_takes_back_what_was_not_synced(tmp_path: Path) -> None:
    disk = MemoryDisk()
    file = disk.create(tmp_path / "f", 10)
    file.pwrite(0, [b"aaaa"])
    file.sync()
    file.pwrite(2, [b"bbbb"])
    file.pwrite(4, [b"cccc"])
    disk.create(tmp_path / "never-synced", 5)
    disk.lock(tmp_path / "lock")
    disk.power_cut()
    assert disk.read_bytes(tmp_path / "f") == b"aaaa".ljust(10, b"\0")
    assert not disk.exists(tmp_path / "never-synced")
    disk.lock(tmp_path / "lock").release()


def test_power_cut_may_keep_single_writes(tmp_path: Path) -> None:
    disk = MemoryDisk()
    file = disk.create(tmp_path / "f", 6)
    file.sync()
    file.pwrite(0, [b"aa"])
    file.pwrite(2, [b"bb"])
    file.pwrite(4, [b"cc"])
    disk.power_cut(lambda _, index: index != 1)
    assert disk.read_bytes(tmp_path / "f") == b"aa\0\0cc"


def test_faults_of_the_memory_disk(tmp_path: Path) -> None:
    faults = Faults()
    disk = MemoryDisk(fault=faults)
    faults.create = fail(errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        disk.create(tmp_path / "f", 10)
    assert disk.list(tmp_path) == []
    faults.create = lambda: None
    file = disk.create(tmp_path / "f", 10)
    faults.arrived = 3
    with pytest.raises(OSError, match="no room"):
        file.pwrite(0, [b"ab", b"cdef"])
    assert file.pread(0, 6) == b"abc\0\0\0"
    with pytest.raises(OSError, match="no room"):
        disk.write_atomically(tmp_path / "g", b"whole")
    assert not disk.exists(tmp_path / "g")
    faults.arrived = -1
    faults.sync = fail(errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    disk.power_cut()
    assert not disk.exists(tmp_path / "f")


def test_memory_disk_runs_full(tmp_path: Path) -> None:
    disk = MemoryDisk()
    disk.total_bytes = 100
    disk.create(tmp_path / "a", 60)
    with pytest.raises(OSError, match="no room"):
        disk.create(tmp_path / "b", 60)
    assert disk.usage(tmp_path) == (100, 40)


def test_closed_memory_file_refuses_use(tmp_path: Path) -> None:
    file = MemoryDisk().create(tmp_path / "a", 60)
    file.close()
    with pytest.raises(OSError, match="closed"):
        file.pread(0, 1)


def test_two_threads_sync_a_new_file_and_its_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush and a cut may sync a newly created file at the same time."""
    together = threading.Barrier(2, timeout=PATIENCE_S)
    sync_directory = disk_module.sync_directory

    def sync_together(path: Path) -> None:
        sync_directory(path)
        together.wait()

    monkeypatch.setattr(disk_module, "sync_directory", sync_together)
    file = RealDisk().create(tmp_path / "new" / "file", 100)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda _: file.sync(), range(2)))
    file.close()
