"""The statistics of a Parquet file in the form of Delta's log, from its footer alone. Must not know Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

TEXT_CHARS_MAX = 64
"""Longer texts have no bounds: a cut upper bound would be wrong."""


def read_statistics(path: Path) -> dict[str, Any]:
    """`numRecords`, and `minValues`, `maxValues`, `nullCount` of columns with bounds in every row group."""
    footer = pq.read_metadata(path)
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    without: set[str] = set()
    for group in (footer.row_group(number) for number in range(footer.num_row_groups)):
        for column in (group.column(number) for number in range(group.num_columns)):
            name = column.path_in_schema
            statistics = column.statistics
            if "." in name or statistics is None or not statistics.has_null_count:
                without.add(name)
                continue
            nulls[name] = nulls.get(name, 0) + statistics.null_count
            if statistics.null_count == group.num_rows:
                continue
            if not statistics.has_min_max or _is_long(statistics.max) or _is_long(statistics.min):
                without.add(name)
                continue
            low[name] = min(low.get(name, statistics.min), statistics.min)
            high[name] = max(high.get(name, statistics.max), statistics.max)
    return {
        "numRecords": footer.num_rows,
        "minValues": {name: _render(value) for name, value in low.items() if name not in without},
        "maxValues": {name: _render(value) for name, value in high.items() if name not in without},
        "nullCount": {name: count for name, count in nulls.items() if name not in without},
    }


def _is_long(value: object) -> bool:
    return isinstance(value, bytes) or (isinstance(value, str) and len(value) > TEXT_CHARS_MAX)


def _render(value: Any) -> Any:
    if isinstance(value, datetime):
        # Delta rounds to milliseconds; readers allow for that.
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value
