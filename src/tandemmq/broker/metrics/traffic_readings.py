"""What comes in and goes out: sends, pulls, messages by topic, clients.

Strategy:   the messages of a topic are not counted when they come: its queues number them, so that the sum of
            the queues' ends is the count. It outlives a restart and costs nothing until somebody asks.
At a bound: the first `TOPIC_SERIES_MAX` topics, in the order in which the store knows their queues, have
            series of their own; a topic that is deleted makes room for the next one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice

from tandemmq.broker.metrics.sources import MetricSources
from tandemmq.broker.pop.service import PopService
from tandemmq.broker.stats import BrokerStats
from tandemmq.protocol.codes import ResponseCode
from tandemmq.remoting.server import RemotingServer
from tandemmq.store.message_store import MessageStore
from tandemmq.store.outcomes import PutStatus
from tandemmq.telemetry import metrics
from tandemmq.telemetry.metrics import QUEUES_READ_MAX, TOPIC_SERIES_MAX, Reading

_CODES = {
    PutStatus.PUT_OK: ResponseCode.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
    PutStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.UNKNOWN_ERROR: ResponseCode.SYSTEM_ERROR,
}
assert _CODES.keys() == set(PutStatus)


def read_traffic(sources: MetricSources) -> Iterator[Reading]:
    """All readings of traffic and clients."""
    stats, tables = sources.stats, sources.tables
    yield from _by_code(metrics.SENDS, count_sends(sources.store.recorder.outcomes, stats.send_refusals))
    yield from _by_code(metrics.PULLS, {ResponseCode.SUCCESS: stats.found_count, **stats.pull_endings})
    for (request, code), count in sorted(sources.refusals.counts.items()):
        yield Reading(metrics.CONSUMER_REFUSALS, count, (request, _name_of(code)))
    yield Reading(metrics.MESSAGES_IN, stats.put_count)
    yield Reading(metrics.BYTES_IN, stats.put_bytes)
    yield Reading(metrics.MESSAGES_OUT, stats.got_count)
    yield Reading(metrics.BYTES_OUT, stats.got_bytes)
    yield from _read_topics(sources.store, stats)
    yield Reading(metrics.TOPICS, len(tables.topics))
    yield Reading(metrics.GROUPS, len(tables.groups))
    yield Reading(metrics.CONSUMER_GROUPS, len(sources.consumers.groups))
    yield Reading(metrics.HELD_PULLS, len(sources.long_polls))
    yield from _read_pops(sources.pop)
    yield from _read_connections(sources.listeners)


def count_sends(outcomes: Mapping[PutStatus, int], refusals: Mapping[int, int]) -> dict[int, int]:
    """Sends by response code: those that the store ended, and those that never came so far."""
    counts: Counter[int] = Counter(refusals)
    for status, count in outcomes.items():
        counts[_CODES[status]] += count
    return {code: count for code, count in counts.items() if count or code == ResponseCode.SUCCESS}


def count_topics(store: MessageStore) -> Counter[str]:
    """Messages by topic, in the order in which the store knows the topics."""
    counts: Counter[str] = Counter()
    for topic, queue_id in islice(store.queue_keys(), QUEUES_READ_MAX):
        counts[topic] += store.queue_max(topic, queue_id)
    return counts


def _read_topics(store: MessageStore, stats: BrokerStats) -> Iterator[Reading]:
    counts = count_topics(store)
    stats.topics_out.keep(counts.keys())
    got = stats.topics_out.counts
    for topic, count in islice(counts.items(), TOPIC_SERIES_MAX):
        yield Reading(metrics.TOPIC_IN, count, (topic,))
        yield Reading(metrics.TOPIC_OUT, got.get(topic, 0), (topic,))
    yield Reading(metrics.TOPICS_WITHOUT_SERIES, max(0, len(counts) - TOPIC_SERIES_MAX))


def _read_pops(pop: PopService) -> Iterator[Reading]:
    yield Reading(metrics.HELD_POPS, len(pop.polls))
    yield Reading(metrics.POP_LEASES, len(pop.leases))
    yield Reading(metrics.POPPED, pop.pops.popped_count)
    yield Reading(metrics.POP_ACKS, pop.acks.acked_count)
    yield Reading(metrics.POP_CHANGES, pop.acks.changed_count)
    yield Reading(metrics.POP_REVIVED, pop.revive.revived_count)
    yield Reading(metrics.POP_DEAD, pop.revive.dead_count)


def _read_connections(listeners: Mapping[str, RemotingServer]) -> Iterator[Reading]:
    for name, server in listeners.items():
        yield Reading(metrics.CONNECTIONS, len(server.channels), (name,))


def _by_code(metric: metrics.Metric, counts: Mapping[int, int]) -> Iterator[Reading]:
    for code, count in sorted(counts.items()):
        yield Reading(metric, count, (_name_of(code),))


def _name_of(code: int) -> str:
    try:
        return ResponseCode(code).name
    except ValueError:
        return str(code)
