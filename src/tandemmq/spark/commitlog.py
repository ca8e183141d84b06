"""The rows of CommitLog files, and the options of the data source `commitlog` (`commitlog_source`).

A piece is a range of bytes of one file. It is scanned in runs of whole records and damaged ranges, which
become Arrow batches with the column `damage`. A record contains its own log offset, so any byte range can be
read alone: the first record of a piece is the first one whose stated offset equals its position. Each record
and each damaged range belongs to the piece in which it begins, so pieces need not end at a record boundary.
Foreign bytes never raise.

The files must be reachable from every executor. The store of a running broker may be read too; a record that
the broker is just writing then looks like damage at the end of the last file.
Source: spec store 3, 3.2, 3.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tandemmq.errors import ConfigError, RemoteProtocolError
from tandemmq.protocol.record_check import check_record
from tandemmq.protocol.record_layout import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RecordOutcome
from tandemmq.protocol.record_scan import RecordColumns, read_columns, scan_boundaries, verify_bodies
from tandemmq.spark.columns import BODY_FAULT, COLUMNS, Column, Projection, arrow_schema, check_nulls
from tandemmq.spark.decode import DecodePlan, decode_records
from tandemmq.spark.option_table import (
    OptionRow,
    parse_rows,
    read_bool,
    read_enum,
    read_int,
    read_names,
    read_size,
    read_text,
)
from tandemmq.spark.options import PropertiesAs
from tandemmq.store.columns import take_rows
from tandemmq.store.damage import data_end, find_bytes
from tandemmq.store.inspect.files import OffsetFile, list_offset_files, map_file
from tandemmq.store.inspect.findings import Damage, describe_damage
from tandemmq.store.inspect.log_walk import used_count
from tandemmq.store.options import parse_offset_file_name

LOG_COLUMNS = (*COLUMNS, Column("damage", ("string",)))
KNOWN_COLUMNS = (*LOG_COLUMNS, BODY_FAULT)
"""Every column that a query can name; a query that names none gets `LOG_COLUMNS`."""


class Damaged(Enum):
    """The handling of damaged records."""

    REPORT = "report"
    SKIP = "skip"
    FAIL = "fail"


def _read_path(name: str, text: str) -> Path:
    if not text:
        raise ConfigError("a path is required: load('/path/of/a/store')")
    return Path(text.removeprefix("file:"))


# The formatter would give each value of a row a line of its own.
# fmt: off
LOG_OPTION_TABLE: tuple[OptionRow, ...] = (
    OptionRow(
        "path", "", "B",
        "a store, its `commitlog` directory, or one file of it", "path", _read_path, shown="required",
    ),
    OptionRow(
        "topic", "", "B",
        "topics, separated by commas; the system's own are topics too", "topics", read_names, shown="all",
    ),
    OptionRow(
        "brokerName", "", "B", "what the column `brokerName` says; no file knows it", "broker", read_text,
    ),
    OptionRow(
        "damaged", "report", "B",
        "`report`: a row with the column `damage` filled; `skip`: no row; `fail`: the query fails",
        "damaged", read_enum(Damaged),
    ),
    OptionRow("verifyCrc", "true", "B", "compare every body with its checksum", "verify_crc", read_bool),
    OptionRow("pieceBytes", "128m", "B", "approximate bytes of a file per task", "piece_bytes", read_size),
    OptionRow(
        "columns", "", "B",
        "columns to build, separated by commas", "columns", read_names, shown="all",
    ),
    OptionRow(
        "propertiesAs", "map", "B",
        "`map`, `string` (as stored) or `none`", "properties_as", read_enum(PropertiesAs),
    ),
    OptionRow(
        "decompress", "true", "B",
        "deliver bodies inflated; damaged ones stay as they are", "decompress", read_bool,
    ),
    OptionRow("arrowRows", "5000", "B", "most rows per Arrow batch", "arrow_rows", read_int(1)),
)
# fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """The options of a query; made by `parse_log_options`."""

    path: Path
    topics: tuple[str, ...]
    broker: str
    damaged: Damaged
    verify_crc: bool
    piece_bytes: int
    columns: tuple[str, ...]
    properties_as: PropertiesAs
    decompress: bool
    arrow_rows: int


def parse_log_options(raw: Mapping[str, str]) -> LogOptions:
    """Returns the options of a query.

    Raises:  ConfigError naming the option, the wrong value and the allowed ones.
    """
    return LogOptions(**parse_rows(raw, LOG_OPTION_TABLE))


LOG_DIR = "commitlog"


@dataclass(frozen=True, slots=True)
class SegmentPiece:
    """The bytes `[begin, end)` of a file; `is_last` is True if no file of the log follows.

    `lost`, if set, is a range of the log in front of `file` that no file contains.
    """

    file: OffsetFile
    begin: int
    end: int
    is_last: bool
    lost: tuple[int, int] | None = None


def find_files(path: Path) -> tuple[OffsetFile, ...]:
    """Returns the CommitLog files of a store, of its `commitlog` directory, or the one file that `path`
    names.

    Raises:  ConfigError if there are none.
    """
    base = parse_offset_file_name(path.name)
    if path.is_file():
        if base is None:
            raise ConfigError(f"{path}: the name of a CommitLog file is its first offset in 20 digits")
        return (OffsetFile(path=path, base=base, size=path.stat().st_size),)
    for directory in (path / LOG_DIR, path):
        files = list_offset_files(directory).files
        if files:
            return files
    raise ConfigError(f"{path} is neither a CommitLog file nor a directory of them nor a store")


def cut_pieces(files: Sequence[OffsetFile], piece_bytes: int) -> list[SegmentPiece]:
    """Returns the pieces of all files in log order; all-zero files at the end are left out."""
    used = files[: used_count(files)]
    pieces: list[SegmentPiece] = []
    for index, file in enumerate(used):
        expected = used[index - 1].end if index else file.base
        if file.base > expected:
            pieces.append(SegmentPiece(file, 0, 0, is_last=False, lost=(expected, file.base)))
        pieces += [
            SegmentPiece(file, begin, min(begin + piece_bytes, file.size), is_last=file is used[-1])
            for begin in range(0, file.size, piece_bytes)
        ]
    return pieces


_MAGICS = tuple((magic & 0xFFFFFFFF).to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK))


@dataclass(frozen=True, slots=True)
class FileRun:
    """Whole records of `view`; if `is_intact` is False, the body does not match its checksum."""

    view: memoryview
    columns: RecordColumns
    is_intact: NDArray[np.bool_]


def scan_piece(piece: SegmentPiece, *, run_records: int, check_crc: bool) -> Iterator[FileRun | Damage]:
    """Yields the records and damaged ranges that begin in the piece, in log order."""
    if piece.lost is not None:
        reason = f"bytes {piece.lost[0]} to {piece.lost[1]} of the log are in no file"
        yield Damage(file=piece.file, begin=0, end=0, reason=reason, lost=piece.lost)
        return
    if piece.file.size == 0:
        return
    view = memoryview(map_file(piece.file.path))
    position = 0 if piece.begin == 0 else find_next_record(view, piece.file.base, piece.begin)
    while position < piece.end:
        bounds = scan_boundaries(view, position, count_max=run_records)
        columns = read_columns(view, bounds, log_offset=piece.file.base)
        whole = take_rows(columns, slice(columns.valid_count))
        if len(whole):
            # Records that begin behind the end of the piece belong to the next task.
            whole = take_rows(whole, slice(int(np.searchsorted(whole.position, piece.end))))
            is_intact = verify_bodies(view, whole) if check_crc else whole.is_valid
            yield FileRun(view, whole, is_intact)
            position = int(whole.position[-1] + whole.size[-1])
        if position >= piece.end or (len(whole) == len(columns) and bounds.outcome is RecordOutcome.OK):
            continue
        if _is_finished(piece, view, position):
            return
        end = find_next_record(view, piece.file.base, position + 1)
        shown_end = data_end(view, position) if end == len(view) and piece.is_last else end
        yield describe_damage(piece.file, view, position, shown_end, is_stale=False)
        position = end


def find_next_record(view: memoryview, base: int, begin: int) -> int:
    """Returns the position of the first record or BLANK at or after `begin` that states its own position
    correctly, else the end of the file.
    """
    found = {raw: find_bytes(view, raw, begin + 4) for raw in _MAGICS}
    while any(at >= 0 for at in found.values()):
        at, raw = min((at, raw) for raw, at in found.items() if at >= 0)
        position = at - 4
        record = check_record(view, position, log_offset=base + position, check_crc=False)
        if record.outcome is RecordOutcome.OK:
            return position
        if record.outcome is RecordOutcome.BLANK and record.size == len(view) - position:
            return position
        found[raw] = find_bytes(view, raw, at + 1)
    return len(view)


def _is_finished(piece: SegmentPiece, view: memoryview, position: int) -> bool:
    """Returns True if the file ends properly here: with a BLANK, or with zeros if no file follows."""
    if position >= len(view):
        return True
    found = check_record(view, position, log_offset=piece.file.base + position, check_crc=False)
    if found.outcome is RecordOutcome.BLANK and found.size == len(view) - position:
        return True
    return piece.is_last and data_end(view, position) == position


DAMAGE = "damage"


def read_piece(piece: SegmentPiece, options: LogOptions, projection: Projection) -> Iterator[Any]:
    """Yields the rows of one piece.

    Raises:  RemoteProtocolError for damage if the option `damaged` is `fail`.
    """
    for found in scan_piece(piece, run_records=options.arrow_rows, check_crc=options.verify_crc):
        if isinstance(found, Damage):
            yield from _damage_row(found, options, projection)
        else:
            yield from _decode_run(found, options, projection)


def _decode_run(run: FileRun, options: LogOptions, projection: Projection) -> Iterator[Any]:
    wanted = _match_topics(run, options.topics)
    good = np.flatnonzero(wanted & run.is_intact)
    if len(good):
        yield _decode(run.view, take_rows(run.columns, good), options, projection, damage=None)
    for row in np.flatnonzero(wanted & ~run.is_intact).tolist():
        columns = take_rows(run.columns, slice(row, row + 1))
        reason = RecordOutcome.BAD_CRC.value
        if options.damaged is Damaged.FAIL:
            raise _damage_error(int(columns.log_offset[0]), reason)
        if options.damaged is Damaged.REPORT:
            # The damaged bytes may be ones that a decompressor would need.
            as_stored = replace(options, decompress=False)
            yield _decode(run.view, columns, as_stored, projection, damage=reason)


def _match_topics(run: FileRun, topics: tuple[str, ...]) -> NDArray[np.bool_]:
    columns = run.columns
    if not topics:
        return np.ones(len(columns), dtype=np.bool_)
    names = {name.encode() for name in topics}
    starts = columns.topic_position.tolist()
    ends = (columns.topic_position + columns.topic_size).tolist()
    is_wanted = [bytes(run.view[a:b]) in names for a, b in zip(starts, ends, strict=True)]
    return np.array(is_wanted, dtype=np.bool_)


def _decode(
    view: memoryview,
    columns: RecordColumns,
    options: LogOptions,
    projection: Projection,
    *,
    damage: str | None,
) -> Any:
    begin, end = int(columns.position[0]), int(columns.position[-1] + columns.size[-1])
    plan = DecodePlan(
        projection=tuple(column for column in projection if column.name != DAMAGE),
        decompress=options.decompress,
    )
    brokers = [(options.broker, len(columns))]
    data = bytes(view[begin:end])
    batch = decode_records(data, brokers, plan, positions=columns.position - begin)
    arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
    values = pa.repeat(pa.scalar(damage, pa.string()), len(columns))
    chosen = [values if column.name == DAMAGE else arrays[column.label] for column in projection]
    return check_nulls(pa.RecordBatch.from_arrays(chosen, schema=arrow_schema(projection)))


def _damage_row(damage: Damage, options: LogOptions, projection: Projection) -> Iterator[Any]:
    """Yields one row with the facts that are still known about the damaged range."""
    if options.topics and damage.topic is not None and damage.topic not in options.topics:
        return
    size = damage.log_end - damage.log_offset
    reason = f"{size} bytes cannot be read: {damage.reason}"
    if options.damaged is Damaged.FAIL:
        raise _damage_error(damage.log_offset, reason)
    if options.damaged is Damaged.SKIP:
        return
    known = {
        "topic": damage.topic,
        "brokerName": options.broker,
        "queueId": damage.queue_id,
        "queueOffset": damage.queue_offset,
        "physicalOffset": damage.log_offset,
        DAMAGE: reason,
    }
    schema = arrow_schema(projection)
    arrays = [
        pa.array([known.get(column.name)], type=field.type)
        for column, field in zip(projection, schema, strict=True)
    ]
    yield check_nulls(pa.RecordBatch.from_arrays(arrays, schema=schema))


def _damage_error(log_offset: int, reason: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"the record at log offset {log_offset}: {reason}")
