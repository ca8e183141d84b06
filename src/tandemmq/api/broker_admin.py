"""Requests of operators to a broker: topics and consumer groups, stored messages, statistics and settings,
progress and members of groups, users and policies. Source: spec remoting 8.6, 9.9; spec semantics 21.3.
"""

from __future__ import annotations

from tandemmq.api.calls import (
    AdminCall,
    Call,
    RequestContent,
    absent,
    body,
    done,
    empty,
    entries,
    given,
    one_setting,
    optional,
    remark,
    settings,
    value,
)
from tandemmq.protocol.bodies import client as clients
from tandemmq.protocol.bodies import stats, tables
from tandemmq.protocol.bodies.codec import decode_kv_table, encode_body
from tandemmq.protocol.bodies.progress import decode_reset_offsets
from tandemmq.protocol.bodies.replica import HaStatus
from tandemmq.protocol.codes import RequestCode as Code
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.properties import split_keys
from tandemmq.protocol.record import Record, decode_record, decode_records
from tandemmq.protocol.requests import admin as headers
from tandemmq.protocol.requests.consume import QueryMessageRequest, ViewMessageRequest
from tandemmq.protocol.requests.replica import ResetMasterFlushedOffsetRequest
from tandemmq.protocol.topic_names import AUTO_CREATE_TOPIC
from tandemmq.remoting.client import RemotingClient

# Topics and consumer groups (spec remoting 8.6).


def _describe_topic(
    config: tables.TopicConfig, *, if_exists: headers.IfExists | None = None
) -> headers.CreateTopicRequest:
    return headers.CreateTopicRequest(
        topic=config.name,
        default_topic=AUTO_CREATE_TOPIC,
        read_queue_count=config.read_queue_count,
        write_queue_count=config.write_queue_count,
        permission=config.permission,
        topic_filter_type=config.filter_type,
        topic_sys_flag=config.sys_flag,
        is_ordered=config.is_ordered,
        attributes=tables.as_changes(config.attributes) or None,
        if_exists=if_exists,
    )


create_topic = AdminCall(Code.UPDATE_AND_CREATE_TOPIC, _describe_topic, done)
"""Creates or changes a topic on one broker; the broker registers it with its name servers at once.

The broker obeys `if_exists` in one step, whatever other callers do at the same moment. A broker that does
not know the field changes an existing topic as requested.
"""
create_topics = AdminCall(Code.UPDATE_AND_CREATE_TOPIC_LIST, tables.encode_topic_config_list, done)
"""Creates or changes all of these topics on one broker, or none if one is rejected; 5.x."""
delete_topic = AdminCall(Code.DELETE_TOPIC_IN_BROKER, headers.DeleteTopicRequest, done)
"""Deletes a topic on one broker; an unknown topic is not an error."""
query_topic_config = AdminCall(
    Code.GET_TOPIC_CONFIG,
    headers.TopicConfigRequest,
    value(tables.TopicConfig),
    outcomes={ResponseCode.TOPIC_NOT_EXIST: absent},
)
query_topic_configs = AdminCall(Code.GET_ALL_TOPIC_CONFIG, empty, value(tables.TopicConfigTable))
query_system_topics = AdminCall(
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    empty,
    lambda answer: frozenset(tables.decode_topic_list(answer.body)),
)
"""Returns the topics that a broker created for itself: fixed names, its own and its cluster's."""
query_topic_stats = AdminCall(
    Code.GET_TOPIC_STATS_INFO, headers.TopicStatsRequest, body(stats.decode_topic_stats)
)
"""Returns the first and last offset of each queue of a topic on this broker. Raises TopicNotFound."""


def _describe_group(
    config: tables.SubscriptionGroupConfig, *, if_exists: headers.IfExists | None = None
) -> RequestContent:
    return RequestContent(headers.CreateGroupRequest(if_exists), encode_body(config))


create_group = AdminCall(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, _describe_group, done)
"""Creates or changes a group on one broker, which obeys `if_exists` as for `create_topic`."""
create_groups = AdminCall(
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, tables.encode_group_config_list, done
)
"""Creates or changes all of these groups on one broker, or none if one is rejected; 5.x."""


