"""The readings of a broker's metrics that have RocketMQ's names, except those of consumer groups' lag.

Called at a scrape. The values are counted elsewhere: handlers count nothing for a metric alone.
Strategy: `read` is an iterator with short steps, because there may be thousands of topics and groups. A
          series exists while its topic and its group do.
At a bound: a metric has `metrics_series_max` series, of the topics and groups that were first; the tables of
            counts have `SERIES_MAX` rows each. Others have none until some of these are deleted; the totals
            of `tandemmq_*` include them.
Source: spec metrics 3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import attrgetter
from typing import Final, TypeVar

import numpy as np

from tandemmq.broker.arrivals import ArrivalRow, RowKey
from tandemmq.broker.clients.consumer_table import Member
from tandemmq.broker.core import BrokerCore
from tandemmq.broker.delay.timers import PRECISION_MS, TIMER_TOPIC
from tandemmq.broker.pop.service import PopService
from tandemmq.broker.query import load_record
from tandemmq.broker.stats import GroupCounts
from tandemmq.protocol.codes import LanguageCode, render_version
from tandemmq.protocol.pop_receipts import popped_topic
from tandemmq.protocol.topic_names import HALF_TOPIC, SYSTEM_GROUP_PREFIX, is_retry_topic, is_system_topic
from tandemmq.remoting.rpc_times import RpcTimes, row_labels
from tandemmq.telemetry import rocketmq_metrics as metrics
from tandemmq.telemetry.metrics import Histogram, KeptColumns, Labels, Metric, Sample, SampleColumn
from tandemmq.telemetry.rocketmq_metrics import SNAPSHOT_BOUNDS_S

PROCESSORS: Final = (
    *("send", "async_put", "pull", "ack", "query_message", "client_manager", "heartbeat", "lite_pull"),
    *("transaction", "consumer_manager", "admin", "reply"),
)
ROWS_PER_STEP: Final = 64
ROWS_COUNTED_PER_STEP: Final = 2_048
"""The clients or slots that are counted between two turns of the loop, in half a millisecond."""
_KIND: Final[Callable[[Member], ClientKind]] = attrgetter("language", "version")
_STATUS: Final = {True: "success", False: "failure"}
_MODES: Final = {"CONSUME_PASSIVELY": "push", "CONSUME_ACTIVELY": "pull", "CONSUME_POP": "pop"}
Node = tuple[str, str, str]
ClientKind = tuple[int, int]
"""The codes of a client's language and version."""
T = TypeVar("T")


def node_of(core: BrokerCore) -> Node:
    """Returns the values of the labels that all of these metrics have."""
    return core.options.cluster_name, "broker", core.options.broker_name


def flag_text(value: bool) -> str:
    """Returns the value of a label that is a boolean."""
    return "true" if value else "false"


def is_system(topic: str, group: str = "") -> bool:
    """Returns True for a topic or a group of the system."""
    return is_system_topic(topic) or group.upper().startswith(SYSTEM_GROUP_PREFIX)


