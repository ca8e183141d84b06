"""Online clients: members of groups, rejected consumers, and the tables of consumers and producers.

`GroupMembers` is the common part of `ConsumerTable` and `ProducerTable`; `Refusals` records rejected
requests of consumers. Time is passed in. The tables are pure; `Refusals` also logs.
Source: spec semantics 16.1, 16.2.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Final, NamedTuple

from msgspec.structs import replace

from tandemmq.broker.pull.filters import SQL_TYPE, SqlBudget, is_tag_type, parse_tags
from tandemmq.errors import BadRequest, RemoteProtocolError, RequestRejected
from tandemmq.protocol.bodies.client import Refusal
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.sql92 import SqlFilter
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.dispatch import Handler
from tandemmq.remoting.options import render_address
from tandemmq.runtime.ports import Clock
from tandemmq.telemetry import events

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Member:
    """A client of a group, as described by its last heartbeat.

    `seen_at_ms`: wall-clock time of the heartbeat, for display. `heard_s`: the same by the monotonic clock,
    so that setting the wall clock expires no client.
    """

    channel: Channel
    client_id: str
    language: int
    version: int
    _: KW_ONLY
    seen_at_ms: int = 0
    heard_s: float = 0.0


class GroupMembers:
    """The members of groups, by group and by connection.

    Invariant: a group is in the table while it has a member; both directions always agree.
    At a bound: a connection that asks for one group too many is rejected with BadRequest.
    """

    def __init__(self, *, groups_per_client_max: int) -> None:
        self._groups_per_client_max = groups_per_client_max
        self._by_group: dict[str, dict[Channel, Member]] = {}
        self._by_channel: dict[Channel, dict[str, None]] = {}

    def members(self, group: str) -> list[Member]:
        """Returns the members in the order of joining; empty for an unknown group."""
        return list(self._by_group.get(group, {}).values())

    def member(self, group: str, channel: Channel) -> Member | None:
        members = self._by_group.get(group)
        return None if members is None else members.get(channel)

    def _add(self, group: str, member: Member) -> bool:
        """Adds or refreshes a member. Returns True when the connection is new in the group or has changed its
        client id.

        Raises:  BadRequest when the connection is in too many groups.
        """
        channel = member.channel
        groups = self._by_channel.setdefault(channel, {})
        if group not in groups and len(groups) >= self._groups_per_client_max:
            raise BadRequest(
                f"the client {member.client_id[:64]} is in {len(groups)} groups; at most"
                f" {self._groups_per_client_max} are allowed for one connection",
                code=ResponseCode.INVALID_PARAMETER,
            )
        groups[group] = None
        members = self._by_group.setdefault(group, {})
        before = members.get(channel)
        members[channel] = member
        return before is None or before.client_id != member.client_id

    def unregister(self, group: str, channel: Channel) -> None:
        """Removes the connection from the group, if it is a member."""
        members = self._by_group.get(group)
        if members is None or members.pop(channel, None) is None:
            return
        if not members:
            del self._by_group[group]
        groups = self._by_channel[channel]
        del groups[group]
        if not groups:
            del self._by_channel[channel]
        self._after_leave(group, channel)

    def drop_channel(self, channel: Channel) -> None:
        """Removes the connection from all of its groups."""
        for group in list(self._by_channel.get(channel, ())):
            self.unregister(group, channel)

    def _after_leave(self, group: str, channel: Channel) -> None:
        """Updates the table after the connection has left the group."""

    def heard_s(self, channel: Channel) -> float | None:
        """Returns the time at which any of the connection's memberships was last refreshed, by the monotonic
        clock; None if it has none.
        """
        groups = self._by_channel.get(channel, ())
        return max((self._by_group[group][channel].heard_s for group in groups), default=None)


REFUSALS_KEPT_MAX: Final = 1_024
REASON_LENGTH_MAX: Final = 512
LISTED_MAX: Final = 256
"""The most rejections in one answer."""
_GROUP_FIELD: Final = "consumerGroup"


class _Kind(NamedTuple):
    request: str
    group: str
    client: str
    code: int


class Refusals:
    """Rejected requests of consumers: heartbeats, pulls, pops and notifications.

    A rejected consumer stays silent while the broker looks healthy. So each kind of rejection (request,
    group, client, code) is logged once, all are counted, and tools can list the newest ones of a group.

    At a bound: `REFUSALS_KEPT_MAX` kinds are kept. Beyond that, the kind seen longest ago is forgotten, and
                is logged again when it recurs.

    `counts`: all rejections, by request and response code.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[_Kind, Refusal] = {}
        self.counts: dict[tuple[str, int], int] = {}

    def watch(self, request: str, handler: Handler) -> Handler:
        """Wraps a handler so that its rejections are recorded; `request` is the name of the request."""

        def watched(channel: Channel, command: Command) -> object:
            try:
                result = handler(channel, command)
            except RequestRejected as error:
                self.note(request, _group_of(command), render_address(channel.peer), error.code, error.remark)
                raise
            if result.__class__ is Command and result.code == ResponseCode.NO_PERMISSION:
                remark = result.remark or ""
                self.note(request, _group_of(command), render_address(channel.peer), result.code, remark)
            return result

        return watched  # type: ignore[return-value]  # it returns what the handler does

    def note(self, request: str, group: str, client: str, code: int, reason: str) -> None:
        """Records that a request was rejected, or that a part of it was skipped."""
        self.counts[request, code] = self.counts.get((request, code), 0) + 1
        kind = _Kind(request, group[:256], client[:256], code)
        before = self._kept.pop(kind, None)
        if before is None:
            if len(self._kept) >= REFUSALS_KEPT_MAX:
                del self._kept[next(iter(self._kept))]
            facts = {"request": request, "group": kind.group, "client": kind.client, "code": code}
            log.warning(events.CONSUMER_REFUSED, extra={**facts, "reason": reason[:REASON_LENGTH_MAX]})
        self._kept[kind] = Refusal(
            client=kind.client,
            code=code,
            count=1 if before is None else before.count + 1,
            last_at_ms=self._clock.now_ms(),
            reason=reason[:REASON_LENGTH_MAX],
            request=request,
        )

    @property
    def count(self) -> int:
        """The number of rejections since the start."""
        return sum(self.counts.values())

    @property
    def newest(self) -> str:
        """The newest rejection as text; empty without one."""
        for kind, refusal in reversed(self._kept.items()):
            return f"{kind.request} of group {kind.group} from {kind.client}: {refusal.reason}"
        return ""

    def list_newest(self) -> tuple[Refusal, ...]:
        """Returns the newest LISTED_MAX kept rejections of all groups with their groups, newest last."""
        newest = list(self._kept.items())[-LISTED_MAX:]
        return tuple(replace(refusal, group=kind.group) for kind, refusal in newest)

    def of_group(self, group: str) -> tuple[Refusal, ...]:
        """Returns the kept rejections of a group, newest last."""
        return tuple(refusal for kind, refusal in self._kept.items() if kind.group == group)


