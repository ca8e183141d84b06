"""Finds sessions in a topic with Spark's `transformWithState`: one row for each user and each series of
clicks without a pause of more than `--gap` seconds.

    python examples/sessions.py 127.0.0.1:9876 Clicks /data/sessions

The key of a message is its user. A run reads the present clicks and adds the sessions that have ended to
/data/sessions/rows. A session without its pause stays in the state for a later run.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from tandemmq.spark.session import build_session

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Sessions(StatefulProcessor):
    """The open session of each user: its first and last click, and the number of its clicks."""

    def __init__(self, gap_s: float) -> None:
        self._gap_ms = round(gap_s * 1000)

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._open = handle.getValueState("open", "first long, last long, clicks long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        first, last, clicks = self._open.get() or (0, 0, 0)
        for at in sorted(_ms(row.storeTimestamp) for row in rows):
            if clicks and at - last > self._gap_ms:
                yield _session(key, first, last, clicks)
                clicks = 0
            first, last, clicks = first if clicks else at, at, clicks + 1
        self._keep(first, last, clicks)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        first, last, clicks = self._open.get()
        self._open.clear()
        yield _session(key, first, last, clicks)

    def _keep(self, first: int, last: int, clicks: int) -> None:
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        self._open.update((first, last, clicks))
        self._handle.registerTimer(last + self._gap_ms)


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def _session(key: Any, first: int, last: int, clicks: int) -> Row:
    return Row(user=key[0], first=first, last=last, clicks=clicks)


def run(spark: SparkSession, name_server: str, topic: str, out: Path, gap_s: float) -> None:
    """Adds the sessions that have ended to the Parquet files in `out`."""
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    clicks = (
        spark.readStream.format("tandemmq")
        .options(
            nameServer=name_server, topic=topic, startingOffsets="earliest", columns="keys,storeTimestamp"
        )
        .schema("keys string, storeTimestamp timestamp")
        .load()
        .withWatermark("storeTimestamp", "0 seconds")
    )
    sessions = clicks.groupBy("keys").transformWithState(
        Sessions(gap_s), "user string, first long, last long, clicks long", "append", "eventTime"
    )
    query = (
        sessions.writeStream.format("parquet")
        .option("checkpointLocation", str(out / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(out / "rows"))
    )
    query.awaitTermination()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name_server")
    parser.add_argument("topic")
    parser.add_argument("out", type=Path)
    parser.add_argument("--gap", type=float, default=30.0, help="seconds")
    options = parser.parse_args()
    run(build_session("sessions"), options.name_server, options.topic, options.out, options.gap)


if __name__ == "__main__":
    main()
