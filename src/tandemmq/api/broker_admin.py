"""What operators ask of a broker: figures, progress of groups, connections, resets (spec remoting 8.6)."""

from __future__ import annotations

from tandemmq.api.broker_topic import ADMIN_TIMEOUT_S
from tandemmq.api.calls import ask, call
from tandemmq.protocol import rejections
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.client import (
    ClientConnection,
    ConsumerConnections,
    DirectlyConsumed,
    ProducerInfo,
    decode_consumer_connections,
    decode_producer_connections,
    decode_producer_table,
)
from tandemmq.protocol.bodies.codec import decode_body, decode_kv_table
from tandemmq.protocol.bodies.progress import decode_reset_offsets
from tandemmq.protocol.bodies.replica import HaStatus, decode_ha_status
from tandemmq.protocol.bodies.stats import (
    BrokerStats,
    ColdControlInfo,
    ConsumeStats,
    RunningInfo,
    decode_cold_control_info,
    decode_consume_stats,
    decode_consume_stats_list,
    decode_running_info,
)
from tandemmq.protocol.bodies.tables import decode_group_list
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.properties_file import edit_properties
from tandemmq.protocol.requests.admin import (
    BrokerConsumeStatsRequest,
    BrokerStatsRequest,
    ConsumeDirectlyRequest,
    ConsumerConnectionsRequest,
    ConsumeStatsRequest,
    ProducerConnectionsRequest,
    ReadModeRequest,
    ResetOffsetRequest,
    RunningInfoRequest,
    TopicConsumersRequest,
)
from tandemmq.protocol.requests.replica import ResetMasterFlushedOffsetRequest
from tandemmq.remoting.client import RemotingClient

CLEAN_TIMEOUT_S = 60.0
"""A broker answers when it has deleted, as a store with many queues takes long to."""
DIRECT_TIMEOUT_S = 15.0
"""A broker waits for a consumer's handler for 10 s."""
END_OF_QUEUE_MS = -1
"""As the time of a reset: the end of each queue."""


