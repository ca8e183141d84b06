"""The controllers' knowledge of brokers. `Groups` is the state that all controllers agree on, with the
commands that change it: pure and deterministic. `LiveTable` contains the brokers that one controller hears,
on which controllers do not agree.

Owns:       per group its random id, the brokers and their ids, the recorded master with the id of its term,
            the SyncStateSet, both epochs, the highest known confirmed offset.
Invariants: epochs and ids never decrease, and the id of a cleaned broker is not proposed again while its
            group exists. A recorded master is in its set. A clean election chooses a member of the previous
            set with a log that reaches the confirmed offset. A group keeps its id. A refused command changes
            nothing. Fields and commands that the previous release does not know are proposed only if no voter
            runs that release, and their defaults keep its behaviour.
Strategy:   a command carries the proposer's knowledge (the living brokers, the lengths of their logs) and is
            judged when it is applied. Therefore every controller judges the same facts on the same state.
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
    """A random id, created with the group; empty while a controller of the group may not know of ids."""
    term_id: int = 0
    """The random id of the master epoch in force; 0: unknown, or no master."""
    floor: Floor = NO_FLOOR
    floor_since: int = 0
    """The master epoch that began with a log below the floor of its time. Older floors are void."""
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


class Live(msgspec.Struct, frozen=True, array_like=True):
    """A broker that the proposer hears: the end of its log, and `is_ours` if it is a TandemMQ broker."""

    broker_id: int
    epoch: int = -1
    max_offset: int = -1
    priority: int = 2**31 - 1
    is_ours: bool = False
    is_incomplete: bool = False
    """True if the broker may have lost acknowledged messages."""
    is_whole: bool = False
    """True if the broker followed the recorded master when it reported, and held all that was known to be
    confirmed then. Later confirmations wait for the broker while it is in the set; a restart makes it
    False."""

    @property
    def tells_its_log(self) -> bool:
        """False for a broker of the previous release, or of RocketMQ, that has only registered."""
        return self.max_offset >= 0

    def holds(self, floor: Floor) -> bool:
        """Returns True if the broker's log reaches a confirmed offset."""
        reaches = self.tells_its_log and (self.epoch, self.max_offset) >= floor
        return floor == NO_FLOOR or self.is_whole or reaches


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
    """A change of the SyncStateSet. `alive` are the wanted members that the proposer hears."""

    name: str
    master_id: int
    master_epoch: int
    set_epoch: int
    wanted: tuple[int, ...]
    alive: tuple[int, ...]


class Elect(msgspec.Struct, frozen=True, tag="elect", kw_only=True):
    """The election of a master.

    `caller` is the broker that asks, or is designated; NO_ID if a controller noticed that the master is gone.
    If `master_epoch` is set, the election takes place only while it is the recorded epoch. `is_restart`: the
    caller is the recorded master in a new run. `takes_incomplete`: every living broker has had time to report
    its log. `is_passed_over`: the recorded master lives but does not take office; another member is elected
    if one lives.
    """

    name: str
    caller: int = NO_ID
    is_designated: bool = False
    is_restart: bool = False
    takes_incomplete: bool = False
    is_passed_over: bool = False
    is_unclean_allowed: bool = False
    master_epoch: int | None = None
    live: tuple[Live, ...] = ()
    term_id: int = 0
    epoch_known: int = 0
    """The highest master epoch that a broker of the group has reported; the new epoch is above it."""
    floor: Floor | None = None
    """The highest confirmed offset that the proposer has heard; None if a voter does not know of floors."""


class Clean(msgspec.Struct, frozen=True, tag="clean"):
    """The removal of brokers. Empty `ids` mean the whole group. `alive` are all ids of the group that the
    proposer hears.
    """

    cluster: str
    name: str
    ids: tuple[int, ...]
    is_forced: bool
    alive: tuple[int, ...]


class Note(msgspec.Struct, frozen=True, tag="note", kw_only=True):
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


class NameControllers(msgspec.Struct, frozen=True, tag="name controllers"):
    """A random id for the group of controllers itself, if it has none."""

    controllers_id: str


