"""Orderly consumers against real brokers: locks, order, failures, an absent master.

Source: spec semantics 10.5, 10.6; spec replication 8.4.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path

import pytest
from client_rig import FAST, Rig, numbers, running_cluster, take

from tandemmq.api import broker_consume
from tandemmq.client import (
    Admin,
    BlockingConsumer,
    Consumer,
    ConsumerOptions,
    Message,
    MessageQueue,
    Producer,
    ReceivedMessage,
    StartFrom,
)
from tandemmq.client.consumer import assignment, inbox
from tandemmq.errors import BadRequest, ClientError
from tandemmq.protocol.bodies.client import LockRequest
from waits import PATIENCE_S, until


async def fill_queues(rig: Rig, count: int, *, queue_count: int = 4, first: int = 0) -> None:
    """Sends messages; the body of message n of each queue is `queue:n`."""
    async with Producer("P", rig.namesrv) as producer:
        queues = await producer.queues("T")
        assert len(queues) == queue_count
        for number in range(first, first + count):
            for queue in queues:
                body = b"%d:%d" % (queue.queue_id, number)
                assert (await producer.send(Message(topic="T", body=body), queue=queue)).is_ok


def in_order(messages: list[ReceivedMessage]) -> bool:
    seen: dict[int, list[int]] = defaultdict(list)
    for message in messages:
        queue_id, number = message.body.split(b":")
        seen[int(queue_id)].append(int(number))
    return all(found == sorted(found) for found in seen.values())


async def test_each_queue_comes_in_order_one_message_at_a_time(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as rig:
        await fill_queues(rig, 10)
        async with rig.consumer(orderly=True, auto_ack=False) as consumer:
            got: list[ReceivedMessage] = []
            while len(got) < 40:
                messages = await consumer.poll(256, PATIENCE_S)
                assert messages
                queues = [message.queue_id for message in messages]
                assert len(set(queues)) == len(queues), "one of each queue at a time"
                if len(queues) == 4:
                    assert await consumer.poll(1, 0.02) == [], "the others wait"
                consumer.ack(*messages)
                got += messages
            assert in_order(got)


@pytest.mark.parametrize("turns", range(1, 60, 4))
async def test_a_close_during_a_rebalance_leaves_no_lock(tmp_path: Path, turns: int) -> None:
    """The next member would wait a minute for a remaining lock."""
    async with running_cluster(tmp_path) as rig:
        async with Admin(rig.namesrv) as admin:
            await admin.create_topic("U", queue_count=4)
        consumer = rig.consumer(orderly=True)
        async with consumer:
            queues = {*await consumer.queues("T"), *await consumer.queues("U")}
            consumer.unsubscribe("T")
            consumer.subscribe("U")
            for _ in range(turns):
                await asyncio.sleep(0)
        async with Consumer("other", rig.namesrv) as other:
            await other.queues("T")
            (address,) = other.instance.heartbeat_addresses(with_slaves=False)
            locked = await broker_consume.lock_queues(
                other.instance.remoting,
                address,
                LockRequest(client_id="another", consumer_group="CG", queues=tuple(queues)),
            )
            assert locked == queues


async def test_a_message_that_fails_holds_its_queue_only(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, queue_count=2) as rig:
        await fill_queues(rig, 5, queue_count=2)
        done: list[ReceivedMessage] = []
        failures = 0
        async with rig.consumer(orderly=True) as consumer, asyncio.timeout(PATIENCE_S):
            async for message in consumer:
                if message.body == b"0:1" and message.retry_count < 3:
                    failures += 1
                    await consumer.suspend(message, delay_s=0.05)
                    continue
                done.append(message)
                if len(done) == 10:
                    break
        assert failures == 3
        assert in_order(done)
        assert len({message.body for message in done}) == 10


async def test_after_too_many_failures_the_queue_goes_on_and_the_message_is_a_dead_letter(
    tmp_path: Path,
) -> None:
    async with running_cluster(tmp_path, queue_count=1) as rig:
        await rig.fill("T", 3)
        done = []
        async with (
            rig.consumer(orderly=True, orderly_retry_count_max=2) as consumer,
            asyncio.timeout(PATIENCE_S),
        ):
            async for message in consumer:
                if message.body == b"1":
                    await consumer.suspend(message, delay_s=0.02)
                    continue
                done.append(int(message.body))
                if done == [0, 2]:
                    break
        async with rig.consumer("DeadReader", "%DLQ%CG") as reader:
            assert numbers(await take(reader, 1)) == [1]


async def test_only_one_member_has_a_queue_while_they_change(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as rig:
        await fill_queues(rig, 50)
        got: list[ReceivedMessage] = []
        working: dict[int, str] = {}

        async def work(name: str, consumer: Consumer) -> None:
            async for message in consumer:
                assert working.setdefault(message.queue_id, name) == name, "two work on one queue"
                await asyncio.sleep(0.001)
                got.append(message)
                del working[message.queue_id]

        async with rig.consumer(orderly=True) as first:
            tasks = [asyncio.create_task(work("first", first))]
            await until(lambda: len(got) > 20)
            async with rig.consumer(orderly=True) as second:
                tasks.append(asyncio.create_task(work("second", second)))
                await until(lambda: len({message.body for message in got}) == 200, "all are consumed")
                await until(lambda: second.assigned)
                for task in tasks:
                    task.cancel()
                for result in await asyncio.gather(*tasks, return_exceptions=True):
                    assert isinstance(result, asyncio.CancelledError), result
        firsts = list({message.body: message for message in reversed(got)}.values())[::-1]
        assert in_order(firsts)


async def test_a_queue_that_is_locked_by_another_waits(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, queue_count=1) as rig, Admin(rig.namesrv) as admin:
        await rig.fill("T", 3)
        queue = MessageQueue("T", "broker-a", 0)
        address = (await admin.topic_route("T")).brokers[0].addresses[0]
        remoting = admin._remoting
        held = await broker_consume.lock_queues(
            remoting, address, LockRequest(client_id="another", consumer_group="CG", queues=(queue,))
        )
        assert held == {queue}
        async with rig.consumer(orderly=True) as consumer:
            assert await consumer.poll(1, 0.3) == []
            assert queue not in consumer.assigned
            await broker_consume.unlock_queues(
                remoting, address, LockRequest(client_id="another", consumer_group="CG", queues=(queue,))
            )
            assert numbers(await take(consumer, 3)) == [0, 1, 2]
            assert (
                await broker_consume.lock_queues(
                    remoting, address, LockRequest(client_id="another", consumer_group="CG", queues=(queue,))
                )
                == set()
            )
        assert await broker_consume.lock_queues(
            remoting, address, LockRequest(client_id="another", consumer_group="CG", queues=(queue,))
        ) == {queue}


async def test_a_queue_that_another_had_meanwhile_goes_on_where_that_one_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment, "RENEW_S", 0.3)
    monkeypatch.setattr(assignment, "TRY_AGAIN_S", 0.1)
    async with running_cluster(tmp_path, queue_count=1) as rig, Admin(rig.namesrv) as admin:
        await rig.fill("T", 10)
        queue = MessageQueue("T", "broker-a", 0)
        address = (await admin.topic_route("T")).brokers[0].addresses[0]
        remoting = admin._remoting
        # The reader continues at the new offset once its pull at the old one is answered.
        async with rig.consumer(orderly=True, suspend_s=0.5) as consumer:
            assert numbers(await take(consumer, 2)) == [0, 1]
            reader = consumer._assignment.readers[queue]
            assert reader.gate is not None
            own = consumer._assignment._context.instance.client_id
            await broker_consume.unlock_queues(
                remoting, address, LockRequest(client_id=own, consumer_group="CG", queues=(queue,))
            )
            held = await broker_consume.lock_queues(
                remoting, address, LockRequest(client_id="another", consumer_group="CG", queues=(queue,))
            )
            assert held == {queue}
            await until(lambda: queue in consumer._assignment._lost_locks, "the lock is lost")
            await admin.set_offset("CG", queue, 7)
            await broker_consume.unlock_queues(
                remoting, address, LockRequest(client_id="another", consumer_group="CG", queues=(queue,))
            )
            assert numbers(await take(consumer, 3)) == [7, 8, 9]


async def test_without_a_master_a_queue_goes_on_until_its_lock_has_run_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spec replication 8.4 and 11: only the master grants locks; the slave cannot."""
    monkeypatch.setattr(assignment, "RENEW_S", 1.0)
    monkeypatch.setattr(assignment, "TRY_AGAIN_S", 0.1)
    async with running_cluster(tmp_path, with_slave=True, queue_count=1) as rig:
        await rig.fill("T", 100)
        async with rig.consumer(orderly=True, client=FAST) as consumer:
            seen = numbers(await take(consumer, 5))
            await rig.wait_for_slave("broker-a", "T", "%RETRY%CG")
            await rig.stop_broker()
            seen += numbers(await take(consumer, 5))
            (reader,) = [one for queue, one in consumer._assignment.readers.items() if queue.topic == "T"]
            assert reader.gate is not None
            gate = reader.gate
            with monkeypatch.context() as later:
                later.setattr(inbox, "LOCK_VALID_S", 0.0)
                await until(lambda: gate.is_lock_lost, "the lock has run out")
                await consumer.poll(1, 0.1)
                assert await consumer.poll(1, 0.3) == [], "nothing without a lock"
            await rig.start_broker()
            seen += numbers(await take(consumer, 90))
            assert sorted(set(seen)) == seen, "in order, none twice"
            assert seen[-1] == 99


