"""Bodies as JSON: the choice of their schema (`JsonBodies`), the reason why one does not fit
(`explain_body`), and the rescue of the parts that do not fit (`add_rescue`).

Spark parses, but reports only that a body is bad. This module then determines the reason, for the bad bodies
only.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import partial
from itertools import accumulate, islice, repeat
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from tandemmq.errors import ConfigError
from tandemmq.spark.documents import replace_file
from tandemmq.spark.lake.data_files import DataFiles
from tandemmq.spark.lake.files import CONTROL_DIR, batch_dir, list_batches
from tandemmq.spark.lake.home import Lake, LakeFormat
from tandemmq.spark.lake.summaries import is_begun
from tandemmq.spark.pipelines.events import Event, Reporter, ReportTable
from tandemmq.spark.pipelines.options import JsonChanges

INFER = "infer"
SAMPLE_ROWS = 2_000
REASONS_MAX = 10_000
REASONS_SHOWN = 50
JSON_COLUMN = "json"
BAD_COLUMN = "badReason"
"""The column with the reason why the body is bad, null for a good one; the sink moves such rows to
`_bad_records`.
"""

SCHEMA_FILE = "json-schema.json"
_CORRUPT = "_tandemmq_corrupt"
"""The field in which Spark puts a body that it cannot parse."""
_OF_STREAMS = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "startingOffsets", "group", "commitProgress")
_MAY_BE_MORE = r"\}\s*\{|[^}\s]\s*\z"
"""A pattern for texts that may contain more than one object; it also matches `}{` inside a string of an
object.
"""

_WHOLE_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_NUMBER_WORDS = ("NaN", "INF", "Infinity", "+INF", "+Infinity", "-INF", "-Infinity")
_TIMES = ("timestamp", "timestamp_ntz", "date")


class JsonSchema(Event, frozen=True, kw_only=True):
    """The schema of the bodies; `left_out`: names that differ from one of its fields only in case."""

    kind = "json_schema"
    is_lasting = True

    fields: tuple[str, ...]
    left_out: tuple[str, ...]

    def render(self) -> str:
        more = f"; not read, as they differ in case only: {', '.join(self.left_out)}" if self.left_out else ""
        return f"JSON bodies are read with {', '.join(self.fields)}{more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonBodies:
    """The reading of bodies as JSON by a landing. `text`: their schema, or `infer`; `out`: the lake, which
    stores the schema; `source`: the options of the topic's source.

    Once anything has been landed with the schema, it changes only by the fields that it grows.
    """

    text: str
    changes: JsonChanges
    out: Path
    source: Mapping[str, str]

    @property
    def _path(self) -> Path:
        return self.out / CONTROL_DIR / SCHEMA_FILE

    def parse(self, frame: DataFrame, reporter: Reporter) -> DataFrame:
        """Returns `frame` as `parse_bodies` does, and reports the schema.

        Raises:  ConfigError for a text that is not a schema, for a schema that differs from the stored one,
                 or a topic without messages from which to infer one.
        """
        is_kept = is_begun(self.out) and self._path.exists()
        kept = parse_schema(self._path.read_text()) if is_kept else None
        if self.text == INFER:
            chosen, left_out = (
                (kept, ()) if kept is not None else infer_schema(frame.sparkSession, self.source)
            )
        else:
            chosen, left_out = parse_schema(self.text), ()
        if kept is not None and self.changes is JsonChanges.GROW and merge_schemas(chosen, kept) == kept:
            chosen = kept
        if kept is not None and kept != chosen:
            raise ConfigError(
                f"the lake was begun with the JSON schema {kept.simpleString()}; land with another one into "
                "another directory"
            )
        if kept is None:
            self._save(chosen)
        reporter.report(JsonSchema(fields=tuple(chosen.fieldNames()), left_out=left_out))
        return parse_bodies(frame, chosen, is_rescued=self.changes is not JsonChanges.KEEP)

    def grow(self, lake: Lake, spark: SparkSession, batch_id: int) -> bool:
        """Extends the schema by the values that a batch rescued; returns True if it changed."""
        known = parse_schema(self._path.read_text())
        grown = grow_schema(spark, known, read_rescued(lake, batch_id))
        if grown != known:
            self._save(grown)
        return bool(grown != known)

    def _save(self, schema: StructType) -> None:
        replace_file(self._path, schema.json() + "\n")


def parse_schema(text: str) -> StructType:
    """Returns a schema from Spark's JSON form or DDL (`id bigint, name string`).

    Raises:  ConfigError for a text that is neither, or with names that differ only in case.
    """
    try:
        if text.lstrip().startswith("{"):
            schema = StructType.fromJson(json.loads(text))
        else:
            schema = StructType.fromDDL(text)
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(f"the JSON schema {text[:80]!r} cannot be read: {first}") from error
    _check_names(schema, "")
    return schema


def _check_names(wanted: Any, place: str) -> None:
    """Raises ConfigError if one object has names that Spark's columns cannot distinguish."""
    if wanted.typeName() == "struct":
        seen: dict[str, str] = {}
        for field in wanted.fields:
            path = f"{place}.{field.name}".lstrip(".")
            other = seen.setdefault(field.name.lower(), path)
            if other != path or sum(one.name == field.name for one in wanted.fields) > 1:
                raise ConfigError(
                    f"the JSON schema has {other} and {path}: columns of Spark differ by more than case"
                )
            _check_names(field.dataType, path)
    elif wanted.typeName() == "array":
        _check_names(wanted.elementType, place)
    elif wanted.typeName() == "map":
        _check_names(wanted.valueType, place)


