"""Checks a whole store directory without changing it (`check_store`), and its small files one by one:
checkpoint, abort, the JSON files under `config`.

Strategy: the log is scanned once, and the ConsumeQueues are compared with it on the way. Key index,
          checkpoint and config are judged afterwards, when the end of the log is known.
Source:   spec store 1, 10, 18.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any

from tandemmq.errors import RemoteProtocolError
from tandemmq.protocol.loose_json import parse
from tandemmq.protocol.topic_names import DELAY_LEVELS_MS
from tandemmq.store.checkpoint import CHECKPOINT_BYTES
from tandemmq.store.columns import TopicNumbers
from tandemmq.store.inspect.files import (
    OffsetFiles,
    QueueFiles,
    holds_files,
    list_offset_files,
    list_queues,
    require_store,
    shared_lock,
    usual_size,
)
from tandemmq.store.inspect.findings import Findings, StorePart
from tandemmq.store.inspect.index_check import (
    IndexCheck,
    IndexLayout,
    KeyHashes,
    guess_layout,
    list_index_files,
)
from tandemmq.store.inspect.log_walk import LogWalk
from tandemmq.store.inspect.queue_check import INNER_BATCH, Key, QueueCheck, rows_of
from tandemmq.store.key_index import ENTRY_BYTES, HEADER
from tandemmq.store.options import QUEUE_UNIT_BYTES, parse_queue_id
from tandemmq.units import MIB

CONFIG_BYTES_MAX = 256 * MIB
INDEX_SLACK_MS = 999
"""The tolerance for a key index that was cut: it stores the time of its end in whole seconds."""
_CHECKPOINT = Struct(">qqqqq")
assert _CHECKPOINT.size <= CHECKPOINT_BYTES
_TIMES = ("physicMsgTimestamp", "logicsMsgTimestamp", "indexMsgTimestamp")

Progress = Callable[[str, int, int], None]
"""Called with the name of the part being read, its bytes done, and its total bytes."""


def no_progress(_what: str, _done: int, _total: int) -> None:
    """Ignores the progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectOptions:
    """Facts that the files do not contain. `index_layout` None: guessed from the files' length."""

    root: Path
    commit_log_dir: Path | None = None
    check_crc: bool = True
    delays_ms: tuple[int, ...] = DELAY_LEVELS_MS
    index_layout: IndexLayout | None = None

    @property
    def log_dir(self) -> Path:
        return self.commit_log_dir or self.root / "commitlog"


@dataclass(slots=True, kw_only=True)
class StoreReport:
    """The inspected amounts, and the findings."""

    findings: Findings
    log_files: int = 0
    log_bytes: int = 0
    log_begin: int = 0
    log_end: int = 0
    record_count: int = 0
    queue_count: int = 0
    entry_count: int = 0
    index_files: int = 0
    index_entries: int = 0

    @property
    def is_clean(self) -> bool:
        return not self.findings.damage_count


def check_store(options: InspectOptions, on_progress: Progress = no_progress) -> StoreReport:
    """Returns everything that is wrong with the store.

    Raises:  StoreLocked when a broker runs on it; StoreError when no store exists; OSError for a file that
             cannot be read.
    """
    require_store(options.root, options.log_dir)
    with shared_lock(options.root / "lock"):
        return _Check(options, on_progress).run()


