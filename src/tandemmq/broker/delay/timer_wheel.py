"""The nearest timer messages, by the time slot in which they go: pure.

Holds numbers only: slot and queue offset, and for cancelled messages slot and key. The keys of `TimerKey`
order all messages of a broker; the wheel knows every pending one below `horizon` and none from there on.
Invariants: at most `count_max` messages and as many cancellations are held, whatever arrives; above that the
            farthest are forgotten and the horizon moves nearer. Forgetting loses nothing: the messages lie in
            the timer topic and are read again when the wheel has run empty (`wants_refill`).
Bound:      about 100 bytes for a message and 200 for a cancellation, so 100,000 messages take 10 MB.
            Cancellations of one slot beyond `count_max` are not noted, and their messages are delivered.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import NamedTuple

COUNT_MAX = 100_000


CANCELLING = 1 << 62
"""Added to the queue offset of a cancellation: it comes last in its slot, so that it is pending, and read
again when need be, as long as what it cancels may be pending.
"""


class TimerKey(NamedTuple):
    """The place of a timer message in the order of delivery: by slot, then by rank."""

    slot_ms: int
    rank: int

    @property
    def queue_offset(self) -> int:
        """Where the message lies in the timer topic."""
        return self.rank & ~CANCELLING


class TimerWheel:
    """Pending messages below the horizon, which is None while all pending ones are held."""

    def __init__(self, count_max: int = COUNT_MAX) -> None:
        assert count_max > 0
        self._count_max = count_max
        self._slots: dict[int, list[int]] = {}  # ranks, ascending
        self._cancelled: dict[int, set[str]] = {}
        self._heap: list[int] = []  # every slot of _slots, and slots that are gone
        self._count = 0
        self.horizon: TimerKey | None = None
        self._far_offset: int | None = None  # the lowest queue offset that was forgotten

    def __len__(self) -> int:
        return self._count

    def add(self, key: TimerKey) -> None:
        """One more pending message; beyond the horizon it is only known to exist."""
        if self.horizon is not None and key >= self.horizon:
            self._note_far(key.queue_offset)
            return
        ranks = self._slots.get(key.slot_ms)
        if ranks is None:
            self._slots[key.slot_ms] = [key.rank]
            heapq.heappush(self._heap, key.slot_ms)
        else:
            insort(ranks, key.rank)
        self._count += 1
        if self._count > self._count_max:
            self._forget_farthest()

    def cancel(self, slot_ms: int, name: str) -> None:
        """The message called `name` is not to be delivered when its slot comes.

        A cancellation is a pending message too: add it with its CANCELLING key.
        """
        if self.horizon is not None and slot_ms > self.horizon.slot_ms:
            return  # read again together with its slot
        names = self._cancelled.setdefault(slot_ms, set())
        if len(names) < self._count_max:
            names.add(name)

    def is_cancelled(self, slot_ms: int, name: str) -> bool:
        names = self._cancelled.get(slot_ms)
        return names is not None and name in names

    @property
    def has_cancelled(self) -> bool:
        return bool(self._cancelled)

    def next_key(self) -> TimerKey | None:
        """The first pending message that is held."""
        heap = self._heap
        while heap and heap[0] not in self._slots:
            heapq.heappop(heap)
        return TimerKey(heap[0], self._slots[heap[0]][0]) if heap else None

    def peek(self, slot_ms_end: int, count_max: int) -> list[TimerKey]:
        """The first messages of the earliest slot, if it is below `slot_ms_end`; at most `count_max`."""
        first = self.next_key()
        if first is None or first.slot_ms >= slot_ms_end:
            return []
        return [TimerKey(first.slot_ms, rank) for rank in self._slots[first.slot_ms][:count_max]]

    def remove(self, keys: list[TimerKey]) -> None:
        """These were delivered; `keys` is what `peek` gave, with nothing added in between."""
        if not keys:
            return
        slot_ms = keys[0].slot_ms
        ranks = self._slots[slot_ms]
        assert ranks[: len(keys)] == [key.rank for key in keys]
        del ranks[: len(keys)]
        self._count -= len(keys)
        if not ranks:
            del self._slots[slot_ms]

    def forget_cancelled_below(self, slot_ms: int) -> None:
        """Cancellations of slots that are over."""
        for old in [slot for slot in self._cancelled if slot < slot_ms]:
            del self._cancelled[old]

    @property
    def wants_refill(self) -> bool:
        """All that was held is gone, and there is more."""
        return self._count == 0 and self._far_offset is not None

    def first_offset(self) -> int | None:
        """The lowest queue offset of a pending message, held or not; None when none is pending."""
        held = min(map(_lowest_offset, self._slots.values()), default=None)
        known = [offset for offset in (held, self._far_offset) if offset is not None]
        return min(known, default=None)

    def held(self) -> Iterator[TimerKey]:
        """Everything held, in order."""
        for slot_ms in sorted(self._slots):
            for rank in self._slots[slot_ms]:
                yield TimerKey(slot_ms, rank)

    def _forget_farthest(self) -> None:
        """Keep half, so that it is not done for each message."""
        keep = self._count_max // 2
        for slot_ms in sorted(self._slots, reverse=True):
            ranks = self._slots[slot_ms]
            cut = max(0, len(ranks) - (self._count - keep))
            self._note_far(_lowest_offset(ranks, cut))
            self.horizon = TimerKey(slot_ms, ranks[cut])
            self._count -= len(ranks) - cut
            if cut:
                del ranks[cut:]
            else:
                del self._slots[slot_ms]
            if self._count <= keep:
                break
        self._heap = sorted(self._slots)
        assert self.horizon is not None
        for slot_ms in [slot for slot in self._cancelled if slot > self.horizon.slot_ms]:
            del self._cancelled[slot_ms]

    def _note_far(self, queue_offset: int) -> None:
        if self._far_offset is None or queue_offset < self._far_offset:
            self._far_offset = queue_offset


def _lowest_offset(ranks: list[int], start: int = 0) -> int:
    """The lowest queue offset among ranks from `start` on, of which there is at least one."""
    lowest = ranks[start] & ~CANCELLING
    cancelling = bisect_left(ranks, CANCELLING, start)
    return min(lowest, ranks[cancelling] - CANCELLING) if cancelling < len(ranks) else lowest
