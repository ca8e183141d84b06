"""Pops and notifications that wait for messages: held by topic and group, served first come first.

Invariants: a held request is in the table once and leaves it once: served, expired, or with its connection.
Strategy:   when a topic gets messages its waiting groups are looked at in the next turn of the loop; each
            group's requests in order, until one finds nothing.
At a bound: `hold` says no (POLLING_FULL).
Knows not:  what a pop is; `on_wake(held, is_over)` answers it, or returns False to wait on.
Source:     spec semantics 14.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tandemmq.broker.pull.long_poll import PollChannel
from tandemmq.runtime.ports import Clock, TimerHandle

ANY = -1

PollKey = tuple[str, str]
"""Topic and group."""


class HeldPop:
    """One waiting request; `queue_id` -1 waits for any queue."""

    __slots__ = ("channel", "deadline_s", "key", "on_wake", "queue_id", "request", "timer")

    def __init__(
        self,
        *,
        channel: PollChannel,
        key: PollKey,
        queue_id: int,
        deadline_s: float,
        request: Any,
        on_wake: Callable[[HeldPop, bool], bool],
    ) -> None:
        self.channel = channel
        self.key = key
        self.queue_id = queue_id
        self.deadline_s = deadline_s
        self.request = request
        self.on_wake = on_wake
        self.timer: TimerHandle | None = None


class PopPolls:
    """The table of held requests."""

    def __init__(self, *, clock: Clock, count_max: int, count_per_group_max: int) -> None:
        self._clock = clock
        self._count_max = count_max
        self._count_per_group_max = count_per_group_max
        self._count = 0
        self._by_key: dict[PollKey, dict[HeldPop, None]] = {}
        self._by_channel: dict[PollChannel, dict[HeldPop, None]] = {}
        self._keys_of_topic: dict[str, dict[PollKey, bool]] = {}  # True: a retry topic of the key
        self._topics_of_key: dict[PollKey, tuple[str, ...]] = {}
        self._touched: dict[PollKey, set[int]] = {}
        self.is_closed = False

    def __len__(self) -> int:
        return self._count

    def count(self, key: PollKey, queue_id: int) -> int:
        """Requests held for exactly this queue id."""
        return sum(held.queue_id == queue_id for held in self._by_key.get(key, ()))

    def hold(self, held: HeldPop, retry_topics: Iterable[str]) -> bool:
        """True when it is held now; False at a bound or after `close`."""
        of_key = self._by_key.get(held.key)
        if (
            self.is_closed
            or self._count >= self._count_max
            or (of_key is not None and len(of_key) >= self._count_per_group_max)
        ):
            return False
        if of_key is None:
            of_key = self._by_key[held.key] = {}
            topics = self._topics_of_key[held.key] = (held.key[0], *retry_topics)
            for topic in topics:
                self._keys_of_topic.setdefault(topic, {})[held.key] = topic != held.key[0]
        of_key[held] = None
        of_channel = self._by_channel.get(held.channel)
        if of_channel is None:
            of_channel = self._by_channel[held.channel] = {}
            if self.drop_channel not in held.channel.on_close:
                held.channel.on_close.append(self.drop_channel)
        of_channel[held] = None
        self._count += 1
        delay_s = max(held.deadline_s - self._clock.monotonic(), 0.0)
        held.timer = self._clock.call_later(delay_s, self._on_deadline, held)
        return True

    def on_dispatch(self, newest: Iterable[tuple[str, int]]) -> None:
        """These queues got messages; the pops that wait for them are looked at in the next turn."""
        keys_of_topic = self._keys_of_topic
        if not keys_of_topic:
            return
        for topic, queue_id in newest:
            for key, is_retry in keys_of_topic.get(topic, {}).items():
                self.touch(key, ANY if is_retry else queue_id)

    def touch(self, key: PollKey, queue_id: int) -> None:
        """There may be something for the group in this queue (-1: anywhere)."""
        if key in self._by_key:
            if not self._touched:
                self._clock.call_soon(self._wake_touched)
            self._touched.setdefault(key, set()).add(queue_id)

    def drop_channel(self, channel: PollChannel) -> None:
        """Forget the requests of a closed connection."""
        for held in list(self._by_channel.get(channel, ())):
            self._remove(held)

    def close(self) -> None:
        """Answer everything that is held."""
        self.is_closed = True
        for held in [held for of_key in self._by_key.values() for held in of_key]:
            self._on_deadline(held)

    def _wake_touched(self) -> None:
        touched, self._touched = self._touched, {}
        for key, queue_ids in touched.items():
            for held in list(self._by_key.get(key, ())):
                if ANY not in queue_ids and held.queue_id != ANY and held.queue_id not in queue_ids:
                    continue
                if held not in self._by_key.get(key, ()):
                    continue
                if not held.on_wake(held, False):
                    break
                self._remove(held)

    def _on_deadline(self, held: HeldPop) -> None:
        self._remove(held)
        held.on_wake(held, True)

    def _remove(self, held: HeldPop) -> None:
        of_key = self._by_key.get(held.key)
        if of_key is None or of_key.pop(held, 0) == 0:
            return
        self._count -= 1
        if held.timer is not None:
            held.timer.cancel()
        if not of_key:
            del self._by_key[held.key]
            for topic in self._topics_of_key.pop(held.key):
                del self._keys_of_topic[topic][held.key]
                if not self._keys_of_topic[topic]:
                    del self._keys_of_topic[topic]
        of_channel = self._by_channel[held.channel]
        del of_channel[held]
        if not of_channel:
            del self._by_channel[held.channel]
