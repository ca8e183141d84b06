"""Measures the sends and reads of the Python client through a name server, ours or RocketMQ's.

A topic is created, filled by the measured sends, read to its end by each kind of consumer, and deleted.
Latencies are those of single sends; a consumer that reads a backlog has none.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, NamedTuple

from tandemmq.client import (
    Admin,
    Consumer,
    ConsumerOptions,
    Message,
    PopConsumer,
    PopOptions,
    Producer,
    ProducerOptions,
    PushConsumer,
    PushOptions,
    ReceivedMessage,
    StartFrom,
)
from tandemmq.errors import TandemError

QUEUE_COUNT: Final = 4
IN_FLIGHT: Final = (1, 16, 64, 256)
POPPERS: Final = 4
FIRST_MESSAGE_S_MAX: Final = 30.0
"""The time after which a consumer without any message is given up."""


class ClientFigures(NamedTuple):
    """One measured line. `error`: the reason if the measurement failed."""

    case: str
    message_count: int = 0
    seconds: float = 0.0
    p50_us: float | None = None
    p99_us: float | None = None
    error: str = ""

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.message_count / self.seconds if self.seconds else 0.0


async def measure_client(namesrv: str, *, body_bytes: int, seconds: float) -> AsyncIterator[ClientFigures]:
    """Measures the sends, then the consumers, each for at most `seconds`. Raises the errors of
    `Admin.create_topic`.
    """
    topic = f"BenchClient-{time.time_ns()}"
    message = Message(topic=topic, body=b"x" * body_bytes)
    async with Admin(namesrv) as admin:
        await admin.create_topic(topic, queue_count=QUEUE_COUNT)
        try:
            for in_flight in IN_FLIGHT:
                yield await _client_case(
                    _send(namesrv, message, in_flight, seconds), f"send, {in_flight} in flight"
                )
            many = IN_FLIGHT[-1]
            batched = _send(namesrv, message, many, seconds, batch_linger_ms=0.0)
            yield await _client_case(batched, f"send batched, {many} in flight")
            stored = await admin.message_count(topic)
            for case, open_consumer in (("push", _push), ("pop", _pop), ("poll", _poll)):
                reading = _read(open_consumer(namesrv, topic), stored, seconds)
                yield await _client_case(reading, f"consume, {case}")
        finally:
            await admin.delete_topic(topic)


async def _client_case(measured: Awaitable[ClientFigures], case: str) -> ClientFigures:
    try:
        return (await measured)._replace(case=case)
    except TandemError as error:
        return ClientFigures(case, error=str(error))


async def _send(
    namesrv: str, message: Message, in_flight: int, seconds: float, batch_linger_ms: float | None = None
) -> ClientFigures:
    took_s = array("d")
    options = ProducerOptions(batch_linger_ms=batch_linger_ms)
    async with Producer("bench", namesrv, options=options) as producer:
        await producer.send(message)  # establishes route and connection
        began_s = time.perf_counter()
        ends_at_s = began_s + seconds

        async def send_on() -> None:
            """Sends at least once: on a busy machine the time may be over before the first send begins."""
            now_s = time.perf_counter()
            is_over = False
            while not is_over:
                sent_s = now_s
                await producer.send(message)
                now_s = time.perf_counter()
                took_s.append(now_s - sent_s)
                is_over = now_s >= ends_at_s

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(in_flight):
                    group.create_task(send_on())
        except* TandemError as failed:
            (error, *_) = failed.exceptions
            raise error from None
        whole_s = time.perf_counter() - began_s
    ordered = sorted(took_s)
    p50, p99 = (ordered[int(len(ordered) * share)] * 1e6 for share in (0.5, 0.99))
    return ClientFigures("", len(ordered), whole_s, p50, p99)


class _Tally:
    """Counts the messages that arrive, from the first one on."""

    def __init__(self) -> None:
        self.count = 0
        self.first_s = self.last_s = 0.0

    def add(self, count: int) -> None:
        if count:
            self.last_s = time.perf_counter()
            self.first_s = self.first_s or self.last_s
            self.count += count


Source = Callable[[_Tally], Awaitable[None]]


async def _read(source: Source, stored: int, seconds: float) -> ClientFigures:
    tally = _Tally()
    reading = asyncio.ensure_future(source(tally))
    try:
        began_s = time.perf_counter()
        while tally.count < stored:
            now_s = time.perf_counter()
            if now_s > (tally.first_s + seconds if tally.count else began_s + FIRST_MESSAGE_S_MAX):
                break
            await asyncio.wait((reading,), timeout=0.01)
            if reading.done():
                break
        count, whole_s = tally.count, tally.last_s - tally.first_s
    finally:
        reading.cancel()
        (ended,) = await asyncio.gather(reading, return_exceptions=True)
    if isinstance(ended, TandemError):
        raise ended
    return ClientFigures("", count, whole_s)


def _push(namesrv: str, topic: str) -> Source:
    async def read(tally: _Tally) -> None:
        async def handle(_: ReceivedMessage) -> None:
            tally.add(1)

        options = PushOptions(start_from=StartFrom.FIRST)
        consumer = PushConsumer(f"{topic}-push", namesrv, handle, options=options)
        consumer.subscribe(topic)
        async with consumer:
            await consumer.wait_closed()

    return read


def _pop(namesrv: str, topic: str) -> Source:
    async def read(tally: _Tally) -> None:
        options = PopOptions(start_from=StartFrom.FIRST)
        consumer = PopConsumer(f"{topic}-pop", namesrv, options=options)
        consumer.subscribe(topic)

        async def pop_on() -> None:
            while True:
                messages = await consumer.receive(32, timeout_s=1.0)
                await consumer.ack(*messages)
                tally.add(len(messages))

        async with consumer:
            await asyncio.gather(*(pop_on() for _ in range(POPPERS)))

    return read


def _poll(namesrv: str, topic: str) -> Source:
    async def read(tally: _Tally) -> None:
        options = ConsumerOptions(start_from=StartFrom.FIRST)
        consumer = Consumer(f"{topic}-poll", namesrv, options=options)
        consumer.subscribe(topic)
        async with consumer:
            while True:
                tally.add(len(await consumer.poll(1024)))

    return read