class Readings:
    """Reads the metrics of one broker."""

    def __init__(self, core: BrokerCore, pop: PopService) -> None:
        self.core = core
        self.pop = pop
        self._node = node_of(core)
        self._arrivals = KeptColumns(self._arrival_columns)
        self._deliveries = KeptColumns(self._delivery_columns)
        self._known: dict[str, bool] = {}
        core.topics.on_change.append(self._forget_deleted)
        core.groups.on_change.append(self._forget_deleted)

    def read(self) -> Iterator[Iterable[Sample]]:
        """Yields samples, and other tasks may run where it yields."""
        options = self.core.options
        if options.stats_metrics:
            yield list(self._read_load())
        if options.store_metrics:
            yield list(self._read_storage())
            yield from self._read_timers()
            yield from in_steps(self._read_timer_topics())
        if options.connection_metrics:
            yield from self._read_producers()
            yield from self._read_consumers()
        if options.request_metrics:
            yield list(self._read_creations())
            yield from self.core.stats.arrivals.fold()
            yield from self._read_arrivals()
            yield from self._read_deliveries()
        if options.lag_metrics:
            yield from in_steps(self._read_dead_letters())
        if options.pop_metrics:
            yield from in_steps(self._read_pops())
        if options.transaction_metrics:
            yield from self.core.stats.transactions.fold(self.core.store.queue_max(HALF_TOPIC, 0))
            yield from in_steps(self._read_transactions())

    def _read_load(self) -> Iterator[Sample]:
        core, node = self.core, self._node
        for processor in PROCESSORS:
            yield Sample(metrics.WATERMARK, 0, (*node, processor))
        yield Sample(metrics.PERMISSION, core.options.broker_permission, node)
        yield Sample(metrics.TOPIC_NUMBER, len(core.topics), node)
        yield Sample(metrics.GROUP_NUMBER, len(core.groups), node)

    def _read_storage(self) -> Iterator[Sample]:
        store, labels = self.core.store, (*self._node, "local", "disk")
        total, free = self.core.disk.usage(store.options.log_dir)
        yield Sample(metrics.STORAGE_SIZE, total - free, labels)
        yield Sample(metrics.FLUSH_BEHIND, store.appended.value - store.flushed.value, labels)
        yield Sample(metrics.DISPATCH_BEHIND, store.appended.value - store.dispatched.value, labels)
        oldest = load_record(store, store.min_log_offset)
        if oldest is not None:
            age_ms = self.core.clock.now_ms() - oldest.stored_at_ms
            yield Sample(metrics.RESERVE_TIME, max(0, age_ms), labels)

    def _read_producers(self) -> Iterator[Sequence[Sample]]:
        producers, counts = self.core.producers, Counter[ClientKind]()
        yield from _tally(chain.from_iterable(map(producers.members, producers.groups)), counts)
        yield [
            Sample(metrics.PRODUCERS, count, (*self._node, *labels, "remoting"))
            for labels, count in _by_labels(counts).items()
        ]

    def _read_consumers(self) -> Iterator[Sequence[Sample]]:
        for group in self.core.consumers.groups:
            mode, counts = _MODES.get(group.consumption.consume_type, "push"), Counter[ClientKind]()
            yield from _tally(self.core.consumers.members(group.name), counts)
            tail = (mode, "remoting", flag_text(is_system("", group.name)))
            yield [
                Sample(metrics.CONSUMERS, count, (*self._node, group.name, *labels, *tail))
                for labels, count in _by_labels(counts).items()
            ]

    def _read_arrivals(self) -> Iterator[SampleColumn]:
        table = self.core.stats.arrivals.rows
        rows = self._limited((key, row, row.folded) for key, row in table.items() if row.folded)
        yield from self._arrivals.read(rows, rows)

    def _arrival_columns(self, rows: Sequence[tuple[RowKey, ArrivalRow, int]]) -> Sequence[SampleColumn]:
        labels = [Labels((*self._node, *key, flag_text(is_system(key[0])))) for key, _, _ in rows]
        return (
            SampleColumn(metrics.MESSAGES_IN, labels, [count for _, _, count in rows]),
            SampleColumn(metrics.BYTES_IN, labels, [row.bytes for _, row, _ in rows]),
            SampleColumn(metrics.MESSAGE_SIZE, labels, [row.sizes for _, row, _ in rows]),
        )

    def _read_deliveries(self) -> Iterator[SampleColumn]:
        table = self.core.stats.groups_out.rows
        rows = self._limited((key, row[0], row[1]) for key, row in table.items() if self._exists(key))
        yield from self._deliveries.read(rows, rows)

    def _delivery_columns(self, rows: Sequence[tuple[str, int, int]]) -> Sequence[SampleColumn]:
        labels = [Labels((*self._node, *_delivery_labels(key))) for key, _, _ in rows]
        return (
            SampleColumn(metrics.MESSAGES_OUT, labels, [count for _, count, _ in rows]),
            SampleColumn(metrics.BYTES_OUT, labels, [size for _, _, size in rows]),
        )

    def _limited(self, rows: Iterable[T]) -> list[T]:
        """Returns as many rows as a metric may have series: the first ones that began."""
        return list(islice(rows, self.core.options.metrics_series_max))

    def _read_dead_letters(self) -> Iterator[Sample]:
        for labels, count in self._of_groups(self.core.stats.dead_letters):
            yield Sample(metrics.DEAD_LETTERS, count, (*labels, flag_text(is_system(*labels[-2:]))))

    def _read_pops(self) -> Iterator[Sample]:
        stats = self.core.stats
        for kind, counts in (("CK", stats.checkpoints), ("ACK", stats.acks)):
            for labels, count in self._of_groups(counts):
                yield Sample(metrics.POP_IN, count, (*labels, kind, "PUT_OK"))
        for labels, count in self._of_groups(stats.redelivered):
            yield Sample(metrics.POP_RETRIES, count, (*labels, "PUT_OK"))
        yield Sample(metrics.POP_CHECKPOINTS, len(self.pop.leases), self._node)

    def _of_groups(self, counts: GroupCounts) -> Iterator[tuple[tuple[str, ...], int]]:
        """Yields the labels up to topic and group, and the count, of what still exists."""
        rows = self._limited((key, row[0]) for key, row in counts.rows.items() if self._exists(key))
        for key, count in rows:
            topic, _, group = key.partition("@")
            yield (*self._node, topic, group), count

    def _read_creations(self) -> Iterator[Sample]:
        creations = self.core.stats.creations
        for (is_ok, is_of_system), times in creations.topics_ms.items():
            labels = (*self._node, _STATUS[is_ok], flag_text(is_of_system))
            yield Sample(metrics.TOPIC_CREATION, times, labels)
        for is_ok, times in creations.groups_ms.items():
            yield Sample(metrics.GROUP_CREATION, times, (*self._node, _STATUS[is_ok]))

    def _read_timers(self) -> Iterator[Sequence[Sample]]:
        timers, labels = self.core.stats.timers, (*self._node, "local", "disk")
        if timers.read_due is None:
            return
        now_ms: int = self.core.clock.now_ms()
        first_ms = now_ms
        slots, counts = timers.read_due(), [0] * (len(SNAPSHOT_BOUNDS_S) + 1)
        while due := dict(islice(slots, ROWS_COUNTED_PER_STEP)):
            counts = [sum(pair) for pair in zip(counts, count_due(due, now_ms), strict=True)]
            first_ms = min(first_ms, *due)
            yield ()
        unread = self.core.store.queue_max(TIMER_TOPIC, 0) - timers.read_to
        yield [
            Sample(metrics.TIMER_ENQUEUE_LAG, max(0, unread), labels),
            Sample(metrics.TIMER_ENQUEUE_LATENCY, 0, labels),
            Sample(metrics.TIMER_DEQUEUE_LAG, sum(counts), labels),
            Sample(metrics.TIMER_DEQUEUE_LATENCY, max(0, now_ms - first_ms - PRECISION_MS), labels),
            *(
                Sample(metrics.TIMER_SNAPSHOT, count, (*labels, str(bound_s)))
                for bound_s, count in zip(SNAPSHOT_BOUNDS_S, counts, strict=False)
            ),
        ]

    def _read_timer_topics(self) -> Iterator[Sample]:
        timers = self.core.stats.timers
        for metric, counts in (
            (metrics.TIMING_MESSAGES, timers.waiting),
            (metrics.TIMER_ENQUEUED, timers.enqueued),
            (metrics.TIMER_DEQUEUED, timers.dequeued),
            (metrics.DELAY_LATENCY, timers.delays_s),
        ):
            yield from self._of_topics(metric, counts, (*self._node, "local", "disk"))

    def _read_transactions(self) -> Iterator[Sample]:
        transactions, labels = self.core.stats.transactions, self._node
        yield from self._of_topics(metrics.HALF_MESSAGES, transactions.open_by_topic(), labels)
        for _, times, of_topic in self._of_topics(metrics.FINISH_LATENCY, transactions.finish_s, labels):
            assert isinstance(times, Histogram)
            yield Sample(metrics.COMMITS, times.count, of_topic)
        yield from self._of_topics(metrics.ROLLBACKS, transactions.rollbacks, labels)
        yield from self._of_topics(metrics.FINISH_LATENCY, transactions.finish_s, labels)

    def _of_topics(
        self, metric: Metric, values: Mapping[str, float | Histogram], labels: tuple[str, ...]
    ) -> Iterator[Sample]:
        """Yields the values of the topics that exist; other tasks may run meanwhile."""
        names = (topic for topic in list(values) if topic in self.core.topics)
        for topic in islice(names, self.core.options.metrics_series_max):
            if (value := values.get(topic)) is not None:
                yield Sample(metric, value, (*labels, topic))

    def _exists(self, key: str) -> bool:
        """Returns True if the topic and the group of a `topic@group` still exist."""
        known = self._known.get(key)
        if known is None:
            topic, _, group = key.partition("@")
            exists = topic in self.core.topics and (group in self.core.groups or is_system(topic, group))
            known = self._known[key] = exists
        return known

    def _forget_deleted(self, *_changed: object) -> None:
        self._known.clear()
        self.core.stats.arrivals.keep_topics(self.core.topics)


