"""HistoryKeeper: keeps the controllers' state consistent with the history that the brokers of each group
report.

Only the leader acts; other controllers only record reports. Called with each registration and heartbeat, and
by `Elections`, which elects no master while a group `is_outdated`.
Invariants: nothing is proposed that a controller of the group may not support (`supports_history`).
Bounds:     one proposal per group and kind at a time; REASONS_MAX contradictions are logged per leadership.
Source:     spec controller 10.16.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from tandemmq.consensus.shell.server import RaftServer
from tandemmq.controller.groups import (
    Adopt,
    AssignControllersId,
    CommandOutcome,
    Elect,
    Floor,
    Groups,
    HeartbeatTable,
    RecordFacts,
    Register,
    ReplicaGroup,
    encode_command,
)
from tandemmq.controller.groups import Command as GroupCommand
from tandemmq.controller.history import HistoryReport, HistoryReports
from tandemmq.controller.metering import ControllerMeter
from tandemmq.errors import RequestRejected
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.requests.route import BrokerHeartbeatRequest
from tandemmq.runtime.ports import Clock, Random
from tandemmq.runtime.tasks import TaskScope
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

PROPOSAL_TIMEOUT_S = 5.0
"""The time for which RocketMQ's controllers wait for their log."""
UNHEARD_MASTER_S = 3.0
"""The time in seconds that a new leader waits for the first heartbeat of a master."""
FLOOR_PERIOD_S = 10.0
"""The maximum delay in seconds before a confirmed offset that has risen is written to the agreed state."""
FIRST_REPORTS_S = 1.0
"""The time in seconds that a new leader waits for the heartbeats of known brokers before it elects by the
recorded state.
"""
REPORTS_POLL_S = 0.02
TERM_ID_BOUND = 2**63 - 1
REASONS_MAX = 256


