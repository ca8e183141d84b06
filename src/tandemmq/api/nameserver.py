"""Calls to a name server: registration of brokers, routes, lists of clusters and topics, and its settings.

Source:  spec nameserver 3, 4, 6; spec remoting 8.1, 8.2, 8.7.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tandemmq.api.calls import CALL_TIMEOUT_S, call_raw
from tandemmq.errors import NotNameServer
from tandemmq.protocol import rejections
from tandemmq.protocol.bodies import DataVersion
from tandemmq.protocol.bodies.codec import decode_kv_table, encode_data_version
from tandemmq.protocol.bodies.register import RegisterBrokerBody, body_crc32, encode_register_broker_body
from tandemmq.protocol.bodies.route import (
    ClusterInfo,
    TopicRoute,
    decode_cluster_info,
    decode_member_group,
    decode_topic_route,
)
from tandemmq.protocol.bodies.tables import decode_topic_list
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command, Header
from tandemmq.protocol.properties_file import edit_properties, parse_properties
from tandemmq.protocol.requests.route import (
    AddWritePermissionRequest,
    AddWritePermissionResponse,
    DeleteKvRequest,
    DeleteTopicInNameServerRequest,
    GetKvRequest,
    GetKvResponse,
    MemberGroupRequest,
    PutKvRequest,
    QueryDataVersionRequest,
    QueryDataVersionResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    RouteRequest,
    TopicsByClusterRequest,
    UnregisterBrokerRequest,
    WipeWritePermissionRequest,
    WipeWritePermissionResponse,
)
from tandemmq.remoting.client import RemotingClient

REGISTER_TIMEOUT_S = 24.0
"""RocketMQ's time limit of one registration (spec nameserver 3.5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIdentity:
    """The identity of a registering broker: `broker_id` 0 is the master; the addresses are `host:port` as
    other processes must dial them.
    """

    cluster_name: str
    broker_name: str
    broker_id: int
    broker_address: str
    ha_address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """The answer of a name server to a registration.

    A slave learns its master's two addresses (None: no master is registered). `order_topics` is the key-value
    namespace ORDER_TOPIC_CONFIG, topic -> `broker:count;...`.
    """

    master_address: str | None = None
    master_ha_address: str | None = None
    order_topics: dict[str, str] = field(default_factory=dict)


_OTHER_SERVERS: Final = {
    "broker": RequestCode.GET_BROKER_RUNTIME_INFO,
    "controller": RequestCode.CONTROLLER_GET_METADATA_INFO,
}
"""The kinds of servers that a user may take for a name server, with a request that only this kind knows."""


async def register_broker(
    client: RemotingClient,
    address: str,
    broker: BrokerIdentity,
    body: RegisterBrokerBody,
    *,
    timeout_s: float = REGISTER_TIMEOUT_S,
) -> Registered:
    """Registers or refreshes a broker with its topics (all, or only the changed ones)."""
    raw = encode_register_broker_body(body)
    header = RegisterBrokerRequest(
        cluster_name=broker.cluster_name,
        broker_name=broker.broker_name,
        broker_id=broker.broker_id,
        broker_address=broker.broker_address,
        ha_address=broker.ha_address,
        body_crc=body_crc32(raw),
    )
    answer = await _call(client, address, RequestCode.REGISTER_BROKER, header, body=raw, timeout_s=timeout_s)
    response = answer.decode(RegisterBrokerResponse)
    return Registered(
        master_address=response.master_address or None,
        master_ha_address=response.ha_address or None,
        order_topics=decode_kv_table(answer.body) if answer.body else {},
    )


async def unregister_broker(
    client: RemotingClient, address: str, broker: BrokerIdentity, *, timeout_s: float = CALL_TIMEOUT_S
) -> None:
    """Removes a stopping broker from all routes."""
    header = UnregisterBrokerRequest(
        cluster_name=broker.cluster_name,
        broker_name=broker.broker_name,
        broker_id=broker.broker_id,
        broker_address=broker.broker_address,
    )
    await _call(client, address, RequestCode.UNREGISTER_BROKER, header, timeout_s=timeout_s)


