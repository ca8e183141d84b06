"""The state of replication in the words of GET_BROKER_HA_STATUS (spec replication 4.10): pure."""

from __future__ import annotations

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
            )
            for slave in status.slaves
        ),
    )


def describe_slave(status: ReplicationSlaveStatus) -> HaStatus:
    """What a slave tells of its copy. The master's flushed offset is not in the classic protocol: 0."""
    return HaStatus(
        is_master=False,
        client=HaClient(
            read_at_ms=status.last_read_at,
            written_at_ms=status.last_written_at,
            master_address=status.master_address or "",
            max_log_offset=status.log_end,
            bytes_per_second=status.bytes_per_second,
        ),
    )
