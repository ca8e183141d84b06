"""From the user's words for a start or an end to one queue offset per queue.

Positions are judged against what the broker has: a start outside it means lost messages, which is an error
unless the user allowed it, and never passes in silence. Numbers of a topic that was made again may look as if
they went on, so a running query also compares the last message that it read with what lies there now. Only a
master can prove a loss: a slave may just be behind, or not have been told of a deletion.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tandemmq.errors import BrokerUnreachable, ConfigError, OffsetOutOfRange, TopicNotFound
from tandemmq.spark.metadata import Bounds, QueriedCluster, Topology, require_queues, wait_before
from tandemmq.spark.offsets import (
    ANY_BROKER,
    EARLIEST,
    LATEST,
    Marks,
    OffsetRange,
    Positions,
    QueueKey,
    StreamOffset,
    render_queues,
)
from tandemmq.spark.options import PositionRule, SourceOptions, StartKind
from tandemmq.spark.pushdown import CLOCK_SLACK_MS
from tandemmq.telemetry import events

log = logging.getLogger(__name__)


def describe_all(
    cluster: QueriedCluster, options: SourceOptions, *, may_be_absent: bool = False
) -> tuple[Topology, dict[QueueKey, Bounds]]:
    """The queues and the bounds of every one of them, with some patience for brokers that are starting.

    `may_be_absent`: topics that no name server knows yet are no queues, at once.
    Raises:  NoRoute when nothing is known of the topics; BrokerUnreachable when a broker of theirs never
    answers.
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
        wait_before(attempt, options)


def resolve_start(
    cluster: QueriedCluster, topology: Topology, bounds: Mapping[QueueKey, Bounds], options: SourceOptions
) -> dict[QueueKey, int]:
    """Where each queue of `bounds` begins by the option's rule.

    Raises:  ConfigError for a rule that names a queue that there is not, or an offset beyond the end of one;
             OffsetOutOfRange for a start that the broker does not have any more, unless failOnDataLoss is
             false.
    """
    asked = _ask_start(cluster, topology, bounds, options)
    return {queue: check_kept(queue, at, bounds[queue], options) for queue, at in asked.items()}


def resolve_range(
    cluster: QueriedCluster, topology: Topology, bounds: Mapping[QueueKey, Bounds], options: SourceOptions
) -> tuple[dict[QueueKey, int], dict[QueueKey, int]]:
    """Where each queue of `bounds` begins and ends, exclusive, for a batch query; an end is never behind the
    last message.

    Raises:  as `resolve_start`; ConfigError for a start behind the end.
    """
    begin = _ask_start(cluster, topology, bounds, options)
    last = {queue: limits.end for queue, limits in bounds.items()}
    end = {**last, **_ask_end(cluster, topology, bounds, options.end)}
    turned = {queue for queue, at in begin.items() if at > end[queue] and end[queue] != last[queue]}
    if turned:
        queue = min(turned)
        raise ConfigError(
            f"the start lies behind the end in {render_queues(turned)}: {begin[queue]} and {end[queue]}"
        )
    kept = {queue: check_kept(queue, at, bounds[queue], options) for queue, at in begin.items()}
    return kept, {queue: min(at, last[queue]) for queue, at in end.items()}


