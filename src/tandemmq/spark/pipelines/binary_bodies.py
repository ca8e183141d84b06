"""Bodies in Avro or Protobuf: their Spark struct, and the decoding of one body.

The user supplies the schema. In the wire format of schema registries each body begins with a byte 0 and the
id of its writer's schema. Avro needs that schema, so it is fetched from the registry once per process. A body
that cannot be decoded is a bad record. A registry that does not answer is not the body's fault and fails the
query.
"""

from __future__ import annotations

import base64
import io
import json
import math
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from tandemmq.errors import ConfigError, NoRoute, install_hint
from tandemmq.protocol.schema_header import BodyUnreadable, skip_message_indexes, split_header
from tandemmq.spark.documents import read_document, write_document
from tandemmq.spark.lake.files import CONTROL_DIR
from tandemmq.spark.lake.summaries import is_begun
from tandemmq.spark.pipelines.json_bodies import BAD_COLUMN

RECORD_COLUMN = "record"
FIELDS_FILE = "record-fields.json"
REGISTRY_TIMEOUT_S = 10.0
WRITERS_MAX = 1000
"""The maximum number of cached writer schemas; one more clears the cache."""
UNKNOWN_S = 10.0
"""The time in seconds for which "there is no such schema" is cached, so that garbage bodies do not flood the
registry.
"""

_AVRO = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "fixed": "binary",
    "string": "string",
    "enum": "string",
}
_AVRO_LOGICAL = {
    "date": "date",
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "local-timestamp-millis": "timestamp_ntz",
    "local-timestamp-micros": "timestamp_ntz",
    "uuid": "string",
}
_ARROW = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_UNFIT = (pa.ArrowException, OverflowError, ValueError, TypeError)
_TIMESTAMP = "google.protobuf.Timestamp"


@dataclass(frozen=True)
class AvroReader:
    """Decodes Avro bodies. `schema`: JSON text. `is_framed`: bodies have a registry's header; `registry`: its
    address, if the writers' schemas are to be fetched; without it all writers are assumed to use `schema`.
    """

    schema: str
    is_framed: bool = False
    registry: str = ""
    _writers: dict[int, tuple[Any, float]] = field(default_factory=dict, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return AvroReader, (self.schema, self.is_framed, self.registry)

    @cached_property
    def _parsed(self) -> Any:
        import fastavro

        parsed = fastavro.parse_schema(json.loads(self.schema))
        _parse_defaults(parsed)
        return parsed

    def ddl(self) -> str:
        """Returns the fields of the record as DDL.

        Raises:  ConfigError for an invalid schema, or one that Spark's types cannot represent.
        """
        require_package("fastavro")
        try:
            parsed = self._parsed
        except Exception as error:
            raise ConfigError(f"the Avro schema cannot be read: {error}") from error
        if not isinstance(parsed, dict) or parsed.get("type") != "record":
            raise ConfigError("the Avro schema must be a record")
        return _avro_fields(parsed, (), {})

    def read(self, body: bytes) -> dict[str, Any]:
        """Decodes a body. Raises BodyUnreadable; NoRoute if the registry does not answer."""
        import fastavro

        number, payload = split_header(body) if self.is_framed else (None, body)
        writer = self._parsed if number is None or not self.registry else self._find_writer(number)
        stream = io.BytesIO(payload)
        try:
            value = fastavro.schemaless_reader(stream, writer, self._parsed)
        except Exception as error:
            raise BodyUnreadable(f"no Avro of that schema: {type(error).__name__}: {error}") from error
        left = len(payload) - stream.tell()
        if left:
            raise BodyUnreadable(f"no Avro of that schema: {left} bytes are left behind the record")
        if not isinstance(value, dict):
            raise BodyUnreadable("no Avro record")
        return value

    def _find_writer(self, number: int) -> Any:
        """Returns the schema with that id; a missing schema is cached for a while, too."""
        known = self._writers.get(number)
        if known is None or time.monotonic() > known[1]:
            if len(self._writers) >= WRITERS_MAX:
                self._writers.clear()
            known = self._writers[number] = self._fetch_writer(number)
        if isinstance(known[0], BodyUnreadable):
            raise BodyUnreadable(str(known[0]))
        return known[0]

    def _fetch_writer(self, number: int) -> tuple[Any, float]:
        """Returns the schema, or the reason why there is none, and the time until which the answer is
        valid.
        """
        import fastavro

        try:
            return fastavro.parse_schema(json.loads(fetch_schema(self.registry, number))), math.inf
        except BodyUnreadable as error:
            return error, time.monotonic() + UNKNOWN_S
        except NoRoute:
            raise
        except Exception as error:  # noqa: BLE001  (any error of the schema parser)
            reason = BodyUnreadable(f"schema {number} of the registry is not Avro: {error}")
            return reason, time.monotonic() + UNKNOWN_S


@dataclass(frozen=True)
class ProtobufReader:
    """Decodes Protobuf bodies. `descriptors`: a FileDescriptorSet, as written by `protoc --include_imports
    -o`; `message`: the message's name.
    """

    descriptors: bytes
    message: str
    is_framed: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        return ProtobufReader, (self.descriptors, self.message, self.is_framed)

    @cached_property
    def _class(self) -> Any:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

        files = descriptor_pb2.FileDescriptorSet.FromString(self.descriptors)
        pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            pool.Add(file)
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(self.message))

    def ddl(self) -> str:
        """Returns the fields of the message as DDL.

        Raises:  ConfigError for descriptors without it, or fields that Spark's types cannot represent.
        """
        require_package("google.protobuf")
        try:
            descriptor = self._class.DESCRIPTOR
        except Exception as error:
            raise ConfigError(f"the message {self.message} cannot be found: {error}") from error
        return _message_fields(descriptor, ())

    def read(self, body: bytes) -> dict[str, Any]:
        """Decodes a body. Raises BodyUnreadable."""
        payload = skip_message_indexes(split_header(body)[1]) if self.is_framed else body
        try:
            found = self._class.FromString(payload)
        except Exception as error:
            raise BodyUnreadable(f"no Protobuf of {self.message}: {error}") from error
        return _message_values(found)


