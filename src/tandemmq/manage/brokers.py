"""Brokers and their replication: roles, in-sync sets, terms, lag in bytes and seconds, controllers.

Java's brokers of 4.x report no state of replication; the lag in bytes then comes from the ends of the logs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tandemmq.api import broker_admin, controller, nameserver
from tandemmq.api.calls import Call
from tandemmq.errors import ConfigError
from tandemmq.manage.cluster import BrokerReading, ClusterReading, count_of
from tandemmq.manage.reach import READ_TIMEOUT_S, ask_each, if_supported
from tandemmq.manage.settings import named_controllers, read_settings_of
from tandemmq.manage.tools import Target, Tools
from tandemmq.protocol.bodies.client import ProducerInfo
from tandemmq.protocol.bodies.replica import (
    BrokerEpochs,
    EpochRange,
    GroupSyncState,
    HaConnection,
    HaStatus,
    SyncStateData,
)
from tandemmq.runtime.ports import Clock

EPOCHS: Final = "terms"
TERMS_MAX: Final = 50
"""The newest terms of a broker's log that are returned."""
PRODUCERS_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class GroupBroker:
    """One broker of a group.

    role       by its own report, else by its registration
    in_sync    True for a member of the in-sync set, None if that is not known
    lag_bytes  the part of the master's log that it lacks
    lag_s      the age of the first message that it lacks
    state      the state of its replication, in words of the broker
    problem    the reason why it does not copy or serve; empty if it does
    """

    reading: BrokerReading
    role: str
    in_sync: bool | None
    log_end: int | None
    lag_bytes: int | None
    lag_s: float | None
    state: str
    problem: str

    @property
    def target(self) -> Target:
        return self.reading.target


@dataclass(frozen=True, slots=True)
class GroupReplication:
    """One group of brokers. `sync` is the controllers' state of an elected group, None for others."""

    name: str
    cluster: str
    members: tuple[GroupBroker, ...]
    connections: tuple[HaConnection, ...]
    sync: GroupSyncState | None

    @property
    def problems(self) -> list[str]:
        """The reasons why the group has no master or an unclear history."""
        found = [f"{one.target.address}: {one.problem}" for one in self.members if one.problem]
        if not any(one.role == "master" for one in self.members):
            found.insert(0, "no master: the group accepts no messages")
        if self.sync is not None:
            reasons = (self.sync.waits_for, self.sync.contradiction, *(self.sync.refused or ()))
            found += [reason for reason in reasons if reason]
        return found


@dataclass(frozen=True, slots=True)
class ControllerState:
    """The controllers: addresses that brokers name, the leader (empty if none is known), and errors."""

    addresses: tuple[str, ...]
    leader: str
    states: SyncStateData
    errors: tuple[str, ...]


NO_CONTROLLERS: Final = ControllerState((), "", SyncStateData(), ())


@dataclass(frozen=True, slots=True)
class Replication:
    """The groups of all clusters, by name, and their controllers."""

    groups: tuple[GroupReplication, ...]
    controllers: ControllerState


async def read_replication(tools: Tools, cluster: ClusterReading) -> Replication:
    """Returns the replication of all groups; a silent broker is a member with its error."""
    answering = [one.target for one in cluster.answering]

    async def read(target: Target) -> HaStatus | None:
        return await if_supported(broker_admin.query_ha_status(tools.remoting, target.address))

    statuses = {one.target.address: one.answer for one in await ask_each(answering, read)}
    controllers = await read_controllers(tools, cluster)
    by_name: dict[tuple[str, str], list[BrokerReading]] = {}
    for one in cluster.brokers:
        by_name.setdefault((one.target.cluster, one.target.broker_name), []).append(one)
    groups = [
        _describe_group(name, place, readings, statuses, controllers.states.groups.get(name))
        for (place, name), readings in sorted(by_name.items())
    ]
    return Replication(tuple(groups), controllers)


async def read_controllers(tools: Tools, cluster: ClusterReading) -> ControllerState:
    """Finds the controllers that one broker of each group names, and asks their leader for all groups."""
    named: dict[str, None] = {}
    one_of_each = {one.target.broker_name: one.target for one in cluster.answering}.values()
    for answer in await ask_each(one_of_each, lambda target: read_settings_of(tools, target.address)):
        named.update(dict.fromkeys(named_controllers(answer.answer or {})))
    if not named:
        return NO_CONTROLLERS
    names = sorted({one.target.broker_name for one in cluster.brokers})
    found = await ask_each(
        named, lambda address: controller.find_leader(tools.remoting, address, timeout_s=READ_TIMEOUT_S)
    )
    errors = [f"{one.target}: {one.error}" for one in found if one.error]
    for leader in dict.fromkeys(one.answer for one in found if one.answer):
        states, *_ = await ask_each(
            [leader], lambda address: controller.read_all_sync_states(tools.remoting, address, names)
        )
        if states.answer is not None:
            return ControllerState(tuple(named), leader, states.answer, tuple(errors))
        errors.append(f"{leader}: {states.error}")
    return ControllerState(tuple(named), "", SyncStateData(), tuple(errors))