Command = ApplyId | Register | AlterSet | Elect | Clean | Note | Adopt | NameControllers
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
        if isinstance(decoded, Note):
            return self._note(decoded)
        if isinstance(decoded, Adopt):
            return self._adopt(decoded)
        if isinstance(decoded, NameControllers):
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
        """Replaces the state; empty `data` is the state before the first command."""
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
                return CommandOutcome(Code.CONTROLLER_BROKER_ID_INVALID, "the first id of a group is 1")
            group = ReplicaGroup(cluster=command.cluster, name=command.name, group_id=command.group_id)
        elif group.cluster != command.cluster:
            return _other_cluster(group, Code.CONTROLLER_BROKER_ID_INVALID)
        taken = group.replicas.get(command.broker_id)
        if taken is not None:
            if taken.check_code == command.check_code:
                return CommandOutcome(Code.SUCCESS, group=group)
            if not taken.check_code and taken.address == command.check_code.partition(";")[0]:
                # Its proof was lost with the state before the adoption; its address is known.
                proven = Replica(taken.address, command.check_code)
                return self._put(group, replicas={**group.replicas, command.broker_id: proven})
            return CommandOutcome(
                Code.CONTROLLER_BROKER_ID_INVALID, f"the id {command.broker_id} is taken", group
            )
        if command.broker_id < 1:
            return CommandOutcome(Code.CONTROLLER_BROKER_ID_INVALID, "an id is 1 or more", group)
        replica = Replica(command.check_code.partition(";")[0], command.check_code)
        return self._add(group, command.broker_id, replica)

    def _add(self, group: ReplicaGroup, broker_id: int, replica: Replica) -> CommandOutcome:
        if len(group.replicas) >= BROKERS_PER_GROUP_MAX or self._broker_count >= BROKERS_MAX:
            return CommandOutcome(Code.SYSTEM_ERROR, "too many brokers")
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
            return self._add_returning(group, command)
        if replica.address == command.address:
            return CommandOutcome(Code.SUCCESS, group=group)
        moved = Replica(command.address, replica.check_code)
        return self._put(group, replicas={**group.replicas, command.broker_id: moved})

    def _add_returning(self, group: ReplicaGroup, command: Register) -> CommandOutcome:
        """Adds a broker that received its id from a lost state of the controllers: it knows the group id, and
        its id was not cleaned here.
        """
        is_lost = command.broker_id >= group.next_id or command.broker_id < group.adopted_below
        if not command.group_id or command.group_id != group.group_id or not is_lost:
            remark = "apply for an id first"
            return CommandOutcome(Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, remark)
        return self._add(group, command.broker_id, Replica(command.address, ""))

    def _note(self, command: Note) -> CommandOutcome:
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
            return CommandOutcome(Code.SYSTEM_ERROR, fault or "a member of the set is unknown", group)
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
            return CommandOutcome(Code.SYSTEM_ERROR, "too many brokers", group)
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
                    Code.CONTROLLER_MASTER_NOT_AVAILABLE, "no member of the set lives", group
                )
            return CommandOutcome(Code.CONTROLLER_ELECT_MASTER_FAILED, "no broker may be elected", group)
        if choice == group.master_id and not command.is_restart:
            return CommandOutcome(Code.CONTROLLER_MASTER_STILL_EXIST, "the master lives", group)
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
                return CommandOutcome(refused, f"the broker {living[0]} lives", group)
        gone = set(command.ids) or set(group.replicas)
        if not gone <= group.replicas.keys():
            return CommandOutcome(refused, "no such broker", group)
        self._broker_count -= len(gone)
        if gone == group.replicas.keys():
            del self._groups[command.name]
            return CommandOutcome(Code.SUCCESS)
        former = tuple(sorted(witnesses(group, group.floor) - set(group.sync_set) - gone))
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
    """Returns the broker that should be master (spec controller 5.2 and 10.7). This is the present master if
    it may remain; None if no broker may be master.
    """
    live = {one.broker_id: one for one in command.live if one.broker_id in group.replicas}
    if group.master_epoch == 0 and command.caller != NO_ID:
        # There was never a master, so no log is complete: choose the best living broker, or the designated
        # one.
        live.setdefault(command.caller, Live(command.caller))
        return command.caller if command.is_designated else _best(live.values())
    floor = _floor_of(group, command)
    if command.is_restart:
        # Not all brokers have reported their logs, so logs cannot be compared: only a complete one may lead
        # at once.
        pool = _electable(group, live, floor, takes_incomplete=False)
        others = [one for key, one in pool.items() if key != command.caller]
        if others:
            return _best(others)
        caller = live.get(command.caller, Live(command.caller))
        is_whole = not caller.is_incomplete and caller.holds(floor)
        return command.caller if is_whole or len(group.replicas) == 1 else None
    pool = _electable(group, live, floor, takes_incomplete=command.takes_incomplete)
    if command.is_passed_over:
        others = [one for key, one in pool.items() if key != group.master_id]
        return _best(others) if others else group.master_id
    choice = _choose_from(pool, group, command)
    if choice is None and command.is_unclean_allowed:
        choice = _choose_from(live, group, command)
    return choice