BodyReader = AvroReader | ProtobufReader


def make_reader(avro_schema: str, protobuf: str, *, is_framed: bool, registry: str) -> BodyReader | None:
    """Returns the reader that the options of a landing request; None if they request none.

    `protobuf`: FILE:MESSAGE. Raises:  ConfigError for incompatible options, or a missing file.
    """
    if avro_schema and protobuf:
        raise ConfigError("give only one of --json-schema, --avro-schema and --protobuf")
    if avro_schema:
        return AvroReader(avro_schema, is_framed, registry)
    if not protobuf:
        if is_framed:
            raise ConfigError("--registry and --registry-header need --avro-schema or --protobuf")
        return None
    if registry:
        raise ConfigError(
            "--registry is for Avro; for Protobuf --registry-header and its descriptors are enough"
        )
    name, separator, message = protobuf.rpartition(":")
    if not separator:
        raise ConfigError(f"--protobuf: expected FILE:MESSAGE, got {protobuf!r}")
    try:
        return ProtobufReader(Path(name).read_bytes(), message, is_framed)
    except OSError as error:
        raise ConfigError(f"--protobuf: {name}: {error.strerror}") from error


def check_fields(out: Path, reader: BodyReader) -> None:
    """Stores the fields of the records. Once messages have been landed, the fields must stay the same.

    Raises:  ConfigError for an unusable schema, or one that differs from the stored one.
    """
    path = out / CONTROL_DIR / FIELDS_FILE
    fields = {"record": reader.ddl()}
    kept = read_document(path) if is_begun(out) else None
    if kept is not None:
        if kept != fields:
            raise ConfigError(
                f"the lake already has records of the schema {kept['record']}; use another directory for"
                " another schema"
            )
        return
    write_document(path, fields)


def require_package(name: str) -> None:
    """Raises ConfigError with the install command if the package is missing."""
    try:
        is_there = find_spec(name) is not None
    except ModuleNotFoundError:
        is_there = False
    if not is_there:
        raise ConfigError(f"{name} is not installed: {install_hint('spark', 'bodies')}")


def fetch_schema(registry: str, number: int) -> str:
    """Returns the text of a schema.

    Raises:  BodyUnreadable for an id that the registry does not know; NoRoute if it does not answer.
    """
    parts = urlsplit(registry)
    host = parts.netloc.rpartition("@")[2]
    base = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
    request = urllib.request.Request(f"{base}/schemas/ids/{number}")
    if parts.username:
        pair = f"{parts.username}:{parts.password or ''}".encode()
        request.add_header("Authorization", f"Basic {base64.b64encode(pair).decode()}")
    try:
        with urllib.request.urlopen(request, timeout=REGISTRY_TIMEOUT_S) as answer:
            return str(json.load(answer)["schema"])
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 404:
            raise BodyUnreadable(f"the registry has no schema {number}") from error
        raise NoRoute(f"the schema registry {host}: {error}") from error
    except (OSError, ValueError, KeyError) as error:
        raise NoRoute(f"the schema registry {host}: {error}") from error


