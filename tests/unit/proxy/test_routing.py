"""Routes and assignments: spec proxy 6."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.errors import TopicNotFound
from tandemmq.protocol.bodies.route import QueueData
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig
from tandemmq.proxy import routing
from tandemmq.proxy.options import ProxyOptions
from tandemmq.proxy.routing import RoutingHandlers, accepted_kinds, permissions_of, scheme_of
from tandemmq.proxy.schema import enum_number, message_class
from tandemmq.proxy.statuses import Code, RpcRefused
from unit.proxy.calls import caller
from unit.proxy.known_brokers import KnownBrokers, route

QueryAssignmentRequest = message_class("QueryAssignmentRequest")
QueryRouteRequest = message_class("QueryRouteRequest")

READ, WRITE, READ_WRITE, NONE = routing.READ, routing.WRITE, routing.READ_WRITE, routing.NONE
ADVERTISED = ("proxy.example", 8081)
ASKED = {"scheme": enum_number("AddressScheme", "IPv4"), "addresses": [{"host": "127.0.0.1", "port": 9999}]}


def handlers(known: KnownBrokers, **options: Any) -> RoutingHandlers:
    return RoutingHandlers(known.brokers, lambda: ADVERTISED, ProxyOptions(**options))


async def ask_route(known: KnownBrokers, endpoints: Any = None, topic: str = "T", **options: Any) -> Any:
    request = QueryRouteRequest(topic={"name": topic, "resource_namespace": "ns"}, endpoints=endpoints)
    return await handlers(known, **options).handle_query_route(caller(), request)


async def ask_assignment(known: KnownBrokers, group: str = "G", topic: str = "T") -> Any:
    request = QueryAssignmentRequest(topic={"name": topic}, group={"name": group}, endpoints=ASKED)
    return await handlers(known).handle_query_assignment(caller(), request)


@pytest.mark.parametrize(
    ("permission", "read", "write", "expected"),
    [
        (6, 4, 4, [READ_WRITE] * 4),
        (6, 5, 3, [READ, READ] + [READ_WRITE] * 3),
        (6, 2, 3, [WRITE, READ_WRITE, READ_WRITE]),
        (4, 2, 8, [READ, READ]),
        (2, 8, 2, [WRITE, WRITE]),
        (0, 2, 3, [NONE] * 3),
        (1, 0, 0, [NONE]),
        (6, -1, 2, [WRITE, WRITE]),
    ],
)
def test_permissions_are_those_of_javas_proxy(
    permission: int, read: int, write: int, expected: list[int]
) -> None:
    queues = QueueData(broker_name="a", permission=permission, read_queue_count=read, write_queue_count=write)
    assert permissions_of(queues) == expected


def test_a_topic_accepts_its_kind_and_never_nothing() -> None:
    number = {name: enum_number("MessageType", name) for name in ("NORMAL", "FIFO", "DELAY", "TRANSACTION")}
    assert accepted_kinds("FIFO") == [number["FIFO"]]
    assert accepted_kinds("MIXED") == list(number.values())
    assert accepted_kinds("PRIORITY") == [enum_number("MessageType", "PRIORITY")]
    assert accepted_kinds("UNSPECIFIED") == accepted_kinds("") == [number["NORMAL"]]


async def test_every_replica_has_the_endpoints_of_the_request() -> None:
    known = KnownBrokers(
        {"T": route(("b", 6, 1, 1), ("a", 6, 2, 2), replicas={1: "10.0.0.2:10911", 0: "10.0.0.1:10911"})}
    )
    answer = await ask_route(known, ASKED)
    assert answer.status.code == Code.OK
    rows = [
        (queue.broker.name, queue.broker.id, queue.id, queue.permission) for queue in answer.message_queues
    ]
    assert rows == [
        ("a", 0, 0, READ_WRITE),
        ("a", 0, 1, READ_WRITE),
        ("a", 1, 0, READ_WRITE),
        ("a", 1, 1, READ_WRITE),
        ("b", 0, 0, READ_WRITE),
        ("b", 1, 0, READ_WRITE),
    ]
    for queue in answer.message_queues:
        assert [(one.host, one.port) for one in queue.broker.endpoints.addresses] == [("127.0.0.1", 9999)]
        assert queue.broker.endpoints.scheme == ASKED["scheme"]
        assert queue.accept_message_types == [enum_number("MessageType", "NORMAL")]
        assert (queue.topic.name, queue.topic.resource_namespace) == ("T", "ns")


async def test_a_request_without_endpoints_gets_the_advertised_ones() -> None:
    answer = await ask_route(KnownBrokers({"T": route(("a", 6, 1, 1))}))
    (queue,) = answer.message_queues
    assert [(one.host, one.port) for one in queue.broker.endpoints.addresses] == [ADVERTISED]
    assert queue.broker.endpoints.scheme == enum_number("AddressScheme", "DOMAIN_NAME")


async def test_the_port_is_the_advertised_one_where_it_is_not_echoed() -> None:
    answer = await ask_route(KnownBrokers({"T": route(("a", 6, 1, 1))}), ASKED, echoes_port=False)
    assert [(one.host, one.port) for one in answer.message_queues[0].broker.endpoints.addresses] == [
        ("127.0.0.1", 8081)
    ]


async def test_endpoints_without_a_scheme_get_one() -> None:
    known = KnownBrokers({"T": route(("a", 6, 1, 1))})
    answer = await ask_route(known, {"addresses": [{"host": "::1", "port": 1}]})
    assert answer.message_queues[0].broker.endpoints.scheme == enum_number("AddressScheme", "IPv6")
    assert scheme_of("localhost") == enum_number("AddressScheme", "DOMAIN_NAME")


@pytest.mark.parametrize(
    "endpoints",
    [
        {"addresses": [{"host": "", "port": 1}]},
        {"addresses": [{"host": "a", "port": 0}]},
        {"addresses": [{"host": "a", "port": 65536}]},
        {"addresses": [{"host": "a\n", "port": 1}]},
        {"scheme": 3, "addresses": [{"host": "a", "port": 1}, {"host": "b", "port": 1}]},
        {"scheme": 1, "addresses": [{"host": "1.1.1.1", "port": 1}] * 65},
    ],
)
async def test_endpoints_that_no_client_can_use_are_refused(endpoints: Any) -> None:
    with pytest.raises(RpcRefused) as refused:
        await ask_route(KnownBrokers({"T": route(("a", 6, 1, 1))}), endpoints)
    assert refused.value.code == Code.ILLEGAL_ACCESS_POINT


async def test_names_are_checked_and_unknown_topics_not_created() -> None:
    known = KnownBrokers()
    for name in ("", "a b", "x" * 128, "RMQ_SYS_TRANS_HALF_TOPIC"):
        with pytest.raises(RpcRefused) as refused:
            await ask_route(known, ASKED, topic=name)
        assert refused.value.code == Code.ILLEGAL_TOPIC
    with pytest.raises(TopicNotFound):
        await ask_route(known, ASKED, topic="Missing")


async def test_an_assignment_is_one_queue_of_each_readable_master() -> None:
    known = KnownBrokers({"T": route(("b", 4, 8, 0), ("a", 6, 4, 4), ("c", 2, 0, 4))})
    answer = await ask_assignment(known)
    queues = [one.message_queue for one in answer.assignments]
    assert [(queue.broker.name, queue.id, queue.permission) for queue in queues] == [
        ("a", -1, READ_WRITE),
        ("b", -1, READ),
    ]
    assert queues[0].broker.endpoints.addresses[0].port == 9999


async def test_an_orderly_group_is_assigned_each_read_queue() -> None:
    known = KnownBrokers(
        {"T": route(("a", 6, 3, 1))}, groups={"G": SubscriptionGroupConfig(name="G", is_orderly=True)}
    )
    answer = await ask_assignment(known)
    assert [one.message_queue.id for one in answer.assignments] == [0, 1, 2]


async def test_a_topic_without_a_readable_master_has_no_assignment() -> None:
    for entry in (route(("a", 2, 0, 4)), route(("a", 6, 4, 4), replicas={1: "10.0.0.2:10911"})):
        with pytest.raises(RpcRefused) as refused:
            await ask_assignment(KnownBrokers({"T": entry}))
        assert refused.value.code == Code.FORBIDDEN
    with pytest.raises(RpcRefused) as refused:
        await ask_assignment(KnownBrokers({"T": route(("a", 6, 4, 4))}), group="TOOLS_CONSUMER")
    assert refused.value.code == Code.ILLEGAL_CONSUMER_GROUP
