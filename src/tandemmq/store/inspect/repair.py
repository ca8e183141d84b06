"""Builds ConsumeQueues, key index and checkpoint of a stopped store anew from its CommitLog.

Invariants: no byte of the CommitLog is written. New files are complete and on disk before they take the place
            of the old ones, each directory in one step; so a kill leaves old or new files, which the log both
            explains, and another run finishes.
Strategy:   one walk over the log feeds the builders; what turns out equal to the old files is not replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tandemmq.errors import StoreError
from tandemmq.runtime.exchange import beside, remove_tree, replace, restore, sync_tree
from tandemmq.runtime.ports import Disk
from tandemmq.store.checkpoint import CheckpointTimes, encode_checkpoint
from tandemmq.store.deletions import read_deletions
from tandemmq.store.inspect.changes import compare_indexes, compare_queues
from tandemmq.store.inspect.check import InspectOptions, Progress, no_progress, report_log_damage
from tandemmq.store.inspect.entries import EntryReader
from tandemmq.store.inspect.files import holds_files, list_offset_files, require_store, usual_size
from tandemmq.store.inspect.findings import Findings
from tandemmq.store.inspect.index_check import IndexLayout, guess_layout, list_index_files
from tandemmq.store.inspect.log_walk import LogWalk
from tandemmq.store.inspect.queue_files import list_queues
from tandemmq.store.inspect.rebuild import IndexBuilder, QueueBuilder
from tandemmq.store.options import QUEUE_UNIT_BYTES
from tandemmq.store.paths import deletions_path
from tandemmq.store.topic_numbers import TopicNumbers

QUEUE_FILE_BYTES = 6_000_000
"""RocketMQ's default, for a store that has no queue file left to tell."""
INDEX_LAYOUT = IndexLayout(5_000_000, 20_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairOptions:
    """`accepts_damage`: go on although records in the middle of the log are lost.

    `has_index` None: as the store has it now. `queue_file_bytes` None: as long as the files are now.
    """

    inspect: InspectOptions
    accepts_damage: bool = False
    has_index: bool | None = None
    queue_file_bytes: int | None = None


@dataclass(slots=True, kw_only=True)
class RepairReport:
    """`is_refused`: the log is damaged in its middle, so nothing was changed."""

    findings: Findings
    is_refused: bool = False
    changes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    record_count: int = 0
    log_bytes: int = 0
    queue_count: int = 0
    key_count: int = 0


def repair_store(options: RepairOptions, disk: Disk, on_progress: Progress = no_progress) -> RepairReport:
    """What was changed, or why nothing was.

    Raises:  StoreLocked when a broker runs on the store; StoreError when there is none or its form is not
             known; OSError when the disk does not let us: the old files are still there then.
    """
    inspect = options.inspect
    require_store(inspect.root, inspect.log_dir)
    lock = disk.lock(inspect.root / "lock")
    try:
        return _Repair(options, disk, on_progress).run()
    finally:
        lock.release()


class _Repair:
    """One repair of one directory whose lock we hold."""

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

    def run(self) -> RepairReport:
        self._require_known_form()
        with self._beside():
            queues = QueueBuilder(beside(self._queue_dir), self._queue_file_bytes(), self._disk)
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
            warning = f"ConsumeQueue files are made {size} bytes long, because none is left to tell"
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
        return IndexBuilder(beside(self._index_dir), layout, old, self._disk)

    @contextmanager
    def _beside(self) -> Iterator[None]:
        """Leave nothing beside the old files."""
        try:
            yield
        finally:
            for path in (self._queue_dir, self._index_dir):
                remove_tree(beside(path))

    # Building.

    def _advance(self, size: int) -> None:
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
        self._report.key_count = 0 if index is None else index.key_count
        for topic, queue_id in queues.restarted:
            self._report.warnings.append(f"{topic}/{queue_id}: begins anew after its topic was deleted")

    def _is_refused(self) -> bool:
        middle = [damage for damage in self._walk.damages if not damage.is_tail]
        last = next((f for f in reversed(self._log.files) if f.base < self._walk.intact_end), None)
        for damage in middle:
            if damage.file == last:
                self._report.warnings.append(
                    f"the damage at log offset {damage.log_offset} lies in the last file: a broker that "
                    "starts here ends the log in front of it, and what follows is lost"
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
        queues.finish(end)
        self._disk.make_dirs(beside(self._queue_dir))
        sync_tree(beside(self._queue_dir))
        if index is None:
            return 0
        index_ms = index.finish(end)
        self._disk.make_dirs(beside(self._index_dir))
        sync_tree(beside(self._index_dir))
        return index_ms

    # Replacing.

    def _replace(self, *, has_index: bool) -> None:
        new = beside(self._queue_dir)
        changes = compare_queues(self._queues, list_queues(new), self._walk.begin)
        if changes:
            self._on_progress("replacing the ConsumeQueues", 0, 1)
            replace(new, self._queue_dir)
            self._report.changes += changes
        if has_index:
            change = compare_indexes(self._index_dir, beside(self._index_dir))
            if change:
                self._on_progress("replacing the key index", 0, 1)
                replace(beside(self._index_dir), self._index_dir)
                self._report.changes.append(change)

    def _write_checkpoint(self, index_ms: int) -> None:
        """Last, because it vouches for the others."""
        stored_at_ms = self._walk.stored_at_ms
        data = encode_checkpoint(
            CheckpointTimes(
                log_stored_at_ms=stored_at_ms,
                queues_stored_at_ms=stored_at_ms,
                index_stored_at_ms=index_ms,
                confirmed_log_offset=max(0, self._walk.last_record_at),
                durable_log_offset=self._walk.intact_end,
            )
        )
        is_there = self._checkpoint.is_file()
        if is_there and self._checkpoint.read_bytes() == data:
            return
        self._on_progress("replacing the checkpoint", 0, 1)
        self._disk.write_atomically(self._checkpoint, data)
        self._report.changes.append("checkpoint: " + ("set to the end of the log" if is_there else "made"))
