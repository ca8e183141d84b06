"""The handlers of one broker, the duties of a master, and the routes from request codes to handlers.

`Parts` builds the handlers from the broker's core, in the order of their dependencies. A handler receives a
further object, such as the queue locks, only if it shares the state of that object with another handler.
`Broker` builds the parts and serves the routes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from functools import partial

from tandemmq.broker.admin.inspection_handlers import ConnectionHandlers, InspectionHandlers
from tandemmq.broker.admin.runtime_info import RuntimeInfoHandlers
from tandemmq.broker.admin.settings import CleaningHandlers, SettingsHandlers
from tandemmq.broker.assignment import AssignmentHandlers, TopicQueues
from tandemmq.broker.clients.handlers import ClientHandlers, Notices, RelayHandlers
from tandemmq.broker.clients.queue_locks import LockHandlers, QueueLocks
from tandemmq.broker.core import BrokerCore
from tandemmq.broker.delay.delivery import make_deliveries
from tandemmq.broker.delay.postpone import DelayRule
from tandemmq.broker.delay.recall import RecallHandlers
from tandemmq.broker.delay.timer_delivery import TimerDelivery
from tandemmq.broker.delay.timers import TimerLimits
from tandemmq.broker.durable import Duty
from tandemmq.broker.offsets.claims import Claims
from tandemmq.broker.offsets.handlers import GroupTools, OffsetHandlers, ResetHandlers
from tandemmq.broker.options import AccessOptions
from tandemmq.broker.pop.service import PopService
from tandemmq.broker.pull.cold_reads import ColdControl, ColdHandlers, ColdReads
from tandemmq.broker.pull.handlers import PullHandlers
from tandemmq.broker.query import QueryHandlers
from tandemmq.broker.registration import Registration
from tandemmq.broker.replica.replica import GroupReplica
from tandemmq.broker.send.assembly import RecordBuilder
from tandemmq.broker.send.block import SendBlocks
from tandemmq.broker.send.handlers import SendHandlers
from tandemmq.broker.send.numbered import NumberedSends
from tandemmq.broker.send.reply import ReplyForm
from tandemmq.broker.send.reply_message import ReplyHandlers
from tandemmq.broker.send.send_back import SendBackHandlers
from tandemmq.broker.send.targets import RetryRule, SendTargets
from tandemmq.broker.topics.handlers import GroupHandlers, TopicHandlers
from tandemmq.broker.transaction.checks import Asker, TransactionChecks
from tandemmq.broker.transaction.half import Decided
from tandemmq.broker.transaction.handlers import TransactionHandlers
from tandemmq.protocol.codes import RequestCode as Code
from tandemmq.protocol.command import Command
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.dispatch import BlockRoute, Handler, Waiting
from tandemmq.remoting.rpc_times import MeasuredChannel


class Parts:
    """All handlers of one broker, and the parts that `Broker` starts, stops or sets up further."""

    def __init__(
        self,
        core: BrokerCore,
        access: AccessOptions,
        replica: GroupReplica,
        registration: Registration,
        rejections: Callable[[], Mapping[str, str]],
    ) -> None:
        """`rejections`: returns the entries of the runtime info for requests rejected before any handler."""
        self.core = core
        options, store = core.options, core.store
        self.reply_form = ReplyForm(store.appender.store_host, options.region_id, is_traced=options.trace_on)
        timers = TimerLimits(is_enabled=options.timer_wheel_enable, delay_s_max=options.timer_delay_s_max)
        delay = DelayRule(store.options.delay_levels_ms, timers)
        locks = QueueLocks(options.queue_lock_expired_ms, core.clock)
        targets = SendTargets(core)
        records = RecordBuilder(core, self.reply_form, RetryRule(core, locks), delay)
        self.sends = SendHandlers(core, targets, records, self.reply_form, NumberedSends(store))
        self.send_blocks = SendBlocks(core, targets, records, self.reply_form)
        self.replies = ReplyHandlers(core, targets, records, self.reply_form)
        self.send_back = SendBackHandlers(core, delay)
        self.recalls = RecallHandlers(core, delay)
        self.decided = Decided()
        self.transactions = TransactionHandlers(core, self.decided, delay)
        claims = Claims(core)
        self.cold_reads = ColdReads(options, core.clock)
        self.cold_settings = ColdHandlers(self.cold_reads)
        self.pulls = PullHandlers(core, claims, ColdControl(core, self.cold_reads), replica)
        self.pop = PopService(core)
        self.assignments = AssignmentHandlers(core, TopicQueues(core))
        self.offsets = OffsetHandlers(core, claims)
        self.resets = ResetHandlers(core)
        self.clients = ClientHandlers(core)
        self.locks = LockHandlers(core, locks)
        self.topics = TopicHandlers(core, registration.wait_registered, replica.forward_deletion)
        self.groups = GroupHandlers(core)
        self.queries = QueryHandlers(core)
        self.connections = ConnectionHandlers(core)
        self.relays = RelayHandlers(core)
        self.runtime_info = RuntimeInfoHandlers(core, rejections)
        self.settings = SettingsHandlers(core, access, register_soon=registration.register_soon)
        self.inspection = InspectionHandlers(core)
        self.cleaning = CleaningHandlers(core)
        self.group_tools = GroupTools(core)
        core.consumers.on_change.append(Notices(core).on_change)
        store.dispatcher.on_dispatch(lambda newest: core.long_polls.on_dispatch(newest.items()))
        if options.is_slave:
            self._copied = store.dispatcher.dispatched_count, store.dispatched.value
            store.dispatcher.on_dispatch(self._count_copies)

    def _count_copies(self, _newest: Mapping[tuple[str, int], int]) -> None:
        """Counts the records that a slave copies, so that its figures show activity."""
        count, end = self._copied
        store, stats = self.core.store, self.core.stats
        self._copied = store.dispatcher.dispatched_count, store.dispatched.value
        stats.replicated_count += self._copied[0] - count
        stats.replicated_bytes += self._copied[1] - end


def make_duties(parts: Parts, may_publish: Callable[[Channel, str], bool]) -> list[Duty]:
    """Returns the background duties of a master: delivering delayed messages, checking transactions, and
    redelivering popped messages.

    Source: spec semantics 14.4 (pop), 17 (transactions), 18 (delay and timers).
    """
    core = parts.core
    deliveries = make_deliveries(core)
    for duty in deliveries:
        if isinstance(duty, TimerDelivery):
            parts.runtime_info.timers = duty
    checks = TransactionChecks(core, parts.decided, Asker(core, may_publish))
    return [*deliveries, checks, parts.pop.revive]


# The routes: every request code that a broker serves to clients and tools.
#
# The codes of replication, of access rules and of elected groups are added by `Broker`. The fast listener
# serves everything but requests that may wait (spec remoting 5). Any other code is answered
# REQUEST_CODE_NOT_SUPPORTED.

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
    return _client_routes(parts) | _tool_routes(parts)


def _client_routes(parts: Parts) -> dict[int, Handler]:
    refusals, take_sends = parts.core.refusals, parts.send_blocks.take
    return {
        Code.SEND_MESSAGE: BlockRoute(parts.sends.handle_send, partial(take_sends, Code.SEND_MESSAGE)),
        Code.SEND_MESSAGE_V2: BlockRoute(parts.sends.handle_send, partial(take_sends, Code.SEND_MESSAGE_V2)),
        Code.SEND_BATCH_MESSAGE: parts.sends.handle_send,
        Code.SEND_REPLY_MESSAGE: parts.replies.handle_reply,
        Code.SEND_REPLY_MESSAGE_V2: parts.replies.handle_reply,
        Code.CONSUMER_SEND_MSG_BACK: parts.send_back.handle_send_back,
        Code.RECALL_MESSAGE: parts.recalls.handle_recall,
        Code.END_TRANSACTION: parts.transactions.handle_end,
        Code.RESUME_CHECK_HALF_MESSAGE: parts.transactions.handle_resume,
        Code.PULL_MESSAGE: refusals.watch("PULL_MESSAGE", parts.pulls.handle_pull),
        Code.LITE_PULL_MESSAGE: refusals.watch("LITE_PULL_MESSAGE", parts.pulls.handle_pull),
        Code.POP_MESSAGE: refusals.watch("POP_MESSAGE", parts.pop.pops.handle_pop),
        Code.PEEK_MESSAGE: parts.pop.pops.handle_peek,
        Code.NOTIFICATION: refusals.watch("NOTIFICATION", parts.pop.pops.handle_notification),
        Code.POLLING_INFO: parts.pop.pops.handle_polling_info,
        Code.ACK_MESSAGE: BlockRoute(parts.pop.acks.handle_ack, parts.pop.acks.take_acks),
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
    }


def _tool_routes(parts: Parts) -> dict[int, Handler]:
    creations, clock = parts.core.stats.creations, parts.core.clock
    return {
        Code.UPDATE_AND_CREATE_TOPIC: creations.watch_topics(parts.topics.handle_create, clock),
        Code.UPDATE_AND_CREATE_TOPIC_LIST: parts.topics.handle_create_list,
        Code.DELETE_TOPIC_IN_BROKER: parts.topics.handle_delete,
        Code.GET_TOPIC_CONFIG: parts.topics.handle_show,
        Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: parts.topics.handle_system_list,
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: creations.watch_groups(parts.groups.handle_create, clock),
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


def marked_routes(routes: Mapping[int, Handler], parts: Parts) -> dict[int, Handler]:
    """Returns the handlers that may hold a request; they mark held requests on measured channels."""
    tables: tuple[Sized, Sized] = parts.core.long_polls, parts.pop.polls

    def marking(handler: Handler) -> Handler:
        def handle(channel: Channel, command: Command) -> Command | Waiting | None:
            count = sum(map(len, tables))
            answer = handler(channel, command)
            if sum(map(len, tables)) > count and isinstance(channel, MeasuredChannel):
                channel.mark_held(command.opaque)
            return answer

        return handle

    return {code: marking(routes[code]) for code in _MAIN_PORT_ONLY}


def fast_routes(routes: Mapping[int, Handler]) -> dict[int, Handler]:
    """Returns the handlers of the fast listener at listenPort - 2."""
    return {code: handler for code, handler in routes.items() if code not in _MAIN_PORT_ONLY}