class HistoryKeeper:
    """The reports that one controller receives, and the leader's reactions to them."""

    def __init__(
        self,
        groups: Groups,
        raft: RaftServer,
        supports_history: Callable[[], bool],
        reported_id: Callable[[], str],
        *,
        chance: Random,
        clock: Clock,
        scope: TaskScope,
    ) -> None:
        """`supports_history` returns True if all controllers support the commands and fields of histories.
        `reported_id` returns the id of the controllers' group that another controller knows, or "".
        """
        self.reports = HistoryReports()
        self.supports_history = supports_history
        self._reported_id = reported_id
        self.on_adopted: Callable[[ReplicaGroup], None] = lambda _: None
        self.raft = raft
        self.groups = groups
        self.heartbeats = HeartbeatTable()
        self.meter = ControllerMeter(clock)
        self._chance = chance
        self._clock = clock
        self._scope = scope
        self._leader_since_s = 0.0
        self._logged_contradictions: set[tuple[str, str, int, int]] = set()
        """Contradictions that were logged already."""
        self._facts_proposed_until_s: dict[str, float] = {}
        self._busy: set[str] = set()
        self._adopted_s: dict[str, float] = {}

    async def propose(self, command: GroupCommand) -> CommandOutcome:
        """Returns the outcome of the command. Raises NotLeader, Busy, OutcomeUnknown."""
        with self.meter.proposal():
            outcome: CommandOutcome = await self.raft.propose(encode_command(command), PROPOSAL_TIMEOUT_S)
        return outcome

    def begin_leadership(self, now_s: float) -> None:
        self._leader_since_s = now_s
        self._logged_contradictions.clear()

    def adopted_s(self, name: str) -> float:
        """Returns the time at which the group was adopted here; minus infinity if it was not."""
        return self._adopted_s.get(name, float("-inf"))

    def is_outdated(self, group: ReplicaGroup) -> bool:
        """Returns True if brokers have proven that the recorded state is older than the group's and can be
        replaced. No master is elected meanwhile.
        """
        return self.supports_history() and self.reports.newer_than(group) is not None

    def check_history(self, name: str) -> None:
        """Compares the brokers' reports with the recorded state; called after each report."""
        if not self.raft.is_leader:
            return
        group = self.groups.get(name)
        if group is not None:
            self._log_contradictions(group)
        if name in self._busy or not self.supports_history():
            return
        command = self.reports.find_adoption(name, group, self._clock.monotonic())
        if command is not None:
            self._busy.add(name)
            self._scope.start(f"adopt-{name}", self._adopt_for(command))

    def _log_contradictions(self, group: ReplicaGroup) -> None:
        newer = self.reports.newer_than(group)
        if newer is not None:
            self._log_contradiction(group, newer, "the controllers' state is older than the brokers'")
        rival = self.reports.rival_of(group)
        if rival is not None:
            self._log_contradiction(group, rival, "the master epoch was assigned twice")

    def contradiction(self, group: ReplicaGroup) -> str | None:
        """Returns a text for tools that describes the contradiction between brokers and the recorded state;
        None if there is none.
        """
        newer = self.reports.newer_than(group)
        if newer is not None:
            return (
                f"the broker {newer.broker_id} reports epoch {newer.epoch} of master {newer.master} with set"
                f" epoch {newer.set_epoch}: the controllers' state is older"
            )
        rival = self.reports.rival_of(group)
        if rival is not None:
            return (
                f"the broker {rival.broker_id} reports epoch {rival.epoch} with the term id {rival.term_id}"
            )
        return None

    def _log_contradiction(self, group: ReplicaGroup, report: HistoryReport, reason: str) -> None:
        key = group.name, reason, report.epoch, report.term_id
        if key in self._logged_contradictions or len(self._logged_contradictions) >= REASONS_MAX:
            return
        self._logged_contradictions.add(key)
        log.error(
            events.CONTROLLER_HISTORY_LOST,
            extra={
                "broker": group.name,
                "reason": reason,
                "group_id": group.group_id,
                "master_epoch": group.master_epoch,
                "term_id": group.term_id,
                "master": group.master_id,
                "set_epoch": group.set_epoch,
                "broker_id": report.broker_id,
                "reported_epoch": report.epoch,
                "reported_term_id": report.term_id,
                "reported_master": report.master,
                "reported_set_epoch": report.set_epoch,
            },
        )

    async def _adopt_for(self, command: Adopt) -> None:
        try:
            await self.adopt(command)
        except RequestRejected as error:
            log.info(events.BROKER_MASTER_NOT_ELECTED, extra={"broker": command.name, "reason": str(error)})
        finally:
            self._busy.discard(command.name)

    def reregister(self, group: ReplicaGroup, header: BrokerHeartbeatRequest) -> None:
        """Registers a broker that knows the id of the group, but registered with a state of the controllers
        that is lost. It has no reason to register again by itself.
        """
        assert header.broker_id is not None
        name, broker_id = group.name, header.broker_id
        is_member = bool(group.group_id) and header.group_id == group.group_id
        is_due = is_member and self.raft.is_leader and self.supports_history()
        key = f"register {name} {broker_id}"
        if not is_due or key in self._busy:
            return
        if self.heartbeats.is_alive(name, broker_id, self._clock.monotonic()):
            return  # another process with this id is alive at the recorded address
        command = Register(header.cluster_name, name, broker_id, header.broker_address, group.group_id)
        self._propose_once(key, command)

    async def adopt(self, command: Adopt) -> CommandOutcome:
        """Replaces the recorded state of a group and returns the outcome.

        Raises:  RequestRejected if the state is refused; NotLeader, Busy, OutcomeUnknown.
        """
        before = self.groups.get(command.name)
        outcome = await self.propose(command)
        group = outcome.group
        if not succeeded(outcome) or group is None:
            raise RequestRejected(outcome.remark, code=outcome.code)
        log.error(
            events.CONTROLLER_HISTORY_ADOPTED,
            extra={
                "broker": group.name,
                "group_id": group.group_id,
                "old_epoch": 0 if before is None else before.master_epoch,
                "master": group.master_id,
                "master_epoch": group.master_epoch,
                "sync_set": group.sync_set,
                "set_epoch": group.set_epoch,
            },
        )
        self._logged_contradictions = {key for key in self._logged_contradictions if key[0] != group.name}
        self._adopted_s[group.name] = self._clock.monotonic()
        self.on_adopted(group)
        return outcome

    async def await_reports(self, group: ReplicaGroup) -> None:
        """Waits, as a new leader, until all known brokers have reported, for FIRST_REPORTS_S at most."""
        ends_at_s = self._leader_since_s + FIRST_REPORTS_S
        while (now_s := self._clock.monotonic()) < ends_at_s:
            if self.reports.have_arrived(group.name, group.replicas, now_s):
                return
            await self._clock.sleep(min(REPORTS_POLL_S, ends_at_s - now_s))

    async def await_heartbeat(self, name: str, broker_id: int) -> None:
        """Waits for the first heartbeat of a broker of an adopted group, for UNHEARD_MASTER_S at most."""
        ends_at_s = self._clock.monotonic() + UNHEARD_MASTER_S
        while (now_s := self._clock.monotonic()) < ends_at_s and not self.heartbeats.is_alive(
            name, broker_id, now_s
        ):
            await self._clock.sleep(REPORTS_POLL_S)

    async def await_adoption(self, name: str) -> None:
        """Waits while brokers report a group that these controllers have not recorded.

        Raises:  RequestRejected if the group is still not proven after UNHEARD_MASTER_S.
        """
        ends_at_s = self._clock.monotonic() + UNHEARD_MASTER_S
        while self.groups.get(name) is None and self.supports_history():
            now_s = self._clock.monotonic()
            if not self.reports.report_history(name, now_s):
                return
            if now_s >= ends_at_s:
                raise RequestRejected(
                    f"brokers of {name} report a history that these controllers have not recorded, and not"
                    " all brokers of its in-sync set have confirmed it: start them, or designate one with"
                    " electMaster",
                    code=ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
                )
            await self._clock.sleep(REPORTS_POLL_S)

    def propose_facts(self) -> None:
        """Assigns ids to the controllers and to groups without one, and writes confirmed offsets that have
        risen.
        """
        if not self.supports_history():
            return
        if not self.groups.controllers_id and "" not in self._busy:
            # A controller that kept its disk knows the id; it refuses every message of a group with another.
            self._propose_once("", AssignControllersId(self._reported_id() or self.new_id()))
        for group in self.groups.all():
            self._propose_facts_of(group)

    def _propose_facts_of(self, group: ReplicaGroup) -> None:
        """Writes the id of a group without one, and a confirmed offset that has risen."""
        now_s = self._clock.monotonic()
        if now_s < self._facts_proposed_until_s.get(group.name, float("-inf")) or self.is_outdated(group):
            return
        group_id = "" if group.group_id else self._id_for(group)
        floor = self.floor_of(group)
        if not group_id and floor <= group.floor:
            return
        self._facts_proposed_until_s[group.name] = now_s + FLOOR_PERIOD_S
        command = RecordFacts(name=group.name, group_id=group_id, floor=floor)
        self._propose_once(f"note {group.name}", command)

    def _id_for(self, group: ReplicaGroup) -> str:
        """Returns the id that the master reports: the group had it before the controllers' disk went back.
        Returns a new id for a group without one; empty while the master sends no heartbeats.
        """
        if group.master_epoch and group.master_id is None:
            return ""
        if group.master_id is not None:
            if not self.heartbeats.is_alive(group.name, group.master_id, self._clock.monotonic()):
                return ""
            report = self.reports.get(group.name, group.master_id)
            if report is not None and report.group_id:
                return report.group_id
        return self.new_id()

    def new_id(self) -> str:
        """Returns a random id; empty while a controller may not support ids."""
        return self._chance.token_bytes(16).hex() if self.supports_history() else ""

    def _propose_once(self, key: str, command: GroupCommand) -> None:
        """Proposes a command in the background, unless it is being proposed already. A failure is only
        logged; a later call proposes it again.
        """
        if key not in self._busy:
            self._busy.add(key)
            self._scope.start(f"propose-{key}", self._propose_quietly(key, command))

    async def _propose_quietly(self, key: str, command: GroupCommand) -> None:
        try:
            await self.propose(command)
        except RequestRejected as error:
            log.info(events.CONTROLLER_FACT_NOT_WRITTEN, extra={"fact": key, "reason": str(error)})
        finally:
            self._busy.discard(key)

    def with_facts(self, command: Elect, group: ReplicaGroup) -> Elect:
        """Returns the election with the facts of histories, if every controller supports them."""
        if not self.supports_history():
            return command
        return msgspec.structs.replace(
            command,
            term_id=1 + self._chance.below(TERM_ID_BOUND),
            epoch_known=self.reports.highest_epoch(group.name),
            floor=self.floor_of(group),
        )

    def floor_of(self, group: ReplicaGroup) -> Floor:
        """Returns the highest confirmed offset of the group that is known here."""
        return max(group.floor, self.reports.floor_of(group))


def succeeded(outcome: CommandOutcome) -> bool:
    return outcome.code == ResponseCode.SUCCESS
