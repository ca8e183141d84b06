"""Sends to a retry topic: whether they still go there or to the dead letter topic (spec semantics 7.2)."""

from __future__ import annotations

from tandemmq.broker.clients.queue_locks import QueueLocks
from tandemmq.broker.guards import require_group
from tandemmq.broker.send.targets import SendHeader, SendTarget
from tandemmq.broker.topics.auto_create import TopicCreator
from tandemmq.broker.topics.group_table import GroupTable
from tandemmq.protocol.codes import VERSION_MAX_RETRY_HONOURED
from tandemmq.protocol.topic_names import RETRY_PREFIX


class RetryRule:
    """Decides for one send to a retry topic."""

    def __init__(self, groups: GroupTable, locks: QueueLocks, creator: TopicCreator) -> None:
        self._groups = groups
        self._locks = locks
        self._creator = creator

    def redirect(self, header: SendHeader, version: int, now_ms: int) -> SendTarget | None:
        """The group's dead letter topic, or None when the message is to be tried again.

        A group that holds queue locks consumes in order and has tried the message often enough itself.
        Raises:  GroupNotFound.
        """
        group = header.topic.removeprefix(RETRY_PREFIX)
        config = require_group(self._groups, group, now_ms)
        retry_count_max = config.retry_count_max
        if header.retry_count_max is not None and version >= VERSION_MAX_RETRY_HONOURED:
            retry_count_max = header.retry_count_max
        if (header.retry_count or 0) <= retry_count_max and not self._locks.has_lock(group):
            return None
        return SendTarget(self._creator.create_dlq_topic(group))
