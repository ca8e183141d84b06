"""The moment at which a master sends confirmed bytes to its slaves."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sim.manual_clock import ManualClock
from tandemmq.replication.shell.slave_connection import SlavePump
from tandemmq.runtime.tasks import FaultGuard


@dataclass
class Pumped:
    """A connection that counts, and may close the other one."""

    count: int = 0
    others: list[Any] = field(default_factory=list)

    def pump(self) -> None:
        self.count += 1
        self.others.clear()


class Rig:
    def __init__(self, count: int, *, awaits_acks: bool) -> None:
        self.connections = [Pumped() for _ in range(count)]
        self.clock = ManualClock()
        self.faults: list[BaseException] = []
        self.store = SimpleNamespace(replies=SimpleNamespace(awaits_acks=awaits_acks))
        self.pump = SlavePump(
            cast(Any, self.connections),
            store=cast(Any, self.store),
            clock=self.clock,
            guard=FaultGuard(self.faults.append),
        )

    @property
    def counts(self) -> list[int]:
        return [one.count for one in self.connections]


def test_bytes_that_sends_wait_for_leave_in_the_same_turn() -> None:
    rig = Rig(2, awaits_acks=True)
    rig.pump.wake()
    assert rig.counts == [1, 1]
    rig.clock.run_soon()
    assert rig.counts == [1, 1]


def test_bytes_without_waiting_sends_leave_once_in_the_next_turn() -> None:
    rig = Rig(2, awaits_acks=False)
    for _ in range(3):
        rig.pump.wake()
    assert rig.counts == [0, 0]
    rig.clock.run_soon()
    assert rig.counts == [1, 1]
    rig.pump.wake()
    rig.clock.run_soon()
    assert rig.counts == [2, 2]


def test_sends_that_begin_to_wait_do_not_wait_for_the_next_turn() -> None:
    rig = Rig(1, awaits_acks=False)
    rig.pump.wake()
    rig.store.replies.awaits_acks = True
    rig.pump.wake()
    assert rig.counts == [1]
    rig.clock.run_soon()
    assert rig.counts == [2]


@pytest.mark.parametrize("awaits_acks", [False, True])
def test_a_connection_may_end_while_it_is_pumped(awaits_acks: bool) -> None:
    rig = Rig(2, awaits_acks=awaits_acks)
    first, second = rig.connections
    first.others = rig.connections
    rig.pump.wake()
    rig.clock.run_soon()
    assert (first.count, second.count) == (1, 1)
    assert not rig.faults


@pytest.mark.parametrize("awaits_acks", [False, True])
def test_a_fault_of_ours_goes_to_the_owner(awaits_acks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not go to the store, whose write this may be."""
    rig = Rig(1, awaits_acks=awaits_acks)
    fault = AssertionError("what must hold does not")

    def fail() -> None:
        raise fault

    monkeypatch.setattr(rig.connections[0], "pump", fail)
    rig.pump.wake()
    rig.clock.run_soon()
    assert rig.faults == [fault]


def test_without_slaves_nothing_is_scheduled() -> None:
    rig = Rig(0, awaits_acks=False)
    rig.pump.wake()
    rig.connections.append(Pumped())
    rig.clock.run_soon()
    assert rig.counts == [0]
    rig.pump.wake()
    rig.clock.run_soon()
    assert rig.counts == [1]
