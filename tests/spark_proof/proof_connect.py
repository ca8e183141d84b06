"""A Spark Connect session in a separate process: `proof_connect.py NAMESRV TOPIC COPY CHECKPOINT`.

Reads a topic as a table and as a stream, sends the stream to another topic, and prints its counts as one line
of JSON. The server is Spark's own, started by the session; it finds the formats by name.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main(namesrv: str, topic: str, copy: str, checkpoint: str) -> None:
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    source = {"nameServer": namesrv, "startingOffsets": "earliest", "columns": "queueId,queueOffset,body"}
    table = spark.read.format("tandemmq").options(**source, topic=topic).load()
    stream = spark.readStream.format("rocketmq").options(**source, topic=topic).load()
    query = (
        stream.select("body")
        .writeStream.format("tandemmq")
        .options(nameServer=namesrv, topic=copy, checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    copied = spark.read.format("tandemmq").options(**source, topic=copy).load()
    counts = {
        "read": table.count(),
        "pushed": table.where("queueId IN (0, 1, 2, 3) AND queueOffset >= 0").count(),
        "copied": copied.select("body").distinct().count(),
        "rows": copied.count(),
    }
    print(json.dumps(counts), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