def _name_group(group: str, *, removes_offsets: bool = False) -> headers.DeleteGroupRequest:
    return headers.DeleteGroupRequest(
        group=group, cleans_offsets=removes_offsets, removes_offsets=removes_offsets
    )


delete_group = AdminCall(Code.DELETE_SUBSCRIPTIONGROUP, _name_group, done)
query_group_config = AdminCall(
    Code.GET_SUBSCRIPTIONGROUP_CONFIG,
    headers.GroupConfigRequest,
    value(tables.SubscriptionGroupConfig),
    outcomes={ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: absent},
)
query_group_configs = AdminCall(
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, empty, value(tables.SubscriptionGroupTable)
)
set_request_mode = AdminCall(Code.SET_MESSAGE_REQUEST_MODE, encode_body, done)
"""Sets the consumption mode, pull or pop, of a group that lets the broker assign a topic's queues (spec
semantics 20.1).
"""

# Stored messages, found by id, by key, or by their position in a ConsumeQueue (spec remoting 9.9).

END_OF_TIME_MS = 2**63 - 1

view_message = Call(
    Code.VIEW_MESSAGE_BY_ID,
    ViewMessageRequest,
    body(decode_record),
    outcomes={ResponseCode.SYSTEM_ERROR: absent},
)
"""Returns the message at a log offset of this broker; None when there is none."""
_query_index = Call(
    Code.QUERY_MESSAGE,
    given(QueryMessageRequest),
    body(decode_records),
    outcomes={ResponseCode.QUERY_NOT_FOUND: lambda _: []},
)


async def query_messages(client: RemotingClient, address: str, header: QueryMessageRequest) -> list[Record]:
    """Returns messages that carry the key (or the unique key), from this broker's index, in the broker's
    order, newest first.

    The index stores only hashes, so this function drops messages with another topic or key.
    """
    return [
        record
        for record in await _query_index(client, address, header)
        if record.topic == header.topic
        and header.key in ((record.unique_key,) if header.is_unique_key else split_keys(record.keys))
    ]


resume_check = AdminCall(Code.RESUME_CHECK_HALF_MESSAGE, headers.ResumeCheckRequest, done)
"""Restarts the checks of a half message, or of one that the broker has given up (spec semantics 17)."""
query_timer_metrics = AdminCall(Code.GET_TIMER_METRICS, empty, value(stats.TimerMetrics))
"""Returns the number of waiting timer messages by topic; 5.x. TandemMQ brokers count none."""
query_entries = Call(
    Code.QUERY_CONSUME_QUEUE, given(headers.ConsumeQueueRequest), value(stats.ConsumeQueueView)
)
"""Returns entries of a ConsumeQueue as stored on the broker's disk."""

# The broker itself and its clients: statistics, settings, connections, resets.

CLEAN_TIMEOUT_S = 60.0
"""A broker answers after it has deleted, which takes long in a store with many queues."""
DIRECT_TIMEOUT_S = 15.0
"""A broker waits up to 10 s for a consumer's handler."""
END_OF_QUEUE_MS = -1
"""The time of a reset to the end of each queue."""


