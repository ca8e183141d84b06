"""The handlers of one broker, a master's own duties, and the routes from request codes to handlers.

`Parts` builds the handlers in the order of their dependencies; none of them knows the others. Its list of
constructor calls replaces the single object that other brokers hand to every handler.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from tandemmq.broker.admin.inspection_handlers import ConnectionHandlers, InspectionHandlers
from tandemmq.broker.admin.runtime_info import RuntimeInfoHandlers
from tandemmq.broker.admin.settings import READ_AHEAD_KEY, CleaningHandlers, SettingsHandlers
from tandemmq.broker.assignment import AssignmentHandlers, TopicQueues
from tandemmq.broker.clients.consumer_table import ConsumerTable, ProducerTable, Refusals
from tandemmq.broker.clients.handlers import ClientHandlers, Notices, RelayHandlers
from tandemmq.broker.clients.queue_locks import LockHandlers, QueueLocks
from tandemmq.broker.delay.delivery import DelayedDelivery
from tandemmq.broker.delay.recall import RecallHandlers
from tandemmq.broker.delay.timers import TimerLimits
from tandemmq.broker.offsets.claims import Claims
from tandemmq.broker.offsets.handlers import GroupTools, OffsetHandlers, ResetHandlers
from tandemmq.broker.options import AccessOptions, BrokerOptions
from tandemmq.broker.pop.service import PopService
from tandemmq.broker.pull.admission import PullAdmission
from tandemmq.broker.pull.cold_reads import ColdControl, ColdHandlers, ColdReads
from tandemmq.broker.pull.handlers import PullHandlers
from tandemmq.broker.pull.long_poll import LongPolls
from tandemmq.broker.query import QueryHandlers
from tandemmq.broker.send.assembly import DelayRule, SendTargets
from tandemmq.broker.send.handlers import RetryRule, SendHandlers
from tandemmq.broker.send.reply import ReplyForm
from tandemmq.broker.send.reply_message import ReplyHandlers
from tandemmq.broker.send.send_back import SendBackHandlers
from tandemmq.broker.stats import BrokerStats, StatsItems
from tandemmq.broker.tables import Tables
from tandemmq.broker.topics.auto_create import TopicCreator, UnsavedTopics
from tandemmq.broker.topics.handlers import GroupHandlers, TopicHandlers
from tandemmq.broker.transaction.checks import Asker, TransactionChecks, TransactionService
from tandemmq.broker.transaction.half import CheckLimits, Decided
from tandemmq.broker.transaction.handlers import TransactionHandlers
from tandemmq.protocol.codes import RequestCode as Code
from tandemmq.protocol.message_id import UniqueKeys
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.dispatch import Handler
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
        self.reply_form = ReplyForm(store.appender.store_host, options.region_id, is_traced=options.trace_on)
        self.long_polls = LongPolls(
            clock=clock,
            count_max=options.long_poll_count_max,
            count_per_queue_max=options.long_poll_count_per_queue_max,
        )
        unsaved = UnsavedTopics(tables.saver, tables.topic_file)
        creator = TopicCreator(options, topics, groups, clock, unsaved, tables.quota)
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
            offset_file=tables.offset_file,
            clock=clock,
        )
        self.queries = QueryHandlers(store, topics)
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
            broker_name=options.broker_name,
            own_address=own_address,
            store=store,
            topics=topics,
            offsets=offsets,
            consumers=consumers,
            items=self.items,
            clock=clock,
        )
        self.cleaning = CleaningHandlers(store=store, topics=topics, offsets=offsets)
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
        store.dispatcher.on_dispatch(lambda newest: self.long_polls.on_dispatch(newest.items()))
        if options.is_slave:
            self._copied = store.dispatcher.dispatched_count, store.dispatched.value
            store.dispatcher.on_dispatch(self._count_copies)

    def _count_copies(self, _newest: Mapping[tuple[str, int], int]) -> None:
        """Counts the records that a slave copies, so that its figures show activity."""
        count, end = self._copied
        self._copied = self._store.dispatcher.dispatched_count, self._store.dispatched.value
        self.stats.replicated_count += self._copied[0] - count
        self.stats.replicated_bytes += self._copied[1] - end

    def _on_settings_changed(self, keys: frozenset[str]) -> None:
        """Updates objects that were built from a setting when the broker started."""
        self._tables.groups.is_auto_created = self._options.auto_create_group
        if READ_AHEAD_KEY in keys:
            self._store.set_read_ahead(self._store.options.read_ahead_enable)
        if "brokerPermission" in keys:
            # Name servers and the cached topic checks hold the old permission.
            self._tables.topics.renew(self._clock.now_ms())


class MasterDuties:
    """The duties of a master beside requests: delivering delayed messages, redelivering popped ones, and
    checking transactions.

    A slave does none of them; it copies the progress and continues from there once it becomes master.
    Call `start` on a master, `stop` while the store still accepts appends, and `settle` once it is closed. A
    fenced master may learn of its successor just as it pauses its duties: a second `stop` returns only after
    the first.
    Source: spec semantics 14.4 (pop), 17 (transactions), 18 (delay and timers).
    """

    def __init__(
        self,
        options: BrokerOptions,
        *,
        store: MessageStore,
        tables: Tables,
        parts: Parts,
        clock: Clock,
        on_fatal: Callable[[BaseException], None],
        may_publish: Callable[[Channel, str], bool],
    ) -> None:
        self._may_publish = may_publish
        self._options = options
        self._store = store
        self._tables = tables
        self._parts = parts
        self._clock = clock
        self._on_fatal = on_fatal
        self._delivery = DelayedDelivery(
            store,
            delay_offsets=tables.delay_offsets,
            timer_progress=tables.timer_progress,
            has_timers=options.timer_wheel_enable,
            clock=clock,
            on_fatal=on_fatal,
        )
        self._transactions = TransactionService(self._make_checks, on_fatal)
        self._revive = parts.pop.revive
        self._stopping = asyncio.Lock()

    def start(self) -> None:
        """Reads the previous master's progress and continues from there."""
        self._revive.start(self._on_fatal)
        self._delivery.start()
        self._parts.runtime_info.timers = lambda: self._delivery.timer_figures
        self._transactions.start()

    async def stop(self) -> None:
        """Stops all duties and waits for the last append."""
        async with self._stopping:
            await self._delivery.stop()
            await self._revive.stop()
            await self._transactions.stop()

    def settle(self) -> None:
        """Commits the progress that is on disk; the latest work is safe only once the log is flushed. Save
        the tables afterwards.
        """
        self._delivery.settle()
        self._transactions.settle(self._store.flushed.value)
        self._revive.settle()

    def _make_checks(self) -> TransactionChecks:
        options = self._options
        return TransactionChecks(
            self._store,
            offsets=self._tables.offsets,
            topics=self._tables.topics,
            decided=self._parts.decided,
            asker=Asker(options.broker_name, self._parts.producers, self._may_publish),
            limits=CheckLimits(
                options.transaction_timeout_ms,
                options.transaction_check_count_max,
                self._store.options.file_reserved_hours,
            ),
            period_ms=options.transaction_check_period_ms,
            clock=self._clock,
        )


