"""Publishing: every row sent once, every answer kept, and what was stored late confirmed at the slave.

A send that is answered with FLUSH_SLAVE_TIMEOUT is stored at the master but not known to be copied.
Sending it again
would store it twice; so it is kept aside, and counts as acknowledged once the slave's queue has grown
past it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from tandemmq.api import broker_offset
from tandemmq.client import Message, Producer, ProducerOptions, SendResult, SendStatus
from tandemmq.errors import TandemError
from tandemmq.remoting import RemotingClient

SEND_SECONDS_MAX = 60.0  # far above slaveTimeout: an unanswered send would leave its fate open
_BATCH_LINGER_MS = 2.0
_BATCH_COUNT_MAX = 64
_PAUSE_SECONDS = 0.2


@dataclass(slots=True, kw_only=True)
class Published:
    """What became of the sends: counts, and the messages stored but not yet confirmed as copied."""

    confirmed: int = 0
    late: list[SendResult] = field(default_factory=list)
    late_confirmed: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def acknowledged(self) -> int:
        """Sends known to be on both replicas."""
        return self.confirmed + self.late_confirmed


def producer_options() -> ProducerOptions:
    """Small batches, no repetition: each row must be stored exactly once."""
    return ProducerOptions(
        timeout_s=SEND_SECONDS_MAX,
        retry_count_max=0,
        batch_linger_ms=_BATCH_LINGER_MS,
        batch_count_max=_BATCH_COUNT_MAX,
    )


async def publish(
    producer: Producer, messages: Iterable[Message], on_progress: Callable[[int], None]
) -> Published:
    """The outcome of sending all messages; `on_progress` gets the number of answers so far."""
    published = Published()
    answered = 0

    def settle(future: asyncio.Future[SendResult]) -> None:
        nonlocal answered
        answered += 1
        error = future.exception()
        if error is not None:
            published.failures.append(str(error))
        elif future.result().status is SendStatus.SEND_OK:
            published.confirmed += 1
        else:
            published.late.append(future.result())
        if answered % 1024 == 0:
            on_progress(answered)

    for message in messages:
        (await producer.start_send(message)).add_done_callback(settle)
    await producer.flush()
    # Callbacks of the last answers run in the turn after flush() saw them.
    await asyncio.sleep(0)
    on_progress(answered)
    return published


async def slave_progress(
    client: RemotingClient, slave_address: str, topic: str, queue_count: int
) -> list[int]:
    """The next queue offset of each queue as the slave has it; zeros while it does not answer."""
    ends: list[int] = []
    for queue_id in range(queue_count):
        try:
            ends.append(
                await broker_offset.query_max_offset(client, slave_address, topic, queue_id, timeout_s=2.0)
            )
        except (TandemError, OSError):
            ends.append(0)
    return ends


async def confirm_late(
    published: Published,
    read_slave_ends: Callable[[], Awaitable[list[int]]],
    *,
    seconds_max: float,
) -> None:
    """Counts the late messages that the slave has by now; returns when all are there or the time is over."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds_max
    while True:
        ends = await read_slave_ends()
        published.late_confirmed = sum(
            result.queue_offset < ends[result.queue.queue_id] for result in published.late
        )
        if published.late_confirmed == len(published.late) or loop.time() > deadline:
            return
        await asyncio.sleep(_PAUSE_SECONDS)
