"""Headers served by name servers: routes, registration of brokers, KV configuration (spec nameserver 3 to 9);
and the membership of clients at brokers (spec remoting 9.4).
"""

from __future__ import annotations

from msgspec import field

from tandemmq.protocol.header_codec import Header, Int32, Int64
from tandemmq.protocol.requests.controller import BrokerGroupHeader, HistoryFacts


class RouteRequest(Header, frozen=True, kw_only=True):
    """GET_ROUTEINFO_BY_TOPIC (105)."""

    topic: str
    accepts_standard_json: bool | None = field(name="acceptStandardJsonOnly", default=None)
    is_zone_mode: bool = field(name="__ZONE_MODE", default=False)
    zone_name: str | None = field(name="__ZONE_NAME", default=None)


class RegisterBrokerRequest(Header, frozen=True, kw_only=True):
    """REGISTER_BROKER (103). A body CRC of 0 is not checked; `is_acting_master_enabled` None means an old
    broker.
    """

    broker_name: str = field(name="brokerName")
    broker_address: str = field(name="brokerAddr")
    cluster_name: str = field(name="clusterName")
    ha_address: str = field(name="haServerAddr")
    broker_id: Int64 = field(name="brokerId")
    is_compressed: bool = field(name="compressed", default=False)
    body_crc: Int32 = field(name="bodyCrc32", default=0)
    heartbeat_timeout_ms: Int64 | None = field(name="heartbeatTimeoutMillis", default=None)
    is_acting_master_enabled: bool | None = field(name="enableActingMaster", default=None)
    zone_name: str | None = field(name="__ZONE_NAME", default=None)
    advertised_addresses: str | None = field(name="advertisedAddresses", default=None)
    """Ours: `NETWORK=host:port`, separated by `;` (spec addresses 5)."""


class RegisterBrokerResponse(Header, frozen=True, kw_only=True):
    """The answer to REGISTER_BROKER; the first two fields are only for a slave whose master is registered."""

    ha_address: str | None = field(name="haServerAddr", default=None)
    master_address: str | None = field(name="masterAddr", default=None)
    refused_addresses: str | None = field(name="refusedAddresses", default=None)
    """Ours: the advertised addresses that another broker has."""


class ClusterInfoRequest(Header, frozen=True, kw_only=True):
    """GET_BROKER_CLUSTER_INFO (106)."""

    zone_name: str | None = field(name="__ZONE_NAME", default=None)


class ClusterInfoResponse(Header, frozen=True, kw_only=True):
    """The answer to GET_BROKER_CLUSTER_INFO; both fields are ours, and set for a network of clients."""

    network: str | None = None
    unmapped: str | None = None
    """`brokerName:brokerId` of the brokers without an address in the asker's network, separated by `;`."""


class UnregisterBrokerRequest(Header, frozen=True, kw_only=True):
    """UNREGISTER_BROKER (104)."""

    broker_name: str = field(name="brokerName")
    broker_address: str = field(name="brokerAddr")
    cluster_name: str = field(name="clusterName")
    broker_id: Int64 = field(name="brokerId")


class QueryDataVersionRequest(Header, frozen=True, kw_only=True):
    """QUERY_DATA_VERSION (322); the body is a DataVersion."""

    broker_name: str = field(name="brokerName")
    broker_address: str = field(name="brokerAddr")
    cluster_name: str = field(name="clusterName")
    broker_id: Int64 = field(name="brokerId")


class QueryDataVersionResponse(Header, frozen=True, kw_only=True):
    """The answer to QUERY_DATA_VERSION."""

    is_changed: bool = field(name="changed")


class BrokerHeartbeatRequest(HistoryFacts, frozen=True, kw_only=True):
    """BROKER_HEARTBEAT (904); all fields but the first four are for the controller."""

    cluster_name: str = field(name="clusterName")
    broker_address: str = field(name="brokerAddr")
    broker_name: str = field(name="brokerName")
    broker_id: Int64 | None = field(name="brokerId", default=None)
    epoch: Int32 | None = None
    max_log_offset: Int64 | None = field(name="maxOffset", default=None)
    confirmed_offset: Int64 | None = field(name="confirmOffset", default=None)
    heartbeat_timeout_ms: Int64 | None = field(name="heartbeatTimeoutMills", default=None)
    election_priority: Int32 | None = field(name="electionPriority", default=None)


