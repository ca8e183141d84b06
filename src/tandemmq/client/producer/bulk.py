"""Sending many messages at once: cut into batches, which is pure, and many batches under way.

Order inside one topic is kept in the cutting, but batches take the queues in turn and may overtake each
other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from tandemmq.api.broker_send import SendStatus
from tandemmq.client.options import ProducerOptions
from tandemmq.client.producer.packer import must_travel_alone
from tandemmq.client.producer.results import SendResult
from tandemmq.errors import TandemError
from tandemmq.protocol.message import Message

Outcome = SendResult | TandemError
OnResult = Callable[[Message, Outcome], object]
Results = asyncio.Future[list[SendResult]]

ITEM_OVERHEAD_BYTES = 160
"""Counted per message besides its body when a batch is cut: lengths, keys and usual properties."""


@dataclass(slots=True)
class SendSummary:
    """What became of many messages."""

    counts: dict[SendStatus, int] = field(default_factory=dict)
    failed_count: int = 0
    first_error: TandemError | None = None

    @property
    def stored_count(self) -> int:
        """Messages with any of the four statuses: the master has them."""
        return sum(self.counts.values())

    @property
    def ok_count(self) -> int:
        """Messages stored with everything that the broker promises."""
        return self.counts.get(SendStatus.SEND_OK, 0)

    def note(
        self, messages: Sequence[Message], outcomes: Sequence[Outcome], on_result: OnResult | None
    ) -> None:
        """Count one batch and tell `on_result` of each message."""
        counts = self.counts
        for message, outcome in zip(messages, outcomes, strict=True):
            if isinstance(outcome, TandemError):
                self.failed_count += 1
                self.first_error = self.first_error or outcome
            else:
                counts[outcome.status] = counts.get(outcome.status, 0) + 1
            if on_result is not None:
                on_result(message, outcome)

    def must_stop(self, *, stop_on_error: bool) -> bool:
        """True when a failure ends the sending."""
        return stop_on_error and self.first_error is not None

    def result(self, *, stop_on_error: bool) -> SendSummary:
        """Itself, or with `stop_on_error` the first error raised."""
        if stop_on_error and self.first_error is not None:
            raise self.first_error
        return self


def cut_messages(messages: Iterable[Message], options: ProducerOptions) -> Iterator[list[Message]]:
    """The lists in which many messages are sent."""
    return chunk_messages(
        messages,
        count_max=options.batch_count_max,
        bytes_max=min(options.batch_bytes_max, options.message_bytes_max),
        travels_alone=partial(must_travel_alone, options=options),
    )


def chunk_messages(
    messages: Iterable[Message],
    *,
    count_max: int,
    bytes_max: int,
    travels_alone: Callable[[Message], bool],
) -> Iterator[list[Message]]:
    """Lists of messages that can share a batch: same topic, same wait policy, within both bounds.

    Messages of other topics in between do not break a batch up. What travels alone comes as a list of one,
    at once.
    """
    open_chunks: dict[tuple[str, bool], tuple[list[Message], int]] = {}
    for message in messages:
        if travels_alone(message):
            yield [message]
            continue
        key = (message.topic, message.wait_stored)
        size = len(message.body) + ITEM_OVERHEAD_BYTES
        chunk, chunk_bytes = open_chunks.get(key) or ([], 0)
        if chunk and chunk_bytes + size > bytes_max:
            yield chunk
            chunk, chunk_bytes = [], 0
        chunk.append(message)
        open_chunks[key] = (chunk, chunk_bytes + size)
        if len(chunk) >= count_max:
            del open_chunks[key]
            yield chunk
    for chunk, _ in open_chunks.values():
        yield chunk


async def send_chunks(
    chunks: Iterable[list[Message]],
    start: Callable[[list[Message]], Awaitable[Results]],
    *,
    on_result: OnResult | None,
    stop_on_error: bool,
    under_way_max: int,
) -> SendSummary:
    """What became of all chunks, each sent by `start`, at most `under_way_max` of them at a time.

    Raises:  with `stop_on_error` the first error, when what was under way has its results.
    """
    summary = SendSummary()
    under_way: deque[tuple[list[Message], Results]] = deque()

    async def settle_oldest() -> None:
        chunk, future = under_way.popleft()
        outcomes: Sequence[Outcome]
        try:
            outcomes = await future
        except TandemError as error:
            outcomes = [error] * len(chunk)
        summary.note(chunk, outcomes, on_result)

    for chunk in chunks:
        while len(under_way) >= under_way_max:
            await settle_oldest()
        if summary.must_stop(stop_on_error=stop_on_error):
            break
        under_way.append((chunk, await _start(chunk, start)))
    while under_way:
        await settle_oldest()
    return summary.result(stop_on_error=stop_on_error)


async def _start(chunk: list[Message], start: Callable[[list[Message]], Awaitable[Results]]) -> Results:
    """What is wrong with the messages comes by the future, too."""
    try:
        return await start(chunk)
    except TandemError as error:
        failed: Results = asyncio.get_running_loop().create_future()
        failed.set_exception(error)
        return failed
