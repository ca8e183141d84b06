"""ControllerMeter: counts what a controller does; `read_controller` reads these counts and its state.

The names are those of `telemetry.controller_metrics`.
Strategy:   requests, proposals and elections are counted when they end; everything else is read at a scrape,
            in pieces of `SERIES_OF_PIECE` series.
At a bound: of more than `ELECTION_SERIES_MAX` counts of elections the oldest is forgotten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from tandemmq.consensus.core.messages import RaftRole
from tandemmq.consensus.shell.server import RaftServer
from tandemmq.controller.groups import Groups, HeartbeatTable, ReplicaGroup
from tandemmq.controller.options import ControllerOptions
from tandemmq.errors import OutcomeUnknown, RequestRejected
from tandemmq.protocol.codes import RequestCode as Code
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.dispatch import Guard, RequestRecorder
from tandemmq.runtime.ports import Clock
from tandemmq.telemetry import controller_metrics as metrics
from tandemmq.telemetry.metrics import Histogram, Sample

SERIES_OF_PIECE: Final = 64

ROLE_VALUES: Final[Mapping[RaftRole | None, int]] = {
    None: 0,
    RaftRole.LEADER: 3,
    RaftRole.FOLLOWER: 2,
    RaftRole.CANDIDATE: 1,
    RaftRole.TRIAL: 1,
}

REQUEST_TYPES: Final[Mapping[int, str]] = {
    code: f"CONTROLLER_{code.name.removeprefix('CONTROLLER_')}"
    for code in (
        Code.CONTROLLER_ALTER_SYNC_STATE_SET,
        Code.CONTROLLER_ELECT_MASTER,
        Code.CONTROLLER_REGISTER_BROKER,
        Code.CONTROLLER_GET_REPLICA_INFO,
        Code.CONTROLLER_GET_METADATA_INFO,
        Code.CONTROLLER_GET_SYNC_STATE_DATA,
        Code.BROKER_HEARTBEAT,
        Code.UPDATE_CONTROLLER_CONFIG,
        Code.GET_CONTROLLER_CONFIG,
        Code.CLEAN_BROKER_DATA,
        Code.CONTROLLER_GET_NEXT_BROKER_ID,
        Code.CONTROLLER_APPLY_BROKER_ID,
    )
}
"""RocketMQ's names of the requests that are counted, by code."""

ELECTION_RESULTS: Final[Mapping[int, str]] = {
    ResponseCode.SUCCESS: "new_master_elected",
    ResponseCode.CONTROLLER_MASTER_STILL_EXIST: "keep_current_master",
    ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE: "no_master_elected",
    ResponseCode.CONTROLLER_ELECT_MASTER_FAILED: "no_master_elected",
}
"""The results of elections by the code of the outcome; other codes are not counted."""

SUCCESS: Final = "success"
FAILED: Final = "failed"
TIMEOUT: Final = "timeout"


class ControllerMeter:
    """The counts of one controller since its start."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.requests: Counter[tuple[str, str]] = Counter()
        """The requests by type and outcome."""
        self.request_times: dict[str, Histogram] = {}
        self.proposals: Counter[str] = Counter()
        """The proposals by outcome."""
        self.proposal_times = Histogram(metrics.LATENCY_BUCKETS_US)
        self.elections: dict[tuple[str, str, str], int] = {}
        """The elections by cluster, name of the group, and result."""

    def guard(self, check: Guard) -> Guard:
        """Returns the guard that also counts the requests of `REQUEST_TYPES` and observes their times."""

        def check_and_count(channel: Channel, command: Command) -> RequestRecorder | None:
            name = REQUEST_TYPES.get(command.code)
            if name is None:
                return check(channel, command)
            began_s = self._clock.monotonic()
            try:
                further = check(channel, command)
            except Exception:
                self.requests[name, FAILED] += 1
                raise

            def record(code: int, remark: str) -> None:
                self._record_request(name, code, began_s)
                if further is not None:
                    further(code, remark)

            return record

        return check_and_count

    def _record_request(self, name: str, code: int, began_s: float) -> None:
        if code in (ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY):
            self.requests[name, FAILED] += 1
            return
        self.requests[name, SUCCESS] += 1
        times = self.request_times.get(name)
        if times is None:
            times = self.request_times[name] = Histogram(metrics.LATENCY_BUCKETS_US)
        times.observe(self._since_us(began_s))

    @contextmanager
    def proposal(self) -> Iterator[None]:
        """Counts one proposal, and observes the time of one that is confirmed."""
        began_s = self._clock.monotonic()
        try:
            yield
        except OutcomeUnknown:
            self.proposals[TIMEOUT] += 1
            raise
        except RequestRejected:
            self.proposals[FAILED] += 1
            raise
        self.proposals[SUCCESS] += 1
        self.proposal_times.observe(self._since_us(began_s))

    def count_election(self, group: ReplicaGroup, code: int) -> None:
        """Counts an election by the code of its outcome."""
        result = ELECTION_RESULTS.get(code)
        if result is None:
            return
        key = group.cluster, group.name, result
        if key not in self.elections and len(self.elections) >= metrics.ELECTION_SERIES_MAX:
            del self.elections[next(iter(self.elections))]
        self.elections[key] = self.elections.get(key, 0) + 1

    def _since_us(self, began_s: float) -> float:
        return (self._clock.monotonic() - began_s) * 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSources:
    """The parts of one controller."""

    options: ControllerOptions
    raft: RaftServer
    groups: Groups
    heartbeats: HeartbeatTable
    meter: ControllerMeter
    clock: Clock


def read_controller(sources: ControllerSources) -> Iterator[Iterable[Sample]]:
    """Yields every reading of a controller, piece by piece."""
    options, meter = sources.options, sources.meter
    own = options.peer_addresses[options.self_id], options.group, options.self_id
    yield _read_itself(sources, own)
    groups = sources.groups.all()
    for begin in range(0, len(groups), SERIES_OF_PIECE):
        now_s = sources.clock.monotonic()
        yield [
            Sample(
                metrics.ACTIVE_BROKERS,
                len(sources.heartbeats.alive(group.name, group.replicas, now_s)),
                (*own, group.cluster, group.name),
            )
            for group in groups[begin : begin + SERIES_OF_PIECE]
        ]
    elections = list(meter.elections.items())
    for begin in range(0, len(elections), SERIES_OF_PIECE):
        rows = elections[begin : begin + SERIES_OF_PIECE]
        yield [Sample(metrics.ELECTIONS, count, (*own, *labels)) for labels, count in rows]


def _read_itself(sources: ControllerSources, own: tuple[str, str, str]) -> list[Sample]:
    """Returns the readings of the controller itself; a request that never arrived has none."""
    meter = sources.meter
    operation = (*own, "append")
    return [
        Sample(metrics.ROLE, ROLE_VALUES[sources.raft.role], own),
        Sample(metrics.DISK_USAGE, sources.raft.byte_count, own),
        *(
            Sample(metrics.REQUESTS, count, (*own, *labels))
            for labels, count in sorted(meter.requests.items())
        ),
        *(
            Sample(metrics.REQUEST_LATENCY, times, (*own, name))
            for name, times in sorted(meter.request_times.items())
        ),
        *(
            Sample(metrics.OPERATIONS, meter.proposals[outcome], (*operation, outcome))
            for outcome in (SUCCESS, FAILED, TIMEOUT)
        ),
        Sample(metrics.OPERATION_LATENCY, meter.proposal_times, operation),
    ]
