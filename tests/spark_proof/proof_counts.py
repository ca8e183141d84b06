"""Counts the arrived messages in three ways, and compares them with the acknowledged ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from proof_brokers import QUEUE_COUNT
from proof_publisher import DIGITS

PLACES_PER_QUEUE = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The numbers of rows and of distinct queue positions, by each counter."""

    arrow: int
    arrow_distinct: int
    spark: int
    spark_distinct: int
    broker: int
    lost: int
    """The number of messages that were acknowledged, or are in a queue, but are missing from the lake."""
    duplicated: int
    """The number of rows that repeat a queue position or a message."""

    @property
    def are_equal(self) -> bool:
        numbers = {self.arrow, self.arrow_distinct, self.spark, self.spark_distinct, self.broker}
        return len(numbers) == 1

    @property
    def is_good(self) -> bool:
        return self.are_equal and not self.lost and not self.duplicated


def count_lake(spark: Any, lake: Path, broker_count: int, acknowledged: bytes | bytearray) -> Counts:
    """Counts every row of the lake, with pyarrow and with Spark."""
    table = pq.read_table(lake, columns=["queueId", "queueOffset", "body"])
    queues, offsets = table["queueId"].to_numpy(), table["queueOffset"].to_numpy()
    places = np.unique(queues.astype(np.int64) * PLACES_PER_QUEUE + offsets)
    numbers = read_numbers(table)
    arrived = np.bincount(numbers, minlength=len(acknowledged))
    promised = np.frombuffer(bytes(acknowledged), dtype=np.uint8).astype(bool)
    frame = spark.read.parquet(str(lake))
    distinct = len(places)
    assert queues.max(initial=0) < QUEUE_COUNT
    return Counts(
        arrow=table.num_rows,
        arrow_distinct=distinct,
        spark=frame.count(),
        spark_distinct=frame.select("queueId", "queueOffset").distinct().count(),
        broker=broker_count,
        lost=int((arrived[: len(promised)][promised] == 0).sum()) + max(0, broker_count - distinct),
        duplicated=max(table.num_rows - distinct, int((arrived - 1).clip(0).sum())),
    )


def read_numbers(table: Any) -> Any:
    """Returns the numbers that the publisher put at the start of the bodies."""
    import pyarrow as pa
    import pyarrow.compute as pc

    heads = pc.binary_slice(table["body"], 0, DIGITS)
    return pc.cast(pc.cast(heads, pa.string()), pa.int64()).to_numpy()
