"""A slave and a master of one term, whose bytes are passed by hand (spec controller 4.1, 4.5, 4.7)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from replica_logs import make_log

from no_history import uncompared
from tandemmq.replication.core.effects import (
    Acknowledged,
    Align,
    CheckTail,
    Disconnect,
    Halt,
    RequestHistory,
    Send,
    Store,
    TransferStarted,
)
from tandemmq.replication.core.epochs import (
    EpochEntry,
    EpochList,
    EpochsAnswer,
    Handshake,
    TermHead,
    encode_answer,
    encode_handshake,
    encode_term_head,
    encode_term_report,
)
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.replication.core.progress import LogRange, SlaveState, StartRule
from tandemmq.replication.core.term_sessions import ANSWER_MS_MAX, TermMasterSession, TermSlaveSession

SEGMENT_BYTES = 4096
OPTIONS = ReplicationOptions()


def new_slave(*entries: tuple[int, int], confirm_offset: int = 0, master_epoch: int = 3) -> TermSlaveSession:
    slave = TermSlaveSession(
        options=OPTIONS,
        segment_bytes=SEGMENT_BYTES,
        handshake=Handshake(2),
        master_epoch=master_epoch,
        epochs=EpochList(tuple(EpochEntry(*entry) for entry in entries)),
        confirm_offset=confirm_offset,
    )
    slave.on_assigned("master:10912")
    return slave


def new_master(*entries: tuple[int, int], confirm_offset: int = 0) -> TermMasterSession:
    return TermMasterSession(
        options=OPTIONS,
        segment_bytes=SEGMENT_BYTES,
        now_ms=0,
        epochs=EpochList(tuple(EpochEntry(*entry) for entry in entries)),
        confirm_offset=lambda: confirm_offset,
    )


def sent(effects: Sequence[object]) -> bytes:
    return b"".join(effect.data for effect in effects if isinstance(effect, Send))


def test_a_copy_begins_to_follow_and_stores_what_comes() -> None:
    log, ends = make_log([100] * 60, segment_bytes=SEGMENT_BYTES)
    end = len(log)
    part = ends[10]
    assert part % SEGMENT_BYTES  # otherwise the end of a file would separate the terms, too
    log_range = LogRange(0, end)
    master = new_master((1, 0), (3, part), confirm_offset=end)
    slave = new_slave()
    assert slave.on_connected(0) == [RequestHistory()]
    hello = sent([*slave.on_history(None, 0)])
    assert hello == encode_handshake(Handshake(2))
    [align] = slave.on_data(sent([*master.on_data(hello, log_range, 0)]), 0)
    assert align == Align(0, EpochList((EpochEntry(1, 0), EpochEntry(3, part))))
    report = sent([*slave.on_aligned(0, align.epochs, 0)])
    assert report == encode_term_report(0)
    started, acknowledged = master.on_data(report, log_range, 0)
    assert isinstance(started, TransferStarted)
    assert started.start.rule is StartRule.FIRST_FILE
    assert acknowledged == Acknowledged(0)
    stored = b""
    while wanted := master.sendable_bytes(log_range, 0, bytes_max=10**9):
        at = master.next_offset
        assert (at < part) == (at + wanted <= part)  # no frame crosses the end of a term
        for piece in master.frames(memoryview(log)[at : at + wanted], 0):
            effects = slave.on_data(bytes(piece), 0)
            stored += b"".join(effect.data for effect in effects if isinstance(effect, Store))
            for effect in master.on_data(sent([*effects]), log_range, 0):
                assert isinstance(effect, Acknowledged)
    assert stored == log
    assert master.acknowledged == end
    assert slave.confirm_offset == end


def align(slave: TermSlaveSession, own_end: int, answer: EpochsAnswer) -> list[object]:
    """Returns the effects of the answer, after the comparison that it may begin with."""
    slave.on_connected(own_end)
    slave.on_history(None, 0)
    effects = slave.on_data(encode_answer(answer), 0)
    if isinstance(effects[0], CheckTail):
        return [*slave.on_checked(uncompared(effects[0].log_end), 0)]
    return [*effects]


MASTER = EpochsAnswer(3270, EpochList((EpochEntry(1, 0), EpochEntry(2, 1570), EpochEntry(3, 2000))))


def test_a_deposed_master_takes_back_what_nobody_else_has() -> None:
    [effect] = align(new_slave((1, 0), (2, 1570), confirm_offset=2000), 2600, MASTER)
    assert effect == Align(2000, MASTER.epochs)


@pytest.mark.parametrize(
    ("entries", "confirm_offset"), [(((1, 0), (2, 1570)), 2001), (((5, 0),), 1)], ids=["confirmed", "apart"]
)
def test_slave_halts_instead_of_truncating_confirmed_bytes(
    entries: tuple[tuple[int, int], ...], confirm_offset: int
) -> None:
    slave = new_slave(*entries, confirm_offset=confirm_offset)
    effects = align(slave, 2600, MASTER)
    assert isinstance(effects[0], Halt)
    assert slave.state is SlaveState.HALTED


def test_nothing_is_cut_for_a_master_of_an_older_term() -> None:
    slave = new_slave((1, 0), (2, 1570), master_epoch=4)
    assert isinstance(align(slave, 2600, MASTER)[0], Disconnect)
    assert slave.state is SlaveState.PAUSED


@pytest.mark.parametrize("unknown", [EpochEntry(4, 2000), EpochEntry(3, 1999), EpochEntry(0, 0)], ids=str)
def test_bytes_of_a_term_that_the_answer_did_not_tell_end_the_connection(unknown: EpochEntry) -> None:
    slave = new_slave((1, 0), (2, 1570))
    [effect] = align(slave, 2000, MASTER)
    assert isinstance(effect, Align)
    slave.on_aligned(2000, effect.epochs, 0)
    frame = encode_term_head(TermHead(2000, 8, unknown, 0))
    assert isinstance(slave.on_data(frame, 0)[0], Disconnect)


def test_a_copy_calls_nothing_confirmed_that_it_does_not_hold() -> None:
    """It could never truncate the bytes that it receives next from a master that is then replaced."""
    slave = new_slave((1, 0), (2, 1570))
    [effect] = align(slave, 2000, MASTER)
    assert isinstance(effect, Align)
    slave.on_aligned(2000, effect.epochs, 0)
    slave.on_data(encode_term_head(TermHead(2000, 0, EpochEntry(3, 2000), 3000)), 0)
    assert slave.confirm_offset == 2000


def test_a_master_that_does_not_answer_is_left() -> None:
    slave = new_slave()
    slave.on_connected(0)
    slave.on_history(None, 0)
    assert slave.on_tick(ANSWER_MS_MAX - 1) == []
    assert slave.next_tick_ms() == ANSWER_MS_MAX
    assert isinstance(slave.on_tick(ANSWER_MS_MAX)[0], Disconnect)


@pytest.mark.parametrize(
    "data",
    [
        encode_term_report(0),
        encode_handshake(Handshake(2)) + encode_handshake(Handshake(3)),
        encode_handshake(Handshake(2)) + encode_term_report(101),
        encode_handshake(Handshake(2)) + encode_term_report(50) + encode_handshake(Handshake(2)),
        encode_handshake(Handshake(2)) + encode_term_report(50) + encode_term_report(60),
    ],
)
def test_a_slave_out_of_turn_is_refused(data: bytes) -> None:
    master = new_master((1, 0))
    assert isinstance(master.on_data(data, LogRange(0, 100), 0)[-1], Disconnect)
    assert master.is_closed


def test_an_answer_tells_the_terms_and_where_the_log_ends() -> None:
    """A copy that is longer is truncated there, and one that holds more than reported is refused."""
    master = new_master((1, 0), (3, 50))
    answer = EpochsAnswer(100, EpochList((EpochEntry(1, 0), EpochEntry(3, 50))))
    effects = master.on_data(encode_handshake(Handshake(2)), LogRange(0, 100), 0)
    assert effects == [Send(encode_answer(answer))]
