"""The messages that producers sent, with their outcomes, and those that consumers acknowledged.

A message is identified by the number in its body. Knows not: brokers, the network.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

Place = tuple[str, int]
"""(topic, queue_id)."""


class Fate(Enum):
    """The outcome of a message as its producer knows it."""

    PENDING = "pending"
    ACKNOWLEDGED = "acknowledged"
    STORED = "stored, a promise was not kept in time"
    UNKNOWN = "unknown"
    GONE = "lost in a power cut, as it may"
    EXPIRED = "older than what is kept"


@dataclass(slots=True, eq=False)
class Sent:
    """One message. The offsets are those of its acknowledgement."""

    number: int
    body: bytes
    topic: str
    tags: str
    is_waiting: bool
    sent_at: float
    fate: Fate = Fate.PENDING
    queue_id: int = -1
    queue_offset: int = -1
    log_offset: int = -1
    settled_at: float = 0.0

    def __str__(self) -> str:
        where = f"{self.topic}/{self.queue_id}:{self.queue_offset} at {self.log_offset}"
        return f"#{self.number} ({where}, sent {self.sent_at:.3f}, {self.fate.value} {self.settled_at:.3f})"


@dataclass(slots=True)
class Progress:
    """The progress of one group in one queue."""

    finished: set[tuple[int, int]] = field(default_factory=set)
    """(queue offset, message number)."""
    at_offset: dict[int, int] = field(default_factory=dict)
    """The number of the last acknowledged message at each offset."""

    def finish(self, offset: int, number: int) -> None:
        self.finished.add((offset, number))
        self.at_offset[offset] = number


@dataclass(slots=True)
class Ledger:
    """The messages and progress of a whole run."""

    sent: dict[int, Sent] = field(default_factory=dict)
    acknowledged: list[Sent] = field(default_factory=list)
    progress: dict[tuple[str, Place], Progress] = field(default_factory=dict)
    owed: dict[tuple[str, int], float] = field(default_factory=dict)
    """(group, message number) that consumers returned for a later retry -> time."""
    counts: Counter[str] = field(default_factory=Counter)

    def new(self, filling: int, *, topic: str, tags: str, is_waiting: bool, now_s: float) -> Sent:
        number = len(self.sent) + 1
        body = b"%06d|" % number + b"x" * filling
        sent = self.sent[number] = Sent(number, body, topic, tags, is_waiting, now_s)
        return sent

    def find(self, body: bytes) -> Sent | None:
        """Returns the message with exactly this body."""
        head = body.partition(b"|")[0]
        sent = self.sent.get(int(head)) if head.isdigit() else None
        return sent if sent is not None and sent.body == body else None

    def progress_of(self, group: str, place: Place) -> Progress:
        progress = self.progress.get((group, place))
        if progress is None:
            progress = self.progress[group, place] = Progress()
        return progress
