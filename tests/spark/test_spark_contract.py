"""Tests the behaviour of Spark that our source relies on, with a source that records its calls.

Spark documents little of it (spec spark 2). If one of these tests fails after an upgrade, review the source
even if its own tests pass.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def _make_source() -> type:
    """Defines the source inside a function, so that Spark pickles it by value: its processes cannot import
    this file.
    """
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceReader,
        DataSourceStreamReader,
        InputPartition,
    )
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

    class Stream(DataSourceStreamReader, SupportsTriggerAvailableNow):
        def __init__(self, options: Any) -> None:
            self.log, self.end = options["log"], 0

        def note(self, call: str, *values: Any) -> None:
            with open(self.log, "a") as file:
                file.write(json.dumps([call, *values]) + "\n")

        def prepareForTriggerAvailableNow(self) -> None:
            self.note("prepare")

        def initialOffset(self) -> dict:
            self.note("initial")
            return {"v": 1, "init": "latest"}

        def latestOffset(self, start: dict, limit: Any) -> dict:
            self.note("latest", start)
            reached = start.get("n", 0)
            return {"v": 1, "n": reached + 2} if reached < 6 else start

        def partitions(self, start: dict, end: dict) -> list:
            self.note("partitions", start, end)
            return [InputPartition(end["n"])]

        def read(self, partition: Any) -> Any:
            yield (partition.value,)

        def commit(self, end: dict) -> None:
            self.note("commit", end)

    class Batch(DataSourceReader):
        def partitions(self) -> list:
            return []

        def read(self, partition: Any) -> Any:
            assert partition.value is None
            return iter(())

    class Tracing(DataSource):
        @classmethod
        def name(cls) -> str:
            return "tracing"

        def schema(self) -> str:
            return "n bigint"

        def streamReader(self, schema: Any) -> Any:
            return Stream(self.options)

        def reader(self, schema: Any) -> Any:
            return Batch()

    return Tracing


@pytest.fixture(scope="module")
def tracing(spark: Any) -> Any:
    spark.dataSource.register(_make_source())
    return spark


def test_the_calls_of_a_stream_come_as_the_source_expects_them(tracing: Any, tmp_path: Path) -> None:
    log = tmp_path / "calls"

    def run() -> list[list[Any]]:
        log.write_text("")
        query = (
            tracing.readStream.format("tracing")
            .option("log", str(log))
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [json.loads(line) for line in log.read_text().splitlines()]

    calls = run()
    names = [call[0] for call in calls]
    symbol, ends = {"v": 1, "init": "latest"}, [{"v": 1, "n": n} for n in (2, 4, 6)]
    # spec spark SP-14, SP-15: prepared first; the start is requested twice, so the first batch must pin it.
    assert names[0] == "prepare"
    assert names.count("initial") == 2
    # spec spark SP-17: one plan per batch, and the first begins at the symbol.
    plans = [call[1:] for call in calls if call[0] == "partitions"]
    assert plans == [[symbol, ends[0]], [ends[0], ends[1]], [ends[1], ends[2]]]
    # spec spark SP-18: a commit arrives with the next batch, and none for the last one.
    assert [call[1] for call in calls if call[0] == "commit"] == ends[:2]
    # spec spark SP-26: `latestOffset` starts from the end of the last batch.
    assert [call[1] for call in calls if call[0] == "latest"] == [symbol, *ends]
    # spec spark SP-23: the checkpoint contains the text unchanged.
    text = (tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1]
    assert text == json.dumps(ends[0])
    # A restart without new messages plans nothing and forgets nothing.
    again = run()
    assert "partitions" not in [call[0] for call in again]
    assert next(call[1] for call in again if call[0] == "latest") == ends[2]


def test_a_batch_without_partitions_reads_none(tracing: Any) -> None:
    # spec spark SP-32: one task, whose partition has no value.
    assert tracing.read.format("tracing").load().collect() == []


def test_java_leaves_out_what_spark_has_checked_beside_what_the_user_sets(spark: Any) -> None:
    system = spark._jvm.java.lang.System
    for name, value in (
        ("arrow.enable_unsafe_memory_access", "true"),
        ("arrow.enable_null_check_for_get", "false"),
    ):
        assert system.getProperty(name) == value
    assert "log4j2.properties" in system.getProperty("log4j2.configurationFile")


def test_settings_of_the_user_win_over_the_file_and_the_file_over_ours(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.master local[1]\nspark.driver.memory 700m\nspark.sql.shuffle.partitions 9\n"
        "spark.driver.extraJavaOptions -Dmine=1 -XX:+UseParallelGC\n"
    )
    script = """
from tandemmq.spark.pipelines.runner import open_session
with open_session("settings", "", settings=(("spark.sql.shuffle.partitions", "11"),)) as (spark, _):
    system, conf = spark._jvm.java.lang.System, spark.conf
    print(conf.get("spark.master"), conf.get("spark.driver.memory"), conf.get("spark.sql.shuffle.partitions"))
    print(conf.get("spark.ui.enabled"), system.getProperty("mine"))
    print("log4j2.properties" in system.getProperty("log4j2.configurationFile"))
"""
    # The file counts when Java starts, so the session is one of another process.
    environment = {**os.environ, "SPARK_CONF_DIR": str(tmp_path)}
    environment.pop("JAVA_TOOL_OPTIONS", None)
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["local[1]", "700m", "11", "false", "1", "True"]
