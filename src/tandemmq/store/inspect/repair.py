"""Rebuilds ConsumeQueues, key index and checkpoint of a stopped store from its CommitLog.

Invariants: no byte of the CommitLog is written, except in damaged ranges that the operator gives up. Those
            are copied aside, then sealed, so that every broker skips them. New files are complete and on disk
            before they replace the old ones, each directory in one step. A kill therefore leaves old or new
            files, which are both consistent with the log, and another run finishes.
Strategy:   one scan of the log feeds the broker's own tables, in directories beside the old ones, so the new
            files have the bytes that a broker's recovery writes. Results equal to the old files replace
            nothing.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from tandemmq.errors import StoreError
from tandemmq.protocol.record import RecordOutcome, check_record
from tandemmq.runtime.disk import remove_tree, replace, replacement_path, restore, sync_tree
from tandemmq.runtime.machine import LoopClock
from tandemmq.runtime.ports import Disk
from tandemmq.store.checkpoint import CheckpointTimes, decode_checkpoint, encode_checkpoint, queues_digest
from tandemmq.store.columns import TopicNumbers
from tandemmq.store.consume_queue import FILLER_SIZE, ConsumeQueue
from tandemmq.store.consume_queues import ConsumeQueues, OffsetVerifier
from tandemmq.store.damage import SEALED_BYTES_MIN, copy_aside, seal
from tandemmq.store.deletions import read_deletions
from tandemmq.store.dispatcher import BlockDispatch
from tandemmq.store.inspect.check import InspectOptions, Progress, no_progress, report_log_damage
from tandemmq.store.inspect.files import (
    ENTRIES_PER_READ,
    OffsetFile,
    QueueFiles,
    holds_files,
    is_expired,
    is_filler,
    list_offset_files,
    list_queues,
    map_file,
    require_store,
    usual_size,
)
from tandemmq.store.inspect.findings import Findings
from tandemmq.store.inspect.index_check import IndexLayout, guess_layout, list_index_files
from tandemmq.store.inspect.log_walk import LogWalk
from tandemmq.store.inspect.queue_check import Key
from tandemmq.store.key_index import made_at, new_name
from tandemmq.store.key_indexes import KeyIndexes
from tandemmq.store.options import QUEUE_OFFSET_MAX, QUEUE_UNIT_BYTES, StoreOptions, StorePaths
from tandemmq.store.record_maker import BLANK_BYTES
from tandemmq.store.segmented_log import OpenFiles
from tandemmq.units import MIB

QUEUE_FILE_BYTES = 6_000_000
"""The file length for a store without queue files: RocketMQ's default."""
INDEX_LAYOUT = IndexLayout(5_000_000, 20_000_000)
assert QUEUE_FILE_BYTES % QUEUE_UNIT_BYTES == 0
assert guess_layout(INDEX_LAYOUT.size_bytes) == INDEX_LAYOUT, "what is made here is known again"
NAMED_YEAR_MAX = 9000
"""The last year used in the name of an index file, so that names for the following files remain."""
_NAMED_MS = range(int(datetime(NAMED_YEAR_MAX, 1, 1, tzinfo=UTC).timestamp() * 1000))


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairOptions:
    """The options of a repair.

    `accepts_damage`: continue although records in the middle of the log are lost. `skips_damaged`: also
    overwrite damaged ranges with records that no reader sees, so that the log is whole again.

    `has_index` None: as the store has it now. `queue_file_bytes` None: as long as the files are now.
    """

    inspect: InspectOptions
    accepts_damage: bool = False
    skips_damaged: bool = False
    has_index: bool | None = None
    queue_file_bytes: int | None = None


@dataclass(slots=True, kw_only=True)
class RepairReport:
    """The result of a repair. `is_refused`: the log is damaged in its middle, so nothing was changed.

    The names of numbers and lists are keys of `store repair --json`, which are public.
    """

    findings: Findings
    is_refused: bool = False
    changes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    record_count: int = 0
    log_bytes: int = 0
    queue_count: int = 0
    key_count: int = 0


def repair_store(options: RepairOptions, disk: Disk, on_progress: Progress = no_progress) -> RepairReport:
    """Repairs a store; returns the changes, or the reason for making none.

    Raises:  StoreLocked when a broker runs on the store; StoreError when none exists or its form is unknown;
             OSError when the disk fails: the old files still exist then.
    """
    inspect = options.inspect
    require_store(inspect.root, inspect.log_dir)
    lock = disk.lock(inspect.root / "lock")
    try:
        return _Repair(options, disk, on_progress).run()
    finally:
        lock.release()