def _group_of(command: Command) -> str:
    try:
        return command.fields.get(_GROUP_FIELD, "")
    except RemoteProtocolError:  # a malformed header, which is why the request was rejected
        return ""


BROADCASTING = "BROADCASTING"
FROM_LAST = "CONSUME_FROM_LAST_OFFSET"
ACTIVE_TYPE = "CONSUME_ACTIVELY"


class HeldSubscription(NamedTuple):
    """A group's subscription to a topic. With `tag_hashes` None every message matches.

    `sql` is the filter of an expression that is not of type TAG, or the error text; None until the first pull
    compiles it. `has_older_sql`: the group's previous filter could be compiled.
    """

    topic: str
    expression: str
    expression_type: str
    version: int
    tag_hashes: frozenset[int] | None
    sql: SqlFilter | str | None = None
    has_older_sql: bool = False


def make_subscription(
    topic: str, expression: str, expression_type: str, version: int, budget: SqlBudget
) -> HeldSubscription:
    """Returns a subscription with its tags parsed, or its filter compiled if the budget allows.

    A filter that cannot be compiled is not an error here; the group's pulls report it (spec semantics 9.3).

    Raises:  ValueError when a tag expression is invalid.
    """
    if is_tag_type(expression_type):
        return HeldSubscription(topic, expression, expression_type, version, parse_tags(expression))
    sql = (
        budget.compile(expression)
        if expression_type == SQL_TYPE
        else f"the expression type {expression_type[:32]!r} is unknown"
    )
    return HeldSubscription(topic, expression, expression_type, version, None, sql)


