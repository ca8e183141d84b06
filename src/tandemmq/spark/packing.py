"""The division of ranges into tasks: large ranges are split, small ones are packed together.

A task has a fixed cost of 25-30 ms per batch (spec spark 0), so many small queues share a task, and one huge
queue must not keep a single core busy. The plan depends only on the ranges and the `PackingOptions` in the
end offset, never on the number of cores, the time or the current options: a replayed batch must assign the
same rows to the same task numbers, because sinks name rows by them (spec spark SP-17, SP-52, decision 024).

Pure: no Spark, no network, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandemmq.spark.offsets import OffsetRange, PackingOptions, Positions

PlannedTask = tuple[OffsetRange, ...]
"""The ranges of one task; the number of the task is its position in the plan."""


def plan_tasks(ranges: Sequence[OffsetRange], options: PackingOptions) -> list[PlannedTask]:
    """Returns the ranges of each task, in the order of `ranges`; every offset is in exactly one task."""
    pieces = split_by_size(ranges, options.records_max)
    pieces = split_by_count(pieces, options.partitions_min)
    if options.pack_records <= 0:
        return [(piece,) for piece in pieces]
    pack_records = min(options.pack_records, options.records_max or options.pack_records)
    return pack(pieces, pack_records=pack_records, partitions_min=options.partitions_min)


def leave_out(tasks: Sequence[PlannedTask], resume_at: Positions) -> list[PlannedTask]:
    """Returns the tasks without the messages of each queue below `resume_at`, for a replay after messages
    were lost.

    The name of a row is its task and its number in the task. In each task the rows before the first lost
    message keep their names. The later rows would get names of other rows, which may be stored already, so
    they move to new tasks behind all planned ones. A task that becomes empty keeps its position.
    """
    kept: list[PlannedTask] = []
    moved: list[PlannedTask] = []
    for task in tasks:
        lost = (at for at, item in enumerate(task) if item.begin < resume_at.get(item.queue, item.begin))
        first = next(lost, len(task))
        kept.append(task[:first])
        rest = [
            OffsetRange(item.queue, max(item.begin, resume_at.get(item.queue, item.begin)), item.end)
            for item in task[first:]
        ]
        left = tuple(item for item in rest if item.begin < item.end)
        if left:
            moved.append(left)
    return kept + moved


def split_by_size(ranges: Sequence[OffsetRange], records_max: int) -> list[OffsetRange]:
    """Splits ranges so that no piece exceeds `records_max`; the pieces of one range are nearly equal."""
    if records_max <= 0:
        return list(ranges)
    return [piece for item in ranges for piece in cut(item, -(-item.size // records_max))]


def split_by_count(ranges: Sequence[OffsetRange], partitions_min: int) -> list[OffsetRange]:
    """Splits ranges into about `partitions_min` pieces or more, each range in proportion to its size (a range
    of 1 stays whole).
    """
    total = sum(item.size for item in ranges)
    if len(ranges) >= partitions_min or total == 0:
        return list(ranges)
    return [piece for item in ranges for piece in cut(item, -(-item.size * partitions_min // total))]


def cut(item: OffsetRange, count: int) -> list[OffsetRange]:
    """Returns `item` in `count` consecutive pieces (fewer if it has fewer messages)."""
    count = max(1, min(count, item.size))
    bounds = [item.begin + item.size * index // count for index in range(count + 1)]
    return [OffsetRange(item.queue, bounds[index], bounds[index + 1]) for index in range(count)]


def pack(pieces: Sequence[OffsetRange], *, pack_records: int, partitions_min: int) -> list[PlannedTask]:
    """Packs neighbouring pieces into tasks of up to `pack_records`; with a minimum number of tasks, up to an
    equal share.
    """
    if partitions_min > 0:
        total = sum(piece.size for piece in pieces)
        pack_records = min(pack_records, max(1, total // partitions_min))
    tasks: list[PlannedTask] = []
    open_task: list[OffsetRange] = []
    open_size = 0
    for piece in pieces:
        if open_task and open_size + piece.size > pack_records:
            tasks.append(tuple(open_task))
            open_task, open_size = [], 0
        open_task.append(piece)
        open_size += piece.size
    if open_task:
        tasks.append(tuple(open_task))
    return tasks
