"""The streaming query: its start, the end of each batch, and the tasks of a batch.

Spark calls the methods of one instance in a separate process on the driver; another copy is pickled into the
tasks and only reads (spec spark 2.1). Everything that must survive a restart is in the offsets, which Spark
stores in its checkpoint. The first end offset pins the start (spec spark SP-24), the end offset that first
names a queue pins that queue, and the end offset of each batch pins its division into tasks. `partitions`
depends on offsets only, so a replayed batch gives the same rows to the same tasks, even if the options have
changed (spec spark SP-17, decision 024). A changed option that affects which rows are read, `tags` or
`filter`, is rejected.
"""

from __future__ import annotations

import gc
import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from tandemmq.errors import BrokerUnreachable, ConfigError, TopicNotFound
from tandemmq.spark.columns import Projection
from tandemmq.spark.metadata import Bounds, QueriedCluster, Topology
from tandemmq.spark.offsets import (
    MANY_QUEUES,
    OffsetRange,
    Positions,
    QueueKey,
    StreamOffset,
    advance,
    count_behind,
    decode_offset,
    encode_offset,
    keep_youngest,
    plan_ranges,
    render_queues,
)
from tandemmq.spark.options import ReadPreference, SourceOptions
from tandemmq.spark.packing import leave_out, plan_tasks
from tandemmq.spark.resolve import (
    Losses,
    choose_youngest,
    describe_all,
    find_losses,
    find_lost,
    resolve_start,
)
from tandemmq.spark.task import TaskRanges, log_plan, make_tasks
from tandemmq.spark.wire import UNREACHABLE
from tandemmq.telemetry import events
from tandemmq.telemetry.log_lines import show_warnings

log = logging.getLogger(__name__)

TOPOLOGY_FRESH_S = 5.0
SAMPLE_RECORDS = 32


_UNREACHABLE_HINT = (
    ", which the query reads. Start it again when the broker is back, or set failOnDataLoss=false to read "
    "the other queues now and these in a later run"
)

