"""The counts of timer messages and transactions."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tandemmq.broker import metric_counts
from tandemmq.broker.metric_counts import TimerCounts, TransactionCounts
from tandemmq.broker.stats import BrokerStats


def test_timer_messages_enter_wait_and_leave() -> None:
    counts = TimerCounts()
    counts.add("T", is_new=True, delay_s=2)
    counts.add("T", is_new=True, delay_s=700)
    counts.remove("T", is_delivered=True)
    counts.remove("T", is_delivered=False)
    assert (counts.enqueued, counts.dequeued, counts.waiting) == ({"T": 2}, {"T": 1}, {"T": 0})
    assert counts.delays_s["T"].counts == [1, 0, 1, 0, 0, 0, 0]


def test_timer_messages_that_are_read_again_wait_once() -> None:
    counts = TimerCounts()
    counts.add("T", is_new=True, delay_s=2)
    counts.read_again()
    assert counts.waiting == {"T": 0}, "a topic stays"
    counts.add("T", is_new=False, delay_s=2)
    assert (counts.enqueued, counts.waiting, counts.delays_s["T"].count) == ({"T": 1}, {"T": 1}, 1)


def folded(counts: TransactionCounts, stored_end: int) -> dict[str, int]:
    for _ in counts.fold(stored_end):
        pass
    return counts.open_by_topic()


def test_a_half_message_counts_once_it_is_stored() -> None:
    counts = TransactionCounts()
    counts.begin(4, "T")
    counts.begin(5, "T")
    assert folded(counts, 4) == {}
    counts.end(4, "T", is_commit=True, age_s=0)
    assert folded(counts, 5) == {"T": 1}, "one has ended, or is not stored: the order stays"
    assert folded(counts, 6) == {"T": 1}
    counts.discard(5, "T")
    assert folded(counts, 6) == {"T": 0}


def test_open_transactions_are_counted_in_steps_and_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = TransactionCounts()
    for root in range(10_000):
        counts.begin(root, f"T{root % 7}")
    lengths = [len(counts._changes)]
    for _ in counts.fold(10_000):
        lengths.append(len(counts._changes))
    lengths.append(len(counts._changes))
    steps = [before - after for before, after in pairwise(lengths)]
    assert (sum(steps), max(steps)) == (10_000, metric_counts.CHANGES_PER_STEP)
    assert counts.open_count == sum(counts.open_by_topic().values()) == 10_000
    monkeypatch.setattr(metric_counts, "OPEN_MAX", 10_000)
    counts.begin(10_000, "T0")
    folded(counts, 10_001)
    assert counts.open_count == 10_000


def test_a_transaction_that_is_found_twice_counts_once() -> None:
    counts = TransactionCounts()
    for root in (1, 2, 1):
        counts.begin(root, "T")
    counts.begin(3, "U")
    assert folded(counts, 4) == {"T": 2, "U": 1}
    counts.end(1, "T", is_commit=True, age_s=7)
    counts.end(2, "T", is_commit=False, age_s=7)
    counts.discard(3, "U")
    assert folded(counts, 4) == {"T": 0}
    assert (counts.finish_s["T"].count, counts.rollbacks, counts.open_count) == (1, {"T": 1}, 0)
    assert counts.finish_s["T"].counts == [0, 1, 0, 0, 0, 0, 0]


def test_topics_beyond_the_bound_are_not_counted() -> None:
    counts = TimerCounts(enqueued=dict.fromkeys(map(str, range(metric_counts.SERIES_MAX)), 1))
    counts.add("T", is_new=True, delay_s=2)
    assert "T" not in counts.enqueued
    assert counts.waiting == {"T": 1}


def test_deleted_topics_are_forgotten() -> None:
    stats = BrokerStats(0.0)
    for topic in ("T", "U"):
        stats.timers.add(topic, is_new=True, delay_s=2)
        stats.timers.remove(topic, is_delivered=True)
        stats.transactions.end(1, topic, is_commit=True, age_s=1)
        stats.transactions.end(2, topic, is_commit=False, age_s=1)
        stats.dead_letters.add(f"{topic}@g", 1, 0)
        stats.redelivered.add(f"{topic}@g", 1, 0)
    stats.keep_topics({"T"})
    timers, transactions = stats.timers, stats.transactions
    assert timers.enqueued.keys() == timers.dequeued.keys() == timers.waiting.keys() == {"T"}
    assert timers.delays_s.keys() == transactions.finish_s.keys() == {"T"}
    assert transactions.finish_s.keys() == transactions.rollbacks.keys() == {"T"}
    assert [list(found.rows) for found in (stats.dead_letters, stats.redelivered)] == [["T@g"]] * 2
