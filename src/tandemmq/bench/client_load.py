"""Measures the sends and reads of the Python client through a name server, ours or RocketMQ's.

A topic is created, filled by the measured sends, read by each kind of consumer, and deleted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Final

from tandemmq.bench.client_timing import measure_reads, measure_sends
from tandemmq.bench.generator import QuickRow
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

QUEUE_COUNT: Final = 4
IN_FLIGHT: Final = (1, 64)
BATCHED_IN_FLIGHT: Final = 256
POPPERS: Final = 4
SEND, SEND_BATCHED = "send", "send, batched"
PULL, PUSH, POP = "consume, pull", "consume, push", "consume, pop"


async def measure_client(
    namesrv: str, *, body_bytes: int, seconds: float, broker_pids: Mapping[str, int]
) -> AsyncIterator[QuickRow]:
    """Measures the sends, then the consumers, each for at most `seconds`. Raises the errors of the client."""
    topic = f"BenchClient-{time.time_ns()}"
    message = Message(topic=topic, body=b"x" * body_bytes)
    sends = [(SEND, in_flight, ProducerOptions()) for in_flight in IN_FLIGHT]
    sends.append((SEND_BATCHED, BATCHED_IN_FLIGHT, ProducerOptions(batch_linger_ms=0.0)))
    async with Admin(namesrv) as admin:
        await admin.create_topic(topic, queue_count=QUEUE_COUNT)
        try:
            for case, in_flight, options in sends:
                async with Producer("bench", namesrv, options=options) as producer:
                    send = partial(producer.send, message)
                    yield await measure_sends(
                        case, send, in_flight=in_flight, seconds=seconds, broker_pids=broker_pids
                    )
            # Pop is last: some brokers lack it, and the error ends the measurement.
            for case, read in ((PULL, _pull), (PUSH, _push), (POP, _pop)):
                reading = partial(read, namesrv, topic)
                yield await measure_reads(case, reading, seconds=seconds, broker_pids=broker_pids)
        finally:
            await admin.delete_topic(topic)


async def _pull(namesrv: str, topic: str, add: Callable[[int], None]) -> None:
    options = ConsumerOptions(start_from=StartFrom.FIRST)
    consumer = Consumer(f"{topic}-pull", namesrv, options=options)
    consumer.subscribe(topic)
    async with consumer:
        while True:
            add(len(await consumer.poll(1024)))


async def _push(namesrv: str, topic: str, add: Callable[[int], None]) -> None:
    async def handle(_: ReceivedMessage) -> None:
        add(1)

    options = PushOptions(start_from=StartFrom.FIRST)
    consumer = PushConsumer(f"{topic}-push", namesrv, handle, options=options)
    consumer.subscribe(topic)
    async with consumer:
        await consumer.wait_closed()


async def _pop(namesrv: str, topic: str, add: Callable[[int], None]) -> None:
    options = PopOptions(start_from=StartFrom.FIRST)
    consumer = PopConsumer(f"{topic}-pop", namesrv, options=options)
    consumer.subscribe(topic)

    async def pop_on() -> None:
        while True:
            messages = await consumer.receive(32, timeout_s=1.0)
            await consumer.ack(*messages)
            add(len(messages))

    async with consumer:
        await asyncio.gather(*(pop_on() for _ in range(POPPERS)))
