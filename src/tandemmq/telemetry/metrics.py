"""The metrics: their names and meanings, and the histogram that components of a broker keep.

Owns: every name, once; those of proxies are in `telemetry/proxy_metrics.py`, those of controllers and
      name servers in `telemetry/controller_metrics.py`. `broker/metrics.py` reads a broker's state
      as `Sample`s of these metrics; `telemetry/prometheus.py` renders the samples.
Invariants: names are unique and never change their meaning; units are in the name; counters end in `_total`;
            the number of series is bounded (`bound` states the labels' bounds).
Strategy:   nothing is counted per message for a metric: values are read from the components at a scrape.
            Histograms get one observation per batch, fsync or wait of a batch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import accumulate
from typing import Final, Generic, NamedTuple, TypeVar

Row = TypeVar("Row")

TOPIC_SERIES_MAX: Final = 100
"""The most topics with separate series; `TOPICS_WITHOUT_SERIES` counts the others. A scrape uses the loop for
1 ms, and for 2 ms more with this number of topics (11 us per series, measured 2026-11).
"""

QUEUES_READ_MAX: Final = 8_192
"""The most queues that one scrape reads, in up to 5 ms; messages of further queues are in no topic's
series.
"""

WRITE_BUCKETS_S: Final = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0)
"""A write into the page cache takes 10 us; one that waits for the disk takes milliseconds."""

DISK_BUCKETS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
"""An fsync takes from half a millisecond (a cache with a battery) to seconds (a failing disk)."""

WAIT_BUCKETS_S: Final = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.5,
    1.0,
    3.0,
    5.0,
)
"""Up to the timeouts of a send: slaveTimeout 3 s, syncFlushTimeout 5 s."""


class MetricKind(Enum):
    """The behaviour of a metric over time."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One family of series. `bound` states their number if the metric has labels. Metrics are compared by
    identity, because exporters look them up for each sample.
    """

    name: str
    kind: MetricKind
    text: str
    labels: tuple[str, ...] = ()
    bound: str = ""


class Histogram:
    """The counts of durations by bucket. It has no lock, so only the loop's thread may use it."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        assert list(bounds) == sorted(set(bounds)), bounds
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last bucket is above all bounds
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Counts one value; a bucket includes its upper bound."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> list[int]:
        """Returns, per bound and finally for infinity, the number of values that were not above it."""
        return list(accumulate(self.counts))


class Sample(NamedTuple):
    """One series at the moment of a scrape. `labels` has the values of the metric's labels, in their
    order.
    """

    metric: Metric
    value: float | Histogram
    labels: tuple[str, ...] = ()


class ConstantLabels:
    """Adds the same labels to every sample; one instance for the samples of one server."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._names, self._values = tuple(labels), tuple(labels.values())
        self._metrics: dict[Metric, Metric] = {}

    def add(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Yields the samples with the labels, before their own."""
        for metric, value, labels in samples:
            longer = self._metrics.get(metric)
            if longer is None:
                longer = replace(metric, labels=(*self._names, *metric.labels))
                self._metrics[metric] = longer
            yield Sample(longer, value, (*self._values, *labels))


class Labels(tuple[str, ...]):
    """The values of a metric's labels, kept by a reader from scrape to scrape. `text`: the exporter's text of
    them, made once; the metrics that share the values have the same names of labels.
    """

    text: str | None = None


class SampleColumn:
    """The samples of one metric: `values` by `labels`. A reader yields the same column again while nothing in
    it has changed; `text` is the exporter's text of it.
    """

    __slots__ = ("labels", "metric", "text", "values")

    def __init__(self, metric: Metric, labels: Sequence[Labels], values: Sequence[float | Histogram]) -> None:
        assert len(labels) == len(values), metric.name
        self.metric, self.labels, self.values = metric, labels, values
        self.text: bytes | None = None

    def __iter__(self) -> Iterator[Sample]:
        for value, labels in zip(self.values, self.labels, strict=True):
            yield Sample(self.metric, value, labels)


COLUMN_ROWS: Final = 64


