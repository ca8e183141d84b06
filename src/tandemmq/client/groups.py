"""Consumer groups at the brokers: settings, online members, and moves of single queues; used by `Admin` and
tools.

Each broker has its own settings of a group, and a member is connected to every broker. A change keeps the
settings that it does not name.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypedDict

import msgspec

from tandemmq.api import broker_admin, broker_consume
from tandemmq.api.broker_admin import END_OF_QUEUE_MS
from tandemmq.errors import BadRequest, RequestRejected
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.client import ClientConnection, ConsumerConnections, Refusal, SubscriptionData
from tandemmq.protocol.bodies.tables import GroupRetryPolicy, SubscriptionGroupConfig
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.requests.admin import IfExists
from tandemmq.remoting.client import RemotingClient

UNKNOWN_GROUP: Final = (
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    ResponseCode.CONSUMER_NOT_ONLINE,
    ResponseCode.TOPIC_NOT_EXIST,
)
"""The codes of a broker that knows no member and no offset of a group."""
_NO_OFFSET: Final = re.compile("the consumer group .* not exist", re.IGNORECASE)
"""The remark of a RocketMQ 4.9 broker if a group has no offset in a queue; the code is the general one."""

Count = Annotated[int, msgspec.Meta(ge=0)]


class GroupChanges(TypedDict, total=False):
    """The settings of a group that a call names: fields of `SubscriptionGroupConfig`. `attributes` are set,
    or removed if the key begins with "-".
    """

    is_consume_enabled: bool
    is_from_min_enabled: bool
    is_broadcast_enabled: bool
    is_orderly: bool
    retry_count_max: Annotated[int, msgspec.Meta(ge=-1)]
    retry_queue_count: Count
    retry_policy: GroupRetryPolicy
    consume_timeout_minutes: Count
    notifies_members: bool
    broker_id: Count
    slow_read_broker_id: Count
    attributes: dict[str, str]


@dataclass(frozen=True, slots=True)
class OnlineMembers:
    """The online members of a group by client id, each with one of its connections; their subscriptions by
    topic and broker address; and the requests of the group that brokers refused. `kinds` are the connection
    lists of the brokers at which members are online. `refused` has the reasons of the brokers, by address,
    that did not tell members or progress: both may be incomplete then.
    """

    members: dict[str, ClientConnection] = field(default_factory=dict)
    subscriptions: dict[str, dict[str, SubscriptionData]] = field(default_factory=dict)
    refusals: list[tuple[str, Refusal]] = field(default_factory=list)
    kinds: list[ConsumerConnections] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


def check_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the changes as fields of a request. Raises BadRequest for an unknown setting, or a value that
    is not allowed.
    """
    known = GroupChanges.__annotations__
    for name in changes:
        if name not in known:
            raise BadRequest(f"unknown setting {name!r} of a group; the settings are {', '.join(known)}")
    try:
        fields: dict[str, Any] = {**msgspec.convert(dict(changes), GroupChanges)}
    except msgspec.ValidationError as error:
        raise BadRequest(f"settings of a group: {error}") from None
    if "attributes" in fields:
        fields["attributes"] = {
            key if key.startswith(("+", "-")) else f"+{key}": value
            for key, value in fields["attributes"].items()
        }
    return fields


async def change_at(
    remoting: RemotingClient,
    address: str,
    held: SubscriptionGroupConfig,
    changes: Mapping[str, Any],
    *,
    if_exists: IfExists | None = None,
) -> SubscriptionGroupConfig:
    """Creates a group at a broker, or changes the given fields of the settings that it has there. Returns the
    settings that were sent. `if_exists` is for a group that another caller has just created.
    """
    # A group keeps its attributes; a request contains only changes of them.
    config = msgspec.structs.replace(held, **{"attributes": {}, **changes})
    await broker_admin.create_group(remoting, address, config, if_exists=if_exists)
    return config


async def read_members(remoting: RemotingClient, addresses: Iterable[str], group: str) -> OnlineMembers:
    """Returns the members of a group, as these brokers know them. A member is connected to all brokers and
    counts once.
    """
    members = OnlineMembers()
    asked = list(addresses)
    answers = await asyncio.gather(*(_connections_at(remoting, one, group, members.refused) for one in asked))
    for address, found in zip(asked, answers, strict=True):
        if found is None:
            continue
        for connection in found.connections:
            members.members.setdefault(connection.client_id, connection)
        for topic, data in found.subscriptions.items():
            members.subscriptions.setdefault(topic, {})[address] = data
        members.refusals.extend((address, refusal) for refusal in found.refusals or ())
        if found.connections:
            members.kinds.append(found)
    return members


async def move_group(
    remoting: RemotingClient, address: str, group: str, queues: Sequence[MessageQueue], time_ms: int
) -> dict[MessageQueue, int]:
    """Moves a group, running or not, to a time in these queues at their master: all its queues of one topic.
    Returns the new offsets.

    Brokers of RocketMQ 4.9 move a group only if it has an offset in each queue, and leave it to the online
    members to commit the new ones. There the new offsets are committed first.
    """
    topic = queues[0].topic
    try:
        return await broker_admin.reset_offsets(remoting, address, group, topic, time_ms)
    except RequestRejected as error:
        if error.code != ResponseCode.CONSUMER_NOT_ONLINE and not _NO_OFFSET.match(error.remark):
            raise
    offsets: dict[MessageQueue, int] = {}
    for queue in queues:
        where = (remoting, address, topic, queue.queue_id)
        if time_ms == END_OF_QUEUE_MS:
            offsets[queue] = await broker_consume.query_max_offset(*where)
        else:
            offsets[queue] = await broker_consume.search_offset(*where, time_ms)
        await broker_consume.commit_offset(remoting, address, group, topic, queue.queue_id, offsets[queue])
    try:
        return await broker_admin.reset_offsets(remoting, address, group, topic, time_ms)
    except RequestRejected as error:
        if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
    return offsets


async def move_queue(
    remoting: RemotingClient, address: str, group: str, queue: MessageQueue, offset: int
) -> dict[MessageQueue, int]:
    """Moves a group, running or not, to an offset of one queue at its master; returns the new offset.

    Brokers of RocketMQ 4.9 move all queues when one is named. There one queue is moved by a commit, which the
    group's members would overwrite.
    Raises:  BadRequest if members are online at such a broker.
    """
    version = (await broker_admin.query_runtime_info(remoting, address)).get("brokerVersionDesc", "")
    if not version.startswith(("V3", "V4")):
        return await broker_admin.reset_offsets(
            remoting, address, group, queue.topic, END_OF_QUEUE_MS, queue_id=queue.queue_id, offset=offset
        )
    members = await read_members(remoting, [address], group)
    if members.refused:
        raise BadRequest(f"the members of {group!r} are not known: {members.refused[address]}")
    if members.members:
        raise BadRequest(
            f"{queue.broker_name} has RocketMQ {version}, which moves one queue only while no member of"
            f" {group!r} is online: stop the members, or move all queues to a time"
        )
    await broker_consume.commit_offset(remoting, address, group, queue.topic, queue.queue_id, offset)
    return {queue: offset}


async def _connections_at(
    remoting: RemotingClient, address: str, group: str, refused: dict[str, str]
) -> ConsumerConnections | None:
    try:
        return await broker_admin.query_consumer_connections(remoting, address, group)
    except RequestRejected as error:
        if error.code not in UNKNOWN_GROUP:
            refused[address] = str(error)
        return None
