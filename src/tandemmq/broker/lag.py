"""The lag of consumer groups, read from the tables at a scrape.

A pair is a group and a topic in which it has committed an offset. A message of a pair is ready (no consumer
got it yet), in flight (pulled and not committed, or popped and not acknowledged), or consumed. The lag is the
number of messages that are ready or in flight. When a lease ends, its messages are in the pop retry topic,
which is counted separately (`is_retry`).

Not counted: delayed messages before they are due (they are in topics of the broker); retry topics of groups
that pull; groups of the broker and of its tools; online broadcasting groups. A slave reports nothing, because
the groups' offsets are stored at the master.
Strategy: `LagReader.read` is an iterator with steps of microseconds, so that a scrape can be spread over many
          turns of the loop. Counts come from tables. Nothing is done between scrapes.
          What was found for a pair is kept (`KeptPair`), also as text, until an offset of the pair or the
          end of a queue has moved; of groups that pop, until the next scrape. A scrape of 1,000 groups on
          1,000 topics of 8 queues, all behind, uses the processor for 3 ms, or for 40 ms if the offsets of
          all have moved (measured 2026-11).
At a bound: the first `QUEUES_READ_MAX` queues are read, in the order of the pairs' first commits. Of their
            pairs the `metrics_series_max` with the most lag have series; the others are only counted.
Source: spec metrics 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import islice
from operator import attrgetter
from typing import Final

from tandemmq.broker.core import BrokerCore
from tandemmq.broker.offsets.progress import ProgressReader
from tandemmq.broker.pop.leases import QueueKey
from tandemmq.broker.pop.order_table import OrderedPop
from tandemmq.broker.pop.service import PopService
from tandemmq.broker.readings import flag_text, in_steps, is_system, node_of
from tandemmq.protocol.bodies.tables import TopicConfig
from tandemmq.protocol.pop_receipts import pop_retry_v1
from tandemmq.protocol.topic_names import RETRY_PREFIX, holds_other_topics, is_retry_topic, is_system_group
from tandemmq.store.consume_queue import ConsumeQueue
from tandemmq.store.options import BrokerRole
from tandemmq.telemetry import rocketmq_metrics as metrics
from tandemmq.telemetry.metrics import KeptColumns, Labels, Sample, SampleColumn

QUEUES_READ_MAX: Final = 32_768
"""The most queues that one scrape reads, in 0.1 s; pairs beyond them have no series."""

LEASES_PER_STEP: Final = 128
PAIRS_PER_STEP: Final = 16
_BOUNDS_OF: Final = attrgetter("min_offset", "max_offset")

Place = tuple[str, int, int]
"""Topic, queue id, queue offset."""


@dataclass(slots=True, eq=False)
class Backlog:
    """The messages that a group has not consumed, of a topic or of its pop retry topics.

    `by_queue`: the lag of each queue. `oldest`: by queue, the first message that is not consumed;
    `next_ready`: the first that no consumer got.
    """

    topic: str
    group: str
    is_retry: bool
    in_flight: int = 0
    ready: int = 0
    by_queue: list[int] = field(default_factory=list)
    oldest: list[Place] = field(default_factory=list)
    next_ready: list[Place] = field(default_factory=list)

    @property
    def lag(self) -> int:
        return self.in_flight + self.ready


Pair = Sequence[Backlog]
"""The backlog of the topic and, of groups that pop, the one of the retry topics."""


@dataclass(slots=True)
class Leased:
    """The popped messages of a group in one queue that are not acknowledged, and the first of them."""

    count: int
    first: int


class TopicMarks:
    """The queues of a topic, their first and their next offsets. `changes` counts the moves of these."""

    __slots__ = ("_bounds", "changes", "generation", "queues", "scrape")

    def __init__(self) -> None:
        self.generation = self.scrape = -1
        self.changes = 0
        self.queues: list[ConsumeQueue] = []
        self._bounds: list[tuple[int, int]] = []

    def refresh(self, scrape: int) -> None:
        """Reads the offsets, once per scrape."""
        self.scrape = scrape
        bounds = [*map(_BOUNDS_OF, self.queues)]
        if bounds != self._bounds:
            self._bounds = bounds
            self.changes += 1


class KeptPair:
    """A pair and what was found for it. `config` is None while it has no series. `committed` and `pulled` are
    the offsets, and `changes` the topic's, for which `pair` was measured.
    """

    __slots__ = (
        *("changes", "committed", "config", "generation", "group", "is_popping", "labels", "lag", "marks"),
        *("pair", "pulled", "since", "times", "topic"),
    )

    def __init__(self, key: str) -> None:
        self.topic, _, self.group = key.partition("@")
        self.generation = self.changes = -1
        self.config: TopicConfig | None = None
        self.marks = TopicMarks()
        self.is_popping = False
        self.committed: Mapping[int, int] = {}
        self.pulled: Mapping[int, int] | None = None
        self.pair: Pair = ()
        self.lag = 0
        self.labels: list[Labels] = []
        self.since: list[tuple[int, int]] = []
        """By backlog, the store times of the oldest message not consumed and of the oldest not delivered."""
        self.times: dict[Place, int] = {}


class LagReader:
    """Reads the lag of all groups of one broker."""

    def __init__(self, core: BrokerCore, pop: PopService) -> None:
        self.core = core
        self.pop = pop
        self._progress = ProgressReader(core)
        self._pairs: dict[str, KeptPair] = {}
        self._topics: dict[str, TopicMarks] = {}
        self._generation = self._scrape = 0
        """Counts the changes after which the pairs and queues are looked up again."""
        self._sizes = (-1, -1, -1)
        self._popping: frozenset[str] = frozenset()
        self._counts = KeptColumns(self._count_columns)
        self._ages = KeptColumns(self._age_columns)
        for listeners in (core.topics.on_change, core.groups.on_change, core.consumers.on_change):
            listeners.append(self._begin_generation)
        core.offsets.on_topic_dropped.append(self._forget_topic)

    def _begin_generation(self, *_changed: object) -> None:
        self._generation += 1

    def _forget_topic(self, topic: str) -> None:
        """Forgets what was found: a new topic with the same name has other messages at the same offsets."""
        self._generation += 1
        self._pairs = {key: kept for key, kept in self._pairs.items() if kept.topic != topic}

    def read(self, *, series_max: int | None = None) -> Iterator[Iterable[Sample]]:
        """Yields the samples of all pairs, and nothing where other tasks may run. `series_max` None: that of
        the settings.
        """
        options = self.core.options
        series_max = series_max or options.metrics_series_max
        if self.core.store.role is BrokerRole.SLAVE or not options.lag_metrics:
            return
        leased: dict[QueueKey, Leased] = {}
        yield from self._read_leases(leased)
        self._begin_scrape()
        rows, left_out = self.core.offsets.first_rows(QUEUES_READ_MAX)
        popped = self.core.stats.checkpoints.rows
        shown: list[KeptPair] = []
        queue_count = 0
        for number, (key, committed, pulled) in enumerate(rows):
            if number % PAIRS_PER_STEP == 0:
                yield ()
            kept = self._pairs.get(key)
            if kept is None or kept.generation != self._generation:
                kept = self._look_up(key)
            if kept.config is None:
                continue
            queue_count += kept.config.read_queue_count
            if queue_count > QUEUES_READ_MAX:
                left_out += 1
                continue
            marks = kept.marks
            if marks.scrape != self._scrape:
                marks.refresh(self._scrape)
            is_popping = kept.is_popping or key in popped
            if (
                kept.changes != marks.changes
                or kept.committed != committed
                or kept.pulled != pulled
                or is_popping
            ):
                kept.changes = marks.changes
                kept.committed, kept.pulled = dict(committed), None if pulled is None else dict(pulled)
                self._keep(kept, self._measure(kept, kept.config, leased if is_popping else None))
            shown.append(kept)
        if len(shown) > series_max:
            left_out += len(shown) - series_max
            shown = nlargest(series_max, shown, key=attrgetter("lag"))
        pairs = [kept.pair for kept in shown]
        yield from self._counts.read(shown, pairs)
        now_ms = self.core.clock.now_ms()
        # An age grows with the time; without a message it stays 0.
        yield from self._ages.read(shown, [(now_ms if kept.lag else 0, kept.pair) for kept in shown])
        if options.metrics_per_queue:
            yield from in_steps(islice(self._read_by_queue(shown), series_max))
        if len(self._pairs) > len(rows):
            self._pairs = {key: self._pairs[key] for key, _, _ in rows if key in self._pairs}
        yield [Sample(metrics.PAIRS_WITHOUT_SERIES, left_out)]

    def _begin_scrape(self) -> None:
        self._scrape += 1
        positions, orders = self.pop.pops.lease_log.positions, self.core.tables.orders.pops
        sizes = len(self.core.store.queues), len(positions), len(orders)
        if sizes != self._sizes:
            self._sizes = sizes
            self._generation += 1
            self._popping = frozenset(f"{topic}@{group}" for topic, group, _ in (*positions, *orders))

    def _look_up(self, key: str) -> KeptPair:
        """Returns the pair, looked up in the tables that say whether it has series."""
        kept = self._pairs.get(key)
        if kept is None:
            kept = self._pairs[key] = KeptPair(key)
        kept.generation, kept.changes = self._generation, -1
        kept.config = config = self._config_of(kept.group, kept.topic)
        if config is not None:
            kept.marks = self._marks_of(config)
            retries = self.pop.pops.reader.retry_topics(kept.group, kept.topic)
            kept.is_popping = key in self._popping or any(
                self.core.topics.get(name) is not None for name, _ in retries
            )
        return kept

    def _marks_of(self, config: TopicConfig) -> TopicMarks:
        marks = self._topics.get(config.name)
        if marks is None or marks.generation != self._generation:
            marks = self._topics[config.name] = marks or TopicMarks()
            marks.generation = self._generation
            found = map(
                self.core.store.queues.table.get,
                ((config.name, queue_id) for queue_id in range(config.read_queue_count)),
            )
            marks.queues = [queue for queue in found if queue is not None]
        return marks

    def _keep(self, kept: KeptPair, pair: Pair) -> None:
        """Keeps the backlogs, and the store times of their oldest messages."""
        if len(kept.labels) != len(pair):
            kept.labels = [self._labels_of(backlog) for backlog in pair]
        kept.pair, kept.lag = pair, sum(backlog.lag for backlog in pair)
        before, kept.times = kept.times, {}
        kept.since = [
            (self._since(kept, backlog.oldest, before), self._since(kept, backlog.next_ready, before))
            for backlog in pair
        ]

    def _since(self, kept: KeptPair, places: Sequence[Place], before: Mapping[Place, int]) -> int:
        """Returns the store time of the oldest of these messages; -1 if none of them can be read."""
        oldest = -1
        for place in places:
            found = kept.times.get(place)
            if found is None:
                found = before.get(place, -1)
                if found < 0:
                    found = self.core.store.reader.stored_at(*place)
                kept.times[place] = found
            if found >= 0 and not 0 <= oldest <= found:
                oldest = found
        return oldest

    def _labels_of(self, backlog: Backlog) -> Labels:
        topic, group = backlog.topic, backlog.group
        flags = (flag_text(backlog.is_retry), flag_text(is_system(topic, group)))
        return Labels((*node_of(self.core), topic, group, *flags))

    def _read_by_queue(self, shown: Sequence[KeptPair]) -> Iterator[Sample]:
        """Yields the lag of each queue, without retry topics."""
        node = self.core.options.cluster_name, self.core.options.broker_name
        for kept in shown:
            for queue_id, lag in enumerate(kept.pair[0].by_queue):
                yield Sample(metrics.QUEUE_LAG, lag, (*node, kept.topic, kept.group, str(queue_id)))

    def _count_columns(self, shown: Sequence[KeptPair]) -> Sequence[SampleColumn]:
        labels = [one for kept in shown for one in kept.labels]
        backlogs = [backlog for kept in shown for backlog in kept.pair]
        return (
            SampleColumn(metrics.LAG_MESSAGES, labels, [one.in_flight + one.ready for one in backlogs]),
            SampleColumn(metrics.INFLIGHT_MESSAGES, labels, [one.in_flight for one in backlogs]),
            SampleColumn(metrics.READY_MESSAGES, labels, [one.ready for one in backlogs]),
        )

    def _age_columns(self, shown: Sequence[KeptPair]) -> Sequence[SampleColumn]:
        now_ms = self.core.clock.now_ms()
        labels = [one for kept in shown for one in kept.labels]
        since = [times for kept in shown for times in kept.since]
        return (
            SampleColumn(metrics.LAG_LATENCY, labels, [_age_ms(time, now_ms) for time, _ in since]),
            SampleColumn(metrics.QUEUEING_LATENCY, labels, [_age_ms(time, now_ms) for _, time in since]),
        )

    def _read_leases(self, leased: dict[QueueKey, Leased]) -> Iterator[Sequence[Sample]]:
        for number, lease in enumerate(self.pop.leases.all(), start=1):
            if number % LEASES_PER_STEP == 0:
                yield ()
            offsets = lease.open_offsets() if lease.bits else lease.offsets
            if not offsets:
                continue
            key = lease.key[:3]
            known = leased.get(key)
            if known is None:
                leased[key] = Leased(len(offsets), offsets[0])
            else:
                known.count += len(offsets)
                known.first = min(known.first, offsets[0])

    def _config_of(self, group: str, topic: str) -> TopicConfig | None:
        """Returns the topic if the pair has series."""
        if is_retry_topic(topic) or holds_other_topics(topic) or is_system_group(group):
            return None
        config = self.core.topics.get(topic)
        if config is None or self.core.groups.get(group) is None:
            return None
        is_consumer = not self._progress.is_broadcasting(group) and self._progress.has_lag(group, topic)
        return config if is_consumer else None

    def _measure(self, kept: KeptPair, config: TopicConfig, leased: Mapping[QueueKey, Leased] | None) -> Pair:
        """Returns the backlog of the pair. `leased`: None if the group does not pop. One that pops has a
        second backlog, with the retry topics, which is empty if these do not exist.
        """
        group, topic = kept.group, kept.topic
        fresh = Backlog(topic, group, is_retry=False)
        self._add_queues(fresh, config, leased)
        if leased is None:
            return (fresh,)
        retries = Backlog(topic, group, is_retry=True)
        is_popping = f"{topic}@{group}" in self.core.stats.checkpoints.rows
        for name, _ in self.pop.pops.reader.retry_topics(group, topic):
            retry_config = self.core.topics.get(name)
            # A name of the first form may be the retry topic of another group, which pulls.
            is_other = name == pop_retry_v1(group, topic) and (
                self.core.groups.get(name.removeprefix(RETRY_PREFIX)) is not None
            )
            if retry_config is not None and not is_other:
                is_popping = True
                self._add_queues(retries, retry_config, leased)
        return (fresh, retries) if is_popping else (fresh,)

    def _add_queues(
        self, backlog: Backlog, config: TopicConfig, leased: Mapping[QueueKey, Leased] | None
    ) -> None:
        topic, table = config.name, self.core.store.queues.table
        committed, pulled = self.core.offsets.row(f"{topic}@{backlog.group}")
        for queue_id in range(config.read_queue_count):
            queue = table.get((topic, queue_id))
            low, end = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
            first = committed.get(queue_id, 0)
            next_ready = max(first, pulled.get(queue_id, 0))
            before = backlog.in_flight + backlog.ready
            if leased is None:
                backlog.in_flight += max(0, min(next_ready, end) - first)
            else:
                first, next_ready = self._add_popped(backlog, (topic, queue_id, end), next_ready, leased)
            backlog.ready += max(0, end - next_ready)
            backlog.by_queue.append(backlog.in_flight + backlog.ready - before)
            if max(first, low) < end:
                backlog.oldest.append((topic, queue_id, max(first, low)))
            if max(next_ready, low) < end:
                backlog.next_ready.append((topic, queue_id, max(next_ready, low)))

    def _add_popped(
        self, backlog: Backlog, end: Place, next_pull: int, leased: Mapping[QueueKey, Leased]
    ) -> tuple[int, int]:
        """Adds the messages in flight in the queue with this end. Returns the first message that is not
        acknowledged, and the first that was not delivered.
        """
        key = (end[0], backlog.group, end[1])
        first = self.pop.pops.reader.lease_log.position(key) or 0  # at least the committed offset
        next_ready = max(first, next_pull)
        ordered = self._invisible_pop(key)
        if ordered is not None:
            offsets = ordered.open_offsets()
            backlog.in_flight += len(offsets)
            first, next_ready = min(first, offsets[0]), max(next_ready, ordered.offsets[-1] + 1)
        else:
            backlog.in_flight += max(0, min(next_ready, end[2]) - first)
        held = leased.get(key)
        if held is not None:
            backlog.in_flight += held.count
            first = min(first, held.first)
        return first, next_ready

    def _invisible_pop(self, key: QueueKey) -> OrderedPop | None:
        """Returns the last ordered pop while its messages are invisible."""
        ordered = self.core.tables.orders.get(key)
        return None if ordered is None or self.core.clock.now_ms() >= ordered.free_at_ms() else ordered


def _age_ms(since: int, now_ms: int) -> int:
    """Returns the age of a message stored at `since`; 0 for -1, which means that there is none."""
    return max(0, now_ms - since) if since >= 0 else 0
