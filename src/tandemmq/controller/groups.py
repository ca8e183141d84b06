"""The controllers' records of brokers. `Groups` is the replicated state of all controllers, with the commands
that change it: pure and deterministic. `HeartbeatTable` contains the heartbeats that one controller has
received; it is not replicated.

Owns:       per group its random id, the brokers and their ids, the recorded master with the id of its term,
            the SyncStateSet, both epochs, the highest known confirmed offset.
Invariants: epochs and ids never decrease, and the id of a cleaned broker is not proposed again while its
            group exists. A recorded master is in its set. A clean election chooses a member of the previous
            set with a log that reaches the confirmed offset. A group keeps its id. A refused command changes
            nothing. Fields and commands that the previous release does not know are proposed only if no voter
            runs that release, and their defaults keep its behaviour.
Strategy:   a command carries the facts of its proposer (the living brokers, the lengths of their logs), and
            is decided when it is applied. Therefore every controller decides by the same facts and state.
Bounds:     brokers of all groups, brokers of one group, and the length of names: a snapshot fits into one
            frame.
Source:     spec controller 2, 5.2, 5.3, 10.5, 10.7, 10.16.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tandemmq.protocol.codes import ResponseCode as Code
from tandemmq.protocol.requests.controller import RegisterReplicaRequest
from tandemmq.protocol.requests.route import BrokerHeartbeatRequest
from tandemmq.remoting.channel import Channel

BROKERS_MAX: Final = 8_192
BROKERS_PER_GROUP_MAX: Final = 64
TOO_MANY: Final = f"too many brokers: at most {BROKERS_PER_GROUP_MAX} per group and {BROKERS_MAX} in all"
TEXT_MAX: Final = 255
NO_ID: Final = -1
TIMEOUT_MS_DEFAULT = 10_000
FIRST_HEARTBEAT_S = 3.0
PRIORITY_DEFAULT = 2**31 - 1
ADOPTED_ID_GAP: Final = 64
"""The number of ids that a group skips when it is adopted: silent brokers may have them."""

Key = tuple[str, int]
Floor = tuple[int, int]
"""A confirmed offset as (epoch of its last byte, offset). The greater one is the later one."""
NO_FLOOR: Final[Floor] = (-1, -1)
NO_TERM: Final = -1


class Replica(msgspec.Struct, frozen=True):
    """One broker of a group. `check_code` is the proof of identity from its application for its id."""

    address: str
    check_code: str


class ReplicaGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The brokers of one name."""

    cluster: str
    name: str
    replicas: dict[int, Replica] = {}
    next_id: int = 1
    master_id: int | None = None
    master_epoch: int = 0
    sync_set: tuple[int, ...] = ()
    set_epoch: int = 0
    group_id: str = ""
    """A random id, created with the group; empty while a controller's release may lack group ids."""
    term_id: int = 0
    """The random id of the master epoch in force; 0: unknown, or no master."""
    floor: Floor = NO_FLOOR
    floor_since: int = 0
    """The master epoch that began with a log below the floor of that time. Older floors are void."""
    former_members: tuple[int, ...] = ()
    """Members of the set that an election left out. Each has everything that was confirmed, until the new
    master confirms something in its own term.
    """
    adopted_below: int = 0
    """Brokers with lower ids are accepted without an application if they know the group id."""
    former_term: int = 0
    """The epoch of the last term that had a master, while there is none; 0: unknown."""

    @property
    def last_term(self) -> int:
        """The epoch of the last term that had a master; 0: there was none, or it is unknown."""
        return self.former_term if self.master_id is None else self.master_epoch

    @property
    def master_address(self) -> str | None:
        return None if self.master_id is None else self.replicas[self.master_id].address


class Candidate(msgspec.Struct, frozen=True, array_like=True):
    """A living broker as the proposer of an election knows it: the end of its log, and `is_ours` if it is a
    TandemMQ broker.
    """

    broker_id: int
    epoch: int = -1
    max_offset: int = -1
    priority: int = 2**31 - 1
    is_ours: bool = False
    is_incomplete: bool = False
    """True if the broker may have lost acknowledged messages."""
    holds_confirmed: bool = False
    """True if the broker followed the recorded master when it reported, and its log reached the confirmed
    offset of that moment. Later confirmations wait for the broker while it is in the set; a restart resets
    the field.
    """

    @property
    def reports_log(self) -> bool:
        """False for a broker of the previous release, or of RocketMQ, that has only registered."""
        return self.max_offset >= 0

    def holds(self, floor: Floor) -> bool:
        """Returns True if the broker's log reaches a confirmed offset."""
        reaches = self.reports_log and (self.epoch, self.max_offset) >= floor
        return floor == NO_FLOOR or self.holds_confirmed or reaches


