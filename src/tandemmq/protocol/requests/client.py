"""Membership of clients (spec remoting 9.4); the heartbeat has no header, its body is `bodies.heartbeat`."""

from __future__ import annotations

from msgspec import field

from tandemmq.protocol.header_codec import Header


class UnregisterClientRequest(Header, frozen=True, kw_only=True):
    """UNREGISTER_CLIENT (35)."""

    client_id: str = field(name="clientID")
    producer_group: str | None = field(name="producerGroup", default=None)
    consumer_group: str | None = field(name="consumerGroup", default=None)


class HeartbeatResponse(Header, frozen=True, kw_only=True):
    """Answer to HEART_BEAT (34)."""

    has_heartbeat_v2: bool = field(name="IS_SUPPORT_HEART_BEAT_V2", default=True)
    is_subscription_changed: bool = field(name="IS_SUB_CHANGE", default=True)


class ConsumerListRequest(Header, frozen=True, kw_only=True):
    """GET_CONSUMER_LIST_BY_GROUP (38); code 1 when nobody is online."""

    consumer_group: str = field(name="consumerGroup")


class NotifyConsumerIdsChangedRequest(Header, frozen=True, kw_only=True):
    """NOTIFY_CONSUMER_IDS_CHANGED (40), broker to consumer, oneway."""

    consumer_group: str = field(name="consumerGroup")
