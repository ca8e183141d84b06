"""The statistics of a broker: counters with rates, and the series that tools query (VIEW_BROKER_STATS_DATA).
Time is passed in.

Handlers increment the counters of `BrokerStats`. Its `sample` is called every `SAMPLE_PERIOD_S`; the samples
yield the rates over the last 10 s, 1 min and 10 min. Only the necessary minimum is counted per message;
rejections and pull results are counted by response code. `StatsItems` keeps the figures of each topic and
group for the last minute, hour and day.
Source: spec semantics 22.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Container, Iterator, Mapping
from dataclasses import InitVar, dataclass, field
from datetime import date
from itertools import islice
from typing import Final, NamedTuple

from tandemmq.broker.arrivals import Arrivals
from tandemmq.broker.metric_counts import CreationTimes, TimerCounts, TransactionCounts
from tandemmq.broker.topics.topic_table import TopicTable
from tandemmq.protocol.bodies.stats import BrokerStatsAnswer as StatsBody
from tandemmq.protocol.bodies.stats import BrokerStatsItem
from tandemmq.protocol.topic_names import is_system_topic
from tandemmq.store.message_store import MessageStore
from tandemmq.store.options import BrokerRole
from tandemmq.telemetry.metrics import QUEUES_READ_MAX
from tandemmq.telemetry.rocketmq_metrics import SERIES_MAX as METRIC_SERIES_MAX

SAMPLE_PERIOD_S = 10
WINDOWS_S = (10, 60, 600)
TOPICS_COUNTED_MAX = 4_096
GROUPS_COUNTED_MAX = 8_192


@dataclass(slots=True)
class TopicCounts:
    """Messages by topic; beyond `TOPICS_COUNTED_MAX`, new topics are not counted."""

    counts: dict[str, int] = field(default_factory=dict)

    def add(self, topic: str, count: int) -> None:
        counts = self.counts
        before = counts.get(topic)
        if before is not None:
            counts[topic] = before + count
        elif len(counts) < TOPICS_COUNTED_MAX:
            counts[topic] = count

    def keep(self, topics: Container[str]) -> None:
        """Forgets all topics but these."""
        self.counts = {topic: count for topic, count in self.counts.items() if topic in topics}


@dataclass(slots=True)
class GroupCounts:
    """[messages, bytes, times] by `topic@group`, with a bound of `GROUPS_COUNTED_MAX` keys."""

    rows: dict[str, list[int]] = field(default_factory=dict)

    def add(self, key: str, count: int, size: int, times: int = 1) -> None:
        row = self.rows.get(key)
        if row is not None:
            row[0] += count
            row[1] += size
            row[2] += times
        elif len(self.rows) < GROUPS_COUNTED_MAX:
            self.rows[key] = [count, size, times]

    def keep_topics(self, topics: Container[str]) -> None:
        """Forgets all keys whose topic is not among these."""
        self.rows = {key: row for key, row in self.rows.items() if key.partition("@")[0] in topics}


class Counters(NamedTuple):
    """The counters of `BrokerStats` that have rates, at one moment, by the same names."""

    at_s: float
    put_count: int
    put_bytes: int
    got_count: int
    got_bytes: int
    found_count: int
    missed_count: int
    replicated_count: int


@dataclass(slots=True)
class BrokerStats:
    """The counters; each only grows."""

    now_s: InitVar[float]
    arrivals: Arrivals = field(default_factory=lambda: Arrivals(METRIC_SERIES_MAX))
    put_bytes: int = 0  # bodies of the messages passed to the store
    replicated_count: int = 0  # records that a slave copied; not sends
    replicated_bytes: int = 0
    send_refusals: dict[int, int] = field(default_factory=dict)  # rejected before the store, by code
    got_count: int = 0  # messages sent to consumers
    got_bytes: int = 0
    found_count: int = 0  # pulls that found messages
    missed_count: int = 0
    pull_endings: dict[int, int] = field(default_factory=dict)  # answered without messages, by code
    topics_out: TopicCounts = field(default_factory=TopicCounts)
    groups_out: GroupCounts = field(default_factory=GroupCounts)  # deliveries; times: pulls and pops
    sent_back: GroupCounts = field(default_factory=GroupCounts)  # messages that groups sent back for a retry
    dead_letters: GroupCounts = field(default_factory=GroupCounts)  # by the topic they came from
    redelivered: GroupCounts = field(default_factory=GroupCounts)  # popped messages stored again for a retry
    checkpoints: GroupCounts = field(default_factory=GroupCounts)  # leases: pops, changed invisible times
    acks: GroupCounts = field(default_factory=GroupCounts)  # of pops; a changed invisible time counts as one
    timers: TimerCounts = field(default_factory=TimerCounts)
    transactions: TransactionCounts = field(default_factory=TransactionCounts)
    creations: CreationTimes = field(default_factory=CreationTimes)
    checkpoint_count: int = 0
    ack_count: int = 0
    # Users' messages in and out at midnight yesterday and today; 0 before the start.
    put_mornings: tuple[int, int] = (0, 0)
    got_mornings: tuple[int, int] = (0, 0)
    _day: date | None = None
    _samples: deque[Counters] = field(init=False)

    def __post_init__(self, now_s: float) -> None:
        self._samples = deque([self._now(now_s)], maxlen=WINDOWS_S[-1] // SAMPLE_PERIOD_S + 1)

    @property
    def put_count(self) -> int:
        """The number of messages passed to the store."""
        return self.arrivals.sent_count

    def fold(self, half_end: int) -> Iterator[tuple[()]]:
        """Counts what was only recorded: arrivals, and transactions whose half messages are before
        `half_end`. Yields nothing where other tasks may run.
        """
        yield from self.arrivals.fold()
        yield from self.transactions.fold(half_end)

    @property
    def refused_count(self) -> int:
        """The number of sends answered with an error."""
        return sum(self.send_refusals.values())

    def keep_topics(self, topics: Container[str]) -> None:
        """Forgets the metrics of deleted topics; `StatsItems.forget` does so with the others."""
        self.arrivals.keep_topics(topics)
        self.dead_letters.keep_topics(topics)
        self.redelivered.keep_topics(topics)
        self.timers.keep_topics(topics)
        self.transactions.keep_topics(topics)

    def count_send_refusal(self, code: int) -> None:
        """Counts a send that was answered with this code before it reached the store."""
        self.send_refusals[code] = self.send_refusals.get(code, 0) + 1

    def count_checkpoint(self, topic: str, group: str) -> None:
        """Counts a stored lease, of a pop or of a change of the invisible time."""
        self.checkpoint_count += 1
        self.checkpoints.add(f"{topic}@{group}", 1, 0)

    def count_acks(self, topic: str, group: str, count: int) -> None:
        """Counts acknowledged messages that were popped; each is a time of its own."""
        self.ack_count += count
        self.acks.add(f"{topic}@{group}", count, 0, count)

    def count_pull_ending(self, code: int) -> None:
        """Counts a pull that was answered with this code and no messages."""
        self.pull_endings[code] = self.pull_endings.get(code, 0) + 1

    def sample(self, now_s: float) -> None:
        """Stores the current counters for `rates`; called every `SAMPLE_PERIOD_S`."""
        self._samples.append(self._now(now_s))

    def note_day(self, day: date, put_count: int, got_count: int) -> None:
        """Records the counts of users' messages at the first call of a new day; called with each sample."""
        if self._day is not None and day != self._day:
            self.put_mornings = (self.put_mornings[1], put_count)
            self.got_mornings = (self.got_mornings[1], got_count)
        self._day = day

    def rates(self, name: str, now_s: float) -> tuple[float, ...]:
        """Returns the rates per second over each window; a young broker's windows are as long as its
        uptime.
        """
        now = self._now(now_s)
        rates = []
        for window_s in WINDOWS_S:
            since = next((s for s in self._samples if s.at_s >= now_s - window_s - 0.5), self._samples[-1])
            elapsed_s = now_s - since.at_s
            grown = getattr(now, name) - getattr(since, name)
            rates.append(grown / elapsed_s if elapsed_s > 0 else 0.0)
        return tuple(rates)

    def _now(self, now_s: float) -> Counters:
        return Counters(now_s, *(getattr(self, name) for name in Counters._fields[1:]))


