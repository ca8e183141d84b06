"""Open transactions at an in-process cluster: seen until their end, checked again on request."""

from __future__ import annotations

import time

from managed_cluster import managed_cluster
from tandemmq.client import Message, TransactionProducer
from tandemmq.client import TransactionState as State
from tandemmq.manage.message_scan import scan_messages
from tandemmq.manage.tools import Target, Tools, find_targets
from tandemmq.manage.transactions import (
    OpenTransaction,
    check_again,
    read_all_transactions,
    read_discarded_transactions,
    read_open_transactions,
)
from waits import until


async def master(tools: Tools) -> Target:
    (target,) = await find_targets(tools, masters_only=True)
    return target


async def open_ones(tools: Tools) -> list[OpenTransaction]:
    found = await read_open_transactions(tools, await master(tools))
    assert not found.is_cut
    return list(found.transactions)


async def test_half_messages_are_open_until_they_end() -> None:
    async with managed_cluster() as managed:
        cluster, tools = managed.cluster, managed.tools
        await cluster.create_topic("orders", queue_count=1)
        assert await open_ones(tools) == []
        assert await read_discarded_transactions(tools, await master(tools)) == ()
        async with TransactionProducer(
            "payers", cluster.name_servers, check=lambda _: State.UNKNOWN
        ) as producer:
            for body in (b"kept", b"committed", b"rolled back"):
                half = await producer.send_half(Message("orders", body, tags="t", keys=["k"]))
                if body != b"kept":
                    await producer.end(half, State.COMMIT if body == b"committed" else State.ROLLBACK)

            async def is_one_left() -> bool:
                return len(await open_ones(tools)) == 1

            await until(is_one_left)
            (one,) = await open_ones(tools)
            assert (one.topic, one.producer_group, one.tags, one.keys) == ("orders", "payers", "t", "k")
            assert one.checks == 0
            assert abs(one.born_at_ms - time.time() * 1000) < 60_000
        assert [one.body for one in (await scan_messages(tools, "orders")).messages] == [b"committed"]


async def test_a_discarded_transaction_is_checked_again_and_ends_once() -> None:
    settings = {"transactionTimeOut": 50, "transactionCheckInterval": 100, "transactionCheckMax": 2}
    async with managed_cluster(settings=settings) as managed:
        cluster, tools = managed.cluster, managed.tools
        await cluster.create_topic("orders", queue_count=1)
        state = State.UNKNOWN
        checks = 0

        def answer(_: object) -> State:
            nonlocal checks
            checks += 1
            return state

        async with TransactionProducer("payers", cluster.name_servers, check=answer) as producer:
            await producer.send_half(Message("orders", b"pay"))

            async def is_discarded() -> bool:
                return bool(await read_discarded_transactions(tools, await master(tools)))

            await until(is_discarded)
            (given_up,) = await read_discarded_transactions(tools, await master(tools))
            away = Target("DefaultCluster", "broker-b", 0, "127.0.0.1:1")
            found = await read_all_transactions(tools, [away, await master(tools)])
            assert (found.discarded, set(found.failed)) == ([given_up], {away})
            assert given_up.checks == 2
            before, state = checks, State.COMMIT
            await check_again(tools, given_up.address, given_up.message_id, given_up.topic)

            async def is_delivered() -> bool:
                return [one.body for one in (await scan_messages(tools, "orders")).messages] == [b"pay"]

            await until(is_delivered)
            await until(lambda: checks > before)
