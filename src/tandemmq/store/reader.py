"""Reads queues: by offset with limits and a tag filter, by time; pure looking, nothing is changed.

Invariants: only dispatched entries are seen, so nothing unconfirmed is read; slices stay valid whatever
            happens to their file. An entry that names no record, or another queue's, is not believed: a bit
            of it has turned over, or of the record.
Strategy:   entries are walked once; records that are neighbours in the log become one slice, so a pull of a
            queue that has the log for itself costs one memoryview. Entries of such a slice confirm each
            other; the record at its beginning and the last one are looked at.
Source:     spec store 13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from struct import Struct
from typing import Final, NamedTuple

from tandemmq.protocol.record_layout import MAGIC_V1, MAGIC_V2
from tandemmq.store.bulk_read import collect_bulk
from tandemmq.store.commit_log import CommitLog, LogWindow
from tandemmq.store.consume_queue import FILLER_SIZE, UNIT, ConsumeQueue
from tandemmq.store.consume_queues import ConsumeQueues
from tandemmq.store.options import QUEUE_UNIT_BYTES, BrokerRole, StoreOptions
from tandemmq.store.outcomes import GetResult, GetStatus, Packed, RecordFilter
from tandemmq.store.recorder import StoreRecorder

GET_BYTES_MAX = 134_217_728
GET_BYTES_MIN = 100
assert GET_BYTES_MIN <= GET_BYTES_MAX
FIRST_ENTRIES = 64
"""Entries fetched first; a scan that goes on (a filter that matches little) fetches the rest at once."""
LOOKS_MAX: Final = 16
"""So many wrong entries are passed over in one get; it ends before the next one."""
SHARED_PREFIX: Final = "%LMQ%"
"""Entries of such topics name records of other topics (RocketMQ's light queues)."""
_HEAD: Final = Struct(">ii4xi4xqq")  # size, magic, queue, queue offset, log offset
_HEAD_BYTES: Final = _HEAD.size
_MAGICS: Final = (MAGIC_V1, MAGIC_V2)


class _Wrong(NamedTuple):
    """An entry that names something else than its record; `is_record`: it names one, of another place."""

    queue_offset: int
    is_record: bool


@dataclass(slots=True)
class _Batch:
    """What a get has collected: slices before they are cut from the log, each as [begin, end, queue offset of
    its first record, beginning of its last one, queue offset of that].
    """

    next_offset: int
    ranges: list[list[int]] = field(default_factory=list)
    count: int = 0
    bytes: int = 0
    last_log_offset: int = 0
    was_removing: bool = False
    rejected_bytes: int = 0
    sizes: Packed = b""
    wrong: _Wrong | None = None


def _first_wrong(
    queue: ConsumeQueue, batch: _Batch, views: list[memoryview], kept: Set[int]
) -> _Wrong | None:
    """The first entry of the batch that does not name its record, but for those `kept`."""
    queue_id = queue.key[1]
    for (begin, end, first, last_begin, last), view in zip(batch.ranges, views, strict=True):
        if last == first and len(view) >= _HEAD_BYTES:
            # As `_wrong` finds nothing, without the call: queues that share the log have a slice per record.
            size, magic, own_id, own_offset, own_begin = _HEAD.unpack_from(view)
            is_sound = own_begin == begin and magic in _MAGICS and size == end - begin
            if is_sound and own_offset == first and own_id == queue_id:
                continue
        wrong = _wrong(queue, first, begin, end - begin if last == first else None, view)
        if wrong is None and last != first:
            wrong = _wrong(queue, last, last_begin, end - last_begin, view[last_begin - begin :])
        if wrong is not None and not (wrong.is_record and wrong.queue_offset in kept):
            return wrong
    return None


def _wrong(
    queue: ConsumeQueue, queue_offset: int, log_offset: int, size: int | None, view: memoryview
) -> _Wrong | None:
    """What is wrong with the entry there, which names the record that `view` begins with; None: nothing.
    `size` is None where the next entry confirms it.
    """
    if len(view) < _HEAD_BYTES:
        return _Wrong(queue_offset, is_record=False)
    own_size, magic, own_id, own_offset, own_begin = _HEAD.unpack_from(view)
    if own_begin != log_offset or magic not in _MAGICS or own_size != (size or own_size):
        return _Wrong(queue_offset, is_record=False)
    topic, queue_id = queue.key
    if (own_offset != queue_offset or own_id != queue_id) and not topic.startswith(SHARED_PREFIX):
        return _Wrong(queue_offset, is_record=True)
    return None


class Reader:
    """Reads of one store."""

    def __init__(
        self,
        options: StoreOptions,
        *,
        log: CommitLog,
        queues: ConsumeQueues,
        recorder: StoreRecorder,
        role: BrokerRole,
        on_doubt: Callable[[ConsumeQueue, int], bool],
    ) -> None:
        """`on_doubt(queue, offset)`: the entry there does not name its record; whether readers wait."""
        self._options = options
        self._memory_window_bytes = options.memory_window_bytes
        self._recorder = recorder
        self._log = log
        self._queues = queues
        self._on_doubt = on_doubt
        self.role = role
        self.limit: int | None = None
        """What lies at or above it in the log is not shown; None: everything is."""

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int,
        bytes_max: int,
        tag_hashes: frozenset[int] | None,
        record_filter: RecordFilter | None = None,
        is_bulk: bool = False,
        is_own: bool = False,
        waits: bool = True,
    ) -> GetResult:
        """Records of a queue from `offset` on (spec store 13.1); `is_bulk`: without RocketMQ's limits, unless
        there is a `record_filter`; `is_own`: all that is dispatched; `waits`: whether an entry is waited for
        that is being mended.
        """
        queue = self._queues.table.get((topic, queue_id))
        if queue is not None and queue.max_offset < offset <= queue.next_offset:
            # A slave gave out what waits for our disk here: its reader waits too, and is not sent back.
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, queue.min_offset, queue.max_offset)
        # A queue that nobody wrote to exists in RocketMQ, because looking for it creates it.
        if queue is None or queue.max_offset == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, self._corrected(offset, 0), 0, 0)
        low, high = queue.min_offset, queue.max_offset
        assert low <= high, queue
        if offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, self._corrected(offset, low), low, high)
        if offset == high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        if offset > high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, self._corrected(offset, high), low, high)
        limit = None if is_own else self.limit
        if limit is not None and self._is_beyond(queue, offset, limit):
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        lost: Set[int] = frozenset()
        kept: Set[int] = frozenset()
        until = high
        looks = 0
        while True:
            if is_bulk and record_filter is None:
                batch = self._collect_bulk(
                    queue, offset, count_max, bytes_max, tag_hashes, limit, until=until, lost=lost
                )
            else:
                batch = self._collect(
                    queue,
                    offset,
                    count_max,
                    bytes_max,
                    tag_hashes,
                    record_filter,
                    limit,
                    until=until,
                    lost=lost,
                    kept=kept,
                    waits=waits,
                )
            if batch is None and (until < high or queue.entry(offset) is not None):  # in doubt
                return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
            if batch is None:
                next_offset = self._corrected(offset, queue.file_end(offset))
                return GetResult(GetStatus.OFFSET_FOUND_NULL, next_offset, low, high)
            assert offset < batch.next_offset <= high, "a reader goes forward, and not beyond the queue"
            views = self._log.views(batch.ranges)
            wrong = batch.wrong
            if wrong is None and offset < queue.tail_start:  # those in memory cannot have changed
                wrong = _first_wrong(queue, batch, views, kept)
            if wrong is None:
                return self._result(batch, views, low, high)
            assert offset <= wrong.queue_offset < batch.next_offset, (queue, offset, wrong)
            looks += 1
            is_enough = looks > LOOKS_MAX and wrong.queue_offset > offset
            if is_enough or (self._on_doubt(queue, wrong.queue_offset) and waits):
                until = wrong.queue_offset
            elif wrong.is_record:  # what it says of itself is wrong
                kept |= {wrong.queue_offset}
            else:
                lost |= {wrong.queue_offset}

    def is_right(self, queue: ConsumeQueue, queue_offset: int) -> bool:
        """Whether the entry there names its record, or one that is known to be damaged, or none at all."""
        entry = queue.entry(queue_offset)
        if entry is None or entry[1] == FILLER_SIZE:
            return True
        log_offset, size, _ = entry
        if not 0 <= log_offset < log_offset + size <= self._log.end:
            return False
        if log_offset < self._log.begin or self._log.damaged.find(log_offset, log_offset + size):
            return True
        return _wrong(queue, queue_offset, log_offset, size, self._log.view(log_offset, size)) is None

    def _is_beyond(self, queue: ConsumeQueue, offset: int, limit: int) -> bool:
        """Whether the message of this entry is not to be shown: as if the queue ended before it."""
        entry = queue.entry(offset) if queue.end_log_offset > limit else None
        return entry is not None and entry[0] >= limit

    def _corrected(self, asked: int, right: int) -> int:
        """Where the consumer should go on; a slave that may lag behind leaves the decision to its master."""
        is_slave = self.role is BrokerRole.SLAVE
        return asked if is_slave and not self._options.offset_check_in_slave else right

    def _collect(
        self,
        queue: ConsumeQueue,
        offset: int,
        count_max: int,
        bytes_max: int,
        tag_hashes: frozenset[int] | None,
        record_filter: RecordFilter | None,
        limit: int | None,
        *,
        until: int,
        lost: Set[int],
        kept: Set[int],
        waits: bool,
    ) -> _Batch | None:
        """Walk the entries of one queue file, none from `until` on; None when there are none. Those that are
        `lost` are passed over.
        """
        options = self._options
        asked = 0
        log_begin, log_end = self._log.begin, self._log.end
        segment_bytes = self._log.segment_bytes
        damaged = self._log.damaged or None
        near = log_end - self._memory_window_bytes
        bytes_max = max(min(bytes_max, GET_BYTES_MAX), GET_BYTES_MIN)
        near_count_max = min(count_max, options.transfer_count_in_memory_max)
        near_bytes_max = min(bytes_max, options.transfer_bytes_in_memory_max)
        far_count_max = min(count_max, options.transfer_count_on_disk_max)
        far_bytes_max = min(bytes_max, options.transfer_bytes_on_disk_max)
        # Of a tag only 32 bits count.
        wanted = None if tag_hashes is None else {tag & 0xFFFFFFFF for tag in tag_hashes}
        batch = _Batch(offset)
        window = LogWindow(self._log)
        open_range: list[int] | None = None
        last_begin = last_offset = last_log_offset = 0
        count = size_bytes = 0
        limit = log_end if limit is None else limit
        next_offset = offset
        for log_offset, size, tag in self._walk(queue, offset, count_max, until):
            is_lost = not 0 <= log_offset < log_offset + size <= log_end and size != FILLER_SIZE
            if is_lost or (lost and next_offset in lost):
                if is_lost and self._on_doubt(queue, next_offset) and waits:
                    break
                next_offset += 1
                batch.was_removing |= not count
                continue
            if log_offset >= limit:
                break
            if count:
                if log_offset >= near:
                    is_full = count >= near_count_max or size_bytes + size > near_bytes_max
                else:
                    is_full = count >= far_count_max or size_bytes + size > far_bytes_max
                if is_full:
                    break
            last_log_offset = log_offset
            next_offset += 1
            if wanted is not None and tag & 0xFFFFFFFF not in wanted:
                continue
            if size == FILLER_SIZE or log_offset < log_begin:
                batch.was_removing |= not count
                continue
            if damaged is not None and damaged.find(log_offset, log_offset + size) is not None:
                batch.was_removing |= not count
                continue
            if record_filter is not None:
                if asked == record_filter.count_max:
                    next_offset -= 1
                    break
                asked += 1
                view = window.view(log_offset, log_offset + size)
                wrong = _wrong(queue, next_offset - 1, log_offset, size, view)
                if wrong is not None and not (wrong.is_record and wrong.queue_offset in kept):
                    batch.wrong = wrong
                    break
                if not record_filter.matches(view):
                    batch.rejected_bytes += size
                    continue
            queue_offset = next_offset - 1
            if open_range is not None and open_range[1] == log_offset and log_offset % segment_bytes:
                open_range[1] = log_offset + size
            else:
                if open_range is not None:
                    open_range[3], open_range[4] = last_begin, last_offset
                open_range = [log_offset, log_offset + size, queue_offset, log_offset, queue_offset]
                batch.ranges.append(open_range)
            last_begin, last_offset = log_offset, queue_offset
            count += 1
            size_bytes += size
        if open_range is not None:
            open_range[3], open_range[4] = last_begin, last_offset
        batch.next_offset, batch.last_log_offset = next_offset, last_log_offset
        batch.count, batch.bytes = count, size_bytes
        assert next_offset <= until, (queue, next_offset, until)
        return batch if next_offset > offset else None

    def _collect_bulk(
        self,
        queue: ConsumeQueue,
        offset: int,
        count_max: int,
        bytes_max: int,
        tag_hashes: frozenset[int] | None,
        limit: int | None,
        *,
        until: int,
        lost: Set[int],
    ) -> _Batch | None:
        """As `_collect`, for thousands of messages."""
        assert offset <= until, (queue, offset, until)
        near = self._log.end - self._memory_window_bytes
        bulk = collect_bulk(
            queue,
            self._log,
            offset,
            count_max=min(count_max, until - offset),
            bytes_max=bytes_max,
            near=near,
            limit=limit,
            lost=lost,
            tag_hashes=tag_hashes,
            on_doubt=self._on_doubt,
        )
        if bulk is None:
            return None
        return _Batch(
            bulk.next_offset,
            bulk.ranges,
            bulk.record_count,
            bulk.size_bytes,
            bulk.last_log_offset,
            was_removing=tag_hashes is None and not bulk.record_count,
            sizes=bulk.sizes,
        )

    def _walk(
        self, queue: ConsumeQueue, offset: int, count_max: int, until: int
    ) -> Iterator[tuple[int, int, int]]:
        """Entries from `offset` to the end of its queue file, at most as many as one get may scan."""
        scan_bytes = max(self._options.filter_scan_bytes_max, count_max * QUEUE_UNIT_BYTES)
        end = min(until, queue.file_end(offset), offset + -(-scan_bytes // QUEUE_UNIT_BYTES))
        step = min(max(1, count_max), FIRST_ENTRIES)
        while offset < end:
            raw = queue.entries(offset, min(step, end - offset))
            if not raw:
                return
            yield from UNIT.iter_unpack(raw)
            offset += len(raw) // QUEUE_UNIT_BYTES
            step = end - offset

    def _result(self, batch: _Batch, views: list[memoryview], low: int, high: int) -> GetResult:
        if batch.count:
            status = GetStatus.FOUND
        elif batch.was_removing:
            status = GetStatus.MESSAGE_WAS_REMOVING
        else:
            status = GetStatus.NO_MATCHED_MESSAGE
        lag = self._log.end - batch.last_log_offset
        is_far = lag > self._memory_window_bytes
        self._recorder.read_distance_bytes = lag
        self._recorder.far_read_count += is_far
        return GetResult(
            status,
            batch.next_offset,
            low,
            high,
            views,
            batch.count,
            batch.bytes,
            is_far,
            lag,
            batch.sizes,
            batch.rejected_bytes,
        )

    def is_far(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether the record at a queue offset lies beyond the memory window; False when there is none."""
        queue = self._queues.table.get((topic, queue_id))
        entry = queue.entry(offset) if queue is not None and queue.min_offset <= offset else None
        return entry is not None and self._log.end - entry[0] > self._memory_window_bytes

    def stored_at(self, topic: str, queue_id: int, offset: int) -> int:
        """When the record at a queue offset was stored; -1 when there is none (spec store 13.2)."""
        queue = self._queues.table.get((topic, queue_id))
        return -1 if queue is None else self._stored_at(queue, offset)

    def has_record(
        self, topic: str, queue_id: int, queue_offset: int, log_offset: int, stored_at_ms: int
    ) -> bool | None:
        """See `MessageStore.has_record`."""
        queue = self._queues.table.get((topic, queue_id))
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return None
        entry = queue.entry(queue_offset)
        if entry is None or entry[1] == FILLER_SIZE:
            return None
        if entry[0] != log_offset:
            return False
        held_at_ms = self._log.stored_at(log_offset)
        return None if held_at_ms == -1 else held_at_ms == stored_at_ms

    def find_record(self, topic: str, queue_id: int, queue_offset: int) -> tuple[int, int] | None:
        """See `MessageStore.find_record`."""
        queue = self._queues.table.get((topic, queue_id))
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return None
        entry = queue.entry(queue_offset)
        if entry is None or entry[1] == FILLER_SIZE:
            return None
        held_at_ms = self._log.stored_at(entry[0])
        return None if held_at_ms == -1 else (entry[0], held_at_ms)

    def earliest_stored_at(self, topic: str, queue_id: int) -> int:
        """When the first record that is kept was stored; -1 for an empty queue."""
        queue = self._queues.table.get((topic, queue_id))
        return -1 if queue is None else self._stored_at(queue, queue.min_offset)

    def _stored_at(self, queue: ConsumeQueue, offset: int) -> int:
        entry = queue.entry(offset) if queue.min_offset <= offset else None
        if entry is None or entry[1] == FILLER_SIZE:
            return -1
        return self._log.stored_at(entry[0])

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int, *, upper: bool) -> int:
        """The first offset stored at `time_ms` or later; with `upper` the last one stored then or earlier.

        Without such an offset: the queue's max, or its min (spec store 13.2).
        """
        queue = self._queues.table.get((topic, queue_id))
        if queue is None:
            return 0
        low, high = queue.min_offset, queue.max_offset
        # Store times rise with the offset.
        target = time_ms + 1 if upper else time_ms
        while low < high:
            middle = (low + high) // 2
            at, stored_at_ms = self._first_stored(queue, middle)
            assert at >= middle, (queue, middle, at)
            if at < high and stored_at_ms < target:
                low = at + 1
            else:
                high = middle
        assert queue.min_offset <= low <= queue.max_offset, (queue, low)
        return max(low - 1, queue.min_offset) if upper else low

    def _first_stored(self, queue: ConsumeQueue, offset: int) -> tuple[int, int]:
        """The first queue offset from `offset` on whose record can be read, and when that was stored; the
        queue's max and -1 without one. Fillers and damaged records say nothing of those around them.
        """
        stored_at_ms = self._stored_at(queue, offset)  # mostly that is it
        if stored_at_ms >= 0:
            return offset, stored_at_ms
        readable = self._log.begin
        while offset < queue.max_offset:
            offset, log_offset = queue.first_real(offset, readable)
            stored_at_ms = self._log.stored_at(log_offset)
            if stored_at_ms >= 0:
                return offset, stored_at_ms
            damaged = self._log.damaged.find(log_offset, log_offset + 1)
            if damaged is not None:
                assert damaged.end > readable, (queue, damaged, readable)
                readable = damaged.end
            else:
                offset += 1
        return queue.max_offset, -1