class ApplyId(msgspec.Struct, frozen=True, tag="apply id"):
    """The application of a broker for an id. `group_id` is the id of the group if this command creates it."""

    cluster: str
    name: str
    broker_id: int
    check_code: str
    group_id: str = ""


class Register(msgspec.Struct, frozen=True, tag="register"):
    """The registration of a broker. `group_id` is the id of the group to which the broker claims to
    belong.
    """

    cluster: str
    name: str
    broker_id: int
    address: str
    group_id: str = ""


class AlterSet(msgspec.Struct, frozen=True, tag="alter set"):
    """A change of the SyncStateSet. `alive` are the wanted members whose heartbeats the proposer receives."""

    name: str
    master_id: int
    master_epoch: int
    set_epoch: int
    wanted: tuple[int, ...]
    alive: tuple[int, ...]


class Elect(msgspec.Struct, frozen=True, tag="elect", kw_only=True):
    """The election of a master.

    `caller` is the broker that requests the election, or is designated; NO_ID if a controller has detected
    the loss of the master. If `master_epoch` is set, the election takes place only while it is the recorded
    epoch. `is_restart`: the caller is the recorded master in a new run. `all_have_reported`: every living
    broker has had time to report its log. `is_passed_over`: the recorded master is alive but has not become
    active; another member is elected if one is alive.
    """

    name: str
    caller: int = NO_ID
    is_designated: bool = False
    is_restart: bool = False
    all_have_reported: bool = msgspec.field(default=False, name="takes_incomplete")
    is_passed_over: bool = False
    is_unclean_allowed: bool = False
    master_epoch: int | None = None
    live: tuple[Candidate, ...] = ()
    term_id: int = 0
    epoch_known: int = 0
    """The highest master epoch that a broker of the group has reported; the new epoch is above it."""
    floor: Floor | None = None
    """The highest confirmed offset reported to the proposer; None if a voter's release lacks floors."""


class Clean(msgspec.Struct, frozen=True, tag="clean"):
    """The removal of brokers. Empty `ids` mean the whole group. `alive` are the ids of all living brokers
    of the group, as far as the proposer knows.
    """

    cluster: str
    name: str
    ids: tuple[int, ...]
    is_forced: bool
    alive: tuple[int, ...]


class RecordFacts(msgspec.Struct, frozen=True, tag="note", kw_only=True):
    """Facts about a group: an id, if it has none, and a confirmed offset."""

    name: str
    group_id: str = ""
    floor: Floor = NO_FLOOR


class Adopt(msgspec.Struct, frozen=True, tag="adopt", kw_only=True):
    """The state of a group as its brokers have proven it. It replaces an older state or creates the group.

    `master_epoch_before` and `set_epoch_before` are the epochs of the replaced state; 0 if there is none.
    """

    cluster: str
    name: str
    group_id: str
    replicas: dict[int, str]
    master_id: int | None
    master_epoch: int
    term_id: int
    sync_set: tuple[int, ...]
    set_epoch: int
    master_epoch_before: int = 0
    set_epoch_before: int = 0


class AssignControllersId(msgspec.Struct, frozen=True, tag="name controllers"):
    """A random id for the group of controllers itself, if it has none."""

    controllers_id: str


Command = ApplyId | Register | AlterSet | Elect | Clean | RecordFacts | Adopt | AssignControllersId
_COMMANDS = msgspec.msgpack.Decoder(Command)


class CommandOutcome(msgspec.Struct, frozen=True):
    """The result of a command. `group` is the group after the command, or None if it does not exist."""

    code: int
    remark: str = ""
    group: ReplicaGroup | None = None


class _Snapshot(msgspec.Struct, frozen=True):
    groups: list[ReplicaGroup]
    controllers_id: str = ""


