"""What a consumer wants of a topic: everything, or messages with one of some tags; pure (spec semantics
9.1).
"""

from __future__ import annotations

from dataclasses import dataclass

from tandemmq.errors import BadRequest
from tandemmq.protocol.bodies.heartbeat import SubscriptionData
from tandemmq.protocol.java_hash import tag_hash

ALL = "*"
TAG = "TAG"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """One topic. `tags` is empty for everything; `version` rises with every change (brokers keep the
    newest).
    """

    topic: str
    tags: frozenset[str]
    version: int

    @property
    def expression(self) -> str:
        """As it travels: `*`, or the tags joined by `||` in a fixed order."""
        return " || ".join(sorted(self.tags)) if self.tags else ALL

    def matches(self, tags: str) -> bool:
        """By exact text: the broker only compared hashes, which may collide. Without tags nothing but `*`
        matches.
        """
        return not self.tags or tags in self.tags

    def describe(self) -> SubscriptionData:
        """As heartbeats carry it."""
        return SubscriptionData(
            topic=self.topic,
            expression=self.expression,
            tags=self.tags,
            tag_hashes=frozenset(tag_hash(tag) for tag in self.tags),
            version=self.version,
        )


def parse_subscription(topic: str, expression: str, version: int) -> Subscription:
    """The subscription of `*`, of an empty text, or of `TagA || TagB`.

    Raises:  BadRequest when the expression is `||` without any tag.
    """
    text = expression.strip()
    if text in ("", ALL):
        return Subscription(topic=topic, tags=frozenset(), version=version)
    tags = frozenset(piece.strip() for piece in text.split("||") if piece.strip())
    if not tags:
        raise BadRequest(f"subscription {expression!r} of topic {topic!r}: no tag between the bars")
    return Subscription(topic=topic, tags=tags, version=version)