def infer_schema(spark: SparkSession, source: Mapping[str, str]) -> tuple[StructType, tuple[str, ...]]:
    """Returns a schema that fits the first JSON objects of the topic, and the names that it leaves out.

    Raises:  ConfigError if there are no such messages.
    """
    own = {key: value for key, value in source.items() if key not in _OF_STREAMS}
    # A sample needs neither all topics nor all messages.
    own = {**own, "columns": "body", "failOnDataLoss": "false"}
    frame = spark.read.format("tandemmq").options(**own).load().limit(SAMPLE_ROWS)
    found = [value for row in frame.collect() if (value := parse_object(row.body)) is not None]
    if not found:
        raise ConfigError("no JSON objects in the topic to infer a schema from; give one with --json-schema")
    objects, left_out = choose_spellings(found)
    texts = [json.dumps(value) for value in objects]
    return spark.read.json(spark.sparkContext.parallelize(texts)).schema, left_out


Place = tuple[str, ...]
"""Lower-case names from the body inwards; the items of an array have the array's own path."""


def choose_spellings(objects: Sequence[Any]) -> tuple[list[Any], tuple[str, ...]]:
    """Returns the objects with one spelling of each name, and the spellings that were left out.

    Of names that differ only in case, the most common stays, and of equally common ones the first: Spark
    reads names by their exact spelling and cannot hold two that differ only in case.
    """
    counts: dict[Place, Counter[str]] = {}
    for value in objects:
        _count_names(value, (), counts)
    chosen = {place: names.most_common(1)[0][0] for place, names in counts.items()}
    left_out = sorted(
        ".".join((*place[:-1], name))
        for place, names in counts.items()
        for name in names
        if name != chosen[place]
    )
    return [_apply_spellings(value, (), chosen) for value in objects], tuple(left_out)


def _count_names(value: Any, place: Place, counts: dict[Place, Counter[str]]) -> None:
    if isinstance(value, list):
        for item in value:
            _count_names(item, place, counts)
    elif isinstance(value, dict):
        for name, inner in value.items():
            at = (*place, name.lower())
            counts.setdefault(at, Counter())[name] += 1
            _count_names(inner, at, counts)


def _apply_spellings(value: Any, place: Place, chosen: Mapping[Place, str]) -> Any:
    if isinstance(value, list):
        return [_apply_spellings(item, place, chosen) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: _apply_spellings(inner, at, chosen)
        for name, inner in value.items()
        if chosen[at := (*place, name.lower())] == name
    }


