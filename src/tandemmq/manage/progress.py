"""The progress of a consumer group in each queue, and its members, as the brokers report them. Used by
commands and by pages of topics and of groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from tandemmq.api import broker_admin
from tandemmq.client.groups import UNKNOWN_GROUP, OnlineMembers, read_members
from tandemmq.errors import RequestRejected, TandemError
from tandemmq.manage.tools import Tools
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.stats import QueueProgress, RunningInfo
from tandemmq.protocol.topic_names import RETRY_PREFIX, is_retry_topic


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The progress of a group in one queue. `read_at_ms`: the store time of the last message that the group
    has consumed, 0 if the broker does not know it.
    """

    queue: MessageQueue
    broker_offset: int
    committed_offset: int
    in_flight: int
    read_at_ms: int

    @property
    def lag(self) -> int:
        return self.broker_offset - self.committed_offset

    def behind_s(self, now_ms: int) -> int | None:
        """Returns the seconds between the last consumed message and now, if the queue has a lag."""
        return find_behind_s([self], now_ms)


def sum_lag(lags: Iterable[GroupLag]) -> int:
    """Returns the lag of all queues, in messages."""
    return sum(one.lag for one in lags)


def find_behind_s(lags: Iterable[GroupLag], now_ms: int) -> int | None:
    """Returns the age of the oldest progress among the queues with a lag, in seconds; None without such a
    queue, or if its age is not known.
    """
    read_at = [one.read_at_ms for one in lags if one.lag > 0 and one.read_at_ms > 0]
    return max(0, now_ms - min(read_at)) // 1000 if read_at else None


async def read_group_names(tools: Tools, masters: list[str], topics: Iterable[str]) -> list[str]:
    """Returns the groups that have a retry topic. A group that pops also has one retry topic per topic, which
    does not name another group.
    """
    known: set[str] = set()
    for _, table in await tools.ask(masters, broker_admin.query_group_configs):
        known |= table.groups.keys()
    names = [name.removeprefix(RETRY_PREFIX) for name in topics if is_retry_topic(name)]
    return [name for name in names if name in known]


async def read_lags(
    tools: Tools, masters: list[str], group: str, topic: str = "", *, members: OnlineMembers | None = None
) -> list[GroupLag]:
    """Returns the group's progress in each queue, of one topic or of all, by queue. Topics that the group
    reads at any broker, or subscribes to now, count at every broker: in a queue without a committed offset
    all messages count as lag. `members` spares the question for the subscriptions, and gets the reasons of
    brokers that refuse in `refused`; without it a refusal is raised.
    """
    refused = None if members is None else members.refused
    tables = await asyncio.gather(*(_progress_at(tools, one, group, topic, refused) for one in masters))
    found = dict(zip(masters, tables, strict=True))
    if not topic:
        members = members or await read_members(tools.remoting, masters, group)
        topics = set(members.subscriptions).union(*({one.topic for one in queues} for queues in tables))
        for address, queues in found.items():
            for missing in sorted(topics - {queue.topic for queue in queues}):
                held = await _progress_at(tools, address, group, missing, refused)
                queues |= {queue: one for queue, one in held.items() if one.broker_offset}
    return [
        GroupLag(
            queue,
            one.broker_offset,
            one.committed_offset,
            max(0, one.pull_offset - one.committed_offset),
            one.last_timestamp_ms,
        )
        for queue, one in sorted(item for queues in found.values() for item in queues.items())
    ]


@dataclass(frozen=True, slots=True)
class MemberReports:
    """The state of a group's members as they report it: broker asked, client id, report; `silent` are the
    members that do not, each with the reason.
    """

    reports: list[tuple[str, str, RunningInfo]]
    silent: dict[str, TandemError]

    def readers(self) -> dict[MessageQueue, str]:
        """Returns, per queue, the client id of the member that reads it."""
        return {queue: client for _, client, info in self.reports for queue in info.queues}


async def read_reports(
    tools: Tools, addresses: list[str], group: str, *, client_id: str = "", has_stack: bool = False
) -> MemberReports:
    """Asks each member of a group, or one, for its state, through a broker to which it is connected."""
    asked: dict[str, str] = {}
    for address in addresses:
        found = await broker_admin.query_consumer_connections(tools.remoting, address, group)
        for one in () if found is None else found.connections:
            if client_id in ("", one.client_id):
                asked.setdefault(one.client_id, address)

    reports = MemberReports([], {})
    for client, address in asked.items():
        try:
            info = await broker_admin.query_running_info(
                tools.remoting, address, group, client, has_stack=has_stack
            )
        except TandemError as error:
            reports.silent[client] = error
        else:
            reports.reports.append((address, client, info))
    return reports


async def _progress_at(
    tools: Tools, address: str, group: str, topic: str, refused: dict[str, str] | None
) -> dict[MessageQueue, QueueProgress]:
    """Returns the group's progress at one broker; empty when the broker knows neither the group nor an
    offset, and when its refusal is added to `refused`.
    """
    try:
        stats = await broker_admin.query_consume_stats(tools.remoting, address, group, topic=topic or None)
    except RequestRejected as error:
        if error.code not in UNKNOWN_GROUP:
            if refused is None:
                raise
            refused[address] = str(error)
        return {}
    return dict(stats.queues)
