"""Measures aiokafka or nats.py against its own server, and prints a line of JSON for each case.

Runs in the environment that has these clients (`peers.txt`) instead of ours:
`python -m bench.peers kafka|nats ADDRESS BROKER_PID SECONDS BODY_BYTES`. The topic keeps its messages from
run to run.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Final

from tandemmq.bench.client_timing import measure_reads, measure_sends
from tandemmq.bench.generator import QuickRow

TOPIC: Final = "BenchClient"
FETCHED_AT_ONCE: Final = 1000
ACKED_AT_ONCE: Final = 128
"""The messages per fetch whose every message is acknowledged: as many as our four pops of 32."""


async def measure_aiokafka(address: str, body: bytes, **how: Any) -> AsyncIterator[QuickRow]:
    """Measures aiokafka with its default settings, except where a consumer starts."""
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    async with AIOKafkaProducer(bootstrap_servers=address) as producer:
        send = partial(producer.send_and_wait, TOPIC, body)
        yield await measure_sends("send", send, in_flight=1, **how)
        yield await measure_sends("send, batched", send, in_flight=256, **how)

    def open_consumer(case: str) -> AIOKafkaConsumer:
        group = f"{case}-{time.time_ns()}"
        return AIOKafkaConsumer(
            TOPIC, bootstrap_servers=address, group_id=group, auto_offset_reset="earliest"
        )

    async def pull(add: Callable[[int], None]) -> None:
        async with open_consumer("pull") as consumer:
            while True:
                found = await consumer.getmany(timeout_ms=1000, max_records=1024)
                add(sum(map(len, found.values())))

    async def iterate(add: Callable[[int], None]) -> None:
        async with open_consumer("push") as consumer:
            async for _ in consumer:
                add(1)

    yield await measure_reads("consume, pull", pull, **how)
    yield await measure_reads("consume, push", iterate, **how)


async def measure_nats(address: str, body: bytes, **how: Any) -> AsyncIterator[QuickRow]:
    """Measures nats.py with JetStream, in a stream of files."""
    import nats
    from nats.js.api import AckPolicy, ConsumerConfig

    connection = await nats.connect(f"nats://{address}")
    try:
        stream = connection.jetstream()
        await stream.add_stream(name=TOPIC, subjects=[TOPIC])
        send = partial(stream.publish, TOPIC, body)
        for in_flight in (1, 64):
            yield await measure_sends("send", send, in_flight=in_flight, **how)

        async def fetch(add: Callable[[int], None], policy: AckPolicy, at_once: int) -> None:
            config = ConsumerConfig(ack_policy=policy)
            subscription = await stream.pull_subscribe(TOPIC, config=config)
            while True:
                try:
                    found = await subscription.fetch(at_once, timeout=1.0)
                except TimeoutError:
                    continue
                if policy is AckPolicy.EXPLICIT:
                    for message in found:
                        await message.ack()
                add(len(found))

        async def push(add: Callable[[int], None]) -> None:
            async def handle(_: object) -> None:
                add(1)

            await stream.subscribe(TOPIC, cb=handle, ordered_consumer=True)
            await asyncio.Event().wait()

        pull = partial(fetch, policy=AckPolicy.NONE, at_once=FETCHED_AT_ONCE)
        pop = partial(fetch, policy=AckPolicy.EXPLICIT, at_once=ACKED_AT_ONCE)
        yield await measure_reads("consume, pull", pull, **how)
        yield await measure_reads("consume, push", push, **how)
        yield await measure_reads("consume, pop", pop, **how)
    finally:
        await connection.close()


async def _run(client: str, address: str, broker_pid: int, seconds: float, body_bytes: int) -> None:
    measure = {"kafka": measure_aiokafka, "nats": measure_nats}[client]
    rows = measure(address, b"x" * body_bytes, seconds=seconds, broker_pids={"broker": broker_pid})
    async for row in rows:
        figures = {"case": row.setting, "in_flight": row.in_flight, "processor_us": row.processor_us}
        sys.stdout.write(json.dumps({**figures, "per_second": row.result.per_second}) + "\n")


if __name__ == "__main__":
    _client, _address, _pid, _seconds, _body = sys.argv[1:]
    asyncio.run(_run(_client, _address, int(_pid), float(_seconds), int(_body)))
