"""The counts of timer messages and transactions."""

from __future__ import annotations

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


def test_a_transaction_that_is_found_twice_counts_once() -> None:
    counts = TransactionCounts()
    for root in (1, 2, 1):
        counts.begin(root, "T")
    counts.begin(3, "U")
    assert counts.open_by_topic() == {"T": 2, "U": 1}
    counts.end(1, "T", is_commit=True, age_s=7)
    counts.end(2, "T", is_commit=False, age_s=7)
    counts.discard(3)
    assert counts.open_by_topic() == {"T": 0}
    assert (counts.commits, counts.rollbacks) == ({"T": 1}, {"T": 1})
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
    assert transactions.commits.keys() == transactions.rollbacks.keys() == {"T"}
    assert [list(found.rows) for found in (stats.dead_letters, stats.redelivered)] == [["T@g"]] * 2
