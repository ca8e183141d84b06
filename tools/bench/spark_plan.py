"""Measures the cost of planning one trigger of a stream over many queues; the command
`python -m bench spark-plan`.

Spark calls the stream's reader in a process of its own and passes offsets as JSON. Here the same calls run in
the process that measures, without Spark, against a broker in another process.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable

from bench.processes import running_servers
from bench.spark_read import SEND_TIMEOUT_S, fill_topic
from tandemmq.protocol.bodies.tables import Permission
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.admin import CreateTopicRequest
from tandemmq.spark.columns import select_columns
from tandemmq.spark.options import parse_options
from tandemmq.spark.stream import TopicStreamReader
from tandemmq.spark.wire import POOL, accept

BODY_BYTES = 64
TRIGGERS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCost:
    """Triggers of one kind: processor milliseconds of the planner in the median, and the size of the offset
    in the checkpoint.
    """

    what: str
    processor_ms: float
    offset_bytes: int


class Planner:
    """A stream's reader, called as Spark calls it."""

    def __init__(self, name_server: str, topic_pattern: str) -> None:
        raw = {"nameServer": name_server, "subscribePattern": topic_pattern, "startingOffsets": "earliest"}
        options = parse_options(raw, is_streaming=True)
        self._reader = TopicStreamReader(options, select_columns(options.columns, options.properties_as))
        self._at: dict[str, Any] = self._reader.initialOffset()

    def trigger(self) -> tuple[float, int]:
        """Plans one trigger; returns its processor milliseconds, and the size of the new offset in bytes."""
        begun = time.process_time()
        end = json.dumps(self._reader.latestOffset(json.loads(json.dumps(self._at)), ReadAllAvailable()))
        self._reader.partitions(json.loads(json.dumps(self._at)), json.loads(end))
        json.dumps(self._reader.reportLatestOffset())
        taken = time.process_time() - begun
        self._at = json.loads(end)
        return taken * 1000, len(end)


def create_topics(address: str, topics: list[str], queue_count: int) -> None:
    """Creates the topics on the broker.

    Raises:  the RequestRejected class of a topic that the broker rejects.
    """
    commands = []
    for topic in topics:
        header = CreateTopicRequest(
            topic=topic,
            default_topic="TBW102",
            read_queue_count=queue_count,
            write_queue_count=queue_count,
            permission=int(Permission.READ | Permission.WRITE),
        )
        commands.append(Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header))
    with POOL.borrow(address) as connection:
        for answer in connection.request_all(commands, 10 * SEND_TIMEOUT_S):
            accept(answer)


def measure_plans(topic_count: int, queue_count: int, moved: int) -> Iterator[PlanCost]:
    """Yields the costs of triggers of `topic_count * queue_count` queues: the first one, one without news,
    one with messages in `moved` queues, and one with messages in every queue.
    """
    with (
        tempfile.TemporaryDirectory(prefix="tandemmq-bench-") as name,
        running_servers(Path(name)) as servers,
    ):
        address = servers.broker.address
        topics = [f"BenchPlan{number:04}" for number in range(topic_count)]
        create_topics(address, topics, queue_count)

        def send(count: int) -> None:
            """Sends one message to each of the first `count` queues."""
            for topic in topics:
                rows = min(count, queue_count)
                if rows:
                    fill_topic(address, topic, rows=rows, body_bytes=BODY_BYTES, queue_count=queue_count)
                count -= rows

        send(topic_count * queue_count)
        planner = Planner(servers.name_server.address, "BenchPlan.*")
        yield _measure("first", planner, lambda: None, 1)
        yield _measure("without news", planner, lambda: None, TRIGGERS)
        yield _measure(f"with messages in {moved} queues", planner, lambda: send(moved), TRIGGERS)
        yield _measure("with messages in every queue", planner, lambda: send(topic_count * queue_count), 2)


def _measure(what: str, planner: Planner, prepare: Callable[[], None], runs: int) -> PlanCost:
    costs, size = [], 0
    for _ in range(runs):
        prepare()
        taken, size = planner.trigger()
        costs.append(taken)
    return PlanCost(what=what, processor_ms=statistics.median(costs), offset_bytes=size)


def render_plan(cost: PlanCost) -> str:
    return (
        f"trigger {cost.what}: planner {cost.processor_ms:,.0f} ms of processor time, "
        f"offset {cost.offset_bytes:,} bytes"
    )
