"""A Spark stream that reads one topic while its cluster is harmed, in a process of its own.

The process: spark_reader.py NAME_SERVER TOPIC FOLDER. Reads from the oldest message on, with a checkpoint in
FOLDER, until it is stopped. Each batch with rows becomes a line of FOLDER/batches, once it is done:

    {"batch": 3, "done_s": 1234.5, "rows": [[queue id, queue offset, number in the body], ...]}

A query that fails restarts from its checkpoint, and writes the reason as a line to FOLDER/failures. A batch
may therefore occur twice with the same number, which is at-least-once delivery; nothing else may occur twice.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

START_S = 120.0
END_S = 120.0
"""The time after the last send within which everything must have been read."""
EVERY = "200 milliseconds"
"""The shortest interval between two batches: the brokers share the processors with Spark."""


@dataclass(frozen=True, slots=True)
class Batch:
    number: int
    done_s: float  # by the monotonic clock, which all processes share
    rows: tuple[tuple[int, int, int], ...]


@dataclass(slots=True)
class StreamFindings:
    """The faults in the rows that a stream read, and the time until it continued after each fault."""

    row_count: int = 0
    restarts: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    waits_ms: list[float] = field(default_factory=list)
    """The time from each fault to the end of the next batch with a send that began after it."""

    def line(self) -> str:
        waits = sorted(self.waits_ms)
        p50, p99 = (round(waits[math.ceil(part * len(waits)) - 1]) if waits else 0 for part in (0.5, 0.99))
        return (
            f"spark stream: rows={self.row_count} lost={len(self.lost)} duplicated={len(self.duplicated)}"
            f" restarts={len(self.restarts)} next_batch_ms={p50}/{p99}"
        )


def judge_stream(
    batches: Iterable[Batch],
    promised: Mapping[tuple[int, int], int],
    *,
    begun_s: Mapping[int, float],
    faults_s: Iterable[float],
) -> StreamFindings:
    """Judges a stream. `promised`: queue id and queue offset -> number of the send; `begun_s`: number -> when
    it began.
    """
    by_number = {batch.number: batch for batch in batches}  # a repeated batch counts once
    ordered = sorted(by_number.values(), key=lambda batch: batch.done_s)
    read: dict[tuple[int, int], int] = {}
    places: Counter[tuple[int, int]] = Counter()
    for batch in ordered:
        for queue_id, queue_offset, number in batch.rows:
            places[queue_id, queue_offset] += 1
            read[queue_id, queue_offset] = number
    findings = StreamFindings(row_count=places.total())
    for place, number in promised.items():
        if read.get(place) != number:
            findings.lost.append(f"the stream has {read.get(place)} at {place}, not send {number}")
    findings.duplicated = [f"the stream has {place} {n} times" for place, n in places.items() if n > 1]
    for fault_s in faults_s:
        waits = (
            batch.done_s - fault_s
            for batch in ordered
            if any(begun_s.get(number, 0.0) >= fault_s for _, _, number in batch.rows)
        )
        wait_s = next(waits, None)
        if wait_s is not None:
            findings.waits_ms.append(wait_s * 1000)
    return findings


class SparkReader:
    """The process and the batches that it has read so far."""

    def __init__(self, name_server: str, topic: str, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        command = [sys.executable, __file__, name_server, topic, str(folder)]
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)

    def check_alive(self) -> None:
        """Raises AssertionError if the process has ended by itself."""
        log = self._folder / "log"
        assert self._process.poll() is None, f"the Spark stream has ended; its log is {log}"

    def batches(self) -> list[Batch]:
        """Returns the completed batches."""
        path = self._folder / "batches"
        text = path.read_text() if path.exists() else ""
        lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [
            Batch(line["batch"], line["done_s"], tuple((q, o, n) for q, o, n in line["rows"]))
            for line in lines
        ]

    def failures(self) -> list[str]:
        """Returns the reason for each restart of the query."""
        path = self._folder / "failures"
        return path.read_text().splitlines() if path.exists() else []

    def close(self) -> None:
        """Ends the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(60.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _note(path: Path) -> Callable[[Any, int], None]:
    def note(frame: Any, number: int) -> None:
        rows = [(row[0], row[1], int(bytes(row[2]).split(b" ", 1)[0])) for row in frame.collect()]
        if rows:
            with path.open("a") as file:
                file.write(json.dumps({"batch": number, "done_s": time.monotonic(), "rows": rows}) + "\n")

    return note


def read_on(name_server: str, topic: str, folder: Path) -> None:
    """Reads until standard input ends."""
    import threading

    from pyspark.errors import StreamingQueryException

    from tandemmq.spark.session import build_session

    spark = build_session("failover", "local[2]")
    is_ending = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.buffer.read()
        is_ending.set()
        for query in spark.streams.active:
            query.stop()

    threading.Thread(target=wait_for_end, daemon=True).start()
    source = spark.readStream.format("tandemmq").options(nameServer=name_server, topic=topic)
    frame = source.option("startingOffsets", "earliest").load().select("queueId", "queueOffset", "body")
    while not is_ending.is_set():
        writer = frame.writeStream.foreachBatch(_note(folder / "batches")).trigger(processingTime=EVERY)
        try:
            writer.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()
        except StreamingQueryException as error:
            with (folder / "failures").open("a") as file:
                file.write(str(error).replace("\n", " ")[:400] + "\n")
            is_ending.wait(0.5)
    spark.stop()


if __name__ == "__main__":
    read_on(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
