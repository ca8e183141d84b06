"""The requests of brokers and tools to a controller: 904, 1001 to 1006, 1011 to 1013.

Only the leader answers requests about groups. Other controllers refuse with CONTROLLER_NOT_LEADER, and their
callers look up the leader with CONTROLLER_GET_METADATA_INFO. Reads are answered from memory. An old answer is
harmless, because brokers act only on a master epoch above theirs.
Source:  spec controller 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tandemmq.consensus.core.messages import Effect
from tandemmq.consensus.core.node import ProposalRefusal, RaftNode
from tandemmq.controller.elections import LEASE_MS, Elections, encode_set
from tandemmq.controller.groups import (
    AlterSet,
    ApplyId,
    Clean,
    CommandOutcome,
    Register,
    ReplicaGroup,
    other_group_fault,
)
from tandemmq.controller.groups import Command as GroupCommand
from tandemmq.controller.history_keeper import PROPOSAL_TIMEOUT_S, succeeded
from tandemmq.errors import BadRequest, NotLeader, RequestRejected
from tandemmq.protocol.bodies import replica as bodies
from tandemmq.protocol.bodies.codec import decode_body, encode_body
from tandemmq.protocol.codes import ResponseCode as Code
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests import controller as headers
from tandemmq.protocol.requests.route import BrokerHeartbeatRequest
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.options import parse_address
from tandemmq.runtime.ports import Clock

CAPABILITIES: Final = "lease"
"""The value of the field tmCaps between TandemMQ servers; other servers do not know the field."""
FIRST_ELECTION_WAIT_S: Final = 1.0
PROMOTION_PAUSE_S: Final = 0.1
_TRANSIENT_REFUSALS: Final = (ProposalRefusal.NOT_LEVEL, ProposalRefusal.CHANGE_OPEN)
"""Refusals that a retry may overcome."""


class ControllerHandlers:
    """The requests on the replicated state and on the facts that brokers report to this controller."""

    def __init__(
        self,
        elections: Elections,
        *,
        group_name: str,
        address_of: Callable[[str], str | None],
        clock: Clock,
    ) -> None:
        self._groups = elections.groups
        self._heartbeats = elections.heartbeats
        self._elections = elections
        self._history = elections.history
        self._group_name = group_name
        self._address_of = address_of
        self._clock = clock
        self._watched: set[Channel] = set()

    # Leader and heartbeats.

    def handle_metadata(self, channel: Channel, command: Command) -> Command:
        """CONTROLLER_GET_METADATA_INFO (1005), on every controller."""
        raft = self._elections.raft
        leader = raft.leader
        names = sorted(raft.members.voters)
        header = headers.ControllerMetadataResponse(
            group=self._group_name,
            leader_id=leader,
            leader_address=None if leader is None else self._address_of(leader),
            is_leader=raft.is_leader,
            peers="".join(f"{name}:{self._address_of(name)};" for name in names),
        )
        return command.reply(header=header, fields={"tmCaps": CAPABILITIES})

    def handle_heartbeat(self, channel: Channel, command: Command) -> Command:
        """BROKER_HEARTBEAT (904), on every controller. A TandemMQ master receives a lease with the answer."""
        header = command.decode(BrokerHeartbeatRequest)
        if header.broker_id is None:
            raise RequestRejected("brokerId is missing", code=Code.CONTROLLER_INVALID_REQUEST)
        remark = "Heart beat success"
        group = self._groups.get(header.broker_name)
        replica = None if group is None else group.replicas.get(header.broker_id)
        is_ours = "tmCaps" in command.fields
        self._record_history(header, group, is_known=replica is not None)
        if group is None or replica is None or replica.address != header.broker_address:
            if group is not None:
                self._history.reregister(group, header)
            return command.reply(remark=remark)  # must register first; until then it cannot be elected
        follows = (header.epoch_known, header.master_known) == (group.master_epoch, group.master_id)
        floor = self._history.floor_of(group) if follows else None
        now_s = self._clock.monotonic()
        is_new = self._heartbeats.record(
            header, channel, now_s, is_ours=is_ours, floor=floor, term=group.last_term
        )
        if channel not in self._watched:
            self._watched.add(channel)
            channel.on_close.append(self._on_close)
        if is_new and group.master_id is None:
            self._elections.check_group(group.name)
        fields = {}
        if is_ours:
            fields = {"tmMasterEpoch": str(group.master_epoch), "tmMaster": str(group.master_id or 0)}
            if group.group_id:
                fields["tmGroup"] = group.group_id
            if not command.is_oneway and self._elections.grant_lease(group, header.broker_id):
                fields["tmLease"] = str(LEASE_MS)
        return command.reply(remark=remark, fields=fields)

    def _on_close(self, channel: Channel) -> None:
        self._watched.discard(channel)
        for name, broker_id in self._heartbeats.by_connection(channel):
            self._elections.on_connection_closed(name, broker_id, channel)

    def _record_history(
        self,
        header: BrokerHeartbeatRequest | headers.RegisterReplicaRequest,
        group: ReplicaGroup | None,
        *,
        is_known: bool,
    ) -> None:
        """Records a broker's knowledge of its group. Raises RequestRejected for a broker of another group."""
        if group is not None and group.cluster != header.cluster_name:
            return
        try:
            _require_group(group, header.broker_id, header.group_id)
        except RequestRejected as error:
            reason = f"{error.remark} (it is at {header.broker_address})"
            now_s = self._clock.monotonic()
            self._history.reports.record_refusal(header.broker_name, header.broker_id or 0, reason, now_s)
            raise
        self._history.reports.record(header, self._clock.monotonic(), is_known=is_known)
        self._history.check_history(header.broker_name)

    # Ids and registration.

    def handle_next_id(self, channel: Channel, command: Command) -> Command:
        """CONTROLLER_GET_NEXT_BROKER_ID (1012). Changes nothing."""
        header = command.decode(headers.NextBrokerIdRequest)
        self._require_leader()
        group = self._groups.get(header.broker_name)
        if group is not None and group.cluster != header.cluster_name:
            raise RequestRejected(f"{group.name} belongs to the cluster {group.cluster}")
        answer = headers.NextBrokerIdResponse(
            cluster_name=header.cluster_name,
            broker_name=header.broker_name,
            next_id=1 if group is None else group.next_id,
        )
        return command.reply(header=answer)

    async def handle_apply_id(self, channel: Channel, command: Command) -> Command:
        """CONTROLLER_APPLY_BROKER_ID (1013)."""
        header = command.decode(headers.ApplyBrokerIdRequest)
        self._find_group(header.broker_name, header.broker_id, header.group_id)
        await self._history.await_adoption(header.broker_name)
        new_id = self._history.new_id()
        outcome = await self._propose(
            ApplyId(
                header.cluster_name,
                header.broker_name,
                header.broker_id,
                header.check_code,
                (header.group_id or new_id) if new_id else "",
            )
        )
        answer = headers.ApplyBrokerIdResponse(
            cluster_name=header.cluster_name, broker_name=header.broker_name
        )
        return command.reply(outcome.code, answer, remark=outcome.remark or None)

    async def handle_register(self, channel: Channel, command: Command) -> Command:
        """CONTROLLER_REGISTER_BROKER (1003). A recorded master that does not report itself in office has
        restarted. It never continues under its old epoch, because its log may have lost its end.
        """
        header = command.decode(headers.RegisterReplicaRequest)
        self._require_leader()
        known = self._groups.get(header.broker_name)
        self._record_history(header, known, is_known=known is not None and header.broker_id in known.replicas)
        heartbeat = self._heartbeats.get(header.broker_name, header.broker_id)
        is_alive = self._heartbeats.is_alive(header.broker_name, header.broker_id, self._clock.monotonic())
        if heartbeat is not None and is_alive and heartbeat.address != header.broker_address:
            raise RequestRejected(f"a broker with the id {header.broker_id} is alive at {heartbeat.address}")
        is_connected = heartbeat is not None and heartbeat.is_connected
        is_active_master = header.members is not None and header.master_known == header.broker_id
        if heartbeat is not None and not is_active_master:
            # An election may begin during the proposal: the log of the previous run must not win it.
            term = 0 if known is None else known.last_term
            self._heartbeats.record_start(header, self._clock.monotonic(), term=term)
        outcome = await self._propose(
            Register(
                header.cluster_name,
                header.broker_name,
                header.broker_id,
                header.broker_address,
                (header.group_id or "") if self._history.supports_history() else "",
            )
        )
        group = outcome.group
        if not succeeded(outcome) or group is None:
            return command.reply(outcome.code, _master_header(None), remark=outcome.remark)
        if not is_active_master:
            self._heartbeats.record_start(header, self._clock.monotonic(), term=group.last_term)
        if group.master_id == header.broker_id and not is_active_master:
            await self._history.await_reports(group)
            group = self._groups.get(group.name) or group
        if self._history.is_outdated(group):
            return command.reply(header=_master_header(group, with_master=False), body=encode_set(group))
        if group.master_id == header.broker_id and not is_active_master:
            elected = await self._elections.elect(
                group,
                caller=header.broker_id,
                is_restart=True,
                has_stopped=not is_connected,
                master_epoch=group.master_epoch,
            )
            group = elected.group or group
        is_master_heard = group.master_id is not None and (
            group.master_id == header.broker_id
            or self._heartbeats.is_alive(group.name, group.master_id, self._clock.monotonic())
        )
        answer = _master_header(group, with_master=is_master_heard)
        return command.reply(header=answer, body=encode_set(group))

    # Masters and sets.

    async def handle_elect(self, channel: Channel, command: Command) -> Command:
        """CONTROLLER_ELECT_MASTER (1002), from a broker that knows no master or a tool that
        designates one.
        """
        header = command.decode(headers.ElectMasterRequest)
        group = self._find_group(header.broker_name, header.broker_id, header.group_id)
        if group is None and header.is_designated:
            group = await self._adopt_by_hand(header.broker_name, header.broker_id)
        if group is None or header.broker_id not in group.replicas:
            raise RequestRejected(
                "no such group or broker", code=Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
            )
        await self._require_election(group, header)
        handed_over = command.fields.get("tmHandover")
        if handed_over not in (None, str(group.master_epoch)):
            raise RequestRejected("another master was elected", code=Code.CONTROLLER_FENCED_MASTER_EPOCH)
        # Any host could send the field; from another host it does not end the lease.
        master = None if group.master_id is None else self._heartbeats.get(group.name, group.master_id)
        has_stopped = handed_over is not None and master is not None and master.is_host_of(channel)
        outcome = await self._elections.elect(
            group,
            caller=header.broker_id,
            is_designated=header.is_designated,
            is_handed_over=handed_over is not None,
            has_stopped=has_stopped,
            master_epoch=None if handed_over is None else group.master_epoch,
        )
        after = outcome.group or group
        answer = _master_header(after)
        if not succeeded(outcome):
            return command.reply(outcome.code, answer, remark=outcome.remark, body=encode_set(after))
        members = {broker_id: replica.address for broker_id, replica in sorted(after.replicas.items())}
        election = bodies.Election(
            addresses=members,
            member_group=bodies.MemberGroup(addresses=members, broker_name=after.name, cluster=after.cluster),
            broker_name=after.name,
            cluster=after.cluster,
            ids=after.sync_set,
        )
        return command.reply(header=answer, body=encode_body(election))

    async def _require_election(self, group: ReplicaGroup, header: headers.ElectMasterRequest) -> None:
        """Raises RequestRejected if no other master may be elected now. The first election of a group waits
        for brokers that may have data.
        """
        if not header.is_designated and self._history.is_outdated(group):
            raise RequestRejected(
                "the brokers have reported a later state of the group than the controllers have recorded",
                code=Code.CONTROLLER_MASTER_NOT_AVAILABLE,
            )
        alive = {heartbeat.facts.broker_id for heartbeat in self._elections.alive(group)}
        is_heard = group.master_id is None or group.master_id in alive
        if not is_heard and not self._elections.is_gone(group):
            raise RequestRejected("the master may still be alive", code=Code.CONTROLLER_ELECT_MASTER_FAILED)
        if group.master_epoch == 0 and not header.is_designated and group.replicas.keys() - alive:
            caller = self._heartbeats.get(group.name, header.broker_id)
            if caller is None or caller.facts.max_offset <= 0:
                # The caller's disk is empty, and other brokers are known that may have data: they get time to
                # report.
                await self._clock.sleep(FIRST_ELECTION_WAIT_S)

    async def _adopt_by_hand(self, name: str, broker_id: int) -> ReplicaGroup | None:
        """Adopts a group that these controllers have not recorded: an operator designates its master."""
        now_s = self._clock.monotonic()
        command = self._history.reports.force_adoption(name, broker_id, now_s)
        if command is None or not self._history.supports_history():
            return None
        group = (await self._history.adopt(command)).group
        await self._history.await_heartbeat(name, broker_id)
        return group

    async def handle_alter_set(self, channel: Channel, command: Command) -> Command:
        """CONTROLLER_ALTER_SYNC_STATE_SET (1001): installs the wanted set if the caller knows the current
        one.
        """
        header = command.decode(headers.AlterSyncStateSetRequest)
        wanted = decode_body(command.body, bodies.SyncStateSetAnswer)
        self._find_group(header.broker_name, header.master_id, header.group_id)
        now_s = self._clock.monotonic()
        alive = self._heartbeats.alive(header.broker_name, wanted.ids, now_s)
        outcome = await self._propose(
            AlterSet(
                name=header.broker_name,
                master_id=header.master_id,
                master_epoch=header.master_epoch,
                set_epoch=wanted.epoch,
                wanted=wanted.ids,
                alive=tuple(one.facts.broker_id for one in alive),
            )
        )
        group = outcome.group
        if not succeeded(outcome) or group is None:
            return command.reply(outcome.code, headers.AlterSyncStateSetResponse(), remark=outcome.remark)
        self._heartbeats.mark_in_sync(group.name, group.sync_set)
        answer = headers.AlterSyncStateSetResponse(set_epoch=group.set_epoch)
        return command.reply(header=answer, body=encode_set(group))

    def handle_replica_info(self, channel: Channel, command: Command) -> Command:
        """CONTROLLER_GET_REPLICA_INFO (1004): returns the recorded master, alive or not."""
        header = command.decode(headers.ReplicaInfoRequest)
        group = self._find_group(header.broker_name, None, header.group_id)
        if group is None:
            raise RequestRejected("no such group", code=Code.CONTROLLER_BROKER_METADATA_NOT_EXIST)
        return command.reply(header=_master_header(group), body=encode_set(group))

    def handle_sync_state_data(self, channel: Channel, command: Command) -> Command:
        """CONTROLLER_GET_SYNC_STATE_DATA (1006): describes several groups, for mqadmin. With `tandemAll` it
        describes all of them, and those that only brokers report.
        """
        self._require_leader()
        if not command.body:
            raise BadRequest("the body names no groups", code=Code.SYSTEM_ERROR)
        names, unknown = decode_body(command.body, list[str]), None
        if command.fields.get("tandemAll") == "true":
            names = [group.name for group in self._groups.all()]
            unknown = self._history.reports.unknown_groups(set(names), self._clock.monotonic()) or None
        groups = {
            name: self._describe(group) for name in names if (group := self._groups.get(name)) is not None
        }
        answer = bodies.SyncStateData(groups=groups, unknown=unknown)
        return command.reply(body=encode_body(answer))

    async def handle_clean(self, channel: Channel, command: Command) -> Command:
        """CLEAN_BROKER_DATA (1011)."""
        header = command.decode(headers.CleanBrokerDataRequest)
        self._require_leader()
        group = self._groups.get(header.broker_name)
        if group is None:
            raise RequestRejected("no such group", code=Code.CONTROLLER_INVALID_CLEAN_BROKER_METADATA)
        alive = {one.facts.broker_id for one in self._elections.alive(group)}
        if group.master_id is not None and not self._elections.is_gone(group):
            alive.add(group.master_id)  # this leader may not have received a heartbeat yet
        ids = _parse_ids(header.ids or "")
        removes_master = group.master_id in alive and (not ids or group.master_id in ids)
        if removes_master and not header.forgets_living_master:
            raise RequestRejected(
                f"the master {group.master_id} of {group.name} is alive: stop it first, or remove it"
                " anyway with `tandemmq admin cleanBrokerMetadata --living-master`",
                code=Code.CONTROLLER_INVALID_CLEAN_BROKER_METADATA,
            )
        outcome = await self._elections.clean(
            group,
            Clean(
                cluster=header.cluster_name or "",
                name=header.broker_name,
                ids=ids,
                is_forced=header.is_forced,
                alive=tuple(sorted(alive)),
            ),
        )
        if succeeded(outcome):
            left = outcome.group.replicas if outcome.group else {}
            self._heartbeats.retain(header.broker_name, left)
            self._history.reports.forget(header.broker_name, group.replicas.keys() - left.keys())
        return command.reply(outcome.code, remark=outcome.remark or None)

    # Membership of the controllers.

    async def handle_change_controllers(self, channel: Channel, command: Command) -> Command:
        """TANDEM_CHANGE_CONTROLLERS (30002): makes one change and returns the members of the group.

        A new controller first receives everything and becomes a voter once it has it. The answer is sent when
        the change is in force, which is as soon as it is in the leader's log.
        """
        header = command.decode(headers.ChangeControllersRequest)
        self._require_leader()
        name, raft = header.name, self._elections.raft
        if header.action == "add":
            parse_address(header.address)
            if name not in raft.members.learners:  # else an earlier attempt continues
                await self._change(lambda node, now_ms: node.add_learner(name, header.address, now_ms))
            deadline_s = self._clock.monotonic() + PROPOSAL_TIMEOUT_S
            while name not in raft.members.voters:
                refusal = await raft.submit(
                    lambda node, now_ms: node.promote(name, now_ms), PROPOSAL_TIMEOUT_S
                )
                is_late = self._clock.monotonic() > deadline_s
                if refusal is not None and (is_late or refusal not in _TRANSIENT_REFUSALS):
                    raise RequestRejected(f"{name} is a learner: {refusal.value}")
                await self._clock.sleep(PROMOTION_PAUSE_S)
        elif header.action == "remove":
            await self._change(lambda node, now_ms: node.remove(name, now_ms))
        elif header.action == "handOver":
            await self._change(lambda node, now_ms: node.hand_over(name, now_ms))
        elif header.action != "list":
            raise BadRequest(f"action: {header.action} must be list, add, remove or handOver")
        members = [
            bodies.ControllerMember(
                name=key, address=address, is_voter=is_voter, is_leader=key == raft.leader
            )
            for table, is_voter in ((raft.members.voters, True), (raft.members.learners, False))
            for key, address in sorted(table.items())
        ]
        return command.reply(body=encode_body(members))

    async def _change(
        self, change: Callable[[RaftNode, int], tuple[ProposalRefusal | None, list[Effect]]]
    ) -> None:
        refusal = await self._elections.raft.submit(change, PROPOSAL_TIMEOUT_S)
        if refusal is not None:
            raise RequestRejected(refusal.value)

    # Helpers.

    def _require_leader(self) -> None:
        if not self._elections.raft.is_leader:
            raise NotLeader("this controller is not the leader")

    async def _propose(self, command: GroupCommand) -> CommandOutcome:
        self._require_leader()
        return await self._history.propose(command)

    def _find_group(self, name: str, broker_id: int | None, group_id: str | None) -> ReplicaGroup | None:
        """Returns the group, or None if it is unknown here. Raises NotLeader; RequestRejected if the calling
        broker belongs to another group of this name.
        """
        self._require_leader()
        group = self._groups.get(name)
        _require_group(group, broker_id, group_id)
        return group

    def _describe(self, group: ReplicaGroup) -> bodies.GroupSyncState:
        now_s = self._clock.monotonic()
        replicas = [
            bodies.ReplicaIdentity(
                is_alive=self._heartbeats.is_alive(group.name, broker_id, now_s),
                address=replica.address,
                broker_id=broker_id,
                broker_name=group.name,
            )
            for broker_id, replica in sorted(group.replicas.items())
        ]
        return bodies.GroupSyncState(
            in_sync=[one for one in replicas if one.broker_id in group.sync_set],
            not_in_sync=[one for one in replicas if one.broker_id not in group.sync_set],
            master_id=group.master_id,
            master_address=group.master_address,
            master_epoch=group.master_epoch,
            set_epoch=group.set_epoch,
            group_id=group.group_id or None,
            term_id=str(group.term_id) if group.term_id else None,
            contradiction=self._history.contradiction(group),
            waits_for=self._elections.reason_without_master(group),
            refused=self._history.reports.refusals(group.name, now_s) or None,
        )


def _require_group(group: ReplicaGroup | None, broker_id: int | None, group_id: str | None) -> None:
    """Raises RequestRejected if the calling broker belongs to another group of this name."""
    fault = "" if group is None else other_group_fault(group, broker_id, group_id or "")
    if fault:
        raise RequestRejected(fault, code=Code.CONTROLLER_INVALID_REQUEST)


def _master_header(group: ReplicaGroup | None, *, with_master: bool = True) -> headers.MasterResponse:
    if group is None:
        return headers.MasterResponse()
    includes_master = with_master and group.master_id is not None
    return headers.MasterResponse(
        cluster_name=group.cluster,
        broker_name=group.name,
        master_id=group.master_id if includes_master else None,
        master_address=group.master_address if includes_master else None,
        master_epoch=group.master_epoch if includes_master else None,
        set_epoch=group.set_epoch if includes_master else None,
        group_id=group.group_id or None,
        term_id=(group.term_id or None) if includes_master else None,
    )


def _parse_ids(text: str) -> tuple[int, ...]:
    """Raises BadRequest."""
    try:
        return tuple(int(part) for part in text.split(";") if part.strip())
    except ValueError:
        raise BadRequest(f"brokerControllerIdsToClean: {text!r} must be numbers joined by ;") from None
