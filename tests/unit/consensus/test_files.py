"""The files of a server: the states that a crash may leave, and those that it must not."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.memory import MemoryDisk, NoFault
from tandemmq.consensus.core.messages import (
    EntryKind,
    LogEntry,
    Members,
    Persist,
    Saved,
    Snapshot,
    Vote,
    new_group,
)
from tandemmq.consensus.shell.files import RaftFiles
from tandemmq.errors import ConfigError, Corrupt, FlushFailed, StoreLocked

DIRECTORY = Path("/raft")
FIRST = new_group(Members({"a": "a:1"}))


def entry(index: int, term: int = 1, data: bytes = b"data") -> LogEntry:
    return LogEntry(index, term, EntryKind.COMMAND, data)


def new_files(disk: MemoryDisk, name: str = "a", log_bytes: int = 4096) -> RaftFiles:
    return RaftFiles(DIRECTORY, group="g", name=name, disk=disk, log_bytes=log_bytes)


def read_again(disk: MemoryDisk) -> Saved:
    files = new_files(disk)
    try:
        return files.open(FIRST)
    finally:
        files.close()


def written(*persists: Persist) -> MemoryDisk:
    disk = MemoryDisk()
    files = new_files(disk)
    assert files.open(FIRST) == FIRST
    files.save(Persist(vote=Vote(1, "a")))
    for persist in persists:
        files.save(persist)
    files.close()
    disk.power_cut()
    return disk


def damage(disk: MemoryDisk, name: str, at: int) -> None:
    file = disk.open(DIRECTORY / name)
    file.pwrite(at, (bytes([file.pread(at, 1)[0] ^ 0xFF]),))
    file.sync()


def test_saved_raft_state_survives_a_power_cut_and_newer_entries_win() -> None:
    disk = written(
        Persist(entries=(entry(1), entry(2), entry(3))),
        Persist(vote=Vote(2, "b"), entries=(entry(2, 2), entry(3, 2, b"new"))),
    )
    saved = read_again(disk)
    assert saved == Saved(Vote(2, "b"), FIRST.snapshot, (entry(1), entry(2, 2), entry(3, 2, b"new")))
    assert read_again(disk) == saved


def test_a_snapshot_takes_the_place_of_the_log_before_it() -> None:
    snapshot = Snapshot(index=2, term=1, members=Members({"a": "a:1"}), data=b"state")
    disk = written(
        Persist(entries=(entry(1), entry(2), entry(3))), Persist(snapshot=snapshot, entries=(entry(3),))
    )
    assert read_again(disk) == Saved(Vote(1, "a"), snapshot, (entry(3),))


def test_a_log_older_than_the_snapshot_is_what_a_crash_between_both_leaves() -> None:
    snapshot = Snapshot(index=2, term=1, members=Members({"a": "a:1"}), data=b"state")
    disk = written(Persist(entries=(entry(1), entry(2), entry(3))))
    log = disk.read_bytes(DIRECTORY / "log")
    files = new_files(disk)
    files.open(FIRST)
    files.save(Persist(snapshot=snapshot, entries=(entry(3),)))
    files.close()
    disk.write_atomically(DIRECTORY / "log", log)
    assert read_again(disk) == Saved(Vote(1, "a"), snapshot, (entry(3),))


def test_a_log_of_another_history_than_the_snapshot_is_not_read() -> None:
    """A crash between the replacement of both: the log entries after the snapshot were never confirmed."""
    disk = written(Persist(entries=(entry(1), entry(2), entry(3))))
    log = disk.read_bytes(DIRECTORY / "log")
    snapshot = Snapshot(index=2, term=4, members=Members({"a": "a:1"}), data=b"state")
    files = new_files(disk)
    files.open(FIRST)
    files.save(Persist(vote=Vote(4, "b"), snapshot=snapshot))
    files.close()
    disk.write_atomically(DIRECTORY / "log", log)
    assert read_again(disk) == Saved(Vote(4, "b"), snapshot, ())


def test_a_vote_that_is_older_than_the_log_stops_the_start() -> None:
    """An old file was restored: the server would vote again in terms in which it has already voted."""
    disk = written(Persist(entries=(entry(1),)))
    vote = disk.read_bytes(DIRECTORY / "vote")
    files = new_files(disk)
    files.open(FIRST)
    files.save(Persist(vote=Vote(3, "a"), entries=(entry(2, 3),)))
    files.close()
    disk.write_atomically(DIRECTORY / "vote", vote)
    with pytest.raises(Corrupt, match="term 1 is older than the log's, 3"):
        read_again(disk)


def test_a_full_log_is_replaced_and_grows_with_what_lives_in_it() -> None:
    disk = MemoryDisk()
    files = new_files(disk)
    files.open(FIRST)
    files.save(Persist(vote=Vote(1, "a")))
    for index in range(1, 40):
        files.save(Persist(entries=(entry(index, 1, b"x" * 500),)))
    files.close()
    assert len(read_again(disk).entries) == 39
    assert disk.size(DIRECTORY / "log") % 4096 == 0


def test_a_torn_end_is_cut_and_damage_before_a_whole_frame_is_not() -> None:
    disk = written(Persist(entries=(entry(1),)), Persist(entries=(entry(2),)))
    data = disk.read_bytes(DIRECTORY / "log")
    second, third = [at for at in range(1, len(data)) if data[at : at + 4] == b"TMQf"]
    damage(disk, "log", third + 25)
    assert read_again(disk).entries == (entry(1),)

    disk = written(Persist(entries=(entry(1),)), Persist(entries=(entry(2),)))
    damage(disk, "log", second + 25)
    with pytest.raises(Corrupt, match="one behind it"):
        read_again(disk)

    damage(disk, "log", 0)
    with pytest.raises(Corrupt, match="first frame"):
        read_again(disk)


@pytest.mark.parametrize("name", ["vote", "snapshot"])
def test_a_damaged_or_missing_record_stops_the_start(name: str) -> None:
    disk = written(Persist(entries=(entry(1),)))
    damage(disk, name, 12)
    with pytest.raises(Corrupt, match=name):
        read_again(disk)
    disk.remove(DIRECTORY / name)
    with pytest.raises(Corrupt, match="missing"):
        read_again(disk)


def test_a_server_that_lost_its_vote_is_not_a_new_one() -> None:
    """It would vote again in a term in which it has already voted, and forget its snapshot."""
    members = Members({"a": "a:1"})
    compacted = Persist(snapshot=Snapshot(index=3, term=1, members=members, data=b"state"))
    for persists in ((Persist(entries=(entry(1),)),), (Persist(entries=(entry(1),)), compacted)):
        disk = written(*persists)
        disk.remove(DIRECTORY / "vote")
        with pytest.raises(Corrupt, match="vote"):
            read_again(disk)


def test_the_files_of_another_server_or_a_running_one_are_refused() -> None:
    disk = written()
    with pytest.raises(ConfigError, match="belongs to a of the controller group g, not to b of g"):
        new_files(disk, "b").open(FIRST)
    files = new_files(disk)
    files.open(FIRST)
    with pytest.raises(StoreLocked):
        new_files(disk).open(FIRST)
    files.close()


def test_a_directory_whose_first_start_was_cut_off_is_new() -> None:
    disk = written()
    disk.remove(DIRECTORY / "vote")
    assert read_again(disk) == FIRST


class NoRoom(NoFault):
    def on_write(self, path: Path, offset: int, size: int) -> int:
        return 0


def test_a_full_disk_ends_the_server_and_loses_nothing() -> None:
    disk = written(Persist(entries=(entry(1),)))
    files = new_files(disk)
    files.open(FIRST)
    disk.fault = NoRoom()
    with pytest.raises(FlushFailed):
        files.save(Persist(entries=(entry(2),)))
    files.close()
    disk.fault = NoFault()
    assert read_again(disk).entries == (entry(1),)
