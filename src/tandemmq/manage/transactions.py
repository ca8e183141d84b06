"""Open transactions: half messages that wait for their producer's decision, and those that were given up.

An operator can have a half message checked again: its broker stores a copy whose checks begin anew. On a
TandemMQ broker the copies are one transaction, which ends once. A Java broker knows no connection between a
copy and a half message that is still open: if the producer answers the checks of both, consumers receive the
message twice, with the same unique key.

Commit and rollback are not offered. END_TRANSACTION would accept them from anybody who names the producer
group and the position, but only the producer knows the outcome of its local transaction, and a broker cannot
tell a guess from it. A check asks the one that knows.
Source: spec semantics 17.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tandemmq.api import broker_admin, broker_consume
from tandemmq.broker.transaction.half import ended_by, number_of, root_of
from tandemmq.errors import TopicNotFound
from tandemmq.manage.reach import answers_of, ask_each, errors_of
from tandemmq.manage.reading import HeldMessage, held_facts, open_queue
from tandemmq.manage.tools import Target, Tools
from tandemmq.protocol import properties as names
from tandemmq.protocol.record import Record
from tandemmq.protocol.topic_names import DISCARD_TOPIC, HALF_TOPIC, OP_HALF_TOPIC

CHECK_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""The group whose committed offsets are the progress of a broker's checks."""
READ_TIMEOUT_S: Final = 5.0
"""The time for a broker's answers: up to some thousand messages are read."""
HALVES_MAX: Final = 1_000
MARKS_MAX: Final = 10_000
DISCARDED_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class OpenTransaction(HeldMessage):
    """A half message. `checks`: the number of times its producer was asked."""

    address: str
    producer_group: str
    born_at_ms: int
    checks: int


@dataclass(frozen=True, slots=True)
class OpenTransactions:
    """The transactions of one broker, oldest first. `is_cut`: only the oldest `HALVES_MAX` half messages were
    read, or more than `MARKS_MAX` marks of ended ones exist, so some of these may have ended.
    """

    transactions: tuple[OpenTransaction, ...]
    is_cut: bool


@dataclass(frozen=True, slots=True)
class ClusterTransactions:
    """The open transactions of the masters that answered, oldest first, those that they
    gave up, newest first, and the errors of the other masters.
    """

    opened: list[OpenTransaction]
    discarded: list[OpenTransaction]
    is_cut: bool
    failed: dict[Target, str]


async def read_all_transactions(tools: Tools, masters: Sequence[Target]) -> ClusterTransactions:
    """Returns the open and the discarded transactions of these masters."""
    opened, given_up = await asyncio.gather(
        ask_each(masters, lambda one: read_open_transactions(tools, one), timeout_s=READ_TIMEOUT_S),
        ask_each(masters, lambda one: read_discarded_transactions(tools, one), timeout_s=READ_TIMEOUT_S),
    )
    found = answers_of(opened)
    rows = [row for _, one in found for row in one.transactions]
    discarded = [row for _, one in answers_of(given_up) for row in one]
    return ClusterTransactions(
        opened=sorted(rows, key=lambda row: row.born_at_ms),
        discarded=sorted(discarded, key=lambda row: -row.stored_at_ms),
        is_cut=any(one.is_cut for _, one in found),
        failed={**errors_of(opened), **errors_of(given_up)},
    )


async def read_open_transactions(tools: Tools, target: Target) -> OpenTransactions:
    """Returns the open transactions of a master.

    Raises:  NotPermitted, BrokerUnreachable.
    """
    # The progress moves over a half message and then over its mark: in this order no mark is missed.
    marked_at = await _progress(tools, target, OP_HALF_TOPIC)
    halves, is_cut = await _read_from(
        tools, target, HALF_TOPIC, await _progress(tools, target, HALF_TOPIC), HALVES_MAX
    )
    marks, has_more_marks = await _read_from(tools, target, OP_HALF_TOPIC, marked_at, MARKS_MAX)
    ended = {offset for mark in marks for offset in ended_by(mark)}
    # The newest copy stands for its transaction. Java's copies share only the unique key.
    newest = {one.unique_key or str(root_of(one)): one for one in halves}
    done = {
        one.unique_key or str(root_of(one))
        for one in halves
        if one.queue_offset in ended or root_of(one) in ended
    }
    found = [_describe(one, target) for key, one in newest.items() if key not in done]
    found.sort(key=lambda one: one.born_at_ms)
    return OpenTransactions(tuple(found), is_cut or has_more_marks)


async def _progress(tools: Tools, target: Target, topic: str) -> int:
    """Returns the progress of the checks in one of the two topics."""
    try:
        at = await broker_consume.query_committed_offset(
            tools.remoting, target.address, CHECK_GROUP, topic, 0
        )
    except TopicNotFound:
        return 0
    return at or 0


async def _read_from(
    tools: Tools, target: Target, topic: str, begin: int, count_max: int
) -> tuple[Sequence[Record], bool]:
    """Returns the messages from this offset on, at most `count_max`, and True if more exist."""
    reader, queue = open_queue(tools, target, topic)
    try:
        first, end = await reader.ends(queue)
        begin = max(first, begin)
        found, _ = await reader.read_range(queue, begin, min(end, begin + count_max))
    except TopicNotFound:
        return (), False
    return [one.record for one in found], end - begin > count_max


async def read_discarded_transactions(tools: Tools, target: Target) -> tuple[OpenTransaction, ...]:
    """Returns the last `DISCARDED_MAX` half messages that this broker has given up, newest first."""
    reader, queue = open_queue(tools, target, DISCARD_TOPIC)
    try:
        begin, end = await reader.ends(queue)
        found, _ = await reader.read_range(queue, max(begin, end - DISCARDED_MAX), end)
    except TopicNotFound:
        return ()
    return tuple(_describe(one.record, target) for one in reversed(found))


def _describe(half: Record, target: Target) -> OpenTransaction:
    return OpenTransaction(
        *held_facts(half, target.broker_name),
        address=target.address,
        producer_group=half.properties.get(names.PGROUP, ""),
        born_at_ms=half.born_at_ms,
        checks=number_of(half, names.TRANSACTION_CHECK_TIMES, 0),
    )


async def check_again(tools: Tools, address: str, message_id: str, topic: str) -> None:
    """Restarts the checks of a half message, or of a discarded one; the next check comes with the broker's
    next round. Repeating it is safe on a TandemMQ broker; on Java's see the module.

    Raises:  RequestRejected if the broker has no half message with this id, or is a slave.
    """
    await broker_admin.resume_check(tools.remoting, address, message_id=message_id, topic=topic or None)
