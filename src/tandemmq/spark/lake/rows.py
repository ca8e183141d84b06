"""The rows of a lake of any kind as a DataFrame: good rows and bad records.

The columns are the union of all files' columns, null where a file lacks one; `badReason` is null for a good
row. Columns that are directories (`dt`, `tags`) are text, as they were written.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandemmq.spark.lake.home import Lake, LakeFormat
from tandemmq.spark.lake.view import LakePiece, LakeView

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
"""The expressions of partition columns; bad records have no partition directories."""

_settings = threading.Lock()


def read_rows(
    spark: SparkSession, view: LakeView, pieces: Sequence[LakePiece] | None = None
) -> DataFrame | None:
    """Returns the rows of some pieces, by default of all; None if they have no files."""
    chosen = view.pieces if pieces is None else pieces
    good = _read(spark, view.lake, [place for piece in chosen for place in piece.places])
    if good is not None and view.partitions:
        good = _add_partitions(spark, good, view)
    bad = _read(spark, view.lake.bad_records, [place for piece in chosen for place in piece.bad_places])
    if good is not None and bad is not None:
        for name, expression in _DERIVED.items():
            if name in good.columns and name not in bad.columns and "storeTimestamp" in bad.columns:
                bad = bad.selectExpr("*", f"{expression} AS {name}")
        return good.unionByName(bad, allowMissingColumns=True)
    return bad if good is None else good


def _read(spark: SparkSession, lake: Lake, places: Sequence[Path | str]) -> DataFrame | None:
    if not places:
        return None
    reader = spark.read.option("mergeSchema", "true")
    if lake.kind is LakeFormat.PARQUET:
        reader = reader.option("basePath", str(lake.root))
    with _texts_in_directories(spark):
        # Hadoop knows S3 only by this scheme.
        return reader.parquet(*(re.sub("^s3://", "s3a://", str(place)) for place in places))


def _add_partitions(spark: SparkSession, frame: DataFrame, view: LakeView) -> DataFrame:
    """Adds the columns of a Delta table that are stored in its log instead of its files."""
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
    """Disables type inference for directory names: Spark would read the tag `007` as a number."""
    with _settings:
        before = spark.conf.get(_INFERENCE)
        spark.conf.set(_INFERENCE, "false")
        try:
            yield
        finally:
            spark.conf.set(_INFERENCE, before)