class Groups:
    """All groups by name. A `consensus.shell.server.StateMachine`."""

    def __init__(self) -> None:
        self.controllers_id = ""
        self._groups: dict[str, ReplicaGroup] = {}
        self._broker_count = 0

    def get(self, name: str) -> ReplicaGroup | None:
        return self._groups.get(name)

    @property
    def identity(self) -> str:
        return self.controllers_id

    def all(self) -> list[ReplicaGroup]:
        return list(self._groups.values())

    # The interface for the consensus.

    def apply(self, command: bytes) -> CommandOutcome:
        decoded: Any = _COMMANDS.decode(command)
        if isinstance(decoded, ApplyId):
            return self._apply_id(decoded)
        if isinstance(decoded, Register):
            return self._register(decoded)
        if isinstance(decoded, AlterSet):
            return self._alter_set(decoded)
        if isinstance(decoded, Elect):
            return self._elect(decoded)
        if isinstance(decoded, RecordFacts):
            return self._record_facts(decoded)
        if isinstance(decoded, Adopt):
            return self._adopt(decoded)
        if isinstance(decoded, AssignControllersId):
            self.controllers_id = self.controllers_id or decoded.controllers_id
            return CommandOutcome(Code.SUCCESS)
        return self._clean(decoded)

    def take_snapshot(self) -> bytes:
        groups = [
            msgspec.structs.replace(group, replicas=dict(sorted(group.replicas.items())))
            for _, group in sorted(self._groups.items())
        ]
        return msgspec.json.encode(_Snapshot(groups, self.controllers_id))

    def restore(self, data: bytes) -> None:
        """Replaces the state; empty `data` restores the state before the first command."""
        snapshot = msgspec.json.decode(data, type=_Snapshot) if data else _Snapshot([])
        self.controllers_id = snapshot.controllers_id
        self._groups = {group.name: group for group in snapshot.groups}
        self._broker_count = sum(len(group.replicas) for group in snapshot.groups)

    # Commands.

    def _apply_id(self, command: ApplyId) -> CommandOutcome:
        group = self._groups.get(command.name)
        fault = _text_fault(command.cluster, command.name, command.check_code)
        if fault:
            return CommandOutcome(Code.SYSTEM_ERROR, fault)
        if group is None:
            if command.broker_id != 1:
                return CommandOutcome(Code.CONTROLLER_BROKER_ID_INVALID, "the first id of a group must be 1")
            group = ReplicaGroup(cluster=command.cluster, name=command.name, group_id=command.group_id)
        elif group.cluster != command.cluster:
            return _other_cluster(group, Code.CONTROLLER_BROKER_ID_INVALID)
        taken = group.replicas.get(command.broker_id)
        if taken is not None:
            if taken.check_code == command.check_code:
                return CommandOutcome(Code.SUCCESS, group=group)
            if not taken.check_code and taken.address == command.check_code.partition(";")[0]:
                # The proof was lost with the state before the adoption; the address identifies the broker.
                proven = Replica(taken.address, command.check_code)
                return self._put(group, replicas={**group.replicas, command.broker_id: proven})
            return CommandOutcome(
                Code.CONTROLLER_BROKER_ID_INVALID, f"the id {command.broker_id} is taken", group
            )
        if command.broker_id < 1:
            return CommandOutcome(Code.CONTROLLER_BROKER_ID_INVALID, "an id must be at least 1", group)
        replica = Replica(command.check_code.partition(";")[0], command.check_code)
        return self._add(group, command.broker_id, replica)

    def _add(self, group: ReplicaGroup, broker_id: int, replica: Replica) -> CommandOutcome:
        if len(group.replicas) >= BROKERS_PER_GROUP_MAX or self._broker_count >= BROKERS_MAX:
            return CommandOutcome(Code.SYSTEM_ERROR, TOO_MANY)
        self._broker_count += 1
        return self._put(
            group,
            replicas={**group.replicas, broker_id: replica},
            next_id=max(group.next_id, broker_id + 1),
        )

    def _register(self, command: Register) -> CommandOutcome:
        group = self._groups.get(command.name)
        if group is None:
            return CommandOutcome(Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, "apply for an id first")
        if group.cluster != command.cluster:
            return _other_cluster(group, Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED)
        fault = _text_fault(command.address)
        if fault:
            return CommandOutcome(Code.SYSTEM_ERROR, fault, group)
        foreign = other_group_fault(group, command.broker_id, command.group_id)
        if foreign:
            return CommandOutcome(Code.CONTROLLER_INVALID_REQUEST, foreign, group)
        replica = group.replicas.get(command.broker_id)
        if replica is None:
            return self._readmit(group, command)
        if replica.address == command.address:
            return CommandOutcome(Code.SUCCESS, group=group)
        moved = Replica(command.address, replica.check_code)
        return self._put(group, replicas={**group.replicas, command.broker_id: moved})

    def _readmit(self, group: ReplicaGroup, command: Register) -> CommandOutcome:
        """Adds a broker that received its id from a lost state of the controllers: it knows the group id, and
        its id was not removed here.
        """
        is_lost = command.broker_id >= group.next_id or command.broker_id < group.adopted_below
        if not command.group_id or command.group_id != group.group_id or not is_lost:
            remark = "apply for an id first"
            return CommandOutcome(Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, remark)
        return self._add(group, command.broker_id, Replica(command.address, ""))

    def _record_facts(self, command: RecordFacts) -> CommandOutcome:
        group = self._groups.get(command.name)
        if group is None:
            return CommandOutcome(Code.CONTROLLER_BROKER_METADATA_NOT_EXIST, "no such group")
        floor = max(group.floor, command.floor)
        return self._put(group, group_id=group.group_id or command.group_id, floor=floor)

    def _adopt(self, command: Adopt) -> CommandOutcome:
        group = self._groups.get(command.name)
        known = (0, 0) if group is None else (group.master_epoch, group.set_epoch)
        if known != (command.master_epoch_before, command.set_epoch_before):
            return CommandOutcome(Code.CONTROLLER_FENCED_MASTER_EPOCH, "the group has changed", group)
        fault = _text_fault(command.cluster, command.name, *command.replicas.values())
        if fault or not set(command.sync_set) <= command.replicas.keys():
            return CommandOutcome(
                Code.SYSTEM_ERROR, fault or "a member of the set is not a broker of the group", group
            )
        if group is not None and group.master_epoch and group.group_id not in ("", command.group_id):
            remark = f"the group has the id {group.group_id}, not {command.group_id}"
            return CommandOutcome(Code.CONTROLLER_INVALID_REQUEST, remark, group)
        known_replicas = {} if group is None or not group.master_epoch else group.replicas
        replicas = {
            broker_id: Replica(
                address, known_replicas[broker_id].check_code if broker_id in known_replicas else ""
            )
            for broker_id, address in command.replicas.items()
        }
        replicas = {**known_replicas, **replicas}
        count = self._broker_count + len(replicas) - (0 if group is None else len(group.replicas))
        if len(replicas) > BROKERS_PER_GROUP_MAX or count > BROKERS_MAX:
            return CommandOutcome(Code.SYSTEM_ERROR, TOO_MANY, group)
        self._broker_count = count
        next_id = max(max(replicas) + 1 + ADOPTED_ID_GAP, 1 if group is None else group.next_id)
        adopted = ReplicaGroup(
            cluster=command.cluster,
            name=command.name,
            replicas=replicas,
            next_id=next_id,
            master_id=command.master_id,
            master_epoch=max(command.master_epoch, known[0]),
            sync_set=command.sync_set,
            set_epoch=max(command.set_epoch, known[1] + 1),
            group_id=command.group_id,
            term_id=command.term_id,
            floor=NO_FLOOR if group is None else group.floor,
            floor_since=0 if group is None else group.floor_since,
            adopted_below=next_id,
        )
        self._groups[command.name] = adopted
        return CommandOutcome(Code.SUCCESS, group=adopted)

    def _alter_set(self, command: AlterSet) -> CommandOutcome:
        group = self._groups.get(command.name)
        if group is None:
            return CommandOutcome(Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, "no such group")
        wanted = tuple(sorted(set(command.wanted)))
        fault = _set_fault(group, command, wanted)
        if fault is not None:
            return CommandOutcome(fault[0], fault[1], group)
        return self._put(group, sync_set=wanted, set_epoch=group.set_epoch + 1)

    def _elect(self, command: Elect) -> CommandOutcome:
        group = self._groups.get(command.name)
        is_internal = command.caller == NO_ID
        if group is None or not (is_internal or command.caller in group.replicas):
            return CommandOutcome(
                Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, "no such group or broker", group
            )
        if command.master_epoch not in (None, group.master_epoch):
            return CommandOutcome(
                Code.CONTROLLER_FENCED_MASTER_EPOCH, "another master was elected meanwhile", group
            )
        choice = choose_master(group, command)
        epoch = max(group.master_epoch, command.epoch_known) + 1
        if choice is None:
            if (is_internal or command.is_restart) and group.master_id is not None:
                group = self._change(
                    group,
                    master_id=None,
                    master_epoch=epoch,
                    term_id=0,
                    former_members=_former_after(group, command, group.sync_set),
                )
            if is_internal:
                return CommandOutcome(
                    Code.CONTROLLER_MASTER_NOT_AVAILABLE, "no member of the in-sync set is alive", group
                )
            return CommandOutcome(Code.CONTROLLER_ELECT_MASTER_FAILED, "no broker may be elected", group)
        if choice == group.master_id and not command.is_restart:
            return CommandOutcome(Code.CONTROLLER_MASTER_STILL_EXIST, "the master is alive", group)
        sync_set = _set_after(group, command, choice)
        return self._put(
            group,
            master_id=choice,
            master_epoch=epoch,
            sync_set=sync_set,
            set_epoch=group.set_epoch + 1,
            term_id=command.term_id,
            former_members=_former_after(group, command, sync_set),
            **_floor_after(group, command, choice, epoch),
        )

    def _clean(self, command: Clean) -> CommandOutcome:
        group = self._groups.get(command.name)
        refused = Code.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
        if group is None or (command.cluster and command.cluster != group.cluster):
            return CommandOutcome(refused, "no such group")
        if not command.is_forced:
            if not command.ids and group.master_id is not None:
                return CommandOutcome(refused, "the group has a master", group)
            living = [broker_id for broker_id in command.ids if broker_id in command.alive]
            if living:
                return CommandOutcome(refused, f"the broker {living[0]} is alive", group)
        gone = set(command.ids) or set(group.replicas)
        if not gone <= group.replicas.keys():
            return CommandOutcome(refused, "no such broker", group)
        self._broker_count -= len(gone)
        if gone == group.replicas.keys():
            del self._groups[command.name]
            return CommandOutcome(Code.SUCCESS)
        former = tuple(sorted(possible_last_holders(group, group.floor) - set(group.sync_set) - gone))
        group = self._change(group, former_members=former)
        if group.master_id in gone:
            group = self._change(group, master_id=None, master_epoch=group.master_epoch + 1, term_id=0)
        if gone & set(group.sync_set):
            left = tuple(broker_id for broker_id in group.sync_set if broker_id not in gone)
            group = self._change(group, sync_set=left, set_epoch=group.set_epoch + 1)
        return self._put(group, replicas={key: one for key, one in group.replicas.items() if key not in gone})

    def _change(self, group: ReplicaGroup, **values: Any) -> ReplicaGroup:
        if values.get("master_id", group.master_id) is None:
            values["former_term"] = group.last_term
        changed = msgspec.structs.replace(group, **values)
        self._groups[group.name] = changed
        return changed

    def _put(self, group: ReplicaGroup, **values: Any) -> CommandOutcome:
        return CommandOutcome(Code.SUCCESS, group=self._change(group, **values))


