"""Messages of a topic in the order of their store times, in bounded scans."""

from __future__ import annotations

from typing import Any, NoReturn

import msgspec
import pytest

from managed_cluster import managed_cluster
from tandemmq.api import broker_consume
from tandemmq.api.broker_consume import Pulled, PullStatus
from tandemmq.client import Message, MessageQueue
from tandemmq.errors import BadRequest, BrokerUnreachable, NoRoute
from tandemmq.manage import message_scan
from tandemmq.manage.message_scan import MessageFilter, scan_messages
from tandemmq.manage.tools import Tools
from tandemmq.protocol.requests.consume import PullRequest
from tandemmq.testing import Cluster


async def fill(cluster: Cluster, count: int, *, queue_count: int = 3) -> None:
    await cluster.create_topic("orders", queue_count=queue_count)
    async with cluster.producer() as producer:
        queues = await producer.queues("orders")
        for number in range(count):
            tags, properties = ("odd" if number % 2 else "even"), {"shop": str(number % 5)}
            message = Message("orders", b"%d" % number, tags=tags, keys=[f"k{number}"], properties=properties)
            await producer.send(message, queue=queues[number % len(queues)])


async def scan_all(tools: Tools, wanted: MessageFilter, *, newest_first: bool, page: int) -> list[int]:
    """Returns the numbers of all messages, page by page."""
    numbers: list[int] = []
    resume = ""
    while True:
        found = await scan_messages(
            tools, "orders", wanted, newest_first=newest_first, count_max=page, resume=resume
        )
        assert len(found.messages) <= page
        times = [one.stored_at_ms for one in found.messages]
        assert times == sorted(times, reverse=newest_first)
        numbers += [int(one.body) for one in found.messages]
        resume = found.resume
        if not resume:
            return numbers


async def test_pages_hold_each_message_once_in_both_orders() -> None:
    async with managed_cluster() as managed:
        cluster, tools = managed.cluster, managed.tools
        await fill(cluster, 200)
        for newest_first in (True, False):
            numbers = await scan_all(tools, MessageFilter(), newest_first=newest_first, page=17)
            assert sorted(numbers) == list(range(200))
            assert abs(numbers[0] - (199 if newest_first else 0)) < 20


async def test_filters_select_by_tag_key_property_queue_and_time() -> None:
    async with managed_cluster() as managed:
        cluster, tools = managed.cluster, managed.tools
        await fill(cluster, 60)
        cases = [
            (MessageFilter(tags="odd"), lambda n: n % 2 == 1),
            (MessageFilter(key="k7"), lambda n: n == 7),
            (MessageFilter(property_name="shop", property_value="3"), lambda n: n % 5 == 3),
            (MessageFilter(property_name="shop"), lambda n: True),
            (MessageFilter(property_name="none"), lambda n: False),
            (MessageFilter(queue_id=1), lambda n: n % 3 == 1),
            (MessageFilter(queue_id=1, first_offset=5), lambda n: n % 3 == 1 and n >= 16),
        ]
        for wanted, expected in cases:
            for newest_first in (True, False):
                numbers = await scan_all(tools, wanted, newest_first=newest_first, page=10)
                assert sorted(numbers) == [n for n in range(60) if expected(n)]
        everything = (await scan_messages(tools, "orders", newest_first=False, count_max=60)).messages
        begin, end = everything[20].stored_at_ms, everything[40].stored_at_ms
        times = MessageFilter(begin_ms=begin, end_ms=end)
        expected_numbers = [int(one.body) for one in everything if begin <= one.stored_at_ms <= end]
        assert sorted(await scan_all(tools, times, newest_first=True, page=7)) == sorted(expected_numbers)


async def test_a_scan_ends_at_its_bound_and_says_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_scan, "SCAN_MAX", 64)
    async with managed_cluster() as managed:
        cluster, tools = managed.cluster, managed.tools
        await fill(cluster, 300, queue_count=1)
        wanted = MessageFilter(key="k3")
        first = await scan_messages(tools, "orders", wanted, count_max=10)
        assert (first.messages, first.total) == ((), 300)
        assert 64 <= first.scanned < 300
        assert first.resume
        second = await scan_messages(tools, "orders", wanted, count_max=10, resume=first.resume)
        assert second.total == 300 - first.scanned
        assert await scan_all(tools, wanted, newest_first=True, page=10) == [3]


def fail_unreachable(*_: object) -> NoReturn:
    raise BrokerUnreachable("it is away")


async def test_a_silent_broker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async with managed_cluster() as managed:
        cluster, tools = managed.cluster, managed.tools
        await fill(cluster, 3)
        broker_name = (await scan_messages(tools, "orders")).messages[0].broker_name
        resume = (await scan_messages(tools, "orders", count_max=1)).resume
        monkeypatch.setattr(message_scan.TopicPuller, "replica", fail_unreachable)
        for text in ("", resume):
            found = await scan_messages(tools, "orders", resume=text)
            assert (found.messages, found.silent) == ((), (broker_name,))


async def test_invalid_input_is_refused() -> None:
    async with managed_cluster() as managed:
        cluster, tools = managed.cluster, managed.tools
        await fill(cluster, 3)
        for resume in ("x", "a:1@2", "a:1@2-3 ; b", "a:1@2-" + "9" * 19):
            with pytest.raises(BadRequest, match="continue"):
                await scan_messages(tools, "orders", resume=resume)
        gone = await scan_messages(tools, "orders", resume="gone:1@2-3")
        assert gone.messages == ()
        with pytest.raises(NoRoute):
            await scan_messages(tools, "orders", MessageFilter(queue_id=99))


async def test_a_part_of_a_queue_is_read_whole() -> None:
    async with managed_cluster() as managed:
        cluster, tools = managed.cluster, managed.tools
        await fill(cluster, 100, queue_count=1)
        reader = message_scan.TopicPuller(tools, "orders")
        (queue,) = await reader.queues()
        assert isinstance(queue, MessageQueue)
        found, size = await reader.read_range(queue, 5, 95)
        assert [one.queue_offset for one in found] == list(range(5, 95))
        assert size > 90


async def test_a_part_with_a_hole_is_read_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Java's brokers answer as at the end of a queue there, but with a later offset."""
    async with managed_cluster() as managed:
        cluster, tools = managed.cluster, managed.tools
        await fill(cluster, 20, queue_count=1)
        pull = broker_consume.pull

        async def with_hole(client: Any, address: str, header: PullRequest) -> Pulled:
            if 5 <= header.queue_offset < 10:
                return Pulled(PullStatus.NOTHING_NEW, 10, 0, 20, 0, b"")
            return await pull(client, address, msgspec.structs.replace(header, count_max=5))

        monkeypatch.setattr(broker_consume, "pull", with_hole)
        reader = message_scan.TopicPuller(tools, "orders")
        (queue,) = await reader.queues()
        found, _ = await reader.read_range(queue, 0, 20)
        assert [one.queue_offset for one in found] == [*range(5), *range(10, 20)]
