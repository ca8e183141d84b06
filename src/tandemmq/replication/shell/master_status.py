"""The state of a master's replication (`MasterStatus`), including slaves that have disconnected
(`DepartedSlaves`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tandemmq.replication.core.progress import (
    MasterState,
    ReportedHalt,
    SlaveName,
    SlaveNotice,
    StartRule,
    TransferStart,
)
from tandemmq.runtime.ports import Address
from tandemmq.units import ReplicaId

DEPARTED_COUNT_MAX: Final = 64
DEPARTED_MS_MAX: Final = 24 * 3600 * 1000

Key = tuple[bool, SlaveName | Address]
"""True if the slave reported a name, then the name or the address; both are a text and a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlaveStatus:
    """The state of one connection. `replica` is None while its acknowledgements are not counted; `name` is
    None unless the slave reported it.
    """

    address: Address
    name: SlaveName | None
    replica: ReplicaId | None
    state: MasterState
    start: TransferStart | None
    acknowledged: int
    next_offset: int
    lag_bytes: int
    is_in_sync: bool
    is_tandem: bool
    bytes_per_second: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterStatus:
    """The state of a master. `in_sync_count` counts slaves, not the master; one slave counts once, whatever
    its connections. `departed`: slaves without a connection now. `now_ms`: the monotonic time of this status.
    """

    log_start: int
    log_end: int
    in_sync_count: int
    slaves: tuple[SlaveStatus, ...]
    departed: tuple[DepartedSlave, ...]
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DepartedSlave:
    """The last known state of a slave whose connection has ended, and the reason for its end.

    `name`: None if it reported none. `halt`: the halt that it reported, if any. `start`: None if it halted
    before its first report. `last_contact_ms` is later than `left_at_ms` if it sent a notice afterwards.
    """

    address: Address
    name: SlaveName | None = None
    replica: ReplicaId | None
    acknowledged: int
    start: TransferStart | None
    is_tandem: bool
    left_at_ms: int
    last_contact_ms: int
    reason: str
    halt: ReportedHalt | None = None

    def state(self, log_start: int) -> MasterState:
        """Returns AHEAD or TOO_OLD if the slave would be refused when it reconnects unchanged, else
        CLOSED.
        """
        if self.start is not None and self.start.rule is StartRule.SLAVE_AHEAD:
            return MasterState.AHEAD
        if 0 < self.acknowledged < log_start:
            return MasterState.TOO_OLD
        return MasterState.CLOSED


class DepartedSlaves:
    """Slaves that have disconnected: maps the name, or the address if no name was reported, to the last
    position and the reason for the disconnect. Times are monotonic milliseconds.

    Without this table a master forgets a slave with its connection, and a copy that needs an operator would
    be invisible. A TandemMQ slave is identified by its reported name. Any other slave is identified by the
    address of its connection, which changes with each connection: a new connection from the same host removes
    one row of that host. As many rows remain as slaves are missing, and two slaves on one host do not remove
    each other's row.
    At the bound: the slave that was silent longest is forgotten. A slave that was silent for DEPARTED_MS_MAX
                  counts as taken out of service.
    """

    __slots__ = ("_slaves",)

    def __init__(self) -> None:
        self._slaves: dict[Key, DepartedSlave] = {}  # ordered by last contact, oldest first

    def add(self, slave: DepartedSlave) -> None:
        """Adds a slave whose connection has ended after it had reported the end of its copy."""
        assert slave.start is not None, slave
        known = self._slaves.get(_key_of(slave)) if slave.name is not None else None
        # A row newer than this connection's start: the slave reported its halt before the disconnect was
        # noticed.
        self._put(slave if known is None else replace(slave, halt=known.halt))

    def set_name(self, address: Address, name: SlaveName, now_ms: int) -> None:
        """Records that the connection from `address` belonged to the slave `name`."""
        slave = self._slaves.pop((False, address), None)
        if slave is not None:
            self._put(replace(slave, name=name, last_contact_ms=now_ms))

    def set_halt(self, notice: SlaveNotice, now_ms: int) -> None:
        """Records a slave's halt. The slave repeats it regularly, and again after a restart of the master."""
        known = self._slaves.get((True, notice.name)) or DepartedSlave(
            address=notice.ha_address,
            name=notice.name,
            replica=None,
            acknowledged=notice.log_end,
            start=None,
            is_tandem=True,
            left_at_ms=now_ms,
            last_contact_ms=now_ms,
            reason="the slave has halted",
        )
        self._put(replace(known, acknowledged=notice.log_end, halt=notice.halt, last_contact_ms=now_ms))

    def clear_halt(self, name: SlaveName) -> None:
        """Handles a slave that reports that it is copying, from an address that is not one of this master's
        connections.
        """
        slave = self._slaves.get((True, name))
        if slave is not None and slave.halt is not None:
            del self._slaves[True, name]

    def remove_returned(self, name: SlaveName | None, host: str, reported: int) -> None:
        """Removes the row of a slave that has connected with a copy that ends at `reported`. `name`: None if
        unknown.

        Of the rows without a name, the one with the same end is removed, else the one of the last slave that
        left.
        """
        if name is not None:
            self._slaves.pop((True, name), None)
            return
        unnamed = [one for one in self._slaves.values() if one.name is None and one.address[0] == host]
        matching = [one for one in unnamed if one.acknowledged == reported] or unnamed
        if matching:
            del self._slaves[_key_of(matching[-1])]

    def list(self, now_ms: int) -> tuple[DepartedSlave, ...]:
        """Returns the slaves, the one silent longest first."""
        for key, slave in list(self._slaves.items()):
            assert key == _key_of(slave), (key, slave)
            if now_ms - slave.last_contact_ms > DEPARTED_MS_MAX:
                del self._slaves[key]
        return tuple(self._slaves.values())

    def _put(self, slave: DepartedSlave) -> None:
        assert slave.left_at_ms <= slave.last_contact_ms, slave
        key = _key_of(slave)
        self._slaves.pop(key, None)
        last = next(reversed(self._slaves.values()), slave)
        assert last.last_contact_ms <= slave.last_contact_ms, (last, slave)
        self._slaves[key] = slave
        if len(self._slaves) > DEPARTED_COUNT_MAX:
            del self._slaves[next(iter(self._slaves))]
        assert len(self._slaves) <= DEPARTED_COUNT_MAX, len(self._slaves)


def _key_of(slave: DepartedSlave) -> Key:
    return slave.name is not None, slave.name or slave.address
