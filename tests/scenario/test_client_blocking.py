"""The blocking facades against a real broker, used from plain threads."""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pytest
from client_rig import Rig, running_cluster

from tandemmq.client import (
    BlockingAdmin,
    BlockingConsumer,
    BlockingPopConsumer,
    BlockingProducer,
    BlockingPushConsumer,
    ConsumerOptions,
    Message,
    ProducerOptions,
    PushOptions,
    ReceivedMessage,
    SendResult,
    StartFrom,
)
from tandemmq.client.blocking import Facade, LoopThread
from tandemmq.errors import BrokerUnreachable, ClientError, MessageIllegal, TopicNotFound
from waits import PATIENCE_S, until_blocking

FIRST = ConsumerOptions(start_from=StartFrom.FIRST, commit_s=0.1)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """Runs a cluster in a separate thread, so that the test itself may block."""
    thread = LoopThread()
    context = running_cluster(tmp_path)
    rig = thread.call(context.__aenter__())
    yield rig
    thread.call(context.__aexit__(None, None, None))
    thread.stop()


def test_a_round_trip_without_an_event_loop(rig: Rig) -> None:
    with BlockingAdmin(rig.namesrv) as admin, BlockingProducer("P", rig.namesrv) as producer:
        admin.create_topic("Orders", queue_count=2)
        assert len(producer.queues("Orders")) == 2
        assert producer.send(Message(topic="Orders", body=b"0")).is_ok
        queue = producer.queue_for("Orders", "customer-1")
        assert producer.send(Message(topic="Orders", body=b"1"), queue=queue).queue == queue
        assert len(producer.send_batch([Message(topic="Orders", body=b"%d" % i) for i in (2, 3)])) == 2
        with BlockingConsumer("CG", rig.namesrv, options=FIRST) as consumer:
            consumer.subscribe("Orders")
            seen = set()
            for message in consumer:
                seen.add(int(message.body))
                if len(seen) == 4:
                    break
            assert seen == {0, 1, 2, 3}
            assert consumer.poll(timeout_s=0.05) == []
        assert admin.lag("CG", "Orders") == 1, "the last message was left by break, so it is unfinished"
        assert admin.message_count("Orders") == 4


def test_publishing_many_rows_with_progress(rig: Rig) -> None:
    progress = 0
    calling_thread = threading.current_thread()

    def on_result(message: Message, outcome: object) -> None:
        nonlocal progress
        assert threading.current_thread() is calling_thread
        assert isinstance(outcome, SendResult)
        progress += 1

    with BlockingProducer("P", rig.namesrv) as producer:
        rows = (Message(topic="T", body=b"%d" % i, tags="row") for i in range(20_000))
        summary = producer.send_many(rows, on_result=on_result)
    assert summary.ok_count == progress == 20_000
    with BlockingAdmin(rig.namesrv) as admin:
        assert admin.message_count("T") == 20_000
    with BlockingConsumer("CG", rig.namesrv, options=FIRST) as consumer:
        consumer.subscribe("T")
        seen: set[int] = set()
        while len(seen) < 20_000:
            seen.update(int(message.body) for message in consumer.poll(1000))
    assert seen == set(range(20_000))


def test_errors_come_as_they_are(rig: Rig) -> None:
    with BlockingProducer("P", rig.namesrv) as producer:
        with pytest.raises(MessageIllegal):
            producer.send(Message(topic="T", body=b""))
        with pytest.raises(MessageIllegal):
            producer.send_many([Message(topic="T", body=b"x"), Message(topic="T/", body=b"x")])
        summary = producer.send_many([Message(topic="T", body=b"")], stop_on_error=False)
        assert summary.failed_count == 1
    with pytest.raises(ClientError):
        producer.send(Message(topic="T", body=b"x"))
    with pytest.raises(BrokerUnreachable):
        BlockingProducer("P", "127.0.0.1:1").start()


def test_a_consumer_goes_on_after_break_and_commits_at_close(rig: Rig) -> None:
    with BlockingProducer("P", rig.namesrv) as producer:
        queue = producer.queues("T")[0]
        producer.send_batch([Message(topic="T", body=b"%d" % i) for i in range(10)], queue=queue)
    with BlockingConsumer("CG", rig.namesrv, options=FIRST) as consumer:
        consumer.subscribe("T")
        for message in consumer:
            if message.body == b"3":
                break
        assert next(iter(consumer)).body == b"4"
        assert next(consumer).body == b"5"
    with BlockingAdmin(rig.namesrv) as admin:
        assert admin.committed_offsets("CG", "T")[queue] == 5


def test_all_facades_share_one_thread_that_ends_with_the_last(rig: Rig) -> None:
    def client_threads() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "tandemmq-client"}

    others = client_threads()
    with BlockingProducer("P", rig.namesrv), BlockingAdmin(rig.namesrv), BlockingProducer("Q", rig.namesrv):
        (own,) = client_threads() - others
    own.join(PATIENCE_S)
    assert not own.is_alive()


