"""Sending many messages at once: cut into batches, many batches under way; the cutting is pure.

Order inside one topic is kept in the cutting, but batches take the queues in turn and may overtake each
other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from tandemmq.api.broker_send import SendStatus
from tandemmq.client.producer.results import SendResult
from tandemmq.errors import TandemError
from tandemmq.protocol.message import Message

Outcome = SendResult | TandemError
OnResult = Callable[[Message, Outcome], object]

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

    def note(self, outcome: Outcome) -> None:
        """Count one message."""
        if isinstance(outcome, TandemError):
            self.failed_count += 1
            if self.first_error is None:
                self.first_error = outcome
        else:
            self.counts[outcome.status] = self.counts.get(outcome.status, 0) + 1


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
