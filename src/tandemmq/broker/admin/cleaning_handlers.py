"""Cleaning by hand: 306 expired queue files, 316 queues of topics that are gone, 329 expired log files.

All three run by themselves, too. Unlike RocketMQ's 306, a queue keeps its numbering when all of its messages
have expired: there it begins anew at 0, and the offsets of its consumers point behind its end.
Source: spec remoting 8.6, spec store 19.
"""

from __future__ import annotations

import logging

from tandemmq.broker.guards import drop_or_reject
from tandemmq.broker.topics.topic_table import TopicTable
from tandemmq.protocol.command import Command
from tandemmq.protocol.topic_names import is_dlq_topic, is_retry_topic, is_system_topic
from tandemmq.remoting.channel import Channel
from tandemmq.store.message_store import MessageStore
from tandemmq.store.options import BrokerRole
from tandemmq.telemetry import events

log = logging.getLogger(__name__)


class CleaningHandlers:
    """Deletes what retention would delete, at once."""

    def __init__(self, *, store: MessageStore, topics: TopicTable) -> None:
        self._store = store
        self._topics = topics

    def handle_queues(self, channel: Channel, command: Command) -> Command:
        """CLEAN_EXPIRED_CONSUMEQUEUE (306)."""
        self._store.cut_queues()
        log.info(events.CLEANED_BY_HAND, extra={"what": "expired queue files", "peer": channel.peer})
        return command.reply()

    def handle_log(self, channel: Channel, command: Command) -> Command:
        """DELETE_EXPIRED_COMMITLOG (329): files older than fileReservedTime, at any hour."""
        count = self._store.clean(at_any_hour=True)
        extra = {"what": "expired log files", "count": count, "peer": channel.peer}
        log.info(events.CLEANED_BY_HAND, extra=extra)
        return command.reply()

    async def handle_topics(self, channel: Channel, command: Command) -> Command:
        """CLEAN_UNUSED_TOPIC (316): queues that no topic of the table has; retry and system topics stay.

        A slave's table may lack a topic that its log has already: there the master says what is gone.
        """
        unused = {topic for topic, _ in self._store.queue_keys() if self._is_unused(topic)}
        await drop_or_reject(self._store, sorted(unused))
        extra = {"what": "queues of deleted topics", "count": len(unused), "peer": channel.peer}
        log.info(events.CLEANED_BY_HAND, extra=extra)
        return command.reply()

    def _is_unused(self, topic: str) -> bool:
        if self._store.role is BrokerRole.SLAVE:
            return False
        is_kept = is_system_topic(topic) or is_retry_topic(topic) or is_dlq_topic(topic)
        return not is_kept and self._topics.get(topic) is None
