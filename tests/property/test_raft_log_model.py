"""The log of a Raft server, in memory and on disk, against a plain list."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from sim.memory import MemoryDisk
from tandemmq.consensus.core.log import RaftLog
from tandemmq.consensus.core.messages import (
    AppendRequest,
    EntryKind,
    LogEntry,
    Members,
    Persist,
    Saved,
    Vote,
    decode_message,
    encode_message,
    new_group,
)
from tandemmq.consensus.shell.files import RaftFiles

FIRST = new_group(Members({"a": "a:1"}))
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 6), st.booleans()),
        st.tuples(st.just("replace"), st.integers(0, 12), st.integers(1, 4)),
        st.tuples(st.just("compact"), st.integers(0, 12), st.just(0)),
        st.tuples(st.just("restart"), st.just(0), st.just(0)),
    ),
    max_size=25,
)


def open_files(disk: MemoryDisk) -> tuple[RaftFiles, Saved]:
    files = RaftFiles(Path("/raft"), group="g", name="a", disk=disk, log_bytes=1024)
    return files, files.open(FIRST)


@settings(max_examples=150)
@given(ACTIONS, st.integers(0, 60))
def test_log_and_files_hold_what_a_list_holds(actions: list[tuple[str, int, int]], size: int) -> None:
    disk = MemoryDisk()
    files, saved = open_files(disk)
    log = RaftLog(saved.snapshot, saved.entries)
    model: list[LogEntry] = []  # of all indexes from 1 on
    begin, term = 0, 1

    def add(index: int, count: int, kind: EntryKind) -> None:
        data = Members({"a": f"a:{index}"}).encode() if kind is EntryKind.MEMBERS else b"x" * size
        entries = tuple(LogEntry(at, term, kind, data) for at in range(index, index + count))
        del model[index - 1 :]
        model.extend(entries)
        if index <= log.last_index:
            log.cut(index)
        log.append(entries)
        files.save(Persist(vote=Vote(term, "a"), entries=entries))
        message = AppendRequest("a", term, index - 1, 0, entries, 0, 1, 1)
        assert decode_message(encode_message(message)) == message

    for what, number, extra in actions:
        if what == "append":
            add(len(model) + 1, number, EntryKind.MEMBERS if extra else EntryKind.COMMAND)
        elif what == "replace":
            term += 1
            add(max(begin + 1, len(model) + 1 - number), extra, EntryKind.COMMAND)
        elif what == "compact" and len(model) - number > begin:
            begin = len(model) - number
            log.compact(begin, b"state")
            rest = log.between(begin + 1, log.last_index)
            files.save(Persist(snapshot=log.snapshot, entries=rest))
        elif what == "restart":
            files.close()
            disk.power_cut()
            files, saved = open_files(disk)
            assert saved.snapshot == log.snapshot
            log = RaftLog(saved.snapshot, saved.entries)
        assert log.last_index == len(model)
        assert log.between(begin + 1, len(model)) == tuple(model[begin:])
        assert log.last_term == (model[-1].term if model else 0)
        changes = [entry for entry in model if entry.kind is EntryKind.MEMBERS]
        assert (
            log.members_index == max((entry.index for entry in changes), default=0)
            or log.members_index == begin
        )
        expected = changes[-1].data if changes else FIRST.snapshot.members.encode()
        assert log.members.encode() == expected
    files.close()
