"""All ConsumeQueues of a store: find, create, load, drop.

Invariants: `table` holds each queue once, in the order of loading (by name) and then of creation, so every
            walk over it is the same in each run. What is built from the log has no entries of deleted
            records. A record that begins a queue anew shows a deletion, which is on disk before the queue is
            touched.
Knows not:  the log; who appends or reads.
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


class QueuePlace(NamedTuple):
    """The entry that a record names by itself."""

    queue_offset: int
    log_offset: int
    size: int
    tag_hash: int


class Doubts:
    """While queues are built from the log: records whose number is not the next one of their queue.

    No checksum covers the number of a record, and one that is believed can make its queue begin anew. So the
    record waits for the next one of its queue: what that continues is right. A number that is denied costs
    its own message: a filler stands in its place.
    Believed at once is what the log explains: number 0, which a topic that was made again begins with;
    damage, or bytes that are gone, between the queue's last record and this one; numbers that only fillers
    have; the first record of a queue, where the log has lost its beginning.
    `is_damaged(begin, end)` says whether bytes between these log offsets are known to be damaged; the log
    begins at `log_begin`.
    Source: spec store 3 (what the checksum covers), 5.
    """

    __slots__ = ("_held", "_is_damaged", "_log_begin")

    def __init__(self, log_begin: int, is_damaged: Callable[[int, int], bool]) -> None:
        assert log_begin >= 0, log_begin
        self._log_begin = log_begin
        self._is_damaged = is_damaged
        self._held: dict[ConsumeQueue, QueuePlace] = {}

    def __contains__(self, queue: ConsumeQueue) -> bool:
        """True while a record of the queue waits."""
        return queue in self._held

    def judge(self, queue: ConsumeQueue, place: QueuePlace) -> Sequence[QueuePlace]:
        """What is to be put into the queue now, in this order; nothing while the record waits."""
        held = self._held.pop(queue, None)
        if held is None:
            return self._judge_alone(queue, place)
        assert held.log_offset + held.size <= place.log_offset, (queue, held, place)
        number, end = place.queue_offset, queue.max_offset
        is_rise = held.queue_offset > end
        continues_queue = end <= number <= end + 1
        continues_held = number == held.queue_offset + 1 or (is_rise and number > held.queue_offset)
        if continues_held and not continues_queue:
            return held, place
        _deny(queue, held)
        return (place,) if continues_queue else self._judge_alone(queue, place)

    def finish(self, queue: ConsumeQueue, gap_max: int) -> Sequence[QueuePlace]:
        """What is to be put when no more records come, nothing when the number is denied.

        A gap of up to `gap_max` entries takes nothing away. A larger one is believed where several bits
        differ: one turned bit does not make it, but records that a repair gave up.
        """
        assert gap_max > 0, gap_max
        held = self._held.pop(queue)
        number, end = held.queue_offset, queue.max_offset
        is_turned = 1 in ((number ^ end).bit_count(), (number ^ end + 1).bit_count())
        # Of two that contradict each other the first one may as well be wrong.
        is_second = number < end == queue.min_offset + 1
        if is_second or 0 < number - end <= gap_max or (number > end and not is_turned):
            return (held,)
        _deny(queue, held)
        return ()

    @property
    def queues(self) -> Sequence[ConsumeQueue]:
        """Those of which a record waits."""
        return tuple(self._held)

    def _judge_alone(self, queue: ConsumeQueue, place: QueuePlace) -> Sequence[QueuePlace]:
        if self._is_explained(queue, place):
            return (place,)
        assert queue not in self._held, f"of {queue} a record waits already"
        self._held[queue] = place
        return ()

    def _is_explained(self, queue: ConsumeQueue, place: QueuePlace) -> bool:
        number, last_end = place.queue_offset, queue.end_log_offset
        if queue.max_offset == 0:
            return number == 0 or self._log_begin > 0 or self._is_damaged(0, place.log_offset)
        return (
            number in (0, queue.max_offset)
            or not 0 <= self._log_begin <= last_end <= place.log_offset
            or self._is_damaged(last_end, place.log_offset)
            or (number < queue.max_offset and queue.first_real(max(number, queue.min_offset))[1] < 0)
        )


def _deny(queue: ConsumeQueue, place: QueuePlace) -> None:
    log.error(
        events.QUEUE_NUMBER_DENIED,
        extra={
            "topic": queue.key[0],
            "queue_id": queue.key[1],
            "queue_offset": place.queue_offset,
            "log_offset": place.log_offset,
            "size_bytes": place.size,
            "queue_end": queue.max_offset,
        },
    )


class ConsumeQueues:
    """The queues by (topic, queue_id)."""

    __slots__ = ("_disk", "_files", "_options", "_paths", "deletions", "doubts", "on_deleted", "table")

    def __init__(self, options: StoreOptions, paths: StorePaths, disk: Disk, files: OpenFiles) -> None:
        self._options = options
        self._paths = paths
        self._disk = disk
        self._files = files
        self.deletions = Deletions(paths.deletions, disk)
        self.table: dict[QueueKey, ConsumeQueue] = {}
        self.doubts: Doubts | None = None
        """While the queues are built from a log of which nobody vouches for each byte."""
        self.on_deleted: Callable[[str], None] = lambda _topic: None
        """Told of a topic that was deleted, as its records show, and made again."""

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(tuple(self.table.values()))

    def __len__(self) -> int:
        return len(self.table)

    @property
    def directory(self) -> Path:
        return self._paths.consume_queues

    def load(self, *, stale_bytes_max: int) -> None:
        """Take up every queue on disk; directories that are no queue number are skipped (spec store 12)."""
        assert not self.table, "the queues are taken up once"
        for topic in self._disk.list(self._paths.consume_queues):
            for name in self._disk.list(self._paths.consume_queues / topic):
                queue_id = parse_queue_id(name)
                if queue_id is not None:
                    self.get_or_create((topic, queue_id)).load(stale_bytes_max=stale_bytes_max)

    def get_or_create(self, key: QueueKey) -> ConsumeQueue:
        """The queue; a new one is empty and has no file yet."""
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
        """Append the entry that a record names by itself; with `doubts`, when it is believed. A number that
        no queue has is denied.

        A queue that begins anew at 0 shows that its topic was deleted, though nobody has told: what the topic
        had before goes from its other queues, too.
        """
        assert not queue.is_dropped, f"{queue}: what is put there nobody finds"
        place = QueuePlace(queue_offset, log_offset, size, tag_hash)
        if not 0 <= queue_offset <= QUEUE_OFFSET_MAX:
            _deny(queue, place)
        elif self.doubts is None or log_offset < queue.end_log_offset:
            self._put(queue, place)
        else:
            self._put_all(queue, self.doubts.judge(queue, place))

    def is_in_doubt(self, queue: ConsumeQueue) -> bool:
        """True while a record of the queue waits for the next one."""
        return self.doubts is not None and queue in self.doubts

    def settle_doubts(self) -> None:
        """No more records come. Raises OSError as `put_at`."""
        doubts, self.doubts = self.doubts, None
        if doubts is not None:
            gap_max = self._options.consume_queue_file_bytes // QUEUE_UNIT_BYTES
            for queue in doubts.queues:
                if queue.is_dropped:
                    continue  # of a former life of its topic
                self._put_all(queue, doubts.finish(queue, gap_max))

    def _put_all(self, queue: ConsumeQueue, places: Sequence[QueuePlace]) -> None:
        """An entry whose file takes no write is kept in memory, and the next one as well."""
        if places:
            assert len(places) == 1 or places[0].log_offset < places[1].log_offset, (queue, places)
            try:
                self._put(queue, places[0])
            finally:
                self._put_all(queue, places[1:])

    def _put(self, queue: ConsumeQueue, place: QueuePlace) -> None:
        queue_offset, log_offset, size, tag_hash = place
        is_made_again = _begins_anew(queue, queue_offset, log_offset)
        if is_made_again:
            self._note_deletion(queue)
        try:
            gap = queue.put_at(queue_offset, log_offset, size, tag_hash)
            assert gap >= 0 or queue.min_offset == queue_offset, (queue, gap, queue_offset)
            _tell_gap(queue, gap, queue_offset)
        finally:
            if is_made_again:
                topic = queue.key[0]
                self._drop_deleted_of(topic)
                self.on_deleted(topic)

    def _note_deletion(self, anew: ConsumeQueue) -> None:
        """The topic was deleted behind all that this queue has. What began before that and has not begun anew
        is of the former life, to its last entry; a queue that began later may be of the new one. Blocks.
        """
        topic = anew.key[0]
        deleted = anew.end_log_offset
        assert deleted >= 0, f"{anew} begins anew and never held a record"
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
        """Where the newest record that any queue knows ends; -1 when none does (spec store 12)."""
        return max((queue.end_log_offset for queue in self.table.values()), default=-1)

    def digest(self) -> int:
        """Which queues there are, and the bounds of each."""
        return queues_digest(
            (*key, queue.first_offset, queue.max_offset, queue.end_log_offset)
            for key, queue in self.table.items()
        )

    def distrust(self, log_offset: int) -> None:
        """After a crash: in every queue, drop the entries of records from `log_offset` on."""
        assert log_offset >= 0, log_offset
        for queue in self:
            queue.write()
            queue.distrust(log_offset)

    def truncate(self, log_end: int) -> int:
        """Drop entries behind the end of the log, in every queue; how many."""
        assert log_end >= 0, log_end
        return sum(queue.truncate(log_end) for queue in self)

    def begin_life(self) -> None:
        """What the queues have now is what the log kept of an earlier life."""
        for queue in self:
            assert queue.min_offset <= queue.max_offset, queue
            assert queue.next_offset >= queue.max_offset, queue
            queue.life_start = queue.next_offset

    def raise_min(self, log_begin: int) -> None:
        """Let every queue begin at the first entry whose record is still kept."""
        assert log_begin >= 0, log_begin
        ends = self.deletions.ends
        for queue in self:
            queue.raise_min(max(log_begin, ends.get(queue.key[0], 0)))

    def is_deleted(self, topic: str, log_offset: int) -> bool:
        """True when the record at `log_offset` belongs to a former life of its topic, or to none."""
        ends = self.deletions.ends
        return bool(ends) and log_offset < ends.get(topic, 0)

    def next_offsets(self, topics: Collection[str]) -> dict[QueueKey, int]:
        """What the next append to each queue of these topics gets."""
        return {key: queue.next_offset for key, queue in self.table.items() if key[0] in topics}

    def drop_deleted(self) -> None:
        """Delete the queues that hold entries of deleted records only, and hide such entries of others."""
        ends = self.deletions.ends
        for topic in dict.fromkeys(key[0] for key in self.table if key[0] in ends):
            self._drop_deleted_of(topic)

    def _drop_deleted_of(self, topic: str) -> None:
        end = self.deletions.ends.get(topic, 0)
        for key in [key for key in self.table if key[0] == topic]:
            queue = self.table[key]
            queue.raise_min(end)
            # A torn last entry may name an early record: it does not speak for those before it.
            if queue.min_offset >= queue.max_offset and queue.end_log_offset <= end:
                _remove(self.table.pop(key))
        self._remove_empty(topic)

    def drop_topic(self, topic: str) -> int:
        """Delete every queue of a topic; how many. Its records stay in the log (spec store 19)."""
        keys = [key for key in self.table if key[0] == topic]
        for key in keys:
            _remove(self.table.pop(key))
        self._remove_empty(topic)
        return len(keys)

    def remove_all(self) -> None:
        """Delete every queue: the log that they point into is gone."""
        for topic in dict.fromkeys(key[0] for key in self.table):
            self.drop_topic(topic)
        assert not self.table

    def _remove_empty(self, topic: str) -> None:
        directory = self._paths.topic(topic)
        if self._disk.exists(directory) and not self._disk.list(directory):
            self._disk.remove(directory)


def _remove(queue: ConsumeQueue) -> None:
    """Delete the queue's files; those that cannot be deleted now are when a queue of that name needs room."""
    try:
        queue.remove()
    except OSError as error:
        extra = {"topic": queue.key[0], "queue_id": queue.key[1], "error": str(error)}
        log.warning(events.QUEUE_FILES_LEFT, extra=extra)


def _begins_anew(queue: ConsumeQueue, queue_offset: int, log_offset: int) -> bool:
    """Whether the record is the first of a topic that was deleted and made again."""
    return queue_offset == 0 < queue.max_offset and 0 <= queue.end_log_offset <= log_offset


def _tell_gap(queue: ConsumeQueue, gap: int, queue_offset: int) -> None:
    """Say that `gap` fillers were put before the entry at `queue_offset`, unless the queue began there; or
    that it began anew, when the gap is negative.
    """
    if gap < 0:
        log.info(
            events.QUEUE_BEGUN_ANEW,
            extra={"topic": queue.key[0], "queue_id": queue.key[1], "queue_offset": queue_offset},
        )
    elif gap and queue.min_offset != queue_offset:
        log.warning(
            events.QUEUE_GAP_FILLED,
            extra={"topic": queue.key[0], "queue_id": queue.key[1], "entry_count": gap},
        )
