"""What a master says of its replication when it is asked (`MasterStatus`), of slaves that are gone, too
(`DepartedSlaves`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tandemmq.replication.core.progress import (
    MasterState,
    SlaveName,
    SlaveNotice,
    StartRule,
    ToldHalt,
    TransferStart,
)
from tandemmq.runtime.ports import Address
from tandemmq.units import ReplicaId

DEPARTED_COUNT_MAX: Final = 64
DEPARTED_MS_MAX: Final = 24 * 3600 * 1000

Key = tuple[bool, SlaveName | Address]
"""Whether a name was told, and the name or the address: both are a text and a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlaveStatus:
    """One connection. `replica` is None while its acknowledgements are not counted, `name` unless the slave
    told it.
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
    """`in_sync_count` counts slaves, not the master; one slave counts once, whatever its connections.

    `departed`: slaves without a connection now; `now_ms` is the monotonic time of it all.
    """

    log_start: int
    log_end: int
    highest_acknowledged: int
    in_sync_count: int
    slaves: tuple[SlaveStatus, ...]
    departed: tuple[DepartedSlave, ...]
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DepartedSlave:
    """The last that is known of a slave whose connection has ended, and why it ended.

    `name`: None for one that told none. `halt`: what the slave told, if it did. `start`: None for one that
    halted before it asked for anything. `heard_at_ms` is later than `left_at_ms` when it told something
    since.
    """

    address: Address
    name: SlaveName | None = None
    replica: ReplicaId | None
    acknowledged: int
    start: TransferStart | None
    is_tandem: bool
    left_at_ms: int
    heard_at_ms: int
    reason: str
    halt: ToldHalt | None = None

    def state(self, log_start: int) -> MasterState:
        """AHEAD or TOO_OLD when it would be refused if it came back as it was, else CLOSED."""
        if self.start is not None and self.start.rule is StartRule.SLAVE_AHEAD:
            return MasterState.AHEAD
        if 0 < self.acknowledged < log_start:
            return MasterState.TOO_OLD
        return MasterState.CLOSED


class DepartedSlaves:
    """Slaves that were here and are not connected now: name, or address where none was told -> how far they
    were, and why they are gone. Times are monotonic milliseconds.

    Without it a master forgets a slave with its connection: the copy that needs a person is the one that
    nobody sees. A slave of ours is known by the name that it told, any other by the address of its
    connection, which is never the same again: of those a newcomer from the same host takes one row back, so
    that as many rows are left as slaves are missing. Two slaves on one host do not clear each other's row.
    At the bounds: the slave that was heard longest ago is forgotten; one that said nothing for
                   DEPARTED_MS_MAX counts as taken out of service.
    """

    __slots__ = ("_slaves",)

    def __init__(self) -> None:
        self._slaves: dict[Key, DepartedSlave] = {}  # heard of longest ago first

    def note(self, slave: DepartedSlave) -> None:
        """A connection has ended that had told where its copy ends."""
        assert slave.start is not None, slave
        known = self._slaves.get(_key_of(slave)) if slave.name is not None else None
        # A row since this connection began: the slave told why it would end before we noticed that it did.
        self._put(slave if known is None else replace(slave, halt=known.halt))

    def note_name(self, address: Address, name: SlaveName, now_ms: int) -> None:
        """A slave tells that the connection from `address` was its own."""
        slave = self._slaves.pop((False, address), None)
        if slave is not None:
            self._put(replace(slave, name=name, heard_at_ms=now_ms))

    def note_halt(self, notice: SlaveNotice, now_ms: int) -> None:
        """A slave tells that it has stopped; it does so again and again, and once more after our restart."""
        known = self._slaves.get((True, notice.name)) or DepartedSlave(
            address=notice.ha_address,
            name=notice.name,
            replica=None,
            acknowledged=notice.log_end,
            start=None,
            is_tandem=True,
            left_at_ms=now_ms,
            heard_at_ms=now_ms,
            reason="the slave has halted",
        )
        self._put(replace(known, acknowledged=notice.log_end, halt=notice.halt, heard_at_ms=now_ms))

    def end_halt(self, name: SlaveName) -> None:
        """A slave tells that it copies, from an address that is none of our connections."""
        slave = self._slaves.get((True, name))
        if slave is not None and slave.halt is not None:
            del self._slaves[True, name]

    def take_back(self, name: SlaveName | None, host: str, reported: int) -> None:
        """A slave has come whose copy ends at `reported`; `name`: None while it has told none.

        Of the rows without a name that which ends there is taken for it, else that of the last who left.
        """
        if name is not None:
            self._slaves.pop((True, name), None)
            return
        unnamed = [one for one in self._slaves.values() if one.name is None and one.address[0] == host]
        alike = [one for one in unnamed if one.acknowledged == reported] or unnamed
        if alike:
            del self._slaves[_key_of(alike[-1])]

    def list(self, now_ms: int) -> tuple[DepartedSlave, ...]:
        """Heard of longest ago first."""
        for key, slave in list(self._slaves.items()):
            assert key == _key_of(slave), (key, slave)
            if now_ms - slave.heard_at_ms > DEPARTED_MS_MAX:
                del self._slaves[key]
        return tuple(self._slaves.values())

    def _put(self, slave: DepartedSlave) -> None:
        assert slave.left_at_ms <= slave.heard_at_ms, slave
        key = _key_of(slave)
        self._slaves.pop(key, None)
        last = next(reversed(self._slaves.values()), slave)
        assert last.heard_at_ms <= slave.heard_at_ms, (last, slave)
        self._slaves[key] = slave
        if len(self._slaves) > DEPARTED_COUNT_MAX:
            del self._slaves[next(iter(self._slaves))]
        assert len(self._slaves) <= DEPARTED_COUNT_MAX, len(self._slaves)


def _key_of(slave: DepartedSlave) -> Key:
    return slave.name is not None, slave.name or slave.address
