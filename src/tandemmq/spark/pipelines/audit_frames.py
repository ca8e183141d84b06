"""The data that an audit compares: digests of the sides and their comparison, and the sides as DataFrames
(`Frames`), from which Spark computes the digests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tandemmq.errors import ConfigError
from tandemmq.spark.columns import COLUMN_TYPES, PLACE
from tandemmq.spark.lake.rows import read_rows
from tandemmq.spark.lake.view import view_lake
from tandemmq.spark.offsets import QueueKey, nest_positions
from tandemmq.spark.pipelines.options import AuditOptions

# Digests: a summary of one range of a queue on one side, and the comparison of two sides. Pure.
#
# A digest does not depend on the order in which rows were read: it contains counts, and the exclusive-or and
# sum of a hash per row. Equal digests mean equal rows (two independent sums of 64 and 32 bits would have to
# collide); unequal digests give the range for the row-by-row search.

Ranges = Mapping[QueueKey, tuple[int, int]]
"""The compared queue offsets `[begin, end)` by queue."""


class PieceKey(NamedTuple):
    """The queue offsets `[number * size, (number + 1) * size)` of one queue; the audit fixes `size`."""

    queue: QueueKey
    number: int


class RangePart(NamedTuple):
    """The offsets `[begin, end)` of a piece that are in the audited range."""

    key: PieceKey
    begin: int
    end: int


class Digest(NamedTuple):
    """The digest of one side's rows in one piece. `offset_xor` covers only hashes of the queue offsets."""

    rows: int
    offset_xor: int
    content_xor: int
    content_sum: int
    offset_max: int
    stored_at_ms: int


Digests = Mapping[PieceKey, Digest]


class Expected(NamedTuple):
    """The digest values of a piece without gaps and repeats, which do not depend on the messages."""

    rows: int
    offset_xor: int


class Shortfall(NamedTuple):
    """The end of a queue that a side lacks: `messages` of them, from the offset `reached` on."""

    queue: QueueKey
    reached: int
    messages: int
    seconds: float


class Comparison(NamedTuple):
    """The result of a comparison. `suspects`: pieces to compare row by row, in order; `surplus`: rows beyond
    one per offset.
    """

    suspects: tuple[RangePart, ...]
    behind: tuple[Shortfall, ...]
    missing: int
    surplus: int

    @property
    def is_equal(self) -> bool:
        return not self.suspects and not self.behind


def compare(
    reference: Digests,
    side: Digests,
    parts: Sequence[RangePart],
    expected: Mapping[PieceKey, Expected],
    ranges: Ranges,
) -> Comparison:
    """Compares `side` with the reference; for the reference itself, finds gaps and repeats."""
    reached = find_ends(side, ranges)
    suspects = []
    missing = surplus = 0
    for part in parts:
        key, wanted = part.key, expected[part.key]
        found = side.get(key)
        rows = found.rows if found is not None else 0
        missing += max(wanted.rows - rows, 0)
        surplus += max(rows - wanted.rows, 0)
        end = min(part.end, reached[key.queue])
        if part.begin >= end:
            continue
        is_whole = found is not None and (found.rows, found.offset_xor) == wanted
        if not is_whole or not _is_same(reference.get(key), found):
            suspects.append(RangePart(key, part.begin, end))
    behind = find_behind(reference, side, ranges, reached)
    return Comparison(suspects=tuple(suspects), behind=behind, missing=missing, surplus=surplus)


def find_ends(side: Digests, ranges: Ranges) -> dict[QueueKey, int]:
    """Returns the offset after the last message that the side has of each queue; the queue's begin if it has
    none.
    """
    reached = {queue: begin for queue, (begin, _) in ranges.items()}
    for key, digest in side.items():
        if key.queue in reached:
            reached[key.queue] = max(reached[key.queue], digest.offset_max + 1)
    return reached


