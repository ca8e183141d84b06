"""The batches of one topic of `tandemmq pipeline serve`.

A turn of a `Feed` plans a batch, runs its tasks and commits it. Two logs make it exactly once, as in a
landing (`lake_job`): the end offsets of batch N are on disk before its tasks run, and the lake accepts batch
N at most once. The log of offsets has the form of Spark's checkpoints and is in the lake's directory, where
`history` looks for it.

The tasks read and write Arrow batches in Spark's Python workers. No row crosses Java, and a topic needs no
streaming query of its own, whose planner process alone costs more than all the rest (decision 033).
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4
from zlib import crc32

from pyspark.sql.datasource import CaseInsensitiveDict

from tandemmq.spark.checkpoint import find_last_batch, read_end, read_query_id
from tandemmq.spark.columns import BODY_FAULT, OutputColumn, Projection
from tandemmq.spark.documents import replace_file, write_document
from tandemmq.spark.lake.files import Totals
from tandemmq.spark.lake.home import check_writer, find_lake, hold_directory
from tandemmq.spark.lake.sink import LakeSink, LakeWriter, TaskFiles
from tandemmq.spark.lake.summaries import LakeMeter
from tandemmq.spark.lake.upkeep import compact_lake, expire_lake
from tandemmq.spark.offsets import StreamOffset, count_behind, decode_offset
from tandemmq.spark.options import SourceOptions
from tandemmq.spark.pipelines.json_bodies import BAD_COLUMN
from tandemmq.spark.pipelines.landing import Landing, plan_landing
from tandemmq.spark.pipelines.options import LandingOptions
from tandemmq.spark.stream import TopicStreamReader
from tandemmq.spark.task import TaskRanges

BATCHES_KEPT = 100
UPKEEP_S = 3600.0
"""The pause between two rounds of compaction and expiry of one lake."""

SLOT_MS = 250
SLOTS_MAX = 2400
"""Rows born more than ten minutes ago share the oldest slot."""

NumberedTask = tuple[int, TaskRanges]


class StagedRows(NamedTuple):
    """The result of one task: its files, and the number of its rows by the time slot of their birth."""

    files: TaskFiles
    born: Counter[int]


RunTasks = Callable[[Callable[[NumberedTask], StagedRows], Sequence[NumberedTask]], list[StagedRows]]
"""A function that applies a function to tasks on executors, and returns the results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """The result of one batch. `lost`: offsets of the batch without a row, though the topic is not filtered;
    `p50_s`, `p99_s`: seconds from the birth of a row until it was visible.
    """

    batch: int
    done: Totals
    lag: int
    lost: int
    seconds: float
    p50_s: float | None
    p99_s: float | None


