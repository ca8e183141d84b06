"""Names inside a namespace, and the mark of a request for a namespace (spec semantics 2.5)."""

from __future__ import annotations

import asyncio

import pytest
from client_fakes import running_cluster

from tandemmq.client import ClientOptions, Message, MessageQueue, Producer, ProducerOptions
from tandemmq.client.namespace import Namespace, find_namespace, request_mark
from tandemmq.errors import BadRequest, ConfigError, MessageIllegal
from tandemmq.protocol.command import Command
from tandemmq.protocol.record import decode_record
from tandemmq.protocol.signature import signature_fault
from waits import PATIENCE_S

WRAPPED = [
    ("Orders", "shop%Orders"),
    ("%RETRY%billing", "%RETRY%shop%billing"),
    ("%DLQ%billing", "%DLQ%shop%billing"),
]
UNCHANGED = [
    "",
    "shop%Orders",
    "%RETRY%shop%billing",
    "TBW102",
    "RMQ_SYS_TRACE_TOPIC",
    "rmq_sys_wheel_timer",
    "CID_RMQ_SYS_TRANS",
]


@pytest.mark.parametrize(("name", "wrapped"), WRAPPED)
def test_names_are_wrapped_once_and_unwrapped(name: str, wrapped: str) -> None:
    shop = Namespace("shop")
    assert shop.wrap(name) == shop.wrap(wrapped) == wrapped
    assert shop.unwrap(wrapped) == shop.unwrap(name) == name
    assert shop.wrap_queue(MessageQueue(name, "b", 3)) == MessageQueue(wrapped, "b", 3)
    assert shop.unwrap_queue(MessageQueue(wrapped, "b", 3)) == MessageQueue(name, "b", 3)


@pytest.mark.parametrize("name", UNCHANGED)
def test_namespace_leaves_wrapped_and_system_names_unchanged(name: str) -> None:
    assert Namespace("shop").wrap(name) == name


def test_names_of_others_are_not_unwrapped_and_no_namespace_changes_nothing() -> None:
    assert Namespace("shop").unwrap("shopping%Orders") == "shopping%Orders"
    for name in ("Orders", "shop%Orders", "%Orders"):
        assert Namespace().wrap(name) == Namespace().unwrap(name) == name


@pytest.mark.parametrize(
    ("namesrv", "found"),
    [
        ("127.0.0.1:9876", ""),
        ("http://MQ_INST_1_shop.example.com:80", "MQ_INST_1_shop"),
        ("MQ_INST_1_shop.example.com:80", "MQ_INST_1_shop"),
        ("MQ_INST_1.example.com:80", ""),
    ],
)
def test_a_name_servers_host_may_name_the_namespace(namesrv: str, found: str) -> None:
    assert find_namespace(ClientOptions(), namesrv).name == found
    assert find_namespace(ClientOptions(namespace="own"), namesrv).name == "own"


@pytest.mark.parametrize("value", ["a%b", "a b", 7])
def test_invalid_namespace_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="namespace"):
        ClientOptions(namespace=value)
    with pytest.raises(ConfigError, match="namespace_v2"):
        ClientOptions(namespace_v2=value)


def test_requests_name_the_newer_namespace_below_the_signature() -> None:
    assert request_mark(ClientOptions()) is None
    mark = request_mark(ClientOptions(namespace_v2="shop", access_key="a", secret_key="secret"))
    assert mark is not None
    command = Command.request(10, fields={"topic": "Orders"})
    mark(command)
    mark(command)
    assert command.fields["ns"] == "shop"
    assert command.fields["nsd"] == "true"
    assert signature_fault(command, b"secret") is None


@pytest.mark.parametrize("linger_ms", [None, 0, 5])
async def test_a_topic_that_is_too_long_in_the_namespace_is_refused(linger_ms: float | None) -> None:
    """Also in a batch, which is packed when no caller waits any more."""
    options = ProducerOptions(client=ClientOptions(namespace="shop"), batch_linger_ms=linger_ms)
    async with running_cluster() as cluster, Producer("P", cluster.namesrv, options=options) as producer:
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(2):
                with pytest.raises(MessageIllegal, match="characters"):
                    await producer.send(Message(topic="T" * 125, body=b"1"))
        assert producer.in_flight == 0


async def test_brokers_see_the_wrapped_name_and_senders_their_own() -> None:
    options = ProducerOptions(client=ClientOptions(namespace="shop"))
    async with (
        running_cluster(**{"shop%T": 2}) as cluster,
        Producer("P", cluster.namesrv, options=options) as producer,
    ):
        assert producer.group == "shop%P"
        queues = await producer.queues("T")
        assert {queue.topic for queue in queues} == {"T"}
        results = [
            await producer.send(Message(topic="T", body=b"1")),
            await producer.send(Message(topic="T", body=b"2"), queue=queues[0]),
            *await producer.send_batch([Message(topic="T", body=b"3"), Message(topic="T", body=b"4")]),
        ]
        assert {result.queue.topic for result in results} == {"T"}
        stored = [record for queue_id in (0, 1) for record, _ in cluster[0].queue("shop%T", queue_id).records]
        assert [decode_record(record).properties["INSTANCE_ID"] for record in stored] == ["shop"] * 4
    with pytest.raises(BadRequest, match="characters"):
        Producer("P" * 118, "127.0.0.1:9876", options=options)
