"""Topics as tables and streams of Spark, and what the pipelines left."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tandemmq.spark.lake.sink import LakeSink
from tandemmq.spark.offsets import measure_lag
from tandemmq.spark.pipelines.history import history
from tandemmq.spark.pipelines.rollup import read_rollup
from tandemmq.spark.session import build_session


def work() -> None:
    spark: SparkSession = build_session("orders", settings={"spark.ui.enabled": "false"})
    spark.dataSource.register(LakeSink)
    orders: DataFrame = (
        spark.read.format("tandemmq").option("nameServer", "127.0.0.1:9876").option("topic", "Orders").load()
    )
    print(orders.count())
    query = orders.writeStream.format("tandemmq").option("topic", "Copies").start()
    for progress in query.recentProgress:
        for source in progress.sources:
            print(measure_lag(source.endOffset, source.latestOffset))
    everything: DataFrame = history(spark, lake="/data/orders", name_servers="127.0.0.1:9876")
    print(everything.columns)
    for row in read_rollup(Path("/data/rollup"), topic="Orders"):
        print(row)


if __name__ == "__main__":
    work()
