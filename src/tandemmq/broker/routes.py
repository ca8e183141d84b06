"""Which handler serves which request code: all of a broker's service on one screen.

Codes of replication (21, 43, 45, 201, 907) come from `replica`; the fast listener serves everything but
what may wait (spec remoting 5). A code that is not here is answered REQUEST_CODE_NOT_SUPPORTED.
"""

from __future__ import annotations

from collections.abc import Mapping

from tandemmq.broker.parts import Parts
from tandemmq.protocol.codes import RequestCode as Code
from tandemmq.remoting.dispatch import Handler

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
    """Handlers of the main port."""
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
        Code.GET_TOPIC_STATS_INFO: parts.progress.handle_topic_stats,
        Code.GET_CONSUME_STATS: parts.progress.handle_consume_stats,
        Code.QUERY_TOPIC_CONSUME_BY_WHO: parts.progress.handle_topic_consumers,
        Code.QUERY_TOPICS_BY_CONSUMER: parts.progress.handle_group_topics,
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
    """Handlers of the fast listener at listenPort - 2."""
    return {code: handler for code, handler in routes.items() if code not in _MAIN_PORT_ONLY}
