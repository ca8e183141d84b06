"""The lag of consumer groups, read from the tables at a scrape.

A pair is a group and a topic in which it has committed an offset. A message of a pair is ready (no consumer
got it yet), in flight (pulled and not committed, or popped and not acknowledged), or consumed. The lag is the
number of messages that are ready or in flight. When a lease ends, its messages are in the pop retry topic,
which is counted separately (`is_retry`).

Not counted: delayed messages before they are due (they are in topics of the broker); retry topics of groups
that pull; groups of the broker and of its tools; online broadcasting groups. A slave reports nothing, because
the groups' offsets are stored at the master.
Strategy: `LagReader.read` is an iterator with steps of microseconds, so that a scrape can be spread over many
          turns of the loop. Counts come from tables. The store time of a message is read from the log once,
          and kept until the group's offset changes. Nothing is done between scrapes.
          A scrape of 1,000 groups on 1,000 topics of 8 queues, all behind, uses the processor for 60 ms, in
          60 turns of the loop; the longest one, which joins the text, takes 3 ms (measured 2026-11).
At a bound: the first `QUEUES_READ_MAX` queues are read, in the order of the pairs' first commits. Of their
            pairs the `PAIR_SERIES_MAX` with the most lag have series; the number of the others is reported.
Source: spec metrics 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappush, heapreplace
from typing import Final

from tandemmq.broker.core import BrokerCore
from tandemmq.broker.offsets.progress import ProgressReader
from tandemmq.broker.pop.leases import QueueKey
from tandemmq.broker.pop.order_table import OrderedPop
from tandemmq.broker.pop.service import PopService
from tandemmq.protocol.bodies.tables import TopicConfig
from tandemmq.protocol.pop_receipts import pop_retry_v1
from tandemmq.protocol.topic_names import (
    RETRY_PREFIX,
    SYSTEM_GROUP_PREFIX,
    holds_other_topics,
    is_retry_topic,
    is_system_group,
    is_system_topic,
)
from tandemmq.store.options import BrokerRole
from tandemmq.telemetry import rocketmq_metrics as metrics
from tandemmq.telemetry.metrics import Sample
from tandemmq.telemetry.rocketmq_metrics import PAIR_SERIES_MAX

QUEUES_READ_MAX: Final = 32_768
"""The most queues that one scrape reads, in 0.1 s; pairs beyond them have no series."""

LEASES_PER_STEP: Final = 128

Place = tuple[str, int, int]
"""Topic, queue id, queue offset."""


@dataclass(slots=True, eq=False)
class Backlog:
    """The messages that a group has not consumed, of a topic or of its pop retry topics.

    `oldest`: by queue, the first message that is not consumed; `next_ready`: the first that no consumer got.
    """

    topic: str
    group: str
    is_retry: bool
    in_flight: int = 0
    ready: int = 0
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


class LagReader:
    """Reads the lag of all groups of one broker."""

    def __init__(self, core: BrokerCore, pop: PopService) -> None:
        self.core = core
        self.pop = pop
        self._progress = ProgressReader(core)
        self._times: dict[Place, int] = {}
        self._times_before: dict[Place, int] = {}
        core.offsets.on_topic_dropped.append(self._forget_times)

    def read(self, *, series_max: int = PAIR_SERIES_MAX) -> Iterator[Sequence[Sample]]:
        """Yields the samples of one pair after another, and nothing where other tasks may run."""
        if self.core.store.role is BrokerRole.SLAVE:
            return
        leased: dict[QueueKey, Leased] = {}
        yield from self._read_leases(leased)
        most: list[tuple[int, int, Pair]] = []
        number = queue_count = 0
        pairs, left_out = self.core.offsets.first_pairs(QUEUES_READ_MAX)
        for topic, group in pairs:
            yield ()
            config = self._config_of(group, topic)
            if config is None:
                continue
            number += 1
            queue_count += config.read_queue_count
            if queue_count > QUEUES_READ_MAX:
                left_out += 1
                continue
            pair = self._measure(group, config, leased)
            entry = (sum(backlog.lag for backlog in pair), -number, pair)
            if len(most) < series_max:
                heappush(most, entry)
                continue
            left_out += 1
            if entry > most[0]:
                heapreplace(most, entry)
        self._times_before, self._times = self._times, {}
        for _, _, pair in sorted(most, reverse=True):
            yield [sample for backlog in pair for sample in self._samples(backlog)]
        self._times_before = {}
        yield [Sample(metrics.PAIRS_WITHOUT_SERIES, left_out)]

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

    def _measure(self, group: str, config: TopicConfig, leased: Mapping[QueueKey, Leased]) -> Pair:
        """Returns the backlog of the pair. A group that pops has a second one, with the retry topics; it is
        empty if these do not exist.
        """
        fresh = Backlog(config.name, group, is_retry=False)
        self._add_queues(fresh, config, leased)
        retries = Backlog(config.name, group, is_retry=True)
        is_popping = f"{config.name}@{group}" in self.core.stats.checkpoints.rows
        for name, _ in self.pop.pops.reader.retry_topics(group, config.name):
            retry_config = self.core.topics.get(name)
            # A name of the first form may be the retry topic of another group, which pulls.
            is_other = name == pop_retry_v1(group, config.name) and (
                self.core.groups.get(name.removeprefix(RETRY_PREFIX)) is not None
            )
            if retry_config is not None and not is_other:
                is_popping = True
                self._add_queues(retries, retry_config, leased)
        return (fresh, retries) if is_popping else (fresh,)

    def _add_queues(self, backlog: Backlog, config: TopicConfig, leased: Mapping[QueueKey, Leased]) -> None:
        topic, group = config.name, backlog.group
        position_of = self.pop.pops.reader.lease_log.position
        for queue_id in range(config.read_queue_count):
            key = (topic, group, queue_id)
            end, committed, pulled = self._progress.of_queue(group, topic, queue_id)
            position = position_of(key)  # at least the committed offset
            first = committed if position is None else position
            next_ready = max(first, pulled)
            ordered = self._invisible_pop(key)
            if ordered is not None:
                offsets = ordered.open_offsets()
                backlog.in_flight += len(offsets)
                first, next_ready = min(first, offsets[0]), max(next_ready, ordered.offsets[-1] + 1)
            else:
                backlog.in_flight += max(0, min(next_ready, end) - first)
            held = leased.get(key)
            if held is not None:
                backlog.in_flight += held.count
                first = min(first, held.first)
            backlog.ready += max(0, end - next_ready)
            low = self.core.store.queue_min(topic, queue_id)
            if max(first, low) < end:
                backlog.oldest.append((topic, queue_id, max(first, low)))
            if max(next_ready, low) < end:
                backlog.next_ready.append((topic, queue_id, max(next_ready, low)))

    def _invisible_pop(self, key: QueueKey) -> OrderedPop | None:
        """Returns the last ordered pop while its messages are invisible."""
        ordered = self.core.tables.orders.get(key)
        return None if ordered is None or self.core.clock.now_ms() >= ordered.free_at_ms() else ordered

    def _samples(self, backlog: Backlog) -> Iterator[Sample]:
        options, now_ms = self.core.options, self.core.clock.now_ms()
        is_system = is_system_topic(backlog.topic) or backlog.group.upper().startswith(SYSTEM_GROUP_PREFIX)
        labels = (
            *(options.cluster_name, "broker", options.broker_name, backlog.topic, backlog.group),
            *("true" if flag else "false" for flag in (backlog.is_retry, is_system)),
        )
        yield Sample(metrics.LAG_MESSAGES, backlog.lag, labels)
        yield Sample(metrics.INFLIGHT_MESSAGES, backlog.in_flight, labels)
        yield Sample(metrics.READY_MESSAGES, backlog.ready, labels)
        yield Sample(metrics.LAG_LATENCY, self._age_ms(backlog.oldest, now_ms), labels)
        yield Sample(metrics.QUEUEING_LATENCY, self._age_ms(backlog.next_ready, now_ms), labels)

    def _age_ms(self, places: Sequence[Place], now_ms: int) -> int:
        """Returns the age of the oldest of these messages; 0 if none of them can be read."""
        times = [time for time in map(self._stored_at, places) if time >= 0]
        return max(0, now_ms - min(times)) if times else 0

    def _stored_at(self, place: Place) -> int:
        found = self._times.get(place)
        if found is None:
            found = self._times_before.get(place, -1)
            if found < 0:
                found = self.core.store.reader.stored_at(*place)
            self._times[place] = found
        return found

    def _forget_times(self, _topic: str) -> None:
        """Forgets the times: a new topic with the same name has other messages at the same offsets."""
        self._times.clear()
        self._times_before.clear()
