"""Which brokers form which clusters (spec remoting 11.3)."""

from __future__ import annotations

from msgspec import field

from tandemmq.protocol.bodies.codec import Body, decode_body, encode_body
from tandemmq.protocol.bodies.route import BrokerData
from tandemmq.protocol.command import Buffer


class ClusterInfo(Body, frozen=True, kw_only=True):
    """Brokers by name, and names of brokers by cluster."""

    brokers: dict[str, BrokerData] = field(name="brokerAddrTable", default_factory=dict)
    clusters: dict[str, tuple[str, ...]] = field(name="clusterAddrTable", default_factory=dict)


def encode_cluster_info(info: ClusterInfo) -> bytes:
    return encode_body(info)


def decode_cluster_info(data: Buffer) -> ClusterInfo:
    return decode_body(data, ClusterInfo)
