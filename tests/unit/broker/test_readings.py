"""The readings of a broker for RocketMQ's metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tandemmq.broker.readings import ROWS_COUNTED_PER_STEP, Readings, _delivery_labels, count_due
from tandemmq.telemetry import rocketmq_metrics as metrics
from tandemmq.telemetry.metrics import Sample

NOW_MS = 1_000_000


class Worked:
    """Counts the rows that a reading looks at; each step may look at a bounded number."""

    def __init__(self) -> None:
        self.count = 0

    @property
    def language(self) -> int:
        self.count += 1
        return 0

    def steps(self, reading: Iterable[Iterable[Sample]]) -> tuple[int, list[Sample]]:
        """Returns the most rows of a step, and the samples."""
        most, before, found = 0, self.count, []
        for piece in reading:
            found += piece
            most, before = max(most, self.count - before), self.count
        return max(most, self.count - before), found


class Clients:
    """The members of groups; 10,000 clients are in each of two groups."""

    def __init__(self, member: object) -> None:
        consumption = SimpleNamespace(consume_type="CONSUME_POP")
        self.groups = [SimpleNamespace(name=name, consumption=consumption) for name in ("A", "B")]
        self._members = [member] * 10_000

    def members(self, _group: object) -> list[object]:
        return self._members


def readings(**core: object) -> Readings:
    options = SimpleNamespace(cluster_name="C", broker_name="b", metrics_series_max=100)
    tables = {name: SimpleNamespace(on_change=[]) for name in ("topics", "groups")}
    known: Any = SimpleNamespace(**{"options": options, **tables, **core})
    return Readings(known, known)


def test_clients_are_counted_in_steps() -> None:
    worked = Worked()
    member = type("Counted", (), {"language": property(lambda _: worked.language), "version": 0})()
    clients = Clients(member)
    subject = readings(producers=clients, consumers=clients)
    for reading, counts in ((subject._read_producers, [20_000]), (subject._read_consumers, [10_000] * 2)):
        most, samples = worked.steps(reading())
        assert [sample.value for sample in samples] == counts
        assert most <= ROWS_COUNTED_PER_STEP


def test_slots_of_timers_are_counted_in_steps() -> None:
    worked = Worked()

    def read_due() -> Iterator[tuple[int, int]]:
        for number in range(10_000):
            worked.count += 1
            yield NOW_MS + number * 1_000, 2

    subject = readings(
        clock=SimpleNamespace(now_ms=lambda: NOW_MS + 3_000),
        store=SimpleNamespace(queue_max=lambda *_: 7),
        stats=SimpleNamespace(timers=SimpleNamespace(read_due=read_due, read_to=5)),
    )
    most, samples = worked.steps(subject._read_timers())
    assert most <= ROWS_COUNTED_PER_STEP
    found = {sample.metric: sample.value for sample in samples if sample.metric is not metrics.TIMER_SNAPSHOT}
    assert (found[metrics.TIMER_DEQUEUE_LAG], found[metrics.TIMER_ENQUEUE_LAG]) == (20_000, 2)
    assert found[metrics.TIMER_DEQUEUE_LATENCY] == 2_000
    snapshot = [sample.value for sample in samples if sample.metric is metrics.TIMER_SNAPSHOT]
    assert snapshot[:3] == [16, 110, 480]


def test_waiting_messages_are_in_the_range_in_which_they_are_due() -> None:
    due = {NOW_MS - 1: 1, NOW_MS: 1, NOW_MS + 4_999: 1, NOW_MS + 5_000: 10, NOW_MS + 7_200_000: 6}
    assert count_due(due, NOW_MS) == [3, 10, 0, 0, 0, 6, 0, 0, 0]
    assert count_due({NOW_MS + 90_000_000: 2}, NOW_MS)[-1] == 2
    assert sum(count_due({}, NOW_MS)) == 0


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("T", ("T", "G", "false", "false")),
        ("%RETRY%G", ("%RETRY%G", "G", "true", "false")),
        ("%RETRY%G_T", ("T", "G", "true", "false")),
        ("%RETRY%G+T", ("T", "G", "true", "false")),
        ("SCHEDULE_TOPIC_XXXX", ("SCHEDULE_TOPIC_XXXX", "G", "false", "true")),
    ],
)
def test_labels_of_deliveries(topic: str, expected: tuple[str, ...]) -> None:
    assert _delivery_labels(f"{topic}@G") == expected
