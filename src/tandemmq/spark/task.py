"""What a task of Spark carries: its ranges, and where the brokers lived when it was planned.

A reader is pickled into every task, so it holds options and addresses, never a socket (spec spark SP-12).
Planners import this to plan and read nothing, so numpy and pyarrow are not imported here (spec spark SP-66).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from tandemmq.spark.metadata import Replicas
from tandemmq.spark.offsets import QueueRange
from tandemmq.spark.options import SourceOptions
from tandemmq.spark.packing import plan_tasks


@dataclass
class TaskRanges(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """What one task reads, and where the brokers lived when it was planned."""

    ranges: tuple[QueueRange, ...]
    replicas: dict[str, dict[int, str]]


def make_tasks(ranges: Sequence[QueueRange], replicas: Replicas, options: SourceOptions) -> list[TaskRanges]:
    """The tasks of a batch; which range belongs to which task depends on ranges and options only (spec spark
    SP-17)."""
    tasks = plan_tasks(ranges, options.packing)
    known = {broker: dict(addresses) for broker, addresses in replicas.items()}
    return [
        TaskRanges(task, {name: known.get(name, {}) for name in sorted({item.queue.broker for item in task})})
        for task in tasks
    ]
