"""From the user's words for a start or an end to one queue offset per queue.

Positions are judged against what the broker has: a start outside it means lost messages, which is an error
unless the user allowed it, and never passes in silence.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tandemmq.errors import BrokerUnreachable, OffsetOutOfRange
from tandemmq.spark.metadata import Bounds, Cluster, Topology, require_queues, wait_before
from tandemmq.spark.offsets import EARLIEST, LATEST, QueueKey, render_queues
from tandemmq.spark.options import PositionRule, SourceOptions, StartKind
from tandemmq.telemetry import events

log = logging.getLogger(__name__)


def describe_all(
    cluster: Cluster, options: SourceOptions, *, may_be_absent: bool = False
) -> tuple[Topology, dict[QueueKey, Bounds]]:
    """The queues and the bounds of every one of them, with some patience for brokers that are starting.

    `may_be_absent`: topics that no name server knows yet are no queues, at once.
    Raises:  NoRoute when nothing is known of the topics; BrokerUnreachable when a broker of theirs never
    answers.
    """
    attempt = 0
    while True:
        topology = cluster.describe()
        bounds = cluster.read_bounds(topology)
        silent = set(topology.queues) - set(bounds)
        if not silent and (topology.queues or may_be_absent):
            return topology, bounds
        attempt += 1
        if attempt > options.retry_count:
            require_queues(topology, options)
            raise BrokerUnreachable(f"no broker answers for {render_queues(silent)}")
        wait_before(attempt, options)


def resolve_start(
    cluster: Cluster, topology: Topology, bounds: Mapping[QueueKey, Bounds], options: SourceOptions
) -> dict[QueueKey, int]:
    """Where each queue of `bounds` begins by the option's rule.

    Raises:  OffsetOutOfRange for a start that the broker does not have, unless failOnDataLoss is false.
    """
    rule = options.start
    assert rule is not None
    begin = {queue: limits.begin for queue, limits in bounds.items()}
    if rule.kind is StartKind.LATEST:
        begin = {queue: limits.end for queue, limits in bounds.items()}
    elif rule.kind is StartKind.GROUP:
        begin |= {q: at for q, at in cluster.read_committed(topology).items() if q in bounds}
    elif rule.kind is StartKind.TIMESTAMP:
        begin |= _search(cluster, topology, bounds, rule)
    elif rule.kind is StartKind.OFFSETS:
        begin |= {queue: _place(at, bounds[queue]) for queue, at in rule.offsets.items() if queue in bounds}
    return {queue: check_kept(queue, at, bounds[queue], options) for queue, at in begin.items()}


def resolve_end(
    cluster: Cluster, topology: Topology, bounds: Mapping[QueueKey, Bounds], rule: PositionRule
) -> dict[QueueKey, int]:
    """Where each queue of `bounds` ends for a batch query, exclusive; never behind its last message."""
    end = {queue: limits.end for queue, limits in bounds.items()}
    wanted: Mapping[QueueKey, int] = {}
    if rule.kind is StartKind.TIMESTAMP:
        wanted = _search(cluster, topology, bounds, rule)
    elif rule.kind is StartKind.OFFSETS:
        wanted = {queue: _place(at, bounds[queue]) for queue, at in rule.offsets.items() if queue in bounds}
    return end | {queue: min(at, end[queue]) for queue, at in wanted.items()}


def check_kept(queue: QueueKey, position: int, bounds: Bounds, options: SourceOptions) -> int:
    """`position`, or the nearest one that the broker has when lost messages are allowed.

    Only a master can prove a loss: a slave that ends before the position may just be behind.
    Raises:  OffsetOutOfRange naming the queue, what was asked and what there is.
    """
    if bounds.begin <= position <= bounds.end or (position > bounds.end and not bounds.is_master):
        return position
    report_loss(queue, position, bounds.begin, bounds.end, options)
    return min(max(position, bounds.begin), bounds.end)


def report_loss(queue: QueueKey, position: int, begin: int, end: int, options: SourceOptions) -> None:
    """Raises OffsetOutOfRange, or logs a warning when failOnDataLoss is false."""
    text = (
        f"queue {render_queues([queue])}: the query is at queue offset {position}, the broker has "
        f"[{begin}, {end}): messages were deleted, or the topic was made anew"
    )
    if options.fail_on_data_loss:
        raise OffsetOutOfRange(f"{text}. Set failOnDataLoss=false to go on with what is there.")
    log.warning(events.MESSAGES_LOST, extra={"detail": text})


def _place(position: int, bounds: Bounds) -> int:
    if position == EARLIEST:
        return bounds.begin
    return bounds.end if position == LATEST else position


def _search(
    cluster: Cluster, topology: Topology, bounds: Mapping[QueueKey, Bounds], rule: PositionRule
) -> dict[QueueKey, int]:
    """The first message at or after each queue's time; queues without a time are left out."""
    times = {queue: rule.timestamps.get(queue, rule.timestamp_ms) for queue in bounds}
    found = cluster.search(topology, {queue: at for queue, at in times.items() if at is not None})
    if rule.is_strict:
        late = [queue for queue, at in found.items() if at >= bounds[queue].end]
        if late:
            raise OffsetOutOfRange(
                f"no message at or after the starting timestamp in {render_queues(late)} "
                "(startingOffsetsByTimestampStrategy=error)"
            )
    return found
