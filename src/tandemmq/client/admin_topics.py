"""Creating and changing topics so that no stored message becomes unreachable; for `Admin` and tools.

A queue is readable while its number is below the topic's count of read queues. Fewer read queues hide what
the others hold from every consumer, and no lag tells of it.

Invariants: the count of read queues is lowered only after a look at the queues that go, or when forced. A
            change keeps every setting that it does not name.
Strategy:   fewer queues are fewer write queues first. The read queues follow when every group that is known
            for the topic has finished what the others hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tandemmq.api import broker_admin
from tandemmq.errors import BadRequest, RequestRejected, TopicExists, TopicHasUnread, TopicNotFound
from tandemmq.protocol.bodies.route import TopicRoute
from tandemmq.protocol.bodies.tables import TopicConfig
from tandemmq.protocol.codes import ResponseCode
from tandemmq.remoting.client import RemotingClient

Masters = Mapping[str, str]
"""Broker name -> address of its master."""
GROUPS_TOLD = 3
"""Groups and queues that the text of an error names at most."""


async def create(
    remoting: RemotingClient,
    masters: Masters,
    wanted: TopicConfig,
    route: TopicRoute | None,
    *,
    exist_ok: bool,
) -> bool:
    """Create the topic on the masters that lack it; True when there was one.

    `route`: of the topic now, for a broker that does not show its configuration.
    Raises:  TopicExists when a master has it with other settings, unless `exist_ok`; nothing is done then.
    """
    lacking: list[str] = []
    for name, address in masters.items():
        held = await _shown(remoting, name, address, wanted.name, route)
        if held is None:
            lacking.append(address)
        elif not exist_ok:
            _require_equal(name, held, wanted)
    for address in lacking:
        await broker_admin.create_topic(remoting, address, wanted)
    return bool(lacking)


async def grow(remoting: RemotingClient, masters: Masters, wanted: TopicConfig) -> bool:
    """Create the topic where it is missing, add queues where there are fewer; True when anything was done."""
    count, is_changed = wanted.write_queue_count, False
    for address in masters.values():
        held = await read_config(remoting, address, wanted.name)
        config = wanted
        if held is not None:
            config = _with_changes(
                held,
                read_queue_count=max(held.read_queue_count, count),
                write_queue_count=max(held.write_queue_count, count),
            )
            if (config.read_queue_count, config.write_queue_count) == _counts(held):
                continue
        await broker_admin.create_topic(remoting, address, config)
        is_changed = True
    return is_changed


async def change(
    remoting: RemotingClient, masters: Masters, topic: str, changes: Mapping[str, Any], *, force: bool
) -> dict[str, TopicConfig]:
    """Change the named settings where the topic exists; what each of these masters has then, by broker name.

    Raises:  TopicNotFound when no master has it. TopicHasUnread when read queues were to go whose messages
             some group has not finished: everything else is changed then, the write queues too.
    """
    changed: dict[str, TopicConfig] = {}
    unread: list[str] = []
    for name, address in masters.items():
        held = await read_config(remoting, address, topic)
        if held is None:
            continue
        wanted = _with_changes(held, **changes)
        if wanted.read_queue_count < held.read_queue_count and not force:
            first = msgspec.structs.replace(wanted, read_queue_count=held.read_queue_count)
            await broker_admin.create_topic(remoting, address, first)
            found = await find_unread(remoting, address, topic, wanted.read_queue_count)
            if found:
                unread.append(f"{name}: {found}")
                changed[name] = first
                continue
        await broker_admin.create_topic(remoting, address, wanted)
        changed[name] = wanted
    if not changed:
        raise TopicNotFound(f"no master that was asked has the topic {topic!r}")
    if unread:
        raise TopicHasUnread(
            f"topic {topic!r} keeps its read queues, because messages would become unreachable: "
            + "; ".join(unread)
            + ". Let the groups finish and change the topic again, or force it"
        )
    return changed


async def find_unread(remoting: RemotingClient, address: str, topic: str, read_queue_count: int) -> str:
    """What would be hidden with so few read queues: who has not finished which queues; empty when nothing.

    Without a group that is known for the topic all that these queues hold is unread.
    """
    ends = (await broker_admin.query_topic_stats(remoting, address, topic)).queues
    holding = {
        queue: one
        for queue, one in ends.items()
        if queue.queue_id >= read_queue_count and one.max_offset > one.min_offset
    }
    if not holding:
        return ""
    is_known = False
    found: list[str] = []
    for group in await broker_admin.query_groups_of_topic(remoting, address, topic):
        stats = await broker_admin.query_consume_stats(remoting, address, group, topic=topic)
        progress = {queue: one for queue, one in stats.queues.items() if queue in holding}
        is_known = is_known or bool(progress)
        left = sum(holding[queue].max_offset - one.committed_offset for queue, one in progress.items())
        if left > 0:
            found.append(f"group {group} has {left} messages left")
    if not is_known:
        found = [f"{sum(one.max_offset - one.min_offset for one in holding.values())} messages, and no group"]
    if not found:
        return ""
    queues = _few([str(number) for number in sorted(queue.queue_id for queue in holding)])
    return f"queues {queues}: {_few(found)}"


async def read_config(remoting: RemotingClient, address: str, topic: str) -> TopicConfig | None:
    """The topic as a broker has it, also one of RocketMQ 4.9, which tells all topics or none."""
    try:
        return await broker_admin.query_topic_config(remoting, address, topic)
    except RequestRejected as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
    return (await broker_admin.query_topic_configs(remoting, address)).topics.get(topic)


def require_queue_count(count: int | None) -> None:
    """Raises BadRequest for a topic without queues."""
    if count is not None and count < 1:
        raise BadRequest(f"queue_count {count}: must be 1 or more, a topic without queues takes nothing")


async def _shown(
    remoting: RemotingClient, name: str, address: str, topic: str, route: TopicRoute | None
) -> TopicConfig | None:
    """The topic as the broker shows it, else as the route does: an account may create, and not read."""
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
            " exist_ok=True takes it as it is, ensure_topic adds missing queues, update_topic changes it"
        )


def _with_changes(held: TopicConfig, **changes: Any) -> TopicConfig:
    """What a broker is asked for: it keeps the attributes that a request does not name."""
    return msgspec.structs.replace(held, **{"attributes": {}, **changes})


def _counts(config: TopicConfig) -> tuple[int, int]:
    return config.read_queue_count, config.write_queue_count


def _few(texts: list[str]) -> str:
    rest = len(texts) - GROUPS_TOLD
    return ", ".join(texts[:GROUPS_TOLD]) + (f" and {rest} more" if rest > 0 else "")
