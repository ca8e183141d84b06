"""The data source `tandemmq` (alias `rocketmq`): its options, readers and writers, and its batch query.

Spark makes instances of the source in several short-lived processes, often only to read the schema. The
constructor therefore does nothing, and a reader's module is imported only when the reader is made (spec spark
SP-66).

A batch query is a fixed set of ranges, planned once and narrowed by the pushed conditions. Narrowing keeps
all messages that can satisfy the conditions. If a broker does not answer, or its answer may be incomplete,
the range stays as it is.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from tandemmq.errors import ConfigError
from tandemmq.protocol.topic_names import is_system_topic
from tandemmq.spark.checkpoint import sync_checkpoint
from tandemmq.spark.columns import Projection, project_schema, render_ddl, select_source_columns
from tandemmq.spark.metadata import QueriedCluster, Topology, require_named
from tandemmq.spark.offsets import OffsetRange, QueueKey, share_out
from tandemmq.spark.options import KAFKA, SourceOptions, parse_options
from tandemmq.spark.packing import plan_tasks
from tandemmq.spark.pushdown import CLOCK_SLACK_MS, Pushed, plan_pushdown
from tandemmq.spark.resolve import describe_all, resolve_range
from tandemmq.spark.task import TaskRanges, log_plan, make_tasks
from tandemmq.telemetry.log_lines import show_warnings

if TYPE_CHECKING:
    from tandemmq.spark.sink.columns import SinkColumns
    from tandemmq.spark.sink.options import SinkOptions
    from tandemmq.spark.sink.writer import TopicStreamWriter, TopicWriter
    from tandemmq.spark.stream import TopicStreamReader


def narrow_ranges(
    ranges: Iterable[OffsetRange], pushed: Pushed, cluster: QueriedCluster, topology: Topology
) -> list[OffsetRange]:
    """Returns the ranges that the pushed conditions leave, in the order of `ranges`."""
    left = [item for item in ranges if pushed.may_match(item.queue)]
    left = _cut_all(left, dict.fromkeys((item.queue for item in left), pushed.begin), {})
    if pushed.end is not None:
        left = _cut_all(left, {}, dict.fromkeys((item.queue for item in left), pushed.end))
    if pushed.stored_from_ms is not None and left:
        left = _cut_all(left, _search(cluster, topology, left, pushed.stored_from_ms), {})
    if pushed.stored_until_ms is not None and left:
        found = _search(cluster, topology, left, pushed.stored_until_ms)
        # Brokers of 4.9 answer with the nearest message, which may be older than the time.
        left = _cut_all(left, {}, {queue: at + 1 for queue, at in found.items()})
    if pushed.key is not None and left:
        left = _narrow_to_key(left, pushed.key, cluster, topology)
    return left


def narrow_options(options: SourceOptions, pushed: Pushed, queues: Iterable[QueueKey]) -> SourceOptions:
    """Returns the options with the pushed tags as the broker's filter, if brokers can apply it.

    The queues of system topics contain other values than hashes of tags.
    """
    if pushed.tags is None or options.sql or any(is_system_topic(queue.topic) for queue in queues):
        return options
    tags = tuple(tag for tag in pushed.tags if not options.tags or tag in options.tags)
    return replace(options, tags=tags) if tags else options


def _cut_all(
    ranges: Sequence[OffsetRange], begins: Mapping[QueueKey, int], ends: Mapping[QueueKey, int]
) -> list[OffsetRange]:
    cut = [
        OffsetRange(
            item.queue,
            max(item.begin, begins.get(item.queue, item.begin)),
            min(item.end, ends.get(item.queue, item.end)),
        )
        for item in ranges
    ]
    return [item for item in cut if item.begin < item.end]


def take_first(ranges: Sequence[OffsetRange], count_max: int) -> list[OffsetRange]:
    """Returns the first `count_max` messages of the ranges, shared out among the queues by size."""
    sizes: Counter[QueueKey] = Counter()
    for item in ranges:
        sizes[item.queue] += item.size
    left = share_out(sizes, count_max)
    taken: list[OffsetRange] = []
    for item in ranges:
        count = min(item.size, left.get(item.queue, 0))
        if count:
            left[item.queue] -= count
            taken.append(item._replace(end=item.begin + count))
    return taken


def _search(
    cluster: QueriedCluster, topology: Topology, ranges: Sequence[OffsetRange], at_ms: int
) -> dict[QueueKey, int]:
    return cluster.search(topology, {item.queue: at_ms for item in ranges})


def _narrow_to_key(
    ranges: Sequence[OffsetRange], key: str, cluster: QueriedCluster, topology: Topology
) -> list[OffsetRange]:
    """Returns the messages that the brokers' key indexes name, and all that may be too young to be
    indexed.
    """
    left: list[OffsetRange] = []
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
                OffsetRange(item.queue, at, at + 1) for at in named if item.begin <= at < min(tail, item.end)
            ]
            left += _cut_all([item], {item.queue: tail}, {})
    return left


class TopicReader(DataSourceReader):  # type: ignore[misc]  # pyspark is untyped here
    """A batch query: reads from one set of offsets to another."""

    def __init__(self, options: SourceOptions, projection: Projection) -> None:
        self._options = options
        self._projection = projection
        self._pushed: Pushed | None = None

    def partitions(self) -> list[TaskRanges]:
        show_warnings()
        options = self._options
        cluster = QueriedCluster(options)
        require_named(cluster.describe(), options)
        topology, bounds = describe_all(cluster, options)
        begin, end = resolve_range(cluster, topology, bounds, options)
        ranges = [
            OffsetRange(queue, at, end[queue]) for queue, at in sorted(begin.items()) if at < end[queue]
        ]
        asked = sum(item.end - item.begin for item in ranges)
        if self._pushed is not None:
            ranges = narrow_ranges(ranges, self._pushed, cluster, topology)
            # Spark copies this reader into the tasks only after `partitions` returned.
            self._options = narrow_options(options, self._pushed, [item.queue for item in ranges])
        if options.count_max is not None:
            ranges = take_first(ranges, options.count_max)
        used = cluster.leave_out_slow(topology)
        tasks = make_tasks(plan_tasks(ranges, options.packing), used.replicas)
        spared = asked - sum(item.end - item.begin for item in ranges)
        pushed = "-" if self._pushed is None else self._pushed.render()
        log_plan(tasks, self._options, topology, used, pushed=pushed, spared_messages=spared)
        return tasks

    def read(self, partition: InputPartition) -> Iterator[Any]:
        # Imports numpy and pyarrow, which only executors need.
        from tandemmq.spark.read_task import read_task

        return read_task(partition, self._options, self._projection)


class PushdownTopicReader(TopicReader):
    """A batch query for a session that pushes filters down; other sessions reject a reader that accepts
    filters (spec spark SP-41).
    """

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Records the conditions of the filters, and returns the filters that Spark must apply itself."""
        plan = plan_pushdown(filters, self._projection)
        self._pushed = plan.pushed
        return plan.rest


PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"
"""The worker module that Spark loads only in sessions that push filters down (spec spark SP-43). A session
that does not push filters rejects readers that accept them, and Spark offers no other way to distinguish
the two.
"""


class TandemSource(DataSource):  # type: ignore[misc]  # pyspark is untyped here
    """Topics as tables and streams; see docs/spark/options.md for the options."""

    @classmethod
    def name(cls) -> str:
        return "tandemmq"

    def schema(self) -> str:
        return render_ddl(_select(self._parse(is_streaming=None)))

    def reader(self, schema: Any) -> TopicReader:
        options = self._parse(is_streaming=False)
        kind = PushdownTopicReader if options.can_push_filters and _can_push_filters() else TopicReader
        return kind(options, self._project(schema, options))

    def streamReader(self, schema: Any) -> TopicStreamReader:
        from tandemmq.spark.stream import TopicStreamReader

        options = self._parse(is_streaming=True)
        return TopicStreamReader(options, self._project(schema, options))

    # Spark passes both arguments by keyword, so these names are fixed (spec spark SP-20).
    def writer(self, schema: Any, overwrite: bool) -> TopicWriter:
        from tandemmq.spark.sink.writer import TopicWriter

        options, columns = self._plan_write(schema, overwrite)
        return TopicWriter(options, columns, options.write_id or uuid4().hex)

    def streamWriter(self, schema: Any, overwrite: bool) -> TopicStreamWriter:
        from tandemmq.spark.sink.writer import TopicStreamWriter

        options, columns = self._plan_write(schema, overwrite)
        sync_checkpoint(self.options.get("checkpointLocation", ""))  # before the tasks of a batch
        return TopicStreamWriter(options, columns)

    def _plan_write(self, schema: Any, overwrite: bool) -> tuple[SinkOptions, SinkColumns]:
        from tandemmq.spark.sink.columns import find_sink_columns
        from tandemmq.spark.sink.options import parse_sink_options

        if overwrite:
            raise ConfigError("messages can only be added: use mode('append') or outputMode('append')")
        options = parse_sink_options(dict(self.options))
        fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        return options, find_sink_columns(fields, has_topic_option=bool(options.topic))

    def _parse(self, *, is_streaming: bool | None) -> SourceOptions:
        return parse_options(dict(self.options), is_streaming=is_streaming)

    def _project(self, schema: Any, options: SourceOptions) -> Projection:
        """Returns the projection for `schema`: our own schema, or one that the user supplied."""
        fields = [(field.name, field.dataType.simpleString(), field.nullable) for field in schema.fields]
        wanted = project_schema(fields)
        chosen = _select(options)
        if options.columns and [column.name for column in wanted] != [column.name for column in chosen]:
            raise ConfigError("give either a schema or the option columns, not both")
        return wanted


class KafkaShapedSource(TandemSource):
    """The same source with the columns of Spark's Kafka source: a query written for that one needs only
    another format and other addresses.
    """

    @classmethod
    def name(cls) -> str:
        return "tandemmq_kafka"

    def _parse(self, *, is_streaming: bool | None) -> SourceOptions:
        return parse_options({"columns": KAFKA, **dict(self.options)}, is_streaming=is_streaming)


class RocketSource(TandemSource):
    """The same source under the name that RocketMQ users expect."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"


def _can_push_filters() -> bool:
    """Returns True if Spark will push filters: it does so in a worker whose module is loaded for nothing
    else.
    """
    return PUSHDOWN_WORKER in sys.modules


def _select(options: SourceOptions) -> Projection:
    return select_source_columns(options.columns, options.properties_as)
