"""Closer looks: 303 time spans, 315 statistics, 317 progress of all groups, 321 queue entries, 345 one
subscription.

Source: spec semantics 22, spec remoting 8.6, 11.7 and 11.13.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tandemmq.broker.admin.connection_handlers import describe_subscription
from tandemmq.broker.admin.progress_handlers import ProgressHandlers
from tandemmq.broker.admin.stats_items import StatsItems
from tandemmq.broker.clients.consumer_table import ConsumerTable, Subscription
from tandemmq.broker.guards import invalid, require_queue, require_topic
from tandemmq.broker.offsets.offset_table import OffsetTable
from tandemmq.broker.topics.topic_table import TopicTable
from tandemmq.errors import RequestRejected
from tandemmq.protocol.bodies.client import GroupSubscription, encode_group_subscription
from tandemmq.protocol.bodies.codec import MessageQueue
from tandemmq.protocol.bodies.stats import (
    ConsumeQueueEntry,
    ConsumeQueueView,
    ConsumeStats,
    ConsumeTimeSpan,
    QueueProgress,
    QueueTimeSpan,
    encode_broker_stats,
    encode_consume_queue_view,
    encode_consume_stats_list,
    encode_consume_time_span,
)
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.admin import (
    BrokerConsumeStatsRequest,
    BrokerStatsRequest,
    ConsumeQueueRequest,
    ConsumeTimeSpanRequest,
    GroupSubscriptionRequest,
)
from tandemmq.protocol.topic_names import is_system_group
from tandemmq.remoting.channel import Channel
from tandemmq.runtime.ports import Clock
from tandemmq.store.message_store import MessageStore

ENTRY_COUNT_MAX: Final = 1_024
"""Ours: entries of one answer to QUERY_CONSUME_QUEUE; more are asked for with a higher index."""

QUEUE_ROWS_MAX: Final = 65_536
"""Ours: rows of one answer to GET_BROKER_CONSUME_STATS; it stays within a frame."""

QUEUES_PER_TURN: Final = 512


class InspectionHandlers:
    """Reads tables, queues and figures; changes nothing."""

    def __init__(
        self,
        broker_name: str,
        *,
        own_address: Callable[[], str],
        store: MessageStore,
        topics: TopicTable,
        offsets: OffsetTable,
        consumers: ConsumerTable,
        progress: ProgressHandlers,
        items: StatsItems,
        clock: Clock,
    ) -> None:
        self._broker_name = broker_name
        self._own_address = own_address
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._consumers = consumers
        self._progress = progress
        self._items = items
        self._clock = clock

    def handle_stats(self, channel: Channel, command: Command) -> Command:
        """VIEW_BROKER_STATS_DATA (315)."""
        header = command.decode(BrokerStatsRequest)
        found = self._items.find(header.stats_name, header.stats_key)
        if found is None:
            raise RequestRejected(
                f"there are no statistics {header.stats_name[:64]} of {header.stats_key[:255]!r}: nothing"
                f" happened yet, or it is none of {', '.join(self._items.names)}",
                code=ResponseCode.SYSTEM_ERROR,
            )
        series, is_bytes = found
        return command.reply(body=encode_broker_stats(series.figures(is_bytes=is_bytes)))

    async def handle_broker_consume_stats(self, channel: Channel, command: Command) -> Command:
        """GET_BROKER_CONSUME_STATS (317): of every group with offsets, in ordered or in other topics."""
        header = command.decode(BrokerConsumeStatsRequest)
        groups: dict[str, dict[MessageQueue, QueueProgress]] = {}
        row_count = read_count = 0
        for topic, group in self._offsets.pairs():
            config = self._topics.get(topic)
            if config is None or config.is_ordered != header.is_ordered or is_system_group(group):
                continue
            rows = self._progress.of_topic(group, config)
            if not rows:
                continue
            row_count += len(rows)
            if row_count > QUEUE_ROWS_MAX:
                raise RequestRejected(
                    f"the broker has more than {QUEUE_ROWS_MAX} consumed queues: ask for single groups"
                    " (GET_CONSUME_STATS)",
                    code=ResponseCode.SYSTEM_ERROR,
                )
            groups.setdefault(group, {}).update(rows)
            read_count += len(rows)
            if read_count >= QUEUES_PER_TURN:
                read_count = 0
                await self._clock.sleep(0)
        all_rows = [row for rows in groups.values() for row in rows.values()]
        body = encode_consume_stats_list(
            self._own_address(),
            {group: ConsumeStats(queues=rows) for group, rows in groups.items()},
            total_lag=sum(row.broker_offset - row.committed_offset for row in all_rows),
            total_in_flight=sum(row.pull_offset - row.committed_offset for row in all_rows),
        )
        return command.reply(body=body)

    def handle_time_span(self, channel: Channel, command: Command) -> Command:
        """QUERY_CONSUME_TIME_SPAN (303)."""
        header = command.decode(ConsumeTimeSpanRequest)
        config = require_topic(self._topics, header.topic)
        now_ms = self._clock.now_ms()
        spans = tuple(
            self._time_span(header.group, config.name, queue_id, now_ms)
            for queue_id in range(config.write_queue_count)
        )
        return command.reply(body=encode_consume_time_span(ConsumeTimeSpan(spans=spans)))

    def _time_span(self, group: str, topic: str, queue_id: int, now_ms: int) -> QueueTimeSpan:
        store = self._store
        end = store.queue_max(topic, queue_id)
        oldest_ms = store.earliest_stored_at(topic, queue_id)
        committed = self._offsets.committed(group, topic, queue_id) or 0
        next_ms = store.stored_at(topic, queue_id, committed) if committed < end else -1
        return QueueTimeSpan(
            queue=MessageQueue(topic=topic, broker_name=self._broker_name, queue_id=queue_id),
            oldest_at_ms=oldest_ms,
            newest_at_ms=store.stored_at(topic, queue_id, end - 1) if end else -1,
            consumed_at_ms=store.stored_at(topic, queue_id, committed - 1) if committed else oldest_ms,
            delay_ms=max(0, now_ms - next_ms) if next_ms > 0 else 0,
        )

    def handle_queue_entries(self, channel: Channel, command: Command) -> Command:
        """QUERY_CONSUME_QUEUE (321): entries as they lie in the queue, and whether the group's tags fit."""
        header = command.decode(ConsumeQueueRequest)
        config = require_topic(self._topics, header.topic)
        require_queue(
            config, header.queue_id, queue_count=max(config.read_queue_count, config.write_queue_count)
        )
        if header.queue_offset < 0 or header.count_max < 1:
            raise invalid(
                f"index {header.queue_offset} must not be negative,"
                f" count {header.count_max} must be at least 1"
            )
        group = header.consumer_group or ""
        subscription = self._subscription(group, config.name)
        entries = self._store.queue_entries(
            config.name, header.queue_id, header.queue_offset, min(header.count_max, ENTRY_COUNT_MAX)
        )
        view = ConsumeQueueView(
            min_queue_offset=self._store.queue_min(config.name, header.queue_id),
            max_queue_offset=self._store.queue_max(config.name, header.queue_id),
            subscription=None if subscription is None else describe_subscription(subscription),
            filter_data=f"{group}@{config.name} is not online!" if group and subscription is None else None,
            entries=tuple(
                ConsumeQueueEntry(
                    log_offset=log_offset,
                    size_bytes=size,
                    tag_hash=tag_hash,
                    is_match=_fits(subscription, tag_hash),
                )
                for log_offset, size, tag_hash in entries
            ),
        )
        return command.reply(body=encode_consume_queue_view(view))

    def handle_subscription(self, channel: Channel, command: Command) -> Command:
        """QUERY_SUBSCRIPTION_BY_CONSUMER (345): none when the group is not online for the topic."""
        header = command.decode(GroupSubscriptionRequest)
        topic = header.topic or ""
        found = self._subscription(header.group, topic)
        body = GroupSubscription(
            group=header.group,
            topic=topic,
            subscription=None if found is None else describe_subscription(found),
        )
        return command.reply(body=encode_group_subscription(body))

    def _subscription(self, group: str, topic: str) -> Subscription | None:
        online = self._consumers.get(group)
        return None if online is None else online.subscriptions.get(topic)


def _fits(subscription: Subscription | None, tag_hash: int) -> bool:
    """As far as the queue entry tells: an expression of another kind needs the message itself."""
    return subscription is None or subscription.tag_hashes is None or tag_hash in subscription.tag_hashes