query_runtime_info = AdminCall(Code.GET_BROKER_RUNTIME_INFO, empty, body(decode_kv_table))
"""Returns the broker's statistics as name -> text (spec remoting 11.8)."""
query_broker_config = AdminCall(Code.GET_BROKER_CONFIG, empty, settings)
"""Returns the broker's settings."""
change_broker_config = AdminCall(Code.UPDATE_BROKER_CONFIG, one_setting, remark)
"""Changes one setting of a running broker; the broker decides which settings may change. Returns the remark
of a successful answer: the reason why the change was not saved in the broker's file.
"""
clean_queues = Call(Code.CLEAN_EXPIRED_CONSUMEQUEUE, empty, done, timeout_s=CLEAN_TIMEOUT_S)
"""Makes a broker delete at once what retention would delete, as do the next two."""
clean_topics = Call(Code.CLEAN_UNUSED_TOPIC, empty, done, timeout_s=CLEAN_TIMEOUT_S)
clean_log = Call(Code.DELETE_EXPIRED_COMMITLOG, empty, done, timeout_s=CLEAN_TIMEOUT_S)
CleanUp = Call[[], None]
"""The kind of these three."""
export_leases = Call(Code.POP_ROLLBACK, empty, done, timeout_s=CLEAN_TIMEOUT_S)
"""Makes a broker write the leases of popped messages into its revive topics. For TandemMQ brokers this does
nothing new: the leases are stored only there.
"""
reset_flushed_offset = AdminCall(Code.RESET_MASTER_FLUSH_OFFSET, ResetMasterFlushedOffsetRequest, remark)
"""Makes a slave forget the recorded flushed offset of its master; returns the slave's remark. TandemMQ
brokers do not need this.
"""
set_read_mode = AdminCall(Code.SET_COMMITLOG_READ_MODE, headers.ReadModeRequest, remark)
"""Sets the read mode of the broker's log, read-ahead (0) or random (1); returns the broker's remark; 5.x."""
query_ha_status = AdminCall(Code.GET_BROKER_HA_STATUS, empty, value(HaStatus))
"""Returns the state of replication as this broker, a master or a slave, sees it."""
query_stats = AdminCall(
    Code.VIEW_BROKER_STATS_DATA,
    headers.BrokerStatsRequest,
    value(stats.BrokerStatsAnswer),
    outcomes={ResponseCode.SYSTEM_ERROR: lambda _: stats.BrokerStatsAnswer()},
)
"""Returns one series of a broker's statistics; all zeros if the broker has no such series."""
query_cold_reads = AdminCall(Code.GET_COLD_DATA_FLOW_CTR_INFO, empty, value(stats.ColdControlInfo))
"""Returns the bytes read from old messages, and the thresholds."""
set_cold_threshold = AdminCall(Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, one_setting, done)
"""Sets the number of bytes of old messages that a group may read in 5 s."""
remove_cold_threshold = AdminCall(Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, str.encode, done)
"""Restores the general threshold for a group."""

query_consume_stats = AdminCall(
    Code.GET_CONSUME_STATS, headers.ConsumeStatsRequest, body(stats.decode_consume_stats)
)
"""Returns the progress of a group in the queues of this broker."""
query_all_consume_stats = AdminCall(
    Code.GET_BROKER_CONSUME_STATS, headers.BrokerConsumeStatsRequest, body(stats.decode_consume_stats_list)
)
"""Returns the progress of every group in the queues of this broker, either in ordered topics or in the
others.
"""
query_consumer_connections = AdminCall(
    Code.GET_CONSUMER_CONNECTION_LIST,
    headers.ConsumerConnectionsRequest,
    value(clients.ConsumerConnections),
    outcomes={ResponseCode.CONSUMER_NOT_ONLINE: optional(clients.ConsumerConnections)},
)
"""Returns the group's online members and subscriptions; None when no member is online here.

A TandemMQ broker also reports the requests of the group that it rejected; then there is an answer without
members. For the group "" it reports the newest rejected requests of all groups.
"""
query_running_info = AdminCall(
    Code.GET_CONSUMER_RUNNING_INFO, headers.RunningInfoRequest, body(stats.decode_running_info)
)
"""Returns a consumer's running info, requested through a broker to which the consumer is connected."""
consume_directly = Call(
    Code.CONSUME_MESSAGE_DIRECTLY,
    headers.ConsumeDirectlyRequest,
    value(clients.DirectlyConsumed),
    timeout_s=DIRECT_TIMEOUT_S,
)
"""Makes a consumer's handler process one message, through the broker that has it; returns the handler's
result.
"""
query_producer_connections = AdminCall(
    Code.GET_PRODUCER_CONNECTION_LIST,
    headers.ProducerConnectionsRequest,
    body(clients.decode_producer_connections),
    outcomes={ResponseCode.SYSTEM_ERROR: lambda _: ()},
)
"""Returns the group's online producers; an empty tuple when the broker knows none."""
query_all_producers = AdminCall(Code.GET_ALL_PRODUCER_INFO, empty, body(clients.decode_producer_table))
"""Returns the online producers of every group."""
query_groups_of_topic = AdminCall(
    Code.QUERY_TOPIC_CONSUME_BY_WHO, headers.TopicConsumersRequest, body(tables.decode_group_list)
)
"""Returns the groups that subscribe to the topic or have offsets in it."""