def find_behind(
    reference: Digests, side: Digests, ranges: Ranges, reached: Mapping[QueueKey, int]
) -> tuple[Shortfall, ...]:
    """Returns the queues whose end the side has not reached, with the missing messages and seconds of store
    time.
    """
    found = []
    newest, own = _newest(reference), _newest(side)
    for queue, (_, end) in sorted(ranges.items()):
        at = reached[queue]
        if at >= end:
            continue
        last_ms = newest.get(queue, 0)
        seconds = max(last_ms - own.get(queue, last_ms), 0) / 1000
        found.append(Shortfall(queue=queue, reached=at, messages=end - at, seconds=seconds))
    return tuple(found)


def cut_parts(ranges: Ranges, piece_size: int) -> list[RangePart]:
    """Returns the pieces that contain offsets of the ranges, in order."""
    return [
        RangePart(PieceKey(queue, n), max(begin, n * piece_size), min(end, (n + 1) * piece_size))
        for queue, (begin, end) in sorted(ranges.items())
        if begin < end
        for n in range(begin // piece_size, (end - 1) // piece_size + 1)
    ]


def _newest(digests: Digests) -> dict[QueueKey, int]:
    newest: dict[QueueKey, int] = {}
    for key, digest in digests.items():
        newest[key.queue] = max(newest.get(key.queue, 0), digest.stored_at_ms)
    return newest


def _is_same(one: Digest | None, other: Digest | None) -> bool:
    if one is None or other is None:
        return one is other
    return (one.rows, one.content_xor, one.content_sum) == (other.rows, other.content_xor, other.content_sum)


# The sides as DataFrames, and the queries on them.
#
# Every side is converted to one form: the four columns that identify a message, and those of COMPARED that
# all sides have. Each side is read with the lake's column types, so text is compared with text.

COMPARED = (
    "body",
    "properties",
    "tags",
    "keys",
    "msgId",
    "flag",
    "sysFlag",
    "bornTimestamp",
    "storeTimestamp",
    "physicalOffset",
    "reconsumeTimes",
)
_DERIVED = ("tags", "keys", "msgId")
"""Columns derived from `properties`, compared only if a side lacks `properties`."""

ROWS_PER_TASK = 200_000


class Side(NamedTuple):
    """One copy of the topics: a replica of the cluster, a lake, or the files of a store."""

    name: str
    replica: int | None = None
    lake: Path | None = None
    store: Path | None = None
    broker: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The compared columns, and the Spark type of each column."""

    compared: tuple[str, ...]
    types: Mapping[str, str]

    def schema(self) -> str:
        return ", ".join(f"`{name}` {self.types[name]}" for name in (*PLACE, *self.read_columns()))

    def read_columns(self) -> tuple[str, ...]:
        """Returns the columns to read besides those of PLACE; the store time and message id are always read,
        for the reports.
        """
        extra = [name for name in ("storeTimestamp", "msgId") if name not in self.compared]
        return (*self.compared, *extra)


def choose_form(spark: SparkSession, lakes: Sequence[Path]) -> Form:
    """Returns the columns by which all sides can be compared: all columns, or those that the lakes have.

    Raises:  ConfigError for a lake whose columns do not identify its messages.
    """
    types = {name: kinds[0] for name, kinds in COLUMN_TYPES.items()}
    compared = [name for name in COMPARED if name not in _DERIVED]
    for lake in lakes:
        schema = read_lake(spark, lake).schema
        fields = {f.name: f.dataType.simpleString() for f in schema.fields}
        absent = [name for name in (*PLACE, "storeTimestamp") if name not in fields]
        if absent:
            raise ConfigError(f"the lake {lake} has no column {absent[0]}: so its rows cannot be identified")
        if "properties" not in fields and "properties" in compared:
            compared = [name for name in COMPARED if name != "properties"]
        compared = [name for name in compared if fields.get(name) in COLUMN_TYPES[name]]
        types |= {name: fields[name] for name in compared}
    return Form(compared=tuple(compared), types=types)


def read_lake(spark: SparkSession, lake: Path) -> DataFrame:
    """Returns all current messages of a lake, including its bad records.

    Raises:  ConfigError for a lake without messages.
    """
    frame = read_rows(spark, view_lake(lake))
    if frame is None:
        raise ConfigError(f"{lake} holds no messages")
    return frame


@dataclass(slots=True)
class Frames:
    """Reads the sides as DataFrames, bounded by `ranges` in each queue."""

    spark: SparkSession
    form: Form
    options: AuditOptions
    lakes: dict[Path, DataFrame] = field(default_factory=dict)
    """One view per lake, so that all queries see the same rows."""

    def read(self, side: Side, ranges: Ranges) -> DataFrame:
        """Returns the rows of one side within `ranges`."""
        bounds = [(*queue, begin, end) for queue, (begin, end) in sorted(ranges.items())]
        return self._within(self._load(side, ranges), bounds)

    def read_parts(self, side: Side, parts: Sequence[RangePart]) -> DataFrame:
        """Returns the rows of one side within some parts of its queues."""
        hull: dict[QueueKey, tuple[int, int]] = {}
        for part in parts:
            begin, end = hull.get(part.key.queue, (part.begin, part.end))
            hull[part.key.queue] = (min(begin, part.begin), max(end, part.end))
        bounds = [(*part.key.queue, part.begin, part.end) for part in parts]
        return self._within(self._load(side, hull), bounds)

    def find_ranges(self, side: Side) -> dict[QueueKey, tuple[int, int]]:
        """Returns the first offset and the end of each queue, from the rows of a lake or a store."""
        ends = (f.min("queueOffset").alias("first"), f.max("queueOffset").alias("last"))
        rows = self._load(side, {}).groupBy(*PLACE[:3]).agg(*ends).collect()
        return {_queue(row): (row["first"], row["last"] + 1) for row in rows}

    def digest(self, frame: DataFrame, piece_size: int) -> dict[PieceKey, Digest]:
        """Returns the digest of every piece that has rows."""
        content = f.xxhash64("queueOffset", *self._comparable())
        hashed = frame.select(
            *PLACE[:3],
            (f.floor(f.col("queueOffset") / piece_size)).alias("piece"),
            "queueOffset",
            f.xxhash64("queueOffset").alias("place"),
            content.alias("content"),
            "storeTimestamp",
        )
        grouped = hashed.groupBy(*PLACE[:3], "piece").agg(
            f.count("*").alias("rows"),
            f.expr("bit_xor(place)").alias("offset_xor"),
            f.expr("bit_xor(content)").alias("content_xor"),
            f.expr("sum(content & 4294967295L)").alias("content_sum"),
            f.max("queueOffset").alias("offset_max"),
            f.expr("unix_millis(max(storeTimestamp))").alias("stored_at_ms"),
        )
        return {PieceKey(_queue(row), int(row.piece)): _digest(row) for row in grouped.collect()}

    def expect(self, parts: Sequence[RangePart]) -> dict[PieceKey, Expected]:
        """Returns the digest values of pieces without gaps and repeats, computed from the offsets alone."""
        rows = [(index, part.begin, part.end - 1) for index, part in enumerate(parts)]
        if not rows:
            return {}
        found = (
            self.spark.createDataFrame(rows, "part int, first bigint, last bigint")
            .select("part", f.explode(f.sequence("first", "last")).alias("id"))
            .groupBy("part")
            .agg(f.count("*").alias("rows"), f.expr("bit_xor(xxhash64(id))").alias("offset_xor"))
            .collect()
        )
        return {parts[row.part].key: Expected(rows=row["rows"], offset_xor=row.offset_xor) for row in found}

    def repeated_keys(self, frame: DataFrame) -> tuple[int, int, str]:
        """Returns the number of messages beyond the first of their unique key, the number of such keys, and
        one of them.
        """
        groups = frame.groupBy("msgId").count().where("count > 1")
        row = groups.agg(f.sum(f.col("count") - 1), f.count("*"), f.min("msgId")).first()
        return (row[0] or 0, row[1], row[2] or "")

    def differences(self, reference: DataFrame, side: DataFrame) -> DataFrame:
        """Returns the rows that are not present exactly once and equal on both sides.

        Columns: those of PLACE, `theirs` and `ours` (counts), `columns` (the differing ones), `stored_at_ms`.
        """
        names = self.form.compared

        def fold(frame: DataFrame, prefix: str) -> DataFrame:
            hashes = [
                f.min(f.xxhash64(column)).alias(f"{prefix}_{name}")
                for name, column in zip(names, self._comparable(), strict=True)
            ]
            return frame.groupBy(*PLACE).agg(
                f.count("*").alias(f"{prefix}_count"),
                f.expr("unix_millis(max(storeTimestamp))").alias(f"{prefix}_stored"),
                *hashes,
            )

        joined = fold(reference, "r").join(fold(side, "s"), on=list(PLACE), how="full")
        columns = f.filter(
            f.array(*[f.when(f.expr(f"NOT r_{n} <=> s_{n}"), f.lit(n)) for n in names]),
            lambda name: name.isNotNull(),
        )
        is_both = f.expr("r_count IS NOT NULL AND s_count IS NOT NULL")
        return joined.select(
            *PLACE,
            f.coalesce("r_count", f.lit(0)).alias("theirs"),
            f.coalesce("s_count", f.lit(0)).alias("ours"),
            f.when(is_both, columns).otherwise(f.array().cast("array<string>")).alias("columns"),
            f.coalesce("r_stored", "s_stored").alias("stored_at_ms"),
        ).where("theirs != 1 OR ours != 1 OR size(columns) > 0")

    def _comparable(self) -> list[Any]:
        """Returns the compared columns in hashable form: Spark does not hash maps."""
        is_map = self.form.types["properties"].startswith("map")
        return [
            f.array_sort(f.map_entries(name)) if name == "properties" and is_map else f.col(name)
            for name in self.form.compared
        ]

    def _load(self, side: Side, ranges: Ranges) -> DataFrame:
        columns = (*PLACE, *self.form.read_columns())
        if side.lake is not None:
            if side.lake not in self.lakes:
                self.lakes[side.lake] = read_lake(self.spark, side.lake)
            frame = self.lakes[side.lake]
            for name in set(columns).difference(frame.columns):
                frame = frame.withColumn(name, f.lit(None).cast(self.form.types[name]))
        elif side.store is not None:
            frame = (
                self.spark.read.format("commitlog")
                .schema(f"{self.form.schema()}, damage string")
                .options(topic=",".join(self.options.topics), brokerName=side.broker)
                .load(str(side.store.absolute()))
                .where("queueOffset IS NOT NULL AND body IS NOT NULL")
            )
        else:
            frame = (
                self.spark.read.format("tandemmq")
                .schema(self.form.schema())
                .options(**self._source_options(side, ranges))
                .load()
            )
        return frame.select(*columns).where(frame["topic"].isin(*self.options.topics))

    def _source_options(self, side: Side, ranges: Ranges) -> dict[str, str]:
        return {
            "startingOffsets": json.dumps(nest_positions({q: begin for q, (begin, _) in ranges.items()})),
            "endingOffsets": json.dumps(nest_positions({q: end for q, (_, end) in ranges.items()})),
            # Finding missing messages is the purpose of an audit, so they must not fail the read.
            "failOnDataLoss": "false",
            "maxRecordsPerPartition": str(ROWS_PER_TASK),
            **self.options.source_options(side.replica),
        }

    def _within(self, frame: DataFrame, bounds: Sequence[tuple[str, str, int, int, int]]) -> DataFrame:
        table = self.spark.createDataFrame(
            list(bounds), "topic string, brokerName string, queueId int, begin bigint, end bigint"
        )
        joined = frame.join(f.broadcast(table), on=list(PLACE[:3]))
        return joined.where("queueOffset >= begin AND queueOffset < end").drop("begin", "end")


def _queue(row: Any) -> QueueKey:
    return QueueKey(row["topic"], row["brokerName"], row["queueId"])


def _digest(row: Any) -> Digest:
    return Digest(**{name: row[name] for name in Digest._fields})
