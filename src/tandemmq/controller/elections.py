"""Elections: detects the loss of a master, proposes the election of the next one, and notifies its brokers.

Invariants: no other broker is elected before the lease of a TandemMQ master has ended, unless its process is
            known to be gone or it hands over. No lease is granted during an election. No broker is elected by
            a state that the group's own brokers have proven to be old.
Bounds:     one election per group at a time.
Source:     spec controller 5.1, 10.5, 10.7, 10.16.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

import msgspec

from tandemmq.consensus.core.messages import RaftRole, RoleChanged
from tandemmq.controller.groups import (
    NO_ID,
    BrokerHeartbeat,
    Clean,
    CommandOutcome,
    Elect,
    ReplicaGroup,
    choose_master,
    possible_last_holders,
)
from tandemmq.controller.history_keeper import UNHEARD_MASTER_S, HistoryKeeper
from tandemmq.controller.options import ControllerOptions
from tandemmq.errors import RequestRejected, TandemError
from tandemmq.protocol.bodies.codec import encode_body
from tandemmq.protocol.bodies.replica import SyncStateSetAnswer
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.controller import MasterResponse
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.options import parse_address
from tandemmq.runtime.ports import Clock, Network
from tandemmq.runtime.tasks import TaskScope
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

LEASE_MS = 1_200
GRANT_WITHIN_MS = 400
"""The time in milliseconds within which a majority must have answered for a lease to be granted. It is below
an election timeout.
"""
LEASE_END_S = 1.33
"""The time in seconds on this clock after which a lease has ended on any clock, if rates differ by less than
5 %.
"""
PROBE_TIMEOUT_S = 0.3
PROMOTION_S = 2.0
"""The time in seconds after its election within which a TandemMQ master must begin its term; after it another
member of the set is elected. Each failure doubles the time for the next master: all of them may be slow.
"""
PROMOTION_S_MAX = 32.0
CLOSED_CHECK_S = 0.05
"""The delay in seconds between a closed connection and the check of its group."""


class Elections:
    """The elections of the leader; on other controllers nothing happens."""

    def __init__(
        self,
        history: HistoryKeeper,
        *,
        options: Callable[[], ControllerOptions],
        client: RemotingClient,
        network: Network,
        clock: Clock,
        scope: TaskScope,
    ) -> None:
        self.raft = history.raft
        self.raft.on_role = self.on_role
        self.groups = history.groups
        self.heartbeats = history.heartbeats
        self.history = history
        history.on_adopted = self._schedule_promotion_check
        self._options = options
        self._client = client
        self._network = network
        self._clock = clock
        self._scope = scope
        self._in_progress: dict[str, int] = {}
        self._granted_s: dict[str, float] = {}
        self._promotion_s: dict[str, float] = {}
        self._leader_since_s = 0.0
        self._refusing: set[tuple[str, int]] = set()
        """Masters that have sent this leader no heartbeat and that refuse connections."""

    def on_role(self, change: RoleChanged) -> None:
        if change.role is RaftRole.LEADER:
            self._leader_since_s = self._clock.monotonic()
            self._granted_s.clear()
            self._refusing.clear()
            self.history.begin_leadership(self._leader_since_s)
            for group in self.groups.all():
                self._schedule_promotion_check(group)
                if group.master_id is not None and self.heartbeats.get(group.name, group.master_id) is None:
                    self._scope.start(f"probe-{group.name}", self._probe_unheard(group))

    # Liveness.

    def is_gone(self, group: ReplicaGroup) -> bool:
        """Returns True if the recorded master may be replaced: it was silent for its own timeout and a lease
        of the previous leader has ended, or it reports a later master itself.
        """
        assert group.master_id is not None
        now_s = self._clock.monotonic()
        heartbeat = self.heartbeats.get(group.name, group.master_id)
        if heartbeat is not None and self._has_been_replaced(group):
            return True
        if heartbeat is None:
            refuses_connections = (group.name, group.master_id) in self._refusing
            since_s = max(self._leader_since_s, self.history.adopted_s(group.name))
            return now_s >= since_s + (LEASE_END_S if refuses_connections else UNHEARD_MASTER_S)
        if now_s < heartbeat.received_s + heartbeat.timeout_s:
            return False
        is_ended = heartbeat.timeout_s == 0.0
        return is_ended or not heartbeat.facts.is_ours or now_s >= self._leader_since_s + LEASE_END_S

    def _has_been_replaced(self, group: ReplicaGroup) -> bool:
        """Returns True if the recorded master itself reports another master of a later epoch."""
        assert group.master_id is not None
        report = self.history.reports.get(group.name, group.master_id)
        if report is None or report.epoch <= group.master_epoch:
            return False
        return report.master != group.master_id

    def alive(self, group: ReplicaGroup) -> list[BrokerHeartbeat]:
        return self.heartbeats.alive(group.name, group.replicas, self._clock.monotonic())

    def _all_have_reported(self, group: ReplicaGroup) -> bool:
        """Returns True if every living broker has had time to report its log."""
        now_s = self._clock.monotonic()
        reported = sum(heartbeat.facts.reports_log for heartbeat in self.alive(group))
        return now_s >= self._leader_since_s + UNHEARD_MASTER_S or reported == len(group.replicas)

    def grant_lease(self, group: ReplicaGroup, broker_id: int) -> bool:
        """Returns True if this broker may remain master for LEASE_MS from its request."""
        if group.master_id != broker_id or group.name in self._in_progress or not self.raft.is_leader:
            return False
        if not self.raft.grants(GRANT_WITHIN_MS):
            return False
        self._granted_s[group.name] = self._clock.monotonic()
        return True

    def on_connection_closed(self, name: str, broker_id: int, connection: object) -> None:
        """Handles the end of a connection that carried heartbeats. A RocketMQ broker is then gone; a TandemMQ
        broker is probed.
        """
        heartbeat = self.heartbeats.get(name, broker_id)
        if heartbeat is None or heartbeat.connection is not connection:
            return
        if heartbeat.facts.is_ours:
            self._scope.start(f"probe-{name}-{broker_id}", self._probe(name, broker_id, heartbeat))
        else:
            self._record_gone(name, broker_id)

    async def _probe(self, name: str, broker_id: int, heartbeat: BrokerHeartbeat) -> None:
        if await self._is_refused(heartbeat.address) and self.heartbeats.get(name, broker_id) is heartbeat:
            self._record_gone(name, broker_id)

    async def _probe_unheard(self, group: ReplicaGroup) -> None:
        """Shortens the wait for a master that was lost together with the previous leader: if it refuses
        connections, only the end of the previous leader's lease is awaited.
        """
        assert group.master_id is not None
        if await self._is_refused(group.master_address):
            self._refusing.add((group.name, group.master_id))
            rest_s = self._leader_since_s + LEASE_END_S - self._clock.monotonic()
            self._clock.call_later(max(CLOSED_CHECK_S, rest_s), self.check_group, group.name)

    async def _is_refused(self, address: str | None) -> bool:
        """Returns True if the connection is refused; nothing else proves that a process is gone."""
        try:
            host, port = parse_address(address or "")
            transport = await self._network.connect(host, port, asyncio.Protocol, PROBE_TIMEOUT_S)
            transport.abort()
        except ConnectionRefusedError:
            return True
        except (OSError, TandemError):
            pass
        return False

    def _record_gone(self, name: str, broker_id: int) -> None:
        self.heartbeats.mark_gone(name, broker_id)
        log.info(events.BROKER_GONE, extra={"broker": name, "broker_id": broker_id})
        group = self.groups.get(name)
        if group is not None and group.master_id == broker_id:
            self._clock.call_later(CLOSED_CHECK_S, self.check_group, name)

    # Elections.

    async def watch(self) -> None:
        """Scans all groups periodically."""
        while True:
            await self._clock.sleep(self._options().scan_inactive_master_ms / 1000)
            if not self.raft.is_leader:
                continue
            for group in self.groups.all():
                self.check_group(group.name)
            self.history.propose_facts()

    def check_group(self, name: str) -> None:
        """Starts an election if the group needs one and it can be decided."""
        group = self.groups.get(name)
        if (
            group is None
            or name in self._in_progress
            or not self.raft.is_leader
            or self.history.is_outdated(group)
        ):
            return
        if group.master_id is not None:
            is_due = self.is_gone(group)
        else:
            command = self._election(group)
            is_due = group.master_epoch > 0 and choose_master(group, command) is not None
        if is_due:
            self._in_progress[name] = self._in_progress.get(name, 0) + 1
            self._scope.start(f"elect-{name}", self._elect_for(group))

    async def _elect_for(self, group: ReplicaGroup, *, is_passed_over: bool = False) -> None:
        try:
            await self.elect(group, master_epoch=group.master_epoch, is_passed_over=is_passed_over)
        except RequestRejected as error:
            log.info(events.BROKER_MASTER_NOT_ELECTED, extra={"broker": group.name, "reason": str(error)})
        finally:
            self._end_election(group.name)

    def _schedule_promotion_check(self, group: ReplicaGroup) -> None:
        if group.master_id is not None:
            after_s = self._promotion_s.get(group.name, PROMOTION_S)
            self._clock.call_later(after_s, self._check_promotion, group.name, group.master_epoch)

    def _check_promotion(self, name: str, epoch: int) -> None:
        """Elects another member if the heartbeats of a TandemMQ master show that it has not begun its term. A
        silent master is detected by its timeout instead, and a RocketMQ master does not report its term.
        """
        group = self.groups.get(name)
        if group is None or group.master_id is None or group.master_epoch != epoch or not self.raft.is_leader:
            return
        heartbeat = self.heartbeats.get(name, group.master_id)
        if heartbeat is None or not heartbeat.facts.is_ours or self._has_begun_term(group, heartbeat):
            self._promotion_s.pop(name, None)
            return
        alive = {one.facts.broker_id for one in self.alive(group)}
        is_open = name in self._in_progress or self.history.is_outdated(group)
        if is_open or not alive & set(group.sync_set) - {group.master_id}:
            self._schedule_promotion_check(group)
            return
        self._promotion_s[name] = min(2 * self._promotion_s.get(name, PROMOTION_S), PROMOTION_S_MAX)
        self._in_progress[name] = self._in_progress.get(name, 0) + 1
        self._scope.start(f"elect-{name}", self._elect_for(group, is_passed_over=True))

    def _has_begun_term(self, group: ReplicaGroup, heartbeat: BrokerHeartbeat) -> bool:
        """Returns True if the recorded master has begun the recorded epoch. A later epoch is another
        master's.
        """
        report = self.history.reports.get(group.name, heartbeat.facts.broker_id)
        if report is not None and report.epoch > group.master_epoch:
            return False
        return heartbeat.facts.epoch >= group.master_epoch

    def _election(self, group: ReplicaGroup) -> Elect:
        """Returns an election by the facts reported to this controller; the caller adds the reason."""
        command = Elect(
            name=group.name,
            is_unclean_allowed=self._options().elects_unclean_master,
            all_have_reported=self._all_have_reported(group),
            live=self.heartbeats.candidates_for(group, self._clock.monotonic()),
        )
        return self.history.with_facts(command, group)

    def reason_without_master(self, group: ReplicaGroup) -> str | None:
        """Returns the reason why the group has no master now, for tools; None if it has one, or never had
        one.
        """
        if group.master_id is not None or not group.master_epoch:
            return None
        reported = {
            heartbeat.facts.broker_id for heartbeat in self.alive(group) if heartbeat.facts.reports_log
        }
        missing = possible_last_holders(group, self.history.floor_of(group)) - reported
        if not missing:
            return "no living member of the in-sync set may become master"
        ids = ", ".join(map(str, sorted(missing)))
        return f"the brokers {ids} have not reported their logs, and may be the last to hold confirmed data"

    async def elect(
        self,
        group: ReplicaGroup,
        *,
        caller: int = NO_ID,
        is_designated: bool = False,
        is_restart: bool = False,
        is_handed_over: bool = False,
        is_passed_over: bool = False,
        has_stopped: bool = False,
        master_epoch: int | None = None,
    ) -> CommandOutcome:
        """Elects a master, notifies the group's brokers and returns the outcome.

        `has_stopped`: the master accepts nothing more, so the end of its lease need not be awaited.
        `is_restart`, `is_handed_over` and `is_passed_over` are the reason of the election.

        Raises:  NotLeader, Busy, OutcomeUnknown.
        """
        self._in_progress[group.name] = self._in_progress.get(group.name, 0) + 1
        try:
            if not has_stopped:
                await self._await_lease_end(group)
            command = msgspec.structs.replace(
                self._election(group),
                caller=caller,
                is_designated=is_designated,
                is_restart=is_restart,
                is_passed_over=is_passed_over,
                master_epoch=master_epoch,
            )
            outcome = await self.history.propose(command)
        finally:
            self._end_election(group.name)
        self.history.meter.count_election(outcome.group or group, outcome.code)
        if is_handed_over:
            cause = "handed over"
        elif is_passed_over:
            cause = "does not take office"
        else:
            cause = "restart" if is_restart else "asked" if caller != NO_ID else "gone"
        self._report_outcome(group, outcome, cause)
        return outcome

    async def clean(self, group: ReplicaGroup, command: Clean) -> CommandOutcome:
        """Removes brokers and returns the outcome. A master that is removed by force may write until its
        lease has ended, and its successor would not wait for that. Raises what `elect` raises.
        """
        self._in_progress[group.name] = self._in_progress.get(group.name, 0) + 1
        try:
            if command.is_forced and (not command.ids or group.master_id in command.ids):
                await self._await_lease_end(group)
            outcome = await self.history.propose(command)
        finally:
            self._end_election(group.name)
        return outcome

    def _end_election(self, name: str) -> None:
        self._in_progress[name] -= 1
        if not self._in_progress[name]:
            del self._in_progress[name]

    async def _await_lease_end(self, group: ReplicaGroup) -> None:
        """Waits until the lease that this leader or the previous one granted the master has ended. No lease
        is granted meanwhile.
        """
        if group.master_id is None:
            return
        heartbeat = self.heartbeats.get(group.name, group.master_id)
        if heartbeat is None or heartbeat.timeout_s == 0.0:
            return
        granted_s = self._granted_s.get(group.name)
        if granted_s is None and heartbeat.facts.is_ours:
            granted_s = self._leader_since_s
        if granted_s is not None:
            rest_s = granted_s + LEASE_END_S - self._clock.monotonic()
            if rest_s > 0:
                await self._clock.sleep(rest_s)

    def _report_outcome(self, before: ReplicaGroup, outcome: CommandOutcome, cause: str) -> None:
        group = outcome.group
        if group is None or group.master_epoch == before.master_epoch:
            return
        self._schedule_promotion_check(group)
        facts = {
            "broker": group.name,
            "master_epoch": group.master_epoch,
            "old_master": before.master_id,
            "cause": cause,
        }
        if group.master_id is None:
            log.error(events.BROKER_MASTER_MISSING, extra=facts)
            return
        is_clean = before.master_epoch == 0 or group.master_id in before.sync_set
        is_clean = is_clean and group.floor_since != group.master_epoch
        log.log(
            logging.WARNING if is_clean else logging.ERROR,
            events.BROKER_MASTER_ELECTED,
            extra={
                **facts,
                "master": group.master_id,
                "address": group.master_address,
                "sync_set": group.sync_set,
                "is_clean": is_clean,
                "floor": before.floor if group.floor_since == group.master_epoch else group.floor,
            },
        )
        if self._options().notifies_brokers:
            addresses = [heartbeat.address for heartbeat in self.alive(group)]
            self._scope.start(f"notify-{group.name}", self._notify(addresses, group))

    async def _notify(self, addresses: Iterable[str], group: ReplicaGroup) -> None:
        """Sends NOTIFY_BROKER_ROLE_CHANGED (1008) to all living brokers of the group."""
        header = MasterResponse(
            master_id=group.master_id,
            master_address=group.master_address,
            master_epoch=group.master_epoch,
            set_epoch=group.set_epoch,
            group_id=group.group_id or None,
            term_id=group.term_id or None,
        )
        for address in addresses:
            command = Command.request(
                RequestCode.NOTIFY_BROKER_ROLE_CHANGED, header, body=encode_set(group), oneway=True
            )
            try:
                await self._client.send_oneway(address, command)
            except TandemError as error:
                log.info(events.BROKER_NOT_NOTIFIED, extra={"address": address, "reason": str(error)})


def encode_set(group: ReplicaGroup) -> bytes:
    """Returns the body that contains a group's SyncStateSet."""
    return encode_body(SyncStateSetAnswer(ids=group.sync_set, epoch=group.set_epoch))
