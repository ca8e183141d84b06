"""How far the copies are behind: of a master's slaves, and of a slave behind its master."""

from __future__ import annotations

from collections.abc import Iterator

from tandemmq.broker.replica import ReplicaRole
from tandemmq.broker.replica.lag import lag_seconds
from tandemmq.replication.core.effects import HaltReason
from tandemmq.replication.core.states import SlaveState
from tandemmq.runtime.ports import Clock
from tandemmq.store.message_store import MessageStore
from tandemmq.store.options import BrokerRole
from tandemmq.telemetry import metrics
from tandemmq.telemetry.metrics import Reading
from tandemmq.units import ReplicaId


def read_replication(replica: ReplicaRole, store: MessageStore, clock: Clock) -> Iterator[Reading]:
    """All readings of replication. Every broker listens for slaves; a slave also follows a master."""
    yield from _read_master(replica, store, clock.now_ms())
    yield Reading(metrics.MASTER_WAITING, bool(store.tail_doubt))
    if store.options.role is BrokerRole.SLAVE:
        yield from _read_slave(replica, clock)


def _read_master(replica: ReplicaRole, store: MessageStore, now_ms: int) -> Iterator[Reading]:
    status = replica.master.status()
    yield Reading(metrics.SLAVE_CONNECTIONS, len(status.slaves))
    yield Reading(metrics.SLAVES_IN_SYNC, status.in_sync_count)
    acknowledged: dict[ReplicaId, int] = {}
    for slave in status.slaves:
        if slave.replica is not None:
            # One slave may have two connections while its old one has not been noticed dead.
            acknowledged[slave.replica] = max(slave.acknowledged, acknowledged.get(slave.replica, 0))
    for gone in status.departed:
        # Its lag grows; without a series nobody would be told. Another slave of its host may have its id now.
        if gone.replica is not None:
            held = acknowledged.get(gone.replica, gone.acknowledged)
            acknowledged[gone.replica] = min(held, gone.acknowledged)
    for name, log_offset in acknowledged.items():
        yield Reading(metrics.SLAVE_LAG_BYTES, max(0, status.log_end - log_offset), (name,))
        seconds = lag_seconds(store, log_offset, now_ms)
        if seconds is not None:
            yield Reading(metrics.SLAVE_LAG_SECONDS, seconds, (name,))


def _read_slave(replica: ReplicaRole, clock: Clock) -> Iterator[Reading]:
    status = replica.slave.status()
    yield Reading(metrics.MASTER_CONNECTED, status.state is SlaveState.TRANSFERRING)
    yield Reading(metrics.REPLICA_HALTED, status.halt is not None)
    for reason in HaltReason:
        is_it = status.halt is not None and status.halt.reason is reason
        yield Reading(metrics.REPLICA_HALT_REASON, is_it, (reason.name.lower(),))
    if status.last_read_at:
        yield Reading(metrics.MASTER_SILENCE, max(0, clock.now_ms() - status.last_read_at) / 1000)
    synced_at = replica.config_sync.synced_at
    if synced_at is not None:
        yield Reading(metrics.CONFIG_SYNC_AGE, clock.monotonic() - synced_at)