class _Repair:
    """One repair of one directory, whose lock is held."""

    def __init__(self, options: RepairOptions, disk: Disk, on_progress: Progress) -> None:
        self._options = options
        self._disk = disk
        self._on_progress = on_progress
        self._findings = Findings()
        self._report = RepairReport(findings=self._findings)
        paths = self._paths = StorePaths(StoreOptions(root=options.inspect.root))
        self._log = list_offset_files(options.inspect.log_dir)
        self._rebuilt = (paths.consume_queues, paths.key_indexes, paths.deletions.parent)
        for path in self._rebuilt:
            restore(path)
        self._queues = list_queues(paths.consume_queues)
        self._walk = LogWalk(
            self._log.files, topics=TopicNumbers(), findings=self._findings, on_progress=self._advance
        )
        self._done = 0
        self._sealed: list[tuple[int, int]] = []

    def run(self) -> RepairReport:
        self._require_known_form()
        if self._options.skips_damaged:
            self._seal_damage()
        new = _NewTables(self._queue_file_bytes(), self._index_layout(), self._paths, self._disk)
        try:
            asyncio.run(self._run(new))
        finally:
            new.close()
            for path in self._rebuilt:
                remove_tree(replacement_path(path))
        return self._report

    async def _run(self, new: _NewTables) -> None:
        await self._build(new)
        report_log_damage(self._walk, self._findings, has_abort=self._paths.abort.exists())
        if self._is_refused():
            self._report.is_refused = True
            return
        self._keep_offsets(new)
        self._on_progress("writing to disk", 0, 1)
        assert all(stop <= self._walk.intact_end for _, stop in self._sealed), self._sealed
        await new.finish(self._walk.intact_end)
        self._report.queue_count = len(new.queues)
        self._replace(has_index=new.indexes is not None)
        self._write_checkpoint(new.index_end_ms)

    # Before.

    def _require_known_form(self) -> None:
        if not self._log.files:
            raise StoreError(f"{self._log.directory} holds no log files: there is nothing to build from")
        for name in ("batchconsumequeue", "consumequeue_rocksdb"):
            path = self._options.inspect.root / name
            if holds_files(path):
                raise StoreError(f"{path}: this form of queues is only known to RocketMQ")

    def _queue_file_bytes(self) -> int:
        found = usual_size([file for queue in self._queues.values() for file in queue.all.files])
        size = self._options.queue_file_bytes or found
        if not size:
            size = QUEUE_FILE_BYTES
            warning = f"ConsumeQueue files are made {size} bytes long, since no file is left to show the size"
            self._report.warnings.append(warning)
        if size % QUEUE_UNIT_BYTES:
            raise StoreError(f"{self._paths.consume_queues}: files of {size} bytes do not hold whole entries")
        return size

    def _index_layout(self) -> IndexLayout | None:
        """Returns the layout of the index files to make; None if the store has no index."""
        old = list_index_files(self._paths.key_indexes)
        has_index = self._options.has_index
        if not (self._paths.key_indexes.is_dir() if has_index is None else has_index):
            return None
        layout = self._options.inspect.index_layout
        if layout is None:
            layout = guess_layout(old[0].stat().st_size) if old else INDEX_LAYOUT
        if layout is None:
            raise StoreError(
                f"{old[0]}: its numbers of slots and entries are not known; give the broker's file"
            )
        return layout

    # Sealing.

    def _seal_damage(self) -> None:
        """Seals every damaged range that was on disk once; a tail torn by a crash is left to the next start.

        Each range is on disk before the next; another run finishes the work of a killed one.
        """
        walk = LogWalk(
            self._log.files, topics=TopicNumbers(), findings=Findings(), on_progress=lambda _: None
        )
        for _ in walk.runs():
            pass
        checkpoint = self._paths.checkpoint
        mark = decode_checkpoint(checkpoint.read_bytes()) if checkpoint.is_file() else None
        durable_end = 0 if mark is None else mark.durable_log_offset or 0
        for damage in sorted(walk.damages, key=lambda damage: damage.log_offset):
            if damage.lost is not None:
                raise StoreError(f"{damage.reason}: bytes that are in no file cannot be skipped")
            end = damage.log_end
            if damage.is_tail:
                # No valid byte follows in its file, so one seal covers all of it up to the mark.
                is_sealed = bool(self._sealed) and damage.log_offset < self._sealed[-1][1]
                if is_sealed or damage.log_offset >= durable_end:
                    continue
                end = min(durable_end, damage.file.end)
            self._seal(damage.file, damage.log_offset, end)

    def _seal(self, log_file: OffsetFile, begin: int, end: int) -> None:
        size = end - begin
        reaches_end = end == log_file.end
        if size < (BLANK_BYTES if reaches_end else SEALED_BYTES_MIN):
            raise StoreError(f"{log_file.path}: no record fits into the {size} damaged bytes at {begin}")
        assert log_file.base <= begin <= end <= log_file.end, (log_file, begin, end)
        assert not self._sealed or self._sealed[-1][1] <= begin, (self._sealed[-1], begin, end)
        at = begin - log_file.base
        view = memoryview(map_file(log_file.path))
        copies = self._paths.damaged
        raw = bytes(view[at : at + size])
        assert len(raw) == size, (log_file, begin, size, len(raw))
        now_ms = int(log_file.path.stat().st_mtime * 1000)
        copy = copy_aside((raw,), begin, size, directory=copies, suffix="bad", disk=self._disk, now_ms=now_ms)
        stored_at_ms = _stored_around(view, at, at + size)
        sealed = seal(begin, size, reaches_file_end=reaches_end, stored_at_ms=stored_at_ms)
        assert len(sealed) == size, (begin, size)
        file = self._disk.open(log_file.path)
        try:
            file.pwrite(at, (sealed,))
            file.sync()
        finally:
            file.close()
        self._sealed.append((begin, end))
        self._report.changes.append(
            f"CommitLog: bytes {begin} to {end} are given up and sealed; they were copied to {copy}"
        )

    # Building.

    def _advance(self, size: int) -> None:
        assert size >= 0, (self._done, size)
        self._done += size
        self._on_progress("building from the CommitLog", self._done, sum(f.size for f in self._log.files))

    async def _build(self, new: _NewTables) -> None:
        walk, report = self._walk, self._report
        new.queues.verifier = OffsetVerifier(
            walk.begin,
            lambda begin, end: any(one.log_offset < end and begin < one.log_end for one in walk.damages),
        )
        new.queues.on_deleted = lambda topic: report.warnings.append(
            f"{topic}: a queue restarts after the topic was deleted"
        )
        blocks = BlockDispatch(
            queues=new.queues,
            keys=new.indexes,
            delays_ms=self._options.inspect.delays_ms,
            on_failed=_fail,
        )
        file = None
        for run in walk.runs():
            if file is not run.file and new.indexes is not None:
                await new.indexes.flush()  # full files then leave the memory
            file = run.file
            block = run.intact_block()
            blocks.put(block, 0, len(block))
        new.queues.settle_unverified()
        report.record_count = walk.record_count
        report.log_bytes = self._done
        assert self._done == sum(file.size for file in self._log.files), self._done
        report.key_count = new.key_count

    def _is_refused(self) -> bool:
        middle = [damage for damage in self._walk.damages if not damage.is_tail]
        last = next((f for f in reversed(self._log.files) if f.base < self._walk.intact_end), None)
        for damage in middle:
            if damage.file == last:
                self._report.warnings.append(
                    f"the damage at log offset {damage.log_offset} is in the last file: a broker that "
                    "starts here takes no messages until it is healed, or sealed by --skip-damaged"
                )
        return bool(middle) and not self._options.accepts_damage

    def _keep_offsets(self, new: _NewTables) -> None:
        """Keeps queues from assigning queue offsets again: those of expired records in queues without other
        records, and those of sealed records.

        For records sealed by an earlier repair the old entry is a filler.
        """
        begin = self._walk.begin
        sealed = self._sealed + self._walk.sealed
        count_max = sum(stop - start for start, stop in sealed) // SEALED_BYTES_MIN
        for key, old in self._queues.items():
            if new.queues.deletions.ends.get(key[0], 0) > begin:
                continue
            queue = new.queues.table.get(key)
            if queue is None or queue.max_offset == 0:
                for queue_offset, entry in _expired_entries(old, begin):
                    queue = new.queues.get_or_create(key)
                    queue.put_at(queue_offset, *entry)
            end = _sealed_end(old, sealed)
            if end:
                _extend(new.queues.get_or_create(key), end, count_max)

    # Replacing.

    def _replace(self, *, has_index: bool) -> None:
        queues, indexes = self._paths.consume_queues, self._paths.key_indexes
        changes = compare_queues(self._queues, list_queues(replacement_path(queues)), self._walk.begin)
        if changes:
            self._on_progress("replacing the ConsumeQueues", 0, 1)
            replace(replacement_path(queues), queues)
            self._report.changes += changes
        change = compare_indexes(indexes, replacement_path(indexes)) if has_index else ""
        if change:
            self._on_progress("replacing the key index", 0, 1)
            replace(replacement_path(indexes), indexes)
            self._report.changes.append(change)

    def _write_checkpoint(self, index_ms: int) -> None:
        """Writes the checkpoint, last, because it confirms the other files."""
        stored_at_ms = self._walk.stored_at_ms
        checkpoint = self._paths.checkpoint
        is_there = checkpoint.is_file()
        queues = list_queues(self._paths.consume_queues)
        data = encode_checkpoint(
            CheckpointTimes(
                log_stored_at_ms=stored_at_ms,
                queues_stored_at_ms=stored_at_ms,
                index_stored_at_ms=index_ms,
                confirmed_log_offset=max(0, self._walk.last_record_at),
                durable_log_offset=self._walk.intact_end,
                queues_digest=queues_digest(
                    (*key, queue.first, queue.end, queue.end_log_offset) for key, queue in queues.items()
                ),
            )
        )
        if is_there and checkpoint.read_bytes() == data:
            return
        self._on_progress("replacing the checkpoint", 0, 1)
        self._disk.write_atomically(checkpoint, data)
        self._report.changes.append("checkpoint: " + ("set to the end of the log" if is_there else "made"))