NO_LOSSES = Losses(moved={}, gone=frozenset(), doubted=frozenset())


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Stops the search for cycles in the block: planning makes thousands of tuples and no cycles, and each
    search would visit all that Spark's modules hold.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """The state of the brokers for one batch: the starts of new queues, the ends of queues for planning and
    in fact, and the changes to the query's positions.
    """

    begin: Positions
    latest: Positions
    bounds: Mapping[QueueKey, Bounds]
    losses: Losses


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # untyped
    """A stream of one or more topics. The constructor opens nothing: planners make copies only to pickle
    them.
    """

    def __init__(self, options: SourceOptions, projection: Projection) -> None:
        self._options = options
        self._projection = projection
        self._target: Positions | None = None
        self._silent: frozenset[QueueKey] = frozenset()
        self._topology = Topology()
        self._whole_topology = Topology()
        self._described_at = float("-inf")
        self._latest: Positions = {}
        self._committed: Positions = {}
        self._slave_ends = SlaveEnds()
        self._planned_at = float("-inf")
        self._has_compared = False
        self._missing: set[QueueKey] = set()

    def prepareForTriggerAvailableNow(self) -> None:
        """Records the current ends of all queues; this run reads no further.

        Spark calls it before it replays a batch, which may not need the brokers that do not answer. The query
        waits for such brokers when it plans the first new batch.
        """
        cluster = QueriedCluster(self._options)
        topology = cluster.describe()
        bounds = cluster.read_bounds(topology)
        self._target = {queue: limits.end for queue, limits in bounds.items()}
        self._silent = frozenset(topology.queues) - frozenset(bounds)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Returns a limit of the right kind. Spark has none that combines both kinds, so the value only
        signals that `latestOffset` must obey the options.
        """
        options = self._options
        if options.trigger_records_max is not None:
            return ReadMaxRows(options.trigger_records_max)
        if options.trigger_bytes_max is not None:
            return ReadMaxBytes(options.trigger_bytes_max)
        if options.trigger_records_min:
            return ReadMinRows(options.trigger_records_min)
        return ReadAllAvailable()

    def initialOffset(self) -> dict[str, Any]:
        """Returns a symbol, because Spark asks twice and both answers must be equal (spec spark SP-15,
        SP-24).
        """
        assert self._options.start is not None
        return encode_offset(StreamOffset(symbol=self._options.start.kind.value))

    @_collector_paused()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Returns the end of the next batch; `start` itself if nothing is new."""
        show_warnings()
        offset = decode_offset(start)
        self._check_filter(offset)
        view = self._read_brokers(offset)
        self._commit_progress(offset)
        known = {**view.begin, **offset.positions, **view.losses.moved}
        end = advance(
            offset,
            begin=view.begin,
            latest=view.latest,
            limit=None if isinstance(limit, ReadAllAvailable) else self._record_limit(known, view.latest),
            filter_hash=self._options.filter_hash,
            moved=view.losses.moved,
            gone=view.losses.gone,
        )
        self._has_compared = True
        if end is None:
            return start
        self._planned_at = time.monotonic()
        return encode_offset(self._mark(offset, end, view.bounds))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Returns the ends of the queues at the last `latestOffset`; Spark shows them in the query's
        progress.
        """
        return encode_offset(StreamOffset(positions=self._latest)) if self._latest else None

    @_collector_paused()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[TaskRanges]:
        """Returns the tasks of a batch; the tasks of a replay have the same numbers and rows as before."""
        show_warnings()
        begins, ends = decode_offset(start), decode_offset(end)
        ranges = plan_ranges(begins, ends)
        if not ranges:
            return []
        self._check_filter(ends)
        planned = plan_tasks(ranges, ends.packing or self._options.unpinned_packing)
        if not self._has_compared:
            planned = leave_out(planned, self._find_lost(ranges, begins, ends))
            if not any(planned):
                return []
        if time.monotonic() - self._described_at > TOPOLOGY_FRESH_S:
            try:
                cluster = QueriedCluster(self._options)
                self._describe(cluster, cluster.describe())
            except UNREACHABLE as error:
                # The tasks ask again themselves, and retry for longer.
                log.debug(events.ROUTE_UNREACHABLE, extra={"error": str(error)})
        tasks = make_tasks(planned, self._topology.replicas)
        if self._options.is_explained:
            # Spark does not plan a replayed batch anew, so the ends are unknown.
            lag = count_behind(ends.positions, self._latest) if self._latest else "-"
            log_plan(tasks, self._options, self._whole_topology, self._topology, lag_messages=lag)
        return tasks

    def read(self, partition: TaskRanges) -> Iterator[Any]:
        # Imports numpy and pyarrow, which only executors need.
        from tandemmq.spark.read_task import read_task

        return read_task(partition, self._options, self._projection)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: Spark calls it one batch late, and never for the last one (spec spark SP-18); see
        `_commit_progress`.
        """

    def stop(self) -> None:
        """Does nothing: Spark does not call it when a query ends (spec spark SP-19)."""

    def _check_filter(self, offset: StreamOffset) -> None:
        if offset.symbol is None and offset.filter_hash != self._options.filter_hash:
            raise ConfigError(
                "the option tags or filter differs from the one that the checkpoint was written with: "
                f"now it is {self._options.subscription!r}. Use the old one, or a new checkpoint"
            )

    def _read_brokers(self, offset: StreamOffset) -> _View:
        """Returns the state of the brokers, compared with `offset`."""
        cluster, options = QueriedCluster(self._options), self._options
        losses = NO_LOSSES
        if offset.symbol is not None:
            topology, bounds = describe_all(cluster, options, may_be_absent=True)
            begin = resolve_start(cluster, topology, bounds, options)
        else:
            topology, bounds, losses = self._compare(cluster, offset)
            begin = {queue: at.begin for queue, at in bounds.items() if queue not in offset.positions}
        if self._target is not None and self._silent:
            # For brokers that answered late, this run ends at their current ends.
            late = {queue: bounds[queue].end for queue in self._silent if queue in bounds}
            self._target, self._silent = {**self._target, **late}, frozenset()
        topology = self._describe(cluster, topology)
        self._latest = {queue: limits.end for queue, limits in bounds.items()}
        if self._target is not None:
            begin = {queue: at for queue, at in begin.items() if queue in self._target}
            latest = self._target
        else:
            latest = self._plan_ends(cluster, topology, bounds)
        latest = {queue: at for queue, at in latest.items() if queue not in losses.doubted}
        return _View(begin=begin, latest=latest, bounds=bounds, losses=losses)

    def _compare(
        self, cluster: QueriedCluster, offset: StreamOffset
    ) -> tuple[Topology, dict[QueueKey, Bounds], Losses]:
        """Compares the queues that the brokers have with the positions of the query."""
        if self._silent:
            self._await_silent(cluster)
        topology = self._describe_again(cluster)
        refused: set[QueueKey] = set()
        bounds = cluster.read_bounds(topology, refused=refused)
        is_first = not self._has_compared
        losses = find_losses(
            cluster, topology, bounds, offset, self._options, checks_all_queues=is_first, refused=refused
        )
        self._report_missing({queue for queue in offset.positions if queue not in bounds} - losses.gone)
        return topology, bounds, losses

    def _await_silent(self, cluster: QueriedCluster) -> None:
        """Waits for brokers that did not answer when the run began, as long as for brokers that are starting.

        Raises:  BrokerUnreachable if one still does not answer, unless failOnDataLoss is false.
        """
        try:
            describe_all(cluster, self._options, may_be_absent=True)
        except BrokerUnreachable as error:
            if self._options.fail_on_data_loss:
                raise BrokerUnreachable(f"{error}{_UNREACHABLE_HINT}") from error
            log.warning(events.QUEUES_MISSING, extra={"error": str(error)})
        except TopicNotFound:
            pass  # The brokers answer; `find_losses` reports what happened to the queues.

    def _report_missing(self, queues: set[QueueKey]) -> None:
        """Logs queues for which no replica answers; a stream waits for them. A run up to fixed ends cannot
        wait, so it raises BrokerUnreachable unless failOnDataLoss is false.
        """
        missing = {queue for queue in queues if self._options.selects(queue)}
        if missing and self._target is not None and self._options.fail_on_data_loss:
            raise BrokerUnreachable(f"no broker answers for {render_queues(missing)}{_UNREACHABLE_HINT}")
        if missing and missing != self._missing:
            log.warning(events.QUEUES_MISSING, extra={"queues": render_queues(missing)})
        self._missing = missing

    def _mark(
        self, start: StreamOffset, end: StreamOffset, bounds: Mapping[QueueKey, Bounds]
    ) -> StreamOffset:
        """Returns `end` with the current packing and a mark of the last message before each position; an
        older mark is kept if no broker returns a new one. With many queues there is one mark for each topic
        of a broker, that of its youngest message.
        """
        wanted: Positions = {
            queue: at - 1
            for queue, at in end.positions.items()
            if queue in bounds and bounds[queue].begin < at <= bounds[queue].end
        }
        is_large = len(end.positions) > MANY_QUEUES
        if is_large:
            wanted = choose_youngest(wanted, start.positions, bounds)
        known = {queue: mark.queue_offset for queue, mark in end.marks.items()}
        asked = {queue: at for queue, at in wanted.items() if known.get(queue) != at}
        seen = QueriedCluster(self._options).read_marks(self._topology, asked)
        found = {queue: at.mark for queue, at in seen.items() if at.mark is not None}
        marks = {**end.marks, **found}
        packing = self._options.packing
        return replace(end, marks=keep_youngest(marks) if is_large else marks, packing=packing)

    def _find_lost(
        self, ranges: list[OffsetRange], start: StreamOffset, end: StreamOffset
    ) -> dict[QueueKey, int]:
        """Returns the offset at which each queue resumes that lost messages of a batch of an earlier run; see
        `find_lost`.
        """
        try:
            cluster = QueriedCluster(self._options)
            return find_lost(cluster, ranges, (start.marks, end.marks), self._options)
        except UNREACHABLE as error:
            # The tasks ask again themselves, and retry for longer.
            log.debug(events.ROUTE_UNREACHABLE, extra={"error": str(error)})
            return {}

    def _describe_again(self, cluster: QueriedCluster) -> Topology:
        """Returns the current topology; the last known one if no name server answers."""
        try:
            return cluster.describe()
        except UNREACHABLE as error:
            if not self._topology.queues:
                raise
            log.warning(events.ROUTE_UNREACHABLE, extra={"error": str(error)})
            return self._topology

    def _describe(self, cluster: QueriedCluster, topology: Topology) -> Topology:
        """Stores the topology, and returns it without the slaves that are too far behind."""
        self._whole_topology, self._topology = topology, cluster.leave_out_slow(topology)
        self._described_at = time.monotonic()
        return self._topology

    def _plan_ends(
        self, cluster: QueriedCluster, topology: Topology, bounds: dict[QueueKey, Bounds]
    ) -> Positions:
        """Returns the ends of the queues, or the ends of their slaves if the query reads slaves and they keep
        up.
        """
        if self._options.read_from is not ReadPreference.PREFER_SLAVE:
            return self._latest
        slaves = cluster.read_bounds(topology, prefer_slave=True)
        return self._slave_ends.choose(
            time.monotonic(),
            master={queue: limits.end for queue, limits in bounds.items() if limits.is_master},
            slave={queue: limits.end for queue, limits in slaves.items() if not limits.is_master},
        )

    def _record_limit(self, positions: Positions, latest: Positions) -> int | None:
        """Returns the smaller of both limits in messages; a sample of the backlog converts bytes to messages.
        Returns 0 while the backlog is too small: the batch then only pins the start of new queues.
        """
        options = self._options
        if self._is_waiting(count_behind(positions, latest)):
            return 0
        limits = [] if options.trigger_records_max is None else [options.trigger_records_max]
        if options.trigger_bytes_max is not None:
            size = self._sample_record_size(positions, latest)
            if size is not None:
                limits.append(max(1, int(options.trigger_bytes_max / size)))
        return min(limits, default=None)

    def _is_waiting(self, backlog: int) -> bool:
        """Returns True if fewer than minOffsetsPerTrigger messages exist and maxTriggerDelay has not
        passed.
        """
        if self._target is not None or backlog >= self._options.trigger_records_min:
            return False
        return time.monotonic() - self._planned_at < self._options.trigger_delay_s

    def _sample_record_size(self, positions: Positions, latest: Positions) -> float | None:
        """Returns the mean stored size of the next messages of the queue furthest behind; None if there are
        none.
        """
        behind = {queue: latest.get(queue, at) - at for queue, at in positions.items()}
        queue = max(sorted(behind), key=lambda name: behind[name], default=None)
        if queue is None or behind[queue] <= 0:
            return None
        from tandemmq.spark.fetch import RangeReader

        begin = positions[queue]
        item = OffsetRange(queue, begin, begin + min(SAMPLE_RECORDS, behind[queue]))
        reader = RangeReader(item, self._topology.replicas.get(queue.broker, {}), self._options)
        chunk = next((chunk for chunk in reader.read() if len(chunk.positions)), None)
        return None if chunk is None else len(chunk.data) / len(chunk.positions)

    def _commit_progress(self, offset: StreamOffset) -> None:
        """Stores `offset` as the group's offsets: at this call it is durable in Spark's commit log (spec
        spark SP-26).
        """
        if not self._options.commit_progress or offset.positions == self._committed:
            return
        QueriedCluster(self._options).commit(self._topology, offset.positions)
        self._committed = dict(offset.positions)


PATIENCE_S = 5.0
SNAPSHOTS_MAX = 512


class SlaveEnds:
    """The ends that a stream reading from slaves plans for its next batch; one instance per running query.

    A batch that ends at the slave's end does not need the master, so the stream continues while the master is
    down. But a slave that stopped replicating would then silently stop the stream too. The slave's end
    therefore counts only while the slave keeps up, that is, has reached the end that its master had
    `PATIENCE_S` seconds ago. Otherwise the batch ends at the master's end, and the readers fetch from the
    master the messages that the slave lacks. Pure: the caller passes the time.
    """

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._seen: deque[tuple[float, Positions]] = deque(maxlen=SNAPSHOTS_MAX)
        self._due: Positions = {}

    def choose(self, now_s: float, *, master: Positions, slave: Positions) -> dict[QueueKey, int]:
        """Returns the end to plan for each queue for which a replica answered."""
        while self._seen and self._seen[0][0] <= now_s - self._patience_s:
            self._due = self._seen.popleft()[1]
        self._seen.append((now_s, dict(master)))
        ends = dict(slave)
        for queue, end in master.items():
            reached = slave.get(queue)
            if reached is None or reached < self._due.get(queue, 0):
                ends[queue] = end
            else:
                ends[queue] = min(reached, end)
        return ends
