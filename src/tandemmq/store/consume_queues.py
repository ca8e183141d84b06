"""All ConsumeQueues of a store: finds, creates, loads and drops them.

Invariants: `table` holds each queue once, ordered by name as loaded and then by creation, so that iteration
            is reproducible. Queues built from the log have no entries of deleted records. A record that
            restarts a queue reveals a deletion, which is on disk before the queue is changed.
Knows not:  the log; readers and writers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tandemmq.protocol.topic_names import SCHEDULE_TOPIC
from tandemmq.runtime.ports import Disk
from tandemmq.store.checkpoint import queues_digest
from tandemmq.store.consume_queue import ConsumeQueue
from tandemmq.store.deletions import Deletions
from tandemmq.store.options import (
    QUEUE_OFFSET_MAX,
    QUEUE_UNIT_BYTES,
    StoreOptions,
    StorePaths,
    parse_queue_id,
)
from tandemmq.store.segmented_log import OpenFiles
from tandemmq.telemetry import events

log = logging.getLogger(__name__)


QueueKey = tuple[str, int]


class PlacedEntry(NamedTuple):
    """The queue entry that a record implies by its own fields."""

    queue_offset: int
    log_offset: int
    size: int
    tag_hash: int


class OffsetVerifier:
    """Holds back records with an unexpected queue offset while queues are built from the log.

    No checksum covers a record's queue offset, and accepting a wrong one can restart the queue. The record
    therefore waits for the next one of its queue, which shows the right continuation. A rejected offset costs
    only its own message: a filler takes its place.
    An unexpected offset is accepted at once if the log explains it: offset 0 of a recreated topic; damaged or
    missing bytes between the queue's last record and this one; offsets held only by fillers; the first record
    of a queue, if the log has lost its beginning.
    `is_damaged(begin, end)` returns True if bytes of that log range are known to be damaged; the log begins
    at `log_begin`.
    Source:  spec store 3 (what the checksum covers), 5.
    """

    __slots__ = ("_held", "_is_damaged", "_log_begin")

    def __init__(self, log_begin: int, is_damaged: Callable[[int, int], bool]) -> None:
        assert log_begin >= 0, log_begin
        self._log_begin = log_begin
        self._is_damaged = is_damaged
        self._held: dict[ConsumeQueue, PlacedEntry] = {}

    def __contains__(self, queue: ConsumeQueue) -> bool:
        """Returns True while a record of the queue is held back."""
        return queue in self._held

    def check(self, queue: ConsumeQueue, entry: PlacedEntry) -> Sequence[PlacedEntry]:
        """Returns the entries to put into the queue now, in order; none while the record is held back."""
        held = self._held.pop(queue, None)
        if held is None:
            return self._check_alone(queue, entry)
        assert held.log_offset + held.size <= entry.log_offset, (queue, held, entry)
        number, end = entry.queue_offset, queue.max_offset
        is_rise = held.queue_offset > end
        continues_queue = end <= number <= end + 1
        continues_held = number == held.queue_offset + 1 or (is_rise and number > held.queue_offset)
        if continues_held and not continues_queue:
            return held, entry
        _reject_offset(queue, held)
        return (entry,) if continues_queue else self._check_alone(queue, entry)

    def finish(self, queue: ConsumeQueue, gap_max: int) -> Sequence[PlacedEntry]:
        """Returns the entry to put when no more records come; none if its offset is rejected.

        A gap of up to `gap_max` entries is harmless. A larger one is accepted if the offsets differ in
        several bits: records given up by a repair cause that, a single bit flip does not.
        """
        assert gap_max > 0, gap_max
        held = self._held.pop(queue)
        number, end = held.queue_offset, queue.max_offset
        is_bit_flip = 1 in ((number ^ end).bit_count(), (number ^ end + 1).bit_count())
        # If the first two records contradict each other, either may be wrong.
        is_second = number < end == queue.min_offset + 1
        if is_second or 0 < number - end <= gap_max or (number > end and not is_bit_flip):
            return (held,)
        _reject_offset(queue, held)
        return ()

    @property
    def queues(self) -> Sequence[ConsumeQueue]:
        """The queues with a record held back."""
        return tuple(self._held)

    def _check_alone(self, queue: ConsumeQueue, entry: PlacedEntry) -> Sequence[PlacedEntry]:
        if self._is_explained(queue, entry):
            return (entry,)
        assert queue not in self._held, f"a record of {queue} is already held back"
        self._held[queue] = entry
        return ()

    def _is_explained(self, queue: ConsumeQueue, entry: PlacedEntry) -> bool:
        number, last_end = entry.queue_offset, queue.end_log_offset
        if queue.max_offset == 0:
            return number == 0 or self._log_begin > 0 or self._is_damaged(0, entry.log_offset)
        return (
            number in (0, queue.max_offset)
            or not 0 <= self._log_begin <= last_end <= entry.log_offset
            or self._is_damaged(last_end, entry.log_offset)
            or (number < queue.max_offset and queue.first_real(max(number, queue.min_offset))[1] < 0)
        )


def _reject_offset(queue: ConsumeQueue, entry: PlacedEntry) -> None:
    log.error(
        events.QUEUE_OFFSET_REJECTED,
        extra={
            "topic": queue.key[0],
            "queue_id": queue.key[1],
            "queue_offset": entry.queue_offset,
            "log_offset": entry.log_offset,
            "size_bytes": entry.size,
            "queue_end": queue.max_offset,
        },
    )


class ConsumeQueues:
    """The queues by (topic, queue_id)."""

    __slots__ = ("_disk", "_files", "_options", "_paths", "deletions", "on_deleted", "table", "verifier")

    def __init__(self, options: StoreOptions, paths: StorePaths, disk: Disk, files: OpenFiles) -> None:
        self._options = options
        self._paths = paths
        self._disk = disk
        self._files = files
        self.deletions = Deletions(paths.deletions, disk)
        self.table: dict[QueueKey, ConsumeQueue] = {}
        self.verifier: OffsetVerifier | None = None
        """Set while the queues are built from a log whose bytes are not verified."""
        self.on_deleted: Callable[[str], None] = lambda _topic: None
        """Called with a topic that was deleted and created again, as its records show."""

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(tuple(self.table.values()))

    def __len__(self) -> int:
        return len(self.table)

    @property
    def directory(self) -> Path:
        return self._paths.consume_queues

    def load(self, *, stale_bytes_max: int) -> None:
        """Opens every queue on disk; directories whose name is not a queue number are skipped (spec store
        12).
        """
        assert not self.table, "queues are loaded once"
        for topic in self._disk.list(self._paths.consume_queues):
            for name in self._disk.list(self._paths.consume_queues / topic):
                queue_id = parse_queue_id(name)
                if queue_id is not None:
                    self.get_or_create((topic, queue_id)).load(stale_bytes_max=stale_bytes_max)

    def get_or_create(self, key: QueueKey) -> ConsumeQueue:
        """Returns the queue; a new one is empty and has no file yet."""
        queue = self.table.get(key)
        if queue is None:
            topic, queue_id = key
            queue = self.table[key] = ConsumeQueue(
                key,
                self._paths.consume_queue(topic, queue_id),
                self._options.consume_queue_file_bytes,
                self._files,
                is_schedule=topic == SCHEDULE_TOPIC,
            )
        assert not queue.is_dropped, queue
        return queue

    def put_at(
        self, queue: ConsumeQueue, queue_offset: int, log_offset: int, size: int, tag_hash: int
    ) -> None:
        """Appends the entry of a record at the queue offset stored in it; `verifier` may hold it back.

        An impossible offset is rejected. A queue that restarts at 0 reveals a deleted topic of which no
        notice came; the topic's older messages are then dropped from its other queues, too.
        """
        assert not queue.is_dropped, f"{queue} is dropped: its entries are unreachable"
        if queue_offset == queue.max_offset and self.verifier is None:  # it continues the queue
            queue.put_at(queue_offset, log_offset, size, tag_hash)
            return
        entry = PlacedEntry(queue_offset, log_offset, size, tag_hash)
        if not 0 <= queue_offset <= QUEUE_OFFSET_MAX:
            _reject_offset(queue, entry)
        elif self.verifier is None or log_offset < queue.end_log_offset:
            self._put(queue, entry)
        else:
            self._put_all(queue, self.verifier.check(queue, entry))

    def continued(
        self, topic: str, queue_ids: Sequence[int], queue_offsets: Sequence[int], log_offset: int
    ) -> list[ConsumeQueue] | None:
        """Returns the queue of each of these records of one topic, whose first is at `log_offset`. Returns
        None, and creates no queue, if one of them may not simply be the next of its queue.
        """
        assert topic != SCHEDULE_TOPIC, "entries of delayed messages have other values"
        if self.verifier is not None or self.is_deleted(topic, log_offset):
            return None
        ends: dict[int, int] = {}
        for queue_id, queue_offset in zip(queue_ids, queue_offsets, strict=True):
            end = ends.get(queue_id, -1)
            if end < 0:
                queue = self.table.get((topic, queue_id))
                if queue is not None and queue.end_log_offset > log_offset:
                    return None
                end = 0 if queue is None else queue.max_offset
            if queue_offset != end or end > QUEUE_OFFSET_MAX:
                return None
            ends[queue_id] = end + 1
        queues = {queue_id: self.get_or_create((topic, queue_id)) for queue_id in ends}
        return [queues[queue_id] for queue_id in queue_ids]

    def is_unverified(self, queue: ConsumeQueue) -> bool:
        """Returns True while a record of the queue is held back."""
        return self.verifier is not None and queue in self.verifier

    def settle_unverified(self) -> None:
        """Decides on all records held back, as no more records come. Raises OSError as `put_at`."""
        verifier, self.verifier = self.verifier, None
        if verifier is not None:
            gap_max = self._options.consume_queue_file_bytes // QUEUE_UNIT_BYTES
            for queue in verifier.queues:
                if queue.is_dropped:
                    continue  # the queue belongs to an earlier incarnation of its topic
                self._put_all(queue, verifier.finish(queue, gap_max))

    def _put_all(self, queue: ConsumeQueue, entries: Sequence[PlacedEntry]) -> None:
        """Puts entries in order. If a file cannot be written, its entry stays in memory, and so does the
        next.
        """
        if entries:
            assert len(entries) == 1 or entries[0].log_offset < entries[1].log_offset, (queue, entries)
            try:
                self._put(queue, entries[0])
            finally:
                self._put_all(queue, entries[1:])

    def _put(self, queue: ConsumeQueue, entry: PlacedEntry) -> None:
        queue_offset, log_offset, size, tag_hash = entry
        is_recreated = _is_restart(queue, queue_offset, log_offset)
        if is_recreated:
            self._record_deletion(queue)
        try:
            gap = queue.put_at(queue_offset, log_offset, size, tag_hash)
            assert gap >= 0 or queue.min_offset == queue_offset, (queue, gap, queue_offset)
            _log_gap(queue, gap, queue_offset)
        finally:
            if is_recreated:
                topic = queue.key[0]
                self._drop_deleted_of(topic)
                self.on_deleted(topic)

    def _record_deletion(self, restarted: ConsumeQueue) -> None:
        """Records that the topic was deleted after the last record of this queue. Blocks.

        A queue that began before that point and has not restarted belongs to the old topic, up to its last
        entry. A queue that began later may belong to the new one.
        """
        topic = restarted.key[0]
        deleted = restarted.end_log_offset
        assert deleted >= 0, f"{restarted} restarts but never held a record"
        spans = [(q.begin_log_offset, q.end_log_offset) for q in self if q.key[0] == topic]
        for begin, end in sorted(spans):
            if 0 <= begin < deleted < end:
                deleted = end
        try:
            self.deletions.note(topic, deleted)
        except OSError as error:  # written with the next deletion
            extra = {"path": str(self._paths.deletions), "reason": str(error)}
            log.warning(events.TABLE_SAVE_FAILED, extra=extra)

    @property
    def end_log_offset(self) -> int:
        """The end of the newest record in any queue; -1 without one (spec store 12)."""
        return max((queue.end_log_offset for queue in self.table.values()), default=-1)

    def digest(self) -> int:
        """Returns a digest of the existing queues and their bounds."""
        return queues_digest(
            (*key, queue.first_offset, queue.max_offset, queue.end_log_offset)
            for key, queue in self.table.items()
        )

    def distrust(self, log_offset: int) -> None:
        """Drops, after a crash, the entries of records at or after `log_offset` in every queue."""
        assert log_offset >= 0, log_offset
        for queue in self:
            queue.write()
            queue.distrust(log_offset)

    def truncate(self, log_end: int) -> int:
        """Drops entries beyond the end of the log in every queue; returns their number."""
        assert log_end >= 0, log_end
        return sum(queue.truncate(log_end) for queue in self)

    def begin_run(self) -> None:
        """Records each queue's current end as its start for this broker run, which now assigns queue
        offsets.
        """
        for queue in self:
            assert queue.min_offset <= queue.max_offset, queue
            assert queue.next_offset >= queue.max_offset, queue
            queue.run_start = queue.next_offset

    def raise_min(self, log_begin: int) -> None:
        """Moves the start of every queue to the first entry whose record is still kept."""
        assert log_begin >= 0, log_begin
        ends = self.deletions.ends
        for queue in self:
            queue.raise_min(max(log_begin, ends.get(queue.key[0], 0)))

    def is_deleted(self, topic: str, log_offset: int) -> bool:
        """Returns True if the record at `log_offset` was deleted with its topic."""
        ends = self.deletions.ends
        return bool(ends) and log_offset < ends.get(topic, 0)

    def next_offsets(self, topics: Collection[str]) -> dict[QueueKey, int]:
        """Returns the next queue offset of each queue of these topics."""
        return {key: queue.next_offset for key, queue in self.table.items() if key[0] in topics}

    def drop_deleted(self) -> None:
        """Deletes queues with only deleted records, and hides the entries of deleted records in others."""
        ends = self.deletions.ends
        for topic in dict.fromkeys(key[0] for key in self.table if key[0] in ends):
            self._drop_deleted_of(topic)

    def _drop_deleted_of(self, topic: str) -> None:
        end = self.deletions.ends.get(topic, 0)
        for key in [key for key in self.table if key[0] == topic]:
            queue = self.table[key]
            queue.raise_min(end)
            # A torn last entry may name an early record; it proves nothing about those before it.
            if queue.min_offset >= queue.max_offset and queue.end_log_offset <= end:
                _remove(self.table.pop(key))
        self._remove_empty(topic)

    def drop_topic(self, topic: str) -> int:
        """Deletes every queue of a topic; returns their number. The records stay in the log (spec
        store 19).
        """
        keys = [key for key in self.table if key[0] == topic]
        for key in keys:
            _remove(self.table.pop(key))
        self._remove_empty(topic)
        return len(keys)

    def remove_all(self) -> None:
        """Deletes every queue, because the log they point into is gone."""
        for topic in dict.fromkeys(key[0] for key in self.table):
            self.drop_topic(topic)
        assert not self.table

    def _remove_empty(self, topic: str) -> None:
        directory = self._paths.topic(topic)
        if self._disk.exists(directory) and not self._disk.list(directory):
            self._disk.remove(directory)


def _remove(queue: ConsumeQueue) -> None:
    """Deletes the queue's files; a new queue of that name deletes any that remain before its first write."""
    try:
        queue.remove()
    except OSError as error:
        extra = {"topic": queue.key[0], "queue_id": queue.key[1], "error": str(error)}
        log.warning(events.QUEUE_FILES_NOT_DELETED, extra=extra)


def _is_restart(queue: ConsumeQueue, queue_offset: int, log_offset: int) -> bool:
    """Returns True if the record is the first of a deleted and recreated topic."""
    return queue_offset == 0 < queue.max_offset and 0 <= queue.end_log_offset <= log_offset


def _log_gap(queue: ConsumeQueue, gap: int, queue_offset: int) -> None:
    """Logs that `gap` fillers were put before the entry at `queue_offset`, unless the queue began there; a
    negative gap is logged as a restart.
    """
    if gap < 0:
        log.info(
            events.QUEUE_RESTARTED,
            extra={"topic": queue.key[0], "queue_id": queue.key[1], "queue_offset": queue_offset},
        )
    elif gap and queue.min_offset != queue_offset:
        log.warning(
            events.QUEUE_GAP_FILLED,
            extra={"topic": queue.key[0], "queue_id": queue.key[1], "entry_count": gap},
        )