# The series of VIEW_BROKER_STATS_DATA, collected every 10 s from existing counters.
#
# Shape: a series keeps samples of (time, messages, bytes, times): every 10 s for the minute, 10 min for the
# hour and 1 h for the day, as in RocketMQ. A figure is the difference of two samples.
# Strategy: the messages of a topic are read from its queues, which number them; the bytes from the sizes in
# new queue entries. A send therefore costs nothing. Deliveries to groups are counted once per pull.
# At a bound: `SERIES_MAX` series of each kind, about 1.5 KiB each. A further topic or group has no series
# until another is forgotten, because its topic was deleted or nothing arrived for a day. The first
# `QUEUES_READ_MAX` queues are read. If a queue grew by more than `ENTRIES_READ_MAX` entries, the sizes of the
# newest ones are extrapolated.

SERIES_MAX: Final = 8_192
MINUTE_STEP_S: Final = 10
HOUR_STEP_S: Final = 600
DAY_STEP_S: Final = 3_600
DAY_S: Final = 86_400
KEYS_PER_STEP: Final = 256
_WINDOWS: Final = ((MINUTE_STEP_S, 7), (HOUR_STEP_S, 7), (DAY_STEP_S, 25))
_ROW: Final = 4  # time, count, bytes, times


class StatsTotals(NamedTuple):
    """The totals of a series since counting began. `times`: the number of pulls or sends."""

    messages: float = 0
    bytes: float = 0
    times: float = 0


