"""The subscription of a consumer to a topic: all messages, messages with one of some tags, or messages
matching a SQL92 expression. Also the check, before a consumer begins, that the brokers of the topic support
such a filter (CHECK_CLIENT_CONFIG; spec semantics 9.1, 9.2).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import cast

from tandemmq.api import broker_consume
from tandemmq.client.instance import ClientInstance
from tandemmq.errors import BadRequest
from tandemmq.protocol.bodies.client import ClientConfigCheck, SubscriptionData
from tandemmq.protocol.hashes import tag_hash
from tandemmq.protocol.sql92 import SqlError, compile_filter
from tandemmq.protocol.topic_names import check_topic


async def check_filters(instance: ClientInstance, group: str, subscriptions: Iterable[Subscription]) -> None:
    """Checks the SQL92 subscriptions at the masters of their topics; a topic without a route is skipped.

    Raises:  RequestRejected when a broker has filters by property disabled (enablePropertyFilter) or does not
             understand the expression; BrokerUnreachable, RequestTimeout.
    """
    for subscription in subscriptions:
        if subscription.sql is None:
            continue
        view = instance.routes.get(subscription.topic)
        for name in sorted({queue.broker_name for queue in view.subscribe_queues} if view else ()):
            address = instance.routes.master_address(subscription.topic, name)
            if address is None:
                continue
            check = ClientConfigCheck(
                client_id=instance.client_id, group=group, subscription=subscription.describe()
            )
            await broker_consume.check_client_config(instance.remoting, address, check)


ALL = "*"
TAG = "TAG"
SQL = "SQL92"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """The subscription to one topic. An empty `tags` selects all messages or, if `sql` is set, those that
    match this expression over their properties. `version` rises with every change; brokers keep the newest.
    """

    topic: str
    tags: frozenset[str]
    version: int
    sql: str | None = None

    @property
    def expression_type(self) -> str:
        return TAG if self.sql is None else SQL

    @property
    def expression(self) -> str:
        """The expression as sent: `*`, the tags joined by `||` in a fixed order, or the SQL92 text."""
        if self.sql is not None:
            return self.sql
        return " || ".join(sorted(self.tags)) if self.tags else ALL

    def matches(self, tags: str) -> bool:
        """Returns True if the tag is one of `tags`, by exact text: the broker compared only hashes, which may
        collide. A message without a tag matches only `*`.
        """
        return not self.tags or tags in self.tags

    def describe(self) -> SubscriptionData:
        """Returns the subscription as heartbeats carry it."""
        return SubscriptionData(
            topic=self.topic,
            expression=self.expression,
            expression_type=self.expression_type,
            tags=self.tags,
            tag_hashes=frozenset(tag_hash(tag) for tag in self.tags),
            version=self.version,
        )


Tags = str | Collection[str]
"""The tags of a subscription: `*`, one expression such as `TagA || TagB`, or several texts."""


def make_subscription(topic: str, tags: Tags, sql: str | None, version: int) -> Subscription:
    """Returns the subscription of tags, or of a SQL92 expression.

    Raises:  BadRequest for an invalid topic name, an expression without a tag, an invalid SQL92 expression,
             or both tags and SQL.
    """
    check_topic(topic)
    if not isinstance(tags, str):
        tags = _join_tags(topic, tags)
    if sql is None:
        return parse_subscription(topic, tags, version)
    if tags != ALL:
        raise BadRequest(f"topic {topic!r}: pass tags or sql, not both; sql can compare the property TAGS")
    if not isinstance(sql, str):
        raise BadRequest(f"topic {topic!r}: sql {sql!r:.64}: must be str")
    return parse_sql(topic, sql, version)


def _join_tags(topic: str, tags: object) -> str:
    texts = [text for text in tags if isinstance(text, str)] if isinstance(tags, Collection) else []
    if not texts or len(texts) < len(cast("Collection[object]", tags)):
        raise BadRequest(
            f"topic {topic!r}: tags {tags!r}: must be a tag, several joined by ||, or a list of tags"
        )
    return "||".join(texts)


def parse_subscription(topic: str, expression: str, version: int) -> Subscription:
    """Parses `*`, an empty text, or `TagA || TagB`.

    Raises:  BadRequest when the expression is `||` without any tag.
    """
    text = expression.strip()
    if text in ("", ALL):
        return Subscription(topic=topic, tags=frozenset(), version=version)
    tags = frozenset(piece.strip() for piece in text.split("||") if piece.strip())
    if not tags:
        raise BadRequest(
            f"subscription {expression!r} of topic {topic!r}: expected a tag, such as TagA || TagB"
        )
    return Subscription(topic=topic, tags=tags, version=version)


def parse_sql(topic: str, sql: str, version: int) -> Subscription:
    """Returns the subscription of a SQL92 expression, which the broker evaluates.

    Raises:  BadRequest when the expression cannot be compiled, with the position. An installation without
             the parser leaves that to the broker (`check_filters`).
    """
    try:
        compile_filter(sql)
    except ImportError:
        pass
    except SqlError as error:
        raise BadRequest(f"subscription {sql[:200]!r} of topic {topic!r}: {error}") from None
    return Subscription(topic=topic, tags=frozenset(), version=version, sql=sql)
