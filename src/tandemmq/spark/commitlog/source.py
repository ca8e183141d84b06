"""The data source `commitlog`: CommitLog files as a table, batch only.

The files must be reachable from every executor. A running broker may be read too; what it is writing at that
moment then looks like damage at the end of the last file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from tandemmq.spark.columns import Projection, project_schema, render_ddl, select_columns
from tandemmq.spark.commitlog.options import LOG_COLUMNS, LogOptions, parse_log_options
from tandemmq.spark.commitlog.pieces import Piece, cut_pieces, find_files


@dataclass
class LogPiece(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """What one task reads."""

    piece: Piece


class CommitLogSource(DataSource):  # type: ignore[misc]  # pyspark is untyped here
    """See docs/spark.md for the options."""

    @classmethod
    def name(cls) -> str:
        return "commitlog"

    def schema(self) -> str:
        options = parse_log_options(dict(self.options))
        find_files(options.path)
        return render_ddl(select_columns(options.columns, options.properties_as, LOG_COLUMNS, LOG_COLUMNS))

    def reader(self, schema: Any) -> LogReader:
        fields = [(field.name, field.dataType.simpleString(), field.nullable) for field in schema.fields]
        return LogReader(parse_log_options(dict(self.options)), project_schema(fields, LOG_COLUMNS))


class LogReader(DataSourceReader):  # type: ignore[misc]  # pyspark is untyped here
    """One task per piece of a file."""

    def __init__(self, options: LogOptions, projection: Projection) -> None:
        self._options = options
        self._projection = projection

    def partitions(self) -> list[LogPiece]:
        pieces = cut_pieces(find_files(self._options.path), self._options.piece_bytes)
        return [LogPiece(piece) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        # Without files Spark makes one task with a partition that is none of ours (spec spark SP-32).
        if not isinstance(partition, LogPiece):
            return iter(())
        from tandemmq.spark.commitlog.rows import read_piece

        return read_piece(partition.piece, self._options, self._projection)
