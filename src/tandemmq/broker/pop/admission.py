"""Who may pop what: the checks in the spec's order (spec semantics 14.1)."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from tandemmq.broker.guards import invalid, require_group, require_topic
from tandemmq.broker.options import BrokerOptions
from tandemmq.broker.pull.filters import is_tag_type, parse_tags, require_sql
from tandemmq.broker.topics.group_table import GroupTable
from tandemmq.broker.topics.topic_table import TopicTable
from tandemmq.errors import Busy, NotPermitted, RequestRejected
from tandemmq.protocol.bodies.group import SubscriptionGroupConfig
from tandemmq.protocol.bodies.topic import TopicConfig
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.requests.pop import ANY_QUEUE
from tandemmq.protocol.sql92 import SqlFilter

COUNT_MAX: Final = 32
LATE_MS: Final = 500
INVISIBLE_MS_MAX: Final = 3 * 24 * 3_600_000
"""RocketMQ's timer takes its check points no farther ahead (timerMaxDelaySec)."""


class Target(Protocol):
    """What the headers of POP, PEEK and NOTIFICATION have in common."""

    @property
    def consumer_group(self) -> str: ...

    @property
    def topic(self) -> str: ...

    @property
    def queue_id(self) -> int: ...


class Admitted(NamedTuple):
    """What may be popped, and by whom."""

    topic: TopicConfig
    group: SubscriptionGroupConfig


class PopAdmission:
    """Admits or refuses pops."""

    def __init__(self, options: BrokerOptions, *, topics: TopicTable, groups: GroupTable) -> None:
        self._options = options
        self._topics = topics
        self._groups = groups

    def admit(self, header: Target, now_ms: int) -> Admitted:
        """Raises:  RequestRejected of the kind that the spec names for the first check that fails."""
        options = self._options
        if not options.is_readable:
            raise NotPermitted(
                f"the broker {options.broker_name} is not readable"
                f" (brokerPermission {options.broker_permission})"
            )
        topic = require_topic(self._topics, header.topic)
        if not topic.is_readable:
            raise NotPermitted(f"the topic {topic.name} is not readable (permission {topic.permission})")
        if not ANY_QUEUE <= header.queue_id < topic.read_queue_count:
            raise invalid(
                f"queueId {header.queue_id} is outside -1..{topic.read_queue_count - 1} of {topic.name}"
            )
        group = require_group(self._groups, header.consumer_group, now_ms)
        if not group.is_consume_enabled:
            raise NotPermitted(f"the group {group.name} may not consume (consumeEnable is false)")
        return Admitted(topic, group)

    def require_master(self, is_ready: bool) -> None:
        """A slave can lease nothing, because it writes nothing (spec semantics 2.3: pops go to id 0)."""
        if self._options.is_slave:
            raise Busy("[REJECTREQUEST] a slave pops nothing and takes no acks: ask the master")
        if not is_ready:
            raise Busy("[REJECTREQUEST] the broker does not pop yet or any more, try again")


def is_late(born_at_ms: int, poll_ms: int, now_ms: int) -> bool:
    """The client has given the request up."""
    return now_ms - born_at_ms - poll_ms > LATE_MS


def check_count(count: int) -> None:
    """Raises BadRequest outside of what one check point holds."""
    if not 1 <= count <= COUNT_MAX:
        raise invalid(f"maxMsgNums {count} is outside 1..{COUNT_MAX}")


def check_invisible(invisible_ms: int) -> None:
    """Raises BadRequest for a time that no check point can say."""
    if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
        raise invalid(f"invisibleTime {invisible_ms} is outside 0..{INVISIBLE_MS_MAX} ms")


def parse_filter(
    topic: str, expression_type: str | None, expression: str | None, *, is_sql_enabled: bool
) -> frozenset[int] | SqlFilter | None:
    """The tags or the filter of a pop; None for everything.

    Raises:  RequestRejected: SUBSCRIPTION_PARSE_FAILED, or SYSTEM_ERROR for a type that is not served.
    """
    if not is_tag_type(expression_type):
        return require_sql(topic, expression or "", expression_type, is_enabled=is_sql_enabled)
    try:
        return _parse(expression)
    except ValueError as error:
        raise RequestRejected(
            f"the subscription of {topic} cannot be parsed: {error}",
            code=ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        ) from None


_parse = lru_cache(maxsize=1024)(parse_tags)