class KeptColumns(Generic[Row]):
    """The columns of a reader's last scrape, in blocks of `COLUMN_ROWS` rows. Only blocks with a change are
    made anew: a scrape of thousands of series that rest costs little.
    """

    def __init__(self, make: Callable[[Sequence[Row]], Sequence[SampleColumn]]) -> None:
        """`make` returns the columns of some rows."""
        self._make = make
        self._blocks: list[tuple[Sequence[object], Sequence[SampleColumn]]] = []

    def read(self, rows: Sequence[Row], marks: Sequence[object]) -> Iterator[SampleColumn]:
        """Yields the columns of the rows. `marks` has a value per row that changes with the row's samples.

        Two exporters may read at the same time.
        """
        blocks, found = self._blocks, []
        for number, begin in enumerate(range(0, len(rows), COLUMN_ROWS)):
            of_block = marks[begin : begin + COLUMN_ROWS]
            if number < len(blocks) and blocks[number][0] == of_block:
                block = blocks[number]
            else:
                block = of_block, self._make(rows[begin : begin + COLUMN_ROWS])
            found.append(block)
            yield from block[1]
        self._blocks = found


@dataclass(frozen=True, slots=True)
class MetricNamespace:
    """Makes the metrics whose names begin with `prefix`, and whose labels begin with `base`. One that
    states no bound has `bound`.
    """

    prefix: str
    base: tuple[str, ...] = ()
    bound: str = ""

    def counter(self, name: str, text: str, labels: str = "", bound: str = "") -> Metric:
        """Returns a counter; `labels` are further ones, separated by spaces."""
        return self._make(name, MetricKind.COUNTER, text, labels, bound)

    def gauge(self, name: str, text: str, labels: str = "", bound: str = "") -> Metric:
        return self._make(name, MetricKind.GAUGE, text, labels, bound)

    def histogram(self, name: str, text: str, labels: str = "", bound: str = "") -> Metric:
        return self._make(name, MetricKind.HISTOGRAM, text, labels, bound)

    def _make(self, name: str, kind: MetricKind, text: str, labels: str, bound: str) -> Metric:
        return Metric(self.prefix + name, kind, text, (*self.base, *labels.split()), bound or self.bound)


def metrics_of(module: Mapping[str, object]) -> tuple[Metric, ...]:
    """Returns every metric that a module declares, in the order of the declarations, which is also the order
    of a scrape.
    """
    return tuple(value for value in module.values() if isinstance(value, Metric))


_OURS = MetricNamespace("tandemmq_")
_counter, _gauge, _histogram = _OURS.counter, _OURS.gauge, _OURS.histogram

_CODES = "response codes"
_TOPICS = f"{TOPIC_SERIES_MAX} topics"
_REPLICAS = "connections on the replication port, 256"

BROKER_INFO: Final = _gauge(
    "broker_info",
    "always 1; the labels identify the broker",
    "cluster broker broker_id role version",
    bound="1",
)