class _NewTables:
    """The new ConsumeQueues and key index, beside the old ones. `layout` None: without an index.

    A deletion of a topic that the log reveals is recorded beside the old files, too, and removed at the end.
    """

    def __init__(
        self, queue_file_bytes: int, layout: IndexLayout | None, old: StorePaths, disk: Disk
    ) -> None:
        counts = INDEX_LAYOUT if layout is None else layout
        options = StoreOptions(
            root=old.root,
            consume_queue_file_bytes=queue_file_bytes,
            key_index_slot_count=counts.slot_count,
            key_index_entry_count=counts.entry_count,
        )
        paths = StorePaths(options)
        paths.consume_queues = replacement_path(old.consume_queues)
        paths.key_indexes = replacement_path(old.key_indexes)
        paths.deletions = replacement_path(old.deletions.parent) / old.deletions.name
        self._disk = disk
        self._paths = paths
        self._files = OpenFiles(disk, options.open_file_count_max)
        self.queues = ConsumeQueues(options, paths, disk, self._files)
        self.queues.deletions.ends = read_deletions(old.deletions, disk)
        disk.make_dirs(paths.deletions.parent)
        self.indexes: KeyIndexes | None = None
        if layout is not None:
            self.indexes = KeyIndexes(options, paths, disk=disk, clock=LoopClock())
            self.indexes.make_name = self._index_name
        made = [(path.name, made_at(path.name)) for path in list_index_files(old.key_indexes)]
        self._index_names = [name for name, at in made if at is not None and at.year <= NAMED_YEAR_MAX]

    def _index_name(self, stored_at_ms: int) -> str:
        """Returns the name of the next index file: the old ones as far as they rise, then names by the store
        time of the file's first record.
        """
        newest = self.indexes.files[-1].path.name if self.indexes and self.indexes.files else ""
        if self._index_names:
            name = self._index_names.pop(0)
            if name > newest:
                return name
        # No checksum covers the store time: an invalid date counts as the earliest one.
        return new_name(stored_at_ms if stored_at_ms in _NAMED_MS else 0, [newest])

    @property
    def key_count(self) -> int:
        """The number of indexed keys."""
        return sum(index.header.next_entry - 1 for index in self.indexes.files) if self.indexes else 0

    @property
    def index_end_ms(self) -> int:
        """The store time of the newest indexed record; 0 without one."""
        return self.indexes.files[-1].header.end_ms if self.indexes and self.indexes.files else 0

    async def finish(self, log_end: int) -> None:
        """Drops entries of records beyond the end of the log, then writes and syncs everything.

        Raises:  OSError.
        """
        for queue in self.queues:
            queue.write()
        self.queues.truncate(log_end)
        for queue in self.queues:
            for segment in queue.unsynced_segments()[0]:
                segment.file.sync()
        if self.indexes is not None:
            self.indexes.cut(log_end)
            if not await self.indexes.flush():
                raise OSError(errno.ENOSPC, "no room for the key index", str(self._paths.key_indexes))
        for directory in (self._paths.consume_queues, self._paths.key_indexes):
            self._disk.make_dirs(directory)
            sync_tree(directory)

    def close(self) -> None:
        """Closes the handles, finished or not."""
        self._files.close()
        if self.indexes is not None:
            self.indexes.close()