class Consumption(NamedTuple):
    """The way a group consumes, in RocketMQ's names."""

    consume_type: str
    message_model: str
    consume_from_where: str


class ConsumerGroup:
    """An online consumer group."""

    __slots__ = ("consumption", "name", "subscriptions")

    def __init__(self, name: str, consumption: Consumption) -> None:
        self.name = name
        self.consumption = consumption
        self.subscriptions: dict[str, HeldSubscription] = {}


class ConsumerTable(GroupMembers):
    """All online consumer groups; `on_change(group)` is called when members or subscribed topics changed.

    The last heartbeat determines consume type, model and start position. Of a subscription the newest version
    counts, and a topic missing from a heartbeat is unsubscribed (spec semantics 16.1).
    """

    def __init__(self, *, groups_per_client_max: int) -> None:
        super().__init__(groups_per_client_max=groups_per_client_max)
        self._groups: dict[str, ConsumerGroup] = {}
        self.on_change: list[Callable[[str], None]] = []
        """Called with the group after each change of its members or subscriptions."""

    def get(self, group: str) -> ConsumerGroup | None:
        return self._groups.get(group)

    def find_client(self, group: str, client_id: str) -> Member | None:
        return next((m for m in self.members(group) if m.client_id == client_id), None)

    @property
    def groups(self) -> list[ConsumerGroup]:
        return list(self._groups.values())

    def groups_of_topic(self, topic: str) -> list[str]:
        return [group.name for group in self._groups.values() if topic in group.subscriptions]

    def register(
        self,
        name: str,
        member: Member,
        consumption: Consumption,
        subscriptions: Iterable[HeldSubscription] | None,
    ) -> bool:
        """Registers a member. Returns True if the group changed; `subscriptions` None keeps the group's
        own.
        """
        is_changed = self._add(name, member)
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = ConsumerGroup(name, consumption)
        group.consumption = consumption
        if subscriptions is not None and _update_subscriptions(group, subscriptions):
            is_changed = True
        if is_changed:
            self._after_change(name)
        return is_changed

    def _after_leave(self, group: str, channel: Channel) -> None:
        if group not in self._by_group:
            del self._groups[group]
        self._after_change(group)

    def _after_change(self, name: str) -> None:
        for callback in self.on_change:
            callback(name)


def _update_subscriptions(group: ConsumerGroup, subscriptions: Iterable[HeldSubscription]) -> bool:
    """Replaces the group's subscriptions. Returns True if a topic was added or removed; a changed expression
    alone does not count (spec semantics 16.1).
    """
    stored = group.subscriptions
    wanted = {subscription.topic: subscription for subscription in subscriptions}
    is_changed = stored.keys() != wanted.keys()
    for topic, subscription in wanted.items():
        before = stored.get(topic)
        if before is None:
            continue
        if before.version > subscription.version:
            wanted[topic] = before
        elif isinstance(subscription.sql, str) and (
            isinstance(before.sql, SqlFilter) or before.has_older_sql
        ):
            wanted[topic] = subscription._replace(has_older_sql=True)
    group.subscriptions = wanted
    return is_changed


class ProducerTable(GroupMembers):
    """All online producer groups (spec semantics 16.2)."""

    def __init__(self, *, groups_per_client_max: int) -> None:
        super().__init__(groups_per_client_max=groups_per_client_max)
        self._by_client: dict[str, Channel] = {}
        self._clients: dict[Channel, str] = {}

    @property
    def groups(self) -> list[str]:
        return list(self._by_group)

    def register(self, group: str, member: Member) -> None:
        self._add(group, member)
        if self._clients.get(member.channel) != member.client_id:
            self._forget_client(member.channel)
            self._clients[member.channel] = member.client_id
        self._by_client[member.client_id] = member.channel

    def find_client(self, client_id: str) -> Channel | None:
        """Returns the connection of the client's last heartbeat, or None if the client is in no group."""
        return self._by_client.get(client_id)

    def _after_leave(self, group: str, channel: Channel) -> None:
        if channel not in self._by_channel:
            self._forget_client(channel)

    def _forget_client(self, channel: Channel) -> None:
        client_id = self._clients.pop(channel, None)
        if client_id is not None and self._by_client.get(client_id) is channel:
            del self._by_client[client_id]