def _ask_start(
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
        begin |= {queue: _place(at, bounds[queue]) for queue, at in rule.offsets.items() if queue in bounds}
        _require_reached(begin, bounds)
    return begin


def _require_reached(begin: Positions, bounds: Mapping[QueueKey, Bounds]) -> None:
    """Raises ConfigError for offsets of a user that lie beyond the end of their queue.

    Such an offset is a slip of the pen far more often than a topic that was made anew. Resuming with the
    first message, as after a loss, would read everything.
    """
    wrong = {queue for queue, at in begin.items() if at > bounds[queue].end and bounds[queue].is_master}
    if wrong:
        queue = min(wrong)
        raise ConfigError(
            f"option startingOffsets: {begin[queue]} is beyond the end of {render_queues(wrong)}; the broker "
            f"has [{bounds[queue].begin}, {bounds[queue].end}). Give an offset up to {bounds[queue].end}"
        )


def _ask_end(
    cluster: QueriedCluster, topology: Topology, bounds: Mapping[QueueKey, Bounds], rule: PositionRule
) -> Positions:
    """Where the queues end that the rule says something about."""
    rule = _name_queues(rule, topology, "end")
    if rule.kind is StartKind.TIMESTAMP:
        return _search(cluster, topology, bounds, rule)
    if rule.kind is StartKind.OFFSETS:
        return {queue: _place(at, bounds[queue]) for queue, at in rule.offsets.items() if queue in bounds}
    return {}


def _name_queues(rule: PositionRule, topology: Topology, which: str) -> PositionRule:
    """The rule with queues that there are; a name that fits nothing would let the whole topic be read.

    Raises:  ConfigError for a queue that there is not, or that several brokers have.
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
    """What became of the positions of a running query.

    `moved`: where queues go on whose position there is no more; `gone`: queues that there are no more;
    `doubted`: queues in which a slave shows another message than was read, while the master is away.
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
    looks_everywhere: bool,
    refused: Collection[QueueKey] = (),
) -> Losses:
    """Compares where a query is with what the brokers have.

    Queues with nothing new are compared only with `looks_everywhere`: the others cannot skip anything.
    `refused`: queues that the name servers list and their masters do not know.
    Raises:  OffsetOutOfRange naming the queue, what was asked and what there is, unless failOnDataLoss is
             false.
    """
    here = {queue: at for queue, at in offset.positions.items() if queue in bounds}
    moved = {queue: check_kept(queue, at, bounds[queue], options) for queue, at in here.items()}
    moved = {queue: at for queue, at in moved.items() if at != here[queue]}
    marks = {
        queue: mark
        for queue, mark in offset.marks.items()
        if queue in here and queue not in moved and (looks_everywhere or here[queue] < bounds[queue].end)
    }
    replaced, doubted = find_replaced(cluster, topology, bounds, marks)
    # The clock of a slave that was promoted may be behind: rather some messages twice than one not at all.
    since = {queue: max(mark.stored_at_ms - CLOCK_SLACK_MS, 0) for queue, mark in replaced.items()}
    for queue, at in cluster.search(topology, since).items():
        report_replaced(queue, here[queue], bounds[queue], options, goes_on_at=at)
        moved[queue] = at
    asked = {queue for queue in set(offset.positions) - set(bounds) if options.selects(queue)}
    missing = {queue for queue in asked if queue not in topology.queues or queue in refused}
    gone = cluster.find_gone(missing) if missing else set()
    report_gone({queue: (offset.positions[queue], None) for queue in gone}, options)
    return Losses(moved=moved, gone=frozenset(gone), doubted=doubted)


def find_lost(
    cluster: QueriedCluster, ranges: Sequence[OffsetRange], marks: Sequence[Marks], options: SourceOptions
) -> dict[QueueKey, int]:
    """Finds the queues of a batch that lost messages since an earlier run planned it, and the offset at which
    each of them resumes.

    `marks`: those of the batch's offsets. Only the brokers of these queues are asked; a broker that does not
    answer is left to the tasks, which ask with more patience. A batch loses everything of a topic that was
    made anew: all new messages belong to a later batch.
    Raises:  OffsetOutOfRange naming what is lost and what to do, unless failOnDataLoss is false;
             BrokerUnreachable when no name server answers.
    """
    items = {item.queue: item for item in ranges}
    known = cluster.describe()
    topology = replace(known, queues=tuple(queue for queue in known.queues if queue in items))
    refused: set[QueueKey] = set()
    bounds = cluster.read_bounds(topology, refused=refused)
    gone = cluster.find_gone((set(items) - set(topology.queues)) | refused)
    report_gone({queue: (items[queue].begin, items[queue].end) for queue in gone}, options)
    resume_at = {queue: items[queue].end for queue in gone}
    for queue in {queue for each in marks for queue in find_replaced(cluster, topology, bounds, each)[0]}:
        limits = bounds[queue]
        if queue in items:
            report_replaced(queue, items[queue].begin, limits, options, goes_on_at=limits.begin)
            resume_at[queue] = items[queue].end
    for queue, limits in bounds.items():
        if queue not in resume_at and limits.is_master and items[queue].begin < limits.begin:
            report_loss(queue, items[queue].begin, limits.begin, limits.end, options)
            resume_at[queue] = min(limits.begin, items[queue].end)
    return resume_at


