"""The streaming sink `tandemmq_lake`: each batch of a query becomes one directory of a lake.

Tasks stage their files (`parquet`) and report them; the driver then makes the whole batch visible at once
(`files`). Spark may run a task twice, replay a batch, or call `abort` after a `commit` that succeeded (spec
spark SP-21, SP-53, SP-54): staged names are unique per attempt, a batch that exists is kept, and `abort`
touches staged files only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from tandemmq.errors import ConfigError
from tandemmq.spark.lake.files import StagedFile, commit_batch, discard_files
from tandemmq.spark.task_names import BATCH_ID, QUERY_ID
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

SINK_NAME = "tandemmq_lake"

_OPTIONS = frozenset(("path", "partitionby", "compression"))
_SPARK_OPTIONS = frozenset(("queryname", "checkpointlocation"))
"""What Spark itself hands over among the options."""


@dataclass
class TaskFiles(WriterCommitMessage):  # type: ignore[misc]  # pyspark is untyped here
    """What one task attempt staged."""

    query_id: str
    files: tuple[StagedFile, ...]


class LakeSink(DataSource):  # type: ignore[misc]  # pyspark is untyped here
    """Options: `path`; `partitionBy` (columns, `dt`, `hour`); `compression` zstd, snappy or none."""

    @classmethod
    def name(cls) -> str:
        return SINK_NAME

    def schema(self) -> str:
        raise ConfigError(f"{SINK_NAME} is a sink; read the directory with spark.read.parquet")

    # Spark passes both by keyword, so they must have these names (SP-20).
    def streamWriter(self, schema: Any, overwrite: bool) -> LakeWriter:
        if overwrite:
            raise ConfigError(f"{SINK_NAME} only appends: use outputMode('append')")
        unknown = set(self.options) - _OPTIONS - _SPARK_OPTIONS
        if unknown:
            raise ConfigError(f"unknown options of {SINK_NAME}: {', '.join(sorted(unknown))}")
        path = self.options.get("path")
        if not path:
            raise ConfigError(f"{SINK_NAME} needs a directory: start('/path/of/the/lake')")
        columns = self.options.get("partitionBy", "").split(",")
        return LakeWriter(
            Path(path.removeprefix("file:")).absolute(),
            partition_by=tuple(name.strip() for name in columns if name.strip()),
            compression=self.options.get("compression", "zstd"),
        )


class LakeWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]  # pyspark is untyped here
    """Writes and commits the batches of one query; a new instance for every step of every batch (SP-20,
    SP-22).
    """

    def __init__(self, root: Path, *, partition_by: tuple[str, ...], compression: str) -> None:
        self._root = root
        self._partition_by = partition_by
        self._compression = compression

    def write(self, iterator: Iterator[Any]) -> TaskFiles:
        from tandemmq.spark.lake.parquet import ParquetOptions, ParquetStager

        context = TaskContext.get()
        options = ParquetOptions(partition_by=self._partition_by, compression=self._compression)
        stager: ParquetStager | None = None
        try:
            for batch in iterator:
                if stager is None:
                    stager = ParquetStager(
                        self._root,
                        batch_id=int(context.getLocalProperty(BATCH_ID)),
                        partition_id=context.partitionId(),
                        schema=batch.schema,
                        options=options,
                    )
                stager.write(batch)
            files = stager.finish() if stager is not None else ()
        except BaseException:
            if stager is not None:
                stager.discard()
            raise
        return TaskFiles(query_id=str(context.getLocalProperty(QUERY_ID)), files=files)

    def commit(self, messages: Sequence[TaskFiles | None], batchId: int) -> None:
        done = [message for message in messages if message is not None]
        files = [file for message in done for file in message.files]
        if not done:
            return
        try:
            commit_batch(self._root, batchId, done[0].query_id, files)
        except (OSError, ConfigError):
            # Spark's exception says only that writing failed; the cause must be said here (SP-47).
            log.exception(events.LAKE_COMMIT_FAILED, extra={"batch": batchId, "path": str(self._root)})
            raise

    def abort(self, messages: Sequence[TaskFiles | None], batchId: int) -> None:
        for message in messages:
            if message is not None:
                discard_files(self._root, message.files)
