"""Topics and consumer groups of a broker (spec remoting 8.6)."""

from __future__ import annotations

from collections.abc import Sequence

from tandemmq.api.calls import ask, call
from tandemmq.protocol import rejections
from tandemmq.protocol.bodies.client import RequestMode, encode_request_mode
from tandemmq.protocol.bodies.stats import TopicStats, decode_topic_stats
from tandemmq.protocol.bodies.tables import (
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
    as_changes,
    decode_group_config,
    decode_group_table,
    decode_topic_config,
    decode_topic_config_table,
    decode_topic_list,
    encode_group_config,
    encode_group_config_list,
    encode_topic_config_list,
)
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.requests.admin import (
    CreateTopicRequest,
    DeleteGroupRequest,
    DeleteTopicRequest,
    GroupConfigRequest,
    TopicConfigRequest,
    TopicStatsRequest,
)
from tandemmq.protocol.topic_names import AUTO_CREATE_TOPIC
from tandemmq.remoting.client import RemotingClient

ADMIN_TIMEOUT_S = 5.0
"""mqadmin's default (spec remoting 8.8)."""


async def create_topic(
    client: RemotingClient, address: str, config: TopicConfig, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> None:
    """Create a topic on one broker, or change it; the broker registers it with its name servers at once."""
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
    )
    await call(client, address, RequestCode.UPDATE_AND_CREATE_TOPIC, header, timeout_s=timeout_s)


async def create_topics(
    client: RemotingClient,
    address: str,
    configs: Sequence[TopicConfig],
    *,
    timeout_s: float = ADMIN_TIMEOUT_S,
) -> None:
    """Create or change all of these topics on one broker, or none when one is refused; 5.x."""
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
    """Delete a topic on one broker; an unknown one is not an error. `is_passed_on`: a slave asks for it."""
    header = DeleteTopicRequest(topic=topic, is_passed_on=is_passed_on or None)
    await call(client, address, RequestCode.DELETE_TOPIC_IN_BROKER, header, timeout_s=timeout_s)


async def query_topic_config(
    client: RemotingClient, address: str, topic: str, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> TopicConfig | None:
    """The topic as this broker has it; None when it has none."""
    header = TopicConfigRequest(topic=topic)
    answer = await ask(client, address, RequestCode.GET_TOPIC_CONFIG, header, timeout_s=timeout_s)
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return decode_topic_config(answer.body)


async def query_topic_configs(
    client: RemotingClient, address: str, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> TopicConfigTable:
    """All topics of a broker."""
    answer = await call(client, address, RequestCode.GET_ALL_TOPIC_CONFIG, timeout_s=timeout_s)
    return decode_topic_config_table(answer.body)


async def query_system_topics(client: RemotingClient, address: str) -> frozenset[str]:
    """What a broker made for itself: fixed names, its own, its cluster's."""
    code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER
    answer = await call(client, address, code, timeout_s=ADMIN_TIMEOUT_S)
    return frozenset(decode_topic_list(answer.body))


async def query_topic_stats(
    client: RemotingClient, address: str, topic: str, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> TopicStats:
    """The ends of each queue of a topic on this broker. Raises TopicNotFound."""
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
    """Create a consumer group on one broker, or change it."""
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
    """Create or change all of these groups on one broker, or none when one is refused; 5.x."""
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
    """Delete a consumer group on one broker, and its offsets when asked."""
    header = DeleteGroupRequest(group=group, cleans_offsets=removes_offsets, removes_offsets=removes_offsets)
    await call(client, address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header, timeout_s=timeout_s)


async def query_group_config(
    client: RemotingClient, address: str, group: str, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> SubscriptionGroupConfig | None:
    """The group as this broker has it; None when it has none."""
    header = GroupConfigRequest(group=group)
    answer = await ask(client, address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header, timeout_s=timeout_s)
    if answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return decode_group_config(answer.body)


async def query_group_configs(
    client: RemotingClient, address: str, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> SubscriptionGroupTable:
    """All consumer groups of a broker."""
    answer = await call(client, address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, timeout_s=timeout_s)
    return decode_group_table(answer.body)


async def set_request_mode(
    client: RemotingClient, address: str, mode: RequestMode, *, timeout_s: float = ADMIN_TIMEOUT_S
) -> None:
    """Whether a group that lets the broker assign its queues pulls or pops a topic (spec semantics 20.1)."""
    body = encode_request_mode(mode)
    await call(client, address, RequestCode.SET_MESSAGE_REQUEST_MODE, body=body, timeout_s=timeout_s)
