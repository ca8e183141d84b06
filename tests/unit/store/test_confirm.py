"""Acknowledgements and the lines of waiting sends, without a store."""

from __future__ import annotations

import pytest

from tandemmq.store.confirm import AckTable, WaitFor, WaitLines, plan_wait
from tandemmq.store.outcomes import PutStatus
from tandemmq.units import ReplicaId

A, B, C = (ReplicaId(name) for name in "abc")


class Sends:
    """Names the sends of a test."""

    def __init__(self) -> None:
        self.lines = WaitLines()
        self.told: list[tuple[str, PutStatus]] = []

    def add(self, name: str, wait_for: WaitFor, end: int, *, now: float = 0.0) -> None:
        self.lines.add(
            wait_for, end, lambda s: self.told.append((name, s)), ack_deadline=now + 3, flush_deadline=now + 5
        )

    def release(self, *, flushed: int = 0, acknowledged: int = 0) -> list[str]:
        return self._tell(self.lines.release(flushed=flushed, acknowledged=acknowledged))

    def expire(self, now: float) -> list[str]:
        return self._tell(self.lines.expire(now))

    def _tell(self, answers: object) -> list[str]:
        self.told.clear()
        for on_done, status in answers:  # type: ignore[attr-defined]
            on_done(status)
        return [f"{name}:{status.name}" for name, status in self.told]


@pytest.mark.parametrize(
    ("waits", "sync_flush", "ack_count", "expected"),
    [
        (False, True, 1, WaitFor.NOTHING),
        (True, False, 0, WaitFor.NOTHING),
        (True, True, 0, WaitFor.FLUSH),
        (True, False, 1, WaitFor.ACKS),
        (True, True, 2, WaitFor.ACKS_AND_FLUSH),
    ],
)
def test_what_a_send_waits_for(waits: bool, sync_flush: bool, ack_count: int, expected: WaitFor) -> None:
    assert plan_wait(waits=waits, sync_flush=sync_flush, ack_count=ack_count) is expected


def test_quorum_counts_replicas_and_not_reports() -> None:
    acks = AckTable()
    assert acks.acknowledged(1, log_end=100) == 0
    acks.report(A, 50)
    acks.report(A, 60)
    assert acks.acknowledged(1, log_end=100) == 60
    assert acks.acknowledged(2, log_end=100) == 0
    acks.report(B, 40)
    acks.report(C, 70)
    assert [acks.acknowledged(n, log_end=100) for n in (1, 2, 3)] == [70, 60, 40]
    acks.forget(C)
    acks.forget(C)
    assert acks.acknowledged(1, log_end=100) == 60
    assert dict(acks.positions()) == {A: 60, B: 40}


def test_a_replica_that_began_late_says_nothing_of_what_waited_before() -> None:
    acks = AckTable()
    acks.note_late_start(64)
    acks.report(A, 80)
    assert acks.acknowledged(1, log_end=100, oldest=60) == 0
    assert acks.has_late_starts
    acks.report(B, 70)  # whichever of the two began late, one of them holds it
    assert acks.acknowledged(1, log_end=100, oldest=60) == 70
    assert acks.acknowledged(2, log_end=100, oldest=60) == 0
    assert acks.acknowledged(2, log_end=100, oldest=65) == 70
    assert not acks.has_late_starts


def test_late_starts_are_bounded_and_forgotten_when_nothing_waits() -> None:
    acks = AckTable()
    for _ in range(1_000):
        acks.note_late_start(64)
    acks.report(A, 80)
    assert acks.acknowledged(1, log_end=100, oldest=60) == 0
    assert acks.acknowledged(1, log_end=100) == 80


def test_a_replica_ahead_of_the_log_counts_for_nothing() -> None:
    """spec replication 4.10."""
    acks = AckTable()
    acks.report(A, 101)
    assert acks.acknowledged(1, log_end=100) == 0
    assert acks.in_sync_count(log_end=100, gap_bytes_max=10) == 0
    acks.report(A, 100)
    assert acks.acknowledged(1, log_end=100) == 100


def test_in_sync_count_is_strict_about_the_gap() -> None:
    acks = AckTable()
    acks.report(A, 90)
    acks.report(B, 91)
    assert acks.in_sync_count(log_end=100, gap_bytes_max=10) == 1


def test_lines_release_in_order() -> None:
    sends = Sends()
    for number, end in enumerate((10, 20, 30)):
        sends.add(f"flush{number}", WaitFor.FLUSH, end)
        sends.add(f"acks{number}", WaitFor.ACKS, end)
    assert sends.release(flushed=9, acknowledged=9) == []
    assert sends.release(flushed=20) == ["flush0:PUT_OK", "flush1:PUT_OK"]
    assert sends.release(flushed=20, acknowledged=25) == ["acks0:PUT_OK", "acks1:PUT_OK"]
    assert len(sends.lines) == 2


def test_a_send_that_waits_for_both_needs_both() -> None:
    sends = Sends()
    sends.add("both", WaitFor.ACKS_AND_FLUSH, 10)
    assert sends.release(flushed=10) == []
    assert sends.release(flushed=10, acknowledged=10) == ["both:PUT_OK"]
    sends.add("both", WaitFor.ACKS_AND_FLUSH, 20)
    assert sends.release(flushed=10, acknowledged=20) == []
    # The acks were seen; that the replica leaves afterwards takes nothing back.
    assert sends.release(flushed=20, acknowledged=0) == ["both:PUT_OK"]


def test_time_outs_name_who_was_late_and_replicas_win() -> None:
    """spec replication 5.4."""
    sends = Sends()
    sends.add("disk", WaitFor.FLUSH, 10)
    sends.add("slave", WaitFor.ACKS, 10)
    sends.add("neither", WaitFor.ACKS_AND_FLUSH, 10)
    assert sends.lines.next_deadline() == 3
    assert sends.expire(2.9) == []
    assert sends.expire(3) == ["slave:FLUSH_SLAVE_TIMEOUT", "neither:FLUSH_SLAVE_TIMEOUT"]
    assert sends.lines.next_deadline() == 5
    assert sends.expire(5) == ["disk:FLUSH_DISK_TIMEOUT"]
    assert sends.lines.next_deadline() is None


def test_a_send_that_has_its_acks_times_out_by_the_disk() -> None:
    sends = Sends()
    sends.add("acked", WaitFor.ACKS_AND_FLUSH, 10)
    sends.add("late", WaitFor.ACKS_AND_FLUSH, 20)
    sends.release(acknowledged=10)
    assert sends.expire(3) == ["late:FLUSH_SLAVE_TIMEOUT"]
    assert sends.expire(5) == ["acked:FLUSH_DISK_TIMEOUT"]


def test_failing_ends_everything_with_one_status() -> None:
    sends = Sends()
    for wait_for in (WaitFor.FLUSH, WaitFor.ACKS, WaitFor.ACKS_AND_FLUSH):
        sends.add(wait_for.name, wait_for, 10)
    answers = sends.lines.fail_all(PutStatus.UNKNOWN_ERROR)
    assert [status for _, status in answers] == [PutStatus.UNKNOWN_ERROR] * 3
    assert len(sends.lines) == 0