async def test_suspend_is_for_orderly_consumers(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, queue_count=1) as rig:
        await rig.fill("T", 1)
        async with rig.consumer() as consumer:
            (message,) = await take(consumer, 1)
            with pytest.raises(ClientError, match="retry_later"):
                await consumer.suspend(message)


async def test_a_wrong_delay_does_not_suspend(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, queue_count=1) as rig:
        await rig.fill("T", 2)
        async with rig.consumer(orderly=True) as consumer:
            (message,) = await consumer.poll(1, timeout_s=PATIENCE_S)
            for delay_s in (-1, float("nan")):
                with pytest.raises(BadRequest, match=f"delay_s {delay_s}: must be a number from 0 to 259200"):
                    await consumer.suspend(message, delay_s=delay_s)
            assert numbers(await take(consumer, 1)) == [1]


async def test_blocking_consumers_are_orderly_too(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, queue_count=2) as rig:
        await fill_queues(rig, 20, queue_count=2)

        def consume() -> list[ReceivedMessage]:
            options = ConsumerOptions(client=FAST, start_from=StartFrom.FIRST, orderly=True)
            consumer = BlockingConsumer("CG", rig.namesrv, options=options)
            consumer.subscribe("T")
            done = []
            with consumer:
                for message in consumer:
                    if message.body == b"1:7" and message.retry_count == 0:
                        consumer.suspend(message, delay_s=0.05)
                        continue
                    done.append(message)
                    if len(done) == 40:
                        return done
            raise AssertionError

        done = await asyncio.wait_for(asyncio.to_thread(consume), PATIENCE_S)
        assert in_order(done)
        assert len({message.body for message in done}) == 40
