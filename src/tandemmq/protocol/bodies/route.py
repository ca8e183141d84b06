"""The brokers and queues of a topic (spec remoting 11.2; spec nameserver 2 and 6), and the brokers of each
cluster (spec remoting 11.3).

Both have two dialects. Modern clients read strict JSON, and some require `enableActingMaster`. Older ones
have parsers of their own. Those need broker ids without quotes, by which Python clients look up masters, no
whitespace, and none of `true`, `false`, `null` (spec remoting 6).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec import field
from msgspec.structs import replace

from tandemmq.protocol.bodies.codec import Body, decode_body, encode_body
from tandemmq.units import MASTER_ID, Buffer


class QueueData(Body, frozen=True, kw_only=True):
    """The queues of the topic on one broker, and their permissions."""

    broker_name: str = field(name="brokerName", default="")
    permission: int = field(name="perm", default=0)
    read_queue_count: int = field(name="readQueueNums", default=0)
    topic_sys_flag: int = field(name="topicSysFlag", default=0)
    write_queue_count: int = field(name="writeQueueNums", default=0)


def _no_addresses() -> dict[int, str]:
    """Returns an empty map. msgspec writes it because this is not `dict` itself, which it would omit."""
    return {}


class BrokerData(Body, frozen=True, kw_only=True, omit_defaults=True):
    """One replica set: broker id -> `host:port`, 0 is the master.

    In the old dialect the last two fields are only written when set, so that no `false` or `null` appears.
    """

    addresses: dict[int, str] = field(name="brokerAddrs", default_factory=_no_addresses)
    broker_name: str = field(name="brokerName", default="")
    cluster: str = ""
    is_acting_master_enabled: bool = field(name="enableActingMaster", default=False)
    zone_name: str | None = field(name="zoneName", default=None)


class TopicRoute(Body, frozen=True, kw_only=True):
    """One topic's brokers and queues. `order_topic_conf` (`broker:count;...`) replaces the queue list."""

    brokers: tuple[BrokerData, ...] = field(name="brokerDatas", default=())
    filter_servers: dict[str, list[str]] = field(name="filterServerTable", default_factory=dict)
    order_topic_conf: str | None = field(name="orderTopicConf", default=None)
    queues: tuple[QueueData, ...] = field(name="queueDatas", default=())

    @property
    def masters(self) -> list[str]:
        """The addresses of the masters."""
        return [one.addresses[MASTER_ID] for one in self.brokers if MASTER_ID in one.addresses]


class BrokerMembers(Body, frozen=True, kw_only=True):
    """The replicas of one broker name; empty if it is unknown."""

    addresses: dict[int, str] = field(name="brokerAddrs", default_factory=dict)
    broker_name: str = field(name="brokerName", default="")
    cluster: str = ""


class _MemberGroupAnswer(Body, frozen=True, kw_only=True):
    group: BrokerMembers = field(name="brokerMemberGroup", default=BrokerMembers())


_SORTING: Final = msgspec.json.Encoder(order="sorted")
_DELETE: Final = b"\x7f"


def encode_topic_route(route: TopicRoute, *, is_strict: bool = True) -> bytes:
    """Encodes a route in the strict or the old dialect."""
    if is_strict:
        fields = msgspec.to_builtins(route, str_keys=True)
        if route.order_topic_conf is None:
            del fields["orderTopicConf"]
        return encode_strict(fields, fields["brokerDatas"])
    rest = encode_body(replace(route, brokers=()))
    return rest.replace(b"[]", b"[" + b",".join(map(encode_old_broker, route.brokers)) + b"]", 1)


def encode_strict(fields: dict[str, Any], brokers: Iterable[dict[str, Any]]) -> bytes:
    """Encodes JSON in ASCII for clients from 4.9.4 on; each of these brokers gets `enableActingMaster`.

    The fast encoder does not escape characters, so it is used only for texts with nothing to escape.
    """
    for broker in brokers:
        broker.setdefault("enableActingMaster", False)
    try:
        text = _SORTING.encode(fields)
    except UnicodeEncodeError:  # half a surrogate pair
        text = _DELETE
    if text.isascii() and _DELETE not in text:
        return text
    return json.dumps(fields, separators=(",", ":"), sort_keys=True).encode("ascii")


def encode_old_broker(broker: BrokerData) -> bytes:
    """Encodes a broker for clients older than 4.9.4: not JSON, since the ids have no quotes."""
    rest = encode_body(replace(broker, addresses={}))
    pairs = [b"%d:%b" % (broker_id, encode_body(address)) for broker_id, address in broker.addresses.items()]
    return rest.replace(b"{}", b"{" + b",".join(pairs) + b"}", 1)


def encode_member_group(group: BrokerMembers) -> bytes:
    """Encodes the answer to GET_BROKER_MEMBER_GROUP (901)."""
    return encode_body(_MemberGroupAnswer(group=group))


def decode_member_group(data: Buffer) -> BrokerMembers:
    return decode_body(data, _MemberGroupAnswer).group


class ClusterInfo(Body, frozen=True, kw_only=True):
    """Brokers by name, and broker names by cluster."""

    brokers: dict[str, BrokerData] = field(name="brokerAddrTable", default_factory=dict)
    clusters: dict[str, tuple[str, ...]] = field(name="clusterAddrTable", default_factory=dict)


def encode_cluster_info(info: ClusterInfo, *, is_strict: bool = True) -> bytes:
    """Encodes a cluster in the strict or the old dialect (see the module)."""
    if is_strict:
        fields = msgspec.to_builtins(info, str_keys=True)
        return encode_strict(fields, fields["brokerAddrTable"].values())
    rows = [encode_body(name) + b":" + encode_old_broker(broker) for name, broker in info.brokers.items()]
    clusters = encode_body(info.clusters)
    return b'{"brokerAddrTable":{' + b",".join(rows) + b'},"clusterAddrTable":' + clusters + b"}"
