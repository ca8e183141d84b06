"""What the tasks of a rebuild do: read one segment of the log, build some queues, build the key index.

A segment's entries and keys go into one file, by queue, in the order of the log; what is built of them is
built by the store's own classes, so the bytes are those of a broker. Each part is whole or not there, so a
rebuild that was killed goes on with the parts that are missing.

Must not know Spark.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.exchange import sync_tree
from tandemmq.store.inspect.entries import EntryReader, QueueRows
from tandemmq.store.inspect.files import OffsetFile
from tandemmq.store.inspect.findings import Findings
from tandemmq.store.inspect.index_check import IndexLayout
from tandemmq.store.inspect.key_hashes import has_keys
from tandemmq.store.inspect.log_walk import LogWalk, Run
from tandemmq.store.inspect.queue_files import QueueFiles
from tandemmq.store.inspect.rebuild import IndexBuilder, QueueBuilder
from tandemmq.store.topic_numbers import TopicNumbers

QueueName = tuple[str, int]

WORK_DIR = "_work"
QUEUES_DIR = "consumequeue"
INDEX_DIR = "index"
_FIELDS = ("queue_offset", "log_offset", "size", "tag_hash", "is_intact")
_KEY_FIELDS = ("hashes", "log_offsets", "stored_at_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A file of the log; `newest_ms`: store time of the newest record in front of it, 0 when not known."""

    file: OffsetFile
    is_last: bool
    newest_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """What a segment holds. `queues[n]` is the queue whose entries are the arrays `n/...` of its file.

    `damages`: log offset and reason. `newest_ms`: store time of its newest record.
    """

    base: int
    size: int
    records: int
    keys: int
    intact_end: int
    newest_ms: int
    inner_batches: int
    queues: tuple[QueueName, ...]
    entries: tuple[int, ...]
    damages: tuple[tuple[int, str], ...]


class SegmentWalk(LogWalk):
    """Walks one file as a walk over the whole log would."""

    def __init__(self, segment: Segment, topics: TopicNumbers) -> None:
        super().__init__([segment.file], topics=topics, findings=Findings())
        self._segment = segment
        self.stored_at_ms = segment.newest_ms

    def runs(self) -> Iterator[Run]:
        """The records of the file."""
        yield from self._walk_file(self._segment.file, is_last=self._segment.is_last)


def part_path(work: Path, base: int) -> Path:
    """Where the facts of the segment that begins at log offset `base` are kept."""
    return work / f"segment-{base:020d}.npz"


def read_facts(work: Path, base: int) -> SegmentFacts | None:
    """What is known of a segment that was read before."""
    try:
        raw = json.loads(part_path(work, base).with_suffix(".json").read_text())
    except FileNotFoundError:
        return None
    raw["queues"] = tuple((topic, number) for topic, number in raw["queues"])
    raw["entries"] = tuple(raw["entries"])
    raw["damages"] = tuple((at, reason) for at, reason in raw["damages"])
    return SegmentFacts(**raw)


def scan_segment(segment: Segment, work: Path, delays_ms: Sequence[int], has_index: bool) -> SegmentFacts:
    """Reads a segment and writes its part. Raises OSError."""
    topics = TopicNumbers()
    walk = SegmentWalk(segment, topics)
    entries = EntryReader(topics.names, delays_ms)
    found: dict[QueueName, list[QueueRows]] = {}
    keys: list[tuple[Any, Any, Any]] = []
    for run in walk.runs():
        for rows in entries.read(run):
            found.setdefault(rows.key, []).append(rows)
        if has_index:
            hashes, rows_of = run.properties.key_hashes(
                topics.names, run.topic, has_keys(run.columns) & run.is_intact
            )
            keys.append((hashes, run.columns.log_offset[rows_of], run.columns.stored_at_ms[rows_of]))
    queues = tuple(sorted(found))
    arrays = {
        f"{number}/{name}": np.concatenate([getattr(rows, name) for rows in found[queue]])
        for number, queue in enumerate(queues)
        for name in _FIELDS
    }
    for place, name in enumerate(_KEY_FIELDS):
        columns = [column[place] for column in keys]
        arrays[f"keys/{name}"] = np.concatenate(columns) if columns else np.zeros(0, dtype=np.int64)
    facts = SegmentFacts(
        base=segment.file.base,
        size=segment.file.size,
        records=walk.record_count,
        keys=len(arrays["keys/hashes"]),
        intact_end=walk.intact_end,
        newest_ms=walk.stored_at_ms,
        inner_batches=entries.inner_batch_count,
        queues=queues,
        entries=tuple(len(arrays[f"{number}/size"]) for number in range(len(queues))),
        damages=tuple((damage.log_offset, damage.reason) for damage in walk.damages),
    )
    _write_part(part_path(work, segment.file.base), arrays, facts)
    return facts


def _write_part(path: Path, arrays: dict[str, Any], facts: SegmentFacts) -> None:
    """The arrays first, then what they are: a part with facts is whole."""
    staged = path.with_name(f"{path.stem}.{os.getpid()}.new.npz")
    np.savez(staged, **arrays)
    os.replace(staged, path)
    staged = path.with_name(f"{path.stem}.{os.getpid()}.new")
    staged.write_text(json.dumps(asdict(facts)))
    os.replace(staged, path.with_suffix(".json"))


def build_queue(
    out: Path, key: QueueName, parts: Sequence[tuple[int, int]], file_bytes: int, log_end: int
) -> int:
    """The files of one queue from its `parts`: segment and number in it, in order. Returns its entries."""
    directory = out / QUEUES_DIR
    shutil.rmtree(directory / key[0] / str(key[1]), ignore_errors=True)
    builder = QueueBuilder(directory, file_bytes, RealDisk())
    try:
        for base, number in parts:
            with np.load(part_path(out / WORK_DIR, base)) as arrays:
                columns = {name: arrays[f"{number}/{name}"] for name in _FIELDS}
            builder.add(QueueRows(key=key, **columns))
        return _finish(builder, out, key, log_end)
    finally:
        builder.close()


def keep_queue(out: Path, old: QueueFiles, file_bytes: int, log_begin: int, log_end: int) -> int:
    """A queue whose records are all expired keeps its offsets. Returns its entries, 0 for nothing kept."""
    shutil.rmtree(out / QUEUES_DIR / old.key[0] / str(old.key[1]), ignore_errors=True)
    builder = QueueBuilder(out / QUEUES_DIR, file_bytes, RealDisk())
    try:
        return _finish(builder, out, old.key, log_end) if builder.keep(old, log_begin) else 0
    finally:
        builder.close()


def _finish(builder: QueueBuilder, out: Path, key: QueueName, log_end: int) -> int:
    builder.finish(log_end)
    queue = builder.queues.table.get(key)
    sync_tree(out / QUEUES_DIR)
    return queue.max_offset if queue is not None else 0


def build_index(
    out: Path, bases: Sequence[int], layout: IndexLayout, old: Sequence[Path], log_end: int
) -> int:
    """The files of the key index; returns how many keys they hold. Raises OSError."""
    directory = out / INDEX_DIR
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    builder = IndexBuilder(directory, layout, old, RealDisk())
    try:
        for base in bases:
            with np.load(part_path(out / WORK_DIR, base)) as arrays:
                builder.add_keys(
                    arrays["keys/hashes"], arrays["keys/log_offsets"], arrays["keys/stored_at_ms"]
                )
        builder.finish(log_end)
    finally:
        builder.close()
    sync_tree(directory)
    return builder.key_count
