"""What a name server remembers of one broker and of one replica set; values of `route_table`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tandemmq.protocol.bodies.data_version import DataVersion
from tandemmq.protocol.bodies.route import BrokerData
from tandemmq.protocol.bodies.topic import TopicConfig

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
