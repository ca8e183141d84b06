"""Topic Flights -> table `flights`; from it the table `delays` and, at the brokers, the topic LateFlights.

Each of the three has one flow: rows of two flows into one table get lost (see README.md).
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()
NAME_SERVER = os.environ.get("TANDEMMQ_NAMESRV", "127.0.0.1:9876")
SCHEMA = "carrier string, origin string, hour int, delay double"


@dp.table
def flights() -> DataFrame:
    """Every message once, across all runs: the checkpoint knows what was read."""
    messages = (
        spark.readStream.format("tandemmq")
        .options(nameServer=NAME_SERVER, topic="Flights", startingOffsets="earliest")
        .option("columns", "brokerName,queueId,queueOffset,storeTimestamp,body")
        .load()
    )
    flight = f.from_json(f.col("body").cast("string"), SCHEMA)
    return messages.withColumn("flight", flight).select(
        "brokerName", "queueId", "queueOffset", "storeTimestamp", "flight.*"
    )


@dp.materialized_view
def delays() -> DataFrame:
    """Computed anew by every run, from the whole table."""
    groups = spark.read.table("flights").groupBy("carrier")
    return groups.agg(f.count("*").alias("flights"), f.round(f.avg("delay"), 1).alias("mean_delay"))


dp.create_sink("late_flights", "tandemmq", {"nameServer": NAME_SERVER, "topic": "LateFlights"})


@dp.append_flow(target="late_flights")
def late() -> DataFrame:
    """Flights that were more than an hour late, as messages tagged with the carrier."""
    late = spark.readStream.table("flights").where("delay > 60")
    body = f.to_json(f.struct("origin", "hour", "delay"))
    return late.select(body.alias("body"), f.col("carrier").alias("tags"))