def _fail(_queue: ConsumeQueue, error: OSError) -> None:
    raise error


def _expired_entries(old: QueueFiles, log_begin: int) -> Iterator[tuple[int, tuple[int, int, int]]]:
    """Yields queue offset and entry of each expired record."""
    for first, entries in old.blocks(old.first, old.end):
        for row in np.flatnonzero(is_expired(entries, log_begin)).tolist():
            yield first + row, entries[row].item()


def _sealed_end(old: QueueFiles, sealed: list[tuple[int, int]]) -> int:
    """Returns the queue offset after the last entry of a sealed record; 0 without one."""
    end = 0
    for first, entries in old.blocks(old.first, old.end) if sealed else ():
        offsets = entries["log_offset"].astype(np.int64)
        is_sealed = is_filler(entries)
        for begin, stop in sealed:
            is_sealed |= (begin <= offsets) & (offsets < stop)
        if is_sealed.any():
            end = first + int(np.flatnonzero(is_sealed)[-1]) + 1
    assert 0 <= end <= old.end, (old.key, end, old.end)
    return end


def _extend(queue: ConsumeQueue, end: int, count_max: int) -> None:
    """Extends the queue to `end` with fillers.

    Nothing is done if more than `count_max` fillers would be needed, since the queue never had that many
    messages.
    """
    if end > QUEUE_OFFSET_MAX or (queue.max_offset and end - queue.max_offset > count_max):
        return
    if queue.max_offset == 0:
        queue.put_at(end - 1, 0, FILLER_SIZE, 0)
    while queue.max_offset < end:
        queue.put(0, FILLER_SIZE, 0)


