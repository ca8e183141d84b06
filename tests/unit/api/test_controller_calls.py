"""The handover of a group, as an operator asks for it, with controllers that do not always answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sim.manual_clock import ManualClock
from tandemmq.api import controller
from tandemmq.api.controller import HAND_OVER_S_MAX, hand_over_group
from tandemmq.errors import BadRequest, BrokerUnreachable, NotLeader, RequestTimeout, TandemError
from tandemmq.protocol.bodies.replica import GroupSyncState, ReplicaIdentity

GROUP = "orders"
CLIENT: Any = None


class SteppingClock(ManualClock):
    """A clock whose sleeps end at once, at their time."""

    async def sleep(self, delay_s: float) -> None:
        self.advance(delay_s)


def state(master: int, epoch: int) -> GroupSyncState:
    """The group with its brokers 1 and 2 in sync."""
    members = [
        ReplicaIdentity(broker_name=GROUP, broker_id=number, address=f"10.0.0.{number}:10911", is_alive=True)
        for number in (1, 2)
    ]
    return GroupSyncState(
        in_sync=members,
        master_address=members[master - 1].address,
        master_id=master,
        master_epoch=epoch,
        not_in_sync=[],
        set_epoch=1,
    )


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets the controllers answer each read with the next outcome, and all further ones with the last."""

    def set_outcomes(*outcomes: GroupSyncState | TandemError) -> None:
        left = list(outcomes)

        async def read(*_: object) -> dict[str, GroupSyncState]:
            outcome = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(outcome, TandemError):
                raise outcome
            return {GROUP: outcome}

        async def answer(*_: object, **__: object) -> str:
            return "10.0.0.9:9878"

        monkeypatch.setattr(controller, "find_leader", answer)
        monkeypatch.setattr(controller, "hand_over", answer)
        monkeypatch.setattr(controller, "read_sync_states", read)

    return set_outcomes


@pytest.mark.parametrize(
    "fault", [RequestTimeout("no answer"), BrokerUnreachable("closed"), NotLeader("no leader")], ids=repr
)
async def test_a_failed_read_does_not_hide_a_handover(reads: Callable[..., None], fault: TandemError) -> None:
    reads(state(1, epoch=1), fault, state(1, epoch=1), fault, state(2, epoch=2))
    before, after = await hand_over_group(CLIENT, "n0:9878", GROUP, None, clock=SteppingClock())
    assert (before.master_id, after.master_id) == (1, 2)


async def test_reads_that_fail_until_the_deadline_are_the_reason_of_the_failure(
    reads: Callable[..., None],
) -> None:
    reads(state(1, epoch=1), RequestTimeout("no answer of the controller"))
    clock = SteppingClock()
    with pytest.raises(RequestTimeout, match="no answer of the controller"):
        await hand_over_group(CLIENT, "n0:9878", GROUP, None, clock=clock)
    assert HAND_OVER_S_MAX <= clock.monotonic() < HAND_OVER_S_MAX + 1


async def test_a_read_that_cannot_succeed_ends_the_wait(reads: Callable[..., None]) -> None:
    reads(state(1, epoch=1), BadRequest("unknown request"))
    clock = SteppingClock()
    with pytest.raises(BadRequest, match="unknown request"):
        await hand_over_group(CLIENT, "n0:9878", GROUP, None, clock=clock)
    assert clock.monotonic() == 0.0
