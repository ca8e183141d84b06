"""The metrics of a broker: readings from its parts, which `remoting.metrics_service` serves.

The parts know nothing of metrics. The readings cover the store's watermarks, files, disk and durations;
traffic; and replication lag. `broker/lag.py` reads the lag of consumers.
Strategy: messages per topic are not counted on arrival. Queues number their messages, so the sum of the
          queues' ends is the count. It survives a restart and costs nothing until it is read.
At a bound: the first `TOPIC_SERIES_MAX` topics, in the store's order of queues, have series of their own; a
            deleted topic makes room for the next one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice

from tandemmq import __version__
from tandemmq.broker.autoswitch.term import ElectedReplica
from tandemmq.broker.core import BrokerCore
from tandemmq.broker.lag import LagReader
from tandemmq.broker.pop.service import PopService
from tandemmq.broker.readings import Readings, read_rpcs
from tandemmq.broker.replica.ha_status import lag_seconds
from tandemmq.broker.replica.role import ReplicaRole
from tandemmq.broker.stats import BrokerStats
from tandemmq.protocol.codes import ResponseCode, response_name
from tandemmq.remoting.health import Conditions
from tandemmq.remoting.http import HttpAnswer
from tandemmq.remoting.metrics_port import MetricsSource
from tandemmq.remoting.rpc_times import RpcTimes
from tandemmq.remoting.server import RemotingServer
from tandemmq.replication.core.effects import HaltReason
from tandemmq.replication.core.progress import SlaveState
from tandemmq.replication.shell import MasterStatus, ReplicationSlaveStatus
from tandemmq.runtime.ports import Clock, Disk
from tandemmq.store.message_store import MessageStore
from tandemmq.store.outcomes import PutStatus
from tandemmq.telemetry import metrics
from tandemmq.telemetry.metrics import QUEUES_READ_MAX, TOPIC_SERIES_MAX, Sample
from tandemmq.units import ReplicaId


@dataclass(frozen=True, slots=True)
class MetricSources:
    """The parts of one broker. `listeners`: its remoting servers by name; `times`: None if not measured."""

    core: BrokerCore
    pop: PopService
    listeners: Mapping[str, RemotingServer]
    replica: ReplicaRole | ElectedReplica | None
    times: RpcTimes | None = None


def read_store(store: MessageStore, disk: Disk) -> Iterator[Sample]:
    """Yields all readings of the store."""
    appended, flushed = store.appended.value, store.flushed.value
    dispatched = store.dispatched.value
    facts, recorder = store.facts(), store.recorder
    yield Sample(metrics.APPENDED, appended)
    yield Sample(metrics.FLUSHED, flushed)
    yield Sample(metrics.CONFIRMED, store.confirmed.value)
    yield Sample(metrics.DISPATCHED, dispatched)
    yield Sample(metrics.LOG_MIN, store.min_log_offset)
    yield Sample(metrics.LOG_MAX, store.max_log_offset)
    yield Sample(metrics.DISPATCH_BEHIND, appended - dispatched)
    yield Sample(metrics.UNFLUSHED, appended - flushed)
    if facts.has_pool:
        yield Sample(metrics.UNCOMMITTED, facts.uncommitted_bytes)
        yield Sample(metrics.POOL_FREE, facts.pool_free_count)
    yield Sample(metrics.LOG_FILES, facts.log_file_count)
    yield Sample(metrics.QUEUES, facts.queue_count)
    yield Sample(metrics.WRITEABLE, facts.refusal is None)
    yield Sample(metrics.READ_DISTANCE, recorder.read_distance_bytes)
    yield Sample(metrics.MEMORY_WINDOW, store.options.memory_window_bytes)
    yield Sample(metrics.READS_BEYOND_MEMORY, recorder.far_read_count)
    yield Sample(metrics.DAMAGED_RANGES, facts.damaged_range_count)
    yield Sample(metrics.DAMAGED_BYTES, facts.damaged_bytes)
    yield Sample(metrics.SCRUBBED, recorder.scrubbed_bytes)
    yield from _read_disk(store, disk)
    yield Sample(metrics.APPEND_BATCH, recorder.append_batch_s)
    if facts.has_pool:
        yield Sample(metrics.COMMIT, recorder.commit_s)
    yield Sample(metrics.FLUSH, recorder.flush_s)
    yield Sample(metrics.FLUSH_WAIT, recorder.flush_wait.seconds)
    yield Sample(metrics.ACK_WAIT, recorder.ack_wait.seconds)
    yield Sample(metrics.SENDS_WAITING, facts.sends_waiting_for_flush, ("flush",))
    yield Sample(metrics.SENDS_WAITING, facts.sends_waiting_for_acks, ("acks",))


def _read_disk(store: MessageStore, disk: Disk) -> Iterator[Sample]:
    total, free = disk.usage(store.options.log_dir)
    yield Sample(metrics.DISK_USED, total - free)
    yield Sample(metrics.DISK_TOTAL, total)
    yield Sample(metrics.DISK_RATIO, (total - free) / total if total else 0.0)


_CODES = {
    PutStatus.PUT_OK: ResponseCode.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
    PutStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.UNKNOWN_ERROR: ResponseCode.SYSTEM_ERROR,
}
assert _CODES.keys() == set(PutStatus)


def read_traffic(sources: MetricSources) -> Iterator[Sample]:
    """Yields all readings of traffic and clients."""
    stats, tables = sources.core.stats, sources.core.tables
    yield from _by_code(metrics.SENDS, count_sends(sources.core.store.recorder.outcomes, stats.send_refusals))
    yield from _by_code(metrics.PULLS, {ResponseCode.SUCCESS: stats.found_count, **stats.pull_endings})
    for (request, code), count in sorted(sources.core.refusals.counts.items()):
        yield Sample(metrics.CONSUMER_REFUSALS, count, (request, response_name(code)))
    yield Sample(metrics.MESSAGES_IN, stats.put_count)
    yield Sample(metrics.BYTES_IN, stats.put_bytes)
    yield Sample(metrics.MESSAGES_OUT, stats.got_count)
    yield Sample(metrics.BYTES_OUT, stats.got_bytes)
    yield from _read_topics(sources.core.store, stats)
    yield Sample(metrics.TOPICS, len(tables.topics))
    yield Sample(metrics.GROUPS, len(tables.groups))
    yield Sample(metrics.CONSUMER_GROUPS, len(sources.core.consumers.groups))
    yield Sample(metrics.HELD_PULLS, len(sources.core.long_polls))
    yield from _read_pops(sources.pop)
    yield from _read_connections(sources.listeners)


def count_sends(outcomes: Mapping[PutStatus, int], refusals: Mapping[int, int]) -> dict[int, int]:
    """Returns sends by response code: those that the store completed, and those rejected earlier."""
    counts: Counter[int] = Counter(refusals)
    for status, count in outcomes.items():
        counts[_CODES[status]] += count
    return {code: count for code, count in counts.items() if count or code == ResponseCode.SUCCESS}


def count_topics(store: MessageStore) -> Counter[str]:
    """Returns messages by topic, in the store's order of topics."""
    counts: Counter[str] = Counter()
    for topic, queue_id in islice(store.queue_keys(), QUEUES_READ_MAX):
        counts[topic] += store.queue_max(topic, queue_id)
    return counts


