"""The batch query: a fixed set of ranges, planned once and cut down to what pushed conditions leave of them.

Every cut keeps all messages that can satisfy the conditions. Where a broker does not answer a question, or
its answer may be incomplete, the range stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from tandemmq.protocol.topic_names import is_system_topic
from tandemmq.spark.columns import Projection
from tandemmq.spark.metadata import Cluster, Topology, require_queues
from tandemmq.spark.offsets import QueueKey, QueueRange
from tandemmq.spark.options import SourceOptions
from tandemmq.spark.pushdown import CLOCK_SLACK_MS, Pushed, plan_pushdown
from tandemmq.spark.resolve import describe_all, resolve_range
from tandemmq.spark.task import TaskRanges, make_tasks, tell_plan
from tandemmq.telemetry.log_lines import show_warnings


def narrow_ranges(
    ranges: Iterable[QueueRange], pushed: Pushed, cluster: Cluster, topology: Topology
) -> list[QueueRange]:
    """What is left to read, in the order of `ranges`."""
    left = [item for item in ranges if pushed.wants(item.queue)]
    left = _cut_all(left, dict.fromkeys((item.queue for item in left), pushed.begin), {})
    if pushed.end is not None:
        left = _cut_all(left, {}, dict.fromkeys((item.queue for item in left), pushed.end))
    if pushed.stored_from_ms is not None and left:
        left = _cut_all(left, _search(cluster, topology, left, pushed.stored_from_ms), {})
    if pushed.stored_until_ms is not None and left:
        found = _search(cluster, topology, left, pushed.stored_until_ms)
        # Brokers of 4.9 answer with the nearest message, which may lie before the time.
        left = _cut_all(left, {}, {queue: at + 1 for queue, at in found.items()})
    if pushed.key is not None and left:
        left = _keep_key(left, pushed.key, cluster, topology)
    return left


def narrow_options(options: SourceOptions, pushed: Pushed, queues: Iterable[QueueKey]) -> SourceOptions:
    """The options with the pushed tags as the broker's filter, where it can be one.

    Topics of the system store other things than hashes of tags in their queues.
    """
    if pushed.tags is None or options.sql or any(is_system_topic(queue.topic) for queue in queues):
        return options
    tags = tuple(tag for tag in pushed.tags if not options.tags or tag in options.tags)
    return replace(options, tags=tags) if tags else options


def _cut_all(
    ranges: Sequence[QueueRange], begins: Mapping[QueueKey, int], ends: Mapping[QueueKey, int]
) -> list[QueueRange]:
    cut = [
        QueueRange(
            item.queue,
            max(item.begin, begins.get(item.queue, item.begin)),
            min(item.end, ends.get(item.queue, item.end)),
        )
        for item in ranges
    ]
    return [item for item in cut if item.begin < item.end]


def _search(
    cluster: Cluster, topology: Topology, ranges: Sequence[QueueRange], at_ms: int
) -> dict[QueueKey, int]:
    return cluster.search(topology, {item.queue: at_ms for item in ranges})


def _keep_key(
    ranges: Sequence[QueueRange], key: str, cluster: Cluster, topology: Topology
) -> list[QueueRange]:
    """The messages that the brokers' key indexes name, and all that may be too young to be indexed."""
    left: list[QueueRange] = []
    places = sorted({(item.queue.topic, item.queue.broker) for item in ranges})
    for topic, broker in places:
        mine = [item for item in ranges if (item.queue.topic, item.queue.broker) == (topic, broker)]
        found = cluster.find_by_key(topology, topic, broker, key)
        if found is None:
            left += mine
            continue
        young = _search(cluster, topology, mine, max(found.indexed_until_ms - CLOCK_SLACK_MS, 0))
        for item in mine:
            tail = young.get(item.queue, item.begin)
            named = sorted(at for queue_id, at in found.places if queue_id == item.queue.queue_id)
            left += [
                QueueRange(item.queue, at, at + 1) for at in named if item.begin <= at < min(tail, item.end)
            ]
            left += _cut_all([item], {item.queue: tail}, {})
    return left


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
        asked = sum(item.end - item.begin for item in ranges)
        if self._pushed is not None:
            ranges = narrow_ranges(ranges, self._pushed, cluster, topology)
            # Tasks get a copy of this reader after its ranges were made.
            self._options = narrow_options(options, self._pushed, [item.queue for item in ranges])
        used = cluster.leave_out_slow(topology)
        tasks = make_tasks(ranges, used.replicas, options)
        spared = asked - sum(item.end - item.begin for item in ranges)
        pushed = "-" if self._pushed is None else self._pushed.render()
        tell_plan(tasks, self._options, topology, used, pushed=pushed, spared_messages=spared)
        return tasks

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
