"""Reads queues by offset, with limits and a tag filter, and by time; changes nothing.

Invariants: only dispatched entries are visible, so nothing unconfirmed is read. Slices stay valid whatever
            happens to their file. An entry that names no record, or one of another queue, is rejected: the
            entry or the record has a bit flip.
Strategy:   entries are scanned once. If all entries of a stretch are ordinary, those with other tags are
            skipped together, and the records that a filter by properties may match are examined together; a
            filter by tags alone examines none of them singly. Records that are adjacent
            in the log become one slice, so a pull from a queue that is alone in its part of the log costs one
            memoryview. Entries of such a slice confirm each other; only its first and last record are
            checked.
Source:     spec store 13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from functools import lru_cache
from itertools import chain, compress, repeat
from struct import Struct
from typing import Final, NamedTuple

import numpy as np

from tandemmq.protocol.hashes import tag_hash
from tandemmq.protocol.record_check import find_plain_properties, find_record_properties
from tandemmq.protocol.record_layout import (
    HEAD_V4_BYTES,
    HEADS,
    INT,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
)
from tandemmq.protocol.record_scan import Bools, Ints
from tandemmq.protocol.sys_flag import HOSTS_V6_MASK
from tandemmq.store.bulk_read import BULK_COUNT_MAX, Batch, ReadRequest, WrongEntry, collect_bulk
from tandemmq.store.commit_log import CommitLog, LogWindow
from tandemmq.store.consume_queue import ENTRY, FILLER_SIZE, UNIT, ConsumeQueue
from tandemmq.store.core import StoreCore
from tandemmq.store.options import QUEUE_UNIT_BYTES, BrokerRole
from tandemmq.store.outcomes import GetResult, GetStatus, RecordFilter

GET_BYTES_MAX = 134_217_728
GET_BYTES_MIN = 100
assert GET_BYTES_MIN <= GET_BYTES_MAX
FIRST_ENTRIES = 64
"""The number of entries fetched first; a scan that continues (a filter with few matches) doubles it each
time.
"""
FIRST_ENTRIES_TAGGED = 256
"""The number of entries fetched first by tags: together they cost little more than a few."""
TAG_MASK: Final = 0xFFFFFFFF
"""The significant bits of a tag hash."""
TAG_SCAN_COUNT_MAX: Final = 4_000_000
"""The most queue entries (80 MB) read by a query by tags, shared among the queues of the topic.

