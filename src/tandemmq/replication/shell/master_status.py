"""What a master tells of its replication when it is asked: values."""

from __future__ import annotations

from dataclasses import dataclass

from tandemmq.replication.core.notice import SlaveName
from tandemmq.replication.core.progress import TransferStart
from tandemmq.replication.core.states import MasterState
from tandemmq.replication.shell.departed import DepartedSlave
from tandemmq.runtime.ports import Address
from tandemmq.units import ReplicaId


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
