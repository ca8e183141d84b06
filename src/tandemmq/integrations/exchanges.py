"""AMQP's exchanges and queues as topics and groups, for frameworks that were made for AMQP.

An exchange is a topic. A queue is a group that reads its own topic, which has what is sent to the queue
directly, and the topics of the exchanges that it is bound to. A binding therefore needs no memory shared
between processes: a publisher sends to the exchange, and each queue's group takes what its bindings match.

A transient queue (AMQP: exclusive or auto-delete) ends with its connection, so it has neither topic nor
group: its process reads the topics from their ends on. Messages for it are in the topic of the default
exchange. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from tandemmq.protocol.topic_names import GROUP_CHARS_MAX, encode_name


class ExchangeKind(Enum):
    """The rule by which an exchange matches routing keys."""

    DIRECT = "direct"
    TOPIC = "topic"
    FANOUT = "fanout"


@dataclass(frozen=True, slots=True)
class Binding:
    """A queue's interest in the messages of an exchange."""

    exchange: str
    kind: ExchangeKind
    routing_key: str

    def matches(self, routing_key: str) -> bool:
        """Returns True if a message with this key is for the queue."""
        if self.kind is ExchangeKind.FANOUT:
            return True
        if self.kind is ExchangeKind.DIRECT:
            return routing_key == self.routing_key
        return _pattern(self.routing_key).fullmatch(routing_key) is not None


def _pattern(key: str) -> re.Pattern[str]:
    """Returns the pattern of a topic exchange: `*` is one word, `#` any number of words."""
    words = [{"*": r"[^.]+", "#": r".*"}.get(word, re.escape(word)) for word in key.split(".")]
    text = r"\.".join(words)
    # `#` also matches no word at all, with its dot.
    return re.compile(text.replace(r"\..*", r"(\..*)?").replace(r".*\.", r"(.*\.)?"))


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one application's topics and groups. Other prefixes share only the queues' topics."""

    prefix: str = "kombu"

    def queue_topic(self, queue: str) -> str:
        """Returns the topic of what is sent to the queue directly."""
        return encode_name(queue)

    def exchange_topic(self, exchange: str) -> str:
        """Returns the topic of an exchange."""
        return f"{self.prefix}-exchange-{encode_name(exchange or 'default')}"

    def group(self, queue: str) -> str:
        """Returns the group of a durable queue. Raises ValueError for a name that is too long."""
        group = f"{self.prefix}-{encode_name(queue)}"
        if len(group) > GROUP_CHARS_MAX:
            raise ValueError(
                f"queue {queue!r}: its group {group!r} has more than {GROUP_CHARS_MAX} characters"
            )
        return group

    @property
    def transient_group(self) -> str:
        """The group in whose name all transient queues are read."""
        return f"{self.prefix}-|transient"  # no queue has this group


def tag_of(routing_key: str) -> str:
    """Returns the tag of messages with the routing key; `|` would separate tags."""
    return encode_name(routing_key).replace("|", "~")


def tags_of(bindings: Iterable[Binding]) -> str:
    """Returns the tags that the bindings of one queue to one exchange select; `*` if only their patterns
    can tell.
    """
    found = list(bindings)
    if any(one.kind is not ExchangeKind.DIRECT for one in found):
        return "*"
    return "||".join(sorted({tag_of(one.routing_key) for one in found}))
