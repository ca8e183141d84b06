"""The counts of a controller."""

from __future__ import annotations

from typing import Any

import pytest

from sim.memory import ManualClock
from tandemmq.controller.groups import ReplicaGroup
from tandemmq.controller.metering import ELECTION_RESULTS, REQUEST_TYPES, ControllerMeter
from tandemmq.errors import NotLeader, NotPermitted, OutcomeUnknown
from tandemmq.protocol.codes import RequestCode as Code
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.telemetry import controller_metrics

NEVER: Any = None
HEARTBEAT = "CONTROLLER_BROKER_HEARTBEAT"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def meter(clock: ManualClock) -> ControllerMeter:
    return ControllerMeter(clock)


async def test_requests_are_counted_by_type_and_outcome(meter: ControllerMeter, clock: ManualClock) -> None:
    seen: list[tuple[int, str]] = []
    check = meter.guard(lambda channel, command: lambda code, remark: seen.append((code, remark)))
    for code in (ResponseCode.SUCCESS, ResponseCode.CONTROLLER_NOT_LEADER, ResponseCode.SYSTEM_ERROR):
        record = check(NEVER, Command.request(Code.BROKER_HEARTBEAT))
        assert record is not None
        await clock.pass_time(0.002)
        record(code, "text")
    assert [code for code, _ in seen] == [0, 2007, 1], "the guard's own recorder is called, too"
    assert meter.requests == {(HEARTBEAT, "success"): 2, (HEARTBEAT, "failed"): 1}
    assert meter.request_times[HEARTBEAT].count == 2
    assert meter.request_times[HEARTBEAT].total == pytest.approx(4_000)


def test_a_request_that_the_guard_refuses_has_failed(meter: ControllerMeter) -> None:
    def refuse(channel: object, command: Command) -> None:
        raise NotPermitted("not signed")

    with pytest.raises(NotPermitted):
        meter.guard(refuse)(NEVER, Command.request(Code.CONTROLLER_ELECT_MASTER))
    assert meter.requests == {("CONTROLLER_ELECT_MASTER", "failed"): 1}


def test_messages_between_controllers_are_not_counted(meter: ControllerMeter) -> None:
    assert (
        meter.guard(lambda channel, command: None)(NEVER, Command.request(Code.TANDEM_RAFT_MESSAGE)) is None
    )
    assert not meter.requests
    assert REQUEST_TYPES[Code.CLEAN_BROKER_DATA] == "CONTROLLER_CLEAN_BROKER_DATA"
    assert len(REQUEST_TYPES) == 12


async def test_proposals_are_counted_by_outcome(meter: ControllerMeter, clock: ManualClock) -> None:
    with meter.proposal():
        await clock.pass_time(0.01)
    for error in (NotLeader("no"), OutcomeUnknown("no majority")):
        with pytest.raises(type(error)), meter.proposal():
            raise error
    assert meter.proposals == {"success": 1, "failed": 1, "timeout": 1}
    assert (meter.proposal_times.count, meter.proposal_times.total) == (1, pytest.approx(10_000))


def test_elections_are_counted_by_result(meter: ControllerMeter) -> None:
    group = ReplicaGroup(cluster="C", name="a")
    for code in (*ELECTION_RESULTS, ResponseCode.SUCCESS, ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH):
        meter.count_election(group, code)
    assert meter.elections == {
        ("C", "a", "new_master_elected"): 2,
        ("C", "a", "keep_current_master"): 1,
        ("C", "a", "no_master_elected"): 2,
    }


def test_oldest_count_of_elections_is_forgotten_at_the_bound(
    meter: ControllerMeter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_metrics, "ELECTION_SERIES_MAX", 2)
    for name in ("a", "b", "a", "c"):
        meter.count_election(ReplicaGroup(cluster="C", name=name), ResponseCode.SUCCESS)
    assert [name for _, name, _ in meter.elections] == ["b", "c"]
