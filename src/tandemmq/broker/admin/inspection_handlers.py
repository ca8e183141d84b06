"""Read-only requests of operators: connections, figures of topics and groups, and details of queues.

`ConnectionHandlers` serves requests about clients; `InspectionHandlers` serves requests about topics, groups,
single queues, subscriptions and statistics.
Source: spec semantics 19 and 22, spec remoting 8.6, 11.7, 11.9 and 11.13.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tandemmq.broker.clients.consumer_table import HeldSubscription, Member
from tandemmq.broker.core import BrokerCore
from tandemmq.broker.guards import invalid, require_queue, require_topic
from tandemmq.broker.offsets.progress import ProgressReader, QueueMarks
from tandemmq.broker.pull.filters import split_tags
from tandemmq.errors import RequestRejected
from tandemmq.protocol.bodies import client as clients
from tandemmq.protocol.bodies import stats as figures
from tandemmq.protocol.bodies.codec import MessageQueue, encode_body
from tandemmq.protocol.bodies.tables import TopicConfig, encode_group_list, encode_topic_list
from tandemmq.protocol.codes import LanguageCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests import admin
from tandemmq.protocol.topic_names import is_system_group
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.options import render_address


@dataclass(frozen=True, slots=True)
class ConnectionHandlers:
    """Handles 203 consumers of a group, 204 producers of a group, 328 all producers, from the client
    tables.
    """

    core: BrokerCore

    def handle_consumers(self, channel: Channel, command: Command) -> Command:
        """Handles GET_CONSUMER_CONNECTION_LIST (203); TandemMQ's tools also get the group's rejected
        requests, and without a group the newest ones of all groups.
        """
        name = command.decode(admin.ConsumerConnectionsRequest).consumer_group
        group = self.core.consumers.get(name)
        held = self.core.refusals
        refusals = (held.of_group(name) if name else held.list_newest()) or None
        if group is None:
            remark, body = f"no consumer of the group {name[:160]!r} is online", b""
            if refusals:
                one = refusals[-1]
                remark += f"; {one.request} of {one.client} was refused ({one.code}): {one.reason}"
                body = encode_body(clients.ConsumerConnections(refusals=refusals))
            return command.reply(ResponseCode.CONSUMER_NOT_ONLINE, remark=remark, body=body)
        consumption = group.consumption
        connections = clients.ConsumerConnections(
            connections=tuple(_connection(member) for member in self.core.consumers.members(name)),
            consume_type=clients.ConsumeType(consumption.consume_type),
            message_model=clients.MessageModel(consumption.message_model),
            consume_from_where=clients.ConsumeFromWhere(consumption.consume_from_where),
            subscriptions={topic: describe_subscription(each) for topic, each in group.subscriptions.items()},
            refusals=refusals,
        )
        return command.reply(body=encode_body(connections))

    def handle_producers(self, channel: Channel, command: Command) -> Command:
        """Handles GET_PRODUCER_CONNECTION_LIST (204)."""
        name = command.decode(admin.ProducerConnectionsRequest).producer_group
        members = self.core.producers.members(name)
        if not members:
            raise RequestRejected(f"no producer of the group {name[:160]!r} is online")
        return command.reply(
            body=clients.encode_producer_connections([_connection(member) for member in members])
        )

    def handle_all_producers(self, channel: Channel, command: Command) -> Command:
        """Handles GET_ALL_PRODUCER_INFO (328)."""
        table = {
            group: [
                clients.ProducerInfo(
                    client_id=member.client_id,
                    language=_language(member.language),
                    updated_at_ms=member.seen_at_ms,
                    address=render_address(member.channel.peer),
                    version=member.version,
                )
                for member in self.core.producers.members(group)
            ]
            for group in self.core.producers.groups
        }
        return command.reply(body=clients.encode_producer_table(table))


def _connection(member: Member) -> clients.ClientConnection:
    return clients.ClientConnection(
        address=render_address(member.channel.peer),
        client_id=member.client_id,
        language=_language(member.language),
        version=member.version,
    )


def describe_subscription(subscription: HeldSubscription) -> clients.SubscriptionData:
    """Returns a subscription in the form for tools: the expression, its tags and its version."""
    return clients.SubscriptionData(
        topic=subscription.topic,
        expression=subscription.expression,
        expression_type=subscription.expression_type,
        version=subscription.version,
        tag_hashes=subscription.tag_hashes or frozenset(),
        tags=frozenset(split_tags(subscription.expression) if subscription.tag_hashes else ()),
    )


def _language(code: int) -> str:
    try:
        return LanguageCode(code).name
    except ValueError:
        return LanguageCode.OTHER.name


ENTRY_COUNT_MAX: Final = 1_024
"""TandemMQ's own limit of entries per QUERY_CONSUME_QUEUE; tools request more with a higher index."""

QUEUE_ROWS_MAX: Final = 65_536
"""TandemMQ's own limit of rows per GET_BROKER_CONSUME_STATS; the answer fits into a frame."""

