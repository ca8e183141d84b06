"""The headers and the serving role of every request code; for a code that is not served, the reason.

`CATALOGUE` has the codes that are served, which tests compare with the routes of each server; `NOT_OURS` has
the others of RocketMQ. A header of None means that none exists, or that only extra fields travel.

Source:  spec remoting 8 and 9; spec nameserver 3 to 9; spec decisions 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tandemmq.protocol.codes import RequestCode as Code
from tandemmq.protocol.header_codec import Header
from tandemmq.protocol.requests import admin, consume, controller, replica, route, send


class ServingRole(Enum):
    """The role that answers a request."""

    BROKER = "broker"
    NAME_SERVER = "name server"
    CONTROLLER = "controller"
    CLIENT = "client"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """One request code. `is_oneway`: its senders expect no answer; others may still send it oneway."""

    code: Code
    request: type[Header] | None
    response: type[Header] | None
    served_by: ServingRole
    is_oneway: bool = False

    @property
    def name(self) -> str:
        return self.code.name


def _entries(
    role: ServingRole, *rows: tuple[Code, type[Header] | None, type[Header] | None], is_oneway: bool = False
) -> list[RequestRow]:
    return [
        RequestRow(code=code, request=request, response=response, served_by=role, is_oneway=is_oneway)
        for code, request, response in rows
    ]


_MESSAGES = _entries(
    ServingRole.BROKER,
    (Code.SEND_MESSAGE, send.SendRequest, send.SendResponse),
    (Code.SEND_MESSAGE_V2, send.SendRequestV2, send.SendResponse),
    (Code.SEND_BATCH_MESSAGE, send.SendRequestV2, send.SendResponse),
    (Code.SEND_REPLY_MESSAGE, send.SendRequest, send.SendResponse),
    (Code.SEND_REPLY_MESSAGE_V2, send.SendRequestV2, send.SendResponse),
    (Code.CONSUMER_SEND_MSG_BACK, send.SendBackRequest, None),
    (Code.PULL_MESSAGE, consume.PullRequest, consume.PullResponse),
    (Code.LITE_PULL_MESSAGE, consume.PullRequest, consume.PullResponse),
    (Code.QUERY_MESSAGE, consume.QueryMessageRequest, consume.QueryMessageResponse),
    (Code.VIEW_MESSAGE_BY_ID, consume.ViewMessageRequest, None),
    (Code.RECALL_MESSAGE, send.RecallRequest, send.RecallResponse),
) + _entries(ServingRole.BROKER, (Code.END_TRANSACTION, send.EndTransactionRequest, None), is_oneway=True)

_POPS = _entries(
    ServingRole.BROKER,
    (Code.POP_MESSAGE, consume.PopRequest, consume.PopResponse),
    (Code.ACK_MESSAGE, consume.AckRequest, None),
    (Code.BATCH_ACK_MESSAGE, None, None),
    (Code.PEEK_MESSAGE, consume.PeekRequest, consume.PopResponse),
    (Code.CHANGE_MESSAGE_INVISIBLETIME, consume.ChangeInvisibleRequest, consume.ChangeInvisibleResponse),
    (Code.NOTIFICATION, consume.NotificationRequest, consume.NotificationResponse),
    (Code.POLLING_INFO, consume.PollingInfoRequest, consume.PollingInfoResponse),
    (Code.POP_ROLLBACK, None, None),
    (Code.QUERY_ASSIGNMENT, None, None),
    (Code.SET_MESSAGE_REQUEST_MODE, None, None),
)

_OFFSETS = _entries(
    ServingRole.BROKER,
    (Code.QUERY_CONSUMER_OFFSET, consume.QueryOffsetRequest, consume.QueryOffsetResponse),
    (Code.UPDATE_CONSUMER_OFFSET, consume.UpdateOffsetRequest, None),
    (Code.SEARCH_OFFSET_BY_TIMESTAMP, consume.SearchOffsetRequest, consume.SearchOffsetResponse),
    (Code.GET_MAX_OFFSET, consume.GetMaxOffsetRequest, consume.GetMaxOffsetResponse),
    (Code.GET_MIN_OFFSET, consume.GetMinOffsetRequest, consume.GetMinOffsetResponse),
    (Code.GET_EARLIEST_MSG_STORETIME, consume.EarliestStoreTimeRequest, consume.EarliestStoreTimeResponse),
)

_MEMBERS = _entries(
    ServingRole.BROKER,
    (Code.HEART_BEAT, None, route.HeartbeatResponse),
    (Code.UNREGISTER_CLIENT, route.UnregisterClientRequest, None),
    (Code.GET_CONSUMER_LIST_BY_GROUP, route.ConsumerListRequest, None),
    (Code.CHECK_CLIENT_CONFIG, None, None),
    (Code.LOCK_BATCH_MQ, None, None),
    (Code.UNLOCK_BATCH_MQ, None, None),
)

_REPLICAS = _entries(
    ServingRole.BROKER,
    (Code.GET_ALL_TOPIC_CONFIG, replica.AllTopicConfigRequest, replica.AllTopicConfigResponse),
    (Code.GET_ALL_CONSUMER_OFFSET, None, None),
    (Code.GET_ALL_DELAY_OFFSET, None, None),
    (Code.GET_TIMER_CHECK_POINT, None, None),
    (Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, replica.AllGroupConfigRequest, replica.AllGroupConfigResponse),
    (Code.EXCHANGE_BROKER_HA_INFO, replica.ExchangeHaInfoRequest, replica.ExchangeHaInfoResponse),
    (Code.GET_BROKER_HA_STATUS, None, None),
    (Code.RESET_MASTER_FLUSH_OFFSET, replica.ResetMasterFlushedOffsetRequest, None),
    (Code.GET_TIMER_METRICS, None, None),
    (Code.GET_ALL_MESSAGE_REQUEST_MODE, None, None),
    (Code.TANDEM_READ_LOG_CHECKSUM, replica.LogChecksumRequest, replica.LogChecksumResponse),
    (Code.TANDEM_AWAIT_TABLES, replica.AwaitTablesRequest, None),
    (Code.TANDEM_TELL_SLAVE_STATE, replica.TellSlaveStateRequest, None),
    (Code.TANDEM_READ_LOG, replica.ReadLogRequest, replica.ReadLogResponse),
    (Code.TANDEM_ACCEPT_LOG, None, None),
    (Code.TANDEM_HAND_OVER, controller.HandOverRequest, controller.MasterResponse),
    (Code.TANDEM_VOUCH, controller.VouchRequest, controller.VouchResponse),
    (Code.TANDEM_HISTORY, replica.HistoryRequest, replica.HistoryResponse),
)

_ADMIN = _entries(
    ServingRole.BROKER,
    (Code.UPDATE_AND_CREATE_TOPIC, admin.CreateTopicRequest, None),
    (Code.UPDATE_AND_CREATE_TOPIC_LIST, None, None),
    (Code.DELETE_TOPIC_IN_BROKER, admin.DeleteTopicRequest, None),
    (Code.GET_TOPIC_CONFIG, admin.TopicConfigRequest, None),
    (Code.GET_TOPIC_STATS_INFO, admin.TopicStatsRequest, None),
    (Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, admin.CreateGroupRequest, None),
    (Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, None, None),
    (Code.GET_SUBSCRIPTIONGROUP_CONFIG, admin.GroupConfigRequest, None),
    (Code.DELETE_SUBSCRIPTIONGROUP, admin.DeleteGroupRequest, None),
    (Code.GET_CONSUME_STATS, admin.ConsumeStatsRequest, None),
    (Code.GET_BROKER_CONSUME_STATS, admin.BrokerConsumeStatsRequest, None),
    (Code.GET_CONSUMER_CONNECTION_LIST, admin.ConsumerConnectionsRequest, None),
    (Code.GET_PRODUCER_CONNECTION_LIST, admin.ProducerConnectionsRequest, None),
    (Code.GET_ALL_PRODUCER_INFO, None, None),
    (Code.QUERY_TOPIC_CONSUME_BY_WHO, admin.TopicConsumersRequest, None),
    (Code.QUERY_TOPICS_BY_CONSUMER, admin.GroupTopicsRequest, None),
    (Code.QUERY_SUBSCRIPTION_BY_CONSUMER, admin.GroupSubscriptionRequest, None),
    (Code.QUERY_CONSUME_TIME_SPAN, admin.ConsumeTimeSpanRequest, None),
    (Code.QUERY_CORRECTION_OFFSET, admin.CorrectionOffsetRequest, None),
    (Code.INVOKE_BROKER_TO_RESET_OFFSET, admin.ResetOffsetRequest, None),
    (Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, admin.ConsumerStatusRequest, None),
    (Code.CLONE_GROUP_OFFSET, admin.CloneGroupOffsetRequest, None),
    (Code.GET_BROKER_RUNTIME_INFO, None, None),
    (Code.GET_BROKER_CONFIG, None, admin.BrokerConfigResponse),
    (Code.UPDATE_BROKER_CONFIG, None, None),
    (Code.VIEW_BROKER_STATS_DATA, admin.BrokerStatsRequest, None),
    (Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, None, None),
    (Code.CLEAN_EXPIRED_CONSUMEQUEUE, None, None),
    (Code.DELETE_EXPIRED_COMMITLOG, None, None),
    (Code.CLEAN_UNUSED_TOPIC, None, None),
    (Code.QUERY_CONSUME_QUEUE, admin.ConsumeQueueRequest, None),
    (Code.RESUME_CHECK_HALF_MESSAGE, admin.ResumeCheckRequest, None),
    (Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, None, None),
    (Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, None, None),
    (Code.GET_COLD_DATA_FLOW_CTR_INFO, None, None),
    (Code.SET_COMMITLOG_READ_MODE, admin.ReadModeRequest, None),
    (Code.UPDATE_AND_GET_GROUP_FORBIDDEN, admin.GroupForbiddenRequest, None),
)

_ACCESS = _entries(
    ServingRole.BROKER,
    (Code.UPDATE_AND_CREATE_ACL_CONFIG, admin.UpdateAccountRequest, None),
    (Code.DELETE_ACL_CONFIG, admin.DeleteAccountRequest, None),
    (Code.GET_BROKER_CLUSTER_ACL_INFO, None, admin.AccessVersionResponse),
    (Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, admin.UpdateWhiteAddressesRequest, None),
    (Code.GET_BROKER_CLUSTER_ACL_CONFIG, None, None),
    (Code.AUTH_CREATE_USER, admin.UserRequest, None),
    (Code.AUTH_UPDATE_USER, admin.UserRequest, None),
    (Code.AUTH_DELETE_USER, admin.UserRequest, None),
    (Code.AUTH_GET_USER, admin.UserRequest, None),
    (Code.AUTH_LIST_USER, admin.ListUsersRequest, None),
    (Code.AUTH_CREATE_ACL, admin.AclRequest, None),
    (Code.AUTH_UPDATE_ACL, admin.AclRequest, None),
    (Code.AUTH_DELETE_ACL, admin.DeleteAclRequest, None),
    (Code.AUTH_GET_ACL, admin.AclRequest, None),
    (Code.AUTH_LIST_ACL, admin.ListAclsRequest, None),
)

_NAME_SERVER = _entries(
    ServingRole.NAME_SERVER,
    (Code.GET_ROUTEINFO_BY_TOPIC, route.RouteRequest, None),
    (Code.GET_BROKER_CLUSTER_INFO, None, None),
    (Code.REGISTER_BROKER, route.RegisterBrokerRequest, route.RegisterBrokerResponse),
    (Code.UNREGISTER_BROKER, route.UnregisterBrokerRequest, None),
    (Code.QUERY_DATA_VERSION, route.QueryDataVersionRequest, route.QueryDataVersionResponse),
    (Code.REGISTER_TOPIC_IN_NAMESRV, route.RegisterTopicRequest, None),
    (Code.GET_BROKER_MEMBER_GROUP, route.MemberGroupRequest, None),
    (Code.PUT_KV_CONFIG, route.PutKvRequest, None),
    (Code.GET_KV_CONFIG, route.GetKvRequest, route.GetKvResponse),
    (Code.DELETE_KV_CONFIG, route.DeleteKvRequest, None),
    (Code.GET_KVLIST_BY_NAMESPACE, route.KvListRequest, None),
    (Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None, None),
    (Code.GET_TOPICS_BY_CLUSTER, route.TopicsByClusterRequest, None),
    (Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, None, None),
    (Code.GET_UNIT_TOPIC_LIST, None, None),
    (Code.GET_HAS_UNIT_SUB_TOPIC_LIST, None, None),
    (Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, None, None),
    (Code.DELETE_TOPIC_IN_NAMESRV, route.DeleteTopicInNameServerRequest, None),
    (
        Code.WIPE_WRITE_PERM_OF_BROKER,
        route.WipeWritePermissionRequest,
        route.WipeWritePermissionResponse,
    ),
    (Code.ADD_WRITE_PERM_OF_BROKER, route.AddWritePermissionRequest, route.AddWritePermissionResponse),
    (Code.UPDATE_NAMESRV_CONFIG, None, None),
    (Code.GET_NAMESRV_CONFIG, None, None),
) + _entries(
    ServingRole.NAME_SERVER, (Code.BROKER_HEARTBEAT, route.BrokerHeartbeatRequest, None), is_oneway=True
)

_NOTICES = _entries(
    ServingRole.BROKER,
    (Code.NOTIFY_MIN_BROKER_ID_CHANGE, route.MinBrokerIdChange, None),
    (Code.NOTIFY_BROKER_ROLE_CHANGED, controller.MasterResponse, None),
    is_oneway=True,
) + _entries(ServingRole.BROKER, (Code.GET_BROKER_EPOCH_CACHE, None, None))

_CONTROLLERS = _entries(
    ServingRole.CONTROLLER,
    (
        Code.CONTROLLER_ALTER_SYNC_STATE_SET,
        controller.AlterSyncStateSetRequest,
        controller.AlterSyncStateSetResponse,
    ),
    (Code.CONTROLLER_ELECT_MASTER, controller.ElectMasterRequest, controller.MasterResponse),
    (Code.CONTROLLER_REGISTER_BROKER, controller.RegisterReplicaRequest, controller.MasterResponse),
    (Code.CONTROLLER_GET_REPLICA_INFO, controller.ReplicaInfoRequest, controller.MasterResponse),
    (Code.CONTROLLER_GET_METADATA_INFO, None, controller.ControllerMetadataResponse),
    (Code.CONTROLLER_GET_SYNC_STATE_DATA, None, None),
    (Code.UPDATE_CONTROLLER_CONFIG, None, None),
    (Code.GET_CONTROLLER_CONFIG, None, None),
    (Code.CLEAN_BROKER_DATA, controller.CleanBrokerDataRequest, None),
    (
        Code.CONTROLLER_GET_NEXT_BROKER_ID,
        controller.NextBrokerIdRequest,
        controller.NextBrokerIdResponse,
    ),
    (
        Code.CONTROLLER_APPLY_BROKER_ID,
        controller.ApplyBrokerIdRequest,
        controller.ApplyBrokerIdResponse,
    ),
    (Code.TANDEM_CHANGE_CONTROLLERS, controller.ChangeControllersRequest, None),
) + _entries(
    ServingRole.CONTROLLER, (Code.TANDEM_RAFT_MESSAGE, controller.RaftMessageHeader, None), is_oneway=True
)

_PUSHES = _entries(
    ServingRole.CLIENT,
    (Code.NOTIFY_CONSUMER_IDS_CHANGED, route.NotifyConsumerIdsChangedRequest, None),
    (Code.CHECK_TRANSACTION_STATE, send.CheckTransactionRequest, None),
    (Code.RESET_CONSUMER_CLIENT_OFFSET, admin.ResetClientOffsetRequest, None),
    is_oneway=True,
) + _entries(
    ServingRole.CLIENT,
    (Code.GET_CONSUMER_STATUS_FROM_CLIENT, admin.ConsumerStatusRequest, None),
    (Code.PUSH_REPLY_MESSAGE_TO_CLIENT, send.PushReplyRequest, None),
    (Code.GET_CONSUMER_RUNNING_INFO, admin.RunningInfoRequest, None),
    (Code.CONSUME_MESSAGE_DIRECTLY, admin.ConsumeDirectlyRequest, None),
)

CATALOGUE: dict[int, RequestRow] = {
    int(entry.code): entry
    for part in (
        _MESSAGES,
        _POPS,
        _OFFSETS,
        _MEMBERS,
        _REPLICAS,
        _ADMIN,
        _ACCESS,
        _NAME_SERVER,
        _NOTICES,
        _CONTROLLERS,
        _PUSHES,
    )
    for entry in part
}

RELAYED = frozenset((Code.GET_CONSUMER_RUNNING_INFO, Code.CONSUME_MESSAGE_DIRECTLY))
"""The requests to a client that tools send to a broker, which relays them (spec remoting 9.11)."""

ELECTED = frozenset(
    (
        Code.NOTIFY_BROKER_ROLE_CHANGED,
        Code.GET_BROKER_EPOCH_CACHE,
        Code.TANDEM_HAND_OVER,
        Code.TANDEM_VOUCH,
        Code.TANDEM_HISTORY,
    )
)
"""The codes served only by brokers whose role is decided by controllers (enableControllerMode)."""

_FILTERS = "class filters: code of clients is not run in brokers; SQL92 filters are served"
_STATIC = "static topics: the queues of a topic belong to its brokers"
_ROCKSDB = "RocksDB: queues and tables are files, in RocketMQ's default format"
_CONTAINER = "broker container: each broker is a process of its own"
_JRAFT = "controller: entries in the log of RocketMQ's jRaft kind"
_LITE = "lite topics: a topic with many queues, or many topics, take their place"
_LISTS = "lists of deletions: each topic and each group is deleted by a request of its own"
_UNUSED = "a name only: nothing in RocketMQ 4.9 to 5.5 sends or serves it"

NOT_OURS: dict[int, tuple[str, str]] = {
    13: ("QUERY_BROKER_OFFSET", _UNUSED),
    22: ("GET_TOPIC_CONFIG_LIST", _UNUSED),
    23: ("GET_TOPIC_NAME_LIST", _UNUSED),
    27: ("TRIGGER_DELETE_FILES", _UNUSED),
    47: ("GET_CLIENT_CONFIG", _UNUSED),
    209: ("SUSPEND_CONSUMER", _UNUSED),
    210: ("RESUME_CONSUMER", _UNUSED),
    211: ("RESET_CONSUMER_OFFSET_IN_CONSUMER", _UNUSED),
    212: ("RESET_CONSUMER_OFFSET_IN_BROKER", _UNUSED),
    213: ("ADJUST_CONSUMER_THREAD_POOL", _UNUSED),
    214: ("WHO_CONSUME_THE_MESSAGE", _UNUSED),
    301: ("REGISTER_FILTER_SERVER", _FILTERS),
    302: ("REGISTER_MESSAGE_FILTER_CLASS", _FILTERS),
    354: ("CHECK_ROCKSDB_CQ_WRITE_PROGRESS", _ROCKSDB),
    355: ("EXPORT_ROCKSDB_CONFIG_TO_JSON", _ROCKSDB),
    513: ("UPDATE_AND_CREATE_STATIC_TOPIC", _STATIC),
    902: ("ADD_BROKER", _CONTAINER),
    903: ("REMOVE_BROKER", _CONTAINER),
    1014: ("BROKER_CLOSE_CHANNEL_REQUEST", _JRAFT),
    1015: ("CHECK_NOT_ACTIVE_BROKER_REQUEST", _JRAFT),
    1016: ("GET_BROKER_LIVE_INFO_REQUEST", _JRAFT),
    1017: ("GET_SYNC_STATE_DATA_REQUEST", _JRAFT),
    1018: ("RAFT_BROKER_HEART_BEAT_EVENT_REQUEST", _JRAFT),
    5001: ("SWITCH_TIMER_ENGINE", _ROCKSDB),
    5002: ("DELETE_TOPIC_IN_BROKER_LIST", _LISTS),
    5003: ("DELETE_SUBSCRIPTION_GROUP_LIST", _LISTS),
    200070: ("POP_LITE_MESSAGE", _LITE),
    200071: ("LITE_SUBSCRIPTION_CTL", _LITE),
    200072: ("ACK_LITE_MESSAGE", _LITE),
    200073: ("NOTIFY_UNSUBSCRIBE_LITE", _LITE),
    200074: ("GET_BROKER_LITE_INFO", _LITE),
    200075: ("GET_PARENT_TOPIC_INFO", _LITE),
    200076: ("GET_LITE_TOPIC_INFO", _LITE),
    200077: ("GET_LITE_CLIENT_INFO", _LITE),
    200078: ("GET_LITE_GROUP_INFO", _LITE),
    200079: ("TRIGGER_LITE_DISPATCH", _LITE),
}
"""The codes of RocketMQ that are answered with REQUEST_CODE_NOT_SUPPORTED: names and reasons."""