def encode_command(command: Command) -> bytes:
    return msgspec.msgpack.encode(command)


def choose_master(group: ReplicaGroup, command: Elect) -> int | None:
    """Returns the broker that should be master (spec controller 5.2 and 10.7). The present master
    stays if it may; None if no broker may be master.
    """
    live = {one.broker_id: one for one in command.live if one.broker_id in group.replicas}
    if group.master_epoch == 0 and command.caller != NO_ID:
        # There was never a master, so no log is complete: choose the best living broker, or the designated
        # one.
        live.setdefault(command.caller, Candidate(command.caller))
        return command.caller if command.is_designated else _best(live.values())
    floor = _floor_of(group, command)
    if command.is_restart:
        # Not all brokers have reported their logs, so logs cannot be compared: only a broker with a complete
        # log may become master at once.
        pool = _electable(group, live, floor, all_have_reported=False)
        others = [one for key, one in pool.items() if key != command.caller]
        if others:
            return _best(others)
        caller = live.get(command.caller, Candidate(command.caller))
        is_complete = not caller.is_incomplete and caller.holds(floor)
        return command.caller if is_complete or len(group.replicas) == 1 else None
    pool = _electable(group, live, floor, all_have_reported=command.all_have_reported)
    if command.is_passed_over:
        others = [one for key, one in pool.items() if key != group.master_id]
        return _best(others) if others else group.master_id
    choice = _choose_from(pool, group, command)
    if choice is None and command.is_unclean_allowed:
        choice = _choose_from(live, group, command)
    return choice