def read_rpcs(times: RpcTimes, core: BrokerCore) -> Iterator[Sequence[Sample]]:
    """Yields the times of requests, in steps."""
    node = node_of(core)
    rows = list(islice(times.rows.items(), core.options.metrics_series_max))
    yield from in_steps(
        Sample(metrics.RPC_LATENCY, histogram, (*node, "remoting", *row_labels(row)))
        for row, histogram in rows
    )


def count_due(due: Mapping[int, int], now_ms: int) -> list[int]:
    """Returns the number of waiting messages by the bound of `SNAPSHOT_BOUNDS_S` below which they are due;
    the last number is of those due later.
    """
    slots = np.fromiter(due.keys(), np.int64, len(due))
    counts = np.fromiter(due.values(), np.int64, len(due))
    places = np.searchsorted(np.array(SNAPSHOT_BOUNDS_S) * 1000, slots - now_ms, side="right")
    found = np.bincount(places, weights=counts, minlength=len(SNAPSHOT_BOUNDS_S) + 1)
    return [int(count) for count in found]


def _tally(members: Iterable[Member], counts: Counter[ClientKind]) -> Iterator[tuple[()]]:
    """Adds the members to `counts` by language and version; yields nothing where other tasks may run."""
    rest = iter(members)
    while step := list(islice(rest, ROWS_COUNTED_PER_STEP)):
        counts.update(map(_KIND, step))
        if len(step) == ROWS_COUNTED_PER_STEP:
            yield ()


def _by_labels(counts: Counter[ClientKind]) -> Counter[tuple[str, str]]:
    """Returns the counts by the labels of language and version."""
    found = Counter[tuple[str, str]]()
    for (code, version), count in counts.items():
        try:
            language = LanguageCode(code).name.lower()
        except ValueError:
            language = "other"
        found[language, render_version(version).lower()] += count
    return found


def _delivery_labels(key: str) -> tuple[str, str, str, str]:
    """Returns the labels of the deliveries of a `topic@group`. The topic of a pop is the one popped, also of
    messages from its retry topic.
    """
    topic, _, group = key.partition("@")
    is_retry = is_retry_topic(topic)
    topic = popped_topic(group, topic)
    return topic, group, flag_text(is_retry), flag_text(is_system(topic, group))


def in_steps(samples: Iterable[Sample]) -> Iterator[Sequence[Sample]]:
    """Yields the samples in groups."""
    step: list[Sample] = []
    for sample in samples:
        step.append(sample)
        if len(step) >= ROWS_PER_STEP:
            yield step
            step = []
    yield step
