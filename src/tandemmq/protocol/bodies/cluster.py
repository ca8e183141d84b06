"""Which brokers form which clusters (spec remoting 11.3)."""

from __future__ import annotations

import msgspec
from msgspec import field

from tandemmq.protocol.bodies.codec import Body, decode_body, encode_body
from tandemmq.protocol.bodies.route import BrokerData, encode_old_broker, encode_strict
from tandemmq.protocol.command import Buffer


class ClusterInfo(Body, frozen=True, kw_only=True):
    """Brokers by name, and names of brokers by cluster."""

    brokers: dict[str, BrokerData] = field(name="brokerAddrTable", default_factory=dict)
    clusters: dict[str, tuple[str, ...]] = field(name="clusterAddrTable", default_factory=dict)


def encode_cluster_info(info: ClusterInfo, *, is_strict: bool = True) -> bytes:
    """In the dialect of today, or in the old one (see `route`)."""
    if is_strict:
        fields = msgspec.to_builtins(info, str_keys=True)
        return encode_strict(fields, fields["brokerAddrTable"].values())
    rows = [encode_body(name) + b":" + encode_old_broker(broker) for name, broker in info.brokers.items()]
    clusters = encode_body(info.clusters)
    return b'{"brokerAddrTable":{' + b",".join(rows) + b'},"clusterAddrTable":' + clusters + b"}"


def decode_cluster_info(data: Buffer) -> ClusterInfo:
    return decode_body(data, ClusterInfo)
