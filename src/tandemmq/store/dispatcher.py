"""Feeds the ConsumeQueues and the key index with the records of the log below `confirmed`.

`Dispatcher` decides which records come next and where their values come from. `BlockDispatch` puts whole
blocks of records into the tables and finds entries that differ from the log.

Invariants: records are dispatched in log order, each once; `dispatched` is the end of the last one.
            Dispatching a block leaves the tables as dispatching its records one by one would.
Strategy:   the values of records that this process appended are known and wait in batches passed to `expect`.
            Other bytes (copied by a slave) are scanned from the log. A queue file that cannot be written
            keeps its entries in memory and blocks further appends until the flusher has written them.
Knows not:  the readers that wait for messages; they subscribe with `on_dispatch`.
Source:     spec store 5, 6, 8, spec replication 4.9.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np

from tandemmq.protocol import speedups
from tandemmq.protocol.properties import find_property
from tandemmq.protocol.record import NewRecord, RecordCheck, RecordOutcome, check_record, decode_record
from tandemmq.protocol.record_run import RecordRun
from tandemmq.protocol.record_scan import Ints, ParsedRecords, RecordColumns
from tandemmq.protocol.sys_flag import TRANSACTION_PREPARED
from tandemmq.protocol.topic_names import DELAY_LEVELS_MS
from tandemmq.store.columns import due_at
from tandemmq.store.consume_queue import ENTRY, UNIT, ConsumeQueue, FilesLeft, pack_entries
from tandemmq.store.consume_queues import ConsumeQueues, QueueKey
from tandemmq.store.core import StoreCore
from tandemmq.store.key_indexes import KeyIndexes
from tandemmq.store.options import QUEUE_UNIT_BYTES
from tandemmq.store.record_block import (
    PlacedBatch,
    RecordBlock,
    Unit,
    block_of,
    count_records,
    read_block,
)
from tandemmq.telemetry import events
from tandemmq.units import KIB, MIB, Buffer

log = logging.getLogger(__name__)

QUEUE_WRITE_FAILED = "queue write failed"
"""The reason by which `Admission` identifies unwritable queue entries."""
UNWRITTEN_BYTES_MAX = 16 * MIB
"""The most unwritten entries, in bytes, of a queue that waits for the deletion of its former files: 838,860
messages.
"""
BLOCK_BYTES_MIN = 96 * KIB
"""The size in bytes from which reading all records at once is faster than one by one (approximate)."""
BLOCK_COUNT_MAX = 32_768
_pack = UNIT.pack

DispatchListener = Callable[[Mapping[QueueKey, int]], None]


class Dispatcher:
    """Follows `confirmed` and raises `dispatched`."""

    def __init__(self, core: StoreCore) -> None:
        options = core.options
        self._delays_ms = options.delay_levels_ms
        self._has_own_delays = tuple(options.delay_levels_ms) != DELAY_LEVELS_MS
        self._log = core.log
        self._queues = core.queues
        self._keys = core.indexes
        self._admission = core.admission
        self._dispatched = core.dispatched
        self._pending: deque[tuple[int, list[Unit]]] = deque()
        self._listeners: tuple[DispatchListener, ...] = ()
        self._stopped_at = -1
        self.parsed: tuple[int, Buffer, ParsedRecords] | None = None
        """While copied bytes are written: their log offset, the bytes, and the fields of their first
        records or of all.
        """
        self._limit: int | None = None
        self._hidden: dict[ConsumeQueue, None] = {}  # queues with entries that are not visible to readers yet
        self._blocks = BlockDispatch(
            queues=core.queues, keys=core.indexes, delays_ms=options.delay_levels_ms, on_failed=self.block
        )
        self.dispatched_count = 0  # records of this run, recovered ones included
        self.stored_at_ms = 0  # of the newest dispatched record

    def on_dispatch(self, listener: DispatchListener) -> None:
        """Calls `listener` after each batch with the changed queues and their new max offsets."""
        self._listeners = (*self._listeners, listener)

    def forget_listeners(self) -> None:
        """Removes all listeners."""
        self._listeners = ()

    def set_read_limit(self, limit: int | None) -> None:
        """Hides records at or after `limit` from readers; None shows all.

        Listeners are notified of a hidden record when the limit rises.
        """
        assert limit is None or limit >= 0, limit
        self._limit = limit
        hidden, self._hidden = self._hidden, {}
        self.notify(hidden)

    def expect(self, units: list[Unit], end: int) -> None:
        """Registers records up to `end` that this process wrote; they are dispatched once confirmed."""
        before = self._pending[-1][0] if self._pending else self._dispatched.value
        assert before < end, (before, end)
        self._pending.append((end, units))

    def cut(self, end: int) -> None:
        """Adapts to a log that now ends at `end`: a stop at or after `end` is lifted."""
        assert self._dispatched.value <= end, (self._dispatched.value, end)
        if self._stopped_at >= end:
            self._stopped_at = -1

    def advance(self, confirmed: int) -> None:
        """Dispatches every record below `confirmed`."""
        pending = self._pending
        if not pending:
            self._scan(confirmed)
            return
        touched: dict[ConsumeQueue, None] = {}
        done = self._dispatched.value
        while pending and pending[0][0] <= confirmed:
            done, units = pending.popleft()
            self._put(units, touched)
            self.add_keys(units)
        self._finish(done, touched)
        if not pending and done < confirmed:
            self._scan(confirmed)  # records that this store copied while it was a slave

    def _put(self, units: list[Unit], touched: dict[ConsumeQueue, None]) -> None:
        for queue, log_offset, size, record, stored_at_ms in units:
            if queue is None:
                if isinstance(record, PlacedBatch):
                    self._put_apart(record, touched)
                continue
            touched[queue] = None
            try:
                if isinstance(record, PlacedBatch):
                    entries = map(_pack, record.log_offsets, record.sizes, record.tag_hashes)
                    queue.put_many(b"".join(entries), log_offset + size)
                    continue
                tag = record.tag_hash
                if queue.is_schedule:
                    tag = self._due_at(record, tag, stored_at_ms)
                queue.put(log_offset, size, tag)
            except OSError as error:
                self.block(queue, error)

    def _put_apart(self, batch: PlacedBatch, touched: dict[ConsumeQueue, None]) -> None:
        """Puts the entries of a batch whose records belong to several queues."""
        for queue, packed, end in _pack_apart(batch):
            touched[queue] = None
            try:
                queue.put_many(packed, end)
            except OSError as error:
                self.block(queue, error)

    def add_keys(self, units: list[Unit]) -> None:
        """Hands dispatched records to the key index."""
        if units:
            count = count_records(units)
            self.dispatched_count += count
            self.stored_at_ms = units[-1][4]
            if self._keys is not None:
                self._keys.add(units, count)

    def _due_at(self, record: object, tag: int, stored_at_ms: int) -> int:
        """Returns the due time of a delayed message; its entry holds it in place of the tag (spec
        store 5).
        """
        if isinstance(record, NewRecord):
            level = find_property(record.properties, b"DELAY")
            if level is not None:
                return self._level_due_at(level, stored_at_ms, tag)
        return tag

    def _level_due_at(self, level: bytes, stored_at_ms: int, tag: int) -> int:
        at_ms = due_at(level, stored_at_ms, self._delays_ms)
        return tag if at_ms is None else at_ms

    def _scan(self, confirmed: int) -> None:
        """Dispatches the complete records in the log below `confirmed`."""
        position = max(self._dispatched.value, self._log.begin)
        assert self._stopped_at <= position, (self._stopped_at, position)
        if position >= confirmed or position == self._stopped_at:
            return
        touched: dict[ConsumeQueue, None] = {}
        units: list[Unit] = []
        if self.parsed is not None and self.parsed[0] == position:
            begin, data, parsed = self.parsed
            view = memoryview(data)
            if isinstance(parsed, RecordColumns):
                position += self._put_block(block_of(view, parsed, check_crc=False), touched)
            else:
                for checked in parsed:
                    if isinstance(checked, RecordRun):
                        if not self._put_run(checked, units, touched):
                            break  # its records are read from the log, one by one
                        position += checked.size_bytes
                        continue
                    if checked.outcome is not RecordOutcome.OK:
                        break  # it is intact and cannot be dispatched, for example for its topic
                    self._put_copied(checked, view, position - begin, units, touched)
                    position += checked.size
        while position < confirmed:
            found = self._log.segment_view(position)
            if found is None:
                break
            base, view = found
            begin = position
            position = self._scan_segment(position, base, view[: confirmed - base], units, touched)
            if position == begin:
                break
        assert position <= confirmed, (position, confirmed)
        self.add_keys(units)
        self._finish(position, touched)

    def _scan_segment(
        self, position: int, base: int, view: memoryview, units: list[Unit], touched: dict[ConsumeQueue, None]
    ) -> int:
        """Returns the end of the last complete record (or of the file) within one file's bytes."""
        assert base <= position < base + len(view), (base, position, len(view))
        while position - base < len(view):
            if len(view) - (position - base) >= BLOCK_BYTES_MIN:
                # The single-record path handles the rest of the block and finds the reason for its end.
                block = read_block(
                    view, position - base, log_offset=base, check_crc=False, count_max=BLOCK_COUNT_MAX
                )
                if len(block):
                    self.add_keys(units)
                    units.clear()
                    position = base + self._put_block(block, touched)
                    continue
            checked = check_record(view, position - base, log_offset=position, check_crc=False)
            outcome = checked.outcome
            if outcome is RecordOutcome.BLANK:
                # Only a part of the blank may have arrived yet.
                return base + len(view) if len(view) == self._log.segment_bytes else position
            if outcome is not RecordOutcome.OK:
                if outcome not in (RecordOutcome.TRUNCATED, RecordOutcome.END):
                    self._stop(position, outcome)
                return position
            self._put_copied(checked, view, position - base, units, touched)
            position += checked.size
        return position

    def _put_copied(
        self,
        checked: RecordCheck,
        view: memoryview,
        at: int,
        units: list[Unit],
        touched: dict[ConsumeQueue, None],
    ) -> None:
        """Puts the entry of the record at byte `at` of `view`, and adds the record to `units`."""
        queue = None
        if self.is_queued(checked):
            queue = self._queues.get_or_create((checked.topic, checked.queue_id))
            touched[queue] = None
            self.put_checked(queue, checked, view, at)
        units.append((queue, checked.log_offset, checked.size, checked, checked.stored_at_ms))

    def _put_run(self, run: RecordRun, units: list[Unit], touched: dict[ConsumeQueue, None]) -> bool:
        """Puts the entries of a run, and adds it to `units`. Returns False, and does nothing, if one of its
        records may not simply continue its queue.
        """
        begin = run.log_offsets[0]
        if self._keys is not None and begin <= self._keys.indexed_to:
            return False
        queues = self._queues.continued(run.topic, run.queue_ids, run.queue_offsets, begin)
        if queues is None:
            return False
        batch = PlacedBatch(
            run.topic,
            0,
            run.log_offsets,
            run.sizes,
            run.tag_hashes,
            run.stored_times_ms,
            run.unique_keys,
            run.keys,
            queues,
        )
        self._put_apart(batch, touched)
        units.append((None, begin, run.size_bytes, batch, run.stored_times_ms[-1]))
        return True

    def _put_block(self, block: RecordBlock, touched: dict[ConsumeQueue, None]) -> int:
        """Dispatches a block and returns its end, in bytes of its view."""
        touched.update(dict.fromkeys(self.put_block(block, 0, len(block))))
        return block.end

    def put_block(self, block: RecordBlock, begin: int, end: int) -> list[ConsumeQueue]:
        """Feeds the tables with records `[begin, end)` of a block and returns the queues they belong to.

        Records that a table already contains are skipped, by queue offset and log offset.
        """
        assert 0 <= begin <= end <= len(block), (begin, end, len(block))
        if end > begin:
            self.dispatched_count += end - begin
            self.stored_at_ms = int(block.columns.stored_at_ms[end - 1])
        return self._blocks.put(block, begin, end)

    def is_queued(self, checked: RecordCheck) -> bool:
        """Returns True if the record gets a queue entry.

        Prepared and rolled-back transactions (spec store 5) and deleted messages get none.
        """
        if checked.sys_flag & TRANSACTION_PREPARED:
            return False
        return not self._queues.is_deleted(checked.topic, checked.log_offset)

    def put_checked(self, queue: ConsumeQueue, checked: RecordCheck, view: memoryview, at: int) -> None:
        """Appends the entry of the record at byte `at` of `view`, at the queue offset stored in the
        record.
        """
        tag = self._tag_of(queue, checked, view, at)
        try:
            self._queues.put_at(queue, checked.queue_offset, checked.log_offset, checked.size, tag)
        except OSError as error:
            self.block(queue, error)

    def restore(
        self, view: memoryview, base: int, records: Sequence[RecordCheck], *, replaces: bool = False
    ) -> dict[ConsumeQueue, None]:
        """Writes the queue entries of formerly damaged records and returns the queues to notify.

        An existing entry is overwritten only if it is a filler, or if `replaces` is True. The bytes of the
        records are in `view`, which starts at log offset `base`.
        """
        touched: dict[ConsumeQueue, None] = {}
        for checked in records:
            if not self.is_queued(checked):
                continue
            assert 0 <= checked.log_offset - base <= len(view) - checked.size, (checked.log_offset, base)
            queue = self._queues.get_or_create((checked.topic, checked.queue_id))
            tag = self._tag_of(queue, checked, view, checked.log_offset - base)
            try:
                place = checked.queue_offset, checked.log_offset, checked.size, tag
                queue.restore(*place, replaces=replaces)
            except OSError as error:
                self.block(queue, error)
            touched[queue] = None
        return touched

    def repair_entries(self, block: RecordBlock) -> None:
        """Repairs queue entries of these valid records that have changed since they were dispatched."""
        for row in self._blocks.find_mismatches(block):
            log_offset = int(block.columns.log_offset[row])
            found = self._log.segment_view(log_offset)
            if found is None:
                continue
            base, view = found
            checked = check_record(view, log_offset - base, log_offset=log_offset, check_crc=False)
            if checked.outcome is not RecordOutcome.OK or self._is_of_another(checked):
                continue
            log.warning(
                events.QUEUE_ENTRY_REPAIRED,
                extra={
                    "topic": checked.topic,
                    "queue_id": checked.queue_id,
                    "queue_offset": checked.queue_offset,
                    "log_offset": log_offset,
                },
            )
            self.notify(self.restore(view, base, [checked], replaces=True))

    def _is_of_another(self, checked: RecordCheck) -> bool:
        """Returns True if the entry belongs to another record with the same topic, queue and queue offset.

        That happens when a topic was deleted and created again. Also True if the entry does not exist.
        """
        queue = self._queues.table.get((checked.topic, checked.queue_id))
        entry = None if queue is None else queue.entry(checked.queue_offset)
        if entry is None:
            return True
        if entry[0] == checked.log_offset or not self._log.begin <= entry[0] < self._log.end:
            return False
        other = self._log.check(entry[0])
        place = other.topic, other.queue_id, other.queue_offset
        is_same = place == (checked.topic, checked.queue_id, checked.queue_offset)
        return other.outcome is RecordOutcome.OK and is_same

    def _tag_of(self, queue: ConsumeQueue, checked: RecordCheck, view: memoryview, at: int) -> int:
        """Returns the last field of the entry of the record at byte `at` of `view`: of a delayed message, the
        due time by the configured delay levels.
        """
        tag = checked.tag_hash
        if not (queue.is_schedule and self._has_own_delays):
            return tag
        record = decode_record(view, at, check_crc=False)
        level = find_property(record.raw_properties, b"DELAY")
        return tag if level is None else self._level_due_at(level, record.stored_at_ms, tag)

    def _finish(self, end: int, touched: dict[ConsumeQueue, None]) -> None:
        begin = self._dispatched.value
        assert end >= begin, (begin, end)
        self._dispatched.raise_to(end)
        if self._limit is not None and self._limit <= begin:
            self._hidden.update(touched)
        else:
            self.notify(touched)

    def notify(self, touched: dict[ConsumeQueue, None]) -> None:
        """Notifies listeners of these queues. Queues with entries at or above the limit are announced again
        later.
        """
        limit = self._limit
        if limit is not None:
            self._hidden.update({queue: None for queue in touched if queue.end_log_offset > limit})
        if touched and self._listeners:
            changed = {queue.key: queue.max_offset for queue in touched if not queue.is_dropped}
            for listener in self._listeners:
                listener(changed)

    def block(self, queue: ConsumeQueue, error: OSError) -> bool:
        """Records that the entries of a queue cannot be written. Returns True if sends are refused because of
        it.

        A queue that waits for the deletion of its former files blocks no sends, up to UNWRITTEN_BYTES_MAX.
        """
        facts = {"topic": queue.key[0], "queue_id": queue.key[1], "error": str(error)}
        if isinstance(error, FilesLeft) and queue.unwritten_bytes <= UNWRITTEN_BYTES_MAX:
            if not queue.waits_for_deletion:
                queue.waits_for_deletion = True
                log.error(events.QUEUE_FILES_NOT_DELETED, extra=facts)
            return False
        if not self._admission.is_blocked(QUEUE_WRITE_FAILED):
            log.error(events.QUEUE_WRITE_FAILED, extra=facts)
        self._admission.block(QUEUE_WRITE_FAILED, f"queue files cannot be written: {error.strerror or error}")
        return True

    def _stop(self, position: int, outcome: RecordOutcome) -> None:
        """Stops at foreign bytes: no record behind them can be dispatched (a slave never skips, spec
        replication 4.9).
        """
        assert position >= self._dispatched.value, (position, self._dispatched.value)
        self._stopped_at = position
        log.error(events.DISPATCH_STOPPED, extra={"log_offset": position, "reason": outcome.value})