def parse_bodies(frame: DataFrame, schema: StructType, *, is_rescued: bool = False) -> DataFrame:
    """Returns `frame` with the columns `json` and `badReason`, and with `jsonRescue` if `is_rescued`."""
    # A field of the bodies may have the name, too.
    taken = {name.lower() for name in schema.fieldNames()}
    corrupt = next(name for name in accumulate(repeat("_"), initial=_CORRUPT) if name not in taken)
    read = StructType([*schema.fields]).add(corrupt, StringType())
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": corrupt}
    if is_rescued:
        # Spark also reads bodies with single quotes. The rescue cannot, and would drop what does not fit.
        options["allowSingleQuotes"] = "false"
    frame = (
        add_rescue(frame, schema) if is_rescued else frame.withColumn("text", f.col("body").cast("string"))
    )
    parsed = f.from_json("text", read, options)
    is_bad = f.col("parsed").isNull() | f.col(f"parsed.{corrupt}").isNotNull()
    explain = f.arrow_udf(_for_each(partial(explain_body, schema=schema), pa.string()), "string")
    look_behind = f.arrow_udf(_for_each(find_more, pa.string()), "string")
    bad_body = f.when(is_bad, f.coalesce(f.col("body").cast("binary"), f.lit(b"")))
    # Spark reads the first object of a body and ignores the text behind it.
    doubtful = f.when(~is_bad & f.col("text").rlike(_MAY_BE_MORE), f.col("text"))
    return (
        frame.withColumn("parsed", parsed)
        .withColumn(BAD_COLUMN, f.coalesce(explain(bad_body), look_behind(doubtful)))
        .withColumn(JSON_COLUMN, f.when(f.col(BAD_COLUMN).isNull(), f.col("parsed").dropFields(corrupt)))
        .drop("parsed", "text")
    )


def _for_each(read: Callable[[Any], Any], kind: Any) -> Callable[[pa.Array], pa.Array]:
    """Returns a function that applies `read` to the values of a column; nulls stay nulls."""

    def apply(values: pa.Array) -> pa.Array:
        if values.null_count == len(values):
            return pa.nulls(len(values), kind)
        return pa.array([None if value is None else read(value) for value in values.to_pylist()], kind)

    return apply


def find_more(text: str | None) -> str | None:
    """Returns the fault of a text with more than one JSON value; None for any other text."""
    if text is None:
        return None
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return f"no JSON: {error}" if error.msg == "Extra data" else None
    except (ValueError, RecursionError):
        pass
    return None


def explain_body(body: bytes | str | None, schema: StructType) -> str:
    """Returns the reason why the body is not JSON of that schema."""
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
    except RecursionError:
        return "no JSON: nested too deeply"
    found = _mismatch(value, "an object", "") if value is None else next(find_misfits(value, schema, ""), "")
    if found:
        return found
    doubtful = ", ".join(_find_texts(value, schema, ""))
    return f"does not fit the schema{f', perhaps in {doubtful}' if doubtful else ''}"


def find_misfits(value: Any, wanted: Any, place: str) -> Iterator[str]:
    """Yields descriptions of the values that are not of the wanted type, as far as this is decidable without
    Spark.
    """
    name = wanted.typeName()
    if value is None:
        return
    if name in ("struct", "array", "map"):
        parts = list_parts(value, wanted, place)
        if parts is None:
            yield _mismatch(value, "an array" if name == "array" else "an object", place)
            return
        for part in parts:
            yield from find_misfits(*part)
    elif name in _WHOLE_BITS:
        bound = 1 << (_WHOLE_BITS[name] - 1)
        if not isinstance(value, int) or isinstance(value, bool):
            yield _mismatch(value, f"a whole number ({wanted.simpleString()})", place)
        elif not -bound <= value < bound:
            yield _mismatch(value, f"a whole number from {-bound} to {bound - 1}", place)
    elif name in ("float", "double"):
        if not is_number(value) and value not in _NUMBER_WORDS:
            yield _mismatch(value, f"a number ({name})", place)
    elif name == "decimal":
        if not _fits_decimal(value, wanted.precision, wanted.scale):
            yield _mismatch(value, f"a number of {wanted.simpleString()}", place)
    elif name == "boolean" and not isinstance(value, bool):
        yield _mismatch(value, "true or false", place)
    elif name in _TIMES and not isinstance(value, str) and not is_number(value):
        yield _mismatch(value, f"a {name} as text", place)


