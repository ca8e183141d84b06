"""Creates and changes topics without making stored messages unreachable; used by `Admin` and tools.

A queue is readable while its number is below the topic's count of read queues. Lowering the count hides the
messages of the removed queues from every consumer, and no lag reports them.

Invariants: the count of read queues is lowered only after the removed queues were checked, or when forced. A
            change keeps every setting that it does not name. Callers that cross never remove queues: the
            broker itself keeps what a request means to keep (`IfExists`). At a broker of RocketMQ, or an
            older one of ours, only the check before the request protects.
Strategy:   to remove queues, lower the count of write queues first. The count of read queues follows when
            every known group of the topic has consumed the removed queues.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from tandemmq.api import broker_admin, broker_consume
from tandemmq.client.changes import change_each
from tandemmq.errors import BadRequest, RequestRejected, TopicExists, TopicHasUnread, TopicNotFound
from tandemmq.protocol.bodies.route import TopicRoute
from tandemmq.protocol.bodies.tables import TOPIC_UNIT, TOPIC_UNIT_SUBSCRIPTION, TopicConfig
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.requests.admin import IfExists
from tandemmq.remoting.client import RemotingClient

T = TypeVar("T", bound=Hashable)
Masters = Mapping[str, str]
"""The masters of a cluster, as broker name -> address."""
NEW_QUEUE_COUNT: Final = 8
"""The queues of a new topic whose number is not given, as mqadmin has it."""
GROUPS_NAMED = 3
"""The number of groups, or of queues, that an error text names at most."""


async def create(
    remoting: RemotingClient,
    masters: Masters,
    wanted: TopicConfig,
    route: TopicRoute | None,
    *,
    exist_ok: bool,
) -> bool:
    """Creates the topic on the masters that lack it; returns True if a master lacked it.

    `route` is the topic's current route, used for a broker that refuses to show its configuration.
    Raises:  TopicExists when a master has the topic with other settings, unless `exist_ok`. Nothing was
             created then, except when another caller created the topic at the same moment. The errors of
             `change_each`.
    """
    lacking: dict[str, str] = {}
    for name, address in masters.items():
        held = await _read_config(remoting, name, address, wanted.name, route)
        if held is None:
            lacking[name] = address
        elif not exist_ok:
            _require_equal(name, held, wanted)

    async def create_at(name: str) -> None:
        await _write(remoting, lacking[name], wanted, if_exists=IfExists.KEEP)
        if not exist_ok:
            held = await _read_config(remoting, name, lacking[name], wanted.name, None)
            if held is not None:  # with the attributes as that broker understands them
                _require_equal(name, held, msgspec.structs.replace(wanted, attributes={}))

    await change_each(lacking, create_at)
    return bool(lacking)


async def grow(remoting: RemotingClient, masters: Masters, wanted: TopicConfig) -> bool:
    """Creates the topic where it is missing and adds queues where there are fewer; returns True if anything
    was changed. Raises the errors of `change_each`.
    """
    count = wanted.write_queue_count

    async def grow_at(name: str) -> bool:
        address = masters[name]
        held = await read_config(remoting, address, wanted.name)
        config = wanted
        if held is not None:
            config = _with_changes(
                held,
                read_queue_count=max(held.read_queue_count, count),
                write_queue_count=max(held.write_queue_count, count),
            )
            if (config.read_queue_count, config.write_queue_count) == _counts(held):
                return False
        await _write(remoting, address, config, if_exists=IfExists.GROW)
        return True

    return any((await change_each(masters, grow_at)).values())


async def change(
    remoting: RemotingClient,
    masters: Mapping[T, str],
    topic: str,
    changes: Mapping[str, Any],
    *,
    force: bool = False,
    creates: bool = False,
) -> dict[T, TopicConfig]:
    """Changes the given settings at the masters (target -> address) that have the topic; with `creates` the
    others create it. Returns the resulting configuration of each changed one.

    `changes` are fields of `TopicConfig`, and its flags `is_unit` and `has_unit_subscription`.
    Raises:  TopicNotFound when no master has the topic. TopicHasUnread when read queues would be removed that
             some group has not consumed; all other changes are applied then, including the count of write
             queues. The errors of `change_each`.
    """
    names_counts = "read_queue_count" in changes or "write_queue_count" in changes
    if_exists = None if names_counts else IfExists.NO_FEWER
    unread: list[str] = []

    async def change_at(target: T) -> TopicConfig | None:
        address = masters[target]
        held = await read_config(remoting, address, topic)
        if held is None:
            if not creates:
                return None
            new = TopicConfig(name=topic, read_queue_count=NEW_QUEUE_COUNT, write_queue_count=NEW_QUEUE_COUNT)
            wanted = _with_changes(new, **changes)
            await _write(remoting, address, wanted, if_exists=IfExists.NO_FEWER)
            return wanted
        wanted = _with_changes(held, **changes)
        if wanted.read_queue_count < held.read_queue_count and not force:
            first = msgspec.structs.replace(wanted, read_queue_count=held.read_queue_count)
            await _write(remoting, address, first)
            found = await find_unread(remoting, address, held, wanted.read_queue_count)
            if found:
                unread.append(f"{target}: {found}")
                return first
        await _write(remoting, address, wanted, if_exists=if_exists)
        return wanted

    answers = await change_each(masters, change_at)
    changed = {target: config for target, config in answers.items() if config is not None}
    if not changed:
        raise TopicNotFound(f"none of the masters has the topic {topic!r}")
    if unread:
        raise TopicHasUnread(
            f"topic {topic!r} keeps its read queues, because messages would become unreachable: "
            + "; ".join(unread)
            + ". Let the groups finish and change the topic again, or force it"
        )
    return changed


async def find_unread(
    remoting: RemotingClient, address: str, held: TopicConfig, read_queue_count: int
) -> str:
    """Describes the messages of the topic `held` that `read_queue_count` read queues would hide: the
    unfinished groups and the queues. Returns an empty text when no message would be hidden.

    If no group is known for the topic, all messages of these queues count as unread.
    """
    topic = held.name
    stats = (await broker_admin.query_topic_stats(remoting, address, topic)).queues
    ends = {queue.queue_id: (one.min_offset, one.max_offset) for queue, one in stats.items()}
    for number in range(read_queue_count, held.read_queue_count):
        if number not in ends:  # a broker of RocketMQ 4.9 reports only the queues that are written
            low = await broker_consume.query_min_offset(remoting, address, topic, number)
            ends[number] = low, await broker_consume.query_max_offset(remoting, address, topic, number)
    holding = {number: end for number, end in ends.items() if number >= read_queue_count and end[1] > end[0]}
    if not holding:
        return ""
    is_known = False
    found: list[str] = []
    for group in await broker_admin.query_groups_of_topic(remoting, address, topic):
        consumed = (await broker_admin.query_consume_stats(remoting, address, group, topic=topic)).queues
        progress = {queue.queue_id: one.committed_offset for queue, one in consumed.items()}
        progress = {number: offset for number, offset in progress.items() if number in holding}
        is_known = is_known or bool(progress)
        left = sum(holding[number][1] - offset for number, offset in progress.items())
        if left > 0:
            found.append(f"group {group} has {left} messages left")
    if not is_known:
        found = [f"{sum(high - low for low, high in holding.values())} messages, and no group"]
    if not found:
        return ""
    return f"queues {_few([str(number) for number in sorted(holding)])}: {_few(found)}"


async def read_config(remoting: RemotingClient, address: str, topic: str) -> TopicConfig | None:
    """Returns the topic's configuration at a broker. A RocketMQ 4.9 broker can only list all topics; then the
    topic is picked from the list.
    """
    try:
        return await broker_admin.query_topic_config(remoting, address, topic)
    except RequestRejected as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
    return (await broker_admin.query_topic_configs(remoting, address)).topics.get(topic)


async def _write(
    remoting: RemotingClient, address: str, wanted: TopicConfig, *, if_exists: IfExists | None = None
) -> None:
    """Creates or changes the topic at a broker. Raises BadRequest for attributes if the broker has none."""
    if wanted.attributes:
        try:
            await broker_admin.query_topic_config(remoting, address, wanted.name)
        except RequestRejected as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise BadRequest(
                    f"attributes {', '.join(wanted.attributes)}: brokers of RocketMQ 4 ignore them, as their"
                    " topics have none; leave them out"
                ) from None
    await broker_admin.create_topic(remoting, address, wanted, if_exists=if_exists)


def require_queue_count(count: int | None) -> None:
    """Raises BadRequest for a topic without queues."""
    if count is not None and count < 1:
        raise BadRequest(
            f"queue_count {count}: must be 1 or more, because a topic without queues accepts no messages"
        )


async def _read_config(
    remoting: RemotingClient, name: str, address: str, topic: str, route: TopicRoute | None
) -> TopicConfig | None:
    """Returns the topic's configuration from the broker, or from the route if the broker rejects the query:
    an account may be allowed to create topics but not to read them.
    """
    try:
        return await read_config(remoting, address, topic)
    except RequestRejected:
        for entry in () if route is None else route.queues:
            if entry.broker_name == name:
                return TopicConfig(
                    name=topic,
                    read_queue_count=entry.read_queue_count,
                    write_queue_count=entry.write_queue_count,
                    permission=entry.permission,
                )
        return None


def _require_equal(broker_name: str, held: TopicConfig, wanted: TopicConfig) -> None:
    has, wants = _counts(held), _counts(wanted)
    differs = [] if has == wants else [f"{has[0]} read and {has[1]} write queues, not {wants[1]}"]
    if held.permission != wanted.permission:
        differs.append(f"permission {held.permission}, not {wanted.permission}")
    differs += [
        f"{name}={held.attributes.get(name)}, not {value}"
        for name, value in wanted.attributes.items()
        if held.attributes.get(name) != value
    ]
    if differs:
        raise TopicExists(
            f"topic {wanted.name!r} exists with other settings, at {broker_name} it has {'; '.join(differs)}:"
            " exist_ok=True accepts it as it is, ensure_topic adds missing queues, update_topic changes it"
        )


def _with_changes(held: TopicConfig, **changes: Any) -> TopicConfig:
    """Returns the configuration to request. A broker keeps the attributes that a request does not name."""
    for name, bit in (("is_unit", TOPIC_UNIT), ("has_unit_subscription", TOPIC_UNIT_SUBSCRIPTION)):
        if name in changes:
            sys_flag = changes.get("sys_flag", held.sys_flag)
            changes["sys_flag"] = sys_flag | bit if changes.pop(name) else sys_flag & ~bit
    return msgspec.structs.replace(held, **{"attributes": {}, **changes})


def _counts(config: TopicConfig) -> tuple[int, int]:
    return config.read_queue_count, config.write_queue_count


def _few(texts: list[str]) -> str:
    more = len(texts) - GROUPS_NAMED
    return ", ".join(texts[:GROUPS_NAMED]) + (f" and {more} more" if more > 0 else "")
