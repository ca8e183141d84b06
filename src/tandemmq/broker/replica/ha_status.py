"""The state of replication in the terms of GET_BROKER_HA_STATUS (spec replication 4.10), and the lag of
slaves in seconds.

RocketMQ lists connections only. Here a slave that is ahead of its master, too old for it, or halted for
another reason that it reported, remains listed after its connection has ended, for every caller. A slave that
is merely disconnected is listed for TandemMQ tools.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice

import msgspec

from tandemmq.broker.query import load_record
from tandemmq.protocol.bodies.replica import HaClient, HaConnection, HaStatus
from tandemmq.protocol.record_layout import MAGIC_V1, MAGIC_V2
from tandemmq.remoting.options import render_address
from tandemmq.replication.core.effects import HaltReason
from tandemmq.replication.core.progress import MasterState, SlaveState, StartRule
from tandemmq.replication.shell import MasterStatus, ReplicationSlaveStatus, SlaveStatus
from tandemmq.replication.shell.master_status import DepartedSlave
from tandemmq.store.message_store import MessageStore
from tandemmq.units import KIB, align_up

# The lag: the age of the first message that a slave has not acknowledged.
#
# Acknowledgements are log offsets, and the log has the store time of each of its records. A lag in seconds
# thus needs no history, only a read of one record on request.

SEARCH_BYTES_MAX = 256 * KIB
CANDIDATES_MAX = 1024
"""The number of candidate positions that are tried. A RocketMQ slave acknowledges chunks, which may end
inside a record: the next record is searched for within SEARCH_BYTES_MAX. The number is limited because bodies
may be full of bytes that look like a record.
"""

_MAGICS = re.compile(
    b"|".join(re.escape(magic.to_bytes(4, "big", signed=True)) for magic in (MAGIC_V1, MAGIC_V2))
)
_MAGIC_AT = 4  # after the record's size


def lag_seconds(store: MessageStore, acknowledged: int, now_ms: int) -> float | None:
    """Returns the lag in seconds; 0 for a slave that has everything it can get; None if no record's time can
    be found, for example for an offset that is no longer kept.
    """
    if acknowledged >= store.confirmed.value:
        return 0.0
    stored_at_ms = _stored_at(store, max(acknowledged, store.min_log_offset))
    return None if stored_at_ms is None else max(0, now_ms - stored_at_ms) / 1000


def _stored_at(store: MessageStore, log_offset: int) -> int | None:
    """Returns the store time of the first record at or after `log_offset`."""
    found = _read_stored_at(store, log_offset)
    if found is None:
        view = bytes(store.log.valid_view(log_offset, SEARCH_BYTES_MAX))
        for position in _candidates(view):
            found = _read_stored_at(store, log_offset + position)
            if found is not None:
                return found
        # The rest of this file holds none: the next file begins with a record.
        found = _read_stored_at(store, align_up(log_offset + 1, store.options.commit_log_file_bytes))
    return found


def _candidates(view: bytes) -> Iterator[int]:
    """Returns the positions at which records may begin, in ascending order."""
    found = re.finditer(_MAGICS, view[_MAGIC_AT:])
    return (match.start() for match in islice(found, CANDIDATES_MAX))


def _read_stored_at(store: MessageStore, log_offset: int) -> int | None:
    record = load_record(store, log_offset)
    return None if record is None else record.stored_at_ms


_STATE_OF_REPORTED_HALT = {
    HaltReason.SLAVE_AHEAD.name: MasterState.AHEAD.name,
    HaltReason.TOO_OLD.name: MasterState.TOO_OLD.name,
}
"""States that the master can detect itself have the same name when the slave reports them."""

LagOf = Callable[[int], float | None]
"""Returns the lag in seconds of a copy with this end; None if unknown."""


def describe_master(status: MasterStatus, lag_of: LagOf) -> HaStatus:
    """Describes a master and its slaves: connected ones first, then the others."""
    connected = [_describe_connected(slave, status, lag_of) for slave in status.slaves]
    departed = [_describe_departed(slave, status, lag_of) for slave in status.departed]
    return HaStatus(
        is_master=True,
        max_log_offset=status.log_end,
        in_sync_count=status.in_sync_count,
        connections=(*connected, *departed),
    )


def _describe_connected(slave: SlaveStatus, status: MasterStatus, lag_of: LagOf) -> HaConnection:
    start = slave.start
    # A slave that is sent nothing acknowledges nothing: its position is its first report.
    held = slave.acknowledged if start is None else max(slave.acknowledged, start.reported)
    has_lag = start is not None and slave.state is not MasterState.AHEAD
    return HaConnection(
        address=render_address(slave.address),
        acknowledged_offset=slave.acknowledged,
        lag_bytes=slave.lag_bytes,
        lag_ms=_milliseconds(lag_of(held)) if has_lag else None,
        is_in_sync=slave.is_in_sync,
        bytes_per_second=slave.bytes_per_second,
        transfer_from=slave.next_offset,
        state=slave.state.name,
        start_rule=None if start is None else start.rule.name,
        start_offset=None if start is None else start.log_offset,
        is_tandem=slave.is_tandem,
        reason=_reason_of(slave.state, held, status),
        slave=None if slave.name is None else str(slave.name),
    )


def _describe_departed(slave: DepartedSlave, status: MasterStatus, lag_of: LagOf) -> HaConnection:
    state, start, halt = slave.state(status.log_start), slave.start, slave.halt
    reason = _reason_of(state, slave.acknowledged, status) or f"not connected: {slave.reason}"
    has_lag = state is not MasterState.AHEAD and halt is None
    return HaConnection(
        address=render_address(slave.address),
        acknowledged_offset=slave.acknowledged,
        lag_bytes=status.log_end - slave.acknowledged,
        lag_ms=_milliseconds(lag_of(slave.acknowledged)) if has_lag else None,
        is_in_sync=False,
        transfer_from=slave.acknowledged if start is None else start.log_offset,
        state=state.name
        if halt is None
        else _STATE_OF_REPORTED_HALT.get(halt.reason, SlaveState.HALTED.name),
        start_rule=None if start is None else start.rule.name,
        start_offset=None if start is None else start.log_offset,
        is_tandem=slave.is_tandem,
        away_ms=status.now_ms - slave.left_at_ms,
        reason=reason if halt is None else f"{halt.reason} at {halt.log_offset}: {halt.detail}",
        slave=None if slave.name is None else str(slave.name),
        halt_reason=None if halt is None else halt.reason,
    )


def _reason_of(state: MasterState, held: int, status: MasterStatus) -> str | None:
    """Returns the reason why a slave in this state gets nothing; None if it gets everything. `held`: the end
    of its copy.
    """
    if state is MasterState.AHEAD:
        return f"{StartRule.SLAVE_AHEAD.value}: its end {held}, the master's {status.log_end} now"
    if state is MasterState.TOO_OLD:
        return f"{StartRule.SLAVE_TOO_OLD.value}: its end {held}, kept from {status.log_start} on"
    return None


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def describe_slave(status: ReplicationSlaveStatus) -> HaStatus:
    """Describes a slave's copy. The master's flushed offset is not in the classic protocol: 0."""
    halt = status.halt
    return HaStatus(
        is_master=False,
        client=HaClient(
            read_at_ms=status.last_read_at,
            written_at_ms=status.last_written_at,
            master_address=status.master_address or "",
            max_log_offset=status.log_end,
            bytes_per_second=status.bytes_per_second,
            state=status.state.name,
            start_rule=None if status.start_rule is None else status.start_rule.name,
            start_offset=status.log_start,
            tail=None if status.tail is None else status.tail.outcome.name,
            halt_reason=None if halt is None else halt.reason.name,
            halt_offset=None if halt is None else halt.log_offset,
            halt_detail=None if halt is None else f"{halt.reason.value}: {halt.detail}",
        ),
    )


def rocketmq_fields(status: HaStatus) -> HaStatus:
    """Returns the status with RocketMQ's fields only (spec decisions 4)."""
    plain = {"state": None, "start_rule": None, "start_offset": None}
    client = {"tail": None, "halt_reason": None, "halt_offset": None, "halt_detail": None}
    connection = dict.fromkeys(("is_tandem", "lag_ms", "away_ms", "reason", "slave", "halt_reason"))
    replace = msgspec.structs.replace
    return replace(
        status,
        waiting=None,
        client=replace(status.client, **plain, **client),
        connections=tuple(
            replace(one, **plain, **connection)
            for one in status.connections
            if one.state != MasterState.CLOSED.name
        ),
    )
