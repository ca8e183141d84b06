"""Sends bad records to a topic, for consumers that must react at once.

A task sends the bad records it has staged before the batch is committed. A task that runs twice and a
repeated batch send them again, with the same unique keys; the lake `_bad_records` contains each of them once.
Imported only if something is sent: it imports pyarrow and pandas, which the processes that plan and commit do
not need.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tandemmq.protocol.properties import decode_properties
from tandemmq.spark.columns import PLACE
from tandemmq.spark.lake.files import StagedFile
from tandemmq.spark.sink.columns import find_sink_columns
from tandemmq.spark.sink.options import SinkOptions
from tandemmq.spark.sink.writer import send_rows

REASON_PROPERTY, ORIGIN_PROPERTY = "badReason", "origin"
"""Properties of the messages: the reason why the body is bad, and `topic@broker:queue:offset`."""

REASON_CHARS_MAX = 1000
ROWS_PER_BATCH = 5000
_KEPT = ("tags", "keys")
_TYPES = {"body": "binary", "tags": "string", "keys": "string", "properties": "map<string,string>"}


def send_bad_records(
    root: Path,
    files: Sequence[StagedFile],
    reason_column: str,
    options: SinkOptions,
    names: tuple[object, ...],
    partition_id: int,
) -> None:
    """Sends a message for each row and waits until all are confirmed; rows without a body are skipped.

    `names` identify the task in the unique keys.
    """
    if not files:
        return
    batches = _read(root, files, reason_column)
    first = next(batches)
    fields = [(name, _TYPES[name]) for name in first.schema.names]
    columns = find_sink_columns(fields, has_topic_option=True)

    def chain() -> Iterator[Any]:
        yield first
        yield from batches

    send_rows(chain(), options, columns, names, partition_id)


def _read(root: Path, files: Sequence[StagedFile], reason_column: str) -> Iterator[Any]:
    for file in files:
        with pq.ParquetFile(root / file.staged) as source:
            for batch in source.iter_batches(batch_size=ROWS_PER_BATCH):
                yield _make_messages(batch, reason_column)


def _make_messages(batch: Any, reason_column: str) -> Any:
    """Returns the rows in the columns of the sink."""
    there = batch.schema.names
    columns = {"body": batch.column("body").cast(pa.binary())}
    columns |= {name: batch.column(name).cast(pa.string()) for name in _KEPT if name in there}
    reasons = batch.column(reason_column).to_pylist()
    own = batch.column("properties").to_pylist() if "properties" in there else [None] * len(reasons)
    places = (
        zip(*(batch.column(name).to_pylist() for name in PLACE), strict=True)
        if set(PLACE) <= set(there)
        else None
    )
    pairs = []
    for reason, properties in zip(reasons, own, strict=True):
        found = [*_read_pairs(properties), (REASON_PROPERTY, _plain(reason)[:REASON_CHARS_MAX])]
        if places is not None:
            found.append((ORIGIN_PROPERTY, "{}@{}:{}:{}".format(*next(places))))
        pairs.append(found)
    columns["properties"] = pa.array(pairs, pa.map_(pa.string(), pa.string()))
    return pa.RecordBatch.from_pydict(columns)


def _read_pairs(properties: Any) -> list[tuple[str, str]]:
    """Returns the properties of a row, which are stored as a map or as text."""
    found = (
        decode_properties(properties.encode()).items() if isinstance(properties, str) else properties or ()
    )
    return [(name, value) for name, value in found if name not in (REASON_PROPERTY, ORIGIN_PROPERTY)]


def _plain(text: str) -> str:
    """Replaces the bytes that end names and values of properties."""
    return text.replace("\x01", " ").replace("\x02", " ")
