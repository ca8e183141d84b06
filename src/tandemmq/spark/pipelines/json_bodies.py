"""Bodies as JSON: which schema they are read with, and why one does not fit.

Spark parses; it only says that a body is bad. The reason is found here afterwards, for the bad ones only.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tandemmq.errors import ConfigError
from tandemmq.spark.lake.files import batch_dir, list_batches
from tandemmq.spark.pipelines.exhibits import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

INFER = "infer"
SAMPLE_ROWS = 2_000
REASONS_MAX = 10_000
REASONS_SHOWN = 50
JSON_COLUMN = "json"
BAD_COLUMN = "badReason"
"""Why the body is bad, null for a good one; the sink keeps such rows apart."""

SCHEMA_FILE = "json-schema.json"
_CORRUPT = "_tandemmq_corrupt"
_OF_STREAMS = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "startingOffsets", "group", "commitProgress")
_WHOLE = ("byte", "short", "integer", "long")


def choose_schema(spark: SparkSession, text: str, control: Path, source: Mapping[str, str]) -> StructType:
    """The schema of the bodies; written down on the first run, and the same one ever after.

    Raises:  ConfigError for a text that is no schema, for another one than before, or a topic without
             messages to infer from.
    """
    path = control / SCHEMA_FILE
    kept = parse_schema(path.read_text()) if path.exists() else None
    if text == INFER:
        chosen = kept or infer_schema(spark, source)
    else:
        chosen = parse_schema(text)
        if kept is not None and kept != chosen:
            raise ConfigError(
                f"the lake was begun with the JSON schema {kept.simpleString()}; land with another one into "
                "another directory"
            )
    if kept is None:
        control.mkdir(parents=True, exist_ok=True)
        path.write_text(chosen.json() + "\n")
    return chosen


def parse_schema(text: str) -> StructType:
    """A schema in Spark's JSON form or DDL (`id bigint, name string`).

    Raises:  ConfigError.
    """
    from pyspark.sql.types import StructType

    try:
        if text.lstrip().startswith("{"):
            return StructType.fromJson(json.loads(text))
        return StructType.fromDDL(text)
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(f"the JSON schema {text[:80]!r} cannot be read: {first}") from error


def infer_schema(spark: SparkSession, source: Mapping[str, str]) -> StructType:
    """What fits the first messages of the topic that are JSON objects.

    Raises:  ConfigError when there are none.
    """
    own = {key: value for key, value in source.items() if key not in _OF_STREAMS}
    frame = spark.read.format("tandemmq").options(**own, columns="body").load().limit(SAMPLE_ROWS)
    texts = [text for row in frame.collect() if (text := _as_object(row.body)) is not None]
    if not texts:
        raise ConfigError("no JSON objects in the topic to infer a schema from; give one with --json-schema")
    return spark.read.json(spark.sparkContext.parallelize(texts)).schema


def parse_bodies(frame: DataFrame, schema: StructType) -> DataFrame:
    """`frame` with the columns `json` and `badReason`."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructType

    read = StructType([*schema.fields]).add(_CORRUPT, StringType())
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    parsed = f.from_json(f.col("body").cast("string"), read, options)
    is_bad = f.col("parsed").isNull() | f.col(f"parsed.{_CORRUPT}").isNotNull()
    explain = f.arrow_udf(_explainer(schema), "string")
    bad_body = f.when(is_bad, f.coalesce(f.col("body").cast("binary"), f.lit(b"")))
    return (
        frame.withColumn("parsed", parsed)
        .withColumn(JSON_COLUMN, f.when(~is_bad, f.col("parsed").dropFields(_CORRUPT)))
        .withColumn(BAD_COLUMN, explain(bad_body))
        .drop("parsed")
    )


def _explainer(schema: StructType) -> Any:
    """Reasons for a column of bodies that is null where the body is good."""

    def explain(bodies: pa.Array) -> pa.Array:
        if bodies.null_count == len(bodies):
            return pa.nulls(len(bodies), pa.string())
        reasons = [None if body is None else explain_body(body, schema) for body in bodies.to_pylist()]
        return pa.array(reasons, pa.string())

    return explain


def explain_body(body: bytes | str | None, schema: StructType) -> str:
    """Why the body is no JSON of that schema, in words."""
    try:
        text = body.decode() if isinstance(body, (bytes, bytearray)) else body or ""
    except UnicodeDecodeError as error:
        return f"not UTF-8: byte {error.object[error.start]:#04x} at {error.start}"
    if not text.strip():
        return "empty"
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"no JSON: {error}"
    return _explain(value, schema, "") or "does not fit the schema"


def _explain(value: Any, wanted: Any, place: str) -> str:
    """The first part of `value` that is not of the wanted type; empty when none is found."""
    name = wanted.typeName()
    if value is None:
        return ""
    if name == "struct":
        if not isinstance(value, dict):
            return _mismatch(value, "an object", place)
        parts = ((value.get(f.name), f.dataType, f"{place}.{f.name}".lstrip(".")) for f in wanted.fields)
        return next((found for part in parts if (found := _explain(*part))), "")
    if name == "array":
        if not isinstance(value, list):
            return _mismatch(value, "an array", place)
        parts = ((item, wanted.elementType, f"{place}[{n}]") for n, item in enumerate(value))
        return next((found for part in parts if (found := _explain(*part))), "")
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if name in _WHOLE and not (is_number and float(value).is_integer()):
        return _mismatch(value, f"a whole number ({wanted.simpleString()})", place)
    if (name in ("float", "double") or name.startswith("decimal")) and not is_number:
        return _mismatch(value, f"a number ({wanted.simpleString()})", place)
    if name == "boolean" and not isinstance(value, bool):
        return _mismatch(value, "true or false", place)
    if name in ("timestamp", "date", "timestamp_ntz") and not isinstance(value, str):
        return _mismatch(value, f"a {name} as text", place)
    return ""


def _mismatch(value: Any, wanted: str, place: str) -> str:
    shown = json.dumps(value, ensure_ascii=False)
    shown = shown if len(shown) <= 60 else shown[:59] + "…"
    return f"{place or 'the body'}: expected {wanted}, got {shown}"


def _as_object(body: bytes | None) -> str | None:
    """The text of a body that is a JSON object."""
    try:
        text = (body or b"").decode()
        return text if isinstance(json.loads(text), dict) else None
    except ValueError:
        return None


def show_bad_records(root: Path) -> Table:
    """The reasons of the rows that a lake keeps apart, the commonest first."""
    import pyarrow.parquet as pq

    counts: Counter[str] = Counter()
    for batch in list_batches(root):
        for path in sorted(batch_dir(root, batch).glob("*.parquet")):
            counts.update(pq.ParquetFile(path).read(columns=[BAD_COLUMN]).column(BAD_COLUMN).to_pylist())
            if len(counts) > REASONS_MAX:
                counts = Counter(dict(counts.most_common(REASONS_MAX // 2)))
    rows = tuple((count, reason) for reason, count in counts.most_common(REASONS_SHOWN))
    return Table(title="Bad records", columns=("bodies", "reason"), rows=rows, note=f"kept in {root}")
