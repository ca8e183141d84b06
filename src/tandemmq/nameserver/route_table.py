"""Which brokers live, under which names, with which topics: the `RouteTable`; what it remembers of a broker
and of a replica set; and how a route is shown to one asker (acting masters, zones). Pure.

The table is three tables derived from registrations: replica sets by broker name, queue data by topic,
liveness by (cluster, address). Every change is one call that either happens whole or raises before it changed
anything. Nothing here waits, knows a channel (a connection is any object, compared by identity) or reads a
clock: `now_s` is a monotonic time.

Source:  spec nameserver 2 to 7 and 9, the 5.x rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from msgspec.structs import replace

from tandemmq.errors import RequestRejected
from tandemmq.protocol.bodies.codec import DataVersion
from tandemmq.protocol.bodies.route import BrokerData, BrokerMembers, ClusterInfo, QueueData, TopicRoute
from tandemmq.protocol.bodies.tables import Permission, TopicConfig
from tandemmq.units import MASTER_ID

HEARTBEAT_TIMEOUT_MS: Final = 120_000
PERMISSION_ADDED: Final = Permission.READ | Permission.WRITE
BROKERS_MAX: Final = 16_384
TOPICS_MAX: Final = 300_000
"""Ours, as the other: a list of all of them still fits into a frame with names of fifty characters."""
SYNC_MEMBER_TOPIC_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"
"""Topics by which a replica set talks to itself: they show the addresses as they are."""

BrokerKey = tuple[str, str]
"""(cluster, `host:port`)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredBroker:
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


class Smallest(NamedTuple):
    """The broker with the smallest id of a name; without an HA address when it is not heard from."""

    broker_id: int
    address: str
    ha_address: str | None


