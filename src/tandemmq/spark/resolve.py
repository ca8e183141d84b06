"""Resolves the user's start or end to one queue offset per queue, and detects lost messages.

Positions are compared with the messages that the broker has. A start outside of them means lost messages,
which is an error unless the user allowed it, and is never silent. The offsets of a topic that was created
again may look like a continuation, so a running query also compares the last message it read with the message
at that offset now. Only a master can prove a loss: a slave may be behind, or may not know of a deletion yet.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tandemmq.errors import BrokerUnreachable, ConfigError, OffsetOutOfRange, TopicNotFound
from tandemmq.spark.metadata import Bounds, QueriedCluster, Topology, require_queues
from tandemmq.spark.offsets import (
    ANY_BROKER,
    EARLIEST,
    LATEST,
    MANY_QUEUES,
    Marks,
    OffsetRange,
    Positions,
    QueueKey,
    StreamOffset,
    render_queues,
)
from tandemmq.spark.options import PositionRule, SourceOptions, StartKind
from tandemmq.spark.pushdown import CLOCK_SLACK_MS
from tandemmq.spark.wire import wait_before
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

_REPLACED = ", but the message before it is not the one that was read"


def describe_all(
    cluster: QueriedCluster, options: SourceOptions, *, may_be_absent: bool = False
) -> tuple[Topology, dict[QueueKey, Bounds]]:
    """Returns the queues and the bounds of every one of them, with retries for brokers that are starting.

    `may_be_absent`: topics that no name server knows yet count as no queues, without retries.
    Raises:  NoRoute if the topics are unknown; BrokerUnreachable if one of their brokers never answers;
             TopicNotFound if name servers list queues that their masters do not know.
    """
    attempt = 0
    while True:
        topology = cluster.describe()
        refused: set[QueueKey] = set()
        bounds = cluster.read_bounds(topology, refused=refused)
        silent = set(topology.queues) - set(bounds)
        if not silent and (topology.queues or may_be_absent):
            return topology, bounds
        attempt += 1
        if attempt > options.retry_count:
            require_queues(topology, options)
            if silent == refused:
                raise TopicNotFound(
                    f"the name servers list {render_queues(refused)}, but the masters do not know them"
                )
            raise BrokerUnreachable(f"no broker answers for {render_queues(silent - refused)}")
        wait_before(attempt, options.retry_interval_s)


def resolve_start(
    cluster: QueriedCluster, topology: Topology, bounds: Mapping[QueueKey, Bounds], options: SourceOptions
) -> dict[QueueKey, int]:
    """Returns the start of each queue of `bounds` by the option's rule.

    Raises:  ConfigError for a rule that names a queue that does not exist, or an offset beyond its end;
             OffsetOutOfRange for a start that the broker no longer has, unless failOnDataLoss is false.
    """
    asked = _resolve_rule_start(cluster, topology, bounds, options)
    return {queue: checked_position(queue, at, bounds[queue], options) for queue, at in asked.items()}


def resolve_range(
    cluster: QueriedCluster, topology: Topology, bounds: Mapping[QueueKey, Bounds], options: SourceOptions
) -> tuple[dict[QueueKey, int], dict[QueueKey, int]]:
    """Returns the start and the exclusive end of each queue of `bounds` for a batch query; an end never
    exceeds the current end of the queue.

    Raises:  the errors of `resolve_start`; ConfigError for a start behind the end.
    """
    begin = _resolve_rule_start(cluster, topology, bounds, options)
    last = {queue: limits.end for queue, limits in bounds.items()}
    end = {**last, **_resolve_rule_ends(cluster, topology, bounds, options.end)}
    reversed_queues = {queue for queue, at in begin.items() if at > end[queue] and end[queue] != last[queue]}
    if reversed_queues:
        queue = min(reversed_queues)
        raise ConfigError(
            f"the start is after the end in {render_queues(reversed_queues)}: {begin[queue]} and {end[queue]}"
        )
    kept = {queue: checked_position(queue, at, bounds[queue], options) for queue, at in begin.items()}
    return kept, {queue: min(at, last[queue]) for queue, at in end.items()}


def _resolve_rule_start(
    cluster: QueriedCluster, topology: Topology, bounds: Mapping[QueueKey, Bounds], options: SourceOptions
) -> dict[QueueKey, int]:
    assert options.start is not None
    rule = _name_queues(options.start, topology, "start")
    begin = {queue: limits.begin for queue, limits in bounds.items()}
    if rule.kind is StartKind.LATEST:
        begin = {queue: limits.end for queue, limits in bounds.items()}
    elif rule.kind is StartKind.GROUP:
        begin |= {q: at for q, at in cluster.read_committed(topology).items() if q in bounds}
    elif rule.kind is StartKind.TIMESTAMP:
        begin |= _search(cluster, topology, bounds, rule)
    elif rule.kind is StartKind.OFFSETS:
        begin |= {
            queue: _to_offset(at, bounds[queue]) for queue, at in rule.offsets.items() if queue in bounds
        }
        _require_reached(begin, bounds)
    return begin


def _require_reached(begin: Positions, bounds: Mapping[QueueKey, Bounds]) -> None:
    """Raises ConfigError for offsets of a user that are beyond the end of their queue.

    Such an offset is far more often a typing error than the sign of a topic that was created again. Resuming
    with the first message, as after a loss, would read everything.
    """
    wrong = {queue for queue, at in begin.items() if at > bounds[queue].end and bounds[queue].is_master}
    if wrong:
        queue = min(wrong)
        raise ConfigError(
            f"option startingOffsets: {begin[queue]} is beyond the end of {render_queues(wrong)}; the broker "
            f"has [{bounds[queue].begin}, {bounds[queue].end}). Give an offset up to {bounds[queue].end}"
        )


def _resolve_rule_ends(
    cluster: QueriedCluster, topology: Topology, bounds: Mapping[QueueKey, Bounds], rule: PositionRule
) -> Positions:
    """Returns the ends of the queues for which the rule has one."""
    rule = _name_queues(rule, topology, "end")
    if rule.kind is StartKind.TIMESTAMP:
        return _search(cluster, topology, bounds, rule)
    if rule.kind is StartKind.OFFSETS:
        return {queue: _to_offset(at, bounds[queue]) for queue, at in rule.offsets.items() if queue in bounds}
    return {}


def _name_queues(rule: PositionRule, topology: Topology, which: str) -> PositionRule:
    """Returns the rule with existing queues; a name that matches nothing would cause the whole topic to be
    read.

    Raises:  ConfigError for a queue that does not exist, or that several brokers have.
    """

    def name(queue: QueueKey) -> QueueKey:
        found = [known for known in topology.queues if queue in (known, known._replace(broker=ANY_BROKER))]
        if len(found) == 1:
            return found[0]
        if not found:
            raise ConfigError(
                f"the JSON of the {which} names {render_queues([queue])}, which the query does not read; "
                f"there are {render_queues(topology.queues) or 'no queues'}"
            )
        raise ConfigError(
            f"the JSON of the {which} names {render_queues([queue])} of no broker, and there are "
            f"{render_queues(found)}: give {{topic: {{broker: {{queue: offset}}}}}}"
        )

    return replace(
        rule,
        offsets={name(queue): at for queue, at in rule.offsets.items()},
        timestamps={name(queue): at for queue, at in rule.timestamps.items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """The changes to the positions of a running query.

    `moved`: the offset at which a queue resumes whose position no longer exists; `gone`: queues that no
    longer exist; `doubted`: queues in which a slave has another message than was read, while the master does
    not answer.
    """

    moved: Positions
    gone: frozenset[QueueKey]
    doubted: frozenset[QueueKey]


def find_losses(
    cluster: QueriedCluster,
    topology: Topology,
    bounds: Mapping[QueueKey, Bounds],
    offset: StreamOffset,
    options: SourceOptions,
    *,
    checks_all_queues: bool,
    refused: Collection[QueueKey] = (),
) -> Losses:
    """Compares the positions of a query with the messages that the brokers have.

    Queues without new messages are compared only with `checks_all_queues`, because they cannot skip anything.
    If a mark shows a loss in a query with many queues, the queues of its topic without marks resume at its
    time, if that is before their position.
    `refused`: queues that the name servers list and their masters do not know.
    Raises:  OffsetOutOfRange naming the queue, the requested offset and the existing ones, unless
             failOnDataLoss is false.
    """
    here = {queue: at for queue, at in offset.positions.items() if queue in bounds}
    moved = {
        queue: resumes_at
        for queue, at in here.items()
        if (resumes_at := checked_position(queue, at, bounds[queue], options)) != at
    }
    news = {queue for queue, at in here.items() if checks_all_queues or at < bounds[queue].end}
    # In a query with many queues, one without a mark relies on the mark of its topic at its broker.
    unmarked = here.keys() - offset.marks.keys() if len(offset.positions) > MANY_QUEUES else set()
    relying = {(queue.topic, queue.broker) for queue in news & unmarked}
    marks = {
        queue: mark
        for queue, mark in offset.marks.items()
        if queue in here and queue not in moved and (queue in news or (queue.topic, queue.broker) in relying)
    }
    replaced, doubted = find_replaced(cluster, topology, bounds, marks)
    short = {q: mark for q, mark in offset.marks.items() if q in moved and moved[q] < here[q]}
    suspects = _spread({**replaced, **short}, unmarked)
    # The clock of a promoted slave may be behind; reading some messages twice is better than missing one.
    since = {
        queue: max(mark.stored_at_ms - CLOCK_SLACK_MS, 0)
        for queue, mark in suspects.items()
        if queue not in moved
    }
    for queue, at in cluster.search(topology, since).items():
        if queue in replaced or at < here[queue]:
            report_loss(queue, here[queue], bounds[queue], options, resumes_at=at, but=_REPLACED)
            moved[queue] = at
    doubted = frozenset(_spread({queue: marks[queue] for queue in doubted}, unmarked))
    asked = {queue for queue in offset.positions if queue not in bounds and options.selects(queue)}
    missing = asked.difference(topology.queues) | asked.intersection(refused)
    gone = cluster.find_gone(missing) if missing else set()
    report_gone({queue: (offset.positions[queue], None) for queue in gone}, options)
    return Losses(moved=moved, gone=frozenset(gone), doubted=doubted)


def _spread(marks: Marks, unmarked: Iterable[QueueKey]) -> Marks:
    """Returns `marks`, and for each unmarked queue the mark of its topic at its broker, if there is one."""
    shared = {(queue.topic, queue.broker): mark for queue, mark in marks.items()}
    others = {
        queue: shared[queue.topic, queue.broker]
        for queue in unmarked
        if (queue.topic, queue.broker) in shared
    }
    return {**others, **marks}


def choose_youngest(places: Positions, start: Positions, bounds: Mapping[QueueKey, Bounds]) -> Positions:
    """Returns one place for each topic of a broker: among the queues whose position is not that of `start`,
    the one with the youngest message. If no store times are known, it is any of them.
    """
    chosen: dict[tuple[str, str], tuple[int, QueueKey]] = {}
    for queue, at in places.items():
        if at + 1 == start.get(queue):
            continue
        newest_at_ms = bounds[queue].newest_at_ms if at + 1 == bounds[queue].end else 0
        topic = (queue.topic, queue.broker)
        if topic not in chosen or newest_at_ms > chosen[topic][0]:
            chosen[topic] = newest_at_ms, queue
    return {queue: places[queue] for _, queue in chosen.values()}


def find_lost(
    cluster: QueriedCluster, ranges: Sequence[OffsetRange], marks: Sequence[Marks], options: SourceOptions
) -> dict[QueueKey, int]:
    """Finds the queues of a batch that lost messages since an earlier run planned it, and returns the offset
    at which each of them resumes.

    `marks`: the marks of the batch's two offsets. Only the brokers of these queues are asked; a broker that
    does not answer is left to the tasks, which retry for longer. If a topic was created again, the batch
    loses all its messages of that topic: every new message belongs to a later batch.
    Raises:  OffsetOutOfRange naming the loss and the remedy, unless failOnDataLoss is false;
             BrokerUnreachable if no name server answers.
    """
    items = {item.queue: item for item in ranges}
    topics = {(queue.topic, queue.broker) for queue in items}
    # A mark may stand for a queue of the batch, and itself be of another queue.
    marked = {queue for each in marks for queue in each if (queue.topic, queue.broker) in topics}
    known = cluster.describe()
    queues = tuple(queue for queue in known.queues if queue in items or queue in marked)
    topology = replace(known, queues=queues)
    refused: set[QueueKey] = set()
    bounds = cluster.read_bounds(topology, refused=refused)
    gone = cluster.find_gone((set(items) - set(topology.queues)) | refused)
    report_gone({queue: (items[queue].begin, items[queue].end) for queue in gone}, options)
    resume_at = {queue: items[queue].end for queue in gone}
    replaced: set[QueueKey] = set()
    for each in marks:
        short = {q: mark for q, mark in each.items() if q in bounds and mark.queue_offset >= bounds[q].end}
        others = find_replaced(cluster, topology, bounds, each)[0]
        replaced |= set(_spread({**others, **short}, items.keys() - each.keys()))
    for queue in replaced:
        if queue in items and queue in bounds and bounds[queue].is_master:
            limits = bounds[queue]
            report_loss(queue, items[queue].begin, limits, options, resumes_at=limits.begin, but=_REPLACED)
            resume_at[queue] = items[queue].end
    for queue in set(items) & set(bounds) - set(resume_at):
        limits = bounds[queue]
        if limits.is_master and items[queue].begin < limits.begin:
            report_loss(queue, items[queue].begin, limits, options, resumes_at=limits.begin)
            resume_at[queue] = min(limits.begin, items[queue].end)
    return resume_at


def find_replaced(
    cluster: QueriedCluster, topology: Topology, bounds: Mapping[QueueKey, Bounds], marks: Marks
) -> tuple[Marks, frozenset[QueueKey]]:
    """Returns the marks at which the master has another message now, and the queues in which a slave has.

    Messages that retention deleted, and queues for which no replica answers, count as neither.
    """
    kept = {
        queue: mark
        for queue, mark in marks.items()
        if queue in bounds and bounds[queue].begin <= mark.queue_offset < bounds[queue].end
    }
    seen = cluster.read_marks(topology, {queue: mark.queue_offset for queue, mark in kept.items()})
    others = {queue: at for queue, at in seen.items() if at.mark is not None and at.mark != kept[queue]}
    return (
        {queue: kept[queue] for queue, at in others.items() if at.is_master},
        frozenset(queue for queue, at in others.items() if not at.is_master),
    )


def checked_position(queue: QueueKey, position: int, bounds: Bounds, options: SourceOptions) -> int:
    """Returns `position`, or the first existing offset if `position` is gone and losses are allowed.

    A position beyond the end belongs to an earlier incarnation of the topic; all messages of the current one
    are unread.
    Raises:  OffsetOutOfRange naming the queue, the requested offset and the existing ones.
    """
    if bounds.begin <= position <= bounds.end or (position > bounds.end and not bounds.is_master):
        return position
    report_loss(queue, position, bounds, options, resumes_at=bounds.begin)
    return bounds.begin


def report_gone(gone: Mapping[QueueKey, tuple[int, int | None]], options: SourceOptions) -> None:
    """Reports queues that no longer exist, as the query's offset in each and the end of the batch that is
    being read, if any.

    Raises:  OffsetOutOfRange naming all of them, unless failOnDataLoss is false.
    """
    why = "and the queue is gone: its topic was deleted, or has fewer queues now"
    for queue, (position, end) in sorted(gone.items()):
        others = f" (so are {render_queues(set(gone) - {queue})})" if len(gone) > 1 else ""
        _report_or_raise(
            queue,
            f"the query is at queue offset {position}, {why}{others}",
            "continue without it; if the topic has fewer queues now, recreating them restores its messages",
            {"from_offset": position, **({} if end is None else {"messages": end - position})},
            options,
        )


def report_loss(
    queue: QueueKey, position: int, bounds: Bounds, options: SourceOptions, *, resumes_at: int, but: str = ""
) -> None:
    """Raises OffsetOutOfRange, or, if failOnDataLoss is false, logs the old and the new position of the
    query.
    """
    facts = {"from_offset": position, "to_offset": resumes_at}
    facts |= {"min_offset": bounds.begin, "max_offset": bounds.end}
    if resumes_at > position:
        facts["messages"] = resumes_at - position
    _report_or_raise(
        queue,
        f"the query is at queue offset {position}, the broker has [{bounds.begin}, {bounds.end}){but}: "
        "messages were deleted, or the topic was made anew",
        f"continue at queue offset {resumes_at}",
        facts,
        options,
    )


def _report_or_raise(
    queue: QueueKey, what: str, remedy: str, facts: Mapping[str, int], options: SourceOptions
) -> None:
    if options.fail_on_data_loss:
        raise OffsetOutOfRange(
            f"queue {render_queues([queue])}: {what}. Set failOnDataLoss=false to {remedy}."
        )
    log.warning(events.MESSAGES_LOST, extra={"queue": render_queues([queue]), **facts, "detail": what})


def _to_offset(position: int, bounds: Bounds) -> int:
    if position == EARLIEST:
        return bounds.begin
    return bounds.end if position == LATEST else position


def _search(
    cluster: QueriedCluster, topology: Topology, bounds: Mapping[QueueKey, Bounds], rule: PositionRule
) -> dict[QueueKey, int]:
    """Returns the first message at or after each queue's time; queues without a time are left out."""
    general = rule.moment.resolve(time.time_ns() // 1_000_000) if rule.moment else None
    times = {queue: rule.timestamps.get(queue, general) for queue in bounds}
    found = cluster.search(topology, {queue: at for queue, at in times.items() if at is not None})
    if rule.is_strict:
        late = [queue for queue, at in found.items() if at >= bounds[queue].end]
        if late:
            raise OffsetOutOfRange(
                f"no message at or after the starting timestamp in {render_queues(late)} "
                "(startingOffsetsByTimestampStrategy=error)"
            )
    return found