def parse_records(frame: DataFrame, reader: BodyReader) -> DataFrame:
    """Returns `frame` with the columns `record` and `badReason`.

    Raises:  ConfigError for an unusable schema.
    """
    ddl = reader.ddl()
    outer = StructType.fromDDL(f"{RECORD_COLUMN} struct<{ddl}>, reason string")
    read = f.arrow_udf(_make_read(reader, outer), outer)
    parsed = frame.withColumn("parsed", read(f.col("body").cast("binary")))
    return (
        parsed.withColumn(RECORD_COLUMN, f.col(f"parsed.{RECORD_COLUMN}"))
        .withColumn(BAD_COLUMN, f.col("parsed.reason"))
        .drop("parsed")
    )


def _make_read(reader: BodyReader, outer: Any) -> Callable[[pa.Array], pa.Array]:
    kind = _arrow_type(outer)

    def read(bodies: pa.Array) -> pa.Array:
        rows = [read_body(reader, body, outer[RECORD_COLUMN].dataType) for body in bodies.to_pylist()]
        return make_array(rows, kind)

    return read


def _arrow_type(wanted: Any) -> Any:
    """Returns the Arrow type of a Spark type that a body can have."""
    name = wanted.typeName()
    if name == "struct":
        return pa.struct([(one.name, _arrow_type(one.dataType)) for one in wanted.fields])
    if name == "array":
        return pa.list_(_arrow_type(wanted.elementType))
    if name == "map":
        return pa.map_(_arrow_type(wanted.keyType), _arrow_type(wanted.valueType))
    if name == "decimal":
        return pa.decimal128(wanted.precision, wanted.scale)
    return _ARROW[name]


def make_array(rows: Sequence[dict[str, Any]], kind: Any) -> pa.Array:
    """Returns the rows as Arrow; a row with a value out of a column's range (a time, a decimal) becomes a bad
    one.
    """
    try:
        return pa.array(rows, kind)
    except _UNFIT:
        return pa.array([_check_row(row, kind) for row in rows], kind)


def _check_row(row: dict[str, Any], kind: Any) -> dict[str, Any]:
    try:
        pa.array([row], kind)
    except _UNFIT as error:
        return {RECORD_COLUMN: None, "reason": f"a value does not fit its column: {error}"}
    return row


def read_body(reader: BodyReader, body: bytes | None, wanted: Any) -> dict[str, Any]:
    """Returns the row of a body: the record, or the reason why it cannot be decoded."""
    if not body:
        return {RECORD_COLUMN: None, "reason": "empty"}
    try:
        return {RECORD_COLUMN: _fit(reader.read(body), wanted), "reason": None}
    except BodyUnreadable as error:
        return {RECORD_COLUMN: None, "reason": str(error)}


def _fit(value: Any, wanted: Any) -> Any:
    """Returns a value in the form that Arrow accepts for the type."""
    if value is None:
        return None
    name = wanted.typeName()
    if name == "struct":
        return {field.name: _fit(value.get(field.name), field.dataType) for field in wanted.fields}
    if name == "array":
        return [_fit(item, wanted.elementType) for item in value]
    if name == "map":
        return [(key, _fit(item, wanted.valueType)) for key, item in value.items()]
    return str(value) if name == "string" else value


def _avro_fields(record: Any, outside: tuple[str, ...], named: dict[str, Any]) -> str:
    name = record["name"]
    if name in outside:
        raise ConfigError(f"the Avro record {name} contains itself, which a column cannot")
    named[name] = record
    fields = [
        (one["name"], _avro_type(one["type"], one["name"], (*outside, name), named))
        for one in record["fields"]
    ]
    return ", ".join(f"`{label}`: {kind}" for label, kind in fields)


def _avro_type(kind: Any, place: str, outside: tuple[str, ...], named: dict[str, Any]) -> str:
    """Returns the Spark type of an Avro type."""
    if isinstance(kind, list):
        others = [one for one in kind if one != "null"]
        if len(others) != 1:
            raise ConfigError(
                f"the Avro field {place} is a union of several types, but a column has one type"
            )
        return _avro_type(others[0], place, outside, named)
    if isinstance(kind, str) and kind not in _AVRO:
        if kind not in named:
            raise ConfigError(f"the Avro field {place} is of type {kind}, which columns do not support")
        return _avro_type(named[kind], place, outside, named)
    document = kind if isinstance(kind, dict) else {"type": kind}
    base, logical = document["type"], document.get("logicalType")
    if base in ("enum", "fixed"):
        named[document["name"]] = document
    if base == "record":
        return f"struct<{_avro_fields(document, outside, named)}>"
    if base == "array":
        return f"array<{_avro_type(document['items'], place, outside, named)}>"
    if base == "map":
        return f"map<string, {_avro_type(document['values'], place, outside, named)}>"
    if logical == "decimal":
        return f"decimal({document['precision']}, {document.get('scale', 0)})"
    if logical in ("time-millis", "time-micros", "duration"):
        raise ConfigError(f"the Avro field {place} is a {logical}, which columns do not support")
    if logical in _AVRO_LOGICAL:
        return _AVRO_LOGICAL[logical]
    return _AVRO[base] if base in _AVRO else _avro_type(base, place, outside, named)


