"""Stored messages: found by id, key and position, and their state in groups, at an in-process cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from managed_cluster import managed_cluster
from tandemmq.client import Consumer, Message, ReceivedMessage
from tandemmq.errors import BadRequest, BrokerUnreachable, NoRoute
from tandemmq.manage.messages import (
    describe_sys_flag,
    find_by_key,
    find_by_position,
    find_place,
    find_records,
    read_group_states,
)
from tandemmq.manage.tools import Target
from tandemmq.protocol.message_id import encode_host, encode_message_id
from tandemmq.testing.cluster import consumer_options
from waits import until


async def test_one_message_is_found_in_every_way() -> None:
    async with managed_cluster() as managed:
        cluster, tools = managed.cluster, managed.tools
        await cluster.create_topic("orders", queue_count=1)
        async with cluster.producer() as producer:
            sent = [await producer.send(Message("orders", b"x%d" % n, keys=[f"k{n}"])) for n in range(3)]
        one = sent[1]
        host = encode_host("127.0.0.1", 1)
        moved = encode_message_id(host, int(one.message_id[-16:], 16))

        async def is_indexed() -> bool:
            return bool(await find_by_key(tools, "orders", "k1", None, None, count_max=8))

        await until(is_indexed)
        (found,) = await find_records(tools, one.message_id, "")
        assert (found.body, found.queue_offset) == (b"x1", 1)
        assert await find_records(tools, one.unique_key, "orders") == [found]
        assert await find_records(tools, one.message_id, "orders") == [found]
        assert await find_by_position(tools, "orders", one.queue.broker_name, 0, 1) == found
        assert await find_by_position(tools, "orders", one.queue.broker_name, 0, 9) is None
        assert await find_by_key(tools, "orders", "k1", found.stored_at_ms, None, count_max=8) == [found]
        assert await find_by_key(tools, "orders", "k1", None, found.stored_at_ms - 1, count_max=8) == []
        place = await find_place(tools, found)
        assert (place.broker_name, place.address) == (one.queue.broker_name, cluster.master_address)
        # No server listens at the address in the id, which is not announced: it is not dialled.
        assert await find_records(tools, moved, "") == []
        await managed.register(Target("DefaultCluster", "broker-b", 0, "127.0.0.1:1"))
        assert await find_records(tools, one.message_id, "") == [found]
        with pytest.raises(BrokerUnreachable, match="no other broker has message"):
            await find_records(tools, moved, "")
        with pytest.raises(BadRequest):
            await find_records(tools, "no id", "")
        with pytest.raises(NoRoute, match="nobody"):
            await find_by_position(tools, "orders", "nobody", 0, 1)


async def test_a_message_of_a_lost_master_is_found_at_its_slave() -> None:
    async with managed_cluster(slave=True) as managed:
        cluster, tools = managed.cluster, managed.tools
        await cluster.create_topic("orders", queue_count=1)
        async with cluster.producer() as producer:
            sent = await producer.send(Message("orders", b"kept"))
        await cluster.lose_master()
        (found,) = await find_records(tools, sent.message_id, "")
        assert found.body == b"kept"


async def test_groups_show_who_is_done_with_a_message() -> None:
    async with managed_cluster() as managed:
        cluster, tools = managed.cluster, managed.tools
        await cluster.create_topic("orders", queue_count=1)
        async with cluster.producer() as producer:
            sent = await producer.send(Message("orders", b"x", tags="a"))
        (record,) = await find_records(tools, sent.message_id, "")
        options = replace(consumer_options(), commit_s=0.2)
        for group, tags in (("readers", "*"), ("choosers", "b")):
            async with Consumer(group, cluster.name_servers, options=options) as consumer:
                consumer.subscribe("orders", tags)
                messages: list[ReceivedMessage] = []

                async def has_read() -> bool:
                    messages.extend(await consumer.poll(8, timeout_s=0.1))  # noqa: B023
                    consumer.ack(*messages)  # noqa: B023
                    states = {one.group: one for one in await read_group_states(tools, record)}
                    return states.get(group) is not None and states[group].state != "waits"  # noqa: B023

                await until(has_read)
                states = {one.group: one for one in await read_group_states(tools, record)}
                assert states[group].mode in ("push", "pull")
                assert states[group].members == 1
                assert states[group].state.startswith("done" if tags == "*" else "skipped")
        states = {one.group: one for one in await read_group_states(tools, record)}
        assert states["readers"].mode == "offline"


def test_flags_are_words() -> None:
    assert describe_sys_flag(0) == ()
    assert describe_sys_flag(0x201 | 0x8 | 0x10 | 0x1000) == (
        "body compressed by zstd",
        "committed transaction",
        "sender's address is IPv6",
        "unknown bits 0x1000",
    )
