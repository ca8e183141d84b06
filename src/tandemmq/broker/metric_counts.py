"""The counts that only RocketMQ's metrics show: timer messages, transactions, and times to create something.

The handlers and duties that cause a count raise it; none is on the path of an ordinary message.
At a bound: the first `SERIES_MAX` topics are counted, and `OPEN_MAX` open transactions. Changes of open
            transactions are recorded for 10 s, or until the next scrape, and then counted.
Source: spec metrics 4 and 5.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.topic_names import is_system_topic
from tandemmq.remoting.channel import Channel
from tandemmq.runtime.ports import Clock
from tandemmq.telemetry.metrics import Histogram
from tandemmq.telemetry.rocketmq_metrics import (
    CREATE_BUCKETS_MS,
    DELAY_BUCKETS_S,
    FINISH_BUCKETS_S,
    SERIES_MAX,
)

T = TypeVar("T")

OPEN_MAX: Final = 262_144
CHANGES_PER_STEP: Final = 1_024


def _add(counts: dict[str, int], topic: str, count: int) -> None:
    if topic in counts or len(counts) < SERIES_MAX:
        counts[topic] = counts.get(topic, 0) + count


def _kept(counts: dict[str, T], topics: Container[str]) -> dict[str, T]:
    return {topic: value for topic, value in counts.items() if topic in topics}


def _observe(times: dict[str, Histogram], bounds: tuple[float, ...], topic: str, value: float) -> None:
    histogram = times.get(topic)
    if histogram is None:
        if len(times) >= SERIES_MAX:
            return
        histogram = times[topic] = Histogram(bounds)
    histogram.observe(value)


@dataclass(slots=True)
class TimerCounts:
    """The timer messages by the topic they are for. `read_to`: the offset in the timer topic up to which
    messages are in `enqueued`; what is read again is not counted again.
    """

    read_to: int = 0
    enqueued: dict[str, int] = field(default_factory=dict)
    dequeued: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    delays_s: dict[str, Histogram] = field(default_factory=dict)
    read_due: Callable[[], Iterator[tuple[int, int]]] | None = None
    """Yields slots in milliseconds with the number of waiting messages of each; None without timers."""

    def read_again(self) -> None:
        """Begins a new count of the waiting messages, which are all read again."""
        self.waiting = dict.fromkeys(self.waiting, 0)

    def add(self, topic: str, *, is_new: bool, delay_s: int) -> None:
        """Counts a message that was put into the wheel. `is_new`: no copy of it was counted before."""
        _add(self.waiting, topic, 1)
        if is_new:
            _add(self.enqueued, topic, 1)
            _observe(self.delays_s, DELAY_BUCKETS_S, topic, delay_s)

    def remove(self, topic: str, *, is_delivered: bool) -> None:
        """Counts a message that left the wheel: delivered, cancelled, or stored anew."""
        if topic in self.waiting:
            self.waiting[topic] = max(0, self.waiting[topic] - 1)
        if is_delivered:
            _add(self.dequeued, topic, 1)

    def keep_topics(self, topics: Container[str]) -> None:
        """Forgets deleted topics."""
        self.enqueued, self.dequeued = _kept(self.enqueued, topics), _kept(self.dequeued, topics)
        self.waiting, self.delays_s = _kept(self.waiting, topics), _kept(self.delays_s, topics)


@dataclass(slots=True)
class TransactionCounts:
    """The transactions by topic. Open ones are known by the offset of their first half message, so that one
    that is found twice counts once.

    Strategy: a send or an end only records the change; `fold` counts it once the half message is stored.
    """

    rollbacks: dict[str, int] = field(default_factory=dict)
    finish_s: dict[str, Histogram] = field(default_factory=dict)
    """The times of commits, and so their number."""
    open_count: int = 0
    _open: dict[str, set[int]] = field(default_factory=dict)
    _changes: deque[tuple[int, str, bool]] = field(default_factory=deque)
    """Offsets, topics, and True for a transaction that has begun."""

    def begin(self, root: int, topic: str) -> None:
        """Records an open transaction, whose half message may not be stored yet."""
        self._changes.append((root, topic, True))

    def end(self, root: int, topic: str, *, is_commit: bool, age_s: int) -> None:
        """Counts the end that a producer has decided."""
        self._changes.append((root, topic, False))
        if is_commit:
            _observe(self.finish_s, FINISH_BUCKETS_S, topic, age_s)
        else:
            _add(self.rollbacks, topic, 1)

    def discard(self, root: int, topic: str) -> None:
        """Records that the transaction is open no longer."""
        self._changes.append((root, topic, False))

    def fold(self, stored_end: int) -> Iterator[tuple[()]]:
        """Counts the changes up to the first half message at or beyond `stored_end`; yields nothing where
        other tasks may run.
        """
        changes, done = self._changes, 0
        while changes and changes[0][0] < stored_end:
            self._apply(*changes.popleft())
            done += 1
            if done % CHANGES_PER_STEP == 0:
                yield ()

    def _apply(self, root: int, topic: str, is_begin: bool) -> None:
        roots = self._open.get(topic)
        if is_begin:
            if self.open_count < OPEN_MAX and (roots is None or root not in roots):
                self._open.setdefault(topic, set()).add(root)
                self.open_count += 1
        elif roots is not None and root in roots:
            roots.remove(root)
            self.open_count -= 1
            if not roots:
                del self._open[topic]

    def keep_topics(self, topics: Container[str]) -> None:
        """Forgets deleted topics; their open transactions remain until they are discarded."""
        self.rollbacks, self.finish_s = _kept(self.rollbacks, topics), _kept(self.finish_s, topics)

    def open_by_topic(self) -> dict[str, int]:
        """Returns the number of open transactions, as folded, of every topic that has had transactions."""
        found = dict.fromkeys((*self.finish_s, *self.rollbacks), 0)
        return found | {topic: len(roots) for topic, roots in self._open.items()}


CreationHandler = Callable[[Channel, Command], Coroutine[Any, Any, Command]]


@dataclass(slots=True)
class CreationTimes:
    """The times of requests that create or change a topic or a group, by success and, of topics, by whether
    the topic is the system's.
    """

    topics_ms: dict[tuple[bool, bool], Histogram] = field(default_factory=dict)
    groups_ms: dict[bool, Histogram] = field(default_factory=dict)

    def watch_topics(self, handler: CreationHandler, clock: Clock) -> CreationHandler:
        """Wraps a handler so that its times are kept."""

        def observe(command: Command, is_ok: bool, took_ms: float) -> None:
            key = is_ok, is_system_topic(command.fields.get("topic", ""))
            self.topics_ms.setdefault(key, Histogram(CREATE_BUCKETS_MS)).observe(took_ms)

        return _timed(handler, clock, observe)

    def watch_groups(self, handler: CreationHandler, clock: Clock) -> CreationHandler:
        """Wraps a handler so that its times are kept."""

        def observe(_command: Command, is_ok: bool, took_ms: float) -> None:
            self.groups_ms.setdefault(is_ok, Histogram(CREATE_BUCKETS_MS)).observe(took_ms)

        return _timed(handler, clock, observe)


def _timed(
    handler: CreationHandler, clock: Clock, observe: Callable[[Command, bool, float], None]
) -> CreationHandler:
    async def run(channel: Channel, command: Command) -> Command:
        begun_at, is_ok = clock.monotonic(), False
        try:
            answer = await handler(channel, command)
            is_ok = answer.code == ResponseCode.SUCCESS
            return answer
        finally:
            observe(command, is_ok, (clock.monotonic() - begun_at) * 1000)

    return run
