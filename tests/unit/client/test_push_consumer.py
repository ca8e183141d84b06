"""The push consumer against a broker that counts: calls of the handler, their effects, and commits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from client_fakes import FakeBroker, FakeCluster, running_cluster

from tandemmq.client import (
    BlockingPushConsumer,
    ClientOptions,
    ConsumeResult,
    MessageModel,
    MessageQueue,
    PushConsumer,
    PushOptions,
    ReceivedMessage,
    StartFrom,
)
from tandemmq.client.consumer import workers
from tandemmq.errors import ClientError, ConfigError
from tandemmq.protocol.bodies.client import DirectlyConsumed
from tandemmq.protocol.bodies.codec import decode_body
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.admin import ConsumeDirectlyRequest, RunningInfoRequest
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.shared_bounds import LINES_MAX
from waits import PATIENCE_S, until

FAST = ClientOptions(heartbeat_s=0.2, route_refresh_s=0.2)
QUEUE = MessageQueue("T", "a", 0)


def push_options(**kwargs: object) -> PushOptions:
    settings: dict[str, object] = {
        "client": FAST,
        "start_from": StartFrom.FIRST,
        "rebalance_s": 0.3,
        "commit_s": 0.1,
        "suspend_s": 0.5,
        "drain_s": PATIENCE_S,
    }
    return PushOptions(**(settings | kwargs))  # type: ignore[arg-type]  # real fields


def push(cluster: FakeCluster, handler: Callable[..., Any], **kwargs: object) -> PushConsumer:
    consumer = PushConsumer("g", cluster.namesrv, handler, options=push_options(**kwargs))
    consumer.subscribe("T")
    return consumer


def fill(broker: FakeBroker, count: int, queue_id: int = 0) -> None:
    for number in range(count):
        broker.put("T", queue_id, b"%d" % number)


async def test_an_async_handler_runs_in_as_many_tasks_as_there_are_workers() -> None:
    done: list[bytes] = []
    running = most = 0

    async def handle(message: ReceivedMessage) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        done.append(message.body)

    async with running_cluster(T=2) as cluster:
        fill(cluster[0], 30)
        fill(cluster[0], 30, queue_id=1)
        async with push(cluster, handle, worker_count=5):
            await until(lambda: len(done) == 60)
        assert most == 5
        assert [cluster[0].offsets["g", "T", queue_id] for queue_id in (0, 1)] == [30, 30]
        assert cluster[0].handed_back == []


async def test_a_plain_handler_may_block_in_its_thread() -> None:
    together = threading.Barrier(4)
    threads: set[str] = set()

    def handle(message: ReceivedMessage) -> None:
        threads.add(threading.current_thread().name)
        together.wait(PATIENCE_S)

    async with running_cluster(T=1) as cluster:
        fill(cluster[0], 40)
        async with push(cluster, handle, worker_count=4) as consumer:
            await until(lambda: consumer.positions.get(QUEUE) == 40)
    assert len(threads) == 4
    assert threading.main_thread().name not in threads


@pytest.mark.parametrize("is_async", [True, False])
async def test_failed_messages_are_sent_back_to_the_group(is_async: bool) -> None:
    outcomes: dict[bytes, object] = {b"1": ConsumeResult.RETRY, b"2": "yes", b"3": ConsumeResult.SUCCESS}

    def handle(message: ReceivedMessage) -> object:
        if message.body == b"0":
            raise ValueError("not now")
        return outcomes.get(message.body)

    async def handle_async(message: ReceivedMessage) -> object:
        return handle(message)

    async with running_cluster(T=1) as cluster:
        fill(cluster[0], 6)
        async with push(cluster, handle_async if is_async else handle, retry_delay_level=2):
            await until(lambda: cluster[0].offsets.get(("g", "T", 0)) == 6)
        back = cluster[0].handed_back
        assert sorted(one.log_offset for one in back) == [0, 1000, 2000]
        assert {one.delay_level for one in back} == {2}
        assert {one.retry_count_max for one in back} == {16}


async def test_an_async_handler_that_takes_too_long_is_cancelled() -> None:
    cancelled: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        if message.body == b"0":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(message.body)
                raise

    async with running_cluster(T=1) as cluster:
        fill(cluster[0], 3)
        async with push(cluster, handle, worker_count=1, consume_timeout_s=0.05):
            await until(lambda: cluster[0].offsets.get(("g", "T", 0)) == 3)
        assert cancelled == [b"0"]
        assert [one.delay_level for one in cluster[0].handed_back] == [workers.TIMED_OUT_LEVEL]


@pytest.mark.parametrize("is_delivered", [True, False])
async def test_a_handler_that_cancels_its_task_keeps_its_worker(is_delivered: bool) -> None:
    handled: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        handled.append(message.body)
        if message.body == b"0":
            current = asyncio.current_task()
            assert current is not None
            current.cancel()
            if is_delivered:
                await asyncio.sleep(0)

    async with running_cluster(T=1) as cluster:
        fill(cluster[0], 3)
        async with push(cluster, handle, worker_count=1):
            await until(lambda: cluster[0].offsets.get(("g", "T", 0)) == 3)
        assert handled == [b"0", b"1", b"2"]
        assert len(cluster[0].handed_back) == is_delivered  # a call that was cancelled has failed


async def test_a_thread_that_hangs_holds_nothing_but_itself() -> None:
    release = threading.Event()
    handled: list[bytes] = []

    def handle(message: ReceivedMessage) -> None:
        if message.body == b"0":
            release.wait(PATIENCE_S)
        handled.append(message.body)

    async with running_cluster(T=1) as cluster:
        fill(cluster[0], 40)
        try:
            async with push(cluster, handle, worker_count=2, consume_timeout_s=0.05):
                await until(lambda: cluster[0].offsets.get(("g", "T", 0)) == 40)
                assert b"0" not in handled
                release.set()
        finally:
            release.set()
        assert [one.log_offset for one in cluster[0].handed_back] == [0], "what comes of it late is nothing"
        assert len(handled) == 40


async def test_broadcasting_hands_nothing_back(tmp_path: object) -> None:
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)
        raise ValueError("never mind")

    async with running_cluster(T=1) as cluster:
        fill(cluster[0], 3)
        async with push(
            cluster, handle, model=MessageModel.BROADCASTING, offsets_dir=str(tmp_path)
        ) as consumer:
            await until(lambda: consumer.positions.get(QUEUE) == 3)
        assert cluster[0].handed_back == []
    assert seen == [b"0", b"1", b"2"]


async def test_a_message_that_nobody_takes_back_is_handled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "HAND_BACK_AGAIN_S", 0.01)
    counts: list[int] = []

    async def handle(message: ReceivedMessage) -> ConsumeResult:
        counts.append(message.retry_count)
        return ConsumeResult.SUCCESS if message.retry_count == 2 else ConsumeResult.RETRY

    async with running_cluster(T=1) as cluster:
        cluster[0].back_code = ResponseCode.NO_PERMISSION
        fill(cluster[0], 1)
        async with push(cluster, handle) as consumer:
            await until(lambda: consumer.positions.get(QUEUE) == 1)
    assert counts == [0, 1, 2]


class MovingBroker(FakeBroker):
    """A broker that takes no message back; while a consumer asks for the first time, its queue moves on."""

    consumer: PushConsumer

    def _send_back(self, channel: Channel, command: Command) -> Command | None:
        reader = self.consumer._member.assignment.readers[QUEUE]
        if reader.committed_offset == 0:
            reader.move_to(1)
        return command.reply(ResponseCode.NO_PERMISSION, remark="refused by the test")


async def test_a_message_that_nobody_takes_back_is_not_handled_after_its_queue_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "HAND_BACK_AGAIN_S", 0.01)
    seen: list[tuple[int, int]] = []

    async def handle(message: ReceivedMessage) -> ConsumeResult:
        seen.append((message.queue_offset, len(consumer._member.inbox)))
        return ConsumeResult.SUCCESS if message.retry_count else ConsumeResult.RETRY

    broker = MovingBroker("a")
    async with running_cluster(broker, T=1) as cluster:
        fill(broker, 1)
        consumer = broker.consumer = push(cluster, handle, worker_count=1)
        async with consumer:
            await until(lambda: consumer.positions.get(QUEUE) == 1)
            fill(broker, 1)  # its timer ends after the one of the first message
            await until(lambda: consumer.positions.get(QUEUE) == 2)
    assert seen == [(0, 0), (1, 0), (1, 0)]


async def test_one_message_that_is_stuck_lets_the_reader_run_so_far_ahead() -> None:
    release = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        if message.body == b"0":
            await release.wait()

    async with running_cluster(T=1) as cluster:
        fill(cluster[0], 500)
        async with push(cluster, handle, span_max=100, pull_count_max=32) as consumer:
            reader = (await _reader(consumer)).in_flight
            await until(lambda: reader.span > 100 and len(reader) == 1)
            assert reader.span <= 100 + 32
            release.set()
            await until(lambda: consumer.positions[QUEUE] == 500)


async def _reader(consumer: PushConsumer) -> Any:
    readers = consumer._member.assignment.readers
    await until(lambda: QUEUE in readers)
    return readers[QUEUE]


async def test_close_waits_for_the_handlers_that_run_and_begins_no_other() -> None:
    begun: list[bytes] = []
    release = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        begun.append(message.body)
        await release.wait()

    async with running_cluster(T=1) as cluster:
        fill(cluster[0], 10)
        consumer = await push(cluster, handle, worker_count=2).start()
        await until(lambda: len(begun) == 2)
        closing = asyncio.ensure_future(consumer.close())
        await until(lambda: consumer._member.inbox.is_closed)
        assert not closing.done()
        release.set()
        await asyncio.wait_for(closing, PATIENCE_S)
        await consumer.wait_closed()
        assert begun == [b"0", b"1"]
        assert cluster[0].offsets["g", "T", 0] == 2


async def test_a_handler_cannot_close_its_consumer_and_the_drain_ends() -> None:
    errors: list[BaseException] = []

    async def handle(message: ReceivedMessage) -> None:
        try:
            await consumer.close()
        except ClientError as error:
            errors.append(error)
        await asyncio.Event().wait()

    async with running_cluster(T=1) as cluster:
        fill(cluster[0], 1)
        consumer = push(cluster, handle, drain_s=0.05)
        async with consumer:
            await until(lambda: errors)
        assert cluster[0].offsets.get(("g", "T", 0), 0) == 0, "what was not finished comes again"


async def test_what_went_to_another_member_is_not_handed_back() -> None:
    release = asyncio.Event()

    async def handle(message: ReceivedMessage) -> ConsumeResult:
        await release.wait()
        return ConsumeResult.RETRY

    async with running_cluster(T=1) as cluster:
        fill(cluster[0], 2)
        async with push(cluster, handle) as consumer:
            await _reader(consumer)
            consumer.unsubscribe("T")
            await until(lambda: MessageQueue("T", "a", 0) not in consumer.assigned)
            release.set()
        assert cluster[0].handed_back == []
        assert cluster[0].offsets["g", "T", 0] == 0


async def test_paused_queues_are_not_read() -> None:
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)

    async with running_cluster(T=2) as cluster:
        consumer = push(cluster, handle, suspend_s=0.01)
        consumer.pause()
        async with consumer:
            fill(cluster[0], 1)
            fill(cluster[0], 2, queue_id=1)
            await until(lambda: len(consumer.assigned) >= 2)
            assert cluster[0].pulls == []
            consumer.resume(MessageQueue("T", "a", 1))
            await until(lambda: len(seen) == 2)
            assert {pull.queue_id for pull in cluster[0].pulls} == {1}
            consumer.resume()
            await until(lambda: len(seen) == 3)


async def test_a_broker_has_the_handler_called_and_is_told_how_it_goes() -> None:
    async def handle(message: ReceivedMessage) -> ConsumeResult | None:
        if message.body == b"bad":
            raise ValueError("bad")
        return ConsumeResult.RETRY if message.body == b"later" else None

    async with running_cluster(T=1) as cluster:
        for body in (b"good", b"bad", b"later"):
            cluster[0].put("T", 0, body)
        async with push(cluster, handle) as consumer:
            await until(lambda: consumer.positions.get(QUEUE) == 3)
            (channel,) = cluster[0].members["g"].values()
            answers = await _consume_directly(cluster)
            info = await _ask(
                channel,
                Command.request(
                    RequestCode.GET_CONSUMER_RUNNING_INFO,
                    RunningInfoRequest(consumer_group="g", client_id=""),
                ),
            )
        assert [answer.result for answer in answers] == ["CR_SUCCESS", "CR_THROW_EXCEPTION", "CR_LATER"]
        assert "bad" in answers[1].remark
        assert b'"PROP_THREADPOOL_CORE_SIZE":"20"' in info.body
        assert b'"consumeFailedMsgs":2' in info.body


async def test_a_handler_of_batches_gets_a_brokers_message_alone() -> None:
    seen: list[list[bytes]] = []

    async def handle(messages: list[ReceivedMessage]) -> None:
        seen.append([message.body for message in messages])

    async with running_cluster(T=1) as cluster:
        fill(cluster[0], 2)
        async with push(cluster, handle, batch_count_max=2) as consumer:
            await until(lambda: consumer.positions.get(QUEUE) == 2)
            seen.clear()
            answers = await _consume_directly(cluster)
        assert [answer.result for answer in answers] == ["CR_SUCCESS", "CR_SUCCESS"]
        assert seen == [[b"0"], [b"1"]]


async def test_a_message_that_a_broker_has_sent_may_be_settled_as_any_other() -> None:
    async def handle(message: ReceivedMessage) -> None:
        await message.ack()

    async with running_cluster(T=1) as cluster:
        fill(cluster[0], 1)
        async with push(cluster, handle) as consumer:
            await until(lambda: consumer.positions.get(QUEUE) == 1)
            (answer,) = await _consume_directly(cluster)
        assert (answer.result, answer.remark) == ("CR_SUCCESS", "")


async def test_a_plain_handler_that_a_broker_has_called_may_take_too_long() -> None:
    may_end = threading.Event()
    may_end.set()

    def handle(message: ReceivedMessage) -> None:
        assert may_end.wait(PATIENCE_S)

    async with running_cluster(T=1) as cluster:
        cluster[0].put("T", 0, b"slow")
        async with push(cluster, handle, consume_timeout_s=0.05) as consumer:
            await until(lambda: consumer.positions.get(QUEUE) == 1)
            may_end.clear()
            asyncio.get_running_loop().call_later(0.1, may_end.set)
            (answer,) = await _consume_directly(cluster)
        assert (answer.result, answer.remark) == ("CR_THROW_EXCEPTION", "TimedOut()")


async def _consume_directly(cluster: FakeCluster) -> list[DirectlyConsumed]:
    """Has the group's member call its handler for each message of the queue; returns its answers."""
    (channel,) = cluster[0].members["g"].values()
    header = ConsumeDirectlyRequest(consumer_group="g", broker_name="a", topic="T")
    answers: list[DirectlyConsumed] = []
    for record, _ in cluster[0].queue("T", 0).records:
        question = Command.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, header, body=record)
        answers.append(decode_body((await _ask(channel, question)).body, DirectlyConsumed))
    return answers


