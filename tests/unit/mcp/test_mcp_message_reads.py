"""The tools that read waiting messages, transactions and traces, on a cluster in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from managed_cluster import ManagedCluster, managed_cluster
from tandemmq.client import Message, ProducerOptions, TransactionProducer, TransactionState
from tandemmq.manage.tools import Target, find_targets
from tandemmq.mcp.answers import UNTRUSTED
from unit.mcp.mcp_client import read
from waits import until

KEY_OF_NOTHING = "7F" * 16


@pytest.fixture
async def managed() -> AsyncIterator[ManagedCluster]:
    settings = {"transactionTimeOut": 50, "transactionCheckInterval": 600_000}
    async with managed_cluster(settings=settings) as subject:
        await subject.cluster.create_topic("Orders", queue_count=1)
        yield subject


async def test_waiting_messages_are_listed_by_due_time(managed: ManagedCluster) -> None:
    async with managed.cluster.producer() as producer:
        await producer.send(Message("Orders", b"later", keys=["timer"], delay_ms=1_800_000))
        await producer.send(Message("Orders", b"level", keys=["level"], delay_level=17))
    found = await read(managed.tools, "list_waiting_messages")
    assert (found["note"], found["is_cut"], found["incomplete"]) == (UNTRUSTED, False, [])
    assert [(one["level"], one["waiting"]) for one in found["levels"]] == [(17, 1)]
    assert [one["level"] for one in found["untrusted"]["messages"]] == [None, 17]
    assert set(found["levels"][0]) == {"broker", "level", "delay_seconds", "waiting", "next_at"}
    names = "broker topic message_id unique_key keys tags stored_at due_at level"
    assert set(found["untrusted"]["messages"][0]) == set(names.split())
    assert found["untrusted"]["messages_by_topic"] == {"Orders": 2}
    found = await read(managed.tools, "list_waiting_messages", search="TIMER")
    assert [one["keys"] for one in found["untrusted"]["messages"]] == ["timer"]
    found = await read(managed.tools, "list_waiting_messages", limit=1)
    assert (len(found["untrusted"]["messages"]), found["untrusted"]["more_messages"]) == (1, 1)


async def test_open_transactions_are_listed(managed: ManagedCluster) -> None:
    payers = TransactionProducer(
        "payers", managed.cluster.name_servers, check=lambda _: TransactionState.UNKNOWN
    )
    async with payers as producer:
        await producer.send_half(Message("Orders", b"pay", keys=["k1"]))
        found = await read(managed.tools, "list_transactions")
    assert (found["note"], found["is_cut"], found["incomplete"]) == (UNTRUSTED, False, [])
    [half] = found["untrusted"]["open"]
    assert (half["topic"], half["producer_group"], half["keys"]) == ("Orders", "payers", "k1")
    names = "broker topic producer_group message_id unique_key keys tags born_at stored_at checks"
    assert set(half) == set(names.split())
    assert found["untrusted"]["given_up"] == []


async def test_given_up_transactions_are_listed() -> None:
    settings = {"transactionTimeOut": 50, "transactionCheckInterval": 50, "transactionCheckMax": 1}
    async with managed_cluster(settings=settings) as managed:
        await managed.cluster.create_topic("Orders", queue_count=1)
        payers = TransactionProducer(
            "payers", managed.cluster.name_servers, check=lambda _: TransactionState.UNKNOWN
        )
        async with payers as producer:
            await producer.send_half(Message("Orders", b"pay", keys=["k1"]))

            async def is_given_up() -> bool:
                found = await read(managed.tools, "list_transactions")
                return [one["keys"] for one in found["untrusted"]["given_up"]] == ["k1"]

            await until(is_given_up)


async def test_a_group_without_a_master_is_named_as_incomplete(managed: ManagedCluster) -> None:
    [known] = await find_targets(managed.tools)
    await managed.register(Target(known.cluster, "broker-b", 1, "127.0.0.1:1"))
    for tool in ("list_waiting_messages", "list_transactions"):
        found = await read(managed.tools, tool)
        assert "broker-b: has no master" in found["incomplete"]


async def test_a_trace_is_shown_as_data(managed: ManagedCluster) -> None:
    assert "no client has traced" in await read(managed.tools, "trace_message", unique_key=KEY_OF_NOTHING)
    async with managed.cluster.producer(options=ProducerOptions(trace=True)) as producer:
        sent = await producer.send(Message("Orders", b"x"))

    async def is_traced() -> bool:
        found = await read(managed.tools, "trace_message", unique_key=sent.unique_key)
        return not isinstance(found, str) and bool(found["is_traced"])

    await until(is_traced)
    found = await read(managed.tools, "trace_message", unique_key=sent.unique_key)
    assert found["note"] == UNTRUSTED
    [send] = found["untrusted"]["sends"]
    assert (send["topic"], send["is_ok"]) == ("Orders", True)
    assert set(send) == {"group", "client", "topic", "kind", "sent_at", "took_ms", "is_ok", "broker"}
    found = await read(managed.tools, "trace_message", unique_key=KEY_OF_NOTHING)
    assert found["is_traced"] is False


async def test_the_groups_of_a_message_are_listed(managed: ManagedCluster) -> None:
    async with managed.cluster.producer() as producer:
        sent = [await producer.send(Message("Orders", b"%d" % number)) for number in range(2)]
    await managed.consume("Orders", "billing", 2)
    found = await read(managed.tools, "list_groups_of_message", topic="Orders", message_id=sent[0].unique_key)
    assert [(one["group"], one["state"]) for one in found["groups"]] == [("billing", "done")]
    assert (found["queue_offset"], found["has_more"]) == (0, False)
    missing = await read(managed.tools, "list_groups_of_message", topic="Orders", message_id=KEY_OF_NOTHING)
    assert "has no message" in missing
