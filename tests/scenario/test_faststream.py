"""FastStream on a real cluster: failures, dead letters, requests, batches, order, delays, a lost master."""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from client_rig import running_rig
from faststream import AckPolicy
from faststream.exceptions import NackMessage, RejectMessage, SetupError, StopConsume
from faststream.security import SASLPlaintext

from tandemmq.broker.options import AccessOptions
from tandemmq.client import ClientOptions, Consumer, ConsumerOptions, Message, Producer, StartFrom
from tandemmq.errors import BrokerUnreachable, RequestTimeout, TandemError
from tandemmq.integrations.faststream import (
    RocketMQBroker,
    RocketMQMessage,
    RocketMQResponse,
    TestRocketMQBroker,
)
from tandemmq.protocol.signature import Credentials
from tandemmq.testing import Cluster
from waits import PATIENCE_S, until

EXAMPLE = Path(__file__).parents[2] / "examples" / "fulfilment"
FAST = ClientOptions(route_refresh_s=0.3, heartbeat_s=1.0)
FIRST = ConsumerOptions(start_from=StartFrom.FIRST)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster() as started:
        yield started


@pytest.fixture
async def broker(cluster: Cluster) -> AsyncIterator[RocketMQBroker]:
    """A broker that a test starts once its subscribers are registered."""
    made = RocketMQBroker(cluster.name_servers, client=FAST, logger=None)
    async with made:
        yield made


async def take(queue: asyncio.Queue[Any], count: int = 1) -> list[Any]:
    async with asyncio.timeout(PATIENCE_S):
        return [await queue.get() for _ in range(count)]


async def dead_letters(cluster: Cluster, group: str, count: int) -> list[bytes]:
    async with Consumer("undertaker", cluster.name_servers, options=FIRST) as consumer:
        consumer.subscribe(f"%DLQ%{group}")
        async with asyncio.timeout(PATIENCE_S):
            return sorted([(await anext(consumer)).body for _ in range(count)])


