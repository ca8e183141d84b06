"""The content of a Spark task: its ranges, and the addresses of the brokers when it was planned.

A reader is pickled into every task, so it contains options and addresses, never a socket (spec spark SP-12).
The processes that plan import this module and read nothing. The reading is a separate module (`read_task`),
because its imports of numpy and pyarrow would cost such a process as much as all the rest (spec spark SP-66).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from tandemmq.spark.metadata import Replicas, Topology
from tandemmq.spark.offsets import OffsetRange, render_queues
from tandemmq.spark.options import SourceOptions
from tandemmq.spark.packing import PlannedTask
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

BATCH_ID = "streaming.sql.batchId"
"""The task property with the batch number of a streaming query; a replayed batch has the same number (spec
spark SP-52).
"""

QUERY_ID = "sql.streaming.queryId"
"""The task property with the id of the query, which the checkpoint fixes."""


@dataclass
class TaskRanges(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """The ranges of one task, and the addresses of the brokers when it was planned."""

    ranges: tuple[OffsetRange, ...]
    replicas: dict[str, dict[int, str]]


def make_tasks(tasks: Sequence[PlannedTask], replicas: Replicas) -> list[TaskRanges]:
    """Returns the tasks of a plan, each with the addresses of its brokers."""
    known = {broker: dict(addresses) for broker, addresses in replicas.items()}
    return [
        TaskRanges(task, {name: known.get(name, {}) for name in sorted({item.queue.broker for item in task})})
        for task in tasks
    ]


def log_plan(
    tasks: Sequence[TaskRanges], options: SourceOptions, known: Topology, used: Topology, **facts: object
) -> None:
    """Logs on the driver, with the option `explain`, what the tasks read and from where.

    `used`: `known` without the slaves that are too far behind.
    """
    if not options.is_explained:
        return
    ranges = [item for task in tasks for item in task.ranges]
    slow = sorted(
        f"{broker}:{broker_id}"
        for broker, addresses in known.replicas.items()
        for broker_id in set(addresses) - set(used.replicas.get(broker, addresses))
    )
    plan = {
        "messages": sum(item.end - item.begin for item in ranges),
        "queues": len({item.queue for item in ranges}),
        "tasks": len(tasks),
        "filter": options.subscription,
        "read_from": options.read_from.value if options.replica is None else f"replica {options.replica}",
        "slow_slaves": ",".join(slow) or "-",
    }
    _log_explained(events.READ_PLANNED, {**plan, **facts})


def log_read(task: TaskRanges, options: SourceOptions, **facts: object) -> None:
    """Logs on the executor, with the option `explain`, the cost of reading the task."""
    if options.is_explained:
        _log_explained(
            events.READ_FINISHED, {"queues": render_queues([item.queue for item in task.ranges]), **facts}
        )


def _log_explained(event: str, facts: Mapping[str, object]) -> None:
    if not log.isEnabledFor(logging.INFO):
        # The option `explain` asks for this line, but the process logs only warnings by default.
        log.setLevel(logging.INFO)
    log.info(event, extra=dict(facts))
