"""Runs of records and damages -> Arrow batches with the column `damage`. Pure: numpy and pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tandemmq.errors import RemoteProtocolError
from tandemmq.protocol.record_layout import RecordOutcome
from tandemmq.protocol.record_scan import RecordColumns
from tandemmq.spark.columns import Projection, arrow_schema
from tandemmq.spark.commitlog.options import Damaged, LogOptions
from tandemmq.spark.commitlog.pieces import Piece
from tandemmq.spark.commitlog.scan import Run, scan_piece
from tandemmq.spark.decode import DecodePlan, decode_records
from tandemmq.store.column_rows import take_rows
from tandemmq.store.inspect.damage import Damage

DAMAGE = "damage"


def read_piece(piece: Piece, options: LogOptions, projection: Projection) -> Iterator[Any]:
    """The rows of one piece.

    Raises:  RemoteProtocolError at damage when the options say so.
    """
    for found in scan_piece(piece, run_records=options.arrow_rows, check_crc=options.verify_crc):
        if isinstance(found, Damage):
            yield from _of_damage(found, options, projection)
        else:
            yield from _of_run(found, options, projection)


def _of_run(run: Run, options: LogOptions, projection: Projection) -> Iterator[Any]:
    wanted = _of_topics(run, options.topics)
    good = np.flatnonzero(wanted & run.is_intact)
    if len(good):
        yield _decode(run.view, take_rows(run.columns, good), options, projection, damage=None)
    for row in np.flatnonzero(wanted & ~run.is_intact).tolist():
        columns = take_rows(run.columns, slice(row, row + 1))
        reason = RecordOutcome.BAD_CRC.value
        if options.damaged is Damaged.FAIL:
            raise _failure(int(columns.log_offset[0]), reason)
        if options.damaged is Damaged.REPORT:
            # What is damaged may be what a decompressor would need.
            as_stored = replace(options, decompress=False)
            yield _decode(run.view, columns, as_stored, projection, damage=reason)


def _of_topics(run: Run, topics: tuple[str, ...]) -> NDArray[np.bool_]:
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
    return pa.RecordBatch.from_arrays(
        [values if column.name == DAMAGE else arrays[column.label] for column in projection],
        schema=arrow_schema(projection),
    )


def _of_damage(damage: Damage, options: LogOptions, projection: Projection) -> Iterator[Any]:
    """One row with what can still be said."""
    if options.topics and damage.topic is not None and damage.topic not in options.topics:
        return
    size = damage.log_end - damage.log_offset
    reason = f"{size} bytes cannot be read: {damage.reason}"
    if options.damaged is Damaged.FAIL:
        raise _failure(damage.log_offset, reason)
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
    yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _failure(log_offset: int, reason: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"the record at log offset {log_offset}: {reason}")