def _read_topics(store: MessageStore, stats: BrokerStats) -> Iterator[Sample]:
    counts = count_topics(store)
    stats.topics_out.keep(counts.keys())
    got = stats.topics_out.counts
    for topic, count in islice(counts.items(), TOPIC_SERIES_MAX):
        yield Sample(metrics.TOPIC_IN, count, (topic,))
        yield Sample(metrics.TOPIC_OUT, got.get(topic, 0), (topic,))
    yield Sample(metrics.TOPICS_WITHOUT_SERIES, max(0, len(counts) - TOPIC_SERIES_MAX))


def _read_pops(pop: PopService) -> Iterator[Sample]:
    yield Sample(metrics.HELD_POPS, len(pop.polls))
    yield Sample(metrics.POP_LEASES, len(pop.leases))
    yield Sample(metrics.POPPED, pop.pops.popped_count)
    yield Sample(metrics.POP_ACKS, pop.acks.acked_count)
    yield Sample(metrics.POP_CHANGES, pop.acks.changed_count)
    yield Sample(metrics.POP_REVIVED, pop.revive.revived_count)
    yield Sample(metrics.POP_DEAD, pop.revive.dead_count)


def _read_connections(listeners: Mapping[str, RemotingServer]) -> Iterator[Sample]:
    for name, server in listeners.items():
        yield Sample(metrics.CONNECTIONS, len(server.channels), (name,))


