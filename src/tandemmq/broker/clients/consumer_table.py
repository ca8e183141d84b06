"""Consumer groups that are online: members, subscriptions, how they consume. Pure; time is passed in.

The last heartbeat wins for consume type, model and start position; of a subscription the newest version
counts, and a topic missing from a heartbeat is unsubscribed (spec semantics 16.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from tandemmq.broker.clients.membership import Member, Membership
from tandemmq.broker.pull.filters import SQL_TYPE, compile_sql, is_tag_type, parse_tags
from tandemmq.protocol.sql92 import SqlFilter
from tandemmq.remoting.channel import Channel

BROADCASTING = "BROADCASTING"
FROM_LAST = "CONSUME_FROM_LAST_OFFSET"
ACTIVE_TYPE = "CONSUME_ACTIVELY"


class Subscription(NamedTuple):
    """What a group wants of a topic. `tag_hashes` None takes everything.

    `sql` is the filter of an expression that is not of type TAG, or why it has none; `has_older_sql`: the
    group's filter before this one could be compiled.
    """

    topic: str
    expression: str
    expression_type: str
    version: int
    tag_hashes: frozenset[int] | None
    sql: SqlFilter | str | None = None
    has_older_sql: bool = False


def make_subscription(topic: str, expression: str, expression_type: str, version: int) -> Subscription:
    """A subscription with its tags parsed, or its filter compiled.

    A filter that cannot be compiled is not an error here: the group's pulls are told (spec semantics 9.3).
    Raises:  ValueError when a tag expression cannot be used.
    """
    if is_tag_type(expression_type):
        return Subscription(topic, expression, expression_type, version, parse_tags(expression))
    sql = (
        compile_sql(expression)
        if expression_type == SQL_TYPE
        else f"the expression type {expression_type[:32]!r} is unknown"
    )
    return Subscription(topic, expression, expression_type, version, None, sql)


class Consumption(NamedTuple):
    """How a group consumes; the names are RocketMQ's."""

    consume_type: str
    message_model: str
    consume_from_where: str


class ConsumerGroup:
    """One online group."""

    __slots__ = ("consumption", "name", "subscriptions")

    def __init__(self, name: str, consumption: Consumption) -> None:
        self.name = name
        self.consumption = consumption
        self.subscriptions: dict[str, Subscription] = {}


class ConsumerTable:
    """All online groups; `on_change(group)` is called when members or subscribed topics changed."""

    def __init__(self, *, groups_per_client_max: int, on_change: Callable[[str], None]) -> None:
        self._membership = Membership(groups_per_client_max=groups_per_client_max)
        self._groups: dict[str, ConsumerGroup] = {}
        self._on_change = on_change

    def get(self, group: str) -> ConsumerGroup | None:
        return self._groups.get(group)

    def members(self, group: str) -> list[Member]:
        return self._membership.members(group)

    def member(self, group: str, channel: Channel) -> Member | None:
        return self._membership.get(group, channel)

    def find_client(self, group: str, client_id: str) -> Member | None:
        return next((m for m in self._membership.members(group) if m.client_id == client_id), None)

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
        subscriptions: Iterable[Subscription] | None,
    ) -> bool:
        """True when the group changed; `subscriptions` None keeps what the group has."""
        is_changed = self._membership.add(name, member)
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = ConsumerGroup(name, consumption)
        group.consumption = consumption
        if subscriptions is not None and _update_subscriptions(group, subscriptions):
            is_changed = True
        if is_changed:
            self._on_change(name)
        return is_changed

    def unregister(self, name: str, channel: Channel) -> None:
        if self._membership.remove(name, channel):
            self._after_leave(name)

    def drop_channel(self, channel: Channel) -> None:
        for name in self._membership.drop_channel(channel):
            self._after_leave(name)

    def heard_s(self, channel: Channel) -> float | None:
        """When the connection's last heartbeat came, by the monotonic clock; None when it is in no group."""
        return self._membership.heard_s(channel)

    def _after_leave(self, name: str) -> None:
        if name not in self._membership:
            del self._groups[name]
        self._on_change(name)


def _update_subscriptions(group: ConsumerGroup, subscriptions: Iterable[Subscription]) -> bool:
    """True when a topic came or went; a changed expression alone is not a change (spec semantics 16.1)."""
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
