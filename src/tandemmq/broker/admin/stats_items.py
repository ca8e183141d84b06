"""Collects the figures of topics and groups from counters that exist anyway, every 10 s.

Strategy:   what came into a topic is read from its queues, which number their messages; the bytes from the
            sizes in the new queue entries. So a send pays nothing. What groups got is counted once per pull.
At a bound: the first `QUEUES_READ_MAX` queues are read; of a queue that grew by more than `ENTRIES_READ_MAX`
            entries the sizes of the newest ones stand for all.
Source:     spec semantics 22 (names and keys of the items).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from tandemmq.broker.admin.stats_series import Series, SeriesTable, Totals
from tandemmq.broker.stats import BrokerStats
from tandemmq.broker.topics.topic_table import TopicTable
from tandemmq.store.message_store import MessageStore
from tandemmq.store.options import BrokerRole
from tandemmq.telemetry.metrics import QUEUES_READ_MAX

ENTRIES_READ_MAX: Final = 64
QUEUES_PER_STEP: Final = 256

QueueKey = tuple[str, int]


class StatsItems:
    """Series by stats name; `steps` is run every 10 s on the loop."""

    def __init__(
        self, cluster_name: str, *, store: MessageStore, topics: TopicTable, stats: BrokerStats
    ) -> None:
        self._cluster_name = cluster_name
        self._store = store
        self._topics = topics
        self._stats = stats
        self._ends: dict[QueueKey, int] = dict(self._queue_ends())
        self._topics_in: dict[str, Totals] = {}
        self._by_topic = SeriesTable()
        self._by_group = SeriesTable()
        self._sent_back = SeriesTable()
        self._broker = SeriesTable()
        self._tables: Mapping[str, tuple[SeriesTable, bool]] = {
            "TOPIC_PUT_NUMS": (self._by_topic, False),
            "TOPIC_PUT_SIZE": (self._by_topic, True),
            "GROUP_GET_NUMS": (self._by_group, False),
            "GROUP_GET_SIZE": (self._by_group, True),
            "SNDBCK_PUT_NUMS": (self._sent_back, False),
        }

    @property
    def names(self) -> list[str]:
        return [*self._tables, *_BROKER_ITEMS]

    def find(self, name: str, key: str) -> tuple[Series, bool] | None:
        """The series and whether its bytes are asked; None when it is unknown, or nothing happened yet."""
        if name in _BROKER_ITEMS:
            series = self._broker.get(name) if key == self._cluster_name else None
            return None if series is None else (series, False)
        table, is_bytes = self._tables.get(name, (None, False))
        series = None if table is None else table.get(key)
        return None if series is None else (series, is_bytes)

    def tps(self, name: str, key: str) -> float:
        """Messages per second in the last minute; 0 for what is unknown."""
        found = self.find(name, key)
        return 0.0 if found is None else found[0].figures(is_bytes=found[1]).minute.tps

    def sample(self, at_s: float) -> None:
        """As `steps`, all at once."""
        for _ in self.steps(at_s):
            pass

    def steps(self, at_s: float) -> Iterator[None]:
        """Takes in how all counters stand; yields where others may run, every few hundred queues or keys."""
        yield from self._read_queues()
        stats = self._stats
        groups_out = {key: Totals(*row) for key, row in stats.groups_out.rows.items()}
        sent_back = {key: Totals(*row) for key, row in stats.sent_back.rows.items()}
        yield
        yield from self._by_topic.steps(at_s, self._topics_in)
        yield from self._by_group.steps(at_s, groups_out)
        yield from self._sent_back.steps(at_s, sent_back)
        self._broker.sample(
            at_s,
            {
                "BROKER_PUT_NUMS": Totals(stats.put_count, stats.put_bytes, stats.put_count),
                "BROKER_GET_NUMS": Totals(stats.got_count, stats.got_bytes, stats.found_count),
            },
        )

    def forget(self, at_s: float) -> None:
        """Drop the counters of topics that are gone; called now and then."""
        known = set(self._topics.names)
        self._topics_in = {topic: row for topic, row in self._topics_in.items() if topic in known}
        self._by_topic.keep(known, at_s)
        for counts, table in (
            (self._stats.groups_out, self._by_group),
            (self._stats.sent_back, self._sent_back),
        ):
            counts.keep_topics(known)
            table.keep(counts.rows, at_s)

    def _queue_ends(self) -> Iterator[tuple[QueueKey, int]]:
        for key in islice(self._store.queue_keys(), QUEUES_READ_MAX):
            yield key, self._store.queue_max(*key)

    def _read_queues(self) -> Iterator[None]:
        """What came since the last time; a slave's queues grow by copying, which is no send."""
        keys = self._store.queue_keys()[:QUEUES_READ_MAX]
        is_slave = self._store.role is BrokerRole.SLAVE
        after: dict[QueueKey, int] = {}
        for number, key in enumerate(keys, start=1):
            end = after[key] = self._store.queue_max(*key)
            grown = end - self._ends.get(key, 0)
            if grown > 0 and not is_slave:
                self._count(key, end, grown)
            if number % QUEUES_PER_STEP == 0:
                yield
        self._ends = after

    def _count(self, key: QueueKey, end: int, grown: int) -> None:
        count = min(grown, ENTRIES_READ_MAX)
        entries = self._store.queue_entries(*key, end - count, count)
        size = sum(entry[1] for entry in entries) * grown / len(entries) if entries else 0
        total = self._topics_in.get(key[0], Totals())
        self._topics_in[key[0]] = Totals(total.messages + grown, total.bytes + size, total.times + grown)


_BROKER_ITEMS: Final = ("BROKER_PUT_NUMS", "BROKER_GET_NUMS")
