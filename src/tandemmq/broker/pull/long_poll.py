"""Pulls that wait for messages: held by queue, woken by dispatch, expired by one shared timer. `on_wake` of
the held object answers the pull; the table does not inspect requests.

Invariant: a held pull is in the table exactly once and leaves it exactly once: woken, expired, or dropped
           with its channel.
Strategy: expiry times are rounded up to ticks. The ticks in use form a heap, and the one timer is armed for
          the first. Waking is deferred to the next turn of the loop: the store finishes its batch first, and
          a queue touched twice in a turn is woken once.
At a bound: `hold` returns False and the pull is answered at once.
Source: spec semantics 8.5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop, heappush
from typing import Any, Generic, Protocol, TypeVar

from tandemmq.runtime.ports import Clock, TimerHandle

TICK_S = 0.1

QueueName = tuple[str, int]
K = TypeVar("K")
R = TypeVar("R")


class WakeReason(Enum):
    """The reason for trying a held pull again."""

    NEW_MESSAGES = "new messages"
    EXPIRED = "expired"


class PollChannel(Protocol):
    """The parts of a connection that the table needs."""

    @property
    def is_closed(self) -> bool: ...

    @property
    def on_close(self) -> list[Any]: ...


@dataclass(eq=False, slots=True, kw_only=True)
class HeldPull(Generic[R]):
    """A waiting pull. `on_wake(held, reason)` answers it or holds it again."""

    channel: PollChannel
    queue: QueueName
    offset: int  # the first queue offset that the pull has not seen
    deadline_s: float
    request: R
    on_wake: Callable[[HeldPull[R], WakeReason], None]
    is_held: bool = field(default=False, init=False)
    tick: int = field(default=0, init=False)


# Any: the table never inspects requests.
Held = HeldPull[Any]


class LongPolls:
    """The table of held pulls."""

    def __init__(self, *, clock: Clock, count_max: int, count_per_queue_max: int) -> None:
        self._clock = clock
        self._count_max = count_max
        self._count_per_queue_max = count_per_queue_max
        self._count = 0
        self._by_queue: dict[QueueName, dict[Held, None]] = {}
        self._by_tick: dict[int, dict[Held, None]] = {}
        self._by_channel: dict[PollChannel, dict[Held, None]] = {}
        self._ticks: list[int] = []
        self._timer: TimerHandle | None = None
        self._timer_tick = 0
        self._touched: dict[QueueName, int] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return self._count

    def hold(self, held: Held) -> bool:
        """Holds the pull. Returns False at a bound or after `close`."""
        of_queue = self._by_queue.get(held.queue)
        if (
            self._is_closed
            or self._count >= self._count_max
            or (of_queue is not None and len(of_queue) >= self._count_per_queue_max)
        ):
            return False
        held.tick = int(held.deadline_s / TICK_S) + 1
        of_tick = self._by_tick.get(held.tick)
        if of_tick is None:
            of_tick = self._by_tick[held.tick] = {}
            heappush(self._ticks, held.tick)
        of_tick[held] = None
        self._by_queue.setdefault(held.queue, {})[held] = None
        self._hold_for_channel(held)
        held.is_held = True
        self._count += 1
        self._arm()
        return True

    def on_dispatch(self, newest: Iterable[tuple[QueueName, int]]) -> None:
        """Schedules waking the pulls of these queues in the next turn; each queue comes with its new max
        offset.
        """
        by_queue = self._by_queue
        if not by_queue:
            return
        touched = self._touched
        for queue, max_offset in newest:
            if queue in by_queue:
                if not touched:
                    self._clock.call_soon(self._wake_touched)
                touched[queue] = max_offset

    def drop_channel(self, channel: PollChannel) -> None:
        """Drops the pulls of a closed connection."""
        for held in list(self._by_channel.get(channel, ())):
            self._remove(held)

    def wake_queue(self, queue: QueueName) -> None:
        """Wakes the queue's held pulls now, as at their expiry, because a group's offset was moved."""
        for held in list(self._by_queue.get(queue, ())):
            self._wake(held, WakeReason.EXPIRED)

    def wake_topic(self, topic: str) -> None:
        """Wakes the topic's held pulls now, as at their expiry, because the topic was deleted.

        A pull still held would continue in a later topic of the same name, past that topic's first messages.
        """
        for queue in [queue for queue in self._by_queue if queue[0] == topic]:
            self.wake_queue(queue)

    def wake_all(self) -> None:
        """Wakes every held pull now, as at its expiry, because the broker stops."""
        for held in [held for of_queue in list(self._by_queue.values()) for held in of_queue]:
            self._wake(held, WakeReason.EXPIRED)

    def close(self) -> None:
        """Answers every held pull and accepts no more."""
        self._is_closed = True
        self.wake_all()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _hold_for_channel(self, held: Held) -> None:
        channel = held.channel
        of_channel = self._by_channel.get(channel)
        if of_channel is None:
            of_channel = self._by_channel[channel] = {}
            if self.drop_channel not in channel.on_close:
                channel.on_close.append(self.drop_channel)
        of_channel[held] = None

    def _wake_touched(self) -> None:
        touched, self._touched = self._touched, {}
        for queue, max_offset in touched.items():
            for held in [held for held in self._by_queue.get(queue, ()) if held.offset < max_offset]:
                self._wake(held, WakeReason.NEW_MESSAGES)

    def _arm(self) -> None:
        first = self._ticks[0] if self._ticks else None
        if first is None or (self._timer is not None and self._timer_tick <= first):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_tick = first
        delay_s = max(0.0, first * TICK_S - self._clock.monotonic())
        self._timer = self._clock.call_later(delay_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        # Half a tick of slack: a timer that fires slightly early must not be armed again for the same tick.
        due = self._clock.monotonic() + TICK_S / 2
        while self._ticks and self._ticks[0] * TICK_S <= due:
            for held in list(self._by_tick.pop(heappop(self._ticks), ())):
                self._wake(held, WakeReason.EXPIRED)
        if not self._is_closed:
            self._arm()

    def _wake(self, held: Held, reason: WakeReason) -> None:
        # An answer may close a channel, which drops other pulls that are due in the same round.
        if held.is_held:
            self._remove(held)
            held.on_wake(held, reason)

    def _remove(self, held: Held) -> None:
        held.is_held = False
        _discard(self._by_queue, held.queue, held)
        _discard(self._by_channel, held.channel, held)
        of_tick = self._by_tick.get(held.tick)
        if of_tick is not None:
            # An empty tick stays in the heap until it is due: at most one per tick of the longest hold.
            of_tick.pop(held, None)
        self._count -= 1
        assert self._count >= 0


def _discard(table: dict[K, dict[Held, None]], key: K, held: Held) -> None:
    of_key = table[key]
    del of_key[held]
    if not of_key:
        del table[key]