def _stored_around(view: memoryview, at: int, end: int) -> int:
    """Returns the store time of the record before `at` of a file, or of the one at `end`: times rise."""
    assert 0 <= at <= end <= len(view), (at, end, len(view))
    position = stored_at_ms = 0
    while position < at:
        record = check_record(view, position, check_crc=False)
        if record.outcome is not RecordOutcome.OK:
            break
        stored_at_ms = record.stored_at_ms
        position += record.size
    return stored_at_ms or check_record(view, end, check_crc=False).stored_at_ms


def compare_queues(old: Mapping[Key, QueueFiles], new: Mapping[Key, QueueFiles], log_begin: int) -> list[str]:
    """Returns one line per queue that differs; empty if the old queues may stay."""
    lines = []
    for key in sorted(old.keys() | new.keys()):
        name = f"{key[0]}/{key[1]}"
        if key not in new:
            if old[key].end > old[key].first:
                lines.append(f"{name}: dropped, none of its {old[key].end - old[key].first} entries is true")
        elif key not in old:
            lines.append(f"{name}: made, {new[key].end} entries")
        else:
            change = _compare_queue(old[key], new[key], log_begin)
            if change:
                lines.append(f"{name}: {change}")
    return lines


def _compare_queue(old: QueueFiles, new: QueueFiles, log_begin: int) -> str:
    changed = 0
    common = min(old.end, new.end)
    for first in range(new.first, common, ENTRIES_PER_READ):
        count = min(ENTRIES_PER_READ, common - first)
        before, after = old.read(first, count), new.read(first, count)
        # Where the new queue has fillers, old entries may still name expired records.
        changed += int(((before != after) & ~(is_filler(after) & is_expired(before, log_begin))).sum())
    assert 0 <= changed <= max(0, common - new.first), (old.key, changed, common, new.first)
    parts = []
    if changed:
        parts.append(f"{changed} entries corrected")
    if new.end > old.end:
        parts.append(f"{new.end - old.end} entries added")
    if new.end < old.end:
        parts.append(f"{old.end - new.end} entries dropped")
    if not parts and {f.size for f in old.all.files} != {f.size for f in new.all.files}:
        parts.append("files of other lengths")
    return ", ".join(parts)


def compare_indexes(old: Path, new: Path) -> str:
    """Returns the difference of the key index; empty if the files are equal."""
    olds, news = list_index_files(old), list_index_files(new)
    if len(olds) == len(news) and all(map(_is_equal, olds, news)):
        return ""
    return f"key index: {len(news)} files made, there were {len(olds)}"


def _is_equal(one: Path, other: Path) -> bool:
    if one.name != other.name or one.stat().st_size != other.stat().st_size:
        return False
    with open(one, "rb") as first, open(other, "rb") as second:
        while block := first.read(MIB):
            if block != second.read(MIB):
                return False
    return True
