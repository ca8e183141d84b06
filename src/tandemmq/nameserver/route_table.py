"""The live brokers, their names and their topics: the `RouteTable`. Also its records of a broker and of a
replica set, and the adaptation of a route to one client (acting masters, zones). Pure.

The table consists of three tables derived from registrations: replica sets by broker name, queue data by
topic, liveness by (cluster, address). Every change is one call that is applied completely, or raises before
it changed anything. The module does not wait, use channels (a connection is any object, compared by identity)
or read a clock: `now_s` is a monotonic time.

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
"""TandemMQ's bounds: a list of all topics with names of fifty characters still fits into a frame."""
SYNC_MEMBER_TOPIC_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"
"""The prefix of topics that a replica set uses internally; their routes show the addresses unchanged."""

BrokerKey = tuple[str, str]
"""The key of a broker: (cluster, `host:port`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredBroker:
    """The registration of one broker. `is_acting_master_enabled` is None for a broker that does not support
    acting masters.
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
    advertised: Mapping[str, str] = field(default_factory=dict)
    """The broker's addresses by network, besides the registered one."""

    @property
    def key(self) -> BrokerKey:
        return self.cluster, self.address


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedBroker:
    """A broker that routes show, with its addresses by network."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    advertised: Mapping[str, str]

    @property
    def key(self) -> BrokerKey:
        return self.cluster, self.address


@dataclass(slots=True)
class LiveBroker:
    """One live broker. A slave needs two addresses of its master: for requests and for replication."""

    cluster: str
    address: str
    broker_name: str
    ha_address: str
    data_version: DataVersion
    connection: object
    timeout_s: float
    updated_at_s: float
    advertised: Mapping[str, str]


def with_acting_master(broker: BrokerData, queues: QueueData) -> BrokerData:
    """Returns the broker data with the smallest slave id shown as id 0 while there is no master. Applies only
    to a topic that is not writable.

    Source:  spec nameserver 9.
    """
    is_writable = queues.permission & Permission.WRITE != 0
    if not broker.is_acting_master_enabled or MASTER_ID in broker.addresses or is_writable:
        return broker
    (_, address), *others = sorted(broker.addresses.items())
    return replace(broker, addresses={MASTER_ID: address, **dict(others)})


def select_zone(route: TopicRoute, zone_name: str) -> TopicRoute:
    """Returns the route without the brokers that have a master in another zone, and without their queues
    (spec nameserver 6).

    Both lists may end up empty.
    """
    kept = tuple(
        broker
        for broker in route.brokers
        if MASTER_ID not in broker.addresses or (broker.zone_name or "").lower() == zone_name.lower()
    )
    return keep_brokers(route, kept)


def keep_brokers(route: TopicRoute, kept: tuple[BrokerData, ...]) -> TopicRoute:
    """Returns the route with these of its brokers, and without the queues of the others."""
    dropped = {broker.broker_name for broker in route.brokers} - {broker.broker_name for broker in kept}
    queues = tuple(data for data in route.queues if data.broker_name not in dropped)
    return replace(route, brokers=kept, queues=queues)


def _copy_of(replica_set: BrokerData) -> BrokerData:
    """Returns the replica set with addresses that a caller may change."""
    return replace(replica_set, addresses=dict(replica_set.addresses))


class Smallest(NamedTuple):
    """The broker with the smallest id of a name; without an HA address when it is not live."""

    broker_id: int
    address: str
    ha_address: str | None


class RouteTable:
    """The name server's data about brokers and topics. Lists are in order of first registration.

    At a bound: a new broker, or one that brings new topics, is rejected.
    """

    def __init__(self, *, brokers_max: int = BROKERS_MAX, topics_max: int = TOPICS_MAX) -> None:
        self._brokers_max = brokers_max
        self._topics_max = topics_max
        self._clusters: dict[str, dict[str, None]] = {}
        self._replica_sets: dict[str, BrokerData] = {}  # by broker name; addresses are in the order of ids
        self._queues: dict[str, dict[str, QueueData]] = {}  # topic -> broker name -> queues
        self._topics_of: dict[str, dict[str, None]] = {}  # broker name -> topics, the other way round
        self._live: dict[BrokerKey, LiveBroker] = {}
        self._filter_servers: dict[BrokerKey, tuple[str, ...]] = {}
        self.members_version = 0
        """A number that changes when `members` would return something else."""

    # Registration

    def register(
        self, registration: RegisteredBroker, now_s: float, *, drops_missing_topics: bool = False
    ) -> LiveBroker | None:
        """Applies the registration; returns the master to a slave if the master is live.

        Raises:  RequestRejected at a bound, and when the first registration of an id has exactly one topic:
                 it is an incremental one whose full one has not arrived.
        Source:  spec nameserver 3.2. Unlike in Java, a rejected registration leaves no empty broker behind.
        """
        broker_id, address = registration.broker_id, registration.address
        known = self._replica_sets.get(registration.broker_name)
        # One address has one id: a slave that became master must not remain a slave.
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
        replica_set = known or BrokerData(broker_name=registration.broker_name, cluster=registration.cluster)
        if (
            replica_set.addresses != addresses
            or previous is None
            or (previous.advertised != registration.advertised)
        ):
            self.members_version += 1
        self._replica_sets[registration.broker_name] = replica_set = replace(
            replica_set,
            addresses=dict(sorted(addresses.items())),
            is_acting_master_enabled=bool(registration.is_acting_master_enabled),
            zone_name=registration.zone_name,
        )
        self._clusters.setdefault(registration.cluster, {})[registration.broker_name] = None
        if self._provides_topics(registration, replica_set):
            if drops_missing_topics:
                held = self._topics_of.get(registration.broker_name, {})
                for topic in [topic for topic in held if topic not in registration.topics]:
                    self._drop_queues(topic, registration.broker_name)
            self._apply_topics(registration, is_first=is_first)
        self._record_liveness(registration, now_s)
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
        """Returns True if the live holder of the same id belongs to a newer master term."""
        live = self._live.get((registration.cluster, holder))
        return live is not None and live.data_version.state_version > registration.data_version.state_version

    def _provides_topics(self, registration: RegisteredBroker, replica_set: BrokerData) -> bool:
        """Returns True for the master, and for the smallest slave of a set that supports acting masters: only
        these provide topics.
        """
        if registration.broker_id == MASTER_ID:
            return True
        return registration.is_acting_master_enabled is not None and registration.broker_id == min(
            replica_set.addresses
        )

    def _apply_topics(self, registration: RegisteredBroker, *, is_first: bool) -> None:
        """Applies the topics. With an equal data version only missing queues are added, so a wiped permission
        stays wiped.
        """
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

    def _record_liveness(self, registration: RegisteredBroker, now_s: float) -> None:
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
            registration.advertised,
        )
        if registration.filter_servers:
            self._filter_servers[registration.key] = registration.filter_servers
        elif registration.filter_servers is not None:
            self._filter_servers.pop(registration.key, None)

    def _master_of(self, replica_set: BrokerData, registration: RegisteredBroker) -> LiveBroker | None:
        master = replica_set.addresses.get(MASTER_ID)
        if registration.broker_id == MASTER_ID or master is None:
            return None
        return self._live.get((registration.cluster, master))

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Replaces single brokers' queues of a topic; entries from the first unknown broker on are ignored.

        A new topic stays unknown if any of its brokers is (spec nameserver 6, code 217).
        Raises:  RequestRejected when the topic is new and the table is full.
        """
        if topic not in self._queues and len(self._queues) >= self._topics_max:
            raise RequestRejected(f"the name server knows {self._topics_max} topics, its bound")
        used_names: dict[str, QueueData] = {}
        is_complete = True
        for data in queues:
            if data.broker_name not in self._replica_sets:
                is_complete = False
                break
            used_names[data.broker_name] = data
        if used_names and (is_complete or topic in self._queues):
            self._queues.setdefault(topic, {}).update(used_names)
            for name in used_names:
                self._topics_of.setdefault(name, {})[topic] = None

    # Liveness

    def touch(self, key: BrokerKey, now_s: float) -> None:
        """Records a heartbeat; an unknown broker is ignored."""
        live = self._live.get(key)
        if live is not None:
            live.updated_at_s = now_s

    def data_version(self, key: BrokerKey) -> DataVersion | None:
        """Returns the version of the broker's last registration; None when it is not live."""
        live = self._live.get(key)
        return None if live is None else live.data_version

    def expire(self, now_s: float) -> list[LiveBroker]:
        """Removes and returns the brokers that were silent for longer than their timeout."""
        return self._remove(
            [live for live in self._live.values() if live.updated_at_s + live.timeout_s < now_s]
        )

    def drop_connection(self, connection: object) -> list[LiveBroker]:
        """Removes and returns the brokers whose newest registration came over this connection."""
        return self._remove([live for live in self._live.values() if live.connection is connection])

    def _remove(self, brokers: list[LiveBroker]) -> list[LiveBroker]:
        for live in brokers:
            self.unregister(live.cluster, live.broker_name, live.address)
        return brokers

    def unregister(self, cluster: str, broker_name: str, address: str, broker_id: int | None = None) -> bool:
        """Removes one broker by its address; returns True if the broker is not registered any more. An
        unknown broker is ignored, and so is one registered under another id than `broker_id`: that request
        belongs to an earlier role (spec nameserver 4).
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
        self.members_version += 1
        left = {number: other for number, other in replica_set.addresses.items() if other != address}
        if not left:
            self._drop_replica_set(broker_name)
            return True
        self._replica_sets[broker_name] = replace(replica_set, addresses=left)
        if replica_set.is_acting_master_enabled and MASTER_ID not in left:
            self._change_permissions(broker_name, lambda permission: permission & ~Permission.WRITE)
        return True

    def _drop_replica_set(self, name: str) -> None:
        del self._replica_sets[name]
        for cluster in [cluster for cluster, names in self._clusters.items() if name in names]:
            del self._clusters[cluster][name]
            if not self._clusters[cluster]:
                del self._clusters[cluster]
        for topic in list(self._topics_of.get(name, ())):
            self._drop_queues(topic, name)
        self._topics_of.pop(name, None)

    def _drop_queues(self, topic: str, broker_name: str) -> None:
        """Removes the queues of a topic that the broker has."""
        brokers = self._queues[topic]
        del brokers[broker_name], self._topics_of[broker_name][topic]
        if not brokers:
            del self._queues[topic]

    # The smallest broker

    def smallest(self, broker_name: str) -> Smallest | None:
        """Returns the broker with the smallest id; None for an unknown name."""
        replica_set = self._replica_sets.get(broker_name)
        if replica_set is None:
            return None
        broker_id, address = next(iter(replica_set.addresses.items()))
        live = self._live.get((replica_set.cluster, address))
        return Smallest(broker_id, address, None if live is None else live.ha_address)

    def broker_names(self) -> list[str]:
        return list(self._replica_sets)

    def addresses(self, broker_name: str) -> list[str]:
        """Returns all addresses of a name, by id."""
        replica_set = self._replica_sets.get(broker_name)
        return [] if replica_set is None else list(replica_set.addresses.values())

    def has_acting_master(self, broker_name: str) -> bool:
        replica_set = self._replica_sets.get(broker_name)
        return replica_set is not None and replica_set.is_acting_master_enabled

    # Administration

    def delete_topic(self, topic: str, cluster: str | None) -> None:
        """Forgets a topic, on the brokers of one cluster or on all; unknown names are ignored."""
        names = self._queues.get(topic, {})
        of_cluster = names if cluster is None else self._clusters.get(cluster, {})
        for name in [name for name in names if name in of_cluster]:
            self._drop_queues(topic, name)

    def wipe_write_permission(self, broker_name: str) -> int:
        """Clears the write bit of all topics of a broker; returns their number."""
        return self._change_permissions(broker_name, lambda permission: permission & ~Permission.WRITE)

    def add_write_permission(self, broker_name: str) -> int:
        """Sets all topics of a broker to exactly read and write; returns their number."""
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
        """Returns the queues of a topic and their brokers; None when either is missing.

        Queues of an unknown broker stay in the list (spec nameserver 6).
        """
        queues = self._queues.get(topic, {})
        found = [_copy_of(self._replica_sets[name]) for name in queues if name in self._replica_sets]
        if not queues or not found:
            return None
        filter_servers = {
            address: list(self._filter_servers[replica_set.cluster, address])
            for replica_set in found
            for address in replica_set.addresses.values()
            if (replica_set.cluster, address) in self._filter_servers
        }
        if shows_acting_master and not topic.startswith(SYNC_MEMBER_TOPIC_PREFIX):
            found = [with_acting_master(broker, queues[broker.broker_name]) for broker in found]
        return TopicRoute(brokers=tuple(found), filter_servers=filter_servers, queues=tuple(queues.values()))

    def members(self) -> list[RoutedBroker]:
        """Returns all brokers that routes show, in order of first registration and id."""
        found = []
        for replica_set in self._replica_sets.values():
            for broker_id, address in replica_set.addresses.items():
                live = self._live.get((replica_set.cluster, address))
                found.append(
                    RoutedBroker(
                        cluster=replica_set.cluster,
                        broker_name=replica_set.broker_name,
                        broker_id=broker_id,
                        address=address,
                        advertised={} if live is None else live.advertised,
                    )
                )
        return found

    def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(
            brokers={name: _copy_of(replica_set) for name, replica_set in self._replica_sets.items()},
            clusters={cluster: tuple(names) for cluster, names in self._clusters.items()},
        )

    def member_group(self, cluster: str, broker_name: str) -> BrokerMembers:
        """Returns the addresses of a broker name; empty when it is unknown. The cluster is only repeated."""
        replica_set = self._replica_sets.get(broker_name)
        addresses = {} if replica_set is None else dict(replica_set.addresses)
        return BrokerMembers(addresses=addresses, broker_name=broker_name, cluster=cluster)

    def topics(self) -> list[str]:
        return list(self._queues)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        names = self._clusters.get(cluster, {}).keys()
        return [topic for topic, brokers in self._queues.items() if names & brokers.keys()]

    def topics_with_flag(self, *, set_bits: int, clear_bits: int = 0) -> list[str]:
        """Returns the topics whose first queue data has all `set_bits` and none of `clear_bits` in its sys
        flag.
        """
        flags = {
            topic: next(iter(brokers.values())).topic_sys_flag for topic, brokers in self._queues.items()
        }
        return [
            topic for topic, flag in flags.items() if flag & set_bits == set_bits and not flag & clear_bits
        ]

    def system_topics(self) -> tuple[list[str], str | None]:
        """Returns the cluster and broker names, which are topics too, and the address of some broker (code
        304).
        """
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
