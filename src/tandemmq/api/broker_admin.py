"""Requests of operators to a broker: topics and consumer groups, stored messages, statistics and settings,
progress and members of groups, users and policies. Source: spec remoting 8.6, 9.9; spec semantics 21.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tandemmq.api.calls import CALL_TIMEOUT_S, call, call_raw
from tandemmq.protocol import rejections
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.client import (
    ClientConnection,
    ConsumerConnections,
    DirectlyConsumed,
    ProducerInfo,
    RequestMode,
    decode_consumer_connections,
    decode_producer_connections,
    decode_producer_table,
    encode_request_mode,
)
from tandemmq.protocol.bodies.codec import decode_body, decode_kv_table, encode_body
from tandemmq.protocol.bodies.progress import decode_reset_offsets
from tandemmq.protocol.bodies.replica import HaStatus, decode_ha_status
from tandemmq.protocol.bodies.stats import (
    BrokerStatsAnswer,
    ColdControlInfo,
    ConsumeQueueView,
    ConsumeStats,
    RunningInfo,
    TopicStats,
    decode_cold_control_info,
    decode_consume_stats,
    decode_consume_stats_list,
    decode_running_info,
    decode_topic_stats,
)
from tandemmq.protocol.bodies.tables import (
    AclInfo,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
    UserInfo,
    as_changes,
    decode_group_config,
    decode_group_list,
    decode_group_table,
    decode_topic_config,
    decode_topic_config_table,
    decode_topic_list,
    encode_group_config,
    encode_group_config_list,
    encode_topic_config_list,
)
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Header
from tandemmq.protocol.properties_file import edit_properties
from tandemmq.protocol.record import Record, decode_record, decode_records
from tandemmq.protocol.requests.admin import (
    AclRequest,
    BrokerConsumeStatsRequest,
    BrokerStatsRequest,
    ConsumeDirectlyRequest,
    ConsumeQueueRequest,
    ConsumerConnectionsRequest,
    ConsumeStatsRequest,
    CreateTopicRequest,
    DeleteAclRequest,
    DeleteGroupRequest,
    DeleteTopicRequest,
    GroupConfigRequest,
    IfExists,
    ListAclsRequest,
    ListUsersRequest,
    ProducerConnectionsRequest,
    ReadModeRequest,
    ResetOffsetRequest,
    RunningInfoRequest,
    TopicConfigRequest,
    TopicConsumersRequest,
    TopicStatsRequest,
    UserRequest,
)
from tandemmq.protocol.requests.consume import QueryMessageRequest, ViewMessageRequest
from tandemmq.protocol.requests.replica import ResetMasterFlushedOffsetRequest
from tandemmq.protocol.topic_names import AUTO_CREATE_TOPIC
from tandemmq.remoting.client import RemotingClient
from tandemmq.units import Buffer

ADMIN_TIMEOUT_S = 5.0
"""mqadmin's default (spec remoting 8.8)."""

# Topics and consumer groups (spec remoting 8.6).


async def create_topic(
    client: RemotingClient,
    address: str,
    config: TopicConfig,
    *,
    if_exists: IfExists | None = None,
    timeout_s: float = ADMIN_TIMEOUT_S,
) -> None:
    """Creates or changes a topic on one broker; the broker registers it with its name servers at once.

    The broker obeys `if_exists` in one step, whatever other callers do at the same moment. A broker that does
    not know the field changes an existing topic as requested.
    """
    header = CreateTopicRequest(
        topic=config.name,
        default_topic=AUTO_CREATE_TOPIC,
        read_queue_count=config.read_queue_count,
        write_queue_count=config.write_queue_count,
        permission=config.permission,
        topic_filter_type=config.filter_type,
        topic_sys_flag=config.sys_flag,
        is_ordered=config.is_ordered,
        attributes=as_changes(config.attributes) or None,
        if_exists=if_exists,
    )
    await call(client, address, RequestCode.UPDATE_AND_CREATE_TOPIC, header, timeout_s=timeout_s)