async def _ask(channel: Any, question: Command) -> Command:
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    channel.start_request(question, answered.set_result, PATIENCE_S)
    answer = await answered
    assert answer.code == 0, answer.remark
    return answer


def test_the_blocking_twin_handles_in_threads() -> None:
    seen: list[str] = []
    ready, stop = threading.Event(), threading.Event()
    names: list[str] = []

    async def serve() -> None:
        async with running_cluster(T=1) as cluster:
            fill(cluster[0], 5)
            names.append(cluster.namesrv)
            ready.set()
            await asyncio.to_thread(stop.wait, PATIENCE_S)

    server = threading.Thread(target=asyncio.run, args=(serve(),))
    server.start()
    try:
        assert ready.wait(PATIENCE_S)
        done = threading.Event()

        def handle(message: ReceivedMessage) -> None:
            seen.append(threading.current_thread().name)
            if len(seen) == 5:
                done.set()

        consumer = BlockingPushConsumer("g", names[0], handle, options=push_options())
        consumer.subscribe("T")
        with consumer:
            assert done.wait(PATIENCE_S)
        assert all(name.startswith("tandemmq-worker") for name in seen)
    finally:
        stop.set()
        server.join(PATIENCE_S)


@pytest.mark.parametrize(
    "wrong",
    [
        {"worker_count": 0},
        {"consume_timeout_s": 0},
        {"retry_delay_level": 19},
        {"span_max": 0},
        {"retry_delays_s": 5},
        {"middleware": print},
    ],
)
def test_options_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        push_options(**wrong)


async def test_a_flood_of_failures_is_not_a_flood_of_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    async def handle(message: ReceivedMessage) -> None:
        raise ValueError("not now")

    async with running_cluster(T=1) as cluster:
        fill(cluster[0], 60)
        async with push(cluster, handle) as consumer:
            await until(lambda: consumer.positions.get(QUEUE) == 60)
        assert len(cluster[0].handed_back) == 60
    lines = [record for record in caplog.records if str(record.msg).startswith("consume.failed")]
    assert len(lines) == LINES_MAX