class RouteTable:
    """Everything a name server knows of brokers and topics. Lists come in order of first registration.

    At a bound: a new broker, or one that brings new topics, is refused.
    """

    def __init__(self, *, brokers_max: int = BROKERS_MAX, topics_max: int = TOPICS_MAX) -> None:
        self._brokers_max = brokers_max
        self._topics_max = topics_max
        self._clusters: dict[str, dict[str, None]] = {}
        self._replica_sets: dict[str, ReplicaSet] = {}
        self._queues: dict[str, dict[str, QueueData]] = {}  # topic -> broker name -> queues
        self._topics_of: dict[str, dict[str, None]] = {}  # broker name -> topics, the other way round
        self._live: dict[BrokerKey, LiveBroker] = {}
        self._filter_servers: dict[BrokerKey, tuple[str, ...]] = {}

    # Registration

    def register(
        self, registration: RegisteredBroker, now_s: float, *, drops_missing_topics: bool = False
    ) -> MasterAddresses | None:
        """Takes the registration in; a slave gets its master's addresses when the master lives.

        Raises:  RequestRejected at a bound, and when the first registration of an id brings exactly one
                 topic: it is an incremental one whose full one has not arrived.
        Source:  spec nameserver 3.2. Unlike Java, what is refused leaves no empty broker behind.
        """
        broker_id, address = registration.broker_id, registration.address
        known = self._replica_sets.get(registration.broker_name)
        # One address has one id: a slave that became master must not stay a slave.
        addresses = {
            number: other
            for number, other in (known.addresses.items() if known else ())
            if other != address or number == broker_id
        }
        holder = addresses.get(broker_id)
        if holder is not None and holder != address and self._is_older(registration, holder):
            self.unregister(registration.cluster, registration.broker_name, address)
            return None
        if holder is None and len(registration.topics) == 1:
            raise RequestRejected(
                f"broker {registration.broker_name} id {broker_id} is not registered; "
                "its first registration must bring all topics"
            )
        self._require_room(registration)
        previous = self._live.get(registration.key)
        if previous is not None and previous.broker_name != registration.broker_name:
            self.unregister(previous.cluster, previous.broker_name, address)
        is_first = holder is None
        addresses[broker_id] = address
        replica_set = known or ReplicaSet(registration.cluster, registration.broker_name)
        replica_set.addresses = dict(sorted(addresses.items()))
        replica_set.is_acting_master_enabled = bool(registration.is_acting_master_enabled)
        replica_set.zone_name = registration.zone_name
        self._replica_sets[registration.broker_name] = replica_set
        self._clusters.setdefault(registration.cluster, {})[registration.broker_name] = None
        if self._gives_topics(registration, replica_set):
            if drops_missing_topics:
                held = self._topics_of.get(registration.broker_name, {})
                for topic in [topic for topic in held if topic not in registration.topics]:
                    self._drop_queues(topic, registration.broker_name)
            self._take_topics(registration, is_first=is_first)
        self._take_liveness(registration, now_s)
        return self._master_of(replica_set, registration)

    def _require_room(self, registration: RegisteredBroker) -> None:
        if registration.key not in self._live and len(self._live) >= self._brokers_max:
            raise RequestRejected(f"the name server knows {self._brokers_max} brokers, its bound")
        new = sum(topic not in self._queues for topic in registration.topics)
        if new and len(self._queues) + new > self._topics_max:
            raise RequestRejected(
                f"with {new} new topics the name server would know more than {self._topics_max}, its bound"
            )

    def _is_older(self, registration: RegisteredBroker, holder: str) -> bool:
        """Whether the living holder of the same id is of a newer master term."""
        live = self._live.get((registration.cluster, holder))
        return live is not None and live.data_version.state_version > registration.data_version.state_version

    def _gives_topics(self, registration: RegisteredBroker, replica_set: ReplicaSet) -> bool:
        """Topics come from the master, or from the smallest slave of a set that knows acting masters."""
        if registration.broker_id == MASTER_ID:
            return True
        return registration.is_acting_master_enabled is not None and registration.broker_id == min(
            replica_set.addresses
        )

    def _take_topics(self, registration: RegisteredBroker, *, is_first: bool) -> None:
        """With an equal data version only missing queues are added, so a wiped permission stays wiped."""
        name = registration.broker_name
        live = self._live.get(registration.key)
        is_changed = is_first or live is None or live.data_version != registration.data_version
        drops_write = registration.broker_id != MASTER_ID and registration.is_acting_master_enabled
        held = self._topics_of.setdefault(name, {})
        for topic, config in registration.topics.items():
            brokers = self._queues.setdefault(topic, {})
            if is_changed or name not in brokers:
                held[topic] = None
                brokers[name] = QueueData(
                    broker_name=name,
                    permission=config.permission & ~Permission.WRITE if drops_write else config.permission,
                    read_queue_count=config.read_queue_count,
                    topic_sys_flag=config.sys_flag,
                    write_queue_count=config.write_queue_count,
                )

    def _take_liveness(self, registration: RegisteredBroker, now_s: float) -> None:
        timeout_ms = registration.heartbeat_timeout_ms or HEARTBEAT_TIMEOUT_MS
        self._live[registration.key] = LiveBroker(
            registration.cluster,
            registration.address,
            registration.broker_name,
            registration.ha_address,
            registration.data_version,
            registration.connection,
            timeout_ms / 1000,
            now_s,
        )
        if registration.filter_servers:
            self._filter_servers[registration.key] = registration.filter_servers
        elif registration.filter_servers is not None:
            self._filter_servers.pop(registration.key, None)

    def _master_of(self, replica_set: ReplicaSet, registration: RegisteredBroker) -> MasterAddresses | None:
        master = replica_set.addresses.get(MASTER_ID)
        if registration.broker_id == MASTER_ID or master is None:
            return None
        live = self._live.get((registration.cluster, master))
        return None if live is None else MasterAddresses(master, live.ha_address)

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Replaces single brokers' queues of a topic; from the first unknown broker on, nothing is taken.

        A topic that is new stays unknown when any of its brokers is (spec nameserver 6, code 217).
        Raises:  RequestRejected when it is new and the table is full.
        """
        if topic not in self._queues and len(self._queues) >= self._topics_max:
            raise RequestRejected(f"the name server knows {self._topics_max} topics, its bound")
        taken: dict[str, QueueData] = {}
        is_complete = True
        for data in queues:
            if data.broker_name not in self._replica_sets:
                is_complete = False
                break
            taken[data.broker_name] = data
        if taken and (is_complete or topic in self._queues):
            self._queues.setdefault(topic, {}).update(taken)
            for name in taken:
                self._topics_of.setdefault(name, {})[topic] = None

    # Liveness

    def touch(self, key: BrokerKey, now_s: float) -> None:
        """A sign of life; an unknown broker is ignored."""
        live = self._live.get(key)
        if live is not None:
            live.updated_at_s = now_s

    def data_version(self, key: BrokerKey) -> DataVersion | None:
        """The version of the broker's last registration; None when it is not alive."""
        live = self._live.get(key)
        return None if live is None else live.data_version

    def expire(self, now_s: float) -> list[LiveBroker]:
        """Removes the brokers that were silent for longer than their timeout; which ones."""
        return self._remove(
            [live for live in self._live.values() if live.updated_at_s + live.timeout_s < now_s]
        )

    def drop_connection(self, connection: object) -> list[LiveBroker]:
        """Removes the brokers whose newest registration came over this connection; which ones."""
        return self._remove([live for live in self._live.values() if live.connection is connection])

    def _remove(self, brokers: list[LiveBroker]) -> list[LiveBroker]:
        for live in brokers:
            self.unregister(live.cluster, live.broker_name, live.address)
        return brokers

    def unregister(self, cluster: str, broker_name: str, address: str, broker_id: int | None = None) -> bool:
        """Removes one broker by its address. An unknown broker is ignored, and so is one that is registered
        under another id than `broker_id`: the request is of an earlier role (spec nameserver 4). True when
        the broker is not registered any more.
        """
        replica_set = self._replica_sets.get(broker_name)
        addresses = {} if replica_set is None else replica_set.addresses
        if broker_id is not None and address in addresses.values() and addresses.get(broker_id) != address:
            return False
        live = self._live.get((cluster, address))
        if live is not None and live.broker_name == broker_name:
            del self._live[cluster, address]
            self._filter_servers.pop((cluster, address), None)
        if replica_set is None or address not in replica_set.addresses.values():
            return True
        replica_set.addresses = {
            number: other for number, other in replica_set.addresses.items() if other != address
        }
        if not replica_set.addresses:
            self._drop_replica_set(replica_set)
        elif replica_set.is_acting_master_enabled and MASTER_ID not in replica_set.addresses:
            self._change_permissions(broker_name, lambda permission: permission & ~Permission.WRITE)
        return True

    def _drop_replica_set(self, replica_set: ReplicaSet) -> None:
        del self._replica_sets[replica_set.name]
        for cluster in [cluster for cluster, names in self._clusters.items() if replica_set.name in names]:
            del self._clusters[cluster][replica_set.name]
            if not self._clusters[cluster]:
                del self._clusters[cluster]
        for topic in list(self._topics_of.get(replica_set.name, ())):
            self._drop_queues(topic, replica_set.name)
        self._topics_of.pop(replica_set.name, None)

    def _drop_queues(self, topic: str, broker_name: str) -> None:
        """Of a topic that the broker has."""
        brokers = self._queues[topic]
        del brokers[broker_name], self._topics_of[broker_name][topic]
        if not brokers:
            del self._queues[topic]

    # Who is the smallest

    def smallest(self, broker_name: str) -> Smallest | None:
        """The broker with the smallest id; None for an unknown name."""
        replica_set = self._replica_sets.get(broker_name)
        if replica_set is None:
            return None
        broker_id, address = next(iter(replica_set.addresses.items()))
        live = self._live.get((replica_set.cluster, address))
        return Smallest(broker_id, address, None if live is None else live.ha_address)

    def broker_names(self) -> list[str]:
        return list(self._replica_sets)

    def addresses(self, broker_name: str) -> list[str]:
        """All addresses of a name, by id."""
        replica_set = self._replica_sets.get(broker_name)
        return [] if replica_set is None else list(replica_set.addresses.values())

    def knows_acting_master(self, broker_name: str) -> bool:
        replica_set = self._replica_sets.get(broker_name)
        return replica_set is not None and replica_set.is_acting_master_enabled

    # Administration

    def delete_topic(self, topic: str, cluster: str | None) -> None:
        """Forgets a topic, on the brokers of one cluster or on all; what is unknown is ignored."""
        names = self._queues.get(topic, {})
        of_cluster = names if cluster is None else self._clusters.get(cluster, {})
        for name in [name for name in names if name in of_cluster]:
            self._drop_queues(topic, name)

    def wipe_write_permission(self, broker_name: str) -> int:
        """Takes the write bit from all topics of a broker; how many topics it has."""
        return self._change_permissions(broker_name, lambda permission: permission & ~Permission.WRITE)

    def add_write_permission(self, broker_name: str) -> int:
        """Sets all topics of a broker to read and write exactly; how many topics it has."""
        return self._change_permissions(broker_name, lambda _: int(PERMISSION_ADDED))

    def _change_permissions(self, broker_name: str, change: Callable[[int], int]) -> int:
        topics = self._topics_of.get(broker_name, {})
        for topic in topics:
            brokers = self._queues[topic]
            data = brokers[broker_name]
            brokers[broker_name] = replace(data, permission=int(change(data.permission)))
        return len(topics)

    # Queries

    def route(self, topic: str, *, shows_acting_master: bool = False) -> TopicRoute | None:
        """Queues of a topic and their brokers; None when either is missing.

        Queues of a broker that is not known stay in the list (spec nameserver 6).
        """
        queues = self._queues.get(topic, {})
        found = [self._replica_sets[name] for name in queues if name in self._replica_sets]
        if not queues or not found:
            return None
        filter_servers = {
            address: list(self._filter_servers[replica_set.cluster, address])
            for replica_set in found
            for address in replica_set.addresses.values()
            if (replica_set.cluster, address) in self._filter_servers
        }
        brokers = [replica_set.to_broker_data() for replica_set in found]
        if shows_acting_master and not topic.startswith(SYNC_MEMBER_TOPIC_PREFIX):
            brokers = [with_acting_master(broker, queues[broker.broker_name]) for broker in brokers]
        return TopicRoute(
            brokers=tuple(brokers), filter_servers=filter_servers, queues=tuple(queues.values())
        )

    def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(
            brokers={name: replica_set.to_broker_data() for name, replica_set in self._replica_sets.items()},
            clusters={cluster: tuple(names) for cluster, names in self._clusters.items()},
        )

    def member_group(self, cluster: str, broker_name: str) -> BrokerMembers:
        """The addresses of a broker name; empty when it is unknown. The cluster is only repeated."""
        replica_set = self._replica_sets.get(broker_name)
        addresses = {} if replica_set is None else dict(replica_set.addresses)
        return BrokerMembers(addresses=addresses, broker_name=broker_name, cluster=cluster)

    def topics(self) -> list[str]:
        return list(self._queues)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        names = self._clusters.get(cluster, {}).keys()
        return [topic for topic, brokers in self._queues.items() if names & brokers.keys()]

    def topics_with_flag(self, *, set_bits: int, clear_bits: int = 0) -> list[str]:
        """Topics whose first queue data has all `set_bits` and none of `clear_bits` in its sys flag."""
        flags = {
            topic: next(iter(brokers.values())).topic_sys_flag for topic, brokers in self._queues.items()
        }
        return [
            topic for topic, flag in flags.items() if flag & set_bits == set_bits and not flag & clear_bits
        ]

    def system_topics(self) -> tuple[list[str], str | None]:
        """Cluster and broker names, which are topics too; and the address of some broker (code 304)."""
        names: dict[str, None] = {}
        for cluster, brokers in self._clusters.items():
            names[cluster] = None
            names.update(brokers)
        addresses = (
            address
            for replica_set in self._replica_sets.values()
            for address in replica_set.addresses.values()
        )
        return list(names), next(addresses, None)
