"""Where a send goes: the checks of a topic, done once and kept until the topic table changes.

Order of the checks: spec semantics 5, rows 3 to 7 and 9. What depends on the message (retry topics) is not
kept.
"""

from __future__ import annotations

from tandemmq.broker.options import PERMISSION_WRITE, BrokerOptions
from tandemmq.broker.topics.auto_create import TopicCreator
from tandemmq.broker.topics.topic_table import TopicTable
from tandemmq.errors import BadRequest, NotPermitted, TopicNotFound
from tandemmq.protocol.bodies.tables import TopicConfig
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.requests.send import SendRequest, SendRequestV2
from tandemmq.protocol.sys_flag import MULTI_TAGS
from tandemmq.protocol.topic_names import NOT_SENDABLE_TOPICS, RETRY_PREFIX, is_retry_topic, topic_fault

SendHeader = SendRequest | SendRequestV2


class SendTarget:
    """What a plain send needs of its topic."""

    __slots__ = ("is_retry", "queue_count", "sys_flag", "topic", "write_queue_count")

    def __init__(self, config: TopicConfig) -> None:
        self.topic = config.name
        # A topic may have more write queues than read queues or the other way round while it shrinks or
        # grows.
        self.queue_count = max(config.read_queue_count, config.write_queue_count)
        self.write_queue_count = config.write_queue_count
        self.sys_flag = MULTI_TAGS if config.filter_type == "MULTI_TAG" else 0
        self.is_retry = is_retry_topic(config.name)


class SendTargets:
    """Targets by topic; emptied whenever the topic table changes."""

    def __init__(self, options: BrokerOptions, topics: TopicTable, creator: TopicCreator) -> None:
        self._options = options
        self._topics = topics
        self._creator = creator
        self._targets: dict[str, SendTarget] = {}
        self.get = self._targets.get
        self.unsaved = creator.unsaved
        topics.on_change.append(self._forget)

    def admit(self, header: SendHeader, peer: str) -> SendTarget:
        """The target of a send whose topic is not known yet, or was changed.

        Raises:  NotPermitted, BadRequest or TopicNotFound, naming what is allowed.
        """
        topic = header.topic
        config = self._topics.get(topic)
        options = self._options
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
        target = SendTarget(config)
        if topic not in self.unsaved:
            self._targets[topic] = target
        return target

    def _create(self, header: SendHeader, peer: str) -> TopicConfig:
        if is_retry_topic(header.topic):
            group = header.topic.removeprefix(RETRY_PREFIX)
            return self._creator.create_retry_topic(group, queue_count=1, is_unit=header.is_unit_mode)
        if header.default_topic_queue_count < 1:
            raise BadRequest(
                f"defaultTopicQueueNums {header.default_topic_queue_count} must be at least 1: the topic"
                f" {header.topic} does not exist and would be made without queues",
                code=ResponseCode.INVALID_PARAMETER,
            )
        config = self._creator.create_from_template(
            header.topic,
            template_name=header.default_topic,
            queue_count=header.default_topic_queue_count,
            is_unit=header.is_unit_mode,
            peer=peer,
        )
        if config is None:
            raise TopicNotFound(
                f"the topic {header.topic} does not exist and cannot be made from the template"
                f" {header.default_topic[:64]!r}: create it, or enable autoCreateTopicEnable and use TBW102"
            )
        return config

    def _forget(self, topics: object) -> None:
        self._targets.clear()
