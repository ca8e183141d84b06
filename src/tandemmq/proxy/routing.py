"""Routes and assignments: QueryRoute and QueryAssignment.

Clients reach every broker through the endpoints with which they asked, so port mappings, load balancers and
`localhost` need no configuration. A request without endpoints gets the advertised ones.

Invariants: every queue has a permission and endpoints, and every topic accepts some kind of message: the Java
            client fails otherwise. Queues are in the same order at every call.
Source:     spec proxy 6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Final

from tandemmq.protocol.bodies.route import QueueData, TopicRoute
from tandemmq.protocol.bodies.tables import Permission
from tandemmq.proxy.brokers import NORMAL, Brokers
from tandemmq.proxy.callers import group_name, topic_name
from tandemmq.proxy.kinds import MIXED, MIXED_KINDS, MessageKind, enum_of_kind
from tandemmq.proxy.options import ProxyOptions
from tandemmq.proxy.rpc import OK, Caller, Message
from tandemmq.proxy.schema import enum_number, message_class
from tandemmq.proxy.statuses import Code, RpcRefused
from tandemmq.units import MASTER_ID

QueryAssignmentResponse = message_class("QueryAssignmentResponse")
QueryRouteResponse = message_class("QueryRouteResponse")

Endpoint = tuple[str, int]
"""Host and port."""
Fields = dict[str, Any]

ADDRESSES_MAX: Final = 64
HOST_CHARS_MAX: Final = 255
ANY_QUEUE: Final = -1
READ, WRITE, READ_WRITE, NONE = (
    enum_number("Permission", name) for name in ("READ", "WRITE", "READ_WRITE", "NONE")
)
_UNSPECIFIED: Final = enum_number("AddressScheme", "ADDRESS_SCHEME_UNSPECIFIED")
_DOMAIN: Final = enum_number("AddressScheme", "DOMAIN_NAME")
_SCHEME_OF_VERSION: Final = {4: enum_number("AddressScheme", "IPv4"), 6: enum_number("AddressScheme", "IPv6")}

_ACCEPTED: Final[Mapping[str, Sequence[int]]] = {
    **{kind.value: [enum_of_kind(kind)] for kind in MessageKind},
    MIXED: list(map(enum_of_kind, MIXED_KINDS)),
}


# Endpoints.


def make_endpoints(addresses: Sequence[Endpoint]) -> Fields:
    """Returns the fields of Endpoints; the scheme is that of the first address."""
    return {
        "scheme": scheme_of(addresses[0][0]),
        "addresses": [{"host": host, "port": port} for host, port in addresses],
    }


def scheme_of(host: str) -> int:
    """Returns the AddressScheme of a host: IPv4, IPv6, or a domain name."""
    try:
        return _SCHEME_OF_VERSION[ip_address(host.strip("[]")).version]
    except ValueError:
        return _DOMAIN


def check_endpoints(endpoints: Message) -> None:
    """Checks endpoints of a request, which clients get back for every broker.

    Raises:  RpcRefused ILLEGAL_ACCESS_POINT for endpoints that no client can use.
    """
    addresses = endpoints.addresses
    if len(addresses) > ADDRESSES_MAX:
        raise _illegal(f"{len(addresses)} addresses, at most {ADDRESSES_MAX} are allowed")
    if len(addresses) > 1 and endpoints.scheme == _DOMAIN:
        raise _illegal(f"{len(addresses)} addresses with the scheme DOMAIN_NAME, which has one")
    for address in addresses:
        if not 0 < len(address.host) <= HOST_CHARS_MAX or not address.host.isprintable():
            raise _illegal(f"the host {address.host[:160]!r}")
        if not 0 < address.port < 65_536:
            raise _illegal(f"the port {address.port}, which must be 1 to 65535")


def _illegal(fault: str) -> RpcRefused:
    return RpcRefused(Code.ILLEGAL_ACCESS_POINT, f"the endpoints of the request have {fault}")


# Queues of a route.


def permissions_of(queues: QueueData) -> list[int]:
    """Returns the permission of each queue by its id, as many as Java's proxy answers."""
    read, write = max(0, queues.read_queue_count), max(0, queues.write_queue_count)
    match bool(queues.permission & Permission.READ), bool(queues.permission & Permission.WRITE):
        case True, True:
            both = min(read, write)
            return [READ] * (read - both) + [WRITE] * (write - both) + [READ_WRITE] * both
        case True, False:
            return [READ] * read
        case False, True:
            return [WRITE] * write
        case _:
            return [NONE] * max(1, read, write)