def witnesses(group: ReplicaGroup, floor: Floor) -> set[int]:
    """Returns the brokers that may be the only ones with everything that was confirmed: the set, and the
    members that the last elections left out, until a winner has confirmed something (spec controller 10.7).
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
    winner = next((one for one in command.live if one.broker_id == choice), Live(choice))
    if winner.holds(floor):
        return {"floor": floor}
    return {"floor": (winner.epoch, winner.max_offset), "floor_since": epoch}


def _electable(
    group: ReplicaGroup, live: dict[int, Live], floor: Floor, *, takes_incomplete: bool
) -> dict[int, Live]:
    """Returns the brokers that may lead. These are the members of the set with complete logs: the end was not
    lost, and the log reaches the confirmed offset. If no member has one but all witnesses have reported their
    logs, the longest log of the group is the best one, and any member or TandemMQ broker may lead.
    """
    members = {key: one for key, one in live.items() if key in group.sync_set}
    whole = {key: one for key, one in members.items() if not one.is_incomplete and one.holds(floor)}
    needed = witnesses(group, floor)
    told = sum(one.tells_its_log for key, one in live.items() if key in needed)
    if whole or not takes_incomplete or told < len(needed):
        return whole
    return {key: one for key, one in live.items() if one.is_ours} | members


def _choose_from(pool: dict[int, Live], group: ReplicaGroup, command: Elect) -> int | None:
    if group.master_id in pool and (not command.is_designated or command.caller == group.master_id):
        return group.master_id
    if command.is_designated:
        return command.caller if command.caller in pool else None
    return _best(pool.values()) if pool else None


def _best(candidates: Iterable[Live]) -> int:
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
    """Returns the witnesses outside the set of a new term; none while a voter does not know of floors."""
    if command.floor is None:
        return ()
    return tuple(sorted(witnesses(group, _floor_of(group, command)) - set(sync_set)))


def _set_fault(group: ReplicaGroup, command: AlterSet, wanted: tuple[int, ...]) -> tuple[int, str] | None:
    """Returns the reason to refuse a change of the set, checked in RocketMQ's order. Members that are removed
    need not live.
    """
    if wanted == group.sync_set:
        return Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, "the set is the same"
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
            return Code.CONTROLLER_BROKER_NOT_ALIVE, f"the broker {broker_id} is not heard"
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
    return "a name is empty or too long" if any(not 0 < len(text) <= TEXT_MAX for text in texts) else ""


@dataclass(slots=True, kw_only=True)
class Heard:
    """The last heartbeat of a broker, and the connection by which it arrived."""

    facts: Live
    address: str
    connection: object
    confirmed_offset: int
    heard_s: float
    timeout_s: float
    since_term: int
    """The last term of the group when the broker started, as far as this controller knows; NO_TERM if the
    broker's master has made it a member of the set since.
    """

    def knows_term(self, term: int) -> bool:
        """Returns True unless the broker was started after this term had begun, and its log lacks the term:
        the disk is one of an earlier moment, or the broker never copied a byte of the term.
        """
        return self.since_term < term or self.facts.epoch >= term or not term

    @property
    def is_connected(self) -> bool:
        """True if the connection of the heartbeats is open, as far as this controller knows: the process
        lives.
        """
        return isinstance(self.connection, Channel) and not self.connection.is_closed

    def speaks_by(self, channel: Channel) -> bool:
        """Returns True if the peer of the connection is the host that sends the broker's heartbeats."""
        return isinstance(self.connection, Channel) and self.connection.peer[0] == channel.peer[0]