def _parse_defaults(kind: Any) -> None:
    """Converts the defaults of a parsed schema to the values that decoding would produce: times and decimals
    instead of numbers and texts.

    For fields that a writer did not know, `fastavro` returns the default as it is in the schema.
    """
    if isinstance(kind, list):
        for one in kind:
            _parse_defaults(one)
    if not isinstance(kind, dict):
        return
    for inner in (kind.get("items"), kind.get("values"), kind["type"]):
        _parse_defaults(inner)
    for one in kind.get("fields", ()):
        _parse_defaults(one["type"])
        # The default of a union belongs to its first type.
        first = one["type"][0] if isinstance(one["type"], list) else one["type"]
        if one.get("default") is not None and isinstance(first, dict) and "logicalType" in first:
            one["default"] = _parse_default(one["default"], first)


def _parse_default(default: Any, kind: Any) -> Any:
    from fastavro.read import LOGICAL_READERS

    reader = LOGICAL_READERS.get(f"{kind['type']}-{kind['logicalType']}")
    if isinstance(default, str) and kind["type"] in ("bytes", "fixed"):
        default = default.encode("latin-1")
    return default if reader is None else reader(default, kind)


def _message_fields(descriptor: Any, outside: tuple[str, ...]) -> str:
    if descriptor.full_name in outside:
        raise ConfigError(f"the message {descriptor.full_name} contains itself, which a column cannot")
    if not descriptor.fields:
        raise ConfigError(f"the message {descriptor.full_name} has no fields, but a struct column needs one")
    inside = (*outside, descriptor.full_name)
    return ", ".join(f"`{one.name}`: {_field_type(one, inside)}" for one in descriptor.fields)


def _field_type(one: Any, outside: tuple[str, ...]) -> str:
    if _is_map(one):
        key, value = (one.message_type.fields_by_name[name] for name in ("key", "value"))
        return f"map<{_single_type(key, outside)}, {_single_type(value, outside)}>"
    single = _single_type(one, outside)
    return f"array<{single}>" if one.is_repeated else single


def _single_type(one: Any, outside: tuple[str, ...]) -> str:
    if one.message_type is not None:
        if one.message_type.full_name == _TIMESTAMP:
            return "timestamp"
        return f"struct<{_message_fields(one.message_type, outside)}>"
    kinds = {
        one.CPPTYPE_INT32: "int",
        one.CPPTYPE_UINT32: "bigint",
        one.CPPTYPE_INT64: "bigint",
        one.CPPTYPE_UINT64: "decimal(20, 0)",
        one.CPPTYPE_FLOAT: "float",
        one.CPPTYPE_DOUBLE: "double",
        one.CPPTYPE_BOOL: "boolean",
        one.CPPTYPE_ENUM: "string",
    }
    return kinds.get(one.cpp_type) or ("binary" if one.type == one.TYPE_BYTES else "string")


def _is_map(one: Any) -> bool:
    return one.message_type is not None and one.message_type.GetOptions().map_entry


def _message_values(message: Any) -> dict[str, Any]:
    """Returns the fields of a message; null for an unset field that tracks presence."""
    values: dict[str, Any] = {}
    for one in message.DESCRIPTOR.fields:
        held = getattr(message, one.name)
        if _is_map(one):
            kind = one.message_type.fields_by_name["value"]
            values[one.name] = {key: _single_value(kind, held[key]) for key in held}
        elif one.is_repeated:
            values[one.name] = [_single_value(one, item) for item in held]
        elif one.has_presence and not message.HasField(one.name):
            values[one.name] = None
        else:
            values[one.name] = _single_value(one, held)
    return values


def _single_value(one: Any, held: Any) -> Any:
    if one.message_type is not None:
        if one.message_type.full_name == _TIMESTAMP:
            return held.seconds * 1_000_000 + held.nanos // 1000
        return _message_values(held)
    if one.enum_type is not None:
        found = one.enum_type.values_by_number.get(held)
        return str(held) if found is None else found.name
    return held