async def query_route(
    client: RemotingClient, address: str, topic: str, *, timeout_s: float = CALL_TIMEOUT_S
) -> TopicRoute | None:
    """Returns the queues and broker addresses of a topic; None when this name server does not know it (spec
    remoting 9.1).
    """
    header = RouteRequest(topic=topic, accepts_standard_json=True)
    answer = await _call_raw(client, address, RequestCode.GET_ROUTEINFO_BY_TOPIC, header, timeout_s=timeout_s)
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return decode_topic_route(answer.body)


async def query_cluster_info(
    client: RemotingClient, address: str, *, timeout_s: float = CALL_TIMEOUT_S
) -> ClusterInfo:
    """Returns all registered brokers, by cluster and name."""
    answer = await _call(client, address, RequestCode.GET_BROKER_CLUSTER_INFO, timeout_s=timeout_s)
    return decode_cluster_info(answer.body)


async def query_members(
    client: RemotingClient,
    address: str,
    cluster: str,
    broker_name: str,
    *,
    timeout_s: float = CALL_TIMEOUT_S,
) -> dict[int, str]:
    """Returns the registered brokers of one name by id. A name server before 5.0 has no such request; its
    cluster info is used.
    """
    header = MemberGroupRequest(cluster_name=cluster, broker_name=broker_name)
    answer = await call_raw(client, address, RequestCode.GET_BROKER_MEMBER_GROUP, header, timeout_s=timeout_s)
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        data = (await query_cluster_info(client, address, timeout_s=timeout_s)).brokers.get(broker_name)
        return {} if data is None else data.addresses
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return decode_member_group(answer.body).addresses


async def query_topics(
    client: RemotingClient, address: str, *, timeout_s: float = CALL_TIMEOUT_S
) -> list[str]:
    """Returns the names of all registered topics, including system topics, sorted."""
    answer = await _call(client, address, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, timeout_s=timeout_s)
    return sorted(decode_topic_list(answer.body))


async def query_topics_of_cluster(
    client: RemotingClient, address: str, cluster_name: str, *, timeout_s: float = CALL_TIMEOUT_S
) -> list[str]:
    """Returns the topics that have queues on a broker of the cluster, sorted; an empty list for an unknown
    cluster.
    """
    header = TopicsByClusterRequest(cluster=cluster_name)
    answer = await _call(client, address, RequestCode.GET_TOPICS_BY_CLUSTER, header, timeout_s=timeout_s)
    return sorted(decode_topic_list(answer.body))


async def delete_topic(
    client: RemotingClient, address: str, topic: str, cluster_name: str, *, timeout_s: float = CALL_TIMEOUT_S
) -> None:
    """Removes a topic from the routes; a broker that still has it adds it again at its next registration."""
    header = DeleteTopicInNameServerRequest(topic=topic, cluster_name=cluster_name)
    await _call(client, address, RequestCode.DELETE_TOPIC_IN_NAMESRV, header, timeout_s=timeout_s)


async def has_data_version_changed(
    client: RemotingClient,
    address: str,
    broker: BrokerIdentity,
    version: DataVersion,
    *,
    timeout_s: float = CALL_TIMEOUT_S,
) -> bool:
    """Returns True if the name server does not have exactly this version of the broker's topics; counts as a
    heartbeat.
    """
    header = QueryDataVersionRequest(
        cluster_name=broker.cluster_name,
        broker_name=broker.broker_name,
        broker_id=broker.broker_id,
        broker_address=broker.broker_address,
    )
    body = encode_data_version(version)
    answer = await _call(
        client, address, RequestCode.QUERY_DATA_VERSION, header, body=body, timeout_s=timeout_s
    )
    return answer.decode(QueryDataVersionResponse).is_changed


async def put_kv(
    client: RemotingClient,
    address: str,
    namespace: str,
    key: str,
    value: str,
    *,
    timeout_s: float = CALL_TIMEOUT_S,
) -> None:
    """Stores a value in the key-value configuration."""
    header = PutKvRequest(namespace=namespace, key=key, value=value)
    await _call(client, address, RequestCode.PUT_KV_CONFIG, header, timeout_s=timeout_s)


