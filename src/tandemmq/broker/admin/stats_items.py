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

ENTRIES_READ_MAX: Final = 2_048

QueueKey = tuple[str, int]


class StatsItems:
    """Series by stats name; `sample` is called every 10 s on the loop."""

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
        self._read_queues()
        stats = self._stats
        self._by_topic.sample(at_s, self._topics_in)
        self._by_group.sample(at_s, {key: Totals(*row) for key, row in stats.groups_out.rows.items()})
        self._sent_back.sample(at_s, {key: Totals(*row) for key, row in stats.sent_back.rows.items()})
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

    def _read_queues(self) -> None:
        """What came since the last time; a slave's queues grow by copying, which is no send."""
        before, after = self._ends, dict(self._queue_ends())
        self._ends = after
        if self._store.role is BrokerRole.SLAVE:
            return
        for (topic, queue_id), end in after.items():
            grown = end - before.get((topic, queue_id), 0)
            if grown > 0:
                count = min(grown, ENTRIES_READ_MAX)
                entries = self._store.queue_entries(topic, queue_id, end - count, count)
                size = sum(entry[1] for entry in entries) * grown / len(entries) if entries else 0
                total = self._topics_in.get(topic, Totals())
                self._topics_in[topic] = Totals(
                    total.messages + grown, total.bytes + size, total.times + grown
                )


_BROKER_ITEMS: Final = ("BROKER_PUT_NUMS", "BROKER_GET_NUMS")