class BatchLog:
    """The end offsets of the batches of a topic, and which of them are committed.

    Spark's own layout: `metadata` with the id of the query, `offsets/N`, `commits/N`.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        if read_query_id(directory) is None:
            write_document(directory / "metadata", {"id": str(uuid4())})
        self.query_id = str(read_query_id(directory))
        self.planned = find_last_batch(directory / "offsets")
        self.committed = find_last_batch(directory / "commits")

    def read_end(self, batch: int) -> dict[str, Any]:
        return read_end(self._directory, batch)

    def plan(self, end: dict[str, Any]) -> None:
        """Stores the end of the next batch; it is on disk when this returns."""
        self.planned += 1
        facts = {"batchWatermarkMs": 0, "batchTimestampMs": time.time_ns() // 1_000_000, "conf": {}}
        text = "\n".join(("v1", json.dumps(facts), json.dumps(end, separators=(",", ":"))))
        replace_file(self._directory / "offsets" / str(self.planned), text)
        for name in ("offsets", "commits"):
            (self._directory / name / str(self.planned - BATCHES_KEPT)).unlink(missing_ok=True)

    def commit(self) -> None:
        """Records that the planned batch is in the lake."""
        self.committed = self.planned
        replace_file(self._directory / "commits" / str(self.planned), 'v1\n{"nextBatchWatermarkMs":0}')


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """A landing that is open for turns: its log of batches, and what its tasks need."""

    log: BatchLog
    reader: TopicStreamReader
    writer: LakeWriter
    source: SourceOptions
    columns: Projection
    meter: LakeMeter


@dataclass(slots=True)
class Feed:
    """Lands one topic, a batch per call of `run_batch`, and maintains its lake. After an error `close` makes
    the next turn begin as a new process would.

    `key`, `ttl_days`, `is_compacted`: as in `TopicRule`; `is_once`: it lands no further than the present end;
    `total`: the rows of the whole lake, as of the last turn.
    """

    options: LandingOptions
    key: str = ""
    ttl_days: int | None = None
    is_compacted: bool = False
    is_once: bool = False
    total: Totals = field(default=Totals(), init=False)
    _stage: _Stage | None = field(default=None, init=False)
    _upkeep_at: float = field(init=False)

    def __post_init__(self) -> None:
        # The topics of a service are due at different times.
        self._upkeep_at = time.monotonic() + crc32(self.options.topic.encode()) % UPKEEP_S

    def close(self) -> None:
        self._stage = None

    def maintain(self) -> None:
        """Compacts the lake and deletes old rows, as configured, at most once in `UPKEEP_S`. Raises as
        `run_batch`.
        """
        root = self.options.out
        if time.monotonic() < self._upkeep_at or find_lake(root) is None:
            return
        self._upkeep_at = time.monotonic() + UPKEEP_S
        if self.ttl_days is not None:
            expire_lake(root, self.ttl_days)
        if self.is_compacted:
            compact_lake(root)

    def run_batch(self, run_tasks: RunTasks) -> TurnResult | None:
        """Lands the next batch; returns None if there is no new message.

        Raises:  ConfigError for settings that cannot be used, or while another process writes to the lake;
                 the errors of brokers, of Spark and of the table's store.
        """
        began = time.monotonic()
        with hold_directory(self.options.out):
            if self._stage is None:
                self._stage = _open(self.options, self.key, is_once=self.is_once)
                self.total = self._stage.meter.measure_all()
            stage = self._stage
            if not _plan(stage):
                return None
            log = stage.log
            begin, end = _read_ends(stage)
            tasks = stage.reader.partitions(begin, end)
            work = partial(stage_task, stage.writer, stage.source, stage.columns, (log.query_id, log.planned))
            staged = run_tasks(work, list(enumerate(tasks))) if tasks else []
            stage.writer.commit([one.files for one in staged], log.planned)
            visible_ms = time.time_ns() // 1_000_000
            log.commit()
            self.total = stage.meter.measure_all()
            return _measure(stage, staged, visible_ms, began)


def _open(options: LandingOptions, key: str, *, is_once: bool) -> _Stage:
    landing = plan_landing(options)
    check_writer(landing.lake, options.checkpoint_dir)
    columns = read_columns(landing)
    reader = TopicStreamReader(landing.reading, columns)
    if is_once:
        reader.prepareForTriggerAvailableNow()
    sink = CaseInsensitiveDict({**landing.sink_options(), "path": str(options.out.absolute()), "key": key})
    writer = LakeSink(sink).streamWriter(schema=None, overwrite=False)
    log, meter = BatchLog(options.checkpoint_dir), LakeMeter(options.out)
    return _Stage(log=log, reader=reader, writer=writer, source=landing.reading, columns=columns, meter=meter)


def read_columns(landing: Landing) -> Projection:
    """Returns the columns that tasks read: the landed ones, and the reason for bad records."""
    if not landing.has_bad_records:
        return landing.columns
    return (*landing.columns, OutputColumn(BAD_COLUMN, BODY_FAULT.name, BODY_FAULT.types[0]))


def _plan(stage: _Stage) -> bool:
    """Plans the next batch; returns False if there is no new message. A batch that is planned and not
    committed comes first.
    """
    log, reader = stage.log, stage.reader
    if log.planned > log.committed:
        return True
    begin = log.read_end(log.planned) if log.planned >= 0 else reader.initialOffset()
    end = reader.latestOffset(begin, reader.getDefaultReadLimit())
    if end == begin:
        return False
    log.plan(end)
    return True


def _read_ends(stage: _Stage) -> tuple[dict[str, Any], dict[str, Any]]:
    batch = stage.log.planned
    begin = stage.log.read_end(batch - 1) if batch else stage.reader.initialOffset()
    return begin, stage.log.read_end(batch)


def stage_task(
    writer: LakeWriter,
    source: SourceOptions,
    columns: Projection,
    names: tuple[str, int],
    numbered: NumberedTask,
) -> StagedRows:
    """Reads the ranges of a task and stages them as files; runs on executors. `names`: query and batch."""
    from tandemmq.spark.read_task import read_task

    (query_id, batch_id), (number, task) = names, numbered
    born: Counter[int] = Counter()
    rows = _count_births(read_task(task, source, columns), born)
    if writer.key:
        rows = _mark_keyless(rows, writer.key)
    return StagedRows(writer.stage(rows, query_id, batch_id, number), born)


def _count_births(batches: Iterable[Any], born: Counter[int]) -> Iterator[Any]:
    """Yields the Arrow batches, and counts their rows by the time of their birth, or else of their store."""
    import numpy as np
    import pyarrow as pa

    oldest = time.time_ns() // 1_000_000 // SLOT_MS - SLOTS_MAX
    for batch in batches:
        times = next((n for n in ("bornTimestamp", "storeTimestamp") if n in batch.schema.names), None)
        if times is not None:
            slots = batch.column(times).cast(pa.int64()).to_numpy() // (1000 * SLOT_MS)
            found, counts = np.unique(np.maximum(slots, oldest), return_counts=True)
            born.update(dict(zip(found.tolist(), counts.tolist(), strict=True)))
        yield batch


def _mark_keyless(batches: Iterable[Any], key: str) -> Iterator[Any]:
    """Yields the Arrow batches with rows without a key as bad records."""
    import pyarrow.compute as pc

    from tandemmq.spark.lake.upsert import find_keyless

    for batch in batches:
        at = batch.schema.get_field_index(BAD_COLUMN)
        reasons = pc.coalesce(batch.column(at), find_keyless(batch.column(key)))
        yield batch.set_column(at, batch.schema.field(at), reasons)


def _measure(stage: _Stage, staged: Sequence[StagedRows], visible_ms: int, began: float) -> TurnResult:
    """Returns the result of the batch that was just committed."""
    begin, end = (decode_offset(document) for document in _read_ends(stage))
    done = stage.meter.measure_batch(stage.log.committed)
    latest = stage.reader.reportLatestOffset()
    born: Counter[int] = sum((one.born for one in staged), Counter())
    return TurnResult(
        batch=stage.log.committed,
        done=done,
        lag=count_behind(end.positions, decode_offset(latest).positions) if latest else 0,
        lost=0 if stage.source.is_filtered else _count_planned(begin, end) - done.rows - done.bad,
        seconds=time.monotonic() - began,
        p50_s=find_age(born, 0.50, visible_ms),
        p99_s=find_age(born, 0.99, visible_ms),
    )


def _count_planned(begin: StreamOffset, end: StreamOffset) -> int:
    """Returns the number of offsets that the batch passed, also those that were gone."""
    return sum(
        at - min(begin.positions.get(queue, at), end.base.get(queue, at))
        for queue, at in end.positions.items()
    )


def find_age(born: Counter[int], share: float, now_ms: int) -> float | None:
    """Returns the age in seconds that this share of the rows does not exceed; None without rows."""
    left = share * sum(born.values())
    for slot in sorted(born, reverse=True):
        left -= born[slot]
        if left <= 0:
            return max(0.0, (now_ms - slot * SLOT_MS) / 1000)
    return None