def find_replaced(
    cluster: QueriedCluster, topology: Topology, bounds: Mapping[QueueKey, Bounds], marks: Marks
) -> tuple[Marks, frozenset[QueueKey]]:
    """The marks where the master has another message now, and the queues where a slave has.

    What was deleted by retention, or what nobody answers for, is neither.
    """
    kept = {
        queue: mark
        for queue, mark in marks.items()
        if queue in bounds and bounds[queue].begin <= mark.queue_offset < bounds[queue].end
    }
    seen = cluster.look_at(topology, {queue: mark.queue_offset for queue, mark in kept.items()})
    others = {queue: at for queue, at in seen.items() if at.mark is not None and at.mark != kept[queue]}
    return (
        {queue: kept[queue] for queue, at in others.items() if at.is_master},
        frozenset(queue for queue, at in others.items() if not at.is_master),
    )


def check_kept(queue: QueueKey, position: int, bounds: Bounds, options: SourceOptions) -> int:
    """`position`, or the first one that the broker has when that is gone and lost messages are allowed.

    A position behind the end comes from another life of the topic, all of whose messages are unread.
    Raises:  OffsetOutOfRange naming the queue, what was asked and what there is.
    """
    if bounds.begin <= position <= bounds.end or (position > bounds.end and not bounds.is_master):
        return position
    report_loss(queue, position, bounds.begin, bounds.end, options)
    return bounds.begin


def report_loss(
    queue: QueueKey,
    position: int,
    begin: int,
    end: int,
    options: SourceOptions,
    *,
    goes_on_at: int | None = None,
) -> None:
    """Raises OffsetOutOfRange, or logs from where to where the query moves when failOnDataLoss is false.

    It moves to `begin` unless told otherwise.
    """
    _tell_move(queue, position, begin if goes_on_at is None else goes_on_at, (begin, end), "", options)


def report_gone(gone: Mapping[QueueKey, tuple[int, int | None]], options: SourceOptions) -> None:
    """Reports queues that no longer exist: the query's offset in each, and the end of the batch that it reads
    there, if it reads one.

    Raises:  OffsetOutOfRange naming all of them, unless failOnDataLoss is false.
    """
    why = "and the queue is gone: its topic was deleted, or has fewer queues now"
    for queue, (position, end) in sorted(gone.items()):
        others = f" (so are {render_queues(set(gone) - {queue})})" if len(gone) > 1 else ""
        _tell_loss(
            queue,
            f"the query is at queue offset {position}, {why}{others}",
            "go on without it; if the topic has fewer queues now, making them again brings its messages back",
            {"from_offset": position, **({} if end is None else {"messages": end - position})},
            options,
        )


def report_replaced(
    queue: QueueKey, position: int, bounds: Bounds, options: SourceOptions, *, goes_on_at: int
) -> None:
    """The same for a position that the broker has, with another message before it than was read."""
    _tell_move(
        queue,
        position,
        goes_on_at,
        (bounds.begin, bounds.end),
        ", but another message than was read lies before it",
        options,
    )


def _tell_move(
    queue: QueueKey, position: int, goes_on_at: int, has: tuple[int, int], but: str, options: SourceOptions
) -> None:
    facts = {"from_offset": position, "to_offset": goes_on_at, "min_offset": has[0], "max_offset": has[1]}
    if goes_on_at > position:
        facts["messages"] = goes_on_at - position
    _tell_loss(
        queue,
        f"the query is at queue offset {position}, the broker has [{has[0]}, {has[1]}){but}: messages were "
        "deleted, or the topic was made anew",
        f"go on at queue offset {goes_on_at}",
        facts,
        options,
    )


def _tell_loss(
    queue: QueueKey, what: str, remedy: str, facts: Mapping[str, int], options: SourceOptions
) -> None:
    if options.fail_on_data_loss:
        raise OffsetOutOfRange(
            f"queue {render_queues([queue])}: {what}. Set failOnDataLoss=false to {remedy}."
        )
    log.warning(events.MESSAGES_LOST, extra={"queue": render_queues([queue]), **facts, "detail": what})


def _place(position: int, bounds: Bounds) -> int:
    if position == EARLIEST:
        return bounds.begin
    return bounds.end if position == LATEST else position


def _search(
    cluster: QueriedCluster, topology: Topology, bounds: Mapping[QueueKey, Bounds], rule: PositionRule
) -> dict[QueueKey, int]:
    """The first message at or after each queue's time; queues without a time are left out."""
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