def list_parts(value: Any, wanted: Any, place: str) -> list[tuple[Any, Any, str]] | None:
    """Returns the inner values with their types and paths; None if the value or the type is not such a
    container.
    """
    if wanted.typeName() == "array":
        if not isinstance(value, list):
            return None
        return [(item, wanted.elementType, f"{place}[{n}]") for n, item in enumerate(value)]
    if not isinstance(value, dict) or wanted.typeName() not in ("struct", "map"):
        return None
    if wanted.typeName() == "map":
        return [(item, wanted.valueType, f"{place}.{key}".lstrip(".")) for key, item in value.items()]
    return [(value.get(f.name), f.dataType, f"{place}.{f.name}".lstrip(".")) for f in wanted.fields]


def _find_texts(value: Any, wanted: Any, place: str) -> Iterator[str]:
    """Yields descriptions of the values that only Spark can judge: times, bytes."""
    if value is None:
        return
    if wanted.typeName() in ("struct", "array", "map"):
        for part in list_parts(value, wanted, place) or ():
            yield from _find_texts(*part)
    if wanted.typeName() in (*_TIMES, "binary"):
        yield _mismatch(value, f"a {wanted.typeName()}", place)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)


def _fits_decimal(value: Any, precision: int, scale: int) -> bool:
    try:
        number = Decimal(str(value)) if is_number(value) or isinstance(value, str) else None
    except InvalidOperation:
        return False
    if number is None or not number.is_finite():
        return False
    return abs(number) < Decimal(10) ** (precision - scale)


def _mismatch(value: Any, wanted: str, place: str) -> str:
    shown = json.dumps(value, ensure_ascii=False, default=str)
    shown = shown if len(shown) <= 60 else shown[:59] + "…"
    reason = f"{place or 'the body'}: expected {wanted}, got {shown}"
    # JSON can contain half a surrogate pair, which no column can store.
    return reason.encode("utf-8", "backslashreplace").decode()


def parse_object(body: bytes | str | None) -> dict[str, Any] | None:
    """Returns the body if it is a JSON object that is usable for inferring a schema; of a repeated name the
    last value counts.
    """
    try:
        value = json.loads(body.decode() if isinstance(body, (bytes, bytearray)) else body or "")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and _is_within(value, NESTED_MAX) else None


