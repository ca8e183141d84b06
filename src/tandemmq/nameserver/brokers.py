"""What a name server remembers of one broker and of one replica set, the values of `route_table`; and how a
route of them is shown to one asker: acting masters, zones. Pure.

Source:  spec nameserver 6 and 9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from tandemmq.protocol.bodies.codec import DataVersion
from tandemmq.protocol.bodies.route import BrokerData, QueueData, TopicRoute
from tandemmq.protocol.bodies.topic import Permission, TopicConfig

MASTER_ID: Final = 0
HEARTBEAT_TIMEOUT_MS: Final = 120_000

BrokerKey = tuple[str, str]
"""(cluster, `host:port`)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What one broker says of itself. `is_acting_master_enabled` None: a broker that knows no acting
    master.
    """

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    data_version: DataVersion
    topics: Mapping[str, TopicConfig]
    connection: object
    filter_servers: tuple[str, ...] | None = None
    heartbeat_timeout_ms: int | None = None
    is_acting_master_enabled: bool | None = None
    zone_name: str | None = None

    @property
    def key(self) -> BrokerKey:
        return self.cluster, self.address


@dataclass(frozen=True, slots=True)
class MasterAddresses:
    """Where a slave finds its master: `host:port` for requests and for replication."""

    address: str
    ha_address: str


@dataclass(slots=True)
class LiveBroker:
    """One broker that is heard from."""

    cluster: str
    address: str
    broker_name: str
    ha_address: str
    data_version: DataVersion
    connection: object
    timeout_s: float
    updated_at_s: float


@dataclass(slots=True)
class ReplicaSet:
    """The brokers of one name: id -> address."""

    cluster: str
    name: str
    addresses: dict[int, str] = field(default_factory=dict)
    is_acting_master_enabled: bool = False
    zone_name: str | None = None

    def to_broker_data(self) -> BrokerData:
        return BrokerData(
            addresses=dict(self.addresses),
            broker_name=self.name,
            cluster=self.cluster,
            is_acting_master_enabled=self.is_acting_master_enabled,
            zone_name=self.zone_name,
        )


SYNC_MEMBER_TOPIC_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"
"""Topics by which a replica set talks to itself: they show the addresses as they are."""


def with_acting_master(broker: BrokerData, queues: QueueData) -> BrokerData:
    """While there is no master, the smallest slave id of a topic that is not writable stands as id 0.

    Source:  spec nameserver 9.
    """
    is_writable = queues.permission & Permission.WRITE != 0
    if not broker.is_acting_master_enabled or MASTER_ID in broker.addresses or is_writable:
        return broker
    (_, address), *others = sorted(broker.addresses.items())
    return replace(broker, addresses={MASTER_ID: address, **dict(others)})


def select_zone(route: TopicRoute, zone_name: str) -> TopicRoute:
    """Without the brokers that have a master in another zone, and without their queues (spec nameserver 6).

    Both lists may end up empty.
    """
    kept = tuple(
        broker
        for broker in route.brokers
        if MASTER_ID not in broker.addresses or (broker.zone_name or "").lower() == zone_name.lower()
    )
    dropped = {broker.broker_name for broker in route.brokers} - {broker.broker_name for broker in kept}
    queues = tuple(data for data in route.queues if data.broker_name not in dropped)
    return replace(route, brokers=kept, queues=queues)
