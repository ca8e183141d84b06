"""The options of the source `commitlog`. Pure: no Spark, no files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tandemmq.errors import ConfigError
from tandemmq.spark.columns import COLUMNS, Column
from tandemmq.spark.option_table import OptionRow
from tandemmq.spark.option_text import (
    name_options,
    parse_bool,
    parse_enum,
    parse_int,
    parse_list,
    parse_size,
    require,
)
from tandemmq.spark.options import PropertiesAs
from tandemmq.units import MIB

LOG_COLUMNS = (*COLUMNS, Column("damage", ("string",)))


class Damaged(Enum):
    """What becomes of damaged records."""

    REPORT = "report"
    SKIP = "skip"
    FAIL = "fail"


LOG_OPTION_TABLE: tuple[OptionRow, ...] = (
    OptionRow("path", "required", "B", "a store, its `commitlog` directory, or one file of it"),
    OptionRow("topic", "all", "B", "topics, separated by commas; the system's own are topics too"),
    OptionRow("brokerName", "", "B", "what the column `brokerName` says; no file knows it"),
    OptionRow(
        "damaged",
        "report",
        "B",
        "`report`: a row with the column `damage` filled; `skip`: no row; `fail`: the query fails",
    ),
    OptionRow("verifyCrc", "true", "B", "compare every body with its checksum"),
    OptionRow("pieceBytes", "128m", "B", "about so many bytes of a file per task"),
    OptionRow("columns", "all", "B", "columns to build, separated by commas"),
    OptionRow("propertiesAs", "map", "B", "`map`, `string` (as stored) or `none`"),
    OptionRow("decompress", "true", "B", "deliver bodies inflated; damaged ones stay as they are"),
    OptionRow("arrowRows", "5000", "B", "at most so many rows per Arrow batch"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Made by `parse_log_options`."""

    path: Path
    topics: tuple[str, ...] = ()
    broker: str = ""
    damaged: Damaged = Damaged.REPORT
    verify_crc: bool = True
    piece_bytes: int = 128 * MIB
    columns: tuple[str, ...] = ()
    properties_as: PropertiesAs = PropertiesAs.MAP
    decompress: bool = True
    arrow_rows: int = 5_000


def parse_log_options(raw: Mapping[str, str]) -> LogOptions:
    """The options of a query.

    Raises:  ConfigError naming the option, what was wrong and what is allowed.
    """
    values = name_options(raw, LOG_OPTION_TABLE)
    path = values.get("path", "")
    if not path:
        raise ConfigError("a path is required: load('/path/of/a/store')")
    return LogOptions(
        path=Path(path.removeprefix("file:")),
        topics=parse_list(values.get("topic", "")),
        broker=values.get("brokerName", ""),
        damaged=parse_enum(values, "damaged", Damaged, Damaged.REPORT),
        verify_crc=parse_bool(values, "verifyCrc", True),
        piece_bytes=require(parse_size(values, "pieceBytes", 128 * MIB)),
        columns=parse_list(values.get("columns", "")),
        properties_as=parse_enum(values, "propertiesAs", PropertiesAs, PropertiesAs.MAP),
        decompress=parse_bool(values, "decompress", True),
        arrow_rows=require(parse_int(values, "arrowRows", 5_000, least=1)),
    )
