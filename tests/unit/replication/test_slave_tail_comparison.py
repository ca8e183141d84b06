"""The search for the first difference of two logs, and a slave's reaction to the verdict (spec replication
4.10).
"""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.replication.core.effects import CheckTail, Dial, Disconnect, Halt, HaltReason, Send
from tandemmq.replication.core.frames import encode_head, encode_report
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.replication.core.progress import SlaveState, StartRule
from tandemmq.replication.core.slave import SlaveSession
from tandemmq.replication.core.verifier import ChecksumOf, TailOutcome, TailVerdict, find_difference

MASTER = "10.0.0.1:10912"
SEGMENT = 4096


def checksum_of(log: bytes, asked: list[int] | None = None) -> ChecksumOf:
    async def checksum(log_offset: int, size_bytes: int) -> int:
        assert 0 <= log_offset <= log_offset + size_bytes <= len(log)
        if asked is not None:
            asked.append(size_bytes)
        return crc32(log[log_offset : log_offset + size_bytes])

    return checksum


@given(log=st.binary(min_size=1, max_size=300), data=st.data())
async def test_first_difference_is_found(log: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(log)))
    flips = data.draw(st.sets(st.integers(0, len(log) - 1), max_size=4))
    other = bytes(byte ^ (position in flips) for position, byte in enumerate(log))
    expected = min((flip for flip in flips if flip >= start), default=None)
    found = await find_difference(checksum_of(log), checksum_of(other), start, len(log))
    assert found == expected


async def test_search_costs_few_requests() -> None:
    asked: list[int] = []
    log = bytes(1 << 20)
    other = log[:777_777] + b"\x01" + log[777_778:]
    assert await find_difference(checksum_of(log), checksum_of(other, asked), 0, len(log)) == 777_777
    assert len(asked) <= 22


def verdict(outcome: TailOutcome, log_offset: int = 640, master_start: int | None = None) -> TailVerdict:
    return TailVerdict(outcome=outcome, log_offset=log_offset, detail="why", master_start=master_start)


def checking(log_end: int = 640) -> SlaveSession:
    session = SlaveSession(options=ReplicationOptions(), segment_bytes=SEGMENT)
    session.on_assigned(MASTER)
    assert session.on_connected(log_end) == [CheckTail(log_end)]
    assert session.state is SlaveState.CHECKING
    return session


@pytest.mark.parametrize("outcome", [TailOutcome.SAME, TailOutcome.NOT_COMPARED])
def test_nothing_is_reported_before_the_comparison(outcome: TailOutcome) -> None:
    session = checking()
    assert session.on_data(encode_head(640, 0), 1) == []
    assert session.on_checked(verdict(outcome), 5) == [Send(encode_report(640) * 2)]
    assert session.state is SlaveState.TRANSFERRING
    assert session.start_rule is StartRule.RESUMED


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (TailOutcome.DIFFERENT, HaltReason.DIVERGED),
        (TailOutcome.SLAVE_AHEAD, HaltReason.SLAVE_AHEAD),
        (TailOutcome.TOO_OLD, HaltReason.TOO_OLD),
    ],
)
def test_slave_that_must_not_follow_halts(outcome: TailOutcome, reason: HaltReason) -> None:
    session = checking()
    halt, disconnect = session.on_checked(verdict(outcome, 600), 5)
    assert isinstance(halt, Halt)
    assert (halt.reason, halt.log_offset) == (reason, 600)
    assert isinstance(disconnect, Disconnect)
    assert session.state is SlaveState.HALTED
    assert session.on_tick(10**9) == []


def test_master_that_cannot_be_asked_is_dialled_again() -> None:
    session = checking()
    assert session.on_checked(verdict(TailOutcome.FAILED), 5) == [Disconnect("why")]
    assert session.state is SlaveState.PAUSED


@pytest.mark.parametrize("outcome", [TailOutcome.SAME, TailOutcome.SLAVE_AHEAD])
def test_tail_comparison_is_ignored_for_a_former_master(outcome: TailOutcome) -> None:
    session = checking()
    session.on_assigned("10.0.0.2:10912")
    (left,) = session.on_checked(verdict(outcome), 5)
    assert isinstance(left, Disconnect)
    assert session.state is SlaveState.PAUSED
    assert session.on_tick(10**9) == [Dial("10.0.0.2:10912")]


def test_the_shorter_log_of_a_former_master_halts_nobody() -> None:
    """It may have come back as an empty slave, and sends heartbeats with its own end."""
    session = checking()
    session.on_checked(verdict(TailOutcome.SAME), 5)
    session.on_assigned("10.0.0.2:10912")
    (left,) = session.on_data(encode_head(0, 0), 6)
    assert isinstance(left, Disconnect)
    assert session.on_tick(10**9) == [Dial("10.0.0.2:10912")]


def test_connection_may_break_while_comparing() -> None:
    session = checking()
    assert session.on_failed("cut", 5) == [Disconnect("cut")]
    assert session.state is SlaveState.PAUSED


@pytest.mark.parametrize(
    ("offset", "master_start", "rule"),
    [
        (0, None, StartRule.FIRST_FILE),
        (SEGMENT, SEGMENT, StartRule.FIRST_FILE),
        (2 * SEGMENT, SEGMENT, StartRule.LAST_FILE),
        (SEGMENT, None, None),
    ],
)
def test_empty_slave_names_the_rule_of_its_start(
    offset: int, master_start: int | None, rule: StartRule | None
) -> None:
    session = checking(0)
    session.on_checked(verdict(TailOutcome.SAME, 0, master_start), 1)
    assert session.start_rule is None
    session.on_data(encode_head(offset, 0), 2)
    assert session.start_rule is rule
