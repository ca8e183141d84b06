"""The rows of a lake as a DataFrame, whatever kind of lake it is: those that fit, and those kept apart.

Columns are those of any file, null where a file has not got one; `badReason` is null for a row that fits.
Columns that are directories (`dt`, `tags`) are text, as they were written.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandemmq.spark.lake.files import BAD_RECORDS_DIR
from tandemmq.spark.lake.formats import LakeFormat
from tandemmq.spark.lake.view import LakeView, Piece

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_INFERENCE = "spark.sql.sources.partitionColumnTypeInference.enabled"
_FILE_NAME = "_tandemmq_file"
_DAY_S = 24 * 3600
_DAY = f"cast(floor(unix_seconds(storeTimestamp) / {_DAY_S}) AS int)"
_DERIVED = {
    "dt": f"cast(date_add(date'1970-01-01', {_DAY}) AS string)",
    "hour": f"lpad(cast(floor(pmod(unix_seconds(storeTimestamp), {_DAY_S}) / 3600) AS string), 2, '0')",
}
"""What partition columns are made of; bad records have no directories."""

_settings = threading.Lock()


def read_rows(spark: SparkSession, view: LakeView, pieces: Sequence[Piece] | None = None) -> DataFrame | None:
    """The rows of some pieces, of all by default; None when they have no files."""
    chosen = view.pieces if pieces is None else pieces
    good = _read(spark, view.root, view, [place for piece in chosen for place in piece.places])
    bad = _read(spark, view.root / BAD_RECORDS_DIR, None, [p for piece in chosen for p in piece.bad_places])
    if good is not None and bad is not None:
        for name, expression in _DERIVED.items():
            if name in good.columns and name not in bad.columns and "storeTimestamp" in bad.columns:
                bad = bad.selectExpr("*", f"{expression} AS {name}")
    found = [frame for frame in (good, bad) if frame is not None]
    return reduce(_unite, found) if found else None


def _unite(one: DataFrame, other: DataFrame) -> DataFrame:
    return one.unionByName(other, allowMissingColumns=True)


def _read(
    spark: SparkSession, root: Path, view: LakeView | None, places: Sequence[Path | str]
) -> DataFrame | None:
    """What the places hold. `view`: of the lake itself, None for plain files."""
    if not places:
        return None
    kind = LakeFormat.PARQUET if view is None else view.kind
    reader = spark.read.option("mergeSchema", "true")
    if kind is LakeFormat.PARQUET:
        reader = reader.option("basePath", str(root))
    with _texts_in_directories(spark):
        # Hadoop knows S3 by this scheme only.
        frame = reader.parquet(*(re.sub("^s3://", "s3a://", str(place)) for place in places))
    if view is None or not view.partitions:
        return frame
    return _add_partitions(spark, frame, view)


def _add_partitions(spark: SparkSession, frame: DataFrame, view: LakeView) -> DataFrame:
    """Adds the columns of a Delta table that its log holds instead of its files."""
    from pyspark.sql import functions as f

    names = list(next(iter(view.partitions.values())))
    if not names:
        return frame
    rows = [(file, *(values[name] for name in names)) for file, values in view.partitions.items()]
    ddl = ", ".join(f"`{name}` string" for name in (_FILE_NAME, *names))
    table = f.broadcast(spark.createDataFrame(rows, ddl))
    named = frame.select("*", f.col("_metadata.file_name").alias(_FILE_NAME))
    return named.join(table, on=_FILE_NAME).drop(_FILE_NAME)


@contextmanager
def _texts_in_directories(spark: Any) -> Iterator[None]:
    """Spark would read the tag `007` as a number."""
    with _settings:
        before = spark.conf.get(_INFERENCE)
        spark.conf.set(_INFERENCE, "false")
        try:
            yield
        finally:
            spark.conf.set(_INFERENCE, before)
