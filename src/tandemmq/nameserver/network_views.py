"""Networks: the network of each asker, and routes with the addresses of that network (spec addresses 5).

The answers to 105 and 106 pass through `Networks`; registration, replication, controllers and all other codes
use registered addresses only. A broker advertises addresses with its registration. For Java brokers operators
put them into the KV namespace `ADDRESSES_NAMESPACE`, key `brokerName.brokerId.network`; the address that a
broker sends itself wins.

Invariants:
- In one network no two registered brokers have the same address: clients would treat them as one.
- A view is computed again after each change of its facts, and not for each question.

At a bound: networks beyond `NETWORKS_MAX` are treated as internal.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from msgspec.structs import replace

from tandemmq.errors import ConfigError, RequestRejected
from tandemmq.nameserver.kv_config import KvTable
from tandemmq.nameserver.options import NameServerOptions
from tandemmq.nameserver.route_table import BrokerKey, RoutedBroker, RouteTable, keep_brokers
from tandemmq.protocol.bodies.route import BrokerData, ClusterInfo, TopicRoute
from tandemmq.protocol.networks import (
    INTERNAL,
    network_in_ranges,
    parse_advertised,
    plain_ip,
)
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.options import parse_address
from tandemmq.telemetry import events
from tandemmq.telemetry.controller_metrics import NETWORK_ANSWERS, UNMAPPED_BROKERS
from tandemmq.telemetry.metrics import Sample

log = logging.getLogger(__name__)

ADDRESSES_NAMESPACE: Final = "ADVERTISED_ADDRESSES"
NETWORKS_MAX: Final = 64
"""The most networks of one name server."""


@dataclass(slots=True)
class NetworkView:
    """The addresses of one network: registered broker -> the address to answer. Brokers that `drop` leaves
    out are missing; `unmapped` brokers have no address of their own, or one that another broker has.
    """

    addresses: dict[BrokerKey, str] = field(default_factory=dict)
    unmapped: list[RoutedBroker] = field(default_factory=list)
    refused: list[tuple[RoutedBroker, str]] = field(default_factory=list)


def build_view(
    members: Iterable[RoutedBroker],
    network: str,
    given: Mapping[str, str],
    *,
    keeps_registered: bool,
) -> NetworkView:
    """Returns the view of a network. `given` are addresses by `brokerName.brokerId.network`. The broker
    that comes first keeps an address that two have.
    """
    view = NetworkView()
    wanted: list[tuple[RoutedBroker, str]] = []
    for member in members:
        key = f"{member.broker_name}.{member.broker_id}.{network}"
        address = member.advertised.get(network) or given.get(key)
        if address is None:
            view.unmapped.append(member)
        else:
            wanted.append((member, address))
    used = {member.address for member in view.unmapped} if keeps_registered else set()
    for member, address in wanted:
        if address in used:
            view.refused.append((member, address))
            view.unmapped.append(member)
        else:
            used.add(address)
            view.addresses[member.key] = address
    if keeps_registered:
        held = set(view.addresses.values())
        for member in view.unmapped:
            if member.address not in held:
                view.addresses[member.key] = member.address
    return view


@dataclass(slots=True, eq=False)
class Networks:
    """Decides the network of each request and translates routes. `broker_channels` are the connections over
    which brokers have registered.
    """

    table: RouteTable
    kv: KvTable
    _: KW_ONLY
    options: Callable[[], NameServerOptions]
    broker_channels: Collection[Channel]
    answer_counts: Counter[str] = field(default_factory=Counter)
    """The number of answers with addresses of each network since the start; `internal` is not counted. A
    network that nothing names any more is forgotten.
    """
    fallback_count: int = 0
    """The number of brokers in those answers that had no address in the asker's network."""
    _facts: tuple[object, ...] = ()
    _given: dict[str, str] = field(default_factory=dict)
    _names: frozenset[str] = frozenset()
    _hosts: frozenset[object] = frozenset()
    _views: dict[str, NetworkView] = field(default_factory=dict)
    _reported: set[tuple[str, BrokerKey, str]] = field(default_factory=set)

    def network_of(self, channel: Channel, zone: str | None, listener: str) -> str:
        """Returns the asker's network by the first rule that applies: a broker's connection is internal;
        the listener's network; the zone that the client names; the host of a registered broker is
        internal; the ranges of clientNetworks; otherwise internal.
        """
        self._refresh()
        if not self._names or channel in self.broker_channels:
            return INTERNAL
        if listener:
            return listener
        if zone is not None and (zone == INTERNAL or zone in self._names):
            return zone
        host = channel.peer[0]
        if _host_key(host) in self._hosts:
            return INTERNAL
        return network_in_ranges(host, self.options().client_ranges) or INTERNAL

    def map_route(self, route: TopicRoute, network: str) -> TopicRoute:
        """Returns the route with the addresses of the network, without brokers that have none."""
        if network == INTERNAL:
            return route
        view = self._view(network)
        brokers = tuple(self._map(broker, view) for broker in route.brokers)
        self.answer_counts[network] += 1
        kept = tuple(broker for broker in brokers if broker.addresses)
        return replace(keep_brokers(route, kept), filter_servers={})

    def map_cluster(self, info: ClusterInfo, network: str) -> ClusterInfo:
        """Returns the brokers with the addresses of the network, without those that have none."""
        if network == INTERNAL:
            return info
        view = self._view(network)
        self.answer_counts[network] += 1
        mapped = {name: self._map(broker, view) for name, broker in info.brokers.items()}
        brokers = {name: broker for name, broker in mapped.items() if broker.addresses}
        clusters = {
            cluster: tuple(name for name in names if name in brokers)
            for cluster, names in info.clusters.items()
        }
        return replace(info, brokers=brokers, clusters=clusters)

    def read_metrics(self) -> Iterator[Sample]:
        """Yields the counts of answers."""
        for network, count in sorted(self.answer_counts.items()):
            yield Sample(NETWORK_ANSWERS, count, (network,))
        yield Sample(UNMAPPED_BROKERS, self.fallback_count)

    def unmapped(self, network: str) -> list[str]:
        """Returns `brokerName:brokerId` of the brokers without an address of their own in the network."""
        if network == INTERNAL:
            return []
        return [f"{member.broker_name}:{member.broker_id}" for member in self._view(network).unmapped]

    def refused_of(self, key: BrokerKey) -> dict[str, str]:
        """Returns the advertised addresses of a broker that are not answered because another broker has
        them, by network.
        """
        self._refresh()
        return {
            network: address
            for network in sorted(self._names)
            for member, address in self._view(network).refused
            if member.key == key
        }

    def _map(self, broker: BrokerData, view: NetworkView) -> BrokerData:
        addresses = {}
        for number, registered in broker.addresses.items():
            address = view.addresses.get((broker.cluster, registered))
            self.fallback_count += address is None or address == registered
            if address is not None:
                addresses[number] = address
        return replace(broker, addresses=addresses)

    def _view(self, network: str) -> NetworkView:
        self._refresh()
        view = self._views.get(network)
        if view is None:
            keeps = self.options().network_fallback == "registered"
            view = build_view(self.table.members(), network, self._given, keeps_registered=keeps)
            self._views[network] = view
            self._report(network, view)
        return view

    def _refresh(self) -> None:
        """Forgets everything derived if a broker, an option or a value of the namespace has changed."""
        given = self.kv.namespace(ADDRESSES_NAMESPACE)
        facts = (self.table.members_version, self.options(), given)
        if len(self._facts) == len(facts) and all(map(_is_same, facts, self._facts)):
            return
        self._facts = facts
        self._views.clear()
        self._given = _parse_given(given or {})
        members = self.table.members()
        options = self.options()
        names = [
            *options.listener_networks,
            *(network for _, network in options.client_ranges),
            *(key.split(".", 2)[2] for key in self._given),
            *(network for member in members for network in member.advertised),
        ]
        self._names = frozenset([name for name in dict.fromkeys(names) if name != INTERNAL][:NETWORKS_MAX])
        self._hosts = frozenset(_host_key(parse_host(member.address)) for member in members)
        for network in self.answer_counts.keys() - set(names):
            del self.answer_counts[network]

    def _report(self, network: str, view: NetworkView) -> None:
        """Logs one line for each broker with a problem, once until it is solved."""
        now = {(network, member.key, "another broker has its address"): member for member, _ in view.refused}
        refused = {member.key for member, _ in view.refused}
        for member in view.unmapped:
            if member.key not in refused:
                now[network, member.key, "it advertises no address there"] = member
        for problem, member in now.items():
            if problem not in self._reported:
                extra = {
                    "network": network,
                    "broker": member.broker_name,
                    "broker_id": member.broker_id,
                    "address": member.address,
                    "reason": problem[2],
                }
                log.warning(events.BROKER_NOT_IN_NETWORK, extra=extra)
        self._reported = {problem for problem in self._reported if problem[0] != network} | set(now)


