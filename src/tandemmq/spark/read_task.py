"""Reads the ranges of one task as Arrow batches, on executors.

A task reads its ranges one after the other. Records of several small ranges share an Arrow batch, because a
batch of a few rows costs nearly as much as one of some thousand (spec spark SP-61).
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from tandemmq.spark.columns import Projection
from tandemmq.spark.decode import BodyFaults, DecodePlan, decode_records
from tandemmq.spark.fetch import Chunk, RangeReader, ReadTally
from tandemmq.spark.options import SourceOptions
from tandemmq.spark.task import TaskRanges, log_read
from tandemmq.telemetry import events
from tandemmq.telemetry.log_lines import show_warnings

log = logging.getLogger(__name__)


def make_decode_plan(projection: Projection, options: SourceOptions) -> DecodePlan:
    """Returns the plan for decoding records into the requested columns."""
    return DecodePlan(
        projection=projection,
        decompress=options.decompress,
        verify_crc=options.verify_crc,
        tags=options.tags,
    )


def read_task(task: InputPartition, options: SourceOptions, projection: Projection) -> Iterator[Any]:
    """Yields the rows of a task as Arrow batches.

    A batch query without ranges still gets one task, with a partition of another class (spec spark SP-32).
    """
    if not isinstance(task, TaskRanges):
        return
    show_warnings()
    _freeze_imports()
    plan = make_decode_plan(projection, options)
    tally, rows, begun = ReadTally(), 0, time.monotonic()
    faults = BodyFaults()
    buffer = _RecordBuffer()
    for broker, chunk in _read_chunks(task, options, tally):
        rows += len(chunk.positions)
        buffer.add(broker, chunk)
        if buffer.row_count >= options.arrow_rows or buffer.size_bytes >= options.arrow_bytes:
            yield from _cut(buffer.decode(plan, faults), options.arrow_rows)
            buffer = _RecordBuffer()
    if buffer.row_count:
        yield from _cut(buffer.decode(plan, faults), options.arrow_rows)
    if faults.count:
        log.warning(events.BODIES_UNDECODED, extra={"messages": faults.count, "first": faults.first})
    log_read(
        task,
        options,
        messages=rows,
        bytes=tally.size_bytes,
        answers=tally.answers,
        retries=tally.retries,
        seconds=round(time.monotonic() - begun, 3),
    )


@cache
def _freeze_imports() -> None:
    """Takes everything imported so far out of Python's collection of cycles. Spark's worker collects after
    each task, which costs 60 ms of processor time with the objects of numpy and pyarrow (spec spark SP-77).
    """
    if TaskContext.get() is not None:
        gc.freeze()


def _cut(batch: Any, rows_max: int) -> Iterator[Any]:
    """Yields the batch in slices of at most `rows_max` rows: an answer of megabytes has more."""
    for at in range(0, batch.num_rows, rows_max):
        yield batch.slice(at, rows_max)


@dataclass(slots=True)
class _RecordBuffer:
    """The chunks that will become one Arrow batch."""

    chunks: list[Chunk] = field(default_factory=list)
    brokers: list[tuple[str, int]] = field(default_factory=list)
    row_count: int = 0
    size_bytes: int = 0

    def add(self, broker: str, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        self.brokers.append((broker, len(chunk.positions)))
        self.row_count += len(chunk.positions)
        self.size_bytes += len(chunk.data)

    def decode(self, plan: DecodePlan, faults: BodyFaults) -> Any:
        if len(self.chunks) == 1:
            # A single large answer is decoded in place, without a copy.
            (chunk,) = self.chunks
            return decode_records(chunk.data, self.brokers, plan, positions=chunk.positions, faults=faults)
        starts = np.cumsum([0, *(len(chunk.data) for chunk in self.chunks)])
        positions = [chunk.positions + start for chunk, start in zip(self.chunks, starts, strict=False)]
        data = b"".join([chunk.data for chunk in self.chunks])
        joined, places = _join(self.brokers), np.concatenate(positions)
        return decode_records(data, joined, plan, positions=places, faults=faults)


def _read_chunks(task: TaskRanges, options: SourceOptions, tally: ReadTally) -> Iterator[tuple[str, Chunk]]:
    for item in task.ranges:
        broker = item.queue.broker
        for chunk in RangeReader(item, task.replicas[broker], options, tally).read():
            yield broker, chunk


def _join(brokers: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Merges neighbouring entries of the same broker."""
    joined: list[tuple[str, int]] = []
    for name, count in brokers:
        if joined and joined[-1][0] == name:
            joined[-1] = (name, joined[-1][1] + count)
        else:
            joined.append((name, count))
    return joined