class Series:
    """The samples of one topic or group."""

    __slots__ = ("_rows", "changed_at_s", "totals")

    def __init__(self, at_s: float, totals: StatsTotals) -> None:
        """Creates a series that starts with `totals` at `at_s`."""
        self.totals = totals
        self.changed_at_s = at_s
        self._rows = tuple(array("d", (at_s, *totals)) for _ in _WINDOWS)

    def note(self, at_s: float, totals: StatsTotals) -> None:
        """Adds a sample of the current totals; called every `MINUTE_STEP_S`."""
        if totals != self.totals:
            self.totals, self.changed_at_s = totals, at_s
        for rows, (step_s, row_max) in zip(self._rows, _WINDOWS, strict=True):
            # Half a second of slack: a timer that fired early must not skip a step.
            if at_s - rows[-_ROW] >= step_s - 0.5:
                rows.extend((at_s, *totals))
                if len(rows) > row_max * _ROW:
                    del rows[:_ROW]

    def figures(self, *, is_bytes: bool) -> StatsBody:
        """Returns the figures of the three spans up to the last sample; `is_bytes` selects sizes, not
        counts.
        """
        minute, hour, day = (self._figure(rows, is_bytes) for rows in self._rows)
        return StatsBody(minute=minute, hour=hour, day=day)

    def _figure(self, rows: array[float], is_bytes: bool) -> BrokerStatsItem:
        field = 2 if is_bytes else 1
        grown = self.totals[field - 1] - rows[field]
        times = self.totals.times - rows[3]
        elapsed_s = max(self._rows[0][-_ROW] - rows[0], 0.0)
        return BrokerStatsItem(
            sum=int(grown),
            tps=round(grown / elapsed_s, 4) if elapsed_s > 0 else 0.0,
            average=round(grown / times, 4) if times > 0 else 0.0,
        )


