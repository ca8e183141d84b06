"""Reading on executors, and the batch query: a fixed set of ranges, planned once.

A reader is pickled into every task, so it holds options and addresses only (spec spark SP-12). One task reads
its ranges one behind the other; records of several small ranges end up in one Arrow batch, because a batch of
a few rows costs nearly as much as one of some thousand (SP-61).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pyspark.sql.datasource import DataSourceReader, InputPartition

from tandemmq.spark.columns import Projection
from tandemmq.spark.decode import DecodePlan, decode_records
from tandemmq.spark.fetch import Chunk, RangeReader
from tandemmq.spark.metadata import Cluster, Replicas, require_queues
from tandemmq.spark.offsets import QueueRange
from tandemmq.spark.options import SourceOptions
from tandemmq.spark.packing import plan_tasks
from tandemmq.spark.resolve import describe_all, resolve_end, resolve_start


@dataclass
class TaskRanges(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """What one task reads, and where the brokers lived when it was planned."""

    ranges: tuple[QueueRange, ...]
    replicas: dict[str, dict[int, str]]


def make_tasks(ranges: Sequence[QueueRange], replicas: Replicas, options: SourceOptions) -> list[TaskRanges]:
    """The tasks of a batch; which range belongs to which task depends on ranges and options only (SP-17)."""
    tasks = plan_tasks(ranges, options.packing)
    known = {broker: dict(addresses) for broker, addresses in replicas.items()}
    return [
        TaskRanges(task, {name: known.get(name, {}) for name in {item.queue.broker for item in task}})
        for task in tasks
    ]


def make_decode_plan(projection: Projection, options: SourceOptions) -> DecodePlan:
    return DecodePlan(
        projection=projection,
        decompress=options.decompress,
        verify_crc=options.verify_crc,
        tags=options.tags,
    )


def read_task(task: TaskRanges | None, options: SourceOptions, projection: Projection) -> Iterator[Any]:
    """The rows of a task as Arrow batches; nothing for the None of an empty batch query (SP-32)."""
    if task is None:
        return
    plan = make_decode_plan(projection, options)
    buffer = _RecordBuffer()
    for broker, chunk in _read_chunks(task, options):
        buffer.add(broker, chunk)
        if buffer.row_count >= options.arrow_rows or buffer.size_bytes >= options.arrow_bytes:
            yield buffer.decode(plan)
            buffer = _RecordBuffer()
    if buffer.row_count:
        yield buffer.decode(plan)


class TopicReader(DataSourceReader):  # type: ignore[misc]  # pyspark is untyped here
    """A batch query: from one set of offsets to another."""

    def __init__(self, options: SourceOptions, projection: Projection) -> None:
        self._options = options
        self._projection = projection

    def partitions(self) -> list[TaskRanges]:
        options = self._options
        cluster = Cluster(options)
        require_queues(cluster.describe(), options)
        topology, bounds = describe_all(cluster, options)
        begin = resolve_start(cluster, topology, bounds, options)
        end = resolve_end(cluster, topology, bounds, options.end)
        ranges = [QueueRange(queue, at, end[queue]) for queue, at in sorted(begin.items()) if at < end[queue]]
        return make_tasks(ranges, topology.replicas, options)

    def read(self, partition: TaskRanges | None) -> Iterator[Any]:
        return read_task(partition, self._options, self._projection)


@dataclass(slots=True)
class _RecordBuffer:
    """Chunks that will become one Arrow batch."""

    chunks: list[Chunk] = field(default_factory=list)
    brokers: list[tuple[str, int]] = field(default_factory=list)
    row_count: int = 0
    size_bytes: int = 0

    def add(self, broker: str, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        self.brokers.append((broker, len(chunk.positions)))
        self.row_count += len(chunk.positions)
        self.size_bytes += len(chunk.data)

    def decode(self, plan: DecodePlan) -> Any:
        starts = np.cumsum([0, *(len(chunk.data) for chunk in self.chunks)])
        positions = [chunk.positions + start for chunk, start in zip(self.chunks, starts, strict=False)]
        data = b"".join([chunk.data for chunk in self.chunks])
        return decode_records(data, _join(self.brokers), plan, positions=np.concatenate(positions))


def _read_chunks(task: TaskRanges, options: SourceOptions) -> Iterator[tuple[str, Chunk]]:
    for item in task.ranges:
        broker = item.queue.broker
        for chunk in RangeReader(item, task.replicas[broker], options).read():
            yield broker, chunk


def _join(brokers: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Neighbours of the same broker as one entry."""
    joined: list[tuple[str, int]] = []
    for name, count in brokers:
        if joined and joined[-1][0] == name:
            joined[-1] = (name, joined[-1][1] + count)
        else:
            joined.append((name, count))
    return joined