def _by_code(metric: metrics.Metric, counts: Mapping[int, int]) -> Iterator[Sample]:
    for code, count in sorted(counts.items()):
        yield Sample(metric, count, (response_name(code),))


def read_replication(
    replica: ReplicaRole | ElectedReplica, store: MessageStore, clock: Clock
) -> Iterator[Sample]:
    """Yields all readings of replication, for the role of this broker."""
    status, copy = replica.master_status(), replica.slave_status()
    if status is not None:
        yield from _read_master(status, store, clock.now_ms())
    yield Sample(metrics.MASTER_WAITING, bool(store.unverified_reason))
    if isinstance(replica, ElectedReplica):
        yield Sample(metrics.HISTORY_DOUBTED, bool(replica.history_mismatch))
        yield Sample(metrics.HISTORY_DIFFERED, replica.history_differed_count)
    if copy is not None:
        yield from _read_slave(copy, replica.synced_at, clock)


def _read_master(status: MasterStatus, store: MessageStore, now_ms: int) -> Iterator[Sample]:
    yield Sample(metrics.SLAVE_CONNECTIONS, len(status.slaves))
    yield Sample(metrics.SLAVES_IN_SYNC, status.in_sync_count)
    acknowledged: dict[ReplicaId, int] = {}
    for slave in status.slaves:
        if slave.replica is not None:
            # One slave may have two connections until its old one is detected as dead.
            acknowledged[slave.replica] = max(slave.acknowledged, acknowledged.get(slave.replica, 0))
    for gone in status.departed:
        # The lag of a departed slave grows, so it keeps its series. Another slave of its host may have its id
        # now.
        if gone.replica is not None:
            held = acknowledged.get(gone.replica, gone.acknowledged)
            acknowledged[gone.replica] = min(held, gone.acknowledged)
    for name, log_offset in acknowledged.items():
        yield Sample(metrics.SLAVE_LAG_BYTES, max(0, status.log_end - log_offset), (name,))
        seconds = lag_seconds(store, log_offset, now_ms)
        if seconds is not None:
            yield Sample(metrics.SLAVE_LAG_SECONDS, seconds, (name,))


def _read_slave(status: ReplicationSlaveStatus, synced_at: float | None, clock: Clock) -> Iterator[Sample]:
    yield Sample(metrics.MASTER_CONNECTED, status.state is SlaveState.TRANSFERRING)
    yield Sample(metrics.REPLICA_HALTED, status.halt is not None)
    for reason in HaltReason:
        is_it = status.halt is not None and status.halt.reason is reason
        yield Sample(metrics.REPLICA_HALT_REASON, is_it, (reason.name.lower(),))
    if status.last_read_at:
        yield Sample(metrics.MASTER_SILENCE, max(0, clock.now_ms() - status.last_read_at) / 1000)
    if synced_at is not None:
        yield Sample(metrics.CONFIG_SYNC_AGE, clock.monotonic() - synced_at)


def read_all(sources: MetricSources) -> Iterator[Sample]:
    """Yields every reading of a broker."""
    options, store = sources.core.options, sources.core.store
    yield Sample(
        metrics.BROKER_INFO,
        1,
        (
            options.cluster_name,
            options.broker_name,
            str(options.broker_id),
            store.assigned_role.value,
            __version__,
        ),
    )
    yield from read_store(store, sources.core.disk)
    yield from read_traffic(sources)
    if sources.replica is not None:
        yield from read_replication(sources.replica, store, sources.core.clock)


def check_health(store: MessageStore) -> HttpAnswer:
    """Returns 200 while the store can be trusted, even if it rejects sends at the moment."""
    facts = store.facts()
    if facts.is_failed:
        return HttpAnswer(f"{facts.refusal}\n".encode(), status=503)
    return HttpAnswer(b"ok\n" if facts.refusal is None else f"ok, but {facts.refusal}\n".encode())


def metrics_source(sources: MetricSources, read_ready: Conditions) -> MetricsSource:
    """Returns the readings of a broker."""
    core = sources.core
    lag, readings = LagReader(core, sources.pop), Readings(core, sources.pop)
    return MetricsSource(
        "broker",
        read_ready,
        read_all=lambda: read_all(sources),
        read_pieces=lambda: chain(
            readings.read(), () if sources.times is None else read_rpcs(sources.times, core), lag.read()
        ),
        check_health=lambda: check_health(core.store),
    )