class SeriesTable:
    """The series of one kind, by key. A key that never grew has none, and is unknown to tools as in
    RocketMQ.
    """

    def __init__(self, *, count_max: int = SERIES_MAX) -> None:
        self._series: dict[str, Series] = {}
        self._count_max = count_max
        self._last_sample_s: float | None = None

    def __len__(self) -> int:
        return len(self._series)

    def get(self, key: str) -> Series | None:
        return self._series.get(key)

    def sample(self, at_s: float, totals: Mapping[str, StatsTotals]) -> None:
        """Runs `steps` to the end."""
        for _ in self.steps(at_s, totals):
            pass

    def steps(self, at_s: float, totals: Mapping[str, StatsTotals]) -> Iterator[None]:
        """Samples all totals; a key seen for the first time starts at the last sample. Yields where other
        tasks may run. If totals decreased (the topic was deleted and created again), the series starts anew.
        """
        began_s = at_s if self._last_sample_s is None else self._last_sample_s
        for number, (key, now) in enumerate(totals.items(), start=1):
            if number % KEYS_PER_STEP == 0:
                yield
            series = self._series.get(key)
            if series is not None and now.messages < series.totals.messages:
                del self._series[key]
                series = None
            if series is None:
                if len(self._series) >= self._count_max or not now.messages:
                    continue
                series = self._series[key] = Series(began_s, StatsTotals())
            series.note(at_s, now)
        self._last_sample_s = at_s

    def keep(self, keys: Container[str], at_s: float) -> None:
        """Forgets keys that are not among these, and series without a change for a day."""
        self._series = {
            key: series
            for key, series in self._series.items()
            if key in keys and at_s - series.changed_at_s < DAY_S
        }


ENTRIES_READ_MAX: Final = 64
QUEUES_PER_STEP: Final = 256

QueueKey = tuple[str, int]


