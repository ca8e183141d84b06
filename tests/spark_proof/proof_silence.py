"""Removes messages under a running query, and checks whether the query reports it.

Strategy:   for each hazard a stream lands a part of its topic and is stopped; more messages are acknowledged,
            and the hazard removes some of them, or the whole topic. Then two queries resume from the same
            checkpoint. A strict one must fail and name the topic if a message that it has not landed is gone.
            A lenient one must land everything that the broker has, and report the rest in its log. Every
            acknowledged message that is neither present nor reported counts as skipped in silence.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.errors import StreamingQueryException

from tandemmq.api.calls import call
from tandemmq.client import BlockingAdmin, BlockingProducer, Message
from tandemmq.launcher import Server, stopping, write_properties
from tandemmq.protocol.codes import RequestCode
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.machine import LoopClock, TcpNetwork
from tandemmq.spark.lake.sink import SINK_NAME
from tandemmq.telemetry import events
from tandemmq.units import MIB
from waits import until_blocking

LANDED, UNREAD, LATER = 60, 50, 90
QUEUE_COUNT = 2
FILLER = b"x" * 4000
WAIT_S = 180.0
LOG_S = 10.0
LATER_CLOCK = """import time
_time, _time_ns, _later_s = time.time, time.time_ns, 80 * 3600
time.time = lambda: _time() + _later_s
time.time_ns = lambda: _time_ns() + _later_s * 10**9
"""
"""Code that Python runs at its start, so that fileReservedTime has passed."""


@dataclass(frozen=True, slots=True)
class Hazard:
    """A way to lose messages. `act` performs it; `sends_after` is the number of messages acknowledged
    afterwards.
    """

    name: str
    act: Callable[[SilenceProof, str], None]
    sends_after: int = 0
    is_running: bool = False
    """True if the query runs meanwhile."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one hazard. `silent`: the number of messages that are gone or were skipped without a
    report.
    """

    name: str
    acknowledged: int
    landed: int
    reported: int
    silent: int
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.name}: acknowledged {self.acknowledged}, landed {self.landed}, "
            f"queues with reported losses: {self.reported}, silent: {self.silent}"
        )


class SilenceProof:
    """A separate name server and master with small log files, and one Spark session."""

    def __init__(self, spark: Any, spark_log: Path, directory: Path) -> None:
        self._spark = spark
        self._spark_log = spark_log
        self._directory = directory
        directory.mkdir()
        listen = {"listenPort": 0, "bindAddress": "127.0.0.1"}
        conf = write_properties(directory / "namesrv.conf", listen)
        self._name_server = Server("name server", ["namesrv", "-c", str(conf)], directory / "namesrv.log")
        self._store = directory / "store"

    @contextmanager
    def cluster(self) -> Iterator[None]:
        """Runs the servers for the duration of the block."""
        self._name_server.start()
        self._namesrv = self._name_server.address
        settings = {
            "namesrvAddr": self._namesrv,
            "brokerName": "silence",
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "listenPort": 0,
            "mappedFileSizeCommitLog": MIB,
            "flushConsumeQueueThoroughInterval": 1000,
            "storePathRootDir": self._store,
        }
        conf = write_properties(self._directory / "broker.conf", settings)
        self._master = Server("master", ["broker", "-c", str(conf)], self._directory / "broker.log")
        with stopping([self._name_server, self._master]):
            self._master.start()
            yield

    def run(self) -> Iterator[Verdict]:
        """Runs all hazards and yields a verdict for each."""
        for number, hazard in enumerate(HAZARDS):
            yield self._run_one(hazard, f"ProofSilence{number}")

    def _run_one(self, hazard: Hazard, topic: str) -> Verdict:
        strict, lenient = self._directory / f"{topic}-strict", self._directory / f"{topic}-lenient"
        self.create(topic)
        numbers = iter(range(1_000_000))
        acknowledged = self._send(topic, numbers, LANDED)
        reasons: list[str] = []
        if hazard.is_running:
            query = self._start(topic, strict, is_strict=True, is_running=True)
            until_blocking(lambda: len(_read(strict)) >= LANDED, "the query lands", WAIT_S)
            shutil.copytree(strict, lenient)
            hazard.act(self, topic)
            acknowledged |= self._send(topic, numbers, hazard.sends_after)
            failure = _failure(query, WAIT_S)
            query.stop()
        else:
            failure = self._land(topic, strict, is_strict=True)
            if failure is not None:
                raise TimeoutError(f"{topic}: nothing is landed: {failure}")
            shutil.copytree(strict, lenient)
            acknowledged |= self._send(topic, numbers, UNREAD)
            hazard.act(self, topic)
            acknowledged |= self._send(topic, numbers, hazard.sends_after)
            failure = self._land(topic, strict, is_strict=True)
        self._land(topic, lenient, is_strict=False)
        landed, there = _read(lenient), self._stored_numbers(topic)
        gone = {number: queue for number, queue in acknowledged.items() if number not in landed | there}
        reported = self._reported_queues(topic, set(gone.values()))
        silent = len(there - landed) + sum(queue not in reported for queue in gone.values())
        if failure is None:
            silent += len(acknowledged.keys() - _read(strict))
        elif topic not in failure:
            reasons.append(f"{hazard.name}: the error does not name the topic: {failure[:200]}")
        if (gone or hazard.sends_after) and failure is None:
            reasons.append(f"{hazard.name}: the strict query did not fail")
        return Verdict(hazard.name, len(acknowledged), len(landed), len(reported), silent, tuple(reasons))

    # The hazards.

    def create(self, topic: str, queue_count: int = QUEUE_COUNT) -> None:
        with BlockingAdmin(self._namesrv) as admin:
            admin.create_topic(topic, queue_count=queue_count)

    def delete(self, topic: str) -> None:
        with BlockingAdmin(self._namesrv) as admin:
            admin.delete_topic(topic)

    def make_again(self, topic: str) -> None:
        self.delete(topic)
        self.create(topic)

    def shrink(self, topic: str) -> None:
        with BlockingAdmin(self._namesrv) as admin:
            admin.update_topic(topic, queue_count=1, force=True)

    def lose_disk(self, topic: str) -> None:
        self._master.kill()
        shutil.rmtree(self._store)
        self._master.start()
        self.create(topic)

    def expire(self, topic: str) -> None:
        """Deletes the oldest files of the log, with messages that the query has not read."""
        self._send("ProofFiller", iter(range(1_000_000)), 600, FILLER)
        before = self._first_offset(topic)
        site = self._directory / "later"
        site.mkdir()
        (site / "sitecustomize.py").write_text(LATER_CLOCK)
        path = os.pathsep.join((str(site), os.environ.get("PYTHONPATH", "")))
        self._master.stop()
        self._master.environment = {**os.environ, "PYTHONPATH": path}
        self._master.start()

        def is_gone() -> bool:
            asyncio.run(_clean(self._master.address))
            return self._first_offset(topic) > before

        until_blocking(is_gone, "an old file is deleted", WAIT_S)

    def _first_offset(self, topic: str) -> int:
        with BlockingAdmin(self._namesrv) as admin:
            return min(found.min_offset for found in admin.topic_offsets(topic).values())

    # Sending, landing and reading of reports.

    def _send(self, topic: str, numbers: Iterator[int], count: int, filler: bytes = b"") -> dict[int, int]:
        """Sends messages; returns the queue of each by its number."""
        sent: dict[int, int] = {}
        with BlockingProducer("proof", self._namesrv) as producer:
            for number in islice(numbers, count):
                result = producer.send(Message(topic=topic, body=b"%d " % number + filler))
                sent[number] = result.queue.queue_id
        return sent

    def _stored_numbers(self, topic: str) -> set[int]:
        """Returns the numbers of the messages that the broker has now."""
        with BlockingAdmin(self._namesrv) as admin:
            if topic not in admin.topics():
                return set()
        table = self._spark.read.format("tandemmq")
        rows = table.options(nameServer=self._namesrv, topic=topic, columns="body").load().collect()
        return {int(row.body) for row in rows}

    def _start(self, topic: str, out: Path, *, is_strict: bool, is_running: bool) -> Any:
        known = {"nameServer": self._namesrv, "topic": topic, "startingOffsets": "earliest"}
        stream = self._spark.readStream.format("tandemmq").options(**known)
        stream = stream.option("failOnDataLoss", str(is_strict).lower()).load()
        writer = stream.writeStream.format(SINK_NAME).option("checkpointLocation", str(out / "_checkpoint"))
        trigger = {"processingTime": "200 milliseconds"} if is_running else {"availableNow": True}
        return writer.trigger(**trigger).start(str(out))

    def _land(self, topic: str, out: Path, *, is_strict: bool) -> str | None:
        """Lands all current messages; returns the failure of the query."""
        query = self._start(topic, out, is_strict=is_strict, is_running=False)
        failure = _failure(query, WAIT_S)
        if query.isActive:
            query.stop()
            return f"{topic}: it does not end"
        return failure

    def _reported_queues(self, topic: str, wanted: set[int]) -> set[int]:
        """Returns the queues whose losses a query logged; the log may lag behind for a moment."""
        line = re.compile(rf"{re.escape(events.MESSAGES_LOST)} queue={topic}@[^ :]+:(\d+)")
        reported: set[int] = set()

        def is_reported() -> bool:
            reported.update(map(int, line.findall(self._spark_log.read_text(errors="replace"))))
            return reported >= wanted

        with suppress(AssertionError):  # missing reports are counted by the caller
            until_blocking(is_reported, "each loss is reported", LOG_S)
        return reported


async def _clean(address: str) -> None:
    client = RemotingClient(network=TcpNetwork(), clock=LoopClock())
    try:
        await call(client, address, RequestCode.DELETE_EXPIRED_COMMITLOG)
    finally:
        await client.close()


def _failure(query: Any, seconds: float) -> str | None:
    """Returns the failure of a query; None if it ended well or still runs."""
    try:
        query.awaitTermination(seconds)
    except StreamingQueryException as error:
        return str(error)
    return None


def _read(lake: Path) -> set[int]:
    """Returns the messages of the visible batches."""
    if next(lake.glob("batch=*/*.parquet"), None) is None:
        return set()
    return {int(body.as_py()) for body in pq.read_table(lake, columns=["body"])["body"]}


HAZARDS = (
    Hazard("a topic is deleted", SilenceProof.delete),
    Hazard("a topic is made again and stays shorter", SilenceProof.make_again, sends_after=10),
    Hazard("a topic is made again and grows past the checkpoint", SilenceProof.make_again, LATER),
    Hazard("a topic is made again while it is read", SilenceProof.make_again, LATER, is_running=True),
    Hazard("a topic loses a queue", SilenceProof.shrink),
    Hazard("a broker comes back with an empty disk", SilenceProof.lose_disk, LATER),
    Hazard("old files go before they are read", SilenceProof.expire),
)