def _name_reset(
    group: str, topic: str, time_ms: int, *, queue_id: int | None = None, offset: int | None = None
) -> headers.ResetOffsetRequest:
    return headers.ResetOffsetRequest(
        topic=topic, group=group, timestamp_ms=time_ms, is_forced=True, queue_id=queue_id, offset=offset
    )


reset_offsets = AdminCall(Code.INVOKE_BROKER_TO_RESET_OFFSET, _name_reset, body(decode_reset_offsets))
"""Moves the group to the first message stored at or after `time_ms`; returns the new offsets per queue.

With `queue_id` only that queue is moved, to `offset` if given; brokers of 4.9 do not support this and move
all queues. Running consumers learn of the reset from their next pull.
"""

# Users and policies of a broker with RocketMQ 5.3's access control (spec semantics 21.3).


def _describe_user(user: tables.UserInfo) -> RequestContent:
    return RequestContent(headers.UserRequest(username=user.username or ""), encode_body(user))


def _describe_acl(acl: tables.AclInfo) -> RequestContent:
    return RequestContent(headers.AclRequest(subject=acl.subject or ""), encode_body(acl))


create_user = AdminCall(Code.AUTH_CREATE_USER, _describe_user, done)
"""Creates a user; rejected for a name in use."""
update_user = AdminCall(Code.AUTH_UPDATE_USER, _describe_user, done)
"""Updates the given fields of an existing user."""
delete_user = AdminCall(Code.AUTH_DELETE_USER, headers.UserRequest, done)
"""Deletes the user and its policies; an unknown user is not an error."""
query_user = AdminCall(
    Code.AUTH_GET_USER,
    headers.UserRequest,
    optional(tables.UserInfo),
    outcomes={ResponseCode.USER_NOT_EXIST: absent},
)
"""Returns the user, or None when there is none. The password is included for super users and the user
itself.
"""
query_users = AdminCall(Code.AUTH_LIST_USER, headers.ListUsersRequest, entries(tables.UserInfo))
create_acl = AdminCall(Code.AUTH_CREATE_ACL, _describe_acl, done)
"""Adds policies to a subject. An entry replaces the one for the same resource."""
update_acl = AdminCall(Code.AUTH_UPDATE_ACL, _describe_acl, done)
"""Adds policies to a subject that already has some, as `create_acl` does."""
delete_acl = AdminCall(Code.AUTH_DELETE_ACL, headers.DeleteAclRequest, done)
"""Deletes the subject's policy for one resource; without a resource, all its policies."""
query_acl = AdminCall(
    Code.AUTH_GET_ACL,
    headers.AclRequest,
    optional(tables.AclInfo),
    outcomes={ResponseCode.POLICY_NOT_EXIST: absent},
)
"""Returns all policies of a subject; None when it has none."""
query_acls = AdminCall(Code.AUTH_LIST_ACL, headers.ListAclsRequest, entries(tables.AclInfo))

# Accounts of a broker with the access control of RocketMQ 4.x (spec semantics 21.2).

query_accounts = AdminCall(Code.GET_BROKER_CLUSTER_ACL_CONFIG, empty, value(tables.AccountsInfo))
"""Returns the accounts and global addresses of the rule files, with the secret keys."""
change_account = AdminCall(Code.UPDATE_AND_CREATE_ACL_CONFIG, headers.UpdateAccountRequest, done)
"""Creates an account or changes the given fields of one; `is_admin` is always set."""
delete_account = AdminCall(Code.DELETE_ACL_CONFIG, headers.DeleteAccountRequest, done)