async def test_failed_messages_are_retried_rejected_ones_are_dead_letters(
    cluster: Cluster, broker: RocketMQBroker
) -> None:
    handled: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

    @broker.subscriber("Orders", group="retries", tags="retry")
    async def fail_once(body: str, message: RocketMQMessage) -> None:
        await handled.put((body, message.raw_message.retry_count))
        if message.raw_message.retry_count == 0:
            raise NackMessage(delay_s=1) if body == "nack" else ValueError("on purpose")

    @broker.subscriber("Orders", group="rejects", tags="reject", ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def reject(body: str) -> None:
        raise RejectMessage(reason="asked") if body == "asked" else ValueError("on purpose")

    @broker.subscriber("Orders", group="ignored", tags="ignore", ack_policy=AckPolicy.ACK)
    async def ignore(body: str) -> None:
        await handled.put((body, -1))
        raise ValueError("on purpose")

    await broker.start()
    await broker.publish("nack", "Orders", tag="retry")
    await broker.publish("asked", "Orders", tag="reject")
    await broker.publish("failed", "Orders", tag="reject")
    await broker.publish("ignored", "Orders", tag="ignore")
    assert sorted(await take(handled, 3)) == [("ignored", -1), ("nack", 0), ("nack", 1)]
    assert await dead_letters(cluster, "rejects", 2) == [b"asked", b"failed"]
    await broker.stop()  # commits
    for group, tags in (("retries", "retry"), ("rejects", "reject"), ("ignored", "ignore")):
        async with Consumer(group, cluster.name_servers, options=FIRST) as consumer:
            consumer.subscribe("Orders", tags)
            await until(lambda: len(consumer.assigned) > 4)  # the retry topic, too
            assert await consumer.poll(timeout_s=0.5) == []


async def test_manual_acknowledgement_and_what_a_stopped_application_left(
    cluster: Cluster, broker: RocketMQBroker
) -> None:
    seen: asyncio.Queue[str] = asyncio.Queue()

    @broker.subscriber("Orders", group="manual", ack_policy=AckPolicy.MANUAL)
    async def handle(body: str, message: RocketMQMessage) -> None:
        if body == "kept":
            await message.ack()
        await seen.put(body)

    await broker.start()
    await broker.publish("kept", "Orders")
    await broker.publish("left", "Orders")
    assert sorted(await take(seen, 2)) == ["kept", "left"]
    await broker.stop()
    await broker.start()
    assert await take(seen) == ["left"]


async def test_requests_are_answered_over_rocketmqs_own_replies(
    cluster: Cluster, broker: RocketMQBroker
) -> None:
    @broker.subscriber("Prices")
    async def price(name: str) -> RocketMQResponse:
        return RocketMQResponse({name: 3.5}, headers={"currency": "EUR"})

    @broker.subscriber("Silence", no_reply=True)
    async def silent(name: str) -> None: ...

    await broker.start()
    reply = await broker.request("apples", "Prices", timeout=PATIENCE_S, correlation_id="77")
    assert (await reply.decode(), reply.correlation_id) == ({"apples": 3.5}, "77")
    assert reply.headers["currency"] == "EUR"
    with pytest.raises(RequestTimeout):
        await broker.request("apples", "Silence", timeout=0.2)
    async with Producer("plain", cluster.name_servers) as plain:  # any client of RocketMQ may ask
        answer = await plain.request(Message("Prices", b"pears"), timeout_s=PATIENCE_S)
        assert answer.body == b'{"pears":3.5}'


async def test_batches_and_workers(broker: RocketMQBroker) -> None:
    sizes: asyncio.Queue[int] = asyncio.Queue()
    running, most = 0, 0
    together = asyncio.Event()

    @broker.subscriber("Orders", group="batches", batch=True, max_records=7)
    async def batch(numbers: list[int]) -> None:
        await sizes.put(len(numbers))

    @broker.subscriber("Orders", group="workers", max_workers=4)
    async def work(number: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 4:
            together.set()
        async with asyncio.timeout(PATIENCE_S):
            await together.wait()
        running -= 1

    await broker.start()
    results = await broker.publish_batch(*range(20), topic="Orders")
    assert [one.queue_offset for one in results] == list(range(20))
    got = 0
    while got < 20:
        (size,) = await take(sizes)
        assert 1 <= size <= 7
        got += size
    await until(lambda: most == 4)


async def test_an_ordered_queue_waits_for_its_failed_message(broker: RocketMQBroker) -> None:
    handled: asyncio.Queue[int] = asyncio.Queue()

    @broker.subscriber("Orders", group="ledger", orderly=True, max_workers=4)
    async def handle(number: int, message: RocketMQMessage) -> None:
        await handled.put(number)
        if number == 1 and message.raw_message.retry_count == 0:
            raise ValueError("on purpose")

    await broker.start()
    sent = [await broker.publish(number, "Orders", ordering_key="customer 7") for number in range(4)]
    assert len({one.queue for one in sent}) == 1
    assert await take(handled, 5) == [0, 1, 1, 2, 3]


async def test_a_delayed_message_comes_later(broker: RocketMQBroker) -> None:
    handled: asyncio.Queue[float] = asyncio.Queue()

    @broker.subscriber("Orders")
    async def handle(body: str) -> None:
        await handled.put(time.time())

    await broker.start()
    sent_at = time.time()
    await broker.publish("later", "Orders", delay_s=1.2)
    (at,) = await take(handled)
    assert at >= sent_at + 1


async def test_messages_are_read_without_a_handler(broker: RocketMQBroker) -> None:
    one, batches = (
        broker.subscriber("Orders", group="one"),
        broker.subscriber("Orders", group="b", batch=True),
    )
    await broker.start()
    assert await one.get_one(timeout=0.01) is None
    await broker.publish_batch("a", "b", topic="Orders")
    first = await one.get_one(timeout=PATIENCE_S)
    assert first is not None
    assert await first.decode() == "a"
    await first.ack()
    async for message in one:
        assert await message.decode() == "b"
        break
    batch = await batches.get_one(timeout=PATIENCE_S)
    assert batch is not None
    assert await batch.decode() == ["a", "b"]


async def test_a_message_that_is_parsed_slowly_is_not_lost(broker: RocketMQBroker) -> None:
    timeout_s = 0.5

    async def parse(message: Any, parse_by_default: Callable[[Any], Awaitable[Any]]) -> Any:
        await asyncio.sleep(timeout_s * 1.2)
        return await parse_by_default(message)

    one = broker.subscriber("Orders", group="slow", parser=parse)
    await broker.start()
    await broker.publish("a", topic="Orders")
    found = None
    async with asyncio.timeout(PATIENCE_S):
        while found is None:
            found = await one.get_one(timeout=timeout_s)
    assert await found.decode() == "a"


async def test_a_handler_may_stop_its_subscriber(broker: RocketMQBroker) -> None:
    handled = []

    @broker.subscriber("Orders")
    async def handle(body: str) -> None:
        handled.append(body)
        raise StopConsume

    await broker.start()
    await broker.publish("a", "Orders")
    (subscriber,) = broker.subscribers
    await until(lambda: not subscriber.running)
    await broker.publish("b", "Orders")
    await broker.stop()
    assert handled == ["a"]


async def test_a_subscriber_may_come_later_and_the_test_broker_may_use_a_cluster(
    broker: RocketMQBroker,
) -> None:
    publisher = broker.publisher("Invoices")

    @broker.subscriber("Orders")
    @publisher
    async def bill(body: str) -> str:
        return body

    async with TestRocketMQBroker(broker, with_real=True):
        handled: asyncio.Queue[str] = asyncio.Queue()
        late = broker.subscriber("Orders", group="late")
        late(handled.put)
        await late.start()
        await broker.publish("a", "Orders")
        await bill.wait_call(PATIENCE_S)
        bill.mock.assert_called_once_with("a")
        await until(lambda: publisher.mock.called)
        assert await take(handled) == ["a"]
        await late.stop()


async def test_mistakes_and_an_unreachable_cluster_are_named(broker: RocketMQBroker) -> None:
    broker.subscriber("Orders")
    keep = broker.subscriber("Orders", tags="a")
    with pytest.raises(SetupError, match="two subscribers have the group 'faststream-Orders'"):
        await broker.start()
    assert keep.topic == "Orders"
    assert await broker.ping(timeout=PATIENCE_S)
    lonely = RocketMQBroker("127.0.0.1:1")
    assert not await lonely.ping(timeout=1.0)
    with pytest.raises(BrokerUnreachable):
        await lonely.start()


async def test_a_stopped_broker_has_no_connection_and_may_be_started_again(broker: RocketMQBroker) -> None:
    instance = await broker.connect()
    assert instance.is_connected
    await broker.stop()
    assert not instance.is_connected
    await broker.start()
    assert await broker.ping(timeout=PATIENCE_S)


async def test_requests_are_signed(tmp_path: Path) -> None:
    access = AccessOptions(authentication_enabled=True, first_user=Credentials("root", "password"))
    async with running_rig(tmp_path) as rig:
        await rig.start_broker(access=access)
        known = SASLPlaintext(username="root", password="password")
        broker = RocketMQBroker(rig.namesrv, client=FAST, logger=None, security=known)
        handled: asyncio.Queue[str] = asyncio.Queue()

        @broker.subscriber("Orders")
        async def handle(body: str) -> None:
            await handled.put(body)

        async with broker:
            await broker.start()
            await broker.publish("signed", "Orders")
            assert await take(handled) == ["signed"]
        stranger = SASLPlaintext(username="root", password="wrong")
        async with RocketMQBroker(rig.namesrv, client=FAST, logger=None, security=stranger) as refused:
            with pytest.raises(TandemError, match=r"signature|password|authenticat"):
                await refused.publish("unsigned", "Orders")


@contextmanager
def running_process(cluster: Cluster, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs the example as its users do; its log is in `folder`."""
    command = [sys.executable, "-m", "faststream", "run", "fulfilment:app"]
    environment = {**os.environ, "NAMESRV": cluster.name_servers}
    with (folder / "application.log").open("ab") as output:
        process = subprocess.Popen(command, cwd=EXAMPLE, env=environment, stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@pytest.mark.process
@pytest.mark.long
async def test_other_processes_handle_what_a_killed_one_left(
    cluster: Cluster, broker: RocketMQBroker, tmp_path: Path
) -> None:
    shipped: set[int] = set()

    @broker.subscriber("Shipments", group="accounting")
    async def note(shipment: dict[str, int]) -> None:
        shipped.add(shipment["order"])

    async def publish(numbers: range) -> None:
        for number in numbers:
            await broker.publish({"number": number, "customer": "c", "quantity": 1}, "Orders", tag="paid")

    await broker.start()
    with running_process(cluster, tmp_path) as victim, running_process(cluster, tmp_path) as heir:
        await publish(range(50))
        await until(lambda: len(shipped) > 10)
        publishing = asyncio.ensure_future(publish(range(50, 200)))
        victim.kill()
        await publishing
        await until(lambda: shipped == set(range(200)), timeout_s=3 * PATIENCE_S)
        heir.terminate()
        assert await asyncio.to_thread(heir.wait, PATIENCE_S) == 0


@pytest.mark.process
@pytest.mark.long
def test_the_example_passes(tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLE, tmp_path / EXAMPLE.name)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "."]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=5 * PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


async def test_nothing_is_lost_with_a_master() -> None:
    """Publishes while the master is killed: every acknowledged message, and every result of its handler, is
    handled.
    """
    async with Cluster(elected=True) as cluster:
        broker = RocketMQBroker(cluster.name_servers, client=FAST, logger=None)
        handled: set[int] = set()
        results: set[int] = set()
        acknowledged: set[int] = set()

        @broker.subscriber("Orders", max_workers=8)
        @broker.publisher("Results")
        async def work(number: int, message: RocketMQMessage) -> int:
            handled.add(number)
            if number % 5 == 0 and message.raw_message.retry_count == 0:
                raise NackMessage(delay_s=1)
            return number

        @broker.subscriber("Results", batch=True)
        async def book(numbers: list[int]) -> None:
            results.update(numbers)

        async def publish(numbers: range) -> None:
            for number in numbers:
                try:
                    await broker.publish(number, "Orders")
                except TandemError:  # the sender knows of it
                    continue
                acknowledged.add(number)

        async with broker:
            await broker.start()
            await publish(range(50))
            publishing = asyncio.ensure_future(publish(range(50, 400)))
            await until(lambda: len(acknowledged) > 100)
            await cluster.lose_master()
            await publishing
            assert len(acknowledged) > 300
            await until(lambda: acknowledged <= handled)
            await until(lambda: acknowledged <= results)
