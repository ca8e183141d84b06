"""JSON bodies that are not quite what the schema says: what is left of them is read, the rest is rescued.

Unknown names, and values that are not of the wanted type, go into the column `jsonRescue`, as one JSON object
with the same nesting; the other values are read as always. With `grow` what was rescued decides how the
schema grows: unknown names become fields, as Spark infers their types. It infers no times, and all its other
types are judged here, so a body that was no bad record before is none with a schema that has grown: a batch
that is repeated after a kill is split into good and bad rows as it was before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tandemmq.spark.lake.files import batch_dir
from tandemmq.spark.lake.home import DataFiles, find_files
from tandemmq.spark.pipelines.json_bodies import choose_spellings, find_misfits, list_parts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

RESCUE_COLUMN = "jsonRescue"
GROW_SAMPLE = 2_000
"""So many rescued values of a batch are looked at."""

_ENCODER = msgspec.json.Encoder(decimal_format="number")
_NOTHING = object()


def add_rescue(frame: DataFrame, schema: StructType) -> DataFrame:
    """`frame` with the columns `text`, the body as far as it fits, and `jsonRescue`."""
    from pyspark.sql import functions as f

    split = f.arrow_udf(_splitter(schema), "struct<text: string, rescue: string>")
    body = f.col("body").cast("binary")
    return (
        frame.withColumn("split", split(body))
        .withColumn("text", f.coalesce(f.col("split.text"), f.col("body").cast("string")))
        .withColumn(RESCUE_COLUMN, f.col("split.rescue"))
        .drop("split")
    )


def _splitter(schema: StructType) -> Any:
    kind = pa.struct([("text", pa.string()), ("rescue", pa.string())])

    def split(bodies: pa.Array) -> pa.Array:
        rows = [split_body(body, schema) for body in bodies.to_pylist()]
        return pa.array([{"text": text, "rescue": rescue} for text, rescue in rows], kind)

    return split


def split_body(body: bytes | None, schema: StructType) -> tuple[str | None, str | None]:
    """What fits, None where that is the body as it is, and what does not, None where there is nothing."""
    try:
        value = json.loads((body or b"").decode(), parse_float=Decimal)
    except (ValueError, RecursionError):
        return None, None
    if not isinstance(value, dict):
        return None, None
    fits, rest = _split(value, schema)
    if rest is _NOTHING:
        return None, None
    return _ENCODER.encode(fits).decode(), _ENCODER.encode(rest).decode()


def _split(value: Any, wanted: Any) -> tuple[Any, Any]:
    """The part of a value that is of the wanted type, and the other one; either may be `_NOTHING`."""
    parts = list_parts(value, wanted, "")
    if value is None or parts is None:
        is_fit = value is None or next(find_misfits(value, wanted, ""), None) is None
        return (value, _NOTHING) if is_fit else (_NOTHING, value)
    if isinstance(value, list):
        pairs = [_split(item, kind) for item, kind, _ in parts]
        fits = [None if fit is _NOTHING else fit for fit, _ in pairs]
        if all(rest is _NOTHING for _, rest in pairs):
            return fits, _NOTHING
        return fits, [None if rest is _NOTHING else rest for _, rest in pairs]
    types = _types(value, wanted)
    fits_of: dict[str, Any] = {}
    rest_of: dict[str, Any] = {}
    for name, inner in value.items():
        fit, rest = _split(inner, types[name]) if name in types else (_NOTHING, inner)
        if fit is not _NOTHING:
            fits_of[name] = fit
        if rest is not _NOTHING:
            rest_of[name] = rest
    return fits_of, rest_of or _NOTHING


def _types(value: dict[str, Any], wanted: Any) -> dict[str, Any]:
    if wanted.typeName() == "map":
        return dict.fromkeys(value, wanted.valueType)
    return {field.name: field.dataType for field in wanted.fields}


def read_rescued(out: Path, batch_id: int) -> list[str]:
    """What a batch rescued, in a lake of any kind."""
    home, lake = find_files(out), DataFiles(str(out.absolute()))
    prefix = f"{batch_id:08d}-"
    tables = [name for name in home.list_parquet() if name.rpartition("/")[2].startswith(prefix)]
    plain = lake.list_parquet(batch_dir(out, batch_id).name)
    return list(islice(chain(_read_texts(lake, plain), _read_texts(home, tables)), GROW_SAMPLE))


def _read_texts(files: DataFiles, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        with pq.ParquetFile(files.path(name), filesystem=files.system) as file:
            if RESCUE_COLUMN in file.schema_arrow.names:
                for batch in file.iter_batches(columns=[RESCUE_COLUMN]):
                    yield from batch.column(0).drop_null().to_pylist()


def grow_schema(spark: SparkSession, schema: StructType, rescued: Sequence[str]) -> StructType:
    """The schema with the names that were rescued; the same one when those were all known."""
    objects, _ = choose_spellings([json.loads(text) for text in rescued])
    if not objects:
        return schema
    texts = [json.dumps(value) for value in objects]
    return merge_schemas(schema, spark.read.json(spark.sparkContext.parallelize(texts)).schema)


def merge_schemas(known: Any, found: Any) -> Any:
    """`known`, with the fields of `found` that it has not got; a known field keeps its type.

    A name that differs from a known one in case only is left out.
    """
    from pyspark.sql.types import ArrayType, StructField, StructType

    names = (known.typeName(), found.typeName())
    if names == ("array", "array"):
        return ArrayType(merge_schemas(known.elementType, found.elementType), known.containsNull)
    if names != ("struct", "struct"):
        return known
    there = {field.name: field.dataType for field in found.fields}
    fields = [
        StructField(
            field.name,
            merge_schemas(field.dataType, there[field.name]) if field.name in there else field.dataType,
            field.nullable,
            field.metadata,
        )
        for field in known.fields
    ]
    lower = {field.name.lower() for field in known.fields}
    return StructType([*fields, *(field for field in found.fields if field.name.lower() not in lower)])
