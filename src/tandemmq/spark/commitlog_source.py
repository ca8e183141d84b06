"""The data source `commitlog`: CommitLog files as a table, batch only.

The module that reads the files needs numpy and Arrow, and is imported only when a query uses this source.
Spark's look-up of sources imports this module in each session, in a process of its own, and would otherwise
import both there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from tandemmq.spark.columns import Projection, project_schema, render_ddl, select_columns

if TYPE_CHECKING:
    from tandemmq.spark.commitlog import LogOptions, SegmentPiece


@dataclass
class LogPiece(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """The input of one task."""

    piece: SegmentPiece


class CommitLogSource(DataSource):  # type: ignore[misc]  # pyspark is untyped here
    """The source `commitlog`; see docs/spark/options.md for the options."""

    @classmethod
    def name(cls) -> str:
        return "commitlog"

    def schema(self) -> str:
        from tandemmq.spark.commitlog import KNOWN_COLUMNS, LOG_COLUMNS, find_files, parse_log_options

        options = parse_log_options(dict(self.options))
        find_files(options.path)
        return render_ddl(select_columns(options.columns, options.properties_as, KNOWN_COLUMNS, LOG_COLUMNS))

    def reader(self, schema: Any) -> LogReader:
        from tandemmq.spark.commitlog import KNOWN_COLUMNS, parse_log_options

        fields = [(field.name, field.dataType.simpleString(), field.nullable) for field in schema.fields]
        return LogReader(parse_log_options(dict(self.options)), project_schema(fields, KNOWN_COLUMNS))


@dataclass
class LogReader(DataSourceReader):  # type: ignore[misc]  # pyspark is untyped here
    """A batch query with one task per piece of a file."""

    options: LogOptions
    projection: Projection

    def partitions(self) -> list[LogPiece]:
        from tandemmq.spark.commitlog import cut_pieces, find_files

        pieces = cut_pieces(find_files(self.options.path), self.options.piece_bytes)
        return [LogPiece(piece) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        # Without files Spark still runs one task, with a partition of its own class (spec spark SP-32).
        if not isinstance(partition, LogPiece):
            return iter(())
        from tandemmq.spark.commitlog import read_piece

        return read_piece(partition.piece, self.options, self.projection)
