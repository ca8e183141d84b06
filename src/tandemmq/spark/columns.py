"""The columns of a message: names, Spark types, Arrow types, and the projection of a query.

Spark does not prune columns, and it rejects a batch whose column names, order, types or nullability differ
from the schema (spec spark SP-33, SP-36). The projection is therefore explicit: the option `columns`, or a
schema that the user passes to the reader, in the user's order and spelling. This is the only module that
knows both type systems.

Needs pyarrow for `arrow_schema` only; must not import pyspark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tandemmq.errors import ConfigError
from tandemmq.spark.option_table import suggest
from tandemmq.spark.options import ALL, KAFKA, PropertiesAs


class Column(NamedTuple):
    """A column and the Spark types it supports, the default first.

    `source_name`: the column whose values it contains, if that column has another name.
    """

    name: str
    types: tuple[str, ...]
    source_name: str = ""


class OutputColumn(NamedTuple):
    """One column of the result: the user's spelling of its name, the column it shows, and its type."""

    label: str
    name: str
    type: str
    is_nullable: bool = True


Projection = tuple[OutputColumn, ...]

MAP_TYPE = "map<string,string>"
HEADERS_TYPE = "array<struct<key:string,value:binary>>"
LIST_TYPE = "array<string>"

COLUMNS: tuple[Column, ...] = (
    Column("topic", ("string",)),
    Column("brokerName", ("string",)),
    Column("queueId", ("int",)),
    Column("queueOffset", ("bigint",)),
    Column("physicalOffset", ("bigint",)),
    Column("msgId", ("string",)),
    Column("tags", ("string",)),
    Column("keys", ("string", LIST_TYPE)),
    Column("body", ("binary", "string")),
    Column("flag", ("int",)),
    Column("sysFlag", ("int",)),
    Column("bornTimestamp", ("timestamp",)),
    Column("storeTimestamp", ("timestamp",)),
    Column("bornHost", ("string",)),
    Column("storeHost", ("string",)),
    Column("reconsumeTimes", ("int",)),
    Column("preparedTransactionOffset", ("bigint",)),
    Column("properties", (MAP_TYPE, "string")),
)
"""The columns of a record: all that a landing stores by default."""

COLUMN_TYPES = {column.name: column.types for column in COLUMNS}

PLACE = ("topic", "brokerName", "queueId", "queueOffset")
"""The columns that identify a message."""

_ON_REQUEST = ("flag", "sysFlag", "bornHost", "storeHost", "reconsumeTimes", "preparedTransactionOffset")
DEFAULT_COLUMNS = tuple(column for column in COLUMNS if column.name not in _ON_REQUEST)
"""The columns of a query that names none: those that usually differ from message to message."""

_NULLABLE = ("tags", "keys", "bodyFault", "headers")

KAFKA_COLUMNS: tuple[Column, ...] = (
    Column("key", ("binary", "string"), "keys"),
    Column("value", ("binary", "string"), "body"),
    Column("topic", ("string",)),
    Column("partition", ("int",), "queueId"),
    Column("offset", ("bigint",), "queueOffset"),
    Column("timestamp", ("timestamp",), "storeTimestamp"),
    Column("timestampType", ("int",)),
)
"""The columns of Spark's Kafka source; `headers` is appended if requested."""

BODY_FAULT = Column("bodyFault", ("string",))
"""The reason why a body flagged as compressed is returned as stored; null for all other rows."""

SOURCE_COLUMNS: tuple[Column, ...] = (
    *COLUMNS,
    BODY_FAULT,
    Column("userProperties", (MAP_TYPE,)),
    *(column for column in KAFKA_COLUMNS if column not in COLUMNS),
    Column("headers", (HEADERS_TYPE,)),
)
"""All columns that a query can name."""


def find_column(name: str, known_columns: Sequence[Column] = SOURCE_COLUMNS) -> Column:
    """Returns the column with that name, ignoring case.

    Raises:  ConfigError with the nearest known name.
    """
    by_name = {column.name.lower(): column for column in known_columns}
    column = by_name.get(name.lower())
    if column is None:
        hint = suggest(name, {lower: column.name for lower, column in by_name.items()})
        known = ", ".join(column.name for column in known_columns)
        raise ConfigError(f"unknown column {name!r}{hint} There are {known}")
    return column


def _find_columns(name: str, known: Sequence[Column]) -> Sequence[Column]:
    if known is SOURCE_COLUMNS and name in (ALL, KAFKA):
        return COLUMNS if name == ALL else KAFKA_COLUMNS
    return (find_column(name, known),)


def select_columns(
    names: Sequence[str],
    properties_as: PropertiesAs,
    known: Sequence[Column] = SOURCE_COLUMNS,
    default: Sequence[Column] = COLUMNS,
) -> Projection:
    """Returns the projection for the options `columns` and `propertiesAs`; without names, the default
    columns.
    """
    chosen = [column for name in names for column in _find_columns(name, known)] or list(default)
    if properties_as is PropertiesAs.NONE:
        chosen = [column for column in chosen if column.name != "properties"]
    if len({column.name for column in chosen}) != len(chosen):
        raise ConfigError(f"option columns names a column twice: {', '.join(names)}")
    wanted = {"properties": "string" if properties_as is PropertiesAs.STRING else MAP_TYPE}
    return tuple(
        OutputColumn(column.name, column.source_name or column.name, wanted.get(column.name, column.types[0]))
        for column in chosen
    )


def select_source_columns(names: Sequence[str], properties_as: PropertiesAs) -> Projection:
    """Returns the projection of a query over topics.

    A column that is never null says so: Java then skips a check of each value (spec spark SP-69).
    """
    chosen = select_columns(names, properties_as, default=DEFAULT_COLUMNS)
    return tuple(column._replace(is_nullable=column.name in _NULLABLE) for column in chosen)


def project_schema(
    fields: Sequence[tuple[str, str, bool]], known: Sequence[Column] = SOURCE_COLUMNS
) -> Projection:
    """Returns the projection for a schema that the user supplied, as name, Spark type (`bigint`) and
    nullability of each field.

    Raises:  ConfigError naming the column and the types it supports.
    """
    projection = []
    for label, type_name, is_nullable in fields:
        column = find_column(label, known)
        if type_name not in column.types:
            raise ConfigError(f"column {label}: expected {' or '.join(column.types)}, got {type_name}")
        projection.append(OutputColumn(label, column.source_name or column.name, type_name, is_nullable))
    return tuple(projection)


def render_ddl(projection: Projection) -> str:
    """Returns the schema as Spark DDL."""
    return ", ".join(
        f"`{column.label}` {column.type}{'' if column.is_nullable else ' NOT NULL'}" for column in projection
    )


def arrow_schema(projection: Projection) -> Any:
    """Returns the pyarrow schema that Spark expects for the projection."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "binary": pa.binary(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        MAP_TYPE: pa.map_(pa.string(), pa.string()),
        LIST_TYPE: pa.list_(pa.string()),
        HEADERS_TYPE: pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    }
    return pa.schema([pa.field(c.label, types[c.type], nullable=c.is_nullable) for c in projection])


def check_nulls(batch: Any) -> Any:
    """Returns the RecordBatch.

    Raises:  ConfigError for a null in a column that the user's schema declares NOT NULL: Java would read the
             bytes of another value there.
    """
    for field, values in zip(batch.schema, batch.columns, strict=True):
        if not field.nullable and values.null_count:
            raise ConfigError(
                f"column {field.name}: the schema says NOT NULL, but {values.null_count} of {len(values)}"
                " rows have no value; leave NOT NULL out"
            )
    return batch