class RegisterTopicRequest(Header, frozen=True, kw_only=True):
    """REGISTER_TOPIC_IN_NAMESRV (217); the body is a TopicRoute with queue data."""

    topic: str


class MemberGroupRequest(BrokerGroupHeader, frozen=True):
    """GET_BROKER_MEMBER_GROUP (901)."""


class PutKvRequest(Header, frozen=True):
    """PUT_KV_CONFIG (100)."""

    namespace: str
    key: str
    value: str


class GetKvRequest(Header, frozen=True):
    """GET_KV_CONFIG (101)."""

    namespace: str
    key: str


class GetKvResponse(Header, frozen=True, kw_only=True):
    """The answer to GET_KV_CONFIG; code 22 if absent."""

    value: str | None = None


class DeleteKvRequest(Header, frozen=True):
    """DELETE_KV_CONFIG (102)."""

    namespace: str
    key: str


class KvListRequest(Header, frozen=True, kw_only=True):
    """GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: str


class TopicsByClusterRequest(Header, frozen=True):
    """GET_TOPICS_BY_CLUSTER (224)."""

    cluster: str


class DeleteTopicInNameServerRequest(Header, frozen=True):
    """DELETE_TOPIC_IN_NAMESRV (216)."""

    topic: str
    cluster_name: str | None = field(name="clusterName", default=None)


class WipeWritePermissionRequest(Header, frozen=True):
    """WIPE_WRITE_PERM_OF_BROKER (205)."""

    broker_name: str = field(name="brokerName")


class WipeWritePermissionResponse(Header, frozen=True, kw_only=True):
    """The answer to WIPE_WRITE_PERM_OF_BROKER."""

    topic_count: Int32 = field(name="wipeTopicCount")


class AddWritePermissionRequest(Header, frozen=True):
    """ADD_WRITE_PERM_OF_BROKER (327)."""

    broker_name: str = field(name="brokerName")


class AddWritePermissionResponse(Header, frozen=True, kw_only=True):
    """The answer to ADD_WRITE_PERM_OF_BROKER."""

    topic_count: Int32 = field(name="addTopicCount")


class MinBrokerIdChange(Header, frozen=True, kw_only=True):
    """NOTIFY_MIN_BROKER_ID_CHANGE (905), name server to broker, oneway: the new smallest id of a broker name.

    `offline_address` is the broker that left, if any; name servers leave the name out.
    """

    min_broker_id: Int64 | None = field(name="minBrokerId", default=None)
    broker_name: str | None = field(name="brokerName", default=None)
    min_broker_address: str | None = field(name="minBrokerAddr", default=None)
    offline_address: str | None = field(name="offlineBrokerAddr", default=None)
    ha_address: str | None = field(name="haBrokerAddr", default=None)


# Membership of clients. A heartbeat has no header; its body is `bodies.client.Heartbeat`.


class UnregisterClientRequest(Header, frozen=True):
    """UNREGISTER_CLIENT (35)."""

    client_id: str = field(name="clientID")
    producer_group: str | None = field(name="producerGroup", default=None)
    consumer_group: str | None = field(name="consumerGroup", default=None)


class HeartbeatResponse(Header, frozen=True, kw_only=True):
    """The answer to HEART_BEAT (34)."""

    has_heartbeat_v2: bool = field(name="IS_SUPPORT_HEART_BEAT_V2", default=True)
    is_subscription_changed: bool = field(name="IS_SUB_CHANGE", default=True)


class ConsumerListRequest(Header, frozen=True):
    """GET_CONSUMER_LIST_BY_GROUP (38); code 1 if no member is online."""

    consumer_group: str = field(name="consumerGroup")


class NotifyConsumerIdsChangedRequest(Header, frozen=True, kw_only=True):
    """NOTIFY_CONSUMER_IDS_CHANGED (40), broker to consumer, oneway."""

    consumer_group: str = field(name="consumerGroup")
