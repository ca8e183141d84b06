"""Queue locks: one holder, renewed by asking again, free after a while (spec remoting 9.8)."""

from __future__ import annotations

from tandemmq.broker.clients.queue_locks import QueueLocks
from tandemmq.protocol.bodies.message_queue import MessageQueue

Q0, Q1 = (MessageQueue(topic="T", broker_name="b", queue_id=i) for i in (0, 1))


def test_second_client_gets_what_is_free() -> None:
    locks = QueueLocks(60_000)
    assert locks.lock("g", "c1", [Q0], now_ms=0) == [Q0]
    assert locks.lock("g", "c2", [Q0, Q1], now_ms=1) == [Q1]
    assert locks.lock("other", "c2", [Q0], now_ms=1) == [Q0]


def test_lock_is_renewed_by_asking_and_expires_otherwise() -> None:
    locks = QueueLocks(60_000)
    locks.lock("g", "c1", [Q0], now_ms=0)
    locks.lock("g", "c1", [Q0], now_ms=50_000)
    assert locks.lock("g", "c2", [Q0], now_ms=110_000) == []
    assert locks.has_lock("g", now_ms=110_000)
    assert not locks.has_lock("g", now_ms=110_001)
    assert locks.lock("g", "c2", [Q0], now_ms=110_001) == [Q0]


def test_only_the_holder_unlocks() -> None:
    locks = QueueLocks(60_000)
    locks.lock("g", "c1", [Q0], now_ms=0)
    locks.unlock("g", "c2", [Q0])
    assert locks.has_lock("g", now_ms=1)
    locks.unlock("g", "c1", [Q0, Q1])
    locks.unlock("nobody", "c1", [Q0])
    assert not locks.has_lock("g", now_ms=1)
    assert locks._groups == {}


def test_expired_locks_leave_the_table() -> None:
    locks = QueueLocks(60_000)
    locks.lock("g", "c1", [Q0, Q1], now_ms=0)
    locks.lock("g", "c1", [Q1], now_ms=100_000)
    assert list(locks._groups["g"]) == [Q1]
    locks.lock("g", "c1", [], now_ms=300_000)
    assert locks._groups == {}
