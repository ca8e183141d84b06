"""Stored messages: found by id, unique key, key, or position; one message with its state in each group.

A message id holds the address that its broker had. Only brokers that the name server announces are asked for
the log offset in the id (`Admin.find_by_id`): a text never decides to which address a tool connects.
Source: spec semantics 19, 23.4; spec remoting 12.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tandemmq import errors
from tandemmq.api import broker_admin
from tandemmq.api.broker_admin import END_OF_TIME_MS
from tandemmq.client import MessageQueue
from tandemmq.manage.bodies import name_compression
from tandemmq.manage.reach import map_each
from tandemmq.manage.reading import TopicPuller
from tandemmq.manage.tools import Tools
from tandemmq.protocol import sys_flag as flags
from tandemmq.protocol.bodies.client import ConsumerConnections, ConsumeType, MessageModel
from tandemmq.protocol.bodies.route import BrokerData
from tandemmq.protocol.record import Record
from tandemmq.remoting.options import render_address

KEY_COUNT_MAX: Final = 64
"""The most messages with one key that are shown, as in mqadmin."""
GROUPS_MAX: Final = 100
"""The most groups whose state is shown with a message."""


# By id and key


async def find_records(tools: Tools, message_id: str, topic: str) -> list[Record]:
    """Returns the message of a broker's message id. With a topic, the id is first tried as a producer's
    unique key, because both are hexadecimal numbers of the same length.

    Raises:  BadRequest for an invalid id without a topic; the errors of `Admin.find_by_id`.
    """
    found = await tools.cluster_admin.find_by_unique_key(topic, message_id) if topic else []
    if not found:
        try:
            record = await tools.cluster_admin.find_by_id(message_id)
        except (errors.BadRequest, errors.ClientError, errors.ConfigError):
            if not topic:
                raise
            record = None  # the supposed broker address was part of a unique key
        found = [] if record is None else [record]
    return found


async def find_by_key(
    tools: Tools, topic: str, key: str, begin_ms: int | None, end_ms: int | None, *, count_max: int
) -> list[Record]:
    """Returns messages that carry the key and were stored in this time."""
    begin, end = begin_ms or 0, END_OF_TIME_MS if end_ms is None else end_ms
    found = await tools.cluster_admin.find_by_key(
        topic, key, count_max=count_max, begin_at_ms=begin, end_at_ms=end
    )
    return [one for one in found if begin <= one.stored_at_ms <= end]  # the index knows only seconds


async def find_by_position(
    tools: Tools, topic: str, broker_name: str, queue_id: int, offset: int
) -> Record | None:
    """Returns the message at an offset of a queue; None if there is none.

    Raises:  NoRoute if the broker has no queue of the topic.
    """
    reader = TopicPuller(tools, topic)
    await reader.queues()
    if not reader.addresses.get(broker_name):
        raise errors.NoRoute(f"broker {broker_name!r} has no queue of topic {topic!r}")
    _, found, _ = await reader.pull(MessageQueue(topic, broker_name, queue_id), offset, count_max=1)
    return next((one.record for one in found if one.queue_offset == offset), None)


# One message


@dataclass(frozen=True, slots=True)
class ConsumptionState:
    """The state of a message in one group. `state`: done, skipped (a tag that is not subscribed), waits, or
    unknown. `mode`: push, pull, broadcasting, or offline.
    """

    group: str
    members: int
    state: str
    mode: str


@dataclass(frozen=True, slots=True)
class MessagePlace:
    """The broker that stores a message. Its name is empty, and its address the one in the message, if no
    broker of the topic is known to have that address.
    """

    broker_name: str
    address: str


async def find_place(tools: Tools, record: Record) -> MessagePlace:
    """Returns the broker of a message; of several brokers the one with the address in the message."""
    host = render_address(record.store_address)
    try:
        brokers = (await tools.cluster_admin.topic_route(record.topic)).brokers
    except errors.TopicNotFound:
        brokers = ()
    holders = [one for one in brokers if host in one.addresses.values()] or list(brokers)
    if len(holders) != 1:
        return MessagePlace("", host)
    return MessagePlace(holders[0].broker_name, _reachable(holders[0], host))


def _reachable(broker: BrokerData, host: str) -> str:
    """Returns the address of the replica set's member with the lowest id, or `host` if it is a member's."""
    addresses = [address for _, address in sorted(broker.addresses.items())]
    return host if host in addresses or not addresses else addresses[0]


async def read_group_states(
    tools: Tools, record: Record, *, groups_max: int | None = None
) -> tuple[ConsumptionState, ...]:
    """Returns the state of the message in the groups of its topic, by name, at most `groups_max` of them."""
    route = await tools.cluster_admin.topic_route(record.topic)
    names = (await tools.groups_of(route, record.topic))[:groups_max]
    address = (await find_place(tools, record)).address
    return tuple(await map_each(names, lambda name: _read_state(tools, address, name, record)))


async def _read_state(tools: Tools, address: str, group: str, record: Record) -> ConsumptionState:
    try:
        found = await broker_admin.query_consumer_connections(tools.remoting, address, group)
        members = 0 if found is None else len(found.connections)
        mode = _mode_of(found, members)
        try:
            stats = await broker_admin.query_consume_stats(tools.remoting, address, group, topic=record.topic)
        except errors.RequestRejected:
            return ConsumptionState(
                group, members, "waits", mode
            )  # the group has not committed an offset yet
    except errors.TandemError as error:
        return ConsumptionState(group, 0, f"unknown: {error}", "")
    offset = next(
        (one.committed_offset for queue, one in stats.queues.items() if queue.queue_id == record.queue_id), -1
    )
    if offset <= record.queue_offset:
        return ConsumptionState(group, members, "waits", mode)
    want = None if found is None else found.subscriptions.get(record.topic)
    is_filtered = want is not None and bool(want.tags) and (record.tags or "") not in want.tags
    return ConsumptionState(
        group, members, "skipped: its tag is not subscribed" if is_filtered else "done", mode
    )


def _mode_of(found: ConsumerConnections | None, members: int) -> str:
    if found is None or not members:
        return "offline"
    if found.message_model is MessageModel.BROADCASTING:
        return "broadcasting"  # offsets are in the members: the broker knows nothing of them
    return "pull" if found.consume_type is ConsumeType.ACTIVELY else "push"


_TRANSACTIONS: Final = {
    flags.TRANSACTION_PREPARED: "half message of a transaction",
    flags.TRANSACTION_COMMIT: "committed transaction",
    flags.TRANSACTION_ROLLBACK: "rolled-back transaction",
}
_BITS: Final = (
    (flags.MULTI_TAGS, "several tags"),
    (flags.BORN_HOST_V6, "sender's address is IPv6"),
    (flags.STORE_HOST_V6, "broker's address is IPv6"),
    (flags.NEED_UNWRAP, "needs unwrapping"),
    (flags.INNER_BATCH, "batch stored as one message"),
)


def describe_sys_flag(sys_flag: int) -> Sequence[str]:
    """Returns the meaning of each bit of a message's system flag that is set."""
    found = []
    if sys_flag & flags.COMPRESSED:
        found.append(f"body compressed by {name_compression(sys_flag)}")
    if sys_flag & flags.TRANSACTION_MASK:
        found.append(_TRANSACTIONS[sys_flag & flags.TRANSACTION_MASK])
    found += [word for bit, word in _BITS if sys_flag & bit]
    known = flags.COMPRESSED | flags.COMPRESSION_MASK | flags.TRANSACTION_MASK
    known |= sum(bit for bit, _ in _BITS)
    if sys_flag & ~known:
        found.append(f"unknown bits {sys_flag & ~known:#x}")
    return tuple(found)
