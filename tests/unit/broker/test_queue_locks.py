"""Queue locks: one holder, renewed by asking again, free after a timeout (spec remoting 9.8)."""

from __future__ import annotations

from sim.manual_clock import ManualClock
from tandemmq.broker.clients.queue_locks import QueueLocks
from tandemmq.protocol.bodies.codec import MessageQueue

Q0, Q1 = (MessageQueue(topic="T", broker_name="b", queue_id=i) for i in (0, 1))


def make_locks() -> tuple[QueueLocks, ManualClock]:
    clock = ManualClock()
    return QueueLocks(60_000, clock), clock


def test_second_client_gets_what_is_free() -> None:
    locks, _ = make_locks()
    assert locks.lock("g", "c1", [Q0]) == [Q0]
    assert locks.lock("g", "c2", [Q0, Q1]) == [Q1]
    assert locks.lock("other", "c2", [Q0]) == [Q0]


def test_lock_is_renewed_by_asking_and_expires_otherwise() -> None:
    locks, clock = make_locks()
    locks.lock("g", "c1", [Q0])
    clock.advance(50.0)
    locks.lock("g", "c1", [Q0])
    clock.advance(60.0)
    assert locks.lock("g", "c2", [Q0]) == []
    assert locks.has_lock("g")
    clock.advance(0.001)
    assert not locks.has_lock("g")
    assert locks.lock("g", "c2", [Q0]) == [Q0]


def test_a_wall_clock_that_is_set_frees_no_lock() -> None:
    clock = ManualClock()
    locks = QueueLocks(60_000, clock)
    locks.lock("g", "c1", [Q0])
    clock.skew_ms = 3_600_000
    assert locks.has_lock("g")
    assert locks.lock("g", "c2", [Q0]) == []


class Connection:
    is_closed = False


def test_lock_of_a_closed_connection_is_free_when_its_client_gave_it_up() -> None:
    """A running client trusts a lock for 30 s; one that reconnected keeps it."""
    locks, clock = make_locks()
    first, second = Connection(), Connection()
    locks.lock("g", "c1", [Q0, Q1], first)
    first.is_closed = True
    clock.advance(35.0)
    assert locks.lock("g", "c2", [Q0]) == []
    locks.lock("g", "c1", [Q1], second)
    clock.advance(0.001)
    assert locks.lock("g", "c2", [Q0, Q1]) == [Q0]


def test_only_the_holder_unlocks() -> None:
    locks, _ = make_locks()
    locks.lock("g", "c1", [Q0])
    locks.unlock("g", "c2", [Q0])
    assert locks.has_lock("g")
    locks.unlock("g", "c1", [Q0, Q1])
    locks.unlock("nobody", "c1", [Q0])
    assert not locks.has_lock("g")
    assert locks._groups == {}


def test_expired_locks_leave_the_table() -> None:
    locks, clock = make_locks()
    locks.lock("g", "c1", [Q0, Q1])
    clock.advance(100.0)
    locks.lock("g", "c1", [Q1])
    assert list(locks._groups["g"]) == [Q1]
    clock.advance(200.0)
    locks.lock("g", "c1", [])
    assert locks._groups == {}