async def query_runtime_info(
    client: RemotingClient, address: str, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> dict[str, str]:
    """The broker's figures as name -> text (spec remoting 11.8)."""
    answer = await call(client, address, RequestCode.GET_BROKER_RUNTIME_INFO, timeout_s=timeout_s)
    return decode_kv_table(answer.body)


async def query_broker_config(
    client: RemotingClient, address: str, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> str:
    """The broker's settings as the text of a Java properties file."""
    answer = await call(client, address, RequestCode.GET_BROKER_CONFIG, timeout_s=timeout_s)
    return bytes(answer.body).decode("utf-8", "replace")


async def change_broker_config(
    client: RemotingClient, address: str, key: str, value: str, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> None:
    """Change one setting of a running broker; which ones may be changed is the broker's matter."""
    body = edit_properties(b"", {key: value})
    await call(client, address, RequestCode.UPDATE_BROKER_CONFIG, body=body, timeout_s=timeout_s)


async def clean(
    client: RemotingClient, address: str, what: RequestCode, *, timeout_s: float = CLEAN_TIMEOUT_S
) -> None:
    """Let a broker delete at once what retention would; `what` is CLEAN_EXPIRED_CONSUMEQUEUE,
    CLEAN_UNUSED_TOPIC or DELETE_EXPIRED_COMMITLOG.
    """
    await call(client, address, what, timeout_s=timeout_s)


async def reset_flushed_offset(
    client: RemotingClient, address: str, offset: int, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> str:
    """What a slave says when it forgets how far its master had flushed; brokers of ours do not need it."""
    header = ResetMasterFlushedOffsetRequest(master_flushed_offset=offset)
    answer = await call(client, address, RequestCode.RESET_MASTER_FLUSH_OFFSET, header, timeout_s=timeout_s)
    return answer.remark or ""


async def set_read_mode(
    client: RemotingClient, address: str, mode: int, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> str:
    """What the broker says when its log is read ahead (0) or at random (1); 5.x."""
    header = ReadModeRequest(mode=mode)
    answer = await call(client, address, RequestCode.SET_COMMITLOG_READ_MODE, header, timeout_s=timeout_s)
    return answer.remark or ""


async def export_leases(client: RemotingClient, address: str, *, timeout_s: float = CLEAN_TIMEOUT_S) -> None:
    """Let a broker write the leases of popped messages into its revive topics; brokers of ours have them
    nowhere else.
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
    """What a consumer's handler made of one message; asked at the broker that has it."""
    header = ConsumeDirectlyRequest(
        consumer_group=group, client_id=client_id, message_id=message_id, topic=topic
    )
    answer = await call(client, address, RequestCode.CONSUME_MESSAGE_DIRECTLY, header, timeout_s=timeout_s)
    return decode_body(answer.body, DirectlyConsumed)


async def query_ha_status(
    client: RemotingClient, address: str, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> HaStatus:
    """How far replication is, as this broker sees it."""
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
    """How far a group is in the queues of this broker."""
    header = ConsumeStatsRequest(consumer_group=group, topic=topic)
    answer = await call(client, address, RequestCode.GET_CONSUME_STATS, header, timeout_s=timeout_s)
    return decode_consume_stats(answer.body)


async def query_all_consume_stats(
    client: RemotingClient, address: str, *, is_ordered: bool, timeout_s: float = ADMIN_TIMEOUT_S
) -> dict[str, ConsumeStats]:
    """How far every group is in the queues of this broker; of ordered topics, or of the others."""
    header = BrokerConsumeStatsRequest(is_ordered=is_ordered)
    answer = await call(client, address, RequestCode.GET_BROKER_CONSUME_STATS, header, timeout_s=timeout_s)
    return decode_consume_stats_list(answer.body)


async def query_consumer_connections(
    client: RemotingClient, address: str, group: str, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> ConsumerConnections | None:
    """The group's online members and subscriptions; None when nobody is online here.

    A broker of ours also tells what it refused the group; then there is an answer without members.
    """
    header = ConsumerConnectionsRequest(consumer_group=group)
    answer = await ask(client, address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header, timeout_s=timeout_s)
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
    """What a consumer tells of itself, asked through a broker that it is connected to; `has_stack`: with the
    stacks of its threads, where it is a Java client.
    """
    header = RunningInfoRequest(consumer_group=group, client_id=client_id, has_stack=has_stack)
    answer = await call(client, address, RequestCode.GET_CONSUMER_RUNNING_INFO, header, timeout_s=timeout_s)
    return decode_running_info(answer.body)


async def query_stats(
    client: RemotingClient, address: str, name: str, key: str, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> BrokerStats:
    """One series of a broker's statistics; nothing but zeros while nothing happened."""
    header = BrokerStatsRequest(stats_name=name, stats_key=key)
    answer = await ask(client, address, RequestCode.VIEW_BROKER_STATS_DATA, header, timeout_s=timeout_s)
    if answer.code == ResponseCode.SYSTEM_ERROR:
        return BrokerStats()
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return decode_body(answer.body, BrokerStats)


async def query_producer_connections(
    client: RemotingClient, address: str, group: str, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> tuple[ClientConnection, ...]:
    """The group's online producers; empty when the broker knows none."""
    header = ProducerConnectionsRequest(producer_group=group)
    answer = await ask(client, address, RequestCode.GET_PRODUCER_CONNECTION_LIST, header, timeout_s=timeout_s)
    if answer.code == ResponseCode.SYSTEM_ERROR:
        return ()
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return decode_producer_connections(answer.body)


async def query_all_producers(
    client: RemotingClient, address: str, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> dict[str, tuple[ProducerInfo, ...]]:
    """The online producers of every group."""
    answer = await call(client, address, RequestCode.GET_ALL_PRODUCER_INFO, timeout_s=timeout_s)
    return decode_producer_table(answer.body)


async def query_cold_reads(
    client: RemotingClient, address: str, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> ColdControlInfo:
    """What was read of old messages, and the thresholds."""
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
    """How many bytes of old messages a group may read in 5 s; None: as many as all others."""
    if threshold is None:
        code, body = RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, group.encode()
    else:
        code, body = RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, edit_properties(b"", {group: threshold})
    await call(client, address, code, body=body, timeout_s=timeout_s)


async def query_groups_of_topic(
    client: RemotingClient, address: str, topic: str, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> tuple[str, ...]:
    """Groups that subscribe to the topic or have offsets in it."""
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
    """Let the group go on from the first message stored at or after `time_ms`; the new offsets per queue.

    With a queue only in that one, and there from the offset if it is named; brokers of 4.9 know no queue and
    move all. Running consumers learn it from their next pull.
    """
    header = ResetOffsetRequest(
        topic=topic, group=group, timestamp_ms=time_ms, is_forced=True, queue_id=queue_id, offset=offset
    )
    answer = await call(
        client, address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header, timeout_s=timeout_s
    )
    return decode_reset_offsets(answer.body)
