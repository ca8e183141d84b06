"""Messages of one key one after the other, and those of different keys beside each other."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict

import pytest
from client_fakes import FakeBroker, running_cluster
from test_push_consumer import QUEUE, push, push_options
from test_returning import returned

from tandemmq.client import Json, PushConsumer, ReceivedMessage, message_key
from tandemmq.errors import ConfigError
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.properties import encode_properties
from waits import until


def put(broker: FakeBroker, key: str, number: int) -> None:
    broker.put("T", 0, b"%d" % number, encode_properties({"KEYS": key} if key else {}))


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_failed_message_delays_only_its_key(is_async: bool) -> None:
    seen: dict[str | None, list[int]] = defaultdict(list)
    running: set[str] = set()
    most = 0
    lock = threading.Lock()

    def begin(message: ReceivedMessage) -> None:
        nonlocal most
        with lock:
            key = message_key(message)
            assert key not in running, "one message of a key at a time"
            running.add(key or message.body.decode())
            most = max(most, len(running))
            seen[key].append(int(message.body))

    def end(message: ReceivedMessage) -> None:
        with lock:
            running.discard(message_key(message) or message.body.decode())
        if message.body == b"5" and message.retry_count < 2:
            raise ValueError("not now")

    def handle(message: ReceivedMessage) -> None:
        begin(message)
        threading.Event().wait(0.002)
        end(message)

    async def handle_async(message: ReceivedMessage) -> None:
        begin(message)
        await asyncio.sleep(0.002)
        end(message)

    async with running_cluster(T=1) as cluster:
        for number in range(40):
            put(cluster[0], "abc "[number % 4].strip(), number)
        handler = handle_async if is_async else handle
        changes = {"worker_count": 6, "order_key": message_key, "retry_delays_s": (0.02,)}
        async with push(cluster, handler, **changes) as consumer:
            await until(lambda: consumer.positions.get(QUEUE) == 40)
        assert cluster[0].handed_back == []
    assert seen["a"] == list(range(0, 40, 4))
    assert seen["b"] == [1, 5, 5, *range(5, 40, 4)]
    assert seen["c"] == list(range(2, 40, 4))
    assert sorted(seen[None]) == list(range(3, 40, 4))
    assert most > 1


async def test_a_plain_handler_that_takes_long_does_not_overlap_with_its_key() -> None:
    began: list[int] = []
    may_end = threading.Event()

    def handle(message: ReceivedMessage) -> None:
        began.append(int(message.body))
        if message.body == b"0":
            may_end.wait(10)

    async with running_cluster(T=1) as cluster:
        put(cluster[0], "a", 0)
        put(cluster[0], "a", 1)
        put(cluster[0], "b", 2)
        changes = {
            "worker_count": 3,
            "order_key": message_key,
            "consume_timeout_s": 0.02,
            "retry_delays_s": (0.02,),
        }
        async with push(cluster, handle, **changes) as consumer:
            try:
                await until(lambda: 2 in began)
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.2):  # ten times the limit of a handler
                        await until(lambda: len(began) > 2)
            finally:
                may_end.set()
            await until(lambda: consumer.positions.get(QUEUE) == 3)
    assert [number for number in began if number != 2] == [0, 1]


async def test_a_message_that_always_fails_becomes_a_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if len(seen) == 3:
            cluster[0].back_code = 0
        if message.body == b"0":
            raise ValueError("never")

    async with running_cluster(T=1) as cluster:
        cluster[0].back_code = ResponseCode.NO_PERMISSION
        put(cluster[0], "a", 0)
        put(cluster[0], "a", 1)
        changes = {"order_key": message_key, "orderly_suspend_s": 0.01, "retry_count_max": 1}
        async with push(cluster, handle, **changes) as consumer:
            await until(lambda: consumer.positions.get(QUEUE) == 2)
        assert [one.delay_level for one in cluster[0].handed_back] == [-1]
    assert seen == [b"0", b"0", b"0", b"1"], "tried again while no broker takes the dead letter"


async def test_a_key_continues_when_the_queue_of_its_message_has_moved() -> None:
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if message.body == b"0":
            (reader,) = [one for queue, one in consumer._assignment.readers.items() if queue == QUEUE]
            reader.move_to(2)
            raise ValueError("its queue is read from another offset now")

    async with running_cluster(T=1) as cluster:
        for number in range(4):
            put(cluster[0], "a", number)
        consumer = push(cluster, handle, order_key=message_key, orderly_suspend_s=0.01)
        async with consumer:
            await until(lambda: consumer.positions.get(QUEUE) == 4)
    assert seen == [b"0", b"2", b"3"]


async def test_a_key_continues_when_the_queue_moves_before_the_next_attempt() -> None:
    """The failed message waits in the inbox, as the only worker is busy."""
    seen: list[bytes] = []
    begun, release = asyncio.Event(), asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if message.body == b"0":
            raise ValueError("not now")
        if message.body == b"1":
            begun.set()
            await release.wait()

    async with running_cluster(T=1) as cluster:
        for number, key in enumerate("aba"):
            put(cluster[0], key, number)
        consumer = push(cluster, handle, worker_count=1, order_key=message_key, orderly_suspend_s=0.01)
        async with consumer:
            await begun.wait()
            await until(lambda: len(consumer._member.inbox) == 2)
            consumer._assignment.readers[QUEUE].move_to(2)
            release.set()
            await until(lambda: consumer.positions.get(QUEUE) == 3)
    assert seen == [b"0", b"1", b"2"]


async def test_a_key_of_the_decoded_body_orders_messages() -> None:
    seen: list[int] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.value["number"])
        if message.value["number"] == 0 and message.retry_count == 0:
            raise ValueError("not now")

    async with running_cluster(T=1, **{"%RETRY%g": 1}) as cluster:
        for body in (b'{"customer": "a", "number": 0}', b"{", b'{"customer": "a", "number": 1}'):
            cluster[0].put("T", 0, body)
        changes = {"serializer": Json(dict), "orderly_suspend_s": 0.01}
        async with push(cluster, handle, order_key=lambda one: one.value["customer"], **changes) as consumer:
            await until(lambda: consumer.positions.get(QUEUE) == 3)
        (properties,) = returned(cluster)
        assert cluster[0].handed_back == []
    assert properties["dead_letter_reason"].startswith("invalid body: ")
    assert seen == [0, 0, 1]


@pytest.mark.parametrize("keys", [{0: "a", 1: "b"}, {0: "a"}])
async def test_a_message_keeps_its_key_when_it_is_tried_again(keys: dict[int, str]) -> None:
    """Otherwise the later messages of its first key would wait for ever."""
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if message.body == b"0" and message.retry_count < 2:
            raise ValueError("not now")

    async with running_cluster(T=1) as cluster:
        for number in range(3):
            put(cluster[0], "", number)
        changes = {"order_key": lambda one: keys[one.retry_count], "orderly_suspend_s": 0.01}
        async with push(cluster, handle, **changes) as consumer:
            await until(lambda: consumer.positions.get(QUEUE) == 3)
        assert cluster[0].handed_back == []
    assert seen == [b"0", b"0", b"0", b"1", b"2"]


async def test_a_key_function_that_fails_orders_nothing() -> None:
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)

    def key_of(message: ReceivedMessage) -> object:
        if message.body == b"0":
            raise KeyError("customer")
        return [message.body]  # not hashable

    async with running_cluster(T=1) as cluster:
        for number in range(3):
            put(cluster[0], "a", number)
        async with push(cluster, handle, order_key=key_of) as consumer:
            await until(lambda: consumer.positions.get(QUEUE) == 3)
    assert sorted(seen) == [b"0", b"1", b"2"]


def test_order_by_key_excludes_other_orders() -> None:
    for changes in ({"orderly": True}, {"batch_count_max": 3}):
        with pytest.raises(ConfigError, match="order_key"):
            push_options(order_key=message_key, **changes)
    with pytest.raises(ConfigError, match="order_key"):
        PushConsumer("g", "127.0.0.1:1", options=push_options(order_key="customer"))