def _is_within(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(_is_within(item, levels - 1) for item in inner)


def bad_record_charts(root: Path) -> ReportTable:
    """Returns the reasons of the bad records of a lake, the most common first."""
    counts: Counter[str] = Counter()
    for batch in list_batches(root):
        for path in sorted(batch_dir(root, batch).glob("*.parquet")):
            counts.update(pq.ParquetFile(path).read(columns=[BAD_COLUMN]).column(BAD_COLUMN).to_pylist())
            if len(counts) > REASONS_MAX:
                counts = Counter(dict(counts.most_common(REASONS_MAX // 2)))
    rows = tuple((count, reason) for reason, count in counts.most_common(REASONS_SHOWN))
    return ReportTable(title="Bad records", columns=("bodies", "reason"), rows=rows, note=f"kept in {root}")


# Bodies that deviate from the schema: the fitting part is read, the rest is rescued.
#
# Unknown names, and values that are not of the wanted type, go to the column `jsonRescue`, as one JSON object
# with the same nesting; the other values are read as usual. With `grow` the rescued values extend the schema:
# unknown names become fields, with the types that Spark infers. Spark infers no times, and all its other
# types are decidable here. A body that was not a bad record before is therefore not one under the grown
# schema either, so a batch that is repeated after a kill is split into good and bad rows as before.

RESCUE_COLUMN = "jsonRescue"
NESTED_MAX = 100
"""The maximum nesting of values that take part in a schema; reading deeper ones would end in a
RecursionError.
"""

GROW_SAMPLE = 2_000
"""The number of rescued values per batch from which the schema grows."""

_ENCODER = msgspec.json.Encoder(decimal_format="number")
_NOTHING = object()


def add_rescue(frame: DataFrame, schema: StructType) -> DataFrame:
    """Returns `frame` with the columns `text`, the fitting part of the body, and `jsonRescue`."""
    kind = pa.struct([("text", pa.string()), ("rescue", pa.string())])

    def split_row(body: bytes) -> dict[str, str | None]:
        text, rescue = split_body(body, schema)
        return {"text": text, "rescue": rescue}

    split = f.arrow_udf(_for_each(split_row, kind), "struct<text: string, rescue: string>")
    body = f.col("body").cast("binary")
    return (
        frame.withColumn("split", split(body))
        .withColumn("text", f.coalesce(f.col("split.text"), f.col("body").cast("string")))
        .withColumn(RESCUE_COLUMN, f.col("split.rescue"))
        .drop("split")
    )


def split_body(body: bytes | None, schema: StructType) -> tuple[str | None, str | None]:
    """Returns the fitting part, None if it is the unchanged body, and the rest, None if there is none."""
    try:
        # Spark also reads NaN and the like as words; as numbers they would become nulls.
        value = json.loads((body or b"").decode(errors="replace"), parse_float=Decimal, parse_constant=str)
    except (ValueError, RecursionError):
        return None, None
    if not isinstance(value, dict):
        return None, None
    fits, rest = _split(value, schema)
    if rest is _NOTHING:
        return None, None
    return _encode(fits), _encode(rest)


def _encode(value: Any) -> str:
    try:
        return _ENCODER.encode(value).decode()
    except UnicodeEncodeError:
        return _ENCODER.encode(_escape_halves(value)).decode()


def _escape_halves(value: Any) -> Any:
    """Returns the value with texts that contain half a surrogate pair (`\\ud83d` alone) escaped as in the
    input; in a name it becomes U+FFFD.
    """
    if isinstance(value, dict):
        return {_restore_halves(name): _escape_halves(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_escape_halves(item) for item in value]
    if isinstance(value, str) and _restore_halves(value) != value:
        return msgspec.Raw(json.dumps(value).encode())
    return value


def _restore_halves(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _split(value: Any, wanted: Any) -> tuple[Any, Any]:
    """Splits a value into the part of the wanted type and the rest; either may be `_NOTHING`."""
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


def read_rescued(lake: Lake, batch_id: int) -> list[str]:
    """Returns the rescued values of a batch, in a lake of any kind."""
    data, prefix = lake.data, f"{batch_id:08d}-"
    if lake.kind is LakeFormat.PARQUET:
        names = data.list_parquet(batch_dir(lake.root, batch_id).name)
    else:
        names = [name for name in data.list_parquet() if name.rpartition("/")[2].startswith(prefix)]
    return list(islice(_read_texts(data, names), GROW_SAMPLE))


def _read_texts(files: DataFiles, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        with pq.ParquetFile(files.path(name), filesystem=files.system) as file:
            if RESCUE_COLUMN in file.schema_arrow.names:
                for batch in file.iter_batches(columns=[RESCUE_COLUMN]):
                    yield from batch.column(0).drop_null().to_pylist()


def grow_schema(spark: SparkSession, schema: StructType, rescued: Sequence[str]) -> StructType:
    """Returns the schema extended by the rescued names; an equal one if all were known."""
    found = [value for text in rescued if (value := parse_object(text)) is not None]
    objects, _ = choose_spellings(found)
    if not objects:
        return schema
    texts = [json.dumps(value) for value in objects]
    return merge_schemas(schema, spark.read.json(spark.sparkContext.parallelize(texts)).schema)


def merge_schemas(known: Any, found: Any) -> Any:
    """Returns `known` with the fields of `found` that it lacks; a known field keeps its type.

    A name that differs from a known one only in case is left out.
    """
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
