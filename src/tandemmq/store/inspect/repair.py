"""Rebuilds ConsumeQueues, key index and checkpoint of a stopped store from its CommitLog.

Invariants: no byte of the CommitLog is written, except in damaged ranges that the operator gives up. Those
            are copied aside, then sealed, so that every broker skips them. New files are complete and on disk
            before they replace the old ones, each directory in one step. A kill therefore leaves old or new
            files, which are both consistent with the log, and another run finishes.
Strategy:   one scan of the log feeds the builders; results equal to the old files replace nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tandemmq.errors import StoreError
from tandemmq.protocol.record import RecordOutcome, check_record
from tandemmq.runtime.disk import remove_tree, replace, replacement_path, restore, sync_tree
from tandemmq.runtime.ports import Disk
from tandemmq.store.checkpoint import CheckpointTimes, decode_checkpoint, encode_checkpoint, queues_digest
from tandemmq.store.columns import TopicNumbers
from tandemmq.store.damage import SEALED_BYTES_MIN, copy_aside, seal
from tandemmq.store.deletions import read_deletions
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
from tandemmq.store.inspect.queue_check import EntryReader, Key
from tandemmq.store.inspect.rebuild import IndexBuilder, QueueBuilder
from tandemmq.store.options import QUEUE_UNIT_BYTES, StoreOptions, StorePaths, deletions_path
from tandemmq.store.record_maker import BLANK_BYTES
from tandemmq.units import MIB

QUEUE_FILE_BYTES = 6_000_000
"""The file length for a store without queue files: RocketMQ's default."""
INDEX_LAYOUT = IndexLayout(5_000_000, 20_000_000)
assert QUEUE_FILE_BYTES % QUEUE_UNIT_BYTES == 0
assert guess_layout(INDEX_LAYOUT.size_bytes) == INDEX_LAYOUT, "what is made here is known again"


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
    """The result of a repair. `is_refused`: the log is damaged in its middle, so nothing was changed."""

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
        root = options.inspect.root
        self._queue_dir = root / "consumequeue"
        self._index_dir = root / "index"
        self._checkpoint = root / "checkpoint"
        self._log = list_offset_files(options.inspect.log_dir)
        for path in (self._queue_dir, self._index_dir):
            restore(path)
        self._queues = list_queues(self._queue_dir)
        self._deleted = read_deletions(deletions_path(root), disk)
        self._topics = TopicNumbers()
        self._walk = LogWalk(
            self._log.files, topics=self._topics, findings=self._findings, on_progress=self._advance
        )
        self._done = 0
        self._sealed: list[tuple[int, int]] = []

    def run(self) -> RepairReport:
        self._require_known_form()
        if self._options.skips_damaged:
            self._seal_damage()
        with self._beside():
            queues = QueueBuilder(replacement_path(self._queue_dir), self._queue_file_bytes(), self._disk)
            index = self._index_builder()
            try:
                self._run(queues, index)
            finally:
                queues.close()
                if index is not None:
                    index.close()
        return self._report

    def _run(self, queues: QueueBuilder, index: IndexBuilder | None) -> None:
        self._build(queues, index)
        has_abort = (self._options.inspect.root / "abort").exists()
        report_log_damage(self._walk, self._findings, has_abort=has_abort)
        if self._is_refused():
            self._report.is_refused = True
            return
        self._keep_empty(queues)
        self._keep_numbers(queues)
        index_ms = self._finish(queues, index)
        self._report.queue_count = len(queues.queues)
        self._replace(has_index=index is not None)
        self._write_checkpoint(index_ms)

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
            raise StoreError(f"{self._queue_dir}: files of {size} bytes do not hold whole entries")
        return size

    def _index_builder(self) -> IndexBuilder | None:
        old = list_index_files(self._index_dir)
        has_index = self._options.has_index
        if not (self._index_dir.is_dir() if has_index is None else has_index):
            return None
        layout = self._options.inspect.index_layout
        if layout is None:
            layout = guess_layout(old[0].stat().st_size) if old else INDEX_LAYOUT
        if layout is None:
            raise StoreError(
                f"{old[0]}: its numbers of slots and entries are not known; give the broker's file"
            )
        return IndexBuilder(replacement_path(self._index_dir), layout, old, self._disk)

    @contextmanager
    def _beside(self) -> Iterator[None]:
        """Removes the working directories beside the old files at the end."""
        try:
            yield
        finally:
            for path in (self._queue_dir, self._index_dir):
                remove_tree(replacement_path(path))

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
        mark = decode_checkpoint(self._checkpoint.read_bytes()) if self._checkpoint.is_file() else None
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
        copies = StorePaths(StoreOptions(root=self._options.inspect.root)).damaged
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

    def _keep_numbers(self, queues: QueueBuilder) -> None:
        """Keeps queues from reusing the offsets of sealed messages.

        For messages sealed by an earlier repair the old entry is a filler.
        """
        sealed = self._sealed + self._walk.sealed
        count_max = sum(stop - begin for begin, stop in sealed) // SEALED_BYTES_MIN
        for key, old in self._queues.items() if sealed else ():
            end = 0
            for first, entries in old.blocks(old.first, old.end):
                offsets = entries["log_offset"].astype(np.int64)
                is_sealed = is_filler(entries)
                for begin, stop in sealed:
                    is_sealed |= (begin <= offsets) & (offsets < stop)
                if is_sealed.any():
                    end = first + int(np.flatnonzero(is_sealed)[-1]) + 1
            assert 0 <= end <= old.end, (key, end, old.end)
            if end and self._deleted.get(key[0], 0) <= self._walk.begin:
                queues.fill(key, end, count_max)

    # Building.

    def _advance(self, size: int) -> None:
        assert size >= 0, (self._done, size)
        self._done += size
        self._on_progress("building from the CommitLog", self._done, sum(f.size for f in self._log.files))

    def _build(self, queues: QueueBuilder, index: IndexBuilder | None) -> None:
        entries = EntryReader(self._topics.names, self._options.inspect.delays_ms, deleted=self._deleted)
        for run in self._walk.runs():
            for rows in entries.read(run):
                queues.add(rows)
            if index is not None:
                index.add(run, self._topics.names)
        self._report.record_count = self._walk.record_count
        self._report.log_bytes = self._done
        assert self._done == sum(file.size for file in self._log.files), self._done
        self._report.key_count = 0 if index is None else index.key_count
        for topic, queue_id in queues.restarted:
            self._report.warnings.append(f"{topic}/{queue_id}: restarts after its topic was deleted")

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

    def _keep_empty(self, queues: QueueBuilder) -> None:
        for key, old in self._queues.items():
            is_deleted = self._deleted.get(key[0], 0) > self._walk.begin
            if key not in queues.queues.table and not is_deleted:
                queues.keep(old, self._walk.begin)

    def _finish(self, queues: QueueBuilder, index: IndexBuilder | None) -> int:
        self._on_progress("writing to disk", 0, 1)
        end = self._walk.intact_end
        assert all(stop <= end for _, stop in self._sealed), (self._sealed, end)
        queues.finish(end)
        self._disk.make_dirs(replacement_path(self._queue_dir))
        sync_tree(replacement_path(self._queue_dir))
        if index is None:
            return 0
        index_ms = index.finish(end)
        self._disk.make_dirs(replacement_path(self._index_dir))
        sync_tree(replacement_path(self._index_dir))
        return index_ms

    # Replacing.

    def _replace(self, *, has_index: bool) -> None:
        new = replacement_path(self._queue_dir)
        changes = compare_queues(self._queues, list_queues(new), self._walk.begin)
        if changes:
            self._on_progress("replacing the ConsumeQueues", 0, 1)
            replace(new, self._queue_dir)
            self._report.changes += changes
        if has_index:
            change = compare_indexes(self._index_dir, replacement_path(self._index_dir))
            if change:
                self._on_progress("replacing the key index", 0, 1)
                replace(replacement_path(self._index_dir), self._index_dir)
                self._report.changes.append(change)

    def _write_checkpoint(self, index_ms: int) -> None:
        """Writes the checkpoint, last, because it confirms the other files."""
        stored_at_ms = self._walk.stored_at_ms
        is_there = self._checkpoint.is_file()
        queues = list_queues(self._queue_dir)
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
        if is_there and self._checkpoint.read_bytes() == data:
            return
        self._on_progress("replacing the checkpoint", 0, 1)
        self._disk.write_atomically(self._checkpoint, data)
        self._report.changes.append("checkpoint: " + ("set to the end of the log" if is_there else "made"))


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
