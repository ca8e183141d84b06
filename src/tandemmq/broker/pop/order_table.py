"""The unacknowledged ordered pops of each group and queue; saved as consumerOrderInfo.json.

Invariants: a group gets nothing from a queue while a message of its last pop is neither acknowledged nor
            visible again. Only a pop with the same attempt id gets the same messages again.
Source: spec semantics 14.5. Pure except for the callbacks; the caller passes the time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from tandemmq.broker.pop.leases import QueueKey
from tandemmq.broker.table_file import StoredTable
from tandemmq.protocol.bodies.codec import decode_body
from tandemmq.protocol.bodies.progress import OrderState, OrderStates

KEPT_MS: Final = 24 * 3_600_000
"""The time after which an unused queue is forgotten, measured back from the newest pop."""


@dataclass(slots=True, eq=False)
class OrderedPop:
    """The last ordered pop of one queue by one group."""

    offsets: Sequence[int]
    _: KW_ONLY
    pop_time_ms: int
    invisible_ms: int
    attempt_id: str
    seen_at_ms: int
    bits: int = 0
    counts: dict[int, int] = field(default_factory=dict)  # offset -> earlier tries; absent without any
    # Offset -> the time at which the message becomes visible again, if the consumer has changed it.
    visible: dict[int, int] = field(default_factory=dict)
    postponed: set[int] = field(default_factory=set)  # the offsets in `visible` that count no try

    def __post_init__(self) -> None:
        self.offsets = list(self.offsets)

    def tries_of(self, offsets: Iterable[int]) -> dict[int, int]:
        """Returns, by offset, how often each of these messages was tried; messages without a try are left
        out.
        """
        seen = set(self.offsets)
        tries = {o: self.counts.get(o, 0) + (o not in self.postponed) for o in offsets if o in seen}
        return {offset: count for offset, count in tries.items() if count}

    def free_at_ms(self) -> int:
        """Returns the time at which the queue may be popped again; 0 when everything is acknowledged."""
        default = self.pop_time_ms + self.invisible_ms
        return max((self.visible.get(offset, default) for offset in self.open_offsets()), default=0)

    def open_offsets(self) -> list[int]:
        return [offset for index, offset in enumerate(self.offsets) if not self.bits >> index & 1]

    def next_offset(self) -> int:
        """Returns the first unacknowledged offset, or the offset after the last message."""
        return next(iter(self.open_offsets()), self.offsets[-1] + 1)


class OrderTable(StoredTable):
    """All ordered pops of a broker; the callbacks in `on_change` run after each change."""

    def __init__(self) -> None:
        super().__init__()
        self._pops: dict[QueueKey, OrderedPop] = {}
        # (topic, group) -> queue id -> attempt id, if it is not empty
        self._attempts: dict[tuple[str, str], dict[int, str]] = {}

    @property
    def pops(self) -> Mapping[QueueKey, OrderedPop]:
        """The last ordered pop of each queue that has one."""
        return self._pops

    def get(self, key: QueueKey) -> OrderedPop | None:
        return self._pops.get(key)

    def attempts_of(self, key: tuple[str, str]) -> Collection[str]:
        """Returns the attempt ids of the group's last pops of the topic."""
        return self._attempts.get(key, {}).values()

    def blocked_until_ms(self, key: QueueKey, attempt_id: str | None, now_ms: int) -> int | None:
        """Returns the time until which the group may not pop the queue, or None if it may pop now."""
        pop = self._pops.get(key)
        if pop is None or (attempt_id and attempt_id == pop.attempt_id):
            return None
        free_at_ms = pop.free_at_ms()
        return free_at_ms if now_ms < free_at_ms else None

    def put(self, key: QueueKey, pop: OrderedPop) -> None:
        """Replaces the last pop of the queue; messages popped before keep their counts."""
        before = self._pops.get(key)
        if before is not None:
            if pop.attempt_id and before.attempt_id == pop.attempt_id:
                pop.counts = {
                    offset: before.counts[offset] for offset in pop.offsets if offset in before.counts
                }
            else:
                pop.counts = before.tries_of(pop.offsets)
        self._set(key, pop)
        self._after_change()

    def acknowledge(self, key: QueueKey, offset: int, pop_time_ms: int) -> int | None:
        """Acknowledges a message. Returns the offset that the group may commit, or None if the ack belongs to
        an earlier pop.

        Raises:  ValueError when the last pop does not contain the message.
        """
        pop = self._pops.get(key)
        if pop is None or pop.pop_time_ms != pop_time_ms:
            return None
        pop.bits |= 1 << pop.offsets.index(offset)
        self._after_change()
        return pop.next_offset()

    def acknowledge_before(self, position: Callable[[QueueKey], int | None]) -> None:
        """Acknowledges every message below the position of its group. A kill may have lost these acks, and a
        later ack moves the group only up to its first open message.
        """
        for key, pop in self._pops.items():
            end = position(key) or 0
            for index, offset in enumerate(pop.offsets):
                pop.bits |= (offset < end) << index

    def set_visible_at(
        self, key: QueueKey, offset: int, pop_time_ms: int, visible_at_ms: int, *, is_postponed: bool = False
    ) -> bool:
        """Makes a message visible again at `visible_at_ms`. Returns False if the last pop does not contain
        the message.

        `is_postponed`: the message was not tried, so its next delivery does not count as a retry.
        """
        pop = self._pops.get(key)
        if pop is None or pop.pop_time_ms != pop_time_ms or offset not in pop.offsets:
            return False
        pop.visible[offset] = visible_at_ms
        if is_postponed:
            pop.postponed.add(offset)
        else:
            pop.postponed.discard(offset)
        self._after_change()
        return True

    def renew(self, key: QueueKey, pop_time_ms: int, visible_at_ms: int) -> bool:
        """Keeps every unacknowledged message of the last pop invisible until `visible_at_ms`, except those
        whose time the consumer has changed. Returns False if the pop is not the last one, or has no
        unacknowledged message.
        """
        pop = self._pops.get(key)
        if pop is None or pop.pop_time_ms != pop_time_ms or not pop.open_offsets():
            return False
        pop.invisible_ms = visible_at_ms - pop_time_ms
        self._after_change()
        return True

    def free_time(self, keys: Iterable[QueueKey], now_ms: int) -> int:
        """Returns the first pop time from `now_ms` on that is later than the last pop of each queue: a handle
        of an earlier pop must not name a later one.
        """
        pops = (self._pops.get(key) for key in keys)
        return max([now_ms, *(pop.pop_time_ms + 1 for pop in pops if pop is not None)])

    def clear(self, key: QueueKey) -> None:
        if key in self._pops:
            self._remove(key)
            self._after_change()

    def drop_topic(self, topic: str) -> None:
        for key in [key for key in self._pops if key[0] == topic]:
            self.clear(key)

    def drop_group(self, group: str) -> None:
        for key in [key for key in self._pops if key[1] == group]:
            self.clear(key)

    def drop_all(self) -> int:
        """Forgets every pop: another master serves the queues. Returns their number."""
        keys = list(self._pops)
        for key in keys:
            self._remove(key)
        if keys:
            self._after_change()
        return len(keys)

    def drop_beyond(self, queue_end: Callable[[str, int], int]) -> int:
        """Forgets pops with offsets beyond the end of their queue. Returns their number."""
        gone = [
            key
            for key, pop in self._pops.items()
            if max(pop.offsets, default=-1) >= queue_end(key[0], key[2])
        ]
        for key in gone:
            self._remove(key)
        if gone:
            self._after_change()
        return len(gone)

    def snapshot(self) -> OrderStates:
        """Returns the content of consumerOrderInfo.json, and forgets queues unused for KEPT_MS."""
        newest = max((pop.seen_at_ms for pop in self._pops.values()), default=0)
        table: dict[str, dict[int, OrderState]] = {}
        for key, pop in list(self._pops.items()):
            if pop.seen_at_ms < newest - KEPT_MS:
                self._remove(key)
                continue
            topic, group, queue_id = key
            table.setdefault(f"{topic}@{group}", {})[queue_id] = _state(pop)
        return OrderStates(table=table)

    def load(self, data: bytes) -> None:
        """Loads the content of consumerOrderInfo.json."""
        for name, queues in decode_body(data, OrderStates).table.items():
            topic, _, group = name.partition("@")
            for queue_id, state in queues.items():
                if state.offsets:
                    self._set((topic, group, queue_id), _pop(state))

    def _set(self, key: QueueKey, pop: OrderedPop) -> None:
        if key in self._pops:
            self._remove(key)
        self._pops[key] = pop
        if pop.attempt_id:
            self._attempts.setdefault(key[:2], {})[key[2]] = pop.attempt_id

    def _remove(self, key: QueueKey) -> None:
        if self._pops.pop(key).attempt_id:
            attempts = self._attempts[key[:2]]
            del attempts[key[2]]
            if not attempts:
                del self._attempts[key[:2]]


def _state(pop: OrderedPop) -> OrderState:
    first = pop.offsets[0]
    return OrderState(
        attempt_id=pop.attempt_id,
        bits=pop.bits,
        consumed_counts=pop.counts,
        invisible_ms=pop.invisible_ms,
        consumed_at_ms=pop.seen_at_ms,
        visible_at_ms=pop.visible,
        offsets=[first, *(offset - first for offset in pop.offsets[1:])],
        pop_time_ms=pop.pop_time_ms,
        postponed=sorted(pop.postponed) or None,
    )


def _pop(state: OrderState) -> OrderedPop:
    first = state.offsets[0]
    pop = OrderedPop(
        [first, *(first + step for step in state.offsets[1:])],
        pop_time_ms=state.pop_time_ms,
        invisible_ms=state.invisible_ms,
        attempt_id=state.attempt_id,
        seen_at_ms=state.consumed_at_ms,
    )
    pop.bits = state.bits
    pop.counts = dict(state.consumed_counts)
    pop.visible = dict(state.visible_at_ms)
    pop.postponed = set(state.postponed or ())
    return pop