# store
APPENDED: Final = _gauge("store_appended_offset_bytes", "log offset up to which the log is written")
FLUSHED: Final = _gauge("store_flushed_offset_bytes", "log offset up to which the log is fsynced")
CONFIRMED: Final = _gauge("store_confirmed_offset_bytes", "log offset up to which messages may be read")
DISPATCHED: Final = _gauge(
    "store_dispatched_offset_bytes", "log offset up to which queues and key index are built"
)
LOG_MIN: Final = _gauge("store_min_offset_bytes", "log offset of the oldest byte in the log")
LOG_MAX: Final = _gauge("store_max_offset_bytes", "log offset of the next byte")
DISPATCH_BEHIND: Final = _gauge(
    "store_dispatch_behind_bytes", "appended but not yet readable: appended - dispatched"
)
UNFLUSHED: Final = _gauge(
    "store_unflushed_bytes", "bytes in the page cache only, which a power cut loses: appended - flushed"
)
UNCOMMITTED: Final = _gauge(
    "store_uncommitted_bytes",
    "with transientStorePoolEnable: bytes in the pool only, which the end of the process loses",
)
POOL_FREE: Final = _gauge(
    "store_pool_free_buffers", "with transientStorePoolEnable: free buffers, one per new log file"
)
LOG_FILES: Final = _gauge("store_log_files", "CommitLog files, including the one created in advance")
QUEUES: Final = _gauge("store_queues", "number of ConsumeQueues")
WRITEABLE: Final = _gauge(
    "store_writeable", "1 while sends are accepted; 0 on a slave, with a full disk or after a failure"
)
READ_DISTANCE: Final = _gauge(
    "store_read_distance_bytes", "distance from the last pull's position to the end of the log"
)
MEMORY_WINDOW: Final = _gauge(
    "store_memory_window_bytes",
    "messages within this distance from the end of the log count as in the page cache:"
    " accessMessageInMemoryMaxRatio of the memory",
)
READS_BEYOND_MEMORY: Final = _counter(
    "store_reads_beyond_memory_total", "pulls of messages outside the memory window, which a slave may answer"
)
DAMAGED_RANGES: Final = _gauge(
    "store_damaged_ranges", "ranges of the log that are known to be damaged: see `log.damaged`"
)
DAMAGED_BYTES: Final = _gauge(
    "store_damaged_bytes", "bytes in damaged ranges of the log, which are never served"
)
SCRUBBED: Final = _counter(
    "store_scrubbed_bytes_total", "bytes of the log that were read again to find damage"
)
DISK_USED: Final = _gauge("disk_used_bytes", "bytes in use on the file system of the CommitLog")
DISK_TOTAL: Final = _gauge("disk_total_bytes", "size of the CommitLog's file system, without root's reserve")
DISK_RATIO: Final = _gauge("disk_used_ratio", "used share of the CommitLog's file system, 0..1")
APPEND_BATCH: Final = _histogram(
    "store_append_batch_seconds",
    "time to write one batch into the log: all sends of one turn of the loop or, on a slave, one block from"
    " the master",
)
COMMIT: Final = _histogram(
    "store_commit_seconds",
    "with transientStorePoolEnable: time to write from the pool into the page cache, with the thread switch",
)
FLUSH: Final = _histogram("store_flush_seconds", "time of an fsync of the log, with the thread switch")
FLUSH_WAIT: Final = _histogram(
    "store_flush_wait_seconds",
    "time from a batch's write to its fsync, if sends wait for the fsync (SYNC_FLUSH)",
)
ACK_WAIT: Final = _histogram(
    "store_ack_wait_seconds",
    "time from a batch's write to the required acknowledgements of slaves, if sends wait for slaves",
)
SENDS_WAITING: Final = _gauge(
    "sends_waiting",
    "sends that are in the log and wait for the disk or for slaves",
    "wait",
    bound="2: flush, acks",
)

# sends, pulls, clients
SENDS: Final = _counter(
    "sends_total",
    "appends by outcome, including the broker's own (retries, delayed messages); a batch counts once",
    "code",
    bound=_CODES,
)
PULLS: Final = _counter(
    "pulls_total",
    "pulls that were answered or refused; a held pull is counted when it ends",
    "code",
    bound=_CODES,
)
CONSUMER_REFUSALS: Final = _counter(
    "consumer_refusals_total",
    "heartbeats, pulls and pops that were refused, and parts of heartbeats that were skipped",
    "request code",
    bound="4 requests, response codes",
)
MESSAGES_IN: Final = _counter("messages_in_total", "messages received from producers")
BYTES_IN: Final = _counter(
    "message_in_bytes_total", "bytes of the bodies of messages received from producers"
)
MESSAGES_OUT: Final = _counter("messages_out_total", "messages delivered to consumers")
BYTES_OUT: Final = _counter("message_out_bytes_total", "bytes of the stored records delivered to consumers")
TOPIC_IN: Final = _counter(
    "topic_messages_in_total",
    "messages stored in the topic's queues since the topic was created; a restart does not reset the count",
    "topic",
    bound=_TOPICS,
)
TOPIC_OUT: Final = _counter(
    "topic_messages_out_total",
    "messages of the topic delivered to consumers since the broker's start",
    "topic",
    bound=_TOPICS,
)
TOPICS_WITHOUT_SERIES: Final = _gauge(
    "topics_without_series",
    f"topics with messages but without series, beyond the first {TOPIC_SERIES_MAX}; the totals include them",
)
TOPICS: Final = _gauge("topics", "configured topics, including the broker's own")
GROUPS: Final = _gauge("subscription_groups", "configured subscription groups")
CONSUMER_GROUPS: Final = _gauge("consumer_groups", "consumer groups with a client online")
HELD_PULLS: Final = _gauge("held_pulls", "pulls that wait for messages")
HELD_POPS: Final = _gauge("held_pops", "pops and notifications that wait for messages")
POP_LEASES: Final = _gauge(
    "pop_leases", "leases: pops of one queue with messages that are neither acknowledged nor redelivered"
)
POPPED: Final = _counter("popped_messages_total", "messages delivered to consumers by pops")
POP_ACKS: Final = _counter("pop_acks_total", "popped messages that were acknowledged")
POP_CHANGES: Final = _counter("pop_changes_total", "popped messages whose invisible time was changed")
POP_REVIVED: Final = _counter(
    "pop_revived_total", "popped messages stored again because they were not acknowledged"
)
POP_DEAD: Final = _counter(
    "pop_dead_letters_total", "popped messages that became dead letters after their last delivery attempt"
)
CONNECTIONS: Final = _gauge(
    "connections", "open client connections by listener", "listener", bound="2: main, fast"
)

