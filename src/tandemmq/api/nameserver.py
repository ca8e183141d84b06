"""Calls to a name server: registration of brokers, routes, lists of clusters and topics, and its settings.

Source:  spec nameserver 3, 4, 6; spec remoting 8.1, 8.2, 8.7.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tandemmq.api.calls import (
    NameServerCall,
    RequestContent,
    absent,
    body,
    done,
    empty,
    one_setting,
    remark,
    settings,
    value,
)
from tandemmq.protocol.bodies.codec import decode_body, decode_kv_table
from tandemmq.protocol.bodies.register import RegisterBrokerBody, body_crc32, encode_register_broker_body
from tandemmq.protocol.bodies.route import ClusterInfo, TopicRoute, decode_member_group
from tandemmq.protocol.bodies.tables import decode_topic_list
from tandemmq.protocol.codes import RequestCode as Code
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.networks import INTERNAL
from tandemmq.protocol.requests import route as headers
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
    advertised_addresses: str = ""
    """The broker's addresses by network, `NETWORK=host:port` separated by `;`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """The answer of a name server to a registration.

    A slave learns its master's two addresses (None: no master is registered). `order_topics` is the key-value
    namespace ORDER_TOPIC_CONFIG, topic -> `broker:count;...`.
    """

    master_address: str | None = None
    master_ha_address: str | None = None
    refused_addresses: str = ""
    """The advertised addresses that the name server does not answer, because another broker has them."""
    order_topics: dict[str, str] = field(default_factory=dict)


def _identity(broker: BrokerIdentity) -> dict[str, Any]:
    """Returns the fields that every request of a broker has."""
    return {
        "cluster_name": broker.cluster_name,
        "broker_name": broker.broker_name,
        "broker_id": broker.broker_id,
        "broker_address": broker.broker_address,
    }


def _describe_broker(broker: BrokerIdentity, topics: RegisterBrokerBody) -> RequestContent:
    raw = encode_register_broker_body(topics)
    header = headers.RegisterBrokerRequest(
        **_identity(broker),
        ha_address=broker.ha_address,
        body_crc=body_crc32(raw),
        advertised_addresses=broker.advertised_addresses or None,
    )
    return RequestContent(header, raw)


def _read_registered(answer: Command) -> Registered:
    response = answer.decode(headers.RegisterBrokerResponse)
    return Registered(
        master_address=response.master_address or None,
        master_ha_address=response.ha_address or None,
        refused_addresses=response.refused_addresses or "",
        order_topics=decode_kv_table(answer.body) if answer.body else {},
    )


register_broker = NameServerCall(
    Code.REGISTER_BROKER, _describe_broker, _read_registered, timeout_s=REGISTER_TIMEOUT_S
)
"""Registers or refreshes a broker with its topics (all, or only the changed ones)."""


def _name_broker(broker: BrokerIdentity) -> headers.UnregisterBrokerRequest:
    return headers.UnregisterBrokerRequest(**_identity(broker))


unregister_broker = NameServerCall(Code.UNREGISTER_BROKER, _name_broker, done)
"""Removes a stopping broker from all routes."""


def _name_topic(topic: str) -> headers.RouteRequest:
    return headers.RouteRequest(topic=topic, accepts_standard_json=True)


query_route = NameServerCall(
    Code.GET_ROUTEINFO_BY_TOPIC,
    _name_topic,
    value(TopicRoute),
    outcomes={ResponseCode.TOPIC_NOT_EXIST: absent},
)
"""Returns the queues and broker addresses of a topic; None when this name server does not know it (spec
remoting 9.1).
"""
query_cluster_info = NameServerCall(Code.GET_BROKER_CLUSTER_INFO, empty, value(ClusterInfo))
"""Returns all registered brokers, by cluster and name."""


@dataclass(frozen=True, slots=True)
class NetworkAnswer:
    """The brokers as a name server announces them to this client. `network` is the client's, and `unmapped`
    the brokers (`name:id`) without an address of their own there. A name server of RocketMQ has no networks.
    """

    cluster: ClusterInfo
    network: str
    unmapped: tuple[str, ...]


def _read_network(answer: Command) -> NetworkAnswer:
    header = answer.decode(headers.ClusterInfoResponse)
    unmapped = tuple(filter(None, (header.unmapped or "").split(";")))
    return NetworkAnswer(decode_body(answer.body, ClusterInfo), header.network or INTERNAL, unmapped)


query_network_view = NameServerCall(Code.GET_BROKER_CLUSTER_INFO, empty, _read_network)
"""Returns all registered brokers, and the network whose addresses they have."""
_query_members = NameServerCall(
    Code.GET_BROKER_MEMBER_GROUP,
    headers.MemberGroupRequest,
    body(decode_member_group),
    outcomes={ResponseCode.REQUEST_CODE_NOT_SUPPORTED: absent},
)


async def query_members(
    client: RemotingClient, address: str, cluster: str, broker_name: str, *, timeout_s: float
) -> dict[int, str]:
    """Returns the registered brokers of one name by id. A name server before 5.0 has no such request; its
    cluster info is used.
    """
    members = await _query_members.within(
        timeout_s, client, address, cluster_name=cluster, broker_name=broker_name
    )
    if members is not None:
        return members.addresses
    data = (await query_cluster_info.within(timeout_s, client, address)).brokers.get(broker_name)
    return {} if data is None else data.addresses


query_topics = NameServerCall(
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, empty, lambda answer: sorted(decode_topic_list(answer.body))
)
"""Returns the names of all registered topics, including system topics, sorted."""
delete_topic = NameServerCall(Code.DELETE_TOPIC_IN_NAMESRV, headers.DeleteTopicInNameServerRequest, done)
"""Removes a topic from the routes; a broker that still has it adds it again at its next registration."""
put_kv = NameServerCall(Code.PUT_KV_CONFIG, headers.PutKvRequest, done)
get_kv = NameServerCall(
    Code.GET_KV_CONFIG,
    headers.GetKvRequest,
    lambda answer: answer.decode(headers.GetKvResponse).value,
    outcomes={ResponseCode.QUERY_NOT_FOUND: absent},
)
delete_kv = NameServerCall(Code.DELETE_KV_CONFIG, headers.DeleteKvRequest, done)
"""Deletes a value of the key-value configuration; a missing value is not an error."""
wipe_write_permission = NameServerCall(
    Code.WIPE_WRITE_PERM_OF_BROKER,
    headers.WipeWritePermissionRequest,
    lambda answer: answer.decode(headers.WipeWritePermissionResponse).topic_count,
)
"""Makes this name server's routes offer the broker's queues to no producer; returns the number of topics
concerned.
"""
add_write_permission = NameServerCall(
    Code.ADD_WRITE_PERM_OF_BROKER,
    headers.AddWritePermissionRequest,
    lambda answer: answer.decode(headers.AddWritePermissionResponse).topic_count,
)
"""Reverts `wipe_write_permission`; returns the number of topics concerned."""
query_config = NameServerCall(Code.GET_NAMESRV_CONFIG, empty, settings)
"""Returns the name server's settings."""
change_config = NameServerCall(Code.UPDATE_NAMESRV_CONFIG, one_setting, remark)
"""Changes one setting of a running name server, which decides which settings may change. Returns the reason
why the change was not saved in its file; an empty text when it was.
"""