class _Check:
    """One check of one directory."""

    def __init__(self, options: InspectOptions, on_progress: Progress) -> None:
        self._options = options
        self._on_progress = on_progress
        self._findings = Findings()
        self._report = StoreReport(findings=self._findings)
        self._log: OffsetFiles = list_offset_files(options.log_dir)
        self._deleted: dict[str, int] = {}

    def run(self) -> StoreReport:
        root, findings = self._options.root, self._findings
        has_abort = check_abort(root / "abort", findings)
        config = check_config(root / "config", findings)
        self._deleted = deleted_topics(config)
        self._check_names()
        queues = list_queues(root / "consumequeue")
        self._check_queue_files(queues)
        queue_check = QueueCheck(
            queues,
            root / "consumequeue",
            findings,
            has_abort=has_abort,
            known_topics=known_topics(config),
        )
        walk = self._walk(queue_check)
        keys = KeyHashes(self._log)
        queue_check.finish(walk, keys.record_at)
        report_log_damage(walk, findings, has_abort=has_abort)
        self._check_index(walk, keys, has_abort=has_abort)
        check_checkpoint(root / "checkpoint", walk, findings)
        check_consumer_offsets(root / "config", config, queue_check.ends(), findings)
        self._report_unchecked()
        self._report.queue_count = len(queue_check.ends())
        self._report.entry_count = queue_check.entry_count
        assert self._report.entry_count <= self._report.record_count, "no record has two entries"
        return self._report

    def _walk(self, queue_check: QueueCheck) -> LogWalk:
        topics = TopicNumbers()
        total = sum(file.size for file in self._log.files)
        done = 0

        def advance(size: int) -> None:
            nonlocal done
            done += size
            self._on_progress("CommitLog", done, total)

        walk = LogWalk(
            self._log.files,
            topics=topics,
            findings=self._findings,
            check_crc=self._options.check_crc,
            on_progress=advance,
        )
        inner_batch_count = 0
        for run in walk.runs():
            inner_batch_count += int((run.block.columns.sys_flag & INNER_BATCH != 0).sum())
            for rows in rows_of(run, self._options.delays_ms, deleted=self._deleted):
                queue_check.check(rows)
        assert done == total, (done, total)
        if inner_batch_count:
            reason = f"not checked: {inner_batch_count} records have entries in batchconsumequeue"
            self._findings.note(StorePart.QUEUE, self._options.root / "batchconsumequeue", reason)
        report = self._report
        report.log_files, report.log_bytes = len(self._log.files), total
        report.log_begin, report.log_end = walk.begin, walk.intact_end
        report.record_count = walk.record_count
        return walk

    def _check_names(self) -> None:
        size = usual_size(self._log.files)
        for path in self._log.foreign_files:
            self._findings.note(
                StorePart.LOG, path, "the name is not an offset; RocketMQ does not start with it"
            )
        for index, file in enumerate(self._log.files):
            if file.size != size:
                is_unused = file.size == 0 and index == len(self._log.files) - 1
                reason = f"the file must have {size} bytes, it has {file.size}"
                self._findings.report(
                    StorePart.LOG, file.path, reason, is_expected=is_unused, offset=file.size
                )
            elif size and file.base % size:
                reason = f"the file name is not a multiple of the file size {size}"
                self._findings.damage(StorePart.LOG, file.path, reason)
        if not self._log.files:
            self._findings.note(StorePart.LOG, self._log.directory, "there are no log files")

    def _check_queue_files(self, queues: dict[Key, QueueFiles]) -> None:
        size = usual_size([file for queue in queues.values() for file in queue.all.files])
        for queue in queues.values():
            facts = {"topic": queue.key[0], "queue_id": queue.key[1]}
            end = -1
            for file in queue.all.files:
                if file.size != size or size % QUEUE_UNIT_BYTES:
                    reason = f"the file must have {size} bytes, it has {file.size}"
                    self._findings.damage(StorePart.QUEUE, file.path, reason, offset=file.size, **facts)
                elif end not in (-1, file.base):
                    reason = "the file does not follow the one before it"
                    self._findings.damage(StorePart.QUEUE, file.path, reason, **facts)
                end = file.base + size

    def _check_index(self, walk: LogWalk, keys: KeyHashes, *, has_abort: bool) -> None:
        paths = list_index_files(self._options.root / "index")
        if not paths:
            return
        layout = self._options.index_layout or guess_layout(paths[0].stat().st_size)
        if layout is None:
            reason = "not checked: pass the numbers of slots and entries for a file of this length"
            self._findings.note(StorePart.INDEX, paths[0], reason)
            return
        check = IndexCheck(layout, keys, walk, self._findings)
        total = sum(_index_bytes(path) for path in paths)
        done = 0

        def advance(size: int) -> None:
            nonlocal done
            done += size
            self._on_progress("key index", done, total)

        for path in paths:
            check.check(path, is_expected=has_abort and path == paths[-1], on_progress=advance)
        assert done == check.entry_count * ENTRY_BYTES, (done, check.entry_count)
        self._report.index_files, self._report.index_entries = len(paths), check.entry_count

    def _report_unchecked(self) -> None:
        for name in ("batchconsumequeue", "consumequeue_ext", "timerlog", "compaction"):
            path = self._options.root / name
            if holds_files(path):
                self._findings.note(StorePart.QUEUE, path, "not checked: only RocketMQ writes these files")


def _index_bytes(path: Path) -> int:
    with open(path, "rb") as file:
        header = file.read(HEADER.size)
    return ENTRY_BYTES * max(0, HEADER.unpack(header)[5] - 1) if len(header) == HEADER.size else 0


def report_log_damage(walk: LogWalk, findings: Findings, *, has_abort: bool) -> None:
    """Reports the damaged ranges of the log as findings.

    A crash leaves an unfinished record at the end, which the next start cuts. A whole record with a wrong
    checksum is damage all the same.
    """
    for damage in walk.damages:
        assert 0 <= damage.begin <= damage.end, damage
        is_expected = damage.is_tail and not damage.is_whole and (has_abort or damage.is_stale)
        reason = damage.reason
        if damage.is_tail and damage.lost is None:
            reason += "; nothing intact follows, so the next start of a broker ends the log here"
        findings.report(
            StorePart.LOG,
            damage.file.path,
            reason,
            is_expected=is_expected,
            offset=damage.begin,
            size_bytes=damage.end - damage.begin,
            log_offset=damage.log_offset,
            topic=damage.topic,
            queue_id=damage.queue_id,
            queue_offset=damage.queue_offset,
        )


