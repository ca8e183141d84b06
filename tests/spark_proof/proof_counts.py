"""What arrived, counted three ways, and compared with what the outside was promised."""

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
    """Rows, and different places in queues, as each of them counts."""

    arrow: int
    arrow_distinct: int
    spark: int
    spark_distinct: int
    broker: int
    lost: int
    """Acknowledged and not in the lake, or in a queue and not in the lake."""
    duplicated: int
    """Rows of a place or of a message that is there already."""

    @property
    def are_equal(self) -> bool:
        numbers = {self.arrow, self.arrow_distinct, self.spark, self.spark_distinct, self.broker}
        return len(numbers) == 1

    @property
    def is_good(self) -> bool:
        return self.are_equal and not self.lost and not self.duplicated


def count_lake(spark: Any, lake: Path, broker_count: int, acknowledged: bytes | bytearray) -> Counts:
    """Every row of the lake looked at, by pyarrow and by Spark."""
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
    """The numbers that the publisher put at the front of the bodies."""
    import pyarrow as pa
    import pyarrow.compute as pc

    heads = pc.binary_slice(table["body"], 0, DIGITS)
    return pc.cast(pc.cast(heads, pa.string()), pa.int64()).to_numpy()
