"""The data source `tandemmq` (alias `rocketmq`): options in, readers and writers out; no I/O here.

Spark makes instances of this class in several short-lived processes, often only to ask for the schema, so the
constructor does nothing, and a reader's module is imported only where the reader is made (spec spark SP-66).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.sql.datasource import DataSource

from tandemmq.errors import ConfigError
from tandemmq.spark.columns import Projection, project_schema, render_ddl, select_columns
from tandemmq.spark.options import KAFKA, SourceOptions, parse_options

if TYPE_CHECKING:
    from tandemmq.spark.batch import TopicReader
    from tandemmq.spark.sink.columns import SinkColumns
    from tandemmq.spark.sink.options import SinkOptions
    from tandemmq.spark.sink.writer import TopicStreamWriter, TopicWriter
    from tandemmq.spark.stream import TopicStreamReader


PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"
"""A session that does not push filters refuses readers that take them, and nothing says which one it is; the
name is Spark's own (spec spark SP-43)."""


class TandemSource(DataSource):  # type: ignore[misc]  # pyspark is untyped here
    """Topics as tables and streams; see docs/spark.md for the options."""

    @classmethod
    def name(cls) -> str:
        return "tandemmq"

    def schema(self) -> str:
        return render_ddl(_select(self._parse(is_streaming=None)))

    def reader(self, schema: Any) -> TopicReader:
        from tandemmq.spark.batch import PushdownTopicReader, TopicReader

        options = self._parse(is_streaming=False)
        kind = PushdownTopicReader if options.can_push_filters and _is_asked_for_filters() else TopicReader
        return kind(options, self._project(schema, options))

    def streamReader(self, schema: Any) -> TopicStreamReader:
        from tandemmq.spark.stream import TopicStreamReader

        options = self._parse(is_streaming=True)
        return TopicStreamReader(options, self._project(schema, options))

    # Spark passes both by keyword, so they must have these names (spec spark SP-20).
    def writer(self, schema: Any, overwrite: bool) -> TopicWriter:
        from tandemmq.spark.sink.writer import TopicWriter

        options, columns = self._plan_write(schema, overwrite)
        return TopicWriter(options, columns, options.write_id or uuid4().hex)

    def streamWriter(self, schema: Any, overwrite: bool) -> TopicStreamWriter:
        from tandemmq.spark.sink.writer import TopicStreamWriter

        options, columns = self._plan_write(schema, overwrite)
        return TopicStreamWriter(options, columns)

    def _plan_write(self, schema: Any, overwrite: bool) -> tuple[SinkOptions, SinkColumns]:
        from tandemmq.spark.sink.columns import find_sink_columns
        from tandemmq.spark.sink.options import parse_sink_options

        if overwrite:
            raise ConfigError("messages can only be added: use mode('append') or outputMode('append')")
        options = parse_sink_options(dict(self.options))
        fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        return options, find_sink_columns(fields, has_topic_option=bool(options.topic))

    def _parse(self, *, is_streaming: bool | None) -> SourceOptions:
        return parse_options(dict(self.options), is_streaming=is_streaming)

    def _project(self, schema: Any, options: SourceOptions) -> Projection:
        """What `schema` asks for: our own schema, or one that the user gave to Spark."""
        fields = [(field.name, field.dataType.simpleString(), field.nullable) for field in schema.fields]
        wanted = project_schema(fields)
        chosen = _select(options)
        if options.columns and [column.name for column in wanted] != [column.name for column in chosen]:
            raise ConfigError("give either a schema or the option columns, not both")
        return wanted


class KafkaShapedSource(TandemSource):
    """The same source with the columns of Spark's source for Kafka: what was written for that one needs
    another format and other addresses only.
    """

    @classmethod
    def name(cls) -> str:
        return "tandemmq_kafka"

    def _parse(self, *, is_streaming: bool | None) -> SourceOptions:
        return parse_options({"columns": KAFKA, **dict(self.options)}, is_streaming=is_streaming)


class RocketSource(TandemSource):
    """The same source under the name that RocketMQ users look for."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"


def _is_asked_for_filters() -> bool:
    """Whether Spark will push filters: it does that in a worker whose module is loaded for nothing else."""
    return PUSHDOWN_WORKER in sys.modules


def _select(options: SourceOptions) -> Projection:
    return select_columns(options.columns, options.properties_as)
