"""The columns of a message: names, Spark types, Arrow types, and which of them a query wants.

Spark neither prunes columns nor accepts a batch that differs from its schema in a name, the order, a type
or a nullability (spec spark SP-33, SP-36). So the projection is explicit: the option `columns`, or a schema
that the user gives to the reader, in the user's order and spelling. This is the one place that knows both
type systems.

Needs pyarrow for `arrow_schema` only; must not import pyspark.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, NamedTuple

from tandemmq.errors import ConfigError
from tandemmq.spark.options import PropertiesAs


class Column(NamedTuple):
    """A column and the Spark types in which it can be had, the default first."""

    name: str
    types: tuple[str, ...]


class OutputColumn(NamedTuple):
    """One column of the result: how the user spelled it, which one it is, and its type."""

    label: str
    name: str
    type: str
    is_nullable: bool = True


Projection = tuple[OutputColumn, ...]

MAP_TYPE = "map<string,string>"

COLUMNS: tuple[Column, ...] = (
    Column("topic", ("string",)),
    Column("brokerName", ("string",)),
    Column("queueId", ("int",)),
    Column("queueOffset", ("bigint",)),
    Column("physicalOffset", ("bigint",)),
    Column("msgId", ("string",)),
    Column("tags", ("string",)),
    Column("keys", ("string",)),
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


def find_column(name: str, known_columns: Sequence[Column] = COLUMNS) -> Column:
    """The column of that name, in any case.

    Raises:  ConfigError with the nearest known name.
    """
    by_name = {column.name.lower(): column for column in known_columns}
    column = by_name.get(name.lower())
    if column is None:
        near = difflib.get_close_matches(name.lower(), list(by_name), n=1, cutoff=0.4)
        hint = f"; did you mean {by_name[near[0]].name}?" if near else "."
        known = ", ".join(column.name for column in known_columns)
        raise ConfigError(f"unknown column {name!r}{hint} There are {known}")
    return column


def select_columns(
    names: Sequence[str], properties_as: PropertiesAs, known: Sequence[Column] = COLUMNS
) -> Projection:
    """The projection of the options `columns` and `propertiesAs`; no names mean all columns."""
    chosen = [find_column(name, known) for name in names] if names else list(known)
    if properties_as is PropertiesAs.NONE:
        chosen = [column for column in chosen if column.name != "properties"]
    if len({column.name for column in chosen}) != len(chosen):
        raise ConfigError(f"option columns names a column twice: {', '.join(names)}")
    wanted = {"properties": "string" if properties_as is PropertiesAs.STRING else MAP_TYPE}
    return tuple(
        OutputColumn(column.name, column.name, wanted.get(column.name, column.types[0])) for column in chosen
    )


def project_schema(fields: Sequence[tuple[str, str, bool]], known: Sequence[Column] = COLUMNS) -> Projection:
    """The projection of a schema that the user gave: name, Spark type (`bigint`) and nullability of each
    field.

    Raises:  ConfigError naming the column and the types that it can have.
    """
    projection = []
    for label, type_name, is_nullable in fields:
        column = find_column(label, known)
        if type_name not in column.types:
            raise ConfigError(f"column {label}: expected {' or '.join(column.types)}, got {type_name}")
        projection.append(OutputColumn(label, column.name, type_name, is_nullable))
    return tuple(projection)


def render_ddl(projection: Projection) -> str:
    """The schema in Spark's DDL."""
    return ", ".join(f"`{column.label}` {column.type}" for column in projection)


def arrow_schema(projection: Projection) -> Any:
    """The pyarrow schema that Spark expects for the projection."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "binary": pa.binary(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        MAP_TYPE: pa.map_(pa.string(), pa.string()),
    }
    return pa.schema([pa.field(c.label, types[c.type], nullable=c.is_nullable) for c in projection])