At the bound the query returns the newest messages found so far.
"""
TAG_SCAN_BLOCK: Final = 16_384
EXAMINED_COUNT_MIN: Final = 32
"""The least number of records whose properties are examined together, if there are as many. Those after
the last one that is delivered are examined in vain.
"""
TAGS_COMPARED_MAX = 16
"""The most tags that are compared one by one; a search for all at once has a higher fixed cost."""
WRONG_ENTRIES_MAX: Final = 16
"""The most wrong entries skipped in one get; it ends before the next one."""
SHARED_PREFIX: Final = "%LMQ%"
"""The prefix of topics whose entries name records of other topics (RocketMQ's light queues)."""
_HEAD: Final = Struct(">ii4xi4xqq")  # size, magic, queue, queue offset, log offset
_HEAD_BYTES: Final = _HEAD.size
_FACTS: Final = Struct(">ii4xi4xqqi44xi")
"""The fields of `_HEAD`, the system flag, and the body size of a record with addresses of four bytes."""
_FACTS_BYTES: Final = _FACTS.size
_NO_FACTS: Final = (-1,) * 7
_unpack_facts: Final = _FACTS.unpack_from
_MAGICS: Final = (MAGIC_V1, MAGIC_V2)


class _Limits(NamedTuple):
    """RocketMQ's limits of a get, and the filters as the scan compares them.

    `tags`: 32 bits of each wanted tag hash. `hints`: tag hashes outside of which the filter matches nothing.
    `log_limit`: records at or beyond it are hidden. `near`: the log offset where memory begins; `near_max`
    bounds records and bytes from there on, `far_max` those before. `scan_end`: the end of the entries to
    scan.
    """

    tags: frozenset[int] | None
    hints: frozenset[int] | None
    log_limit: int
    near: int
    near_max: tuple[int, int]
    far_max: tuple[int, int]
    scan_end: int
    first_count: int


class _Stretch(NamedTuple):
    """The columns of adjacent entries of a queue; `last` is the log offset of the last record."""

    begins: Ints
    sizes: Ints
    ends: Ints
    tags: Ints
    last: int
    size_max: int
    count_max: int
    bytes_max: int


def _first_wrong(
    queue: ConsumeQueue, batch: Batch, views: list[memoryview], kept: Set[int]
) -> WrongEntry | None:
    """Returns the first entry of the batch that does not name its record, except those in `kept`."""
    queue_id = queue.key[1]
    for (begin, end, first, last_begin, last), view in zip(batch.ranges, views, strict=True):
        # `_wrong` would find nothing; the call is saved, as queues that share the log have a slice per
        # record.
        is_one = last == first and len(view) >= _HEAD_BYTES
        if is_one and _HEAD.unpack_from(view) == (end - begin, MAGIC_V1, queue_id, first, begin):
            continue
        wrong = _wrong(queue, first, begin, end - begin if last == first else None, view, kept)
        if wrong is None and last != first:
            wrong = _wrong(queue, last, last_begin, end - last_begin, view[last_begin - begin :], kept)
        if wrong is not None:
            return wrong
    return None


def _wrong(
    queue: ConsumeQueue,
    queue_offset: int,
    log_offset: int,
    size: int | None,
    view: memoryview,
    kept: Set[int] = frozenset(),
) -> WrongEntry | None:
    """Returns the fault of an entry whose record should begin `view`; None without one.

    `size` is None if the next entry confirms it. `kept`: entries that may name a record of another queue
    offset.
    """
    if len(view) < _HEAD_BYTES:
        return WrongEntry(queue_offset, is_record=False)
    own_size, magic, own_id, own_offset, own_begin = _HEAD.unpack_from(view)
    if own_begin != log_offset or magic not in _MAGICS or own_size != (size or own_size):
        return WrongEntry(queue_offset, is_record=False)
    topic, queue_id = queue.key
    is_own = (own_offset, own_id) == (queue_offset, queue_id) or topic.startswith(SHARED_PREFIX)
    return None if is_own or queue_offset in kept else WrongEntry(queue_offset, is_record=True)


def names_record(log: CommitLog, queue: ConsumeQueue, queue_offset: int) -> bool:
    """Returns True if the entry names its record, a record known as damaged, or none (a filler)."""
    entry = queue.entry(queue_offset)
    if entry is None or entry[1] == FILLER_SIZE:
        return True
    log_offset, size, _ = entry
    if not 0 <= log_offset < log_offset + size <= log.end:
        return False
    if log_offset < log.begin or log.damaged.find(log_offset, log_offset + size):
        return True
    return _wrong(queue, queue_offset, log_offset, size, log.view(log_offset, size)) is None


def _has_tag(tags: Ints, wanted: Set[int]) -> Bools:
    """Returns a mask of the wanted tags."""
    if len(wanted) > TAGS_COMPARED_MAX:
        return np.isin(tags, np.array(sorted(wanted), dtype=np.int64))
    is_wanted = np.zeros(len(tags), dtype=np.bool_)
    for tag in wanted:
        is_wanted |= tags == tag
    return is_wanted


@lru_cache(maxsize=1024)
def _topic_layout(topic: str) -> tuple[Struct, bytes]:
    """Returns the layout between body and properties of a V1 record, and the topic in it."""
    name = topic.encode("utf-8", "replace")
    return Struct(f">B{len(name)}sH"), name


def _candidates(tags: Ints, limits: _Limits) -> Ints:
    """Returns the rows whose records may be delivered, by their tag hashes."""
    hashes = tags & TAG_MASK
    is_wanted = np.ones(len(tags), np.bool_) if limits.tags is None else _has_tag(hashes, limits.tags)
    if limits.hints is not None:
        # A value that is not a hash says nothing about the tag.
        is_wanted &= _has_tag(hashes, limits.hints) | (tags.astype(np.int32) != tags)
    return is_wanted.nonzero()[0]


def _join(
    begins: Sequence[int], ends: Sequence[int], offsets: Sequence[int], segment_bytes: int
) -> list[list[int]]:
    """Returns the ranges of the collected records, in the form of `Batch`."""
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
    """The reads of one store."""

    def __init__(self, core: StoreCore, on_wrong_entry: Callable[[ConsumeQueue, int], bool]) -> None:
        """Creates the reader.

        `on_wrong_entry(queue, offset)` is called for an entry that does not name its record; it returns True
        if readers should wait.
        """
        self._options = core.options
        self._memory_window_bytes = core.options.memory_window_bytes
        self._recorder = core.recorder
        self._log = core.log
        self._queues = core.queues
        self._on_wrong_entry = on_wrong_entry
        self.role = core.options.role
        self.limit: int | None = None
        """The log offset at which hidden records begin; None: nothing is hidden."""

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int,
        bytes_max: int = GET_BYTES_MAX,
        tag_hashes: frozenset[int] | None = None,
        record_filter: RecordFilter | None = None,
        is_bulk: bool = False,
    ) -> GetResult:
        """Returns records of a queue from `offset` on, at most as many as the transfer limits allow.

        Units:   count_max in records; tag_hashes: the hashes to deliver, None for all; record_filter: applied
                 after the tags; is_bulk: the limits of `bulk_read` instead of RocketMQ's, unless there is a
                 `record_filter`.
        Source:  spec store 13.1.
        """
        queue = self._locate(topic, queue_id, offset, self.limit)
        if isinstance(queue, GetResult):
            return queue
        request = ReadRequest(queue, offset, count_max, bytes_max, tag_hashes, record_filter, self.limit)
        return self._read(request, None if is_bulk and record_filter is None else self._plan_limits(request))

    def get_own(
        self, topic: str, queue_id: int, offset: int, *, count_max: int, bytes_max: int, waits: bool = True
    ) -> GetResult:
        """Like `get`, for the broker's own tables, which must see messages hidden from readers.

        `waits`: for an entry that is being repaired, else the entry is skipped.
        """
        queue = self._locate(topic, queue_id, offset, None)
        if isinstance(queue, GetResult):
            return queue
        request = ReadRequest(queue, offset, count_max, bytes_max, waits=waits)
        return self._read(request, self._plan_limits(request))

    def _locate(self, topic: str, queue_id: int, offset: int, limit: int | None) -> ConsumeQueue | GetResult:
        """Returns the queue with a visible message at `offset`; without one the result of the get."""
        queue = self._queues.table.get((topic, queue_id))
        if queue is not None and queue.max_offset < offset <= queue.next_offset:
            # A slave delivered a message that waits for the disk here: its reader waits, and is not moved
            # back.
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, queue.min_offset, queue.max_offset)
        # In RocketMQ a queue without messages exists, because looking it up creates it.
        if queue is None or queue.max_offset == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, self._corrected(offset, 0), 0, 0)
        low, high = queue.min_offset, queue.max_offset
        assert low <= high, queue
        if offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, self._corrected(offset, low), low, high)
        if offset > high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, self._corrected(offset, high), low, high)
        if offset == high or (limit is not None and self._is_beyond(queue, offset, limit)):
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        return queue

    def _read(self, request: ReadRequest, limits: _Limits | None) -> GetResult:
        """Reads until every collected entry names its record. Without `limits` it is a bulk read."""
        queue, offset = request.queue, request.offset
        low, high = queue.min_offset, queue.max_offset
        lost: Set[int] = frozenset()
        kept: Set[int] = frozenset()
        until = high
        wrong_count = 0
        while True:
            if limits is None:
                near = self._log.end - self._memory_window_bytes
                batch = collect_bulk(
                    request, self._log, near=near, until=until, lost=lost, on_wrong_entry=self._on_wrong_entry
                )
            else:
                batch = self._collect(request, limits, until, lost, kept)
            if batch is None and (until < high or queue.entry(offset) is not None):  # an entry is unverified
                return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
            if batch is None:
                next_offset = self._corrected(offset, queue.file_end(offset))
                return GetResult(GetStatus.OFFSET_FOUND_NULL, next_offset, low, high)
            assert offset < batch.next_offset <= high, "a reader goes forward, and not beyond the queue"
            views = self._log.views(batch.ranges)
            wrong = batch.wrong
            # Entries in memory cannot have changed, and those accepted by a filter were checked.
            if wrong is None and offset < queue.tail_start and request.record_filter is None:
                wrong = _first_wrong(queue, batch, views, kept)
            if wrong is None:
                return self._result(batch, views, low, high)
            assert offset <= wrong.queue_offset < batch.next_offset, (queue, offset, wrong)
            wrong_count += 1
            is_enough = wrong_count > WRONG_ENTRIES_MAX and wrong.queue_offset > offset
            if is_enough or (self._on_wrong_entry(queue, wrong.queue_offset) and request.waits):
                until = wrong.queue_offset
            elif wrong.is_record:  # the record's own fields are wrong
                kept |= {wrong.queue_offset}
            else:
                lost |= {wrong.queue_offset}

    def _is_beyond(self, queue: ConsumeQueue, offset: int, limit: int) -> bool:
        """Returns True if the entry's message is hidden, as if the queue ended before it."""
        entry = queue.entry(offset) if queue.end_log_offset > limit else None
        return entry is not None and entry[0] >= limit

    def _corrected(self, asked: int, right: int) -> int:
        """Returns the corrected offset; a slave that may lag leaves the correction to its master."""
        is_slave = self.role is BrokerRole.SLAVE
        return asked if is_slave and not self._options.offset_check_in_slave else right

    def _plan_limits(self, request: ReadRequest) -> _Limits:
        """Returns RocketMQ's limits: entries of one queue file, and a bound of bytes."""
        options, queue, offset = self._options, request.queue, request.offset
        count_max = request.count_max
        bytes_max = max(min(request.bytes_max, GET_BYTES_MAX), GET_BYTES_MIN)
        # A bulk peer may ask for any count, and entries that the filter skips cost time, too.
        scan_count = min(count_max, BULK_COUNT_MAX)
        scan_bytes = max(options.filter_scan_bytes_max, scan_count * QUEUE_UNIT_BYTES)
        tag_hashes = request.tag_hashes
        hints = None if request.record_filter is None else request.record_filter.tag_hashes
        if tag_hashes is not None or hints is not None:
            first_count = FIRST_ENTRIES_TAGGED
        elif request.record_filter is not None:
            first_count = FIRST_ENTRIES
        else:
            first_count = min(max(1, count_max) + 1, FIRST_ENTRIES)  # one extra shows that the get is full
        return _Limits(
            None if tag_hashes is None else frozenset([tag & TAG_MASK for tag in tag_hashes]),
            None if hints is None else frozenset([tag & TAG_MASK for tag in hints]),
            self._log.end if request.limit is None else request.limit,
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
        self, request: ReadRequest, limits: _Limits, until: int, lost: Set[int], kept: Set[int]
    ) -> Batch | None:
        """Collects records from the entries of one queue file below `until`, without those in `lost`.

        Returns None without entries.
        """
        record_filter = request.record_filter
        is_quick = record_filter is None or record_filter.select is not None
        if is_quick and (limits.tags is not None or limits.hints is not None) and not lost:
            batch = self._collect_by_columns(request, limits, until)
            if batch is not None:
                return batch if batch.next_offset > request.offset else None
        batch = Batch(request.offset)
        rows = self._scan(batch, request, limits, until, lost, kept)
        if rows:
            begins, ends, offsets = zip(*rows, strict=True)
            batch.ranges = _join(begins, ends, offsets, self._log.segment_bytes)
        assert batch.next_offset <= until, (request.queue, batch.next_offset, until)
        return batch if batch.next_offset > request.offset else None

    def _scan(
        self, batch: Batch, request: ReadRequest, limits: _Limits, until: int, lost: Set[int], kept: Set[int]
    ) -> list[tuple[int, int, int]]:
        """Returns begin, end and queue offset of the records to deliver; `batch` gets all other facts."""
        queue, queue_id, record_filter = request.queue, request.queue.key[1], request.record_filter
        log_begin, log_end, damaged = self._log.begin, self._log.end, self._log.damaged or None
        tags, hints, log_limit, near = limits.tags, limits.hints, limits.log_limit, limits.near
        window = LogWindow(self._log)
        rows: list[tuple[int, int, int]] = []
        asked = count = size_bytes = 0
        next_offset = request.offset
        entries = chain.from_iterable(self._walk(request, limits, until))
        for queue_offset, (begin, size, tag) in entries:
            end = begin + size
            is_lost = not 0 <= begin < end <= log_end and size != FILLER_SIZE
            if is_lost or (lost and queue_offset in lost):
                if is_lost and self._on_wrong_entry(queue, queue_offset) and request.waits:
                    break
                next_offset = queue_offset + 1
                batch.was_removing |= not count
                continue
            if begin >= log_limit:
                break
            if count:
                count_max, bytes_max = limits.near_max if begin >= near else limits.far_max
                if count >= count_max or size_bytes + size > bytes_max:
                    break
            batch.last_log_offset = begin
            next_offset = queue_offset + 1
            if tags is not None and tag & TAG_MASK not in tags:
                continue
            if size == FILLER_SIZE or begin < log_begin or (damaged and damaged.find(begin, end)):
                batch.was_removing |= not count
                continue
            if record_filter is not None:
                # A value that is not a hash says nothing about the tag.
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
                    batch.wrong = _wrong(queue, queue_offset, begin, size, view, kept)
                    if batch.wrong is not None:
                        break
                    properties = find_record_properties(view)
                if properties is None or not record_filter.matches(properties):
                    batch.rejected_bytes += size
                    continue
            rows.append((begin, end, queue_offset))
            count += 1
            size_bytes += size
        batch.next_offset, batch.count, batch.bytes = next_offset, count, size_bytes
        return rows

    def _collect_by_columns(self, request: ReadRequest, limits: _Limits, until: int) -> Batch | None:
        """Like `_collect`, without examining each entry; None unless all are ordinary."""
        queue, offset, record_filter = request.queue, request.offset, request.record_filter
        begins: list[int] = []
        ends: list[int] = []
        offsets: list[int] = []
        size_bytes = last_begin = rejected_bytes = 0
        asked_max = 0 if record_filter is None else record_filter.count_max
        next_offset, end, entry_count = offset, min(limits.scan_end, until), limits.first_count
        while next_offset < end:
            raw = queue.entries(next_offset, min(entry_count, end - next_offset))
            stretch = self._ordinary(raw, limits) if raw else None
            if stretch is None:
                return None
            room = stretch.count_max - len(begins)
            if size_bytes + stretch.size_max * room > stretch.bytes_max and begins:
                return None
            if room <= 0:
                break
            rows = _candidates(stretch.tags, limits)
            stretch_end = next_offset + len(stretch.tags)
            left: Ints = rows[asked_max:]
            if record_filter is not None:
                found = self._select(queue, stretch, rows[:asked_max], next_offset, room, record_filter)
                if found is None:
                    return None
                asked_max -= len(rows)
                rows, rejected_size = found
                rejected_bytes += rejected_size
            is_full = len(rows) >= room
            rows = rows[:room]
            begins += stretch.begins[rows].tolist()
            ends += stretch.ends[rows].tolist()
            offsets += (rows + next_offset).tolist()
            size_bytes += int(stretch.sizes[rows].sum())
            next_offset, last_begin = stretch_end, stretch.last
            if is_full:
                next_offset, last_begin = offsets[-1] + 1, begins[-1]
            elif record_filter is not None and asked_max < 0:
                stop = int(left[0])
                next_offset, last_begin = stop + stretch_end - len(stretch.tags), int(stretch.begins[stop])
            if next_offset < stretch_end:
                break
            entry_count *= 2
        assert next_offset <= until, (queue, next_offset, until)
        ranges = _join(begins, ends, offsets, self._log.segment_bytes)
        return Batch(next_offset, ranges, len(begins), size_bytes, last_begin, rejected_bytes=rejected_bytes)

    def _select(
        self,
        queue: ConsumeQueue,
        stretch: _Stretch,
        rows: Ints,
        first: int,
        count_max: int,
        record_filter: RecordFilter,
    ) -> tuple[Ints, int] | None:
        """Returns the first `count_max` rows whose records match, and the bytes of the records rejected
        before the last of them. None unless all examined records are ordinary.

        `first`: the queue offset of row 0.
        """
        assert record_filter.select is not None
        selected: list[int] = []
        rejected_bytes = examined = 0
        while examined < len(rows) and len(selected) < count_max:
            left = count_max - len(selected)
            # As many as should contain the missing ones, if they match as often as those before.
            size = max(left * (examined + 1) // (len(selected) + 1), EXAMINED_COUNT_MIN)
            part = rows[examined : examined + size]
            sizes = stretch.sizes[part].tolist()
            spans = self._properties(queue, stretch.begins[part].tolist(), sizes, (part + first).tolist())
            if spans is None:
                return None
            is_match = record_filter.select(*spans)
            found = list(compress(part.tolist(), is_match))
            if len(found) >= left:
                found = found[:left]
                count = int(part.searchsorted(found[-1])) + 1
                sizes, is_match = sizes[:count], is_match[:count]
            rejected_bytes += sum(sizes) - sum(compress(sizes, is_match))
            selected += found
            examined += size
        return np.array(selected, dtype=np.int64), rejected_bytes

    def _properties(
        self, queue: ConsumeQueue, begins: list[int], sizes: list[int], offsets: list[int]
    ) -> tuple[memoryview, list[int], list[int]] | None:
        """Returns the file of these records, and the begin and end of each one's properties in it.

        None unless their entries name them, and all are V1 records of one file and one kind of hosts.
        """
        segment = self._log.log.find(begins[0])
        end = begins[-1] + sizes[-1]
        if segment is None or end > segment.end or min(sizes) < RECORD_BYTES_MIN:
            return None
        self._log.touch(segment, begins[0], end)
        view, base = segment.view(), segment.base
        places = [begin - base for begin in begins]
        heads = zip(*map(_unpack_facts, repeat(view), places), strict=True)
        own_sizes, magics, ids, own_offsets, own_begins, sys_flags, body_sizes = map(list, heads)
        hosts = {sys_flag & HOSTS_V6_MASK for sys_flag in set(sys_flags)}
        head_bytes = HEADS[min(hosts)].size
        if len(hosts) > 1 or min(sizes) < head_bytes:
            return None
        topic, queue_id = queue.key
        middle, name = _topic_layout(topic)
        fixed_bytes = head_bytes + middle.size
        if head_bytes != HEAD_V4_BYTES:
            body_sizes = [INT.unpack_from(view, place + head_bytes - INT.size)[0] for place in places]
        lengths = [size - body_size - fixed_bytes for size, body_size in zip(sizes, body_sizes, strict=True)]
        if min(lengths) < 0 or min(body_sizes) < 0:
            return None
        ends = [place + size for place, size in zip(places, sizes, strict=True)]
        starts = [end - length for end, length in zip(ends, lengths, strict=True)]
        middles = map(middle.unpack_from, repeat(view), [start - middle.size for start in starts])
        name_sizes, names, own_lengths = map(list, zip(*middles, strict=True))
        shared = set(zip(magics, ids, name_sizes, names, strict=True))
        if (own_sizes, own_offsets, own_begins, own_lengths) != (sizes, offsets, begins, lengths):
            return None
        return (view, starts, ends) if shared == {(MAGIC_V1, queue_id, len(name), name)} else None

    def _walk(
        self, request: ReadRequest, limits: _Limits, until: int
    ) -> Iterator[Iterable[tuple[int, tuple[int, int, int]]]]:
        """Yields stretches of entries from `offset` on, each entry with its queue offset."""
        offset, end, count = request.offset, min(limits.scan_end, until), limits.first_count
        while offset < end:
            raw = request.queue.entries(offset, min(count, end - offset))
            if not raw:
                return
            yield enumerate(UNIT.iter_unpack(raw), offset)
            offset += len(raw) // QUEUE_UNIT_BYTES
            count *= 2

    def _ordinary(self, raw: bytes, limits: _Limits) -> _Stretch | None:
        """Returns the columns of a stretch of ordinary entries; None if one is not ordinary.

        Entries are ordinary if their records are in the log, undamaged, below the limit, all near or all far,
        and too small to fill a get by bytes.
        """
        entries = np.frombuffer(raw, dtype=ENTRY)
        begins = entries["log_offset"].astype(np.int64)
        sizes = entries["size"].astype(np.int64)
        ends = begins + sizes
        first, last, end, size_max = int(begins[0]), int(begins[-1]), int(ends[-1]), int(sizes.max())
        log = self._log
        count_max, bytes_max = limits.near_max if first >= limits.near else limits.far_max
        count_max = max(count_max, 1)  # a get returns the first record regardless of its limits
        if first < log.begin or last >= limits.log_limit or end > log.end or first < limits.near <= last:
            return None
        if (ends <= begins).any() or (begins[1:] < ends[:-1]).any():
            return None
        if size_max * (count_max + 1) > bytes_max:
            return None
        if log.damaged and log.damaged.find(first, end) is not None:
            return None
        tags = entries["tag_hash"].astype(np.int64)
        return _Stretch(begins, sizes, ends, tags, last, size_max, count_max, bytes_max)

    def _result(self, batch: Batch, views: list[memoryview], low: int, high: int) -> GetResult:
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
        """Returns True if the record at a queue offset is beyond the memory window; False without a
        record.
        """
        queue = self._queues.table.get((topic, queue_id))
        entry = queue.entry(offset) if queue is not None and queue.min_offset <= offset else None
        return entry is not None and self._log.end - entry[0] > self._memory_window_bytes

    def stored_at(self, topic: str, queue_id: int, offset: int) -> int:
        """Returns the store time of the record at a queue offset; -1 without one (spec store 13.2)."""
        queue = self._queues.table.get((topic, queue_id))
        return -1 if queue is None else self._stored_at(queue, offset)

    def has_record(
        self, topic: str, queue_id: int, queue_offset: int, log_offset: int, stored_at_ms: int
    ) -> bool | None:
        """Returns True if the record at a queue offset has this log offset and store time.

        None if no record can be read at that queue offset: not yet, not any more, or it is damaged.
        """
        entry = self._entry_of(topic, queue_id, queue_offset)
        if entry is None:
            return None
        if entry[0] != log_offset:
            return False
        held_at_ms = self._log.stored_at(log_offset)
        return None if held_at_ms == -1 else held_at_ms == stored_at_ms

    def find_record(self, topic: str, queue_id: int, queue_offset: int) -> tuple[int, int] | None:
        """Returns the log offset and store time of the record at a queue offset; None if none can be read
        there.
        """
        entry = self._entry_of(topic, queue_id, queue_offset)
        if entry is None:
            return None
        held_at_ms = self._log.stored_at(entry[0])
        return None if held_at_ms == -1 else (entry[0], held_at_ms)

    def _entry_of(self, topic: str, queue_id: int, queue_offset: int) -> tuple[int, int, int] | None:
        """Returns the entry of a kept message; None without one."""
        queue = self._queues.table.get((topic, queue_id))
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return None
        entry = queue.entry(queue_offset)
        return None if entry is None or entry[1] == FILLER_SIZE else entry

    def earliest_stored_at(self, topic: str, queue_id: int) -> int:
        """Returns the store time of the first kept record; -1 for an empty queue."""
        queue = self._queues.table.get((topic, queue_id))
        return -1 if queue is None else self._stored_at(queue, queue.min_offset)

    def _stored_at(self, queue: ConsumeQueue, offset: int) -> int:
        entry = queue.entry(offset) if queue.min_offset <= offset else None
        if entry is None or entry[1] == FILLER_SIZE:
            return -1
        return self._log.stored_at(entry[0])

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int, *, upper: bool = False) -> int:
        """Returns the first offset stored at `time_ms` or later; with `upper` the last one stored then or
        earlier.

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

    def offset_beyond(self, topic: str, queue_id: int, log_offset: int) -> int:
        """Returns the first queue offset whose record begins after a log offset; the queue's max without
        one.
        """
        queue = self._queues.table.get((topic, queue_id))
        if queue is None:
            return 0
        low, high = queue.min_offset, queue.max_offset
        while low < high:
            middle = (low + high) // 2
            at, found = queue.first_real(middle)
            if at < high and found <= log_offset:
                low = at + 1
            else:
                high = middle
        return low

    def query_tags(
        self, topic: str, tags: str, count_max: int, begin_ms: int, end_ms: int
    ) -> tuple[list[int], bool]:
        """Returns log offsets of a topic's newest records with this tag hash, ascending.

        The second value is True if the whole time range was searched: see `TAG_SCAN_COUNT_MAX`.

        Strategy: the queues hold the hash of every message's tags; an index of tags would add nothing, and
                  would cost each send.
        """
        count_max, wanted = min(count_max, self._options.query_count_max), tag_hash(tags)
        queue_ids = [queue_id for name, queue_id in self._queues.table if name == topic]
        found: list[int] = []
        is_complete = True
        for queue_id in queue_ids:
            low = self.offset_by_time(topic, queue_id, begin_ms)
            high = self.offset_by_time(topic, queue_id, end_ms + 1)
            end = max(low, high - TAG_SCAN_COUNT_MAX // len(queue_ids))
            of_queue: list[int] = []
            while end < high and len(of_queue) < count_max:
                begin = max(end, high - TAG_SCAN_BLOCK)
                of_queue = (
                    self._tagged_between(self._queues.table[topic, queue_id], begin, high, wanted) + of_queue
                )
                high = begin
            is_complete = is_complete and (end == low or len(of_queue) >= count_max)
            found += of_queue
        found.sort()
        return found[-count_max:], is_complete

    def _tagged_between(self, queue: ConsumeQueue, begin: int, end: int, wanted: int) -> list[int]:
        """Returns log offsets of the entries `[begin, end)` with this tag hash."""
        found: list[int] = []
        while begin < end:
            raw = queue.entries(begin, end - begin)
            if not raw:
                begin = queue.file_end(begin)
                continue
            entries = np.frombuffer(raw, dtype=ENTRY)
            is_wanted = (entries["tag_hash"] & TAG_MASK == wanted & TAG_MASK) & (
                entries["size"] != FILLER_SIZE
            )
            found += entries["log_offset"][is_wanted].tolist()
            begin += len(entries)
        return found

    def _first_stored(self, queue: ConsumeQueue, offset: int) -> tuple[int, int]:
        """Returns the first readable queue offset from `offset` on, and the store time of its record.

        Returns the queue's max and -1 without one. Fillers and damaged records prove nothing about their
        neighbours.
        """
        stored_at_ms = self._stored_at(queue, offset)  # usually readable
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