async def create_topics(
    client: RemotingClient,
    address: str,
    configs: Sequence[TopicConfig],
    *,
    timeout_s: float = ADMIN_TIMEOUT_S,
) -> None:
    """Creates or changes all of these topics on one broker, or none if one is rejected; 5.x."""
    body = encode_topic_config_list(configs)
    await call(client, address, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body, timeout_s=timeout_s)


async def delete_topic(
    client: RemotingClient,
    address: str,
    topic: str,
    *,
    is_passed_on: bool = False,
    timeout_s: float = ADMIN_TIMEOUT_S,
) -> None:
    """Deletes a topic on one broker; an unknown topic is not an error. `is_passed_on` marks a request of a
    slave.
    """
    header = DeleteTopicRequest(topic=topic, is_passed_on=is_passed_on or None)
    await call(client, address, RequestCode.DELETE_TOPIC_IN_BROKER, header, timeout_s=timeout_s)


async def query_topic_config(
    client: RemotingClient, address: str, topic: str, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> TopicConfig | None:
    """Returns the broker's configuration of the topic; None when the broker does not have it."""
    header = TopicConfigRequest(topic=topic)
    answer = await call_raw(client, address, RequestCode.GET_TOPIC_CONFIG, header, timeout_s=timeout_s)
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return decode_topic_config(answer.body)


async def query_topic_configs(
    client: RemotingClient, address: str, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> TopicConfigTable:
    """Returns all topics of a broker."""
    answer = await call(client, address, RequestCode.GET_ALL_TOPIC_CONFIG, timeout_s=timeout_s)
    return decode_topic_config_table(answer.body)


async def query_system_topics(client: RemotingClient, address: str) -> frozenset[str]:
    """Returns the topics that a broker created for itself: fixed names, its own and its cluster's."""
    code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER
    answer = await call(client, address, code, timeout_s=ADMIN_TIMEOUT_S)
    return frozenset(decode_topic_list(answer.body))


async def query_topic_stats(
    client: RemotingClient, address: str, topic: str, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> TopicStats:
    """Returns the first and last offset of each queue of a topic on this broker. Raises TopicNotFound."""
    header = TopicStatsRequest(topic=topic)
    answer = await call(client, address, RequestCode.GET_TOPIC_STATS_INFO, header, timeout_s=timeout_s)
    return decode_topic_stats(answer.body)


async def create_group(
    client: RemotingClient,
    address: str,
    config: SubscriptionGroupConfig,
    *,
    timeout_s: float = ADMIN_TIMEOUT_S,
) -> None:
    """Creates or changes a consumer group on one broker."""
    body = encode_group_config(config)
    await call(
        client, address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body, timeout_s=timeout_s
    )


async def create_groups(
    client: RemotingClient,
    address: str,
    configs: Sequence[SubscriptionGroupConfig],
    *,
    timeout_s: float = ADMIN_TIMEOUT_S,
) -> None:
    """Creates or changes all of these groups on one broker, or none if one is rejected; 5.x."""
    code, body = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, encode_group_config_list(configs)
    await call(client, address, code, body=body, timeout_s=timeout_s)


async def delete_group(
    client: RemotingClient,
    address: str,
    group: str,
    *,
    removes_offsets: bool = False,
    timeout_s: float = ADMIN_TIMEOUT_S,
) -> None:
    """Deletes a consumer group on one broker, and its offsets if `removes_offsets` is set."""
    header = DeleteGroupRequest(group=group, cleans_offsets=removes_offsets, removes_offsets=removes_offsets)
    await call(client, address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header, timeout_s=timeout_s)


async def query_group_config(
    client: RemotingClient, address: str, group: str, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> SubscriptionGroupConfig | None:
    """Returns the broker's configuration of the group; None when the broker does not have it."""
    header = GroupConfigRequest(group=group)
    answer = await call_raw(
        client, address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header, timeout_s=timeout_s
    )
    if answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return decode_group_config(answer.body)


async def query_group_configs(
    client: RemotingClient, address: str, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> SubscriptionGroupTable:
    """Returns all consumer groups of a broker."""
    answer = await call(client, address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, timeout_s=timeout_s)
    return decode_group_table(answer.body)


async def set_request_mode(
    client: RemotingClient, address: str, mode: RequestMode, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> None:
    """Sets the consumption mode, pull or pop, of a group that lets the broker assign a topic's queues (spec
    semantics 20.1).
    """
    body = encode_request_mode(mode)
    await call(client, address, RequestCode.SET_MESSAGE_REQUEST_MODE, body=body, timeout_s=timeout_s)


# Stored messages, found by id, by key, or by their position in a ConsumeQueue (spec remoting 9.9).

END_OF_TIME_MS = 2**63 - 1


async def view_message(
    client: RemotingClient,
    address: str,
    log_offset: int,
    *,
    topic: str | None = None,
    timeout_s: float = CALL_TIMEOUT_S,
) -> Record | None:
    """Returns the message at a log offset of this broker; None when there is none."""
    header = ViewMessageRequest(log_offset=log_offset, topic=topic)
    answer = await call_raw(client, address, RequestCode.VIEW_MESSAGE_BY_ID, header, timeout_s=timeout_s)
    if answer.code == ResponseCode.SYSTEM_ERROR:
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return decode_record(answer.body)


async def query_messages(
    client: RemotingClient,
    address: str,
    topic: str,
    key: str,
    *,
    count_max: int = 32,
    begin_at_ms: int = 0,
    end_at_ms: int = END_OF_TIME_MS,
    is_unique_key: bool = False,
    timeout_s: float = CALL_TIMEOUT_S,
) -> list[Record]:
    """Returns messages that carry the key (or the unique key), from this broker's index, in the broker's
    order, newest first.

    The index stores only hashes, so this function drops messages with another topic or key.
    """
    header = QueryMessageRequest(
        topic=topic,
        key=key,
        count_max=count_max,
        begin_at_ms=begin_at_ms,
        end_at_ms=end_at_ms,
        is_unique_key=is_unique_key,
    )
    answer = await call_raw(client, address, RequestCode.QUERY_MESSAGE, header, timeout_s=timeout_s)
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return []
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return [
        record
        for record in decode_records(answer.body)
        if record.topic == topic
        and (record.unique_key == key if is_unique_key else key in record.keys.split())
    ]


async def query_entries(
    client: RemotingClient, address: str, header: ConsumeQueueRequest
) -> ConsumeQueueView:
    """Returns entries of a ConsumeQueue as stored on the broker's disk. Raises the errors of `call`."""
    answer = await call(client, address, RequestCode.QUERY_CONSUME_QUEUE, header)
    return decode_body(answer.body, ConsumeQueueView)


# The broker itself and its clients: statistics, settings, connections, resets.

CLEAN_TIMEOUT_S = 60.0
"""A broker answers after it has deleted, which takes long in a store with many queues."""
DIRECT_TIMEOUT_S = 15.0
"""A broker waits up to 10 s for a consumer's handler."""
END_OF_QUEUE_MS = -1
"""The time of a reset to the end of each queue."""


async def query_runtime_info(
    client: RemotingClient, address: str, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> dict[str, str]:
    """Returns the broker's statistics as name -> text (spec remoting 11.8)."""
    answer = await call(client, address, RequestCode.GET_BROKER_RUNTIME_INFO, timeout_s=timeout_s)
    return decode_kv_table(answer.body)


async def query_broker_config(
    client: RemotingClient, address: str, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> str:
    """Returns the broker's settings as the text of a Java properties file."""
    answer = await call(client, address, RequestCode.GET_BROKER_CONFIG, timeout_s=timeout_s)
    return bytes(answer.body).decode("utf-8", "replace")


async def change_broker_config(
    client: RemotingClient, address: str, key: str, value: str, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> str:
    """Changes one setting of a running broker; the broker decides which settings may change. Returns the
    remark of a successful answer: the reason why the change was not saved in the broker's file.
    """
    body = edit_properties(b"", {key: value})
    answer = await call(client, address, RequestCode.UPDATE_BROKER_CONFIG, body=body, timeout_s=timeout_s)
    return answer.remark or ""


async def clean(
    client: RemotingClient, address: str, what: RequestCode, *, timeout_s: float = CLEAN_TIMEOUT_S
) -> None:
    """Makes a broker delete at once what retention would delete. `what` is CLEAN_EXPIRED_CONSUMEQUEUE,
    CLEAN_UNUSED_TOPIC or DELETE_EXPIRED_COMMITLOG.
    """
    await call(client, address, what, timeout_s=timeout_s)


async def reset_flushed_offset(
    client: RemotingClient, address: str, offset: int, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> str:
    """Makes a slave forget the recorded flushed offset of its master; returns the slave's remark. TandemMQ
    brokers do not need this.
    """
    header = ResetMasterFlushedOffsetRequest(master_flushed_offset=offset)
    answer = await call(client, address, RequestCode.RESET_MASTER_FLUSH_OFFSET, header, timeout_s=timeout_s)
    return answer.remark or ""


async def set_read_mode(
    client: RemotingClient, address: str, mode: int, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> str:
    """Sets the read mode of the broker's log, read-ahead (0) or random (1); returns the broker's remark;
    5.x.
    """
    header = ReadModeRequest(mode=mode)
    answer = await call(client, address, RequestCode.SET_COMMITLOG_READ_MODE, header, timeout_s=timeout_s)
    return answer.remark or ""


async def export_leases(client: RemotingClient, address: str, *, timeout_s: float = CLEAN_TIMEOUT_S) -> None:
    """Makes a broker write the leases of popped messages into its revive topics. For TandemMQ brokers this
    does nothing new: the leases are stored only there.
    """
    await call(client, address, RequestCode.POP_ROLLBACK, timeout_s=timeout_s)


async def consume_directly(
    client: RemotingClient,
    address: str,
    group: str,
    client_id: str,
    topic: str,
    message_id: str,
    *,
    timeout_s: float = DIRECT_TIMEOUT_S,
) -> DirectlyConsumed:
    """Makes a consumer's handler process one message, through the broker that has it; returns the handler's
    result.
    """
    header = ConsumeDirectlyRequest(
        consumer_group=group, client_id=client_id, message_id=message_id, topic=topic
    )
    answer = await call(client, address, RequestCode.CONSUME_MESSAGE_DIRECTLY, header, timeout_s=timeout_s)
    return decode_body(answer.body, DirectlyConsumed)


async def query_ha_status(
    client: RemotingClient, address: str, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> HaStatus:
    """Returns the state of replication as this broker sees it."""
    answer = await call(client, address, RequestCode.GET_BROKER_HA_STATUS, timeout_s=timeout_s)
    return decode_ha_status(answer.body)


async def query_consume_stats(
    client: RemotingClient,
    address: str,
    group: str,
    *,
    topic: str | None = None,
    timeout_s: float = ADMIN_TIMEOUT_S,
) -> ConsumeStats:
    """Returns the progress of a group in the queues of this broker."""
    header = ConsumeStatsRequest(consumer_group=group, topic=topic)
    answer = await call(client, address, RequestCode.GET_CONSUME_STATS, header, timeout_s=timeout_s)
    return decode_consume_stats(answer.body)


async def query_all_consume_stats(
    client: RemotingClient, address: str, *, is_ordered: bool, timeout_s: float = ADMIN_TIMEOUT_S
) -> dict[str, ConsumeStats]:
    """Returns the progress of every group in the queues of this broker, either in ordered topics or in the
    others.
    """
    header = BrokerConsumeStatsRequest(is_ordered=is_ordered)
    answer = await call(client, address, RequestCode.GET_BROKER_CONSUME_STATS, header, timeout_s=timeout_s)
    return decode_consume_stats_list(answer.body)


async def query_consumer_connections(
    client: RemotingClient, address: str, group: str, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> ConsumerConnections | None:
    """Returns the group's online members and subscriptions; None when no member is online here.

    A TandemMQ broker also reports the requests of the group that it rejected; then there is an answer without
    members.
    """
    header = ConsumerConnectionsRequest(consumer_group=group)
    answer = await call_raw(
        client, address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header, timeout_s=timeout_s
    )
    if answer.code == ResponseCode.CONSUMER_NOT_ONLINE:
        return decode_consumer_connections(answer.body) if answer.body else None
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return decode_consumer_connections(answer.body)


async def query_running_info(
    client: RemotingClient,
    address: str,
    group: str,
    client_id: str,
    *,
    has_stack: bool = False,
    timeout_s: float = ADMIN_TIMEOUT_S,
) -> RunningInfo:
    """Returns a consumer's running info, requested through a broker to which the consumer is connected.
    `has_stack` adds the thread stacks of a Java client.
    """
    header = RunningInfoRequest(consumer_group=group, client_id=client_id, has_stack=has_stack)
    answer = await call(client, address, RequestCode.GET_CONSUMER_RUNNING_INFO, header, timeout_s=timeout_s)
    return decode_running_info(answer.body)


async def query_stats(
    client: RemotingClient, address: str, name: str, key: str, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> BrokerStatsAnswer:
    """Returns one series of a broker's statistics; all zeros if the broker has no such series."""
    header = BrokerStatsRequest(stats_name=name, stats_key=key)
    answer = await call_raw(client, address, RequestCode.VIEW_BROKER_STATS_DATA, header, timeout_s=timeout_s)
    if answer.code == ResponseCode.SYSTEM_ERROR:
        return BrokerStatsAnswer()
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return decode_body(answer.body, BrokerStatsAnswer)


async def query_producer_connections(
    client: RemotingClient, address: str, group: str, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> tuple[ClientConnection, ...]:
    """Returns the group's online producers; an empty tuple when the broker knows none."""
    header = ProducerConnectionsRequest(producer_group=group)
    answer = await call_raw(
        client, address, RequestCode.GET_PRODUCER_CONNECTION_LIST, header, timeout_s=timeout_s
    )
    if answer.code == ResponseCode.SYSTEM_ERROR:
        return ()
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return decode_producer_connections(answer.body)


async def query_all_producers(
    client: RemotingClient, address: str, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> dict[str, tuple[ProducerInfo, ...]]:
    """Returns the online producers of every group."""
    answer = await call(client, address, RequestCode.GET_ALL_PRODUCER_INFO, timeout_s=timeout_s)
    return decode_producer_table(answer.body)


async def query_cold_reads(
    client: RemotingClient, address: str, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> ColdControlInfo:
    """Returns the bytes read from old messages, and the thresholds."""
    answer = await call(client, address, RequestCode.GET_COLD_DATA_FLOW_CTR_INFO, timeout_s=timeout_s)
    return decode_cold_control_info(answer.body)


async def set_cold_threshold(
    client: RemotingClient,
    address: str,
    group: str,
    threshold: str | None,
    *,
    timeout_s: float = ADMIN_TIMEOUT_S,
) -> None:
    """Sets the number of bytes of old messages that a group may read in 5 s; None restores the general
    threshold.
    """
    if threshold is None:
        code, body = RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, group.encode()
    else:
        code, body = RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, edit_properties(b"", {group: threshold})
    await call(client, address, code, body=body, timeout_s=timeout_s)


async def query_groups_of_topic(
    client: RemotingClient, address: str, topic: str, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> tuple[str, ...]:
    """Returns the groups that subscribe to the topic or have offsets in it."""
    header = TopicConsumersRequest(topic=topic)
    answer = await call(client, address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header, timeout_s=timeout_s)
    return decode_group_list(answer.body)


async def reset_offsets(
    client: RemotingClient,
    address: str,
    group: str,
    topic: str,
    time_ms: int,
    *,
    queue_id: int | None = None,
    offset: int | None = None,
    timeout_s: float = ADMIN_TIMEOUT_S,
) -> dict[MessageQueue, int]:
    """Moves the group to the first message stored at or after `time_ms`; returns the new offsets per queue.

    With `queue_id` only that queue is moved, to `offset` if given; brokers of 4.9 do not support this and
    move all queues. Running consumers learn of the reset from their next pull.
    """
    header = ResetOffsetRequest(
        topic=topic, group=group, timestamp_ms=time_ms, is_forced=True, queue_id=queue_id, offset=offset
    )
    answer = await call(
        client, address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header, timeout_s=timeout_s
    )
    return decode_reset_offsets(answer.body)


# Users and policies of a broker with RocketMQ 5.3's access control (spec semantics 21.3).


async def put_user(client: RemotingClient, address: str, user: UserInfo, *, is_new: bool) -> None:
    """Creates a user if `is_new`, which is rejected for a name in use; otherwise updates the given fields of
    an existing user.
    """
    code = RequestCode.AUTH_CREATE_USER if is_new else RequestCode.AUTH_UPDATE_USER
    await _call_auth(client, address, code, UserRequest(username=user.username or ""), encode_body(user))


async def delete_user(client: RemotingClient, address: str, name: str) -> None:
    """Deletes the user and its policies; an unknown user is not an error."""
    await _call_auth(client, address, RequestCode.AUTH_DELETE_USER, UserRequest(username=name))


async def query_user(client: RemotingClient, address: str, name: str) -> UserInfo | None:
    """Returns the user, or None when there is none. The password is included for super users and the user
    itself.
    """
    body = await _call_auth(client, address, RequestCode.AUTH_GET_USER, UserRequest(username=name))
    return decode_body(body, UserInfo) if body else None


async def query_users(client: RemotingClient, address: str, name_part: str) -> list[UserInfo]:
    """Returns the users whose names contain the part."""
    header = ListUsersRequest(name_part=name_part or None)
    body = await _call_auth(client, address, RequestCode.AUTH_LIST_USER, header)
    return decode_body(body, list[UserInfo]) if body else []


async def put_acl(client: RemotingClient, address: str, acl: AclInfo, *, is_new: bool) -> None:
    """Adds policies to a subject; unless `is_new`, the subject already has policies. An entry replaces the
    one for the same resource.
    """
    code = RequestCode.AUTH_CREATE_ACL if is_new else RequestCode.AUTH_UPDATE_ACL
    await _call_auth(client, address, code, AclRequest(subject=acl.subject or ""), encode_body(acl))


async def delete_acl(client: RemotingClient, address: str, subject: str, resource: str) -> None:
    """Deletes the subject's policy for one resource; with an empty resource, all its policies."""
    header = DeleteAclRequest(subject=subject, resource=resource or None)
    await _call_auth(client, address, RequestCode.AUTH_DELETE_ACL, header)


async def query_acl(client: RemotingClient, address: str, subject: str) -> AclInfo | None:
    """Returns all policies of a subject; None when it has none."""
    body = await _call_auth(client, address, RequestCode.AUTH_GET_ACL, AclRequest(subject=subject))
    return decode_body(body, AclInfo) if body else None


async def query_acls(
    client: RemotingClient, address: str, subject_part: str, resource_part: str
) -> list[AclInfo]:
    """Returns the policies whose subjects and resources contain these parts."""
    header = ListAclsRequest(subject_part=subject_part or None, resource_part=resource_part or None)
    body = await _call_auth(client, address, RequestCode.AUTH_LIST_ACL, header)
    return decode_body(body, list[AclInfo]) if body else []


_NOTHING: Final = {
    RequestCode.AUTH_GET_USER: ResponseCode.USER_NOT_EXIST,
    RequestCode.AUTH_GET_ACL: ResponseCode.POLICY_NOT_EXIST,
}
"""The response codes, by request, that mean an empty result and not an error."""


async def _call_auth(
    client: RemotingClient, address: str, code: RequestCode, header: Header, body: bytes = b""
) -> Buffer:
    """Returns the body of the answer; empty when the user or policy does not exist."""
    answer = await call_raw(client, address, code, header, body=body, timeout_s=ADMIN_TIMEOUT_S)
    if answer.code == _NOTHING.get(code):
        return b""
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return answer.body
