"""Figures of topics and groups: 202 topic stats, 208 consume stats, 300 and 343 who consumes what.

Source: spec semantics 19, spec remoting 8.6 and 11.7.
"""

from __future__ import annotations

from tandemmq.broker.admin.stats_items import StatsItems
from tandemmq.broker.clients.consumer_table import BROADCASTING, ConsumerTable
from tandemmq.broker.guards import require_topic
from tandemmq.broker.offsets.offset_table import OffsetTable
from tandemmq.broker.topics.topic_table import TopicTable
from tandemmq.protocol.bodies.codec import MessageQueue
from tandemmq.protocol.bodies.group import encode_group_list
from tandemmq.protocol.bodies.stats import (
    ConsumeStats,
    QueueProgress,
    TopicOffset,
    TopicStats,
    encode_consume_stats,
    encode_topic_stats,
)
from tandemmq.protocol.bodies.topic import TopicConfig, encode_topic_list
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.admin import (
    ConsumeStatsRequest,
    GroupTopicsRequest,
    TopicConsumersRequest,
    TopicStatsRequest,
)
from tandemmq.remoting.channel import Channel
from tandemmq.store.message_store import MessageStore


class ProgressHandlers:
    """Reads tables and queues; changes nothing."""

    def __init__(
        self,
        broker_name: str,
        *,
        store: MessageStore,
        topics: TopicTable,
        offsets: OffsetTable,
        consumers: ConsumerTable,
        items: StatsItems,
    ) -> None:
        self._broker_name = broker_name
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._consumers = consumers
        self._items = items

    def handle_topic_stats(self, channel: Channel, command: Command) -> Command:
        """GET_TOPIC_STATS_INFO (202)."""
        config = require_topic(self._topics, command.decode(TopicStatsRequest).topic)
        queues = {}
        for queue_id in range(max(config.read_queue_count, config.write_queue_count)):
            low = self._store.queue_min(config.name, queue_id)
            high = self._store.queue_max(config.name, queue_id)
            newest_ms = self._store.stored_at(config.name, queue_id, high - 1) if high > low else 0
            queues[self._queue(config.name, queue_id)] = TopicOffset(
                min_offset=low, max_offset=high, updated_at_ms=max(newest_ms, 0)
            )
        tps = self._items.tps("TOPIC_PUT_NUMS", config.name)
        return command.reply(body=encode_topic_stats(TopicStats(queues=queues, put_tps=tps)))

    def handle_consume_stats(self, channel: Channel, command: Command) -> Command:
        """GET_CONSUME_STATS (208): of one topic, of some, or of all that the group has offsets of."""
        header = command.decode(ConsumeStatsRequest)
        group = header.consumer_group
        if header.topic:
            topics = [header.topic]
        elif header.topics:
            topics = [topic for topic in header.topics.split(";") if topic]
        else:
            topics = self._offsets.topics_of(group)
        queues: dict[MessageQueue, QueueProgress] = {}
        tps = 0.0
        for topic in dict.fromkeys(topics):
            config = self._topics.get(topic)
            if config is not None:
                queues |= self.of_topic(group, config)
                tps += self._items.tps("GROUP_GET_NUMS", f"{topic}@{group}")
        return command.reply(body=encode_consume_stats(ConsumeStats(queues=queues, consume_tps=tps)))

    def handle_topic_consumers(self, channel: Channel, command: Command) -> Command:
        """QUERY_TOPIC_CONSUME_BY_WHO (300): groups that are online for it or have offsets of it."""
        topic = command.decode(TopicConsumersRequest).topic
        groups = {*self._consumers.groups_of_topic(topic), *self._offsets.groups_of(topic)}
        return command.reply(body=encode_group_list(sorted(groups)))

    def handle_group_topics(self, channel: Channel, command: Command) -> Command:
        """QUERY_TOPICS_BY_CONSUMER (343)."""
        group = command.decode(GroupTopicsRequest).group
        return command.reply(body=encode_topic_list(sorted(self._offsets.topics_of(group))))

    def of_topic(self, group: str, config: TopicConfig) -> dict[MessageQueue, QueueProgress]:
        """How far the group is in each queue of the topic; empty when it has no lag there.

        So it is with a topic that an online group does not subscribe any more, and with a group that is
        online to broadcast: its clients keep their own progress.
        """
        if not self._has_lag(group, config.name):
            return {}
        return {
            self._queue(config.name, queue_id): self._progress(group, config.name, queue_id)
            for queue_id in range(config.read_queue_count)
        }

    def _has_lag(self, group: str, topic: str) -> bool:
        online = self._consumers.get(group)
        if online is None:
            return True
        if online.subscriptions and topic not in online.subscriptions:
            return False
        is_broadcast = online.consumption.message_model == BROADCASTING
        return not is_broadcast or bool(self._offsets.committed_queues(group, topic))

    def _progress(self, group: str, topic: str, queue_id: int) -> QueueProgress:
        high = self._store.queue_max(topic, queue_id)
        committed = self._offsets.committed(group, topic, queue_id) or 0
        pulled = self._offsets.pulled(group, topic, queue_id) or 0
        last_ms = self._store.stored_at(topic, queue_id, committed - 1) if committed > 0 else 0
        return QueueProgress(
            broker_offset=high,
            committed_offset=committed,
            pull_offset=max(pulled, committed),
            last_timestamp_ms=max(last_ms, 0),
        )

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic=topic, broker_name=self._broker_name, queue_id=queue_id)