def possible_last_holders(group: ReplicaGroup, floor: Floor) -> set[int]:
    """Returns the brokers of which one may be the last to hold everything that was confirmed: the set, and
    the members that the last elections left out, until a new master has confirmed something (spec controller
    10.7).
    """
    has_confirmed = floor[0] >= group.master_epoch
    return set(group.sync_set) | (set() if has_confirmed else set(group.former_members))


def _floor_of(group: ReplicaGroup, command: Elect) -> Floor:
    """Returns the confirmed offset that every complete log reaches."""
    return NO_FLOOR if command.floor is None else max(group.floor, command.floor)


def _floor_after(group: ReplicaGroup, command: Elect, choice: int, epoch: int) -> dict[str, Any]:
    """Returns the floor of a new term: the previous one, or the end of the new master's log if that
    is lower.
    """
    if command.floor is None:
        return {}
    floor = _floor_of(group, command)
    winner = next((one for one in command.live if one.broker_id == choice), Candidate(choice))
    if winner.holds(floor):
        return {"floor": floor}
    return {"floor": (winner.epoch, winner.max_offset), "floor_since": epoch}


def _electable(
    group: ReplicaGroup, live: dict[int, Candidate], floor: Floor, *, all_have_reported: bool
) -> dict[int, Candidate]:
    """Returns the brokers that may become master: the members of the set whose log is complete, which means
    that its end was not lost and that it reaches the confirmed offset. If no log is complete but all
    `possible_last_holders` have reported theirs, the longest log of the group wins, and any member or
    TandemMQ broker may become master.
    """
    members = {key: one for key, one in live.items() if key in group.sync_set}
    complete = {key: one for key, one in members.items() if not one.is_incomplete and one.holds(floor)}
    needed = possible_last_holders(group, floor)
    reported = sum(one.reports_log for key, one in live.items() if key in needed)
    if complete or not all_have_reported or reported < len(needed):
        return complete
    return {key: one for key, one in live.items() if one.is_ours} | members