def accepted_kinds(kind: str) -> Sequence[int]:
    """Returns the kinds that a topic accepts, by its `message.type`; NORMAL for an unknown one."""
    return _ACCEPTED.get(kind, _ACCEPTED[NORMAL])


def _queues_of(route: TopicRoute) -> Iterator[tuple[QueueData, Mapping[int, str]]]:
    """Yields the queues of each broker and its replicas, in the order of the brokers' names."""
    replicas = {broker.broker_name: broker.addresses for broker in route.brokers}
    for queues in sorted(route.queues, key=lambda one: one.broker_name):
        yield queues, replicas.get(queues.broker_name, {})


@dataclass(frozen=True, slots=True)
class RoutingHandlers:
    """Handles QueryRoute and QueryAssignment.

    advertised  returns the endpoint of this proxy, for requests that name none
    """

    brokers: Brokers
    advertised: Callable[[], Endpoint]
    options: ProxyOptions = field(default_factory=ProxyOptions)

    async def handle_query_route(self, _caller: Caller, request: Message) -> Message:
        """Answers the queues of every replica; a topic without a route is never created."""
        endpoints = self._endpoints(request)
        topic = topic_name(request.topic)
        access = await self.brokers.topic(topic)
        accepted = accepted_kinds(await self.brokers.kind(topic))
        queues = [
            {
                "topic": request.topic,
                "id": queue_id,
                "permission": permission,
                "broker": {"name": one.broker_name, "id": broker_id, "endpoints": endpoints},
                "accept_message_types": accepted,
            }
            for one, replicas in _queues_of(access.route)
            for broker_id in sorted(replicas)
            for queue_id, permission in enumerate(permissions_of(one))
        ]
        return QueryRouteResponse(status=OK, message_queues=queues)

    async def handle_query_assignment(self, _caller: Caller, request: Message) -> Message:
        """Answers all readable brokers to every consumer: the brokers share messages among receives."""
        endpoints = self._endpoints(request)
        topic, group = topic_name(request.topic), group_name(request.group)
        access = await self.brokers.topic(topic)
        is_orderly = (await self.brokers.group(group)).is_orderly
        assignments = []
        for one, replicas in _queues_of(access.route):
            if MASTER_ID not in replicas or not one.permission & Permission.READ:
                continue
            queue = {
                "topic": request.topic,
                "permission": READ_WRITE if one.permission & Permission.WRITE else READ,
                "broker": {"name": one.broker_name, "id": MASTER_ID, "endpoints": endpoints},
            }
            queue_ids = range(one.read_queue_count) if is_orderly else [ANY_QUEUE]
            assignments += [{"message_queue": {**queue, "id": queue_id}} for queue_id in queue_ids]
        if not assignments:
            raise RpcRefused(Code.FORBIDDEN, f"topic {topic} has no readable queue")
        return QueryAssignmentResponse(status=OK, assignments=assignments)

    def _endpoints(self, request: Message) -> Message | Fields:
        """Returns the endpoints for every broker: those of the request, with host and port as sent."""
        asked = request.endpoints
        if not asked.addresses:
            return make_endpoints([self.advertised()])
        check_endpoints(asked)
        hosts = [(address.host, address.port) for address in asked.addresses]
        if not self.options.echoes_port:
            hosts = [(host, self.advertised()[1]) for host, _ in hosts]
        endpoints = make_endpoints(hosts)
        if asked.scheme != _UNSPECIFIED:
            endpoints["scheme"] = asked.scheme
        return endpoints
