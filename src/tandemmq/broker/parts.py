"""All handlers of one broker, built in the order of what they need; none of them knows the others.

The list of constructor calls here stands for the one object that other brokers hand to every handler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tandemmq.broker.access.options import AccessOptions
from tandemmq.broker.admin.cleaning_handlers import CleaningHandlers
from tandemmq.broker.admin.connection_handlers import ConnectionHandlers
from tandemmq.broker.admin.inspection_handlers import InspectionHandlers
from tandemmq.broker.admin.progress_handlers import ProgressHandlers
from tandemmq.broker.admin.runtime_info import RuntimeInfoHandlers
from tandemmq.broker.admin.settings import READ_AHEAD_KEY, SettingsHandlers
from tandemmq.broker.admin.stats_items import StatsItems
from tandemmq.broker.assignment.handlers import AssignmentHandlers
from tandemmq.broker.assignment.topic_queues import TopicQueues
from tandemmq.broker.clients.consumer_table import ConsumerTable
from tandemmq.broker.clients.handlers import ClientHandlers
from tandemmq.broker.clients.notices import Notices
from tandemmq.broker.clients.producer_table import ProducerTable
from tandemmq.broker.clients.queue_locks import LockHandlers, QueueLocks
from tandemmq.broker.clients.refusals import Refusals
from tandemmq.broker.clients.relay_handlers import RelayHandlers
from tandemmq.broker.delay.recall import RecallHandlers
from tandemmq.broker.delay.timer_rule import TimerLimits
from tandemmq.broker.offsets.claims import Claims
from tandemmq.broker.offsets.group_tools import GroupTools
from tandemmq.broker.offsets.handlers import OffsetHandlers
from tandemmq.broker.offsets.reset import ResetHandlers
from tandemmq.broker.options import BrokerOptions
from tandemmq.broker.pop.service import PopService
from tandemmq.broker.pull.admission import PullAdmission
from tandemmq.broker.pull.cold_reads import ColdControl, ColdHandlers, ColdReads
from tandemmq.broker.pull.handlers import PullHandlers
from tandemmq.broker.pull.long_poll import LongPolls
from tandemmq.broker.query.handlers import QueryHandlers
from tandemmq.broker.send.delay import DelayRule
from tandemmq.broker.send.handlers import SendHandlers
from tandemmq.broker.send.reply import ReplyForm
from tandemmq.broker.send.reply_message import ReplyHandlers
from tandemmq.broker.send.retry import RetryRule
from tandemmq.broker.send.send_back import SendBackHandlers
from tandemmq.broker.send.targets import SendTargets
from tandemmq.broker.stats import BrokerStats
from tandemmq.broker.tables import Tables
from tandemmq.broker.topics.auto_create import TopicCreator
from tandemmq.broker.topics.group_handlers import GroupHandlers
from tandemmq.broker.topics.handlers import TopicHandlers
from tandemmq.broker.topics.unsaved_topics import UnsavedTopics
from tandemmq.broker.transaction.decided import Decided
from tandemmq.broker.transaction.handlers import TransactionHandlers
from tandemmq.protocol.message_id import UniqueKeys
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.ports import Clock, Disk, Random
from tandemmq.store.message_store import MessageStore


class Parts:
    """The handlers, and the few pieces that the broker itself starts and stops."""

    def __init__(
        self,
        options: BrokerOptions,
        *,
        store: MessageStore,
        tables: Tables,
        client: RemotingClient,
        disk: Disk,
        clock: Clock,
        chance: Random,
        own_address: Callable[[], str],
        access: AccessOptions,
    ) -> None:
        topics, groups, offsets = tables.topics, tables.groups, tables.offsets
        self._options, self._store, self._tables, self._clock = options, store, tables, clock
        self.stats = BrokerStats(clock.monotonic())
        self.items = StatsItems(options.cluster_name, store=store, topics=topics, stats=self.stats)
        self.reply_form = ReplyForm(store.store_host, options.region_id, is_traced=options.trace_on)
        self.long_polls = LongPolls(
            clock=clock,
            count_max=options.long_poll_count_max,
            count_per_queue_max=options.long_poll_count_per_queue_max,
        )
        creator = TopicCreator(options, topics, groups, clock, UnsavedTopics(tables.saver, tables.topic_file))
        timers = TimerLimits(is_enabled=options.timer_wheel_enable, delay_s_max=options.timer_delay_s_max)
        delay = DelayRule(store.options.delay_levels_ms, timers)
        queue_locks = QueueLocks(options.queue_lock_expired_ms, clock)
        self.refusals = Refusals(clock)
        notices = Notices(options, groups, clock)
        consumers = self.consumers = notices.consumers = ConsumerTable(
            groups_per_client_max=options.groups_per_client_max, on_change=notices.on_change
        )
        producers = self.producers = ProducerTable(groups_per_client_max=options.groups_per_client_max)
        targets = SendTargets(options, topics, creator)
        self.sends = SendHandlers(
            options,
            store=store,
            targets=targets,
            retry=RetryRule(groups, queue_locks, creator),
            delay=delay,
            unique_keys=UniqueKeys(
                options.advertised_host, chance.below(1 << 16), int.from_bytes(chance.token_bytes(4), "big")
            ),
            form=self.reply_form,
            stats=self.stats,
            clock=clock,
            chance=chance,
        )
        self.replies = ReplyHandlers(
            options,
            store=store,
            targets=targets,
            sends=self.sends,
            producers=producers,
            form=self.reply_form,
            clock=clock,
        )
        self.send_back = SendBackHandlers(
            options,
            store=store,
            groups=groups,
            creator=creator,
            delay=delay,
            stats=self.stats,
            clock=clock,
            chance=chance,
        )
        self.recalls = RecallHandlers(
            options, store=store, topics=topics, delay=delay, limits=timers, clock=clock
        )
        self.decided = Decided()
        self.transactions = TransactionHandlers(
            options, store=store, decided=self.decided, delay=delay, clock=clock
        )
        claims = Claims(store=store, offsets=offsets, consumers=consumers, is_slave=options.is_slave)
        self.cold_reads = ColdReads(options, clock)
        self.cold_settings = ColdHandlers(self.cold_reads)
        self.pulls = PullHandlers(
            options,
            store=store,
            admission=PullAdmission(options, topics=topics, groups=groups, consumers=consumers),
            offsets=offsets,
            claims=claims,
            long_polls=self.long_polls,
            stats=self.stats,
            clock=clock,
            cold=ColdControl(self.cold_reads, store=store, consumers=consumers),
        )
        self.pop = PopService(
            options,
            store=store,
            topics=topics,
            groups=groups,
            offsets=offsets,
            orders=tables.orders,
            creator=creator,
            saver=tables.saver,
            group_file=tables.group_file,
            stats=self.stats,
            clock=clock,
            chance=chance,
        )
        self.assignments = AssignmentHandlers(
            options,
            modes=tables.request_modes,
            queues=TopicQueues(options, topics=topics, client=client, clock=clock),
            consumers=consumers,
            topics=topics,
            groups=groups,
            saver=tables.saver,
            file=tables.mode_file,
            clock=clock,
        )
        self.offsets = OffsetHandlers(
            store=store, offsets=offsets, claims=claims, topics=topics, groups=groups, clock=clock
        )
        self.resets = ResetHandlers(
            options,
            store=store,
            offsets=offsets,
            topics=topics,
            groups=groups,
            consumers=consumers,
            long_polls=self.long_polls,
            clock=clock,
        )
        self.clients = ClientHandlers(
            options,
            consumers=consumers,
            producers=producers,
            groups=groups,
            creator=creator,
            refusals=self.refusals,
            clock=clock,
        )
        self.locks = LockHandlers(
            options.broker_name, locks=queue_locks, topics=topics, groups=groups, clock=clock
        )
        self.topics = TopicHandlers(
            options,
            topics=topics,
            offsets=offsets,
            store=store,
            saver=tables.saver,
            file=tables.topic_file,
            clock=clock,
        )
        self.groups = GroupHandlers(
            options,
            groups=groups,
            topics=topics,
            offsets=offsets,
            saver=tables.saver,
            file=tables.group_file,
            clock=clock,
        )
        self.queries = QueryHandlers(store, topics)
        self.progress = ProgressHandlers(
            options.broker_name,
            store=store,
            topics=topics,
            offsets=offsets,
            consumers=consumers,
            items=self.items,
        )
        self.connections = ConnectionHandlers(consumers, producers, self.refusals)
        self.relays = RelayHandlers(
            options.broker_name, store=store, consumers=consumers, topics=topics, groups=groups
        )
        self.runtime_info = RuntimeInfoHandlers(
            options,
            store=store,
            stats=self.stats,
            items=self.items,
            refusals=self.refusals,
            delay_offsets=tables.delay_offsets,
            disk=disk,
            clock=clock,
        )
        self.settings = SettingsHandlers(
            options, store.options, access, is_elected=store.has_terms, disk=disk, clock=clock
        )
        self.inspection = InspectionHandlers(
            options.broker_name,
            own_address=own_address,
            store=store,
            topics=topics,
            offsets=offsets,
            consumers=consumers,
            progress=self.progress,
            items=self.items,
            clock=clock,
        )
        self.cleaning = CleaningHandlers(store=store, topics=topics)
        self.group_tools = GroupTools(
            options,
            store=store,
            offsets=offsets,
            topics=topics,
            groups=groups,
            consumers=consumers,
            clock=clock,
        )
        self.settings.on_change.append(self._on_settings_changed)
        store.on_dispatch(lambda newest: self.long_polls.on_dispatch(newest.items()))
        if options.is_slave:
            self._copied = store.dispatched_count, store.dispatched.value
            store.on_dispatch(self._count_copies)

    def _count_copies(self, _newest: Mapping[tuple[str, int], int]) -> None:
        """A slave gets its messages by copying: its figures show that it lives."""
        count, end = self._copied
        self._copied = self._store.dispatched_count, self._store.dispatched.value
        self.stats.replicated_count += self._copied[0] - count
        self.stats.replicated_bytes += self._copied[1] - end

    def _on_settings_changed(self, keys: frozenset[str]) -> None:
        """What was made from a setting when the broker started follows it."""
        self._tables.groups.is_auto_created = self._options.auto_create_group
        if READ_AHEAD_KEY in keys:
            self._store.set_read_ahead(self._store.options.read_ahead_enable)
        if "brokerPermission" in keys:
            # Name servers and the kept checks of topics know the old permission.
            self._tables.topics.renew(self._clock.now_ms())
