"""The state of replication in the words of GET_BROKER_HA_STATUS (spec replication 4.10): pure."""

from __future__ import annotations

import msgspec

from tandemmq.protocol.bodies.ha import HaClient, HaConnection, HaStatus
from tandemmq.remoting.address import render_address
from tandemmq.replication.shell import MasterStatus, ReplicationSlaveStatus


def describe_master(status: MasterStatus) -> HaStatus:
    """What a master tells of its slaves."""
    return HaStatus(
        is_master=True,
        max_log_offset=status.log_end,
        in_sync_count=status.in_sync_count,
        connections=tuple(
            HaConnection(
                address=render_address(slave.address),
                acknowledged_offset=slave.acknowledged,
                lag_bytes=slave.lag_bytes,
                is_in_sync=slave.is_in_sync,
                bytes_per_second=slave.bytes_per_second,
                transfer_from=slave.next_offset,
                state=slave.state.name,
                start_rule=None if slave.start is None else slave.start.rule.name,
                start_offset=None if slave.start is None else slave.start.log_offset,
                is_tandem=slave.is_tandem,
            )
            for slave in status.slaves
        ),
    )


def describe_slave(status: ReplicationSlaveStatus) -> HaStatus:
    """What a slave tells of its copy. The master's flushed offset is not in the classic protocol: 0."""
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


def without_ours(status: HaStatus) -> HaStatus:
    """The same in RocketMQ's fields only (decision 4)."""
    plain = {"state": None, "start_rule": None, "start_offset": None}
    client = {"tail": None, "halt_reason": None, "halt_offset": None, "halt_detail": None}
    replace = msgspec.structs.replace
    return replace(
        status,
        client=replace(status.client, **plain, **client),
        connections=tuple(replace(one, **plain, is_tandem=None) for one in status.connections),
    )