# replication
SLAVE_CONNECTIONS: Final = _gauge("slave_connections", "connections on the replication port")
SLAVES_IN_SYNC: Final = _gauge("slaves_in_sync", "slaves whose lag is below haMaxGapNotInSync")
MASTER_WAITING: Final = _gauge(
    "master_waiting",
    "1 while a master serves nothing, because its log may lack messages that its slaves hold",
)
HISTORY_DOUBTED: Final = _gauge(
    "history_doubted", "1 while the controllers or the master report a history that differs from this log's"
)
HISTORY_DIFFERED: Final = _counter(
    "history_differed_total", "on a slave: masters whose log had different bytes in equal terms"
)
SLAVE_LAG_BYTES: Final = _gauge(
    "slave_lag_bytes", "bytes that the slave has not acknowledged", "replica", bound=_REPLICAS
)
SLAVE_LAG_SECONDS: Final = _gauge(
    "slave_lag_seconds",
    "age of the oldest message that the slave has not acknowledged; 0 if it has acknowledged all",
    "replica",
    bound=_REPLICAS,
)
MASTER_CONNECTED: Final = _gauge("master_connected", "on a slave: 1 while the master's log is being copied")
MASTER_SILENCE: Final = _gauge(
    "master_silence_seconds",
    "on a slave: time since the last bytes from the master; absent before the first bytes",
)
REPLICA_HALTED: Final = _gauge(
    "replica_halted", "on a slave: 1 if it has stopped copying until an operator acts"
)
REPLICA_HALT_REASON: Final = _gauge(
    "replica_halt_reason",
    "on a slave: 1 for the reason of its halt, 0 for the other reasons",
    "reason",
    bound="5: slave_ahead, diverged, too_old, file_sizes_differ, damaged",
)
CONFIG_SYNC_AGE: Final = _gauge(
    "config_sync_age_seconds",
    "on a slave: time since topics, groups and offsets last equalled the master's; absent until then",
)

# process
PROCESS_CPU: Final = _counter("process_cpu_seconds_total", "processor time, user and system")
PROCESS_MEMORY: Final = _gauge("process_resident_memory_bytes", "memory in use, including the mapped log")
PROCESS_VIRTUAL: Final = _gauge("process_virtual_memory_bytes", "address space")
PROCESS_START: Final = _gauge("process_start_time_seconds", "start of the process, Unix time")
PROCESS_FDS: Final = _gauge("process_open_fds", "open file descriptors")
PROCESS_FDS_MAX: Final = _gauge("process_max_fds", "most file descriptors that the process may open")

TABLE: Final = metrics_of(globals())


def render_table(table: tuple[Metric, ...] = TABLE) -> str:
    """Returns the metrics as a Markdown table, for the documentation."""
    lines = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for metric in table:
        labels = f"{', '.join(metric.labels)} ({metric.bound})" if metric.labels else ""
        lines.append(f"| `{metric.name}` | {metric.kind.value} | {labels} | {metric.text} |")
    return "\n".join(lines) + "\n"