def _choose_from(pool: dict[int, Candidate], group: ReplicaGroup, command: Elect) -> int | None:
    if group.master_id in pool and (not command.is_designated or command.caller == group.master_id):
        return group.master_id
    if command.is_designated:
        return command.caller if command.caller in pool else None
    return _best(pool.values()) if pool else None


def _best(candidates: Iterable[Candidate]) -> int:
    """Chooses by the newest epoch, then the longest log, then the priority, then the smallest id."""
    best = min(candidates, key=lambda one: (-one.epoch, -one.max_offset, one.priority, one.broker_id))
    return best.broker_id


def _set_after(group: ReplicaGroup, command: Elect, winner: int) -> tuple[int, ...]:
    """Returns the set of a new term. A TandemMQ master inherits the living members that are TandemMQ brokers.
    It needs their acknowledgements from its first message on, and each of them has everything that was
    acknowledged. Any other master begins alone.
    """
    ours = {one.broker_id for one in command.live if one.is_ours and not one.is_incomplete}
    if winner not in ours or winner not in group.sync_set:
        return (winner,)
    inherited = (ours & set(group.sync_set)) - {group.master_id}
    return tuple(sorted(inherited | {winner}))


def _former_after(group: ReplicaGroup, command: Elect, sync_set: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the `possible_last_holders` outside the set of a new term; none while a voter's release lacks
    floors.
    """
    if command.floor is None:
        return ()
    return tuple(sorted(possible_last_holders(group, _floor_of(group, command)) - set(sync_set)))


def _set_fault(group: ReplicaGroup, command: AlterSet, wanted: tuple[int, ...]) -> tuple[int, str] | None:
    """Returns the reason to refuse a change of the set, checked in RocketMQ's order. Members that are removed
    need not live.
    """
    if wanted == group.sync_set:
        return Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, "the set is unchanged"
    if command.master_id != group.master_id:
        return Code.CONTROLLER_INVALID_MASTER, f"the master is {group.master_id}"
    if command.master_epoch != group.master_epoch:
        return Code.CONTROLLER_FENCED_MASTER_EPOCH, f"the master epoch is {group.master_epoch}"
    if command.set_epoch != group.set_epoch:
        return Code.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, f"the epoch of the set is {group.set_epoch}"
    for broker_id in wanted:
        if broker_id not in group.replicas:
            return Code.CONTROLLER_INVALID_REPLICAS, f"the broker {broker_id} is unknown"
        if broker_id not in group.sync_set and broker_id not in command.alive:
            return Code.CONTROLLER_BROKER_NOT_ALIVE, f"the broker {broker_id} sends no heartbeats"
    if group.master_id not in wanted:
        return Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, "the master must stay in the set"
    return None


def other_group_fault(group: ReplicaGroup, broker_id: int | None, group_id: str) -> str:
    """Returns the reason why a broker that names this group id does not belong to the group; empty if it may
    belong.

    A group that never had a master proves nothing: it may have been created while the controllers had lost
    the state of the living group.
    """
    if not group_id or not group.group_id or group_id == group.group_id or not group.master_epoch:
        return ""
    broker = "the broker" if broker_id is None else f"the broker {broker_id}"
    return (
        f"{broker} belongs to the group {group_id}, these controllers' group {group.name} is"
        f" {group.group_id}: correct controllerAddr and brokerName, or give this broker a store of its own"
    )


def _other_cluster(group: ReplicaGroup, code: int) -> CommandOutcome:
    return CommandOutcome(code, f"{group.name} belongs to the cluster {group.cluster}")


def _text_fault(*texts: str) -> str:
    return (
        f"a name must have 1 to {TEXT_MAX} characters"
        if any(not 0 < len(text) <= TEXT_MAX for text in texts)
        else ""
    )


def _candidate(
    header: BrokerHeartbeatRequest | RegisterReplicaRequest, broker_id: int, priority: int, *, is_ours: bool
) -> Candidate:
    """Returns the broker as it reports itself."""
    return Candidate(
        broker_id,
        -1 if header.epoch is None else header.epoch,
        -1 if header.max_log_offset is None else header.max_log_offset,
        priority,
        is_ours,
        bool(header.is_incomplete),
    )


@dataclass(slots=True, kw_only=True)
class BrokerHeartbeat:
    """The last heartbeat of a broker, and the connection on which it arrived."""

    facts: Candidate
    address: str
    connection: object
    confirmed_offset: int
    received_s: float
    timeout_s: float
    start_term: int
    """The last term of the group when the broker started, as far as this controller knows; NO_TERM if the
    broker's master has added the broker to the set since.
    """

    def lacks_term(self, term: int) -> bool:
        """Returns True if the broker was started after this term had begun, and its log has no byte of the
        term: the disk is a copy of an earlier moment, or the broker never copied a byte of the term.
        """
        return self.start_term >= term > self.facts.epoch and term > 0

    @property
    def is_connected(self) -> bool:
        """True if the connection of the heartbeats is open, as far as this controller knows: the process
        lives.
        """
        return isinstance(self.connection, Channel) and not self.connection.is_closed

    def is_host_of(self, channel: Channel) -> bool:
        """Returns True if the peer of the connection is the host that sends the broker's heartbeats."""
        return isinstance(self.connection, Channel) and self.connection.peer[0] == channel.peer[0]


class HeartbeatTable:
    """The newest heartbeat of each broker, by name and id. Times are monotonic seconds.

    A heartbeat replaces the previous one even if it reports a shorter log: the broker may have truncated its
    log.
    Bounds:  only brokers that have an id are kept, so there are at most as many entries as brokers in
             `Groups`.
    """

    def __init__(self) -> None:
        self._by_broker: dict[Key, BrokerHeartbeat] = {}

    def record(
        self,
        header: BrokerHeartbeatRequest,
        connection: object,
        now_s: float,
        *,
        is_ours: bool,
        floor: Floor | None = None,
        term: int = 0,
    ) -> bool:
        """Records a heartbeat. Returns True if the broker was not alive before. `floor` is the confirmed
        offset that is known now, None if the broker does not follow the recorded master. `term` is the last
        term of the group.
        """
        assert header.broker_id is not None
        key = header.broker_name, header.broker_id
        is_new = not self.is_alive(*key, now_s)
        priority = PRIORITY_DEFAULT if header.election_priority is None else header.election_priority
        facts = _candidate(header, header.broker_id, priority, is_ours=is_ours)
        before = self._by_broker.get(key)
        is_same_run = before is not None and before.connection in (None, connection)
        held_confirmed = (
            before is not None and before.facts.holds_confirmed and before.connection is connection
        )
        heartbeat = self._by_broker[key] = BrokerHeartbeat(
            facts=facts,
            address=header.broker_address,
            connection=connection,
            confirmed_offset=-1 if header.confirmed_offset is None else header.confirmed_offset,
            received_s=now_s,
            timeout_s=max(1, header.heartbeat_timeout_ms or TIMEOUT_MS_DEFAULT) / 1000,
            start_term=before.start_term if before is not None and is_same_run else term,
        )
        # The floor is reported by heartbeats, so it may be older than what the term has confirmed by now.
        holds_all = held_confirmed or (facts.holds(floor or NO_FLOOR) and not heartbeat.lacks_term(term))
        heartbeat.facts = msgspec.structs.replace(facts, holds_confirmed=floor is not None and holds_all)
        return is_new

    def record_start(self, header: RegisterReplicaRequest, now_s: float, *, term: int = 0) -> None:
        """Records that the broker has restarted: its earlier facts no longer count. A registration that
        reports neither a log nor a possible loss, as from the previous release, changes nothing. `term` is
        the last term of the group.
        """
        if header.max_log_offset is None and not header.is_incomplete:
            return
        before = self._by_broker.get((header.broker_name, header.broker_id))
        priority = PRIORITY_DEFAULT if before is None else before.facts.priority
        self._by_broker[header.broker_name, header.broker_id] = BrokerHeartbeat(
            facts=_candidate(header, header.broker_id, priority, is_ours=True),
            address=header.broker_address,
            connection=None,
            confirmed_offset=-1,
            received_s=now_s,
            timeout_s=FIRST_HEARTBEAT_S,
            start_term=term,
        )

    def mark_in_sync(self, name: str, ids: Iterable[int]) -> None:
        """Records that these brokers hold everything confirmed: their master has added them to the set. A
        broker that has only registered since is left out.
        """
        for one in ids:
            heartbeat = self._by_broker.get((name, one))
            if heartbeat is not None and heartbeat.connection is not None:
                heartbeat.facts = msgspec.structs.replace(heartbeat.facts, holds_confirmed=True)
                heartbeat.start_term = NO_TERM

    def candidates_for(self, group: ReplicaGroup, now_s: float) -> tuple[Candidate, ...]:
        """Returns the living brokers as candidates of an election. A member of the set that lacks the last
        term counts as incomplete while another member may have the term, because the other member may hold
        everything that the term confirmed. If no member has the term, no confirmed bytes of it remain.
        """
        term = group.last_term
        alive = {one.facts.broker_id: one for one in self.alive(group.name, group.replicas, now_s)}
        reported = {key: one.facts for key, one in alive.items() if one.facts.reports_log}
        may_have_term = {key for key in group.sync_set if key not in reported or reported[key].epoch >= term}
        unproven = {
            key
            for key in reported.keys() & set(group.sync_set)
            if reported[key].is_ours and alive[key].lacks_term(term) and may_have_term
        }
        return tuple(
            msgspec.structs.replace(one.facts, is_incomplete=True) if key in unproven else one.facts
            for key, one in alive.items()
        )

    def get(self, name: str, broker_id: int) -> BrokerHeartbeat | None:
        return self._by_broker.get((name, broker_id))

    def is_alive(self, name: str, broker_id: int, now_s: float) -> bool:
        heartbeat = self._by_broker.get((name, broker_id))
        return heartbeat is not None and now_s < heartbeat.received_s + heartbeat.timeout_s

    def alive(self, name: str, ids: Iterable[int], now_s: float) -> list[BrokerHeartbeat]:
        """Returns the heartbeats of those given brokers that are alive."""
        return [self._by_broker[name, one] for one in ids if self.is_alive(name, one, now_s)]

    def mark_gone(self, name: str, broker_id: int) -> None:
        """Records that the broker is known to be gone, not only silent."""
        heartbeat = self._by_broker.get((name, broker_id))
        if heartbeat is not None:
            heartbeat.timeout_s = 0.0

    def retain(self, name: str, ids: Container[int]) -> None:
        """Removes all other brokers of the group."""
        for key in [key for key in self._by_broker if key[0] == name and key[1] not in ids]:
            del self._by_broker[key]

    def by_connection(self, connection: object) -> list[Key]:
        return [key for key, heartbeat in self._by_broker.items() if heartbeat.connection is connection]
