"""Reads queues: by offset with limits and a tag filter, by time; pure looking, nothing is changed.

Invariants: only dispatched entries are seen, so nothing unconfirmed is read; slices stay valid whatever
            happens to their file. An entry that names no record, or another queue's, is not believed: a bit
            of it has turned over, or of the record.
Strategy:   entries are walked once; those of other tags are passed over together where all around them are
            ordinary ones, and by tags alone no entry is looked at by itself there. Records that are
            neighbours in the log become one slice, so a pull of a queue that has the log for itself costs one
            memoryview. Entries of such a slice confirm each other; the record at its beginning and the last
            one are looked at.
Source:     spec store 13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain
from struct import Struct
from typing import Final, NamedTuple

import numpy as np

from tandemmq.protocol.record_check import find_plain_properties, find_record_properties
from tandemmq.protocol.record_layout import MAGIC_V1, MAGIC_V2
from tandemmq.protocol.record_scan import Bools, Ints
from tandemmq.protocol.sys_flag import HOSTS_V6_MASK
from tandemmq.store.bulk_read import BULK_COUNT_MAX, collect_bulk
from tandemmq.store.commit_log import CommitLog, LogWindow
from tandemmq.store.consume_queue import ENTRY, FILLER_SIZE, UNIT, ConsumeQueue
from tandemmq.store.consume_queues import ConsumeQueues
from tandemmq.store.options import QUEUE_UNIT_BYTES, BrokerRole, StoreOptions
from tandemmq.store.outcomes import GetResult, GetStatus, Packed, RecordFilter
from tandemmq.store.recorder import StoreRecorder

GET_BYTES_MAX = 134_217_728
GET_BYTES_MIN = 100
assert GET_BYTES_MIN <= GET_BYTES_MAX
FIRST_ENTRIES = 64
"""Entries fetched first; a scan that goes on (a filter that matches little) fetches more each time."""
FIRST_ENTRIES_TAGGED = 256
"""By their tags, so many are looked at together for what a few cost."""
TAG_MASK: Final = 0xFFFFFFFF
"""Of a tag only 32 bits count."""
TAG_SCAN_COUNT_MAX: Final = 4_000_000
"""Queue entries, 80 MB, that a query by tags reads, shared among the queues of the topic; at the bound the
query answers with the newest messages that it found.
"""
TAG_SCAN_BLOCK: Final = 16_384
TAGS_COMPARED_MAX = 16
"""So many tags are compared one after the other; a search for all of them costs more at first."""
LOOKS_MAX: Final = 16
"""So many wrong entries are passed over in one get; it ends before the next one."""
SHARED_PREFIX: Final = "%LMQ%"
"""Entries of such topics name records of other topics (RocketMQ's light queues)."""
_HEAD: Final = Struct(">ii4xi4xqq")  # size, magic, queue, queue offset, log offset
_HEAD_BYTES: Final = _HEAD.size
_FACTS: Final = Struct(">ii4xi4xqqi44xi")
"""The same, the system flag, and the body size of a record with addresses of four bytes."""
_FACTS_BYTES: Final = _FACTS.size
_NO_FACTS: Final = (-1,) * 7
_unpack_facts: Final = _FACTS.unpack_from
_MAGICS: Final = (MAGIC_V1, MAGIC_V2)


class _Wrong(NamedTuple):
    """An entry that names something else than its record; `is_record`: it names one, of another place."""

    queue_offset: int
    is_record: bool


class _Want(NamedTuple):
    """What a get asks for. `tags`: 32 bits of each; `hints`: those that the filter does not ask records of
    other tags for; `log_limit`: what begins there or behind it is not shown;
    `near`: where what is in memory begins, of which `near_max` records and bytes are given, of the rest
    `far_max`; `scan_end`: behind the last entry that may be looked at.
    """

    tags: frozenset[int] | None
    hints: frozenset[int] | None
    record_filter: RecordFilter | None
    log_limit: int
    near: int
    near_max: tuple[int, int]
    far_max: tuple[int, int]
    scan_end: int
    first_count: int


class _Stretch(NamedTuple):
    """The entries of neighbours in a queue, by their columns. `last`: where the last record begins."""

    begins: Ints
    sizes: Ints
    ends: Ints
    tags: Ints
    last: int
    size_max: int
    count_max: int
    bytes_max: int


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
        # As `_wrong` finds nothing, without the call: queues that share the log have a slice per record.
        is_one = last == first and len(view) >= _HEAD_BYTES
        if is_one and _HEAD.unpack_from(view) == (end - begin, MAGIC_V1, queue_id, first, begin):
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


def _has_tag(tags: Ints, wanted: Set[int]) -> Bools:
    """Whether each tag is a wanted one."""
    if len(wanted) > TAGS_COMPARED_MAX:
        return np.isin(tags, np.array(sorted(wanted), dtype=np.int64))
    is_wanted = np.zeros(len(tags), dtype=np.bool_)
    for tag in wanted:
        is_wanted |= tags == tag
    return is_wanted


def _join(
    begins: Sequence[int], ends: Sequence[int], offsets: Sequence[int], segment_bytes: int
) -> list[list[int]]:
    """The ranges of records that are collected, as `_Batch` has them."""
    if begins and begins[0] // segment_bytes == (ends[-1] - 1) // segment_bytes and begins[1:] == ends[:-1]:
        return [[begins[0], ends[-1], offsets[0], begins[-1], offsets[-1]]]
    ranges: list[list[int]] = []
    previous_end = -1
    for begin, end, queue_offset in zip(begins, ends, offsets, strict=True):
        if begin == previous_end and begin % segment_bytes:
            one = ranges[-1]
            one[1], one[3], one[4] = end, begin, queue_offset
        else:
            ranges.append([begin, end, queue_offset, begin, queue_offset])
        previous_end = end
    return ranges


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
        want = self._want(queue, offset, count_max, bytes_max, tag_hashes, record_filter, limit)
        until = high
        looks = 0
        while True:
            if is_bulk and record_filter is None:
                batch = self._collect_bulk(
                    queue, offset, count_max, bytes_max, tag_hashes, limit, until=until, lost=lost
                )
            else:
                batch = self._collect(queue, offset, want, until=until, lost=lost, kept=kept, waits=waits)
            if batch is None and (until < high or queue.entry(offset) is not None):  # in doubt
                return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
            if batch is None:
                next_offset = self._corrected(offset, queue.file_end(offset))
                return GetResult(GetStatus.OFFSET_FOUND_NULL, next_offset, low, high)
            assert offset < batch.next_offset <= high, "a reader goes forward, and not beyond the queue"
            views = self._log.views(batch.ranges)
            wrong = batch.wrong
            # Those in memory cannot have changed, and those that a filter took were looked at.
            if wrong is None and offset < queue.tail_start and record_filter is None:
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

    def _want(
        self,
        queue: ConsumeQueue,
        offset: int,
        count_max: int,
        bytes_max: int,
        tag_hashes: frozenset[int] | None,
        record_filter: RecordFilter | None,
        limit: int | None,
    ) -> _Want:
        """With RocketMQ's limits: a get reads the entries of one queue file, and at most so many bytes."""
        options = self._options
        bytes_max = max(min(bytes_max, GET_BYTES_MAX), GET_BYTES_MIN)
        # A peer that asks in bulk names any count, and entries that a filter is not asked for cost time, too.
        scan_count = min(count_max, BULK_COUNT_MAX)
        scan_bytes = max(options.filter_scan_bytes_max, scan_count * QUEUE_UNIT_BYTES)
        hints = None if record_filter is None else record_filter.tag_hashes
        if tag_hashes is not None or hints is not None:
            first_count = FIRST_ENTRIES_TAGGED
        elif record_filter is not None:
            first_count = FIRST_ENTRIES
        else:
            first_count = min(max(1, count_max) + 1, FIRST_ENTRIES)  # the last one tells that the get is full
        return _Want(
            None if tag_hashes is None else frozenset([tag & TAG_MASK for tag in tag_hashes]),
            None if hints is None else frozenset([tag & TAG_MASK for tag in hints]),
            record_filter,
            self._log.end if limit is None else limit,
            self._log.end - self._memory_window_bytes,
            (
                min(count_max, options.transfer_count_in_memory_max),
                min(bytes_max, options.transfer_bytes_in_memory_max),
            ),
            (
                min(count_max, options.transfer_count_on_disk_max),
                min(bytes_max, options.transfer_bytes_on_disk_max),
            ),
            min(queue.file_end(offset), offset + -(-scan_bytes // QUEUE_UNIT_BYTES)),
            first_count,
        )

    def _collect(
        self,
        queue: ConsumeQueue,
        offset: int,
        want: _Want,
        *,
        until: int,
        lost: Set[int],
        kept: Set[int],
        waits: bool,
    ) -> _Batch | None:
        """Walk the entries of one queue file, none from `until` on; None when there are none. Those that are
        `lost` are passed over.
        """
        if want.tags is not None and want.record_filter is None and not lost:
            batch = self._collect_tagged(queue, offset, want, want.tags, until)
            if batch is not None:
                return batch if batch.next_offset > offset else None
        log_begin, log_end = self._log.begin, self._log.end
        damaged = self._log.damaged or None
        tags, hints, record_filter = want.tags, want.hints, want.record_filter
        log_limit, near = want.log_limit, want.near
        queue_id = queue.key[1]
        batch = _Batch(offset)
        window = LogWindow(self._log)
        begins: list[int] = []
        ends: list[int] = []
        offsets: list[int] = []
        asked = count = size_bytes = 0
        next_offset = offset
        stretches = self._walk(queue, offset, want, until, lost)
        for queue_offset, (begin, size, tag) in chain.from_iterable(stretches):
            end = begin + size
            is_lost = not 0 <= begin < end <= log_end and size != FILLER_SIZE
            if is_lost or (lost and queue_offset in lost):
                if is_lost and self._on_doubt(queue, queue_offset) and waits:
                    break
                next_offset = queue_offset + 1
                batch.was_removing |= not count
                continue
            if begin >= log_limit:
                break
            if count:
                count_max, bytes_max = want.near_max if begin >= near else want.far_max
                if count >= count_max or size_bytes + size > bytes_max:
                    break
            batch.last_log_offset = begin
            next_offset = queue_offset + 1
            if tags is not None and tag & TAG_MASK not in tags:
                continue
            if size == FILLER_SIZE or begin < log_begin:
                batch.was_removing |= not count
                continue
            if damaged is not None and damaged.find(begin, end) is not None:
                batch.was_removing |= not count
                continue
            if record_filter is not None:
                # What is no hash says nothing of the tag.
                if hints is not None and tag & TAG_MASK not in hints and -1 <= tag >> 31 <= 0:
                    continue
                if asked == record_filter.count_max:
                    next_offset = queue_offset
                    break
                asked += 1
                view = window.view(begin, end)
                facts = _unpack_facts(view) if len(view) == size >= _FACTS_BYTES else _NO_FACTS
                is_plain = facts[:5] == (size, MAGIC_V1, queue_id, queue_offset, begin)
                if is_plain and not facts[5] & HOSTS_V6_MASK:
                    properties = find_plain_properties(view, size, facts[6])
                else:
                    wrong = _wrong(queue, queue_offset, begin, size, view)
                    if wrong is not None and not (wrong.is_record and queue_offset in kept):
                        batch.wrong = wrong
                        break
                    properties = find_record_properties(view)
                if properties is None or not record_filter.matches(properties):
                    batch.rejected_bytes += size
                    continue
            begins.append(begin)
            ends.append(end)
            offsets.append(queue_offset)
            count += 1
            size_bytes += size
        batch.ranges = _join(begins, ends, offsets, self._log.segment_bytes)
        batch.next_offset, batch.count, batch.bytes = next_offset, count, size_bytes
        assert next_offset <= until, (queue, next_offset, until)
        return batch if next_offset > offset else None

    def _collect_tagged(
        self, queue: ConsumeQueue, offset: int, want: _Want, tags: Set[int], until: int
    ) -> _Batch | None:
        """As `_collect` by tags alone, without a look at each entry; None unless all are ordinary."""
        begins: list[int] = []
        ends: list[int] = []
        offsets: list[int] = []
        size_bytes = last_begin = 0
        next_offset, end, entry_count = offset, min(want.scan_end, until), want.first_count
        while next_offset < end:
            raw = queue.entries(next_offset, min(entry_count, end - next_offset))
            stretch = self._ordinary(raw, want) if raw else None
            if stretch is None:
                return None
            room = stretch.count_max - len(begins)
            if size_bytes + stretch.size_max * room > stretch.bytes_max and begins:
                return None
            if room <= 0:
                break
            rows = _has_tag(stretch.tags & TAG_MASK, tags).nonzero()[0]
            stretch_end = next_offset + len(stretch.tags)
            is_full = len(rows) >= room
            rows = rows[:room]
            begins += stretch.begins[rows].tolist()
            ends += stretch.ends[rows].tolist()
            offsets += (rows + next_offset).tolist()
            size_bytes += int(stretch.sizes[rows].sum())
            next_offset, last_begin = stretch_end, stretch.last
            if is_full:
                next_offset, last_begin = offsets[-1] + 1, begins[-1]
            if next_offset < stretch_end:
                break
            entry_count *= 2
        assert next_offset <= until, (queue, next_offset, until)
        ranges = _join(begins, ends, offsets, self._log.segment_bytes)
        return _Batch(next_offset, ranges, len(begins), size_bytes, last_begin)

    def _walk(
        self, queue: ConsumeQueue, offset: int, want: _Want, until: int, lost: Set[int]
    ) -> Iterator[Iterable[tuple[int, tuple[int, int, int]]]]:
        """Stretches of the entries from `offset` on, each entry with its queue offset; of a stretch of
        ordinary ones only those of a wanted tag, and the last one.
        """
        end, count = min(want.scan_end, until), want.first_count
        while offset < end:
            raw = queue.entries(offset, min(count, end - offset))
            if not raw:
                return
            wanted = None if lost else self._wanted(raw, offset, want)
            yield enumerate(UNIT.iter_unpack(raw), offset) if wanted is None else wanted
            offset += len(raw) // QUEUE_UNIT_BYTES
            count *= 2

    def _wanted(
        self, raw: bytes, offset: int, want: _Want
    ) -> Iterable[tuple[int, tuple[int, int, int]]] | None:
        """The entries whose tag does not tell that the filter wants no such record, and the last one. None
        unless all are ordinary.
        """
        stretch = None if want.hints is None else self._ordinary(raw, want)
        if want.hints is None or stretch is None:
            return None
        tags = stretch.tags
        # What is no hash says nothing of the tag.
        is_wanted = _has_tag(tags & TAG_MASK, want.hints) | (tags >> 31 != 0) & (tags >> 31 != -1)
        is_wanted[-1] = True
        rows = is_wanted.nonzero()[0]
        columns = stretch.begins[rows].tolist(), stretch.sizes[rows].tolist(), tags[rows].tolist()
        return zip((rows + offset).tolist(), zip(*columns, strict=True), strict=True)

    def _ordinary(self, raw: bytes, want: _Want) -> _Stretch | None:
        """None unless all entries name records that the log has and that are as near as each other, none of
        them damaged, and which are too small to fill a get by bytes: then those of other tags count, too.
        """
        entries = np.frombuffer(raw, dtype=ENTRY)
        begins = entries["log_offset"].astype(np.int64)
        sizes = entries["size"].astype(np.int64)
        ends = begins + sizes
        first, last, end, size_max = int(begins[0]), int(begins[-1]), int(ends[-1]), int(sizes.max())
        log = self._log
        count_max, bytes_max = want.near_max if first >= want.near else want.far_max
        count_max = max(count_max, 1)  # a get takes the first record whatever it is limited to
        if first < log.begin or last >= want.log_limit or end > log.end or first < want.near <= last:
            return None
        if (ends <= begins).any() or (begins[1:] < ends[:-1]).any():
            return None
        if size_max * (count_max + 1) > bytes_max:
            return None
        if log.damaged and log.damaged.find(first, end) is not None:
            return None
        tags = entries["tag_hash"].astype(np.int64)
        return _Stretch(begins, sizes, ends, tags, last, size_max, count_max, bytes_max)

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

    def find_tagged(
        self, topic: str, tag_hash: int, count_max: int, begin_ms: int, end_ms: int
    ) -> tuple[list[int], bool]:
        """See `MessageStore.query_tags`.

        Strategy: the queues hold the hash of every message's tags, so that an index of tags would tell
                  nothing new, and would cost each send.
        """
        queue_ids = [queue_id for name, queue_id in self._queues.table if name == topic]
        found: list[int] = []
        is_complete = True
        for queue_id in queue_ids:
            low = self.offset_by_time(topic, queue_id, begin_ms, upper=False)
            high = self.offset_by_time(topic, queue_id, end_ms + 1, upper=False)
            end = max(low, high - TAG_SCAN_COUNT_MAX // len(queue_ids))
            of_queue: list[int] = []
            while end < high and len(of_queue) < count_max:
                begin = max(end, high - TAG_SCAN_BLOCK)
                of_queue = (
                    self._tagged_between(self._queues.table[topic, queue_id], begin, high, tag_hash)
                    + of_queue
                )
                high = begin
            is_complete = is_complete and (end == low or len(of_queue) >= count_max)
            found += of_queue
        found.sort()
        return found[-count_max:], is_complete

    def _tagged_between(self, queue: ConsumeQueue, begin: int, end: int, tag_hash: int) -> list[int]:
        """Log offsets of the entries [begin, end) with this tag hash."""
        found: list[int] = []
        while begin < end:
            raw = queue.entries(begin, end - begin)
            if not raw:
                begin = queue.file_end(begin)
                continue
            entries = np.frombuffer(raw, dtype=ENTRY)
            is_wanted = (entries["tag_hash"] & TAG_MASK == tag_hash & TAG_MASK) & (
                entries["size"] != FILLER_SIZE
            )
            found += entries["log_offset"][is_wanted].tolist()
            begin += len(entries)
        return found

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
