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


class Connection:
    is_closed = False


def test_lock_of_a_closed_connection_is_free_when_its_client_gave_it_up() -> None:
    """A client that lives on trusts a lock for 30 s; one that came back by another connection keeps it."""
    locks = QueueLocks(60_000)
    first, second = Connection(), Connection()
    locks.lock("g", "c1", [Q0, Q1], 0, first)
    first.is_closed = True
    assert locks.lock("g", "c2", [Q0], 35_000) == []
    locks.lock("g", "c1", [Q1], 35_000, second)
    assert locks.lock("g", "c2", [Q0, Q1], 35_001) == [Q0]


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