@dataclass(eq=False)
class BlockDispatch:
    """Dispatches blocks of records.

    `on_failed(queue, error)` is called when a queue file cannot be written; its entries stay in memory.

    Strategy: the records of one queue nearly always continue it, so they are appended at once. Where they do
              not (a gap, entries that exist already, a topic created again), the queue decides at each break.
    """

    _: KW_ONLY
    queues: ConsumeQueues
    keys: KeyIndexes | None
    delays_ms: Sequence[int]
    on_failed: Callable[[ConsumeQueue, OSError], object]

    def put(self, block: RecordBlock, begin: int, end: int) -> list[ConsumeQueue]:
        """Dispatches records `[begin, end)` and returns the queues they belong to."""
        touched: list[ConsumeQueue] = []
        position = begin
        while (row := self._find_restart(block, position, end)) is not None:
            assert position <= row < end, (position, row, end)
            # If this record restarts its queue, the queue must first hold all records before it.
            touched += self._put_part(block, position, row)
            touched += self._put_part(block, row, row + 1)
            position = row + 1
        touched += self._put_part(block, position, end)
        keys = self.keys
        if keys is not None and end > begin and int(block.columns.log_offset[end - 1]) >= keys.indexed_to:
            hashes, rows = block.keys(begin, end)
            keys.add_hashes(hashes, block.columns.log_offset[rows], block.columns.stored_at_ms[rows])
        return touched

    def find_mismatches(self, block: RecordBlock) -> list[int]:
        """Returns the rows of records whose entries differ from the ones dispatching would write."""
        columns = block.columns
        deleted = self.queues.deletions.ends
        wrong: list[int] = []
        for key, found in block.queues(0, len(block)):
            queue = self.queues.table.get(key)
            if queue is None:
                continue
            offsets = columns.queue_offset[found]
            is_kept = (offsets >= queue.first_offset) & (offsets < queue.max_offset)
            rows = found[is_kept & (columns.log_offset[found] >= deleted.get(key[0], 0))]
            while len(rows):
                # Compare one contiguous run at a time, within one file of the queue or within its tail.
                first = int(columns.queue_offset[rows[0]])
                breaks = np.flatnonzero(np.diff(columns.queue_offset[rows]) != 1)
                entries = queue.entries(first, int(breaks[0]) + 1 if len(breaks) else len(rows))
                count = len(entries) // QUEUE_UNIT_BYTES
                if not count:
                    break
                assert count <= len(rows), (queue, first, count, len(rows))
                run, rows = rows[:count], rows[count:]
                held = np.frombuffer(entries, dtype=ENTRY)
                is_wrong = held["log_offset"] != columns.log_offset[run]
                is_wrong |= held["size"] != columns.size[run]
                if not queue.is_schedule:  # a scheduled entry holds the due time instead
                    is_wrong |= held["tag_hash"] != block.tag_hash[run]
                wrong += run[is_wrong].tolist()
        return wrong

    def _find_restart(self, block: RecordBlock, begin: int, end: int) -> int | None:
        """Returns the row of the first record that restarts a queue at offset 0; None without one."""
        columns = block.columns
        if columns.queue_offset[begin:end].all():
            return None
        found = []
        for key, every in block.queues(begin, end):
            queue = self.queues.table.get(key)
            known_to = self.queues.deletions.ends.get(key[0], 0)
            if queue is not None:
                known_to = max(known_to, queue.end_log_offset)
            rows = every[columns.log_offset[every] >= known_to]
            is_empty = queue is None or queue.max_offset == 0
            zeros = rows[is_empty:][columns.queue_offset[rows[is_empty:]] == 0]
            found += zeros[:1].tolist()
        return min(found, default=None)

    def _put_part(self, block: RecordBlock, begin: int, end: int) -> list[ConsumeQueue]:
        columns = block.columns
        touched = []
        new = []
        deleted = self.queues.deletions.ends
        for key, found in block.queues(begin, end):
            rows = found
            if deleted and key[0] in deleted:
                rows = found[columns.log_offset[found] >= deleted[key[0]]]
                if not len(rows):
                    continue
            queue = self.queues.get_or_create(key)
            touched.append(queue)
            if int(block.ends[rows[-1]]) > queue.end_log_offset:
                new.append((queue, rows))
        if new:
            self._put_queues(block, new)
        return touched

    def _put_queues(self, block: RecordBlock, new: list[tuple[ConsumeQueue, Ints]]) -> None:
        """Appends entries to each queue that lacks records of the block."""
        columns = block.columns
        order = np.concatenate([rows for _, rows in new]) if len(new) > 1 else new[0][1]
        offsets, log_offsets = columns.queue_offset[order], columns.log_offset[order]
        entries = pack_entries(log_offsets, columns.size[order], block.tag_hash[order])
        assert len(entries) == len(order) * QUEUE_UNIT_BYTES, (len(entries), len(order))
        breaks = (offsets[1:] != offsets[:-1] + 1).nonzero()[0] + 1
        last = 0
        for queue, rows in new:
            first, last = last, last + len(rows)
            # Breaks between queues are at the ends of their ranges, other breaks within.
            is_one_run = breaks.searchsorted(first, side="right") == breaks.searchsorted(last)
            continues = offsets[first] == queue.max_offset and log_offsets[first] >= queue.end_log_offset
            is_verified = not queue.is_schedule and not self.queues.is_unverified(queue)
            if is_one_run and continues and is_verified:
                part = entries[first * QUEUE_UNIT_BYTES : last * QUEUE_UNIT_BYTES]
                self._put_many(queue, part, int(block.ends[rows[-1]]))
            else:
                self._put_rows(queue, block, rows)
        assert last == len(order), "each record belongs to one queue"

    def _put_rows(self, queue: ConsumeQueue, block: RecordBlock, rows: Ints) -> None:
        columns = block.columns
        rows = rows[columns.log_offset[rows] >= queue.end_log_offset]
        if not len(rows):
            return
        tags = block.due_times(rows, self.delays_ms) if queue.is_schedule else block.tag_hash[rows]
        offsets, log_offsets, sizes = columns.queue_offset[rows], columns.log_offset[rows], columns.size[rows]
        breaks = ((offsets[1:] != offsets[:-1] + 1).nonzero()[0] + 1).tolist()
        for first, last in zip([0, *breaks], [*breaks, len(rows)], strict=True):
            while first < last:
                place = (int(offsets[first]), int(log_offsets[first]), int(sizes[first]), int(tags[first]))
                first += 1
                if self._put_at(queue, place):
                    break
            if first < last:
                entries = pack_entries(log_offsets[first:last], sizes[first:last], tags[first:last])
                self._put_many(queue, entries, int(block.ends[rows[last - 1]]))

    def _put_at(self, queue: ConsumeQueue, place: tuple[int, int, int, int]) -> bool:
        """Appends one entry at its queue offset. Returns True if the next record continues the queue."""
        try:
            self.queues.put_at(queue, *place)
        except OSError as error:
            self.on_failed(queue, error)
        # While a topic's state is unverified, the entry may reuse the offset of the queue's last entry.
        return queue.max_offset == place[0] + 1 and not self.queues.is_unverified(queue)

    def _put_many(self, queue: ConsumeQueue, entries: bytes, end_log_offset: int) -> None:
        try:
            queue.put_many(entries, end_log_offset)
        except OSError as error:
            self.on_failed(queue, error)


def _pack_apart(batch: PlacedBatch) -> list[tuple[ConsumeQueue, bytes, int]]:
    """Returns for each queue of a batch the packed entries and the end of its last record."""
    columns = batch.queues, batch.log_offsets, batch.sizes, batch.tag_hashes
    found = None if speedups.kernel is None else speedups.kernel.pack_entries(*columns)
    if found is not None:
        return found
    entries: dict[ConsumeQueue, list[bytes]] = {queue: [] for queue in batch.queues}
    ends: dict[ConsumeQueue, int] = {}
    for queue, log_offset, size, tag_hash in zip(*columns, strict=True):
        entries[queue].append(_pack(log_offset, size, tag_hash))
        ends[queue] = log_offset + size
    return [(queue, b"".join(packed), ends[queue]) for queue, packed in entries.items()]
