"""The check of a lake of any kind (`check_lake`): whether each file has what was committed, and each message
is in the lake once.

The check compares the footer and size of each file with the batch's summary (Parquet) or the table's log,
each batch of a Parquet lake with its successor, which names it, and the queue offsets of all files with each
other. Gaps in the queue offsets are not faults, because filters and retention make them; `pipeline audit`
compares with the brokers. Must not know Spark.

Strategy:   A file's offsets are kept as runs `[begin, end)` of each queue. Only where runs overlap are rows
            compared, by store time and log offset, because a topic that was created again has the same queue
            offsets.
At a bound: Memory is 16 bytes per run, so in the worst case (a filter that leaves no neighbours) per row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tandemmq.spark.columns import PLACE
from tandemmq.spark.documents import read_document
from tandemmq.spark.lake.data_files import DataFiles
from tandemmq.spark.lake.files import (
    AFTER,
    BAD_RECORDS_DIR,
    SUMMARY_FILE,
    CommittedFile,
    Totals,
    batch_dir,
    list_batches,
    read_owner,
    read_range,
    read_summary,
)
from tandemmq.spark.lake.formats import find_table
from tandemmq.spark.lake.home import LakeFormat, require_lake
from tandemmq.spark.lake.merge import EXPIRED_MARK, data_files
from tandemmq.spark.lake.parquet import TIME_COLUMN
from tandemmq.spark.lake.summaries import list_committed, read_bad_rows
from tandemmq.spark.lake.upkeep import find_orphans
from tandemmq.units import MIB

SMALL_BYTES = 16 * MIB

*_QUEUE, _OFFSET = PLACE
_INCARNATION = (TIME_COLUMN, "physicalOffset")
"""The columns that differ if a topic was created again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeState:
    """The result of a check. `faults`: sentences; empty if the lake is intact."""

    kind: LakeFormat
    owner: str | None
    rows: int
    files: int
    size_bytes: int
    small_files: int
    orphans: int
    faults: tuple[str, ...] = ()


def check_lake(root: Path) -> LakeState:
    """Compares all files with what was committed, and with each other."""
    lake = require_lake(root)
    faults: list[str] = []
    bad_root = lake.bad_records.root
    data, bad_data = lake.data, lake.bad_records.data
    committed = None if lake.kind is LakeFormat.PARQUET else find_table(lake.kind).list_table_files(lake)
    names = _batch_files(root) if committed is None else sorted({file.name for file in committed})
    found = _measure(data, names, faults)
    bad = _measure(bad_data, _batch_files(bad_root), faults)
    faults += _compare_batches(root, found) if committed is None else _compare_log(committed, found)
    faults += (
        f"{BAD_RECORDS_DIR}/{fault}" for fault in (*_compare_batches(bad_root, bad), *_find_lost(root))
    )
    try:
        faults += find_doubled([(data, list(found)), (bad_data, list(bad))])
    except (OSError, ValueError) as error:
        faults.append(f"a file cannot be read: {error}")
    return LakeState(
        kind=lake.kind,
        owner=read_owner(root),
        rows=sum(file.rows for file in found.values()),
        files=len(names),
        size_bytes=sum(file.size_bytes for file in found.values()),
        small_files=sum(file.size_bytes < SMALL_BYTES for file in found.values()),
        orphans=len(find_orphans(lake)),
        faults=tuple(faults),
    )


def _batch_files(root: Path) -> list[str]:
    return [str(path.relative_to(root)) for path in data_files(root)]


def _measure(data: DataFiles, names: Sequence[str], faults: list[str]) -> dict[str, Totals]:
    """Returns the rows and bytes of each readable file; adds the others to `faults`."""
    found = {}
    for name in names:
        try:
            rows = pq.read_metadata(data.path(name), filesystem=data.system).num_rows
            found[name] = Totals(rows=rows, size_bytes=data.size(name))
        except (OSError, ValueError) as error:
            faults.append(f"{name}: {error}")
    return found


def _compare_log(committed: Sequence[CommittedFile], found: Mapping[str, Totals]) -> Iterator[str]:
    """Compares the files of a table with its log."""
    seen: set[str] = set()
    for file in committed:
        if file.name in seen:
            yield f"{file.name}: the table's log names it more than once, so its rows are doubled"
        seen.add(file.name)
        if file.name in found:
            yield from _compare(file.name, found[file.name], file.rows, file.size_bytes)


def _compare_batches(root: Path, found: Mapping[str, Totals]) -> Iterator[str]:
    """Compares the batches of a Parquet lake with their summaries and with each other."""
    batches = list_batches(root)
    covered = {number for batch in batches for number in read_range(root, batch)}
    for batch in batches:
        directory = batch_dir(root, batch)
        document = read_document(directory / SUMMARY_FILE)
        if document is None:
            yield f"{directory.name}: {SUMMARY_FILE} is missing"
            continue
        if document.get(AFTER, batch) not in covered:
            yield f"{batch_dir(root, document[AFTER]).name}: the directory is missing"
        files = [file for name, file in found.items() if name.startswith(f"{directory.name}/")]
        rows, size = sum(file.rows for file in files), sum(file.size_bytes for file in files)
        said = read_summary(root, batch)
        # Expired rows are missing on purpose; the summary keeps the number that was landed.
        if not (directory / EXPIRED_MARK).exists() or rows > said.rows:
            yield from _compare(directory.name, Totals(rows, size), said.rows, said.size_bytes)


