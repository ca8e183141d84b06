"""Which task reads which range: large ranges are split, small ones are packed together.

A task costs 25-30 ms of fixed time per batch, whatever it reads (spec spark 0), so many small
queues belong into one task; and one huge queue must not keep a single core busy. The plan depends on the
ranges and the `PackingOptions` in the end offset only, never on the number of cores, the time or the options
of today: a replayed batch must give the same rows to the same task numbers, because sinks name rows by them
(spec spark SP-17, SP-52, decision 024).

Pure: no Spark, no network, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandemmq.spark.offsets import OffsetRange, PackingOptions, Positions

PlannedTask = tuple[OffsetRange, ...]
"""The ranges of one task; its number is its place in the plan."""


def plan_tasks(ranges: Sequence[OffsetRange], options: PackingOptions) -> list[PlannedTask]:
    """The ranges of each task, in the order of `ranges`; every offset is in exactly one task."""
    pieces = split_by_size(ranges, options.records_max)
    pieces = split_by_count(pieces, options.partitions_min)
    if options.pack_records <= 0:
        return [(piece,) for piece in pieces]
    pack_records = min(options.pack_records, options.records_max or options.pack_records)
    return pack(pieces, pack_records=pack_records, partitions_min=options.partitions_min)


def leave_out(tasks: Sequence[PlannedTask], resume_at: Positions) -> list[PlannedTask]:
    """The tasks without the messages of each queue below `resume_at`, for a replay after messages were lost.

    A row's name is its task and its number in it. The rows before the first lost message of a task keep their
    names. The rows behind it would get the names of others, which may be stored already, so they move to
    tasks of their own behind all that were planned. A task that is left with nothing keeps its place.
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
    """No piece larger than `records_max`, pieces of one range as equal as can be."""
    if records_max <= 0:
        return list(ranges)
    return [piece for item in ranges for piece in cut(item, -(-item.size // records_max))]


def split_by_count(ranges: Sequence[OffsetRange], partitions_min: int) -> list[OffsetRange]:
    """At least about `partitions_min` pieces, each range cut in proportion to its size (a range of 1 stays
    whole).
    """
    total = sum(item.size for item in ranges)
    if len(ranges) >= partitions_min or total == 0:
        return list(ranges)
    return [piece for item in ranges for piece in cut(item, -(-item.size * partitions_min // total))]


def cut(item: OffsetRange, count: int) -> list[OffsetRange]:
    """`item` in `count` consecutive pieces (fewer when it is shorter than that)."""
    count = max(1, min(count, item.size))
    bounds = [item.begin + item.size * index // count for index in range(count + 1)]
    return [OffsetRange(item.queue, bounds[index], bounds[index + 1]) for index in range(count)]


def pack(pieces: Sequence[OffsetRange], *, pack_records: int, partitions_min: int) -> list[PlannedTask]:
    """Neighbours share a task until it holds `pack_records`; with a minimum of tasks, until it holds its fair
    part.
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