def _describe_group(
    name: str,
    cluster: str,
    readings: Sequence[BrokerReading],
    statuses: Mapping[str, HaStatus | None],
    sync: GroupSyncState | None,
) -> GroupReplication:
    ends = {one.address: _log_end(one, statuses.get(one.address)) for one in readings}
    masters = [one.address for one in readings if _is_master(one, statuses.get(one.address))]
    master_end = ends.get(masters[0]) if len(masters) == 1 else None
    master = statuses.get(masters[0]) if len(masters) == 1 else None
    connections = () if master is None else master.connections
    in_sync = None if sync is None else {one.address for one in sync.in_sync}
    slaves = [one for one in readings if one.address not in masters]
    members = []
    for one in readings:
        status, end = statuses.get(one.address), ends[one.address]
        is_master = one.address in masters
        connection = None if is_master else _connection_of(one.address, slaves, connections)
        known = None if in_sync is None else one.address in in_sync
        lag = None if is_master or end is None or master_end is None else max(0, master_end - end)
        members.append(
            GroupBroker(
                reading=one,
                role="master" if is_master else "slave",
                in_sync=known if known is not None or connection is None else connection.is_in_sync,
                log_end=end,
                lag_bytes=lag if connection is None else connection.lag_bytes,
                lag_s=seconds_of(None if connection is None else connection.lag_ms),
                state="" if status is None or is_master else status.client.state or "",
                problem=one.error or _problem_of(status, connection),
            )
        )
    return GroupReplication(name, cluster, tuple(members), connections, sync)


def _is_master(one: BrokerReading, status: HaStatus | None) -> bool:
    return one.is_master if status is None else status.is_master


def _log_end(one: BrokerReading, status: HaStatus | None) -> int | None:
    if status is not None:
        return status.max_log_offset if status.is_master else status.client.max_log_offset
    return count_of(one.facts.get("commitLogMaxOffset"))


def _connection_of(
    address: str, slaves: Sequence[BrokerReading], connections: Sequence[HaConnection]
) -> HaConnection | None:
    """Returns the master's view of this slave. A connection shows the slave's host only, so it belongs to the
    slave if that host has one slave, and the master one connection from there.
    """
    host = address.rpartition(":")[0]
    from_host = [one for one in connections if one.address.rpartition(":")[0] == host]
    on_host = [one for one in slaves if one.address.rpartition(":")[0] == host]
    return from_host[0] if len(from_host) == len(on_host) == 1 else None


def _problem_of(status: HaStatus | None, connection: HaConnection | None) -> str:
    if status is None:
        return ""
    if status.waiting:
        return status.waiting
    if status.client.halt_reason:
        return f"copying has stopped: {status.client.halt_reason} {status.client.halt_detail or ''}".strip()
    return "" if connection is None else connection.halt_reason or connection.reason or ""


def seconds_of(milliseconds: int | None) -> float | None:
    """Returns the time in seconds; None if it is not known."""
    return None if milliseconds is None else milliseconds / 1000


# One broker


@dataclass(frozen=True, slots=True)
class BrokerDetails:
    """One broker in full. A part that it does not support or that failed is None or empty; `errors` has the
    reasons.
    """

    replication: HaStatus | None
    terms: tuple[EpochRange, ...]
    producers: tuple[tuple[str, ProducerInfo], ...]
    producer_count: int
    errors: tuple[str, ...]


async def read_broker(tools: Tools, reading: BrokerReading) -> BrokerDetails:
    """Returns everything about one broker; no further question is asked to one that does not answer."""
    if reading.error:
        return BrokerDetails(None, (), (), 0, (reading.error,))
    address, client = reading.address, tools.remoting

    calls: dict[str, Call[[], Any]] = {
        "state of replication": broker_admin.query_ha_status,
        EPOCHS: controller.query_epochs,
        "producers": broker_admin.query_all_producers,
    }
    found = await ask_each(calls, lambda part: if_supported(calls[part](client, address)))
    status, epochs, producers = (one.answer for one in found)
    # Brokers without elections answer the question for terms with an error.
    errors = [f"{one.target}: {one.error}" for one in found if one.error and one.target != EPOCHS]
    rows = [(group, one) for group, clients in sorted((producers or {}).items()) for one in clients]
    return BrokerDetails(
        status,
        () if epochs is None else _ended(epochs),
        tuple(rows[:PRODUCERS_MAX]),
        len(rows),
        tuple(errors),
    )


def _ended(epochs: BrokerEpochs) -> tuple[EpochRange, ...]:
    """Returns the newest terms, the newest first; the current one ends at the end of the log."""
    newest = sorted(epochs.epochs, key=lambda one: -one.epoch)[:TERMS_MAX]
    return tuple(
        EpochRange(end=min(one.end, epochs.max_log_offset), epoch=one.epoch, start=one.start)
        for one in newest
    )


# Changes


async def change_master(
    tools: Tools, cluster: ClusterReading, name: str, broker_id: int | None, clock: Clock
) -> str:
    """Hands the group's master role over to another broker in sync, or to the one with this id. Returns the
    sentence about the result. Raises ConfigError without a controller; the errors of `hand_over_group`.
    """
    controllers = await read_controllers(tools, cluster)
    if not controllers.leader:
        raise ConfigError(
            f"no controller of {name} can be reached: {'; '.join(controllers.errors) or 'none'}"
        )
    _, after = await controller.hand_over_group(
        tools.remoting, controllers.leader, name, broker_id, clock=clock
    )
    place = f"broker {after.master_id} ({after.master_address})"
    return f"{place} is the master of {name}, term {after.master_epoch}"


async def change_write_permission(tools: Tools, name: str, *, is_writable: bool) -> str:
    """Makes a group of brokers read-only for clients, or writable again, at every name server. Returns the
    sentence about the result.
    """
    call = nameserver.add_write_permission if is_writable else nameserver.wipe_write_permission
    counts = await tools.change(tools.cluster_admin.name_servers, call, name)
    count = max(count for _, count in counts)
    return f"{name} is {'writable' if is_writable else 'read-only'} for {count} topics"