def _find_lost(root: Path) -> Iterator[str]:
    """Compares the bad records with their numbers in the summaries of the lake's batches."""
    end = -1
    for batch in list_committed(root):
        if batch < end:
            continue  # it had bad records only, and the merged batch before it counts them
        covered = read_range(root, batch)
        end = covered.stop
        said = sum(read_bad_rows(root, number) for number in covered)
        there = sum(read_summary(root / BAD_RECORDS_DIR, number).rows for number in covered)
        if there < said:
            yield f"{batch_dir(root, batch).name}: {said - there} of {said} bad records are missing"


def _compare(name: str, found: Totals, rows: int | None, size_bytes: int) -> Iterator[str]:
    if rows is not None and found.rows < rows:
        yield f"{name}: {rows - found.rows} of {rows} rows are missing"
    elif rows is not None and found.rows > rows:
        yield f"{name}: {found.rows} rows, {rows} were committed"
    elif found.size_bytes != size_bytes:
        yield f"{name}: {found.size_bytes} bytes, {size_bytes} were committed"


def find_doubled(places: Sequence[tuple[DataFiles, Sequence[str]]]) -> list[str]:
    """Returns a sentence for each queue of which rows are there more than once; none for a lake whose rows
    do not name their queue and queue offset.
    """
    runs: dict[tuple[Any, ...], list[Any]] = {}
    for data, names in places:
        for name in names:
            for table in _read_offsets(data, name):
                for *queue, offsets in _split_by_queue(table):
                    runs.setdefault(tuple(queue), []).append(_to_runs(offsets))
    overlaps = {queue: _find_overlaps(np.concatenate(found)) for queue, found in runs.items()}
    overlaps = {queue: found for queue, found in overlaps.items() if len(found)}
    if not overlaps:
        return []
    kept = [
        table.filter(pa.array(_is_within(table, overlaps)))
        for data, names in places
        for name in names
        for table in _read_offsets(data, name, *_INCARNATION)
    ]
    rows = pa.concat_tables(kept, promote_options="default")
    counts = rows.group_by(rows.column_names).aggregate([([], "count_all")])
    doubled = counts.filter(pc.field("count_all") > 1)
    faults = []
    for topic, broker, queue_id, offsets in _split_by_queue(doubled):
        faults.append(
            f"{topic}@{broker}:{queue_id}: {len(offsets)} messages are there more than once, the first at"
            f" queue offset {min(offsets)}"
        )
    return sorted(faults)


def _read_offsets(data: DataFiles, name: str, *more: str) -> Iterator[pa.Table]:
    """Yields the columns of _QUEUE, the queue offset and, if present, the columns `more`; nothing for a file
    that lacks one of the first. A column may be in the file's path.
    """
    parts = dict(part.partition("=")[::2] for part in name.split("/")[:-1])
    with pq.ParquetFile(data.path(name), filesystem=data.system) as file:
        there = set(file.schema_arrow.names)
        if _OFFSET not in there or not there.union(parts).issuperset(_QUEUE):
            return
        columns = [column for column in (_OFFSET, *_QUEUE, *more) if column in there]
        for batch in file.iter_batches(columns=columns):
            values = {column: batch.column(column) for column in columns}
            values |= {
                column: values[column].cast(pa.string())
                if column in there
                else pa.array([unquote(parts[column])] * len(batch))
                for column in _QUEUE
            }
            yield pa.table(values).filter(pc.is_valid(batch.column(_OFFSET)))


def _split_by_queue(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Yields topic, broker, queue id and queue offsets of each queue."""
    grouped = table.group_by(_QUEUE, use_threads=False).aggregate([(_OFFSET, "list")])
    columns = [grouped[name].to_pylist() for name in _QUEUE]
    lists = [value.values.to_numpy() for value in grouped[f"{_OFFSET}_list"]]
    yield from zip(*columns, lists, strict=True)


def _to_runs(offsets: Any) -> Any:
    """Returns the runs `[begin, end)` of neighbouring offsets; an offset that is there twice begins one."""
    offsets = np.sort(offsets)
    cuts = np.flatnonzero(np.diff(offsets) != 1)
    return np.stack([offsets[np.r_[0, cuts + 1]], offsets[np.r_[cuts, len(offsets) - 1]] + 1], axis=1)


def _find_overlaps(runs: Any) -> Any:
    """Returns the offsets that are in more than one run, as disjoint ascending intervals `[begin, end)`."""
    runs = runs[np.argsort(runs[:, 0], kind="stable")]
    reached = np.maximum.accumulate(runs[:, 1])
    begins, ends = runs[1:, 0], np.minimum(runs[1:, 1], reached[:-1])
    begins, ends = begins[begins < ends], ends[begins < ends]
    if not len(begins):
        return np.empty((0, 2), dtype=np.int64)
    furthest = np.maximum.accumulate(ends)
    starts = np.r_[True, begins[1:] > furthest[:-1]]
    return np.stack([begins[starts], furthest[np.r_[np.flatnonzero(starts)[1:] - 1, len(ends) - 1]]], axis=1)


def _is_within(table: pa.Table, overlaps: Mapping[tuple[Any, ...], Any]) -> Any:
    """Returns True for each row whose queue offset is in an interval of its queue."""
    offsets = table[_OFFSET].to_numpy()
    mine = np.zeros(len(table), dtype=bool)
    for queue, intervals in overlaps.items():
        is_queue = np.ones(len(table), dtype=bool)
        for name, value in zip(_QUEUE, queue, strict=True):
            is_queue &= np.asarray(pc.equal(table[name], value))
        at = np.searchsorted(intervals[:, 0], offsets, side="right") - 1
        mine |= is_queue & (at >= 0) & (offsets < intervals[np.maximum(at, 0), 1])
    return mine