async def get_kv(
    client: RemotingClient, address: str, namespace: str, key: str, *, timeout_s: float = CALL_TIMEOUT_S
) -> str | None:
    """Returns a value of the key-value configuration; None when there is none."""
    header = GetKvRequest(namespace=namespace, key=key)
    answer = await _call_raw(client, address, RequestCode.GET_KV_CONFIG, header, timeout_s=timeout_s)
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return answer.decode(GetKvResponse).value


async def delete_kv(
    client: RemotingClient, address: str, namespace: str, key: str, *, timeout_s: float = CALL_TIMEOUT_S
) -> None:
    """Deletes a value of the key-value configuration; a missing value is not an error."""
    header = DeleteKvRequest(namespace=namespace, key=key)
    await _call(client, address, RequestCode.DELETE_KV_CONFIG, header, timeout_s=timeout_s)


async def wipe_write_permission(
    client: RemotingClient, address: str, broker_name: str, *, timeout_s: float = CALL_TIMEOUT_S
) -> int:
    """Makes this name server's routes offer the broker's queues to no producer; returns the number of topics
    concerned.
    """
    header = WipeWritePermissionRequest(broker_name=broker_name)
    answer = await _call(client, address, RequestCode.WIPE_WRITE_PERM_OF_BROKER, header, timeout_s=timeout_s)
    return answer.decode(WipeWritePermissionResponse).topic_count


async def add_write_permission(
    client: RemotingClient, address: str, broker_name: str, *, timeout_s: float = CALL_TIMEOUT_S
) -> int:
    """Reverts `wipe_write_permission`; returns the number of topics concerned."""
    header = AddWritePermissionRequest(broker_name=broker_name)
    answer = await _call(client, address, RequestCode.ADD_WRITE_PERM_OF_BROKER, header, timeout_s=timeout_s)
    return answer.decode(AddWritePermissionResponse).topic_count


async def query_config(
    client: RemotingClient, address: str, *, timeout_s: float = CALL_TIMEOUT_S
) -> dict[str, str]:
    """Returns the name server's settings."""
    answer = await _call(client, address, RequestCode.GET_NAMESRV_CONFIG, timeout_s=timeout_s)
    settings = parse_properties(bytes(answer.body), address)
    return {key: setting.text for key, setting in settings.items()}


async def change_config(
    client: RemotingClient, address: str, key: str, value: str, *, timeout_s: float = CALL_TIMEOUT_S
) -> str:
    """Changes one setting of a running name server, which decides which settings may change. Returns the
    reason why the change was not saved in its file; an empty text when it was.
    """
    body = edit_properties(b"", {key: value})
    answer = await _call(client, address, RequestCode.UPDATE_NAMESRV_CONFIG, body=body, timeout_s=timeout_s)
    return answer.remark or ""


async def _call(
    client: RemotingClient,
    address: str,
    code: int,
    header: Header | None = None,
    *,
    body: bytes = b"",
    timeout_s: float = CALL_TIMEOUT_S,
) -> Command:
    """Sends a request that must succeed, as `calls.call` does. Raises NotNameServer, too."""
    answer = await _call_raw(client, address, code, header, body=body, timeout_s=timeout_s)
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return answer


async def _call_raw(
    client: RemotingClient,
    address: str,
    code: int,
    header: Header | None = None,
    *,
    body: bytes = b"",
    timeout_s: float = CALL_TIMEOUT_S,
) -> Command:
    """Sends a request and returns the answer. Raises NotNameServer when the address is that of a broker or a
    controller.
    """
    answer = await call_raw(client, address, code, header, body=body, timeout_s=timeout_s)
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        for kind, known in _OTHER_SERVERS.items():
            reply = await call_raw(client, address, known, timeout_s=timeout_s)
            if reply.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise NotNameServer(
                    f"{address} is a {kind}, not a name server: give a name server's address, usually with"
                    " port 9876"
                )
    return answer