class LiveTable:
    """The brokers that this controller hears, by name and id. Times are monotonic seconds.

    The newest heartbeat counts, even if it reports a shorter log than the previous one: the broker may have
    truncated its log.
    Bounds:  only brokers that have an id are kept, so there are at most as many entries as brokers in
             `Groups`.
    """

    def __init__(self) -> None:
        self._heard: dict[Key, Heard] = {}

    def hear(
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
        facts = Live(
            header.broker_id,
            -1 if header.epoch is None else header.epoch,
            -1 if header.max_log_offset is None else header.max_log_offset,
            priority,
            is_ours,
            bool(header.is_incomplete),
        )
        before = self._heard.get(key)
        is_same_run = before is not None and before.connection in (None, connection)
        was_whole = before is not None and before.facts.is_whole and before.connection is connection
        heard = self._heard[key] = Heard(
            facts=facts,
            address=header.broker_address,
            connection=connection,
            confirmed_offset=-1 if header.confirmed_offset is None else header.confirmed_offset,
            heard_s=now_s,
            timeout_s=max(1, header.heartbeat_timeout_ms or TIMEOUT_MS_DEFAULT) / 1000,
            since_term=before.since_term if before is not None and is_same_run else term,
        )
        # The floor is reported by heartbeats, so it may be older than what the term has confirmed by now.
        holds_all = was_whole or (facts.holds(floor or NO_FLOOR) and heard.knows_term(term))
        heard.facts = msgspec.structs.replace(facts, is_whole=floor is not None and holds_all)
        return is_new

    def note_started(self, header: RegisterReplicaRequest, now_s: float, *, term: int = 0) -> None:
        """Records that the broker has restarted: its earlier facts no longer count. A registration that
        reports neither a log nor a possible loss, as from the previous release, changes nothing. `term` is
        the last term of the group.
        """
        if header.max_log_offset is None and not header.is_incomplete:
            return
        before = self._heard.get((header.broker_name, header.broker_id))
        self._heard[header.broker_name, header.broker_id] = Heard(
            facts=Live(
                header.broker_id,
                -1 if header.epoch is None else header.epoch,
                -1 if header.max_log_offset is None else header.max_log_offset,
                PRIORITY_DEFAULT if before is None else before.facts.priority,
                is_ours=True,
                is_incomplete=bool(header.is_incomplete),
            ),
            address=header.broker_address,
            connection=None,
            confirmed_offset=-1,
            heard_s=now_s,
            timeout_s=FIRST_HEARTBEAT_S,
            since_term=term,
        )

    def vouch(self, name: str, ids: Iterable[int]) -> None:
        """Records that these brokers hold all that is confirmed: their master has made them members of the
        set. A broker that has only registered since is left out.
        """
        for one in ids:
            heard = self._heard.get((name, one))
            if heard is not None and heard.connection is not None:
                heard.facts = msgspec.structs.replace(heard.facts, is_whole=True)
                heard.since_term = NO_TERM

    def facts_for(self, group: ReplicaGroup, now_s: float) -> tuple[Live, ...]:
        """Returns the facts of the living brokers for an election. A member of the set that does not know the
        last term counts as incomplete while another member may know the term, because the other member may
        have everything that the term confirmed. If no member knows the term, no confirmed bytes of it remain.
        """
        term = group.last_term
        alive = {one.facts.broker_id: one for one in self.alive(group.name, group.replicas, now_s)}
        told = {key: one.facts for key, one in alive.items() if one.facts.tells_its_log}
        may_know = {key for key in group.sync_set if key not in told or told[key].epoch >= term}
        doubted = {
            key
            for key in told.keys() & set(group.sync_set)
            if told[key].is_ours and not alive[key].knows_term(term) and may_know - {key}
        }
        return tuple(
            msgspec.structs.replace(one.facts, is_incomplete=True) if key in doubted else one.facts
            for key, one in alive.items()
        )

    def get(self, name: str, broker_id: int) -> Heard | None:
        return self._heard.get((name, broker_id))

    def is_alive(self, name: str, broker_id: int, now_s: float) -> bool:
        heard = self._heard.get((name, broker_id))
        return heard is not None and now_s < heard.heard_s + heard.timeout_s

    def alive(self, name: str, ids: Iterable[int], now_s: float) -> list[Heard]:
        """Returns the given brokers that are heard."""
        return [self._heard[name, one] for one in ids if self.is_alive(name, one, now_s)]

    def end(self, name: str, broker_id: int) -> None:
        """Records that the broker is known to be gone, not only silent."""
        heard = self._heard.get((name, broker_id))
        if heard is not None:
            heard.timeout_s = 0.0

    def keep(self, name: str, ids: Container[int]) -> None:
        """Removes all other brokers of the group."""
        for key in [key for key in self._heard if key[0] == name and key[1] not in ids]:
            del self._heard[key]

    def of_connection(self, connection: object) -> list[Key]:
        return [key for key, heard in self._heard.items() if heard.connection is connection]