class StatsItems:
    """The series by statistics name; `steps` is run every 10 s on the loop."""

    def __init__(
        self, cluster_name: str, *, store: MessageStore, topics: TopicTable, stats: BrokerStats
    ) -> None:
        self._cluster_name = cluster_name
        self._store = store
        self._topics = topics
        self._stats = stats
        self._ends: dict[QueueKey, int] = dict(self._queue_ends())
        self._topics_in: dict[str, StatsTotals] = {}
        self._queues_in: dict[str, StatsTotals] = {}
        self._users_in = StatsTotals()
        self._users_stored = 0
        self._forgotten_out = 0
        self._by_topic = SeriesTable()
        self._by_queue = SeriesTable()
        self._broker = SeriesTable()
        self._of_groups = {
            "GROUP_GET_NUMS": (stats.groups_out, SeriesTable()),
            "SNDBCK_PUT_NUMS": (stats.sent_back, SeriesTable()),
            "GROUP_CK_NUMS": (stats.checkpoints, SeriesTable()),
            "GROUP_ACK_NUMS": (stats.acks, SeriesTable()),
        }
        self._tables: Mapping[str, tuple[SeriesTable, bool]] = {
            "TOPIC_PUT_NUMS": (self._by_topic, False),
            "TOPIC_PUT_SIZE": (self._by_topic, True),
            "QUEUE_PUT_NUMS": (self._by_queue, False),
            "QUEUE_PUT_SIZE": (self._by_queue, True),
            **{name: (series, False) for name, (_, series) in self._of_groups.items()},
            "GROUP_GET_SIZE": (self._of_groups["GROUP_GET_NUMS"][1], True),
        }

    @property
    def names(self) -> list[str]:
        return [*self._tables, *self._broker_totals()]

    def find(self, name: str, key: str) -> tuple[Series, bool] | None:
        """Returns the series and whether its bytes are requested; None if it is unknown or never grew."""
        if name not in self._tables:
            series = self._broker.get(name) if key == self._cluster_name else None
            return None if series is None else (series, False)
        table, is_bytes = self._tables[name]
        series = table.get(key)
        return None if series is None else (series, is_bytes)

    def users_put_count(self) -> int:
        """Returns the messages stored in user topics since the start, including those a slave copied."""
        keys = [key for key in self._store.queue_keys()[:QUEUES_READ_MAX] if not is_system_topic(key[0])]
        return self._users_stored + sum(max(0, self._grown(key, self._store.queue_max(*key))) for key in keys)

    def users_got_count(self) -> int:
        """Returns the messages delivered to groups from user topics since the start."""
        return self._forgotten_out + self._users_out()

    def tps(self, name: str, key: str) -> float:
        """Returns the messages per second in the last minute; 0 if unknown."""
        found = self.find(name, key)
        return 0.0 if found is None else found[0].figures(is_bytes=found[1]).minute.tps

    def sample(self, at_s: float) -> None:
        """Runs `steps` to the end."""
        for _ in self.steps(at_s):
            pass

    def steps(self, at_s: float) -> Iterator[None]:
        """Samples all counters; yields where other tasks may run, every few hundred queues or keys."""
        yield from self._read_queues()
        yield from self._by_topic.steps(at_s, self._topics_in)
        yield from self._by_queue.steps(at_s, self._queues_in)
        for counts, table in self._of_groups.values():
            totals = {key: StatsTotals(*row) for key, row in counts.rows.items()}
            yield
            yield from table.steps(at_s, totals)
        self._broker.sample(at_s, self._broker_totals())

    def _broker_totals(self) -> dict[str, StatsTotals]:
        stats = self._stats
        users_out = self.users_got_count()
        return {
            "BROKER_PUT_NUMS": StatsTotals(stats.put_count, stats.put_bytes, stats.put_count),
            "BROKER_GET_NUMS": StatsTotals(stats.got_count, stats.got_bytes, stats.found_count),
            "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC": self._users_in,
            "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC": StatsTotals(users_out, 0, users_out),
            "BROKER_CK_NUMS": StatsTotals(stats.checkpoint_count, 0, stats.checkpoint_count),
            "BROKER_ACK_NUMS": StatsTotals(stats.ack_count, 0, stats.ack_count),
        }

    def _users_out(self) -> int:
        """Returns the messages delivered from user topics, over the rows that still exist."""
        rows = self._stats.groups_out.rows
        return sum(row[0] for key, row in rows.items() if not is_system_topic(key.partition("@")[0]))

    def forget(self, at_s: float) -> None:
        """Forgets the counters of deleted topics; called occasionally."""
        known = set(self._topics.names)
        self._topics_in = {topic: row for topic, row in self._topics_in.items() if topic in known}
        self._queues_in = {
            key: row for key, row in self._queues_in.items() if key.rpartition("@")[0] in known
        }
        self._by_topic.keep(known, at_s)
        self._by_queue.keep(self._queues_in, at_s)
        users_out = self._users_out()
        for counts, table in self._of_groups.values():
            counts.keep_topics(known)
            table.keep(counts.rows, at_s)
        self._forgotten_out += users_out - self._users_out()

    def _queue_ends(self) -> Iterator[tuple[QueueKey, int]]:
        for key in islice(self._store.queue_keys(), QUEUES_READ_MAX):
            yield key, self._store.queue_max(*key)

    def _read_queues(self) -> Iterator[None]:
        """Counts the growth of queues since the last call. A slave's queues grow by copying, which is not a
        send.
        """
        keys = self._store.queue_keys()[:QUEUES_READ_MAX]
        is_slave = self._store.role is BrokerRole.SLAVE
        after: dict[QueueKey, int] = {}
        for number, key in enumerate(keys, start=1):
            end = after[key] = self._store.queue_max(*key)
            grown = self._grown(key, end)
            self._ends[key] = end
            if grown > 0:
                if not is_system_topic(key[0]):
                    self._users_stored += grown
                if not is_slave:
                    self._count(key, end, grown)
            if number % QUEUES_PER_STEP == 0:
                yield
        self._ends = after

    def _grown(self, key: QueueKey, end: int) -> int:
        """Returns the queue's growth since it was last read; a slave's new queue may begin at any offset."""
        before = self._ends.get(key)
        return end - (self._store.queue_min(*key) if before is None else before)

    def _count(self, key: QueueKey, end: int, grown: int) -> None:
        count = min(grown, ENTRIES_READ_MAX)
        entries = self._store.queue_entries(*key, end - count, count)
        size = sum(entry[1] for entry in entries) * grown / len(entries) if entries else 0
        topic, queue = key[0], f"{key[0]}@{key[1]}"
        self._topics_in[topic] = _grown(self._topics_in.get(topic), grown, size)
        self._queues_in[queue] = _grown(self._queues_in.get(queue), grown, size)
        if not is_system_topic(topic):
            self._users_in = _grown(self._users_in, grown, size)


def _grown(total: StatsTotals | None, count: int, size: float) -> StatsTotals:
    messages, size_before, times = total or StatsTotals()
    return StatsTotals(messages + count, size_before + size, times + count)
