"""The streaming sink `tandemmq_lake`: each batch of a query becomes one directory of a lake.

Tasks stage their files (`parquet`) and report them; the driver then makes the whole batch visible at once
(`files`). Spark may run a task twice, replay a batch, or call `abort` after a successful `commit` (spec spark
SP-21, SP-53, SP-54). Therefore staged names are unique per attempt, an existing batch is kept, and `abort`
removes only staged files. The tables of `formats` follow the same rules.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from tandemmq.errors import ConfigError
from tandemmq.spark.checkpoint import sync_checkpoint
from tandemmq.spark.lake.files import StagedFile, discard_files
from tandemmq.spark.lake.formats import commit_files
from tandemmq.spark.lake.home import Lake, LakeFormat, make_lake, parse_format, refuse_address
from tandemmq.spark.option_table import SECURITY_NAMES, parse_list
from tandemmq.spark.sink.options import SinkOptions, parse_sink_options
from tandemmq.spark.task import BATCH_ID, QUERY_ID
from tandemmq.telemetry import events

if TYPE_CHECKING:
    from tandemmq.spark.lake.parquet import ParquetStager


log = logging.getLogger(__name__)

SINK_NAME = "tandemmq_lake"

_SENDING = SECURITY_NAMES | {"nameserver"}
_OPTIONS = _SENDING | {"path", "partitionby", "compression", "format", "data", "catalog", "table", "key"}
_BAD_OPTIONS = frozenset(("badtopic", "badcolumn", "badonly"))
_SPARK_OPTIONS = frozenset(("queryname", "checkpointlocation"))
"""The names that Spark itself adds to the options."""


@dataclass
class TaskFiles(WriterCommitMessage):  # type: ignore[misc]  # pyspark is untyped here
    """The files that one task attempt staged."""

    query_id: str
    files: tuple[StagedFile, ...]
    bad_files: tuple[StagedFile, ...] = ()


class LakeSink(DataSource):  # type: ignore[misc]  # pyspark is untyped here
    """The sink. Options: `path`; `partitionBy` (columns, `dt`, `hour`); `compression` zstd, snappy or none.

    `format`: parquet (default), delta or iceberg (`formats`). `data`: an address for the files of a table;
    `catalog`, `table`: an Iceberg table of a catalog, whose files are at `data` (`home`). `key`: the column
    whose values identify the rows of a table: a row replaces that of its key (`upsert`).
    `badColumn`: rows in which it is not null are written to the nested lake `_bad_records`, in the same
    batch. `badOnly`: columns that only those rows keep. `badTopic`: each of those rows is also sent to this
    topic; needs `nameServer`, and accepts the sink `tandemmq`'s options for credentials and TLS.
    """

    @classmethod
    def name(cls) -> str:
        return SINK_NAME

    def schema(self) -> str:
        raise ConfigError(f"{SINK_NAME} is a sink; read the directory with spark.read.parquet")

    def writer(self, schema: Any, overwrite: bool) -> NoReturn:
        raise ConfigError(
            f"{SINK_NAME} is a sink of streams, not a table: use writeStream and start('/path/of/the/lake');"
            " for the rows of a DataFrame use the formats parquet, delta or iceberg"
        )

    # Spark passes both arguments by keyword, so these names are fixed (spec spark SP-20).
    def streamWriter(self, schema: Any, overwrite: bool) -> LakeWriter:
        if overwrite:
            raise ConfigError(f"{SINK_NAME} only appends: use outputMode('append')")
        unknown = set(self.options) - _OPTIONS - _BAD_OPTIONS - _SPARK_OPTIONS
        if unknown:
            raise ConfigError(f"unknown options of {SINK_NAME}: {', '.join(sorted(unknown))}")
        path = self.options.get("path")
        if not path:
            raise ConfigError(f"{SINK_NAME} needs a directory: start('/path/of/the/lake'), not toTable")
        local = path.removeprefix("file:")
        refuse_address(local)
        sync_checkpoint(self.options.get("checkpointLocation", ""))  # before the tasks of a batch
        root, kind = Path(local).absolute(), self.options.get("format", "parquet")
        data, *named = (self.options.get(name, "") for name in ("data", "catalog", "table"))
        # With an address the catalog need not be asked again for every step of every batch.
        lake = Lake(root, parse_format(kind), data, *named) if data else make_lake(root, kind, data, *named)
        return LakeWriter(
            lake=lake,
            partition_by=parse_list(self.options.get("partitionBy", "")),
            compression=self.options.get("compression", "zstd"),
            bad_column=self.options.get("badColumn", ""),
            bad_only=parse_list(self.options.get("badOnly", "")),
            bad_sink=_parse_bad_sink(dict(self.options)),
            key=self.options.get("key", ""),
        )


@dataclass
class LakeWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]  # pyspark is untyped here
    """Writes and commits the batches of one query; Spark makes a new instance for every step of every batch
    (spec spark SP-20, SP-22).
    """

    lake: Lake
    partition_by: tuple[str, ...]
    compression: str
    bad_column: str = ""
    bad_only: tuple[str, ...] = ()
    bad_sink: SinkOptions | None = None
    key: str = ""

    def write(self, iterator: Iterator[Any]) -> TaskFiles:
        context = TaskContext.get()
        query_id, batch_id = str(context.getLocalProperty(QUERY_ID)), int(context.getLocalProperty(BATCH_ID))
        return self.stage(iterator, query_id, batch_id, context.partitionId())

    def stage(self, rows_in: Iterable[Any], query_id: str, batch_id: int, partition_id: int) -> TaskFiles:
        """Writes the Arrow batches of a task to files that no reader sees yet."""
        stagers: dict[Lake, ParquetStager] = {}
        lakes = (self.lake, self.lake.bad_records)
        try:
            for batch in rows_in:
                for lake, rows in zip(lakes, self._split(batch), strict=False):
                    if rows.num_rows and lake not in stagers:
                        stagers[lake] = self._stage(lake, rows.schema, batch_id, partition_id)
                    if rows.num_rows:
                        stagers[lake].write(rows)
            files, bad_files = (stagers[lake].finish() if lake in stagers else () for lake in lakes)
            self._send(bad_files, query_id, batch_id, partition_id)
        except BaseException:
            for stager in stagers.values():
                stager.discard()
            raise
        return TaskFiles(query_id=query_id, files=files, bad_files=bad_files)

    def _send(self, bad_files: Sequence[StagedFile], query_id: str, batch_id: int, partition_id: int) -> None:
        if self.bad_sink is not None:
            from tandemmq.spark.lake.bad_topic import send_bad_records

            names = ("bad", query_id, batch_id, self.bad_sink.topic, partition_id)
            root = self.lake.bad_records.root
            send_bad_records(root, bad_files, self.bad_column, self.bad_sink, names, partition_id)

    def _stage(self, lake: Lake, schema: Any, batch_id: int, partition_id: int) -> ParquetStager:
        """Returns the writer of the files of good rows or of bad records; only good rows are partitioned."""
        from tandemmq.spark.lake.parquet import ParquetStager, plan_files

        partition_by = self.partition_by if lake == self.lake else ()
        options = plan_files(lake, schema.names, partition_by, self.compression)
        if self.key:
            options = replace(options, partition_by=())
        return ParquetStager(
            lake.root, batch_id=batch_id, partition_id=partition_id, schema=schema, options=options
        )

    def _split(self, batch: Any) -> tuple[Any, ...]:
        """Returns the rows for the lake and the bad records."""
        if not self.bad_column:
            return (batch,)
        bad_rows = [self.bad_column, *self.bad_only]
        if batch.column(self.bad_column).null_count == batch.num_rows:
            # The usual case copies nothing.
            return batch.drop_columns(bad_rows), batch.slice(0, 0)
        import pyarrow.compute as pc

        is_good = batch.column(self.bad_column).is_null()
        return batch.filter(is_good).drop_columns(bad_rows), batch.filter(pc.invert(is_good))

    def commit(self, messages: Sequence[TaskFiles | None], batchId: int) -> None:
        done = [message for message in messages if message is not None]
        if not done:
            return
        files = [file for message in done for file in message.files]
        bad_files = [file for message in done for file in message.bad_files]
        try:
            commit_files(self.lake, batchId, done[0].query_id, files, bad_files, key=self.key)
        except Exception:
            # Spark's exception says only that writing failed, so the cause is logged here (spec spark SP-47).
            log.exception(events.LAKE_COMMIT_FAILED, extra={"batch": batchId, "path": str(self.lake.root)})
            raise

    def abort(self, messages: Sequence[TaskFiles | None], batchId: int) -> None:
        for message in messages:
            if message is not None:
                # An abort may follow a successful commit (spec spark SP-54), and a committed table keeps its
                # files under their staged names.
                if self.lake.kind is LakeFormat.PARQUET:
                    discard_files(self.lake.root, message.files)
                discard_files(self.lake.bad_records.root, message.bad_files)


def _parse_bad_sink(options: Mapping[str, str]) -> SinkOptions | None:
    """Returns the options for sending bad records to a topic; None without the option badTopic."""
    given = {key.lower(): value for key, value in options.items()}
    topic = given.get("badtopic", "")
    if not topic:
        return None
    chosen = {key: value for key, value in given.items() if key in _SENDING}
    return parse_sink_options({**chosen, "topic": topic, "emptyBodies": "skip"})
