"""The batch query: a fixed set of ranges, planned once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from tandemmq.spark.columns import Projection
from tandemmq.spark.metadata import Cluster, require_queues
from tandemmq.spark.narrow import narrow_options, narrow_ranges
from tandemmq.spark.offsets import QueueRange
from tandemmq.spark.options import SourceOptions
from tandemmq.spark.pushdown import Pushed, plan_pushdown
from tandemmq.spark.resolve import describe_all, resolve_range
from tandemmq.spark.task import TaskRanges, make_tasks
from tandemmq.telemetry.log_lines import show_warnings


class TopicReader(DataSourceReader):  # type: ignore[misc]  # pyspark is untyped here
    """A batch query: from one set of offsets to another."""

    def __init__(self, options: SourceOptions, projection: Projection) -> None:
        self._options = options
        self._projection = projection
        self._pushed: Pushed | None = None

    def partitions(self) -> list[TaskRanges]:
        show_warnings()
        options = self._options
        cluster = Cluster(options)
        require_queues(cluster.describe(), options)
        topology, bounds = describe_all(cluster, options)
        begin, end = resolve_range(cluster, topology, bounds, options)
        ranges = [QueueRange(queue, at, end[queue]) for queue, at in sorted(begin.items()) if at < end[queue]]
        if self._pushed is not None:
            ranges = narrow_ranges(ranges, self._pushed, cluster, topology)
            # Tasks get a copy of this reader after its ranges were made.
            self._options = narrow_options(options, self._pushed, [item.queue for item in ranges])
        return make_tasks(ranges, cluster.leave_out_slow(topology).replicas, options)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        # numpy and pyarrow come with it, which only executors need.
        from tandemmq.spark.read_task import read_task

        return read_task(partition, self._options, self._projection)


class PushdownTopicReader(TopicReader):
    """A batch query of a session that pushes filters down; others refuse a reader that can (spec spark
    SP-41)."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Remembers what the filters narrow; returns those that Spark must apply itself."""
        plan = plan_pushdown(filters, self._projection)
        self._pushed = plan.pushed
        return plan.rest
