"""The pure parts of transactions: records, marks, verdicts (spec semantics 17, spec store 14)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sim.memory import ManualClock, MemoryDisk
from tandemmq.broker.offsets.offset_table import OffsetTable
from tandemmq.broker.options import BrokerOptions
from tandemmq.broker.stats import BrokerStats
from tandemmq.broker.topics.topic_table import TopicTable
from tandemmq.broker.transaction.checks import WINDOW_MAX, Asker, OpLog, TransactionChecks
from tandemmq.broker.transaction.half import (
    CheckLimits,
    CheckVerdict,
    Decided,
    ended_by,
    is_late,
    make_commit,
    make_copy,
    make_half,
    make_ops,
    plan_check,
    root_of,
)
from tandemmq.errors import MessageIllegal
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.record import NewRecord, Record, decode_record, encode_record
from tandemmq.protocol.topic_names import HALF_TOPIC
from tandemmq.store import MessageStore, StoreOptions

LIMITS = CheckLimits(6_000, 15, 72)
NOW = 1_700_000_000_000


def half_of(age_ms: int = 0, **properties: str) -> Record:
    new = NewRecord(
        topic="T",
        queue_id=3,
        body=b"x",
        properties=encode_properties({"TRAN_MSG": "true", "PGROUP": "g", **properties}),
        born_at_ms=NOW - age_ms,
        born_host=bytes(8),
        sys_flag=4,
        unique_key="u",
    )
    make_half(new)
    return stored(new)


def stored(new: NewRecord, queue_offset: int = 7) -> Record:
    raw = encode_record(
        new, queue_offset=queue_offset, log_offset=1_000, stored_at_ms=NOW, store_host=bytes(8)
    )
    return decode_record(raw)


@pytest.mark.parametrize(
    ("half", "verdict"),
    [
        (half_of(0), CheckVerdict.WAIT),
        (half_of(6_000), CheckVerdict.WAIT),
        (half_of(6_001), CheckVerdict.CHECK),
        (half_of(-1), CheckVerdict.CHECK),
        (half_of(7_000, TRANSACTION_CHECK_TIMES="14"), CheckVerdict.CHECK),
        (half_of(7_000, TRANSACTION_CHECK_TIMES="15"), CheckVerdict.DISCARD),
        (half_of(72 * 3_600_000 + 1), CheckVerdict.DISCARD),
        (half_of(7_000, CHECK_IMMUNITY_TIME_IN_SECONDS="10"), CheckVerdict.RENEW),
        (half_of(10_000, CHECK_IMMUNITY_TIME_IN_SECONDS="10"), CheckVerdict.CHECK),
        (half_of(5_000, CHECK_IMMUNITY_TIME_IN_SECONDS="-1"), CheckVerdict.RENEW),
        (half_of(6_000, CHECK_IMMUNITY_TIME_IN_SECONDS="-1"), CheckVerdict.CHECK),
    ],
)
def test_verdict_about_an_open_transaction(half: Record, verdict: CheckVerdict) -> None:
    assert plan_check(half, NOW, LIMITS) is verdict


def test_producer_may_decide_by_itself_until_its_immunity_is_over() -> None:
    assert not is_late(half_of(10**9), NOW, 6_000)
    assert not is_late(half_of(5_000, CHECK_IMMUNITY_TIME_IN_SECONDS="1"), NOW, 6_000)
    assert is_late(half_of(7_000, CHECK_IMMUNITY_TIME_IN_SECONDS="1"), NOW, 6_000)
    assert not is_late(half_of(7_000, CHECK_IMMUNITY_TIME_IN_SECONDS="8"), NOW, 6_000)


def test_copies_keep_the_first_offset_and_the_commit_keeps_everything() -> None:
    half = half_of(TAGS="a")
    copy = stored(make_copy(half, check_times=1), queue_offset=20)
    again = stored(make_copy(copy, check_times=2), queue_offset=30)
    assert (root_of(half), root_of(copy), root_of(again)) == (7, 7, 7)
    assert again.raw_properties.count(b"TRANSACTION_CHECK_TIMES") == 1
    commit = make_commit(again)
    assert commit is not None
    assert (commit.topic, commit.queue_id, commit.sys_flag, commit.prepared_offset) == ("T", 3, 8, 1_000)
    assert commit.properties == again.raw_properties
    assert commit.tag_hash == 97


def test_half_message_needs_its_group_and_room() -> None:
    new = NewRecord(
        topic="T", queue_id=0, body=b"x", properties=b"", born_at_ms=NOW, born_host=bytes(8), unique_key="u"
    )
    with pytest.raises(MessageIllegal, match="PGROUP"):
        make_half(new)
    new.properties = encode_properties({"PGROUP": "g", "a": "x" * 32_600})
    with pytest.raises(MessageIllegal, match="at most"):
        make_half(new)


def test_op_records_of_both_lines_are_read() -> None:
    [op] = make_ops([12], bytes(8), NOW)
    assert ended_by(stored(op)) == [12]
    op.body = b"1,22,333,"
    assert ended_by(stored(op)) == [1, 22, 333]
    op.body = b"x,-1,,5"
    assert ended_by(stored(op)) == [5]
    op.properties = b""
    assert ended_by(stored(op)) == []


def test_op_log_knows_what_is_done_and_from_where_a_restart_reads() -> None:
    ops = OpLog(half_offset=21, op_offset=100)
    for offsets in ([22], [5], [21, 30], [23]):
        assert ops.add(offsets)
    assert [offset for offset in range(15, 40) if ops.is_done(offset)] == [21, 22, 23, 30]
    assert ops.next_op == 104
    assert ops.settle(23) == 102  # the third one names 30, which is ahead
    assert ops.settle(30) == 102  # and is needed until 30 has been passed
    assert ops.settle(31) == 104
    assert not ops.is_done(22)
    assert ops.add([31])
    assert ops.is_done(31)
    assert not ops.add([WINDOW_MAX + 100])
    assert ops.next_op == 105
    ops.skip_to(110)
    assert (ops.next_op, ops.settle(40)) == (110, 110)


def test_memory_of_decisions_is_bounded() -> None:
    decided = Decided(count_max=2)
    for root in (1, 2, 3):
        decided.end(root, 8)
        decided.record_copy(root, root + 10)
    assert [root in decided for root in (1, 2, 3)] == [False, True, True]
    assert list(decided.offsets_to_mark(3, 3)) == [3, 13]
    decided.end(3, 8)
    decided.reopen(3)  # the store refused it: the next attempt marks the copy, too
    assert list(decided.offsets_to_mark(3, 3)) == [3, 13]
    decided.end(3, 8)
    decided.settle(3)
    assert list(decided.offsets_to_mark(3, 3)) == [3]
    assert list(decided.offsets_to_mark(1, 1)) == [1]
    decided.reopen(3)
    assert decided.get(3) is None


async def test_progress_of_checks_is_told_when_what_it_relies_on_is_on_disk() -> None:
    """A power cut would lose the copy of the half message, and because of the progress no check would
    follow.
    """
    clock = ManualClock(NOW)
    options = StoreOptions(root=Path("/store"), commit_log_file_bytes=1 << 16)
    store = await MessageStore.open(options, disk=MemoryDisk(), clock=clock)
    half = NewRecord(
        topic="T",
        queue_id=0,
        body=b"x",
        properties=encode_properties({"TRAN_MSG": "true", "PGROUP": "g", "UNIQ_KEY": "u"}),
        born_at_ms=NOW - 10_000,
        born_host=bytes(8),
        sys_flag=4,
        unique_key="u",
    )
    make_half(half)
    store.appender.append([half], lambda _status: None)
    clock.run_soon()
    offsets, decided, asked = OffsetTable(), Decided(), []
    core: Any = SimpleNamespace(
        options=BrokerOptions(),
        store=store,
        offsets=offsets,
        topics=TopicTable(),
        clock=clock,
        stats=BrokerStats(0.0),
    )
    asker = cast(Asker, SimpleNamespace(ask=lambda *about: asked.append(about)))
    checks = TransactionChecks(core, decided, asker)
    checking = asyncio.create_task(checks.run_round())
    await clock.pass_time(0.2)
    await checking
    assert len(asked) == 1
    assert list(decided.offsets_to_mark(0, 0)) == [0, 1], "an end of the first copy marks the second, too"
    assert store.flushed.value < store.appended.value
    assert offsets.committed("CID_RMQ_SYS_TRANS", HALF_TOPIC, 0) is None
    await clock.pass_time(11)
    checks.settle(store.flushed.value)
    assert offsets.committed("CID_RMQ_SYS_TRANS", HALF_TOPIC, 0) == 1
    await store.close()
