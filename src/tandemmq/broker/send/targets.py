"""The target of a send: the topic and queue that it names, checked once per topic and cached until the topic
table changes. `RetryRule` decides where a send to a retry topic goes.

Order of the checks: spec semantics 5, rows 3 to 7 and 9. Checks that depend on the message (retry topics) are
not cached.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandemmq.broker.arrivals import NORMAL, ArrivalRow
from tandemmq.broker.clients.queue_locks import QueueLocks
from tandemmq.broker.core import BrokerCore
from tandemmq.broker.guards import require_group
from tandemmq.broker.options import PERMISSION_WRITE
from tandemmq.errors import BadRequest, Busy, NotPermitted, RequestRejected, TopicNotFound
from tandemmq.protocol.bodies.tables import TopicConfig
from tandemmq.protocol.codes import VERSION_MAX_RETRY_HONOURED, ResponseCode
from tandemmq.protocol.requests.send import SendRequest, SendRequestV2
from tandemmq.protocol.sys_flag import MULTI_TAGS
from tandemmq.protocol.topic_names import (
    NOT_SENDABLE_TOPICS,
    RETRY_PREFIX,
    is_retry_topic,
    topic_fault,
)

SendHeader = SendRequest | SendRequestV2
SendShape = type[SendRequest] | type[SendRequestV2]


class SendTarget:
    """The facts about a topic that a plain send needs. `arrivals` counts its ordinary messages."""

    __slots__ = ("arrivals", "is_retry", "queue_count", "sys_flag", "topic", "write_queue_count")

    def __init__(self, config: TopicConfig, arrivals: ArrivalRow) -> None:
        self.topic = config.name
        self.arrivals = arrivals
        # While a topic shrinks or grows, its numbers of write queues and read queues differ.
        self.queue_count = max(config.read_queue_count, config.write_queue_count)
        self.write_queue_count = config.write_queue_count
        self.sys_flag = MULTI_TAGS if config.filter_type == "MULTI_TAG" else 0
        self.is_retry = is_retry_topic(config.name)


class SendTargets:
    """The cache of targets by topic; cleared whenever the topic table changes."""

    def __init__(self, core: BrokerCore) -> None:
        self.core = core
        self._targets: dict[str, SendTarget] = {}
        self.get = self._targets.get
        self.unsaved = core.creator.unsaved
        core.topics.on_change.append(self._forget)

    def admit(self, header: SendHeader, peer: str) -> SendTarget:
        """Returns the target of a send whose topic is not cached, after checking the broker and the topic.

        Raises:  RequestRejected naming what is allowed.
        """
        options = self.core.options
        if options.is_slave:
            raise Busy(
                f"[REJECTREQUEST] {options.broker_name} with id {options.broker_id} is a slave:"
                " send to the master of this broker group"
            )
        if self.core.clock.now_ms() < options.accept_sends_from_ms:
            raise RequestRejected(
                f"startAcceptSendRequestTimeStamp is {options.accept_sends_from_ms}: not yet reached",
                code=ResponseCode.SYSTEM_ERROR,
            )
        topic = header.topic
        config = self.core.topics.get(topic)
        if not options.is_writeable and config is not None and config.is_ordered:
            raise NotPermitted(
                f"the broker {options.broker_name} is not writeable"
                f" (brokerPermission {options.broker_permission}) and {topic} is an ordered topic"
            )
        fault = topic_fault(topic)
        if fault:
            raise BadRequest(fault, code=ResponseCode.INVALID_PARAMETER)
        if topic in NOT_SENDABLE_TOPICS:
            raise NotPermitted(f"the topic {topic} belongs to the broker: clients must not send to it")
        if config is None:
            config = self._create(header, peer)
        if not config.permission & PERMISSION_WRITE:
            raise NotPermitted(f"the topic {topic} is not writeable (permission {config.permission})")
        arrivals = self.core.stats.arrivals
        target = SendTarget(config, arrivals.row(topic, NORMAL))
        if topic not in self.unsaved:
            self._targets[topic] = target
        return target

    def choose_queue(self, target: SendTarget, queue_id: int) -> int:
        """Returns a random write queue for a negative id.

        Raises:  BadRequest for an id beyond the topic's queues; NotPermitted if the topic has no write queue.
        """
        if queue_id >= 0:
            raise BadRequest(
                f"queueId {queue_id} is outside 0..{target.queue_count - 1} of the topic {target.topic}",
                code=ResponseCode.INVALID_PARAMETER,
            )
        if target.write_queue_count == 0:
            raise NotPermitted(f"the topic {target.topic} has no write queue")
        return self.core.chance.below(target.write_queue_count)

    def _create(self, header: SendHeader, peer: str) -> TopicConfig:
        if is_retry_topic(header.topic):
            group = header.topic.removeprefix(RETRY_PREFIX)
            return self.core.creator.create_retry_topic(
                group, peer=peer, queue_count=1, is_unit=header.is_unit_mode
            )
        if header.default_topic_queue_count < 1:
            raise BadRequest(
                f"defaultTopicQueueNums {header.default_topic_queue_count} must be at least 1: the topic"
                f" {header.topic} does not exist and would be created without queues",
                code=ResponseCode.INVALID_PARAMETER,
            )
        config = self.core.creator.create_from_template(
            header.topic,
            template_name=header.default_topic,
            queue_count=header.default_topic_queue_count,
            is_unit=header.is_unit_mode,
            peer=peer,
        )
        if config is None:
            raise TopicNotFound(
                f"the topic {header.topic} does not exist and cannot be created from the template"
                f" {header.default_topic[:64]!r}: create it, or enable autoCreateTopicEnable and use TBW102"
            )
        return config

    def _forget(self, topics: object) -> None:
        self._targets.clear()


@dataclass(slots=True)
class RetryRule:
    """Decides whether a send to a retry topic is retried or becomes a dead letter (spec semantics 7.2)."""

    core: BrokerCore
    locks: QueueLocks

    def redirect(self, header: SendHeader, version: int, now_ms: int, host: str) -> SendTarget | None:
        """Returns the group's dead letter topic, or None when the message is to be retried.

        A group that holds queue locks consumes in order and has already retried the message itself.

        Raises:  the errors of `require_group`.
        """
        group = header.topic.removeprefix(RETRY_PREFIX)
        config = require_group(self.core.groups, group, now_ms, host)
        retry_count_max = config.retry_count_max
        if header.retry_count_max is not None and version >= VERSION_MAX_RETRY_HONOURED:
            retry_count_max = header.retry_count_max
        if (header.retry_count or 0) <= retry_count_max and not self.locks.has_lock(group):
            return None
        self.core.stats.dead_letters.add(f"{header.topic}@{group}", 1, 0)
        return SendTarget(self.core.creator.create_dlq_topic(group), self.core.stats.arrivals.hidden)
