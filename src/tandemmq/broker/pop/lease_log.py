"""The durable form of a broker's leases: changes are written to the revive topic and read back from it.

Invariants: a change is answered once it is in the log, with the same durability as a send.
            The table equals the fold of the revive topic's records from its committed offset on.
            A group's position becomes its committed offset, and the revive topic's committed offset advances,
            only once the log is safe up to that point.
            After a topic is deleted, neither the table nor the records affect pops of a new topic with the
            same name.
Strategy: a pop writes its check points in one append. Acks of one lease within one turn of the loop share a
          record. A check point that holds back the committed offset of its queue too far is written again.
At a bound: a check point more than ROLL_AFTER_COUNT records behind is repeated, at most ROLL_COUNT_MAX per
            round.
Source: spec semantics 14.4; decision 008.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from tandemmq.broker.core import BrokerCore
from tandemmq.broker.durable import DurableWriter, Progress
from tandemmq.broker.pop.leases import (
    REVIVE_GROUP,
    Change,
    Finished,
    Lease,
    LeaseKey,
    LeaseRecords,
    Leases,
    NewLease,
    QueueKey,
    read_change,
)
from tandemmq.errors import RequestRejected
from tandemmq.protocol.record import NewRecord, Record
from tandemmq.store import PutStatus
from tandemmq.store.outcomes import NOT_STORED

ROLL_AFTER_COUNT: Final = 50_000
ROLL_COUNT_MAX: Final = 256
READ_COUNT: Final = 64


OnDone = Callable[[PutStatus], None]
_Ack = tuple[Sequence[int], OnDone, int]
"""The indexes of messages, the callback, and the bits of those of which no earlier ack is stored or
pending.
"""
_Settled = tuple[dict[int, int], dict[QueueKey, int]]
"""Committed offsets of the revive queues, and new positions of groups."""


def is_stored(status: PutStatus) -> bool:
    """Returns False if the append stored nothing or its outcome is unknown."""
    return status not in NOT_STORED


def _ignore(_status: PutStatus) -> None:
    """Ignores the outcome: a kill then returns to the committed offset."""


class LeaseLog:
    """Writes changes of leases to the revive topic and applies them to the table.

    Call `recover` before anything else, on a master only and once `is_caught_up` is True.
    """

    def __init__(self, core: BrokerCore, leases: Leases, *, roll_after_count: int = ROLL_AFTER_COUNT) -> None:
        options = core.options
        self._store, self._offsets, self._clock = core.store, core.offsets, core.clock
        self.leases = leases
        self.records = LeaseRecords(cluster=options.cluster_name, broker_name=options.broker_name)
        self._queue_count = options.revive_queue_count
        self._roll_after_count = roll_after_count
        self._writer = DurableWriter(core.store, core.clock)
        self._positions: dict[QueueKey, int] = {}
        self._popped: set[QueueKey] = set()  # the log may hold positions of these
        self._moved: dict[QueueKey, int] = {}  # changed since the last round
        self._known_ends: dict[int, int] = {}
        # (queue, begin, end) of records that this broker did not write
        self._foreign: list[tuple[int, int, int]] = []
        self._recovered_ends: dict[int, int] = {}  # records below were read by `recover`
        self._acks: dict[Lease, list[_Ack]] = {}
        self._progress: Progress[_Settled] = Progress()
        self.is_ready = False
        self.on_sooner: Callable[[], None] = lambda: None
        """Called when a new lease may end before all others."""

    # Reading back.

    @property
    def is_caught_up(self) -> bool:
        """True if the revive topic's queues show everything that the log holds of them.

        A broker whose mastership was unconfirmed may have stored leases that stay hidden until its slaves
        hold them. Accepting an ack before its lease is known would lose the ack.
        """
        topic = self.records.topic
        return all(
            self._store.queue_max(topic, queue_id) == self._store.queue_next(topic, queue_id)
            for queue_id in self._queue_ids()
        )

    def recover(self) -> int:
        """Rebuilds the table from the revive topic's committed offsets on. Returns the number of leases."""
        self.leases.clear()
        for table in (self._positions, self._moved, self._known_ends, self._recovered_ends, self._acks):
            table.clear()
        self._popped.clear()
        self._foreign.clear()
        self._progress = Progress()
        put_off: dict[tuple[QueueKey, int], int] = {}
        for record in heapq.merge(*map(self._records_of, self._queue_ids()), key=_log_offset):
            change = self._change_in(record)
            if change is None:
                continue
            self._apply(change, record.queue_offset, is_live=False)
            if isinstance(change, NewLease) and change.position is None and len(change.lease.offsets) == 1:
                key = change.lease.key
                position = key[:3], change.lease.offsets[0]
                put_off[position] = max(put_off.get(position, 0), key.pop_time_ms)
        self._finish_replaced(put_off)
        self.is_ready = True
        return len(self.leases)

    def _finish_replaced(self, put_off: Mapping[tuple[QueueKey, int], int]) -> None:
        """Removes messages from their earlier leases if their invisible time was changed.

        The log may end between the check point of the new lease and the ack that closes the old one. A slave
        that became master then has the first without the second, and the message would be delivered twice.
        """
        for lease in self.leases.all() if put_off else ():
            key = lease.key
            replaced = [
                index
                for index, offset in enumerate(lease.offsets)
                if put_off.get((key[:3], offset), 0) > key.pop_time_ms
            ]
            lease.mark_moved(replaced)
            self.leases.finish(lease, replaced)

    def _queue_ids(self) -> Sequence[int]:
        """Returns the configured queues and any other queue of the revive topic that holds records."""
        topic = self.records.topic
        held = {queue_id for name, queue_id in self._store.queue_keys() if name == topic and queue_id >= 0}
        return sorted(held | set(range(self._queue_count)))

    def _records_of(self, queue_id: int) -> Iterator[Record]:
        topic = self.records.topic
        end = self._store.queue_max(topic, queue_id)
        begin = self._offsets.committed(REVIVE_GROUP, topic, queue_id) or 0
        begin = min(max(begin, self._store.queue_min(topic, queue_id)), end)
        self._known_ends[queue_id] = self._recovered_ends[queue_id] = end
        yield from self._read(queue_id, begin, end)

    def _read(self, queue_id: int, begin: int, end: int) -> Iterator[Record]:
        while begin < end:
            records, next_offset = self._writer.read(
                self.records.topic, queue_id, begin, READ_COUNT, waits=False
            )
            yield from (record for record in records if record.queue_offset < end)
            if next_offset <= begin:
                return
            begin = next_offset

    def on_dispatched(self, queue_id: int, end: int) -> bool:
        """Records that the revive queue holds records up to `end`. Returns True if some are not this
        broker's.
        """
        known_end = self._known_ends.get(queue_id, 0)
        if end > known_end:
            self._foreign.append((queue_id, known_end, end))
            self._known_ends[queue_id] = end
        return bool(self._foreign)

    def read_foreign(self) -> None:
        """Applies records that came through RocketMQ's timer, if RocketMQ's broker used this directory
        before.
        """
        waiting, self._foreign = self._foreign, []
        for queue_id, begin, end in waiting:
            if end > self._store.queue_max(self.records.topic, queue_id):
                self._foreign.append((queue_id, begin, end))  # written but not dispatched yet
                continue
            for record in self._read(queue_id, begin, end):
                change = self._change_in(record)
                if change is not None:
                    is_live = record.queue_offset >= self._recovered_ends.get(queue_id, 0)
                    self._apply(change, record.queue_offset, is_live=is_live)

    def _change_in(self, record: Record) -> Change | None:
        """Decodes a record. Returns None also for a record from before its topic was deleted, or from before
        its group's progress was dropped.
        """
        change = read_change(record)
        if change is None:
            return None
        if isinstance(change, NewLease):
            topic, group = change.lease.key.topic, change.lease.key.group
        else:
            topic, group, *_ = change.key if isinstance(change, Finished) else (change.topic, change.group)
        begin = max(self._store.deletions.ends.get(topic, 0), self._offsets.dropped_end(group))
        return change if record.log_offset >= begin else None

    def _apply(self, change: Change, revive_offset: int, *, is_live: bool) -> None:
        """Applies a change. `is_live`: the table already contains the changes that this broker wrote
        itself.
        """
        if isinstance(change, NewLease):
            if not is_live or change.is_late:
                self._apply_lease(change, revive_offset)
        elif isinstance(change, Finished):
            lease = self.leases.get(change.key)
            if lease is not None and not lease.is_reviving:
                found = [lease.index(offset) for offset in change.offsets]
                indexes = [index for index in found if index is not None]
                if change.is_moved:
                    lease.mark_moved(indexes)
                self.leases.finish(lease, indexes)
        elif not is_live:
            key = (change.topic, change.group, change.queue_id)
            self._store_position(key, change.offset)
            self.move(key, change.offset)

    def _apply_lease(self, change: NewLease, revive_offset: int) -> None:
        lease = change.lease
        known = self.leases.get(lease.key)
        if known is not None:
            self.leases.record_written(known, revive_offset)
            if not change.is_late and lease.invisible_ms != known.invisible_ms:
                self.leases.renew(known, lease.invisible_ms)
        elif not lease.is_finished:
            self.leases.add(lease)
            self.leases.record_written(lease, revive_offset)
        if change.position is not None:
            key = lease.key[:3]
            self.move(key, max(self.position(key) or 0, change.position))

    # Positions.

    @property
    def positions(self) -> Mapping[QueueKey, int]:
        """The next offsets to pop of groups that popped."""
        return self._positions

    def position(self, key: QueueKey) -> int | None:
        """Returns the next offset to pop, or None for a group that never popped nor committed. A pending
        reset counts already.
        """
        topic, group, queue_id = key
        reset = self._offsets.waiting_reset(group, topic, queue_id)
        if reset is not None:
            return reset
        committed = self._offsets.committed(group, topic, queue_id)
        position = self._positions.get(key)
        if committed is None or position is None:
            return committed if position is None else position
        return max(committed, position)

    def move(self, key: QueueKey, offset: int) -> None:
        """Sets the offset of the next pop; the filter rejected the messages before it."""
        self._positions[key] = self._moved[key] = offset
        self._popped.add(key)

    def reset(self, key: QueueKey, offset: int) -> None:
        """Overrides older positions in the log by an operator's reset; otherwise the next start would return
        to them. A group that never popped here has none, and what it commits later must not be overridden.

        Raises:  RequestRejected; the log still has the older positions then.
        """
        if not self.is_ready or key in self._popped:
            self.put_position(key, offset)

    def forget_topic(self, topic: str) -> None:
        """Drops the leases and positions of a deleted topic, so that a new topic with its name starts
        clean.
        """
        self._forget(lambda key: key[0] == topic)

    def forget_group(self, group: str) -> None:
        """Drops the leases and positions of a group that was deleted along with its progress."""
        self._forget(lambda key: key[1] == group)

    def _forget(self, is_deleted: Callable[[QueueKey], bool]) -> None:
        for table in (self._positions, self._moved, *(moved for _, moved in self._progress)):
            for key in [key for key in table if is_deleted(key)]:
                del table[key]
        self._popped = {key for key in self._popped if not is_deleted(key)}
        for lease in self.leases.all():
            if is_deleted(lease.key[:3]):
                self.leases.drop(lease)

    def put_position(self, key: QueueKey, offset: int, on_done: OnDone = _ignore) -> None:
        """Sets the offset of the next pop durably; it may be lower than before and survives a kill.

        Raises:  RequestRejected; nothing has changed then.
        """
        topic, group, queue_id = key
        now_ms = self._clock.now_ms()
        revive_queue_id = self.revive_queue_of(group)
        record = self.records.position(
            topic, group, queue_id, offset, revive_queue_id=revive_queue_id, now_ms=now_ms
        )
        self._append([record], on_done)
        self.move(key, offset)
        for _, moved in self._progress:  # an older position would undo this commit
            moved.pop(key, None)
        self._store_position(key, offset)

    def _store_position(self, key: QueueKey, offset: int) -> None:
        """Commits a position that the log has; a table without room must not end the task that does so."""
        topic, group, queue_id = key
        self._offsets.commit(group, topic, queue_id, offset, self._clock.now_ms(), is_admitted=True)

    # Writing.

    def revive_queue_of(self, group: str) -> int:
        """Returns the queue of the revive topic for all records of a group.

        `recover` reads each queue from its oldest open lease on, and the newest position of a group must be
        the last one that it reads. In another queue, without an open lease, it would not be read at all.
        """
        return zlib.crc32(group.encode()) % self._queue_count

    def free_time(self, keys: Sequence[tuple[str, str, int, int]], now_ms: int) -> int:
        """Returns the first pop time from `now_ms` on at which none of these keys names an existing lease."""
        while any(LeaseKey(*key, now_ms) in self.leases for key in keys):
            now_ms += 1
        return now_ms

    def open(self, leases: Sequence[Lease], on_done: OnDone) -> None:
        """Adds the leases of one pop, all in the same queue of the revive topic.

        Raises:  RequestRejected; no lease was added then.
        """
        now_ms = self._clock.now_ms()
        records = [self.records.check_point(lease, moves_position=True, now_ms=now_ms) for lease in leases]

        def settled(status: PutStatus) -> None:
            for lease in leases:
                if is_stored(status):
                    # Set only now: a committed offset must not pass a check point that is only staged.
                    self._moved[lease.key[:3]] = lease.end_offset
                else:
                    self._revoke(lease)
            on_done(status)

        first = self._append(records, settled)
        for position, lease in enumerate(leases):
            self.leases.add(lease)
            self.leases.record_written(lease, first + position)
            self._positions[lease.key[:3]] = lease.end_offset
            self._popped.add(lease.key[:3])
        self.on_sooner()

    def _revoke(self, lease: Lease) -> None:
        if self.leases.get(lease.key) is not lease:
            return  # dropped along with its topic or group
        self.leases.drop(lease)
        key = lease.key[:3]
        self.move(key, min(lease.key.start_offset, self._positions.get(key, lease.key.start_offset)))

    def ack(self, lease: Lease, indexes: Sequence[int], on_done: OnDone) -> None:
        """Acknowledges messages of the lease; acks of the same turn of the loop are written together. A
        repeated ack is written too, so that it is not answered before one of them is stored.
        """
        if not self._acks:
            self._clock.call_soon(self._write_acks)
        before = lease.bits
        for index in indexes:
            lease.bits |= 1 << index
        self._acks.setdefault(lease, []).append((indexes, on_done, lease.bits & ~before))

    def _write_acks(self) -> None:
        waiting, self._acks = self._acks, {}
        for lease, acks in waiting.items():
            self._write_ack(lease, acks)

    def _write_ack(self, lease: Lease, acks: list[_Ack]) -> None:
        indexes = sorted({index for some, _, _ in acks for index in some})
        offsets = [lease.offsets[index] for index in indexes]

        def settled(status: PutStatus) -> None:
            if is_stored(status):
                self.leases.finish(lease, indexes)
            else:
                for _, _, new_bits in acks:
                    lease.bits &= ~new_bits
            for _, on_done, _ in acks:
                on_done(status)

        try:
            self._append([self.records.ack(lease, offsets, self._clock.now_ms())], settled)
        except RequestRejected:
            settled(PutStatus.SERVICE_NOT_AVAILABLE)

    def replace(self, lease: Lease, index: int, new: Lease, on_done: OnDone) -> None:
        """Moves one message from its lease to a new lease with another end, in one append.

        Raises:  RequestRejected; nothing has changed then.
        """
        now_ms = self._clock.now_ms()
        records = [
            self.records.check_point(new, moves_position=False, now_ms=now_ms),
            self.records.ack(lease, [lease.offsets[index]], now_ms, is_moved=True),
        ]

        def settled(status: PutStatus) -> None:
            if is_stored(status):
                self.leases.finish(lease, [index])
            else:
                self.leases.drop(new)
                lease.bits &= ~(1 << index)
                lease.moved_bits &= ~(1 << index)
            on_done(status)

        first = self._append(records, settled)
        lease.bits |= 1 << index
        lease.mark_moved([index])
        self.leases.add(new)
        self.leases.record_written(new, first)
        self.on_sooner()

    def renew(self, lease: Lease, invisible_ms: int, on_done: OnDone) -> None:
        """Moves the end of a lease to `invisible_ms` after its pop, for all messages that are still open; its
        handles stay valid. The check point is written again with the new time; the last one counts.

        Raises:  RequestRejected; nothing has changed then.
        """
        before_ms, before_offset = lease.invisible_ms, lease.revive_offset
        lease.invisible_ms = invisible_ms
        try:
            record = self.records.check_point(lease, moves_position=False, now_ms=self._clock.now_ms())
        finally:
            lease.invisible_ms = before_ms

        def settled(status: PutStatus) -> None:
            if not is_stored(status) and self.leases.get(lease.key) is lease and not lease.is_reviving:
                # An earlier renewal of the same turn may have failed, too: its values were never stored.
                self.leases.record_written(lease, min(before_offset, lease.revive_offset))
                self.leases.renew(lease, min(before_ms, lease.invisible_ms))
                self.on_sooner()
            on_done(status)

        first = self._append([record], settled)
        self.leases.record_written(lease, first)
        self.leases.renew(lease, invisible_ms)
        self.on_sooner()

    def _append(self, records: Sequence[NewRecord], on_done: OnDone) -> int:
        """Appends records to one revive queue. Returns the offset of the first; the others follow it
        directly.
        """
        first = self._store.appender.append(records, on_done).queue_offset
        for position in range(first, first + len(records)):
            self._record_own(records[0].queue_id, position)
        return first

    def _record_own(self, queue_id: int, position: int) -> None:
        known_end = self._known_ends.get(queue_id, 0)
        if position > known_end:
            self._foreign.append((queue_id, known_end, position))
        self._known_ends[queue_id] = position + 1

    # Committing what is safe.

    def settle(self) -> None:
        """Commits the positions that have become safe and records the candidates for the next call. Called
        every round.
        """
        moved, self._moved = self._moved, {}
        ends = {queue_id: self._low(queue_id) for queue_id in self._known_ends}
        changed = {
            queue_id: end
            for queue_id, end in ends.items()
            if self._offsets.committed(REVIVE_GROUP, self.records.topic, queue_id) != end
        }
        if (moved or changed) and not self._progress.is_full:
            self._progress.add(self._writer.log_end, (changed, moved))
        else:
            self._moved = moved | self._moved
        for settled in self._progress.settle(self._writer.safe_end()):
            self._commit(*settled)

    @property
    def is_settled(self) -> bool:
        """True if no position waits to be committed and no foreign record waits to be read."""
        return not self._progress and not self._moved and not self._foreign

    def _low(self, queue_id: int) -> int:
        oldest = self.leases.oldest_written(queue_id)
        end = self._known_ends[queue_id] if oldest is None else oldest.revive_offset
        return min([end, *(begin for other, begin, _ in self._foreign if other == queue_id)])

    def _commit(self, ends: Mapping[int, int], moved: Mapping[QueueKey, int]) -> None:
        for key, offset in moved.items():
            topic, group, queue_id = key
            current = self._positions.get(key, offset)
            if self._offsets.waiting_reset(group, topic, queue_id) is None:
                self._store_position(key, min(offset, current))
            if current == offset and key not in self._moved:
                self._positions.pop(key, None)
        for queue_id, end in ends.items():
            # A check point whose repetition failed is at a lower offset than was recorded.
            safe = min(end, self._low(queue_id))
            self._store_position((self.records.topic, REVIVE_GROUP, queue_id), safe)

    def roll(self) -> None:
        """Writes leases again whose check points hold back the committed offsets."""
        for queue_id, end in list(self._known_ends.items()):
            for _ in range(ROLL_COUNT_MAX):
                lease = self.leases.oldest_written(queue_id)
                if lease is None or end - lease.revive_offset <= self._roll_after_count:
                    break
                if not self._repeat(lease):
                    return

    def _repeat(self, lease: Lease) -> bool:
        before = lease.revive_offset
        lease.put_again_count += 1
        record = self.records.check_point(lease, moves_position=False, now_ms=self._clock.now_ms())

        def settled(status: PutStatus) -> None:
            if not is_stored(status):
                self.leases.record_written(lease, min(before, lease.revive_offset))

        try:
            first = self._append([record], settled)
        except RequestRejected:
            return False
        self.leases.record_written(lease, first)
        return True

    # Reviving.

    async def store_again(self, lease: Lease, indexes: Sequence[int], copies: Sequence[NewRecord]) -> None:
        """Stores messages of an ended lease again and, in the same append, removes them from the lease."""
        offsets = [lease.offsets[index] for index in indexes]
        ack = self.records.ack(lease, offsets, self._clock.now_ms(), is_moved=True)
        await self._writer.append([*copies, ack])
        lease.mark_moved(indexes)
        self.leases.finish(lease, indexes)

    def read_messages(self, lease: Lease, offset: int) -> dict[int, Record]:
        """Reads messages of the lease's queue from `offset` on, up to READ_COUNT, by offset."""
        records, _ = self._writer.read(lease.key.topic, lease.key.queue_id, offset, READ_COUNT)
        return {record.queue_offset: record for record in records}


def _log_offset(record: Record) -> int:
    return record.log_offset