def check_given(key: str, value: str) -> None:
    """Checks a value of the KV namespace `ADDRESSES_NAMESPACE`. Raises RequestRejected with the reason."""
    try:
        _parse_one(key, value)
    except ValueError as error:
        raise RequestRejected(f"{ADDRESSES_NAMESPACE} {key[:80]}={value[:80]}: {error}") from None


def _parse_one(key: str, value: str) -> str:
    name, _, rest = key.partition(".")
    number, _, network = rest.partition(".")
    if not name or not number.isdigit() or not network:
        raise ValueError("the key must have the form brokerName.brokerId.network")
    return parse_advertised(f"{network}={value}")[network]


def _parse_given(table: Mapping[str, str]) -> dict[str, str]:
    given = {}
    for key, value in table.items():
        try:
            given[key] = _parse_one(key, value)
        except ValueError as error:
            log.warning(events.NETWORK_ADDRESS_INVALID, extra={"key": key, "reason": str(error)})
    return given


def _is_same(new: object, old: object) -> bool:
    return new is old or (isinstance(new, int) and new == old)


def parse_host(address: str) -> str:
    """Returns the host of a registered address, which may have any form."""
    try:
        return parse_address(address)[0]
    except ConfigError:
        return address


def _host_key(host: str) -> object:
    try:
        return plain_ip(host)
    except ValueError:
        return host