QUEUES_PER_TURN: Final = 512


@dataclass(frozen=True, slots=True)
class InspectionHandlers:
    """Handles requests about topics, queues and groups, from tables, queues and figures: 202 topic stats, 208
    and 317 progress, 300 and 343 groups and their topics, 303 time spans, 315 statistics, 321 queue entries,
    345 one subscription.
    """

    core: BrokerCore

    def handle_topic_stats(self, channel: Channel, command: Command) -> Command:
        """Handles GET_TOPIC_STATS_INFO (202)."""
        config = require_topic(self.core.topics, command.decode(admin.TopicStatsRequest).topic)
        queues = {}
        for queue_id in range(max(config.read_queue_count, config.write_queue_count)):
            low = self.core.store.queue_min(config.name, queue_id)
            high = self.core.store.queue_max(config.name, queue_id)
            newest_ms = self.core.store.reader.stored_at(config.name, queue_id, high - 1) if high > low else 0
            queues[self._queue(config.name, queue_id)] = figures.TopicOffset(
                min_offset=low, max_offset=high, updated_at_ms=max(newest_ms, 0)
            )
        tps = self.core.items.tps("TOPIC_PUT_NUMS", config.name)
        return command.reply(body=figures.encode_topic_stats(figures.TopicStats(queues=queues, put_tps=tps)))

    def handle_consume_stats(self, channel: Channel, command: Command) -> Command:
        """Handles GET_CONSUME_STATS (208): for one topic, some, or all in which the group has offsets."""
        header = command.decode(admin.ConsumeStatsRequest)
        group = header.consumer_group
        if header.topic:
            topics = [header.topic]
        elif header.topics:
            topics = [topic for topic in header.topics.split(";") if topic]
        else:
            topics = self.core.offsets.topics_of(group)
        queues: dict[MessageQueue, figures.QueueProgress] = {}
        tps = 0.0
        for topic in dict.fromkeys(topics):
            config = self.core.topics.get(topic)
            if config is not None:
                queues |= self.of_topic(group, config)
                tps += self.core.items.tps("GROUP_GET_NUMS", f"{topic}@{group}")
        return command.reply(
            body=figures.encode_consume_stats(figures.ConsumeStats(queues=queues, consume_tps=tps))
        )

    def handle_topic_consumers(self, channel: Channel, command: Command) -> Command:
        """Handles QUERY_TOPIC_CONSUME_BY_WHO (300): returns groups that subscribe to the topic or have
        offsets in it.
        """
        topic = command.decode(admin.TopicConsumersRequest).topic
        groups = {*self.core.consumers.groups_of_topic(topic), *self.core.offsets.groups_of(topic)}
        return command.reply(body=encode_group_list(sorted(groups)))

    def handle_group_topics(self, channel: Channel, command: Command) -> Command:
        """Handles QUERY_TOPICS_BY_CONSUMER (343)."""
        group = command.decode(admin.GroupTopicsRequest).group
        return command.reply(body=encode_topic_list(sorted(self.core.offsets.topics_of(group))))

    def of_topic(self, group: str, config: TopicConfig) -> dict[MessageQueue, figures.QueueProgress]:
        """Returns the group's progress in each queue of the topic; empty if the group has no lag there."""
        progress = ProgressReader(self.core)
        if not progress.has_lag(group, config.name):
            return {}
        return {
            self._queue(config.name, queue_id): self._progress(
                config.name, queue_id, progress.of_queue(group, config.name, queue_id)
            )
            for queue_id in range(config.read_queue_count)
        }

    def _progress(self, topic: str, queue_id: int, marks: QueueMarks) -> figures.QueueProgress:
        stored_at = self.core.store.reader.stored_at
        last_ms = stored_at(topic, queue_id, marks.committed - 1) if marks.committed > 0 else 0
        return figures.QueueProgress(
            broker_offset=marks.end,
            committed_offset=marks.committed,
            pull_offset=marks.pulled,
            last_timestamp_ms=max(last_ms, 0),
        )

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic=topic, broker_name=self.core.options.broker_name, queue_id=queue_id)

    def handle_stats(self, channel: Channel, command: Command) -> Command:
        """Handles VIEW_BROKER_STATS_DATA (315)."""
        header = command.decode(admin.BrokerStatsRequest)
        found = self.core.items.find(header.stats_name, header.stats_key)
        if found is None:
            raise RequestRejected(
                f"there are no statistics {header.stats_name[:64]} of {header.stats_key[:255]!r}: nothing"
                f" happened yet, or it is none of {', '.join(self.core.items.names)}"
            )
        series, is_bytes = found
        return command.reply(body=encode_body(series.figures(is_bytes=is_bytes)))

    async def handle_broker_consume_stats(self, channel: Channel, command: Command) -> Command:
        """Handles GET_BROKER_CONSUME_STATS (317): for every group with offsets, in ordered or in other
        topics.
        """
        header = command.decode(admin.BrokerConsumeStatsRequest)
        groups: dict[str, dict[MessageQueue, figures.QueueProgress]] = {}
        row_count = read_count = 0
        for topic, group in self.core.offsets.pairs():
            config = self.core.topics.get(topic)
            if config is None or config.is_ordered != header.is_ordered or is_system_group(group):
                continue
            rows = self.of_topic(group, config)
            if not rows:
                continue
            row_count += len(rows)
            if row_count > QUEUE_ROWS_MAX:
                raise RequestRejected(
                    f"the broker has more than {QUEUE_ROWS_MAX} consumed queues: ask for single groups"
                    " (GET_CONSUME_STATS)"
                )
            groups.setdefault(group, {}).update(rows)
            read_count += len(rows)
            if read_count >= QUEUES_PER_TURN:
                read_count = 0
                await self.core.clock.sleep(0)
        all_rows = [row for rows in groups.values() for row in rows.values()]
        body = figures.encode_consume_stats_list(
            self.core.own_address(),
            {group: figures.ConsumeStats(queues=rows) for group, rows in groups.items()},
            total_lag=sum(row.broker_offset - row.committed_offset for row in all_rows),
            total_in_flight=sum(row.pull_offset - row.committed_offset for row in all_rows),
        )
        return command.reply(body=body)

    def handle_time_span(self, channel: Channel, command: Command) -> Command:
        """Handles QUERY_CONSUME_TIME_SPAN (303)."""
        header = command.decode(admin.ConsumeTimeSpanRequest)
        config = require_topic(self.core.topics, header.topic)
        now_ms = self.core.clock.now_ms()
        spans = tuple(
            self._time_span(header.group, config.name, queue_id, now_ms)
            for queue_id in range(config.write_queue_count)
        )
        return command.reply(body=encode_body(figures.ConsumeTimeSpan(spans=spans)))

    def _time_span(self, group: str, topic: str, queue_id: int, now_ms: int) -> figures.QueueTimeSpan:
        store = self.core.store
        end = store.queue_max(topic, queue_id)
        oldest_ms = store.reader.earliest_stored_at(topic, queue_id)
        committed = self.core.offsets.committed(group, topic, queue_id) or 0
        next_ms = store.reader.stored_at(topic, queue_id, committed) if committed < end else -1
        return figures.QueueTimeSpan(
            queue=MessageQueue(topic=topic, broker_name=self.core.options.broker_name, queue_id=queue_id),
            oldest_at_ms=oldest_ms,
            newest_at_ms=store.reader.stored_at(topic, queue_id, end - 1) if end else -1,
            consumed_at_ms=store.reader.stored_at(topic, queue_id, committed - 1) if committed else oldest_ms,
            delay_ms=max(0, now_ms - next_ms) if next_ms > 0 else 0,
        )

    def handle_queue_entries(self, channel: Channel, command: Command) -> Command:
        """Handles QUERY_CONSUME_QUEUE (321): returns raw queue entries, and whether they match the group's
        tags.
        """
        header = command.decode(admin.ConsumeQueueRequest)
        config = require_topic(self.core.topics, header.topic)
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
        entries = self.core.store.queue_entries(
            config.name, header.queue_id, header.queue_offset, min(header.count_max, ENTRY_COUNT_MAX)
        )
        view = figures.ConsumeQueueView(
            min_queue_offset=self.core.store.queue_min(config.name, header.queue_id),
            max_queue_offset=self.core.store.queue_max(config.name, header.queue_id),
            subscription=None if subscription is None else describe_subscription(subscription),
            filter_data=f"{group}@{config.name} is not online!" if group and subscription is None else None,
            entries=tuple(
                figures.ConsumeQueueEntry(
                    log_offset=log_offset,
                    size_bytes=size,
                    tag_hash=tag_hash,
                    is_match=_fits(subscription, tag_hash),
                )
                for log_offset, size, tag_hash in entries
            ),
        )
        return command.reply(body=encode_body(view))

    def handle_subscription(self, channel: Channel, command: Command) -> Command:
        """Handles QUERY_SUBSCRIPTION_BY_CONSUMER (345): none if the group is not online for the topic."""
        header = command.decode(admin.GroupSubscriptionRequest)
        topic = header.topic or ""
        found = self._subscription(header.group, topic)
        body = clients.GroupSubscription(
            group=header.group,
            topic=topic,
            subscription=None if found is None else describe_subscription(found),
        )
        return command.reply(body=encode_body(body))

    def _subscription(self, group: str, topic: str) -> HeldSubscription | None:
        online = self.core.consumers.get(group)
        return None if online is None else online.subscriptions.get(topic)


def _fits(subscription: HeldSubscription | None, tag_hash: int) -> bool:
    """Returns True if the entry's tag hash matches; other kinds of expressions would need the message
    itself.
    """
    return subscription is None or subscription.tag_hashes is None or tag_hash in subscription.tag_hashes
