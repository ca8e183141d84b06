"""Acknowledgements and the lines of waiting sends, without a store."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tandemmq.store.confirm import AckTable, WaitFor, WaitLines, plan_wait
from tandemmq.store.outcomes import PutStatus
from tandemmq.units import ReplicaId

A, B, C = (ReplicaId(name) for name in "abc")


class Sends:
    """The named sends of a test."""

    def __init__(self) -> None:
        self.lines = WaitLines()
        self.told: list[tuple[str, PutStatus]] = []

    def add(
        self, name: str, wait_for: WaitFor, end: int, *, now: float = 0.0, since: int | None = None
    ) -> None:
        self.lines.add(
            wait_for,
            end,
            lambda s: self.told.append((name, s)),
            ack_deadline=now + 3,
            flush_deadline=now + 5,
            since=since,
        )

    def release(self, *, flushed: int = 0, acknowledged: int = 0, now: float = 0.0) -> list[str]:
        return self.release_by(lambda _since: acknowledged, flushed=flushed, now=now)

    def release_by(self, mark: Callable[[int], int], *, flushed: int = 0, now: float = 0.0) -> list[str]:
        return self._tell(self.lines.release(flushed=flushed, acknowledged=mark, ack_deadline=now + 3))

    def expire(self, now: float) -> list[str]:
        return self._tell(self.lines.expire(now))

    def _tell(self, answers: object) -> list[str]:
        self.told.clear()
        for on_done, status, _ in answers:  # type: ignore[attr-defined]
            on_done(status)
        return [f"{name}:{status.name}" for name, status in self.told]


@pytest.mark.parametrize(
    ("sync_flush", "ack_count", "expected"),
    [
        (False, 0, WaitFor.NOTHING),
        (True, 0, WaitFor.FLUSH),
        (False, 1, WaitFor.ACKS),
        (True, 2, WaitFor.ACKS_AND_FLUSH),
    ],
)
def test_plan_wait_by_flush_mode_and_ack_count(sync_flush: bool, ack_count: int, expected: WaitFor) -> None:
    assert plan_wait(sync_flush=sync_flush, ack_count=ack_count) is expected


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


def test_a_replica_counts_for_what_lies_behind_its_start() -> None:
    acks = AckTable()
    acks.report(A, 80, start=64)
    assert acks.acknowledged(1, log_end=100, since=64) == 0
    assert acks.acknowledged(1, log_end=100, since=65) == 80
    acks.report(B, 70)
    assert acks.acknowledged(1, log_end=100, since=64) == 70
    assert acks.acknowledged(2, log_end=100, since=64) == 0
    assert acks.acknowledged(2, log_end=100, since=65) == 70
    acks.report(A, 80)  # it was emptied and restarted with the log
    assert acks.acknowledged(2, log_end=100, since=64) == 70


def test_required_replica_counts_only_for_bytes_after_its_start() -> None:
    acks = AckTable()
    acks.required = frozenset({A})
    acks.report(A, 80, start=64)
    acks.report(B, 90)
    assert acks.acknowledged(1, log_end=100, since=64) == 0
    assert acks.acknowledged(1, log_end=100, since=65) == 80
    assert acks.acknowledged(1, log_end=100) == 80


def test_a_send_before_a_late_start_waits_and_those_behind_it_are_released_after_it() -> None:
    acks = AckTable()
    acks.report(A, 90, start=64)
    sends = Sends()
    sends.add("before", WaitFor.ACKS, 64, now=0)
    sends.add("behind", WaitFor.ACKS, 80, now=1)
    sends.add("not yet", WaitFor.ACKS, 95, now=1)

    def mark(since: int) -> int:
        return acks.acknowledged(1, log_end=100, since=since)

    assert sends.release_by(mark) == []
    assert sends.expire(3) == ["before:FLUSH_SLAVE_TIMEOUT"]
    assert sends.release_by(mark) == ["behind:PUT_OK"]


def test_a_repeat_waits_for_its_own_message_and_holds_up_nobody() -> None:
    acks = AckTable()
    acks.report(A, 90, start=64)
    sends = Sends()
    sends.add("repeat of old", WaitFor.ACKS, 80, since=10)
    sends.add("repeat of new", WaitFor.ACKS, 80, since=70)
    sends.add("send", WaitFor.ACKS, 85)

    def mark(since: int) -> int:
        return acks.acknowledged(1, log_end=100, since=since)

    assert sends.release_by(mark) == ["send:PUT_OK", "repeat of new:PUT_OK"]
    assert sends.lines.ack_count == 1
    acks.report(B, 80)
    assert sends.release_by(mark) == ["repeat of old:PUT_OK"]
    sends.add("in vain", WaitFor.ACKS_AND_FLUSH, 95, since=10)
    assert sends.release_by(mark, flushed=95, now=1) == []
    assert sends.expire(4) == ["in vain:FLUSH_SLAVE_TIMEOUT"]


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
    assert sends.release(flushed=9, acknowledged=10) == []
    assert sends.lines.ack_count == 0
    assert sends.release(flushed=10) == []
    assert sends.lines.ack_count == 1
    assert sends.release(flushed=10, acknowledged=10) == ["both:PUT_OK"]


def test_time_outs_name_who_was_late() -> None:
    """spec replication 5.4. Slaves receive flushed bytes only, so with a late disk they hold none of these
    sends.
    """
    sends = Sends()
    sends.add("disk", WaitFor.FLUSH, 10)
    sends.add("slave", WaitFor.ACKS, 10)
    sends.add("disk of both", WaitFor.ACKS_AND_FLUSH, 10)
    assert sends.lines.next_deadline() == 3
    assert sends.expire(2.9) == []
    assert sends.expire(3) == ["slave:FLUSH_SLAVE_TIMEOUT"]
    assert sends.lines.next_deadline() == 5
    assert sends.expire(5) == ["disk:FLUSH_DISK_TIMEOUT", "disk of both:FLUSH_DISK_TIMEOUT"]
    assert sends.lines.next_deadline() is None


def test_the_time_for_slaves_begins_with_the_flush() -> None:
    sends = Sends()
    sends.add("both", WaitFor.ACKS_AND_FLUSH, 10)
    assert sends.release(flushed=10, now=4) == []
    assert sends.lines.next_deadline() == 7
    assert sends.expire(7) == ["both:FLUSH_SLAVE_TIMEOUT"]


@pytest.mark.parametrize("wait_for", [WaitFor.FLUSH, WaitFor.ACKS, WaitFor.ACKS_AND_FLUSH])
def test_a_time_limit_that_is_lowered_lets_nobody_wait_for_ever(wait_for: WaitFor) -> None:
    lines = WaitLines()
    told: list[PutStatus] = []
    lines.add(wait_for, 10, told.append, ack_deadline=60, flush_deadline=60)
    lines.add(wait_for, 20, told.append, ack_deadline=1, flush_deadline=1)
    assert lines.next_deadline() == 60
    assert len(lines.expire(59)) == 0
    assert len(lines.expire(60)) == 2


@pytest.mark.parametrize("wait_for", [WaitFor.FLUSH, WaitFor.ACKS, WaitFor.ACKS_AND_FLUSH])
@pytest.mark.parametrize("ending", ["release", "expire", "fail"])
def test_sends_with_one_answer_count_each(wait_for: WaitFor, ending: str) -> None:
    lines = WaitLines()
    for count in (1, 7):
        lines.add(wait_for, 10 * count, lambda _: None, ack_deadline=1, flush_deadline=1, count=count)
    assert len(lines) == 8
    assert lines.ack_count == (8 if wait_for is WaitFor.ACKS else 0)
    if ending == "release":
        lines.release(flushed=10, acknowledged=lambda _since: 10, ack_deadline=1)
        assert len(lines) == 7
        answers = lines.release(flushed=70, acknowledged=lambda _since: 70, ack_deadline=1)
    else:
        answers = lines.expire(1) if ending == "expire" else lines.fail_all(PutStatus.UNKNOWN_ERROR)
    assert answers[-1][2] == 7
    assert len(lines) == 0


def test_failing_ends_everything_with_one_status() -> None:
    sends = Sends()
    for wait_for in (WaitFor.FLUSH, WaitFor.ACKS, WaitFor.ACKS_AND_FLUSH):
        sends.add(wait_for.name, wait_for, 10)
    answers = sends.lines.fail_all(PutStatus.UNKNOWN_ERROR)
    assert [status for _, status, _ in answers] == [PutStatus.UNKNOWN_ERROR] * 3
    assert len(sends.lines) == 0