def check_checkpoint(path: Path, walk: LogWalk, findings: Findings) -> None:
    """Checks that a checkpoint claims no more than the log has; it selects where recovery begins to read."""
    if not path.is_file():
        findings.note(StorePart.CHECKPOINT, path, "there is none: a start after a crash reads the whole log")
        return
    data = path.read_bytes()
    if len(data) != CHECKPOINT_BYTES:
        reason = f"the file must have {CHECKPOINT_BYTES} bytes, it has {len(data)}"
        findings.damage(StorePart.CHECKPOINT, path, reason, size_bytes=len(data))
        return
    *times, _, confirmed = _CHECKPOINT.unpack_from(data)
    for index, (name, time_ms) in enumerate(zip(_TIMES, times, strict=True)):
        slack_ms = INDEX_SLACK_MS if name == "indexMsgTimestamp" else 0
        if not 0 <= time_ms <= walk.stored_at_ms + slack_ms:
            reason = f"{name} is {time_ms}, but the newest record was stored at {walk.stored_at_ms}"
            findings.damage(StorePart.CHECKPOINT, path, reason, offset=8 * index, size_bytes=8)
    if not 0 <= confirmed <= walk.intact_end:
        reason = f"confirmPhyOffset is {confirmed}, but the log ends at {walk.intact_end}"
        findings.damage(StorePart.CHECKPOINT, path, reason, offset=32, size_bytes=8)


def check_abort(path: Path, findings: Findings) -> bool:
    """Returns True if the last run did not end cleanly."""
    if not path.exists():
        return False
    text = path.read_bytes()[:64].decode("latin-1").strip()
    process_id = text.partition(" ")[0]
    owner = f"process {process_id}" if process_id.isdigit() else "an unknown process"
    findings.note(
        StorePart.MARKS, path, f"the store was not closed (by {owner}): the next start will recover it"
    )
    return True


def check_config(directory: Path, findings: Findings) -> dict[str, Any]:
    """Returns the readable JSON files by name; an unreadable one is damage unless it is only a `.bak`."""
    values: dict[str, Any] = {}
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        if not path.is_file() or path.name == "timercheck" or path.name.endswith((".tmp", ".properties")):
            continue
        if not path.name.removesuffix(".bak").endswith((".json", "metrics", "Metrics")):
            continue
        value = _read_json(path, findings)
        if isinstance(value, dict):
            values[path.name] = value
    return values


def _read_json(path: Path, findings: Findings) -> Any:
    is_backup = path.name.endswith(".bak")
    size = path.stat().st_size
    if size > CONFIG_BYTES_MAX:
        findings.note(StorePart.CONFIG, path, f"not read: it has {size} bytes")
        return None
    data = path.read_bytes()
    try:
        value = parse(data) if data.strip(b" \t\r\n\0") else None
    except RemoteProtocolError as error:
        findings.report(StorePart.CONFIG, path, f"is not JSON: {error}", is_expected=is_backup)
        return None
    if isinstance(value, dict):
        return value
    reason = "is empty" if value is None else "is not a JSON object"
    # RocketMQ leaves an empty file for an empty table; brokers then read the backup.
    findings.report(StorePart.CONFIG, path, reason, is_expected=is_backup or value is None)
    return None


def known_topics(config: Mapping[str, Any]) -> frozenset[str] | None:
    """Returns the topics in `topics.json`; None if it cannot be read."""
    table = config.get("topics.json", config.get("topics.json.bak", {})).get("topicConfigTable")
    return frozenset(table) if isinstance(table, dict) else None


def deleted_topics(config: Mapping[str, Any]) -> dict[str, int]:
    """Returns topic -> log offset below which its records are deleted, by `deletedTopics.json`."""
    table = config.get("deletedTopics.json", {}).get("deletedTopicTable")
    items = table.items() if isinstance(table, dict) else ()
    return {topic: end for topic, end in items if isinstance(end, int)}


def check_consumer_offsets(
    directory: Path, config: Mapping[str, Any], ends: Mapping[tuple[str, int], int], findings: Findings
) -> None:
    """Notes each group whose committed offset is beyond the end of the queue."""
    path = directory / "consumerOffset.json"
    table = config.get(path.name, {}).get("offsetTable", {})
    for key, offsets in table.items() if isinstance(table, dict) else ():
        topic, _, group = key.partition("@")
        for queue_text, offset in offsets.items() if isinstance(offsets, dict) else ():
            queue_id = parse_queue_id(queue_text)
            end = None if queue_id is None else ends.get((topic, queue_id))
            if end is not None and isinstance(offset, int) and offset > end:
                reason = f"group {group} has consumed up to {offset}, but the queue ends at {end}"
                findings.note(
                    StorePart.CONFIG, path, reason, topic=topic, queue_id=queue_id, queue_offset=offset
                )