# The routes: the whole service of a broker on one screen.
#
# Codes of replication (21, 43, 45, 201, 907) come from `replica`. The fast listener serves everything but
# requests that may wait (spec remoting 5). Any other code is answered REQUEST_CODE_NOT_SUPPORTED.

_MAIN_PORT_ONLY = frozenset(
    (
        Code.PULL_MESSAGE,
        Code.LITE_PULL_MESSAGE,
        Code.PEEK_MESSAGE,
        Code.POP_MESSAGE,
        Code.NOTIFICATION,
        Code.POLLING_INFO,
    )
)


def build_routes(parts: Parts) -> dict[int, Handler]:
    """Returns the handlers of the main port."""
    routes: dict[Code, Handler] = {
        Code.SEND_MESSAGE: parts.sends.handle_send,
        Code.SEND_MESSAGE_V2: parts.sends.handle_send_v2,
        Code.SEND_BATCH_MESSAGE: parts.sends.handle_send_v2,
        Code.SEND_REPLY_MESSAGE: parts.replies.handle_reply,
        Code.SEND_REPLY_MESSAGE_V2: parts.replies.handle_reply,
        Code.CONSUMER_SEND_MSG_BACK: parts.send_back.handle_send_back,
        Code.RECALL_MESSAGE: parts.recalls.handle_recall,
        Code.END_TRANSACTION: parts.transactions.handle_end,
        Code.RESUME_CHECK_HALF_MESSAGE: parts.transactions.handle_resume,
        Code.PULL_MESSAGE: parts.refusals.watch("PULL_MESSAGE", parts.pulls.handle_pull),
        Code.LITE_PULL_MESSAGE: parts.refusals.watch("LITE_PULL_MESSAGE", parts.pulls.handle_pull),
        Code.POP_MESSAGE: parts.refusals.watch("POP_MESSAGE", parts.pop.pops.handle_pop),
        Code.PEEK_MESSAGE: parts.pop.pops.handle_peek,
        Code.NOTIFICATION: parts.refusals.watch("NOTIFICATION", parts.pop.pops.handle_notification),
        Code.POLLING_INFO: parts.pop.pops.handle_polling_info,
        Code.ACK_MESSAGE: parts.pop.acks.handle_ack,
        Code.BATCH_ACK_MESSAGE: parts.pop.acks.handle_batch_ack,
        Code.CHANGE_MESSAGE_INVISIBLETIME: parts.pop.acks.handle_change,
        Code.POP_ROLLBACK: parts.pop.pops.handle_rollback,
        Code.QUERY_ASSIGNMENT: parts.assignments.handle_query,
        Code.SET_MESSAGE_REQUEST_MODE: parts.assignments.handle_set_mode,
        Code.QUERY_CONSUMER_OFFSET: parts.offsets.handle_query,
        Code.UPDATE_CONSUMER_OFFSET: parts.offsets.handle_update,
        Code.SEARCH_OFFSET_BY_TIMESTAMP: parts.offsets.handle_search,
        Code.GET_MAX_OFFSET: parts.offsets.handle_max,
        Code.GET_MIN_OFFSET: parts.offsets.handle_min,
        Code.GET_EARLIEST_MSG_STORETIME: parts.offsets.handle_earliest,
        Code.INVOKE_BROKER_TO_RESET_OFFSET: parts.resets.handle_reset,
        Code.HEART_BEAT: parts.clients.handle_heartbeat,
        Code.UNREGISTER_CLIENT: parts.clients.handle_unregister,
        Code.GET_CONSUMER_LIST_BY_GROUP: parts.clients.handle_consumer_list,
        Code.CHECK_CLIENT_CONFIG: parts.clients.handle_check_config,
        Code.LOCK_BATCH_MQ: parts.locks.handle_lock,
        Code.UNLOCK_BATCH_MQ: parts.locks.handle_unlock,
        Code.UPDATE_AND_CREATE_TOPIC: parts.topics.handle_create,
        Code.UPDATE_AND_CREATE_TOPIC_LIST: parts.topics.handle_create_list,
        Code.DELETE_TOPIC_IN_BROKER: parts.topics.handle_delete,
        Code.GET_TOPIC_CONFIG: parts.topics.handle_show,
        Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: parts.topics.handle_system_list,
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: parts.groups.handle_create,
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: parts.groups.handle_create_list,
        Code.UPDATE_AND_GET_GROUP_FORBIDDEN: parts.groups.handle_forbid,
        Code.DELETE_SUBSCRIPTIONGROUP: parts.groups.handle_delete,
        Code.GET_SUBSCRIPTIONGROUP_CONFIG: parts.groups.handle_show,
        Code.QUERY_MESSAGE: parts.queries.handle_query,
        Code.VIEW_MESSAGE_BY_ID: parts.queries.handle_view,
        Code.GET_TOPIC_STATS_INFO: parts.inspection.handle_topic_stats,
        Code.GET_CONSUME_STATS: parts.inspection.handle_consume_stats,
        Code.QUERY_TOPIC_CONSUME_BY_WHO: parts.inspection.handle_topic_consumers,
        Code.QUERY_TOPICS_BY_CONSUMER: parts.inspection.handle_group_topics,
        Code.GET_CONSUMER_CONNECTION_LIST: parts.connections.handle_consumers,
        Code.GET_PRODUCER_CONNECTION_LIST: parts.connections.handle_producers,
        Code.GET_ALL_PRODUCER_INFO: parts.connections.handle_all_producers,
        Code.GET_CONSUMER_RUNNING_INFO: parts.relays.handle_running_info,
        Code.CONSUME_MESSAGE_DIRECTLY: parts.relays.handle_consume_directly,
        Code.GET_BROKER_RUNTIME_INFO: parts.runtime_info.handle_runtime_info,
        Code.GET_BROKER_CONFIG: parts.settings.handle_show,
        Code.UPDATE_BROKER_CONFIG: parts.settings.handle_update,
        Code.SET_COMMITLOG_READ_MODE: parts.settings.handle_read_mode,
        Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: parts.cold_settings.handle_update,
        Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: parts.cold_settings.handle_remove,
        Code.GET_COLD_DATA_FLOW_CTR_INFO: parts.cold_settings.handle_show,
        Code.VIEW_BROKER_STATS_DATA: parts.inspection.handle_stats,
        Code.GET_BROKER_CONSUME_STATS: parts.inspection.handle_broker_consume_stats,
        Code.QUERY_CONSUME_TIME_SPAN: parts.inspection.handle_time_span,
        Code.QUERY_CONSUME_QUEUE: parts.inspection.handle_queue_entries,
        Code.QUERY_SUBSCRIPTION_BY_CONSUMER: parts.inspection.handle_subscription,
        Code.CLEAN_EXPIRED_CONSUMEQUEUE: parts.cleaning.handle_queues,
        Code.DELETE_EXPIRED_COMMITLOG: parts.cleaning.handle_log,
        Code.CLEAN_UNUSED_TOPIC: parts.cleaning.handle_topics,
        Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: parts.group_tools.handle_consumer_status,
        Code.QUERY_CORRECTION_OFFSET: parts.group_tools.handle_correction,
        Code.CLONE_GROUP_OFFSET: parts.group_tools.handle_clone,
    }
    return {int(code): handler for code, handler in routes.items()}


def fast_routes(routes: Mapping[int, Handler]) -> dict[int, Handler]:
    """Returns the handlers of the fast listener at listenPort - 2."""
    return {code: handler for code, handler in routes.items() if code not in _MAIN_PORT_ONLY}