def test_what_is_handed_in_while_the_thread_ends_gets_an_answer() -> None:
    """The loop is busy while it is stopped and while more work arrives; no caller may wait for ever."""
    thread = LoopThread()
    is_busy, may_go_on = threading.Event(), threading.Event()

    def hold() -> None:
        is_busy.set()
        assert may_go_on.wait(PATIENCE_S)

    async def never() -> None:
        await asyncio.get_running_loop().create_future()

    thread.call_soon(hold)
    assert is_busy.wait(PATIENCE_S)
    waiting = thread.submit(never())
    stopping = threading.Thread(target=thread.stop)
    stopping.start()
    until_blocking(lambda: not thread.is_usable)
    with pytest.raises(ClientError):
        thread.call(never())
    may_go_on.set()
    with pytest.raises(CancelledError):
        waiting.result(PATIENCE_S)
    stopping.join(PATIENCE_S)
    assert not stopping.is_alive()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_callback_that_exits_leaves_nobody_waiting() -> None:
    thread = LoopThread()

    async def never() -> None:
        await asyncio.get_running_loop().create_future()

    caught: list[Exception] = []

    def wait() -> None:
        try:
            thread.call(never())
        except ClientError as error:
            caught.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    thread.call_soon(sys.exit)
    waiting.join(PATIENCE_S)
    assert caught
    _wait_for_the_end_of(thread)
    with pytest.raises(ClientError):
        thread.call(never())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_callback_that_exits_ends_the_sending_of_many() -> None:
    class Silent:
        options = ProducerOptions()

        async def send_batch(self, _: list[Message]) -> None:
            asyncio.get_running_loop().call_soon(sys.exit)
            await asyncio.get_running_loop().create_future()

    producer = BlockingProducer("P", "")
    producer._thread, producer._client = LoopThread(), Silent()  # type: ignore[assignment]  # what it needs of one
    with pytest.raises(ClientError):
        producer.send_many([Message("T", b"1")])
    _wait_for_the_end_of(producer._thread)


def _wait_for_the_end_of(thread: LoopThread) -> None:
    """Waits for the thread, because pytest must see its SystemExit in the test that expects it, not in the
    next one.
    """
    thread._thread.join(PATIENCE_S)
    assert not thread._thread.is_alive()


def test_an_iteration_ends_when_another_thread_closes_the_consumer(rig: Rig) -> None:
    """Whatever the iterating thread is doing at that moment."""
    with BlockingProducer("P", rig.namesrv) as producer:
        producer.send_many(Message("T", b"%d" % number) for number in range(10))
    consumer = BlockingConsumer("CG", rig.namesrv, options=FIRST)
    consumer.subscribe("T")
    is_handling, is_closed = threading.Event(), threading.Event()
    outcome: list[object] = []

    def read() -> None:
        try:
            for _ in consumer:
                is_handling.set()
                is_closed.wait(PATIENCE_S)
            outcome.append("ended")
        except ClientError as error:
            outcome.append(error)

    with consumer:
        reading = threading.Thread(target=read, daemon=True)
        reading.start()
        assert is_handling.wait(PATIENCE_S)
    is_closed.set()
    reading.join(PATIENCE_S)
    assert outcome == ["ended"]
    with pytest.raises(StopIteration):
        next(consumer)


def test_a_start_that_fails_closes_what_it_began() -> None:
    class Failing:
        closed_count = 0

        async def start(self) -> None:
            raise ClientError("not today")

        async def close(self) -> None:
            self.closed_count += 1

    client = Failing()
    facade = Facade(lambda: client)
    with pytest.raises(ClientError, match="not today"):
        facade.start()
    assert client.closed_count == 1
    facade.close()
    assert "tandemmq-client" not in {thread.name for thread in threading.enumerate()}


def test_settling_positions_and_sends_in_flight_without_an_event_loop(rig: Rig) -> None:
    handled: queue.SimpleQueue[ReceivedMessage] = queue.SimpleQueue()
    pushing = PushOptions(start_from=StartFrom.FIRST, commit_s=0.1)
    with (
        BlockingProducer("P", rig.namesrv) as producer,
        BlockingPopConsumer("PG", rig.namesrv) as popped,
        BlockingConsumer("CG", rig.namesrv, options=FIRST) as consumer,
        BlockingPushConsumer("HG", rig.namesrv, handled.put, options=pushing) as pushed,
        BlockingAdmin(rig.namesrv) as admin,
    ):
        popped.subscribe("T")
        consumer.subscribe("T")
        assert not popped.wait_for_message(timeout_s=0.05)
        sent, _ = producer.send_batch([Message(topic="T", body=b"0"), Message(topic="T", body=b"1")])
        assert (producer.in_flight, producer.retried_count) == (0, 0)
        until_blocking(popped.wait_for_message, "the messages are announced")
        assert (next(consumer).body, next(consumer).body) == (b"0", b"1")
        assert consumer.positions[sent.queue] == sent.queue_offset + 1, "what this thread acknowledged counts"
        pushed.subscribe("T")
        pushed.dead_letter(handled.get(timeout=PATIENCE_S), reason="never")
        until_blocking(lambda: pushed.unfinished_count == 0, "the handler has ended")
        known = "the name server knows the topic of dead letters"
        until_blocking(lambda: admin.message_count("%DLQ%HG") == 1, known, not_yet=(TopicNotFound,))
