"""Which task reads which range: large ranges are split, small ones are packed together.

A task costs 25-30 ms of fixed time per batch, whatever it reads (spec spark 0), so many small
queues belong into one task; and one huge queue must not keep a single core busy. The plan depends on the
ranges and the options only, never on the number of cores or the time: a replayed batch must give the same
rows to the same task numbers, because the names of files in the lake are made of them (spec spark SP-17,
SP-52).

Pure: no Spark, no network, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tandemmq.spark.offsets import OffsetRange


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingOptions:
    """`partitions_min` 0 and `records_max` 0 mean no such rule; `pack_records` 0 means one range per task."""

    partitions_min: int = 0
    records_max: int = 0
    pack_records: int = 20_000


def plan_tasks(ranges: Sequence[OffsetRange], options: PackingOptions) -> list[tuple[OffsetRange, ...]]:
    """The ranges of each task, in the order of `ranges`; every offset is in exactly one task."""
    pieces = split_by_size(ranges, options.records_max)
    pieces = split_by_count(pieces, options.partitions_min)
    if options.pack_records <= 0:
        return [(piece,) for piece in pieces]
    pack_records = min(options.pack_records, options.records_max or options.pack_records)
    return pack(pieces, pack_records=pack_records, partitions_min=options.partitions_min)


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


def pack(
    pieces: Sequence[OffsetRange], *, pack_records: int, partitions_min: int
) -> list[tuple[OffsetRange, ...]]:
    """Neighbours share a task until it holds `pack_records`; with a minimum of tasks, until it holds its fair
    part.
    """
    if partitions_min > 0:
        total = sum(piece.size for piece in pieces)
        pack_records = min(pack_records, max(1, total // partitions_min))
    tasks: list[tuple[OffsetRange, ...]] = []
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
