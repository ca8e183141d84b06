"""Kills a service of many topics, with everything that belongs to it, and the master under it, while each of
its topics gets messages and the options change. Meanwhile one topic fails, and is repaired; one is added, and
one loses queues. Then the check measures how fresh the rows are, counts the messages of each lake, and plants
damage in a lake of each format.

    PYTHONPATH=tests python tests/spark_proof/proof_service.py --topics 200
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from proof_brokers import QUEUE_COUNT, Brokers, running_brokers
from proof_counts import read_numbers
from proof_processes import Event, Pipeline
from proof_publisher import DIGITS

from tandemmq.client import BlockingProducer, Message, ProducerOptions
from tandemmq.spark.lake.check import check_lake
from tandemmq.spark.lake.view import view_lake
from waits import until_blocking

PREFIX = "Many"
FORMATS = ("parquet", "delta", "iceberg")
TABLE_EVERY = 10
"""Among ten topics there are one Delta and one Iceberg table; the others are Parquet files."""
PER_ROUND = 5
ROUND_S = 5.0
ROUNDS = 12
FRESH_S_MAX = 60.0
WAIT_S = 600.0

Start = Callable[..., Pipeline]


class ServiceProof:
    """The check of `pipeline serve` over `count` topics, of which one is made while the service runs.
    `topics`: the number of topics whose lakes are exact.
    """

    def __init__(self, brokers: Brokers, start: Start, directory: Path, count: int) -> None:
        self._brokers = brokers
        self._start = start
        self._directory = directory
        self._lakes = directory / "service"
        self._names = [_name_topic(number) for number in range(count - 1)]
        self._new = _name_topic(count)
        self._broken = _name_topic(1)
        self._shrunk = _name_topic(2)
        self._sent = 0
        self.topics = 0

    def run(self) -> Iterator[tuple[str, list[str]]]:
        """Yields texts on the progress, each with its faults."""
        for name in self._names:
            self._brokers.create_topic(name)
        self._lakes.mkdir()
        (self._lakes / self._broken).write_text("in the way of the lake's directory")
        self._send_round()
        for number, what in enumerate(("java", "broker", "everything")):
            yield self._kill(what, batch_rows=7 - number)
        service = self._serve(batch_rows=1000)
        self._send_round()
        yield self._repair(service)
        self._await_rows(service)
        yield f"service: {len(self._names)} topics have {self._sent} rows each", []
        yield self._change_topics(service)
        begun = len(service.events)
        for _ in range(ROUNDS):
            due_at = time.monotonic() + ROUND_S
            self._send_round()
            time.sleep(max(0.0, due_at - time.monotonic()))
        self._await_rows(service)
        yield self._judge_freshness(service.events[begun:])
        code = service.end(signal.SIGTERM)
        yield self._count(code)
        for kind in FORMATS:
            yield self._plant(kind)

    def _serve(self, batch_rows: int) -> Pipeline:
        """Starts the service; the options of a batch differ from those of the previous start."""
        path = self._directory / "service.yaml"
        topics = [{"pattern": f"{PREFIX}-{kind}-.*", "format": kind} for kind in FORMATS]
        document = {"nameServer": self._brokers.namesrv, "out": str(self._lakes), "topics": topics}
        path.write_text(yaml.safe_dump({**document, "defaults": {"batchRows": batch_rows}}))
        return self._start("serve", "--config", str(path), "--master", "local[2]")

    def _kill(self, what: str, batch_rows: int) -> tuple[str, list[str]]:
        """Starts the service, and kills it, or the master first, amid its batches."""
        service = self._serve(batch_rows)
        self._send_round()
        is_found = self._await_batches(service)
        if what == "broker":
            begun = len(service.events)
            self._brokers.master.kill()
            self._brokers.master.start()
            self._send_round()
            is_found = is_found and self._await_batches(service, begun)
        code: int | None = 1
        if what == "java":
            service.kill_java()
            code = service.end(seconds=WAIT_S)
        service.kill_all()
        text = f"service: killed {what} after {len(service.events)} events"
        reasons = [] if is_found else [f"{text}: no batches: {service.events[-2:]}"]
        if code in (0, None):
            reasons.append(f"the service ended with {code} after its Java was killed")
        if self._broken not in {e["topic"] for e in service.events if e.get("state") == "failing"}:
            reasons.append(f"{text}: {self._broken} does not fail, though a file is in the way")
        return text, reasons

    def _repair(self, service: Pipeline) -> tuple[str, list[str]]:
        """Removes the obstacle of the failing topic while the service runs."""
        found = service.wait_for(
            lambda e: e.get("topic") == self._broken and e.get("state") == "failing", WAIT_S
        )
        (self._lakes / self._broken).unlink()
        error = found["error"] if found else f"did not fail: {service.events[-2:]}"
        return f"service: {self._broken}: {error}", [] if found else [f"{self._broken}: {error}"]

    def _change_topics(self, service: Pipeline) -> tuple[str, list[str]]:
        """Makes a topic, and reduces another one to one queue; that one must fail until it has its queues
        again, because they may have had further messages.
        """
        self._brokers.create_topic(self._new)
        self._send([self._new], range(self._sent))
        self._names.append(self._new)
        self._brokers.resize_topic(self._shrunk, 1)
        self._send_round()
        found = service.wait_for(
            lambda e: e.get("topic") == self._shrunk and e.get("state") == "failing", WAIT_S
        )
        self._brokers.resize_topic(self._shrunk, QUEUE_COUNT)
        self._await_rows(service)
        error = found["error"] if found else "did not fail"
        return f"service: added {self._new}; {self._shrunk}: {error}", [] if "gone" in error else [error]

    def _send_round(self) -> None:
        """Sends the next numbers to every topic."""
        self._send(self._names, range(self._sent, self._sent + PER_ROUND))
        self._sent += PER_ROUND

    def _send(self, names: list[str], numbers: range) -> None:
        messages = [
            Message(topic=name, body=b"%0*d" % (DIGITS, number)) for number in numbers for name in names
        ]
        # A repeated send may be stored twice, which no pipeline could detect.
        options = ProducerOptions(timeout_s=30.0, retry_count_max=0)
        with BlockingProducer("proof-service", self._brokers.namesrv, options=options) as producer:
            summary = producer.send_many(messages)
        assert summary.failed_count == 0, summary

    def _await_batches(self, service: Pipeline, begun: int = 0) -> bool:
        """Waits until half of the topics have had a batch since an event; returns False if they have not."""

        def is_halfway(_: Event) -> bool:
            return len(_count_rows(service.events[begun:])) >= len(self._names) // 2

        return service.wait_for(is_halfway, WAIT_S) is not None

    def _await_rows(self, service: Pipeline) -> None:
        wanted = dict.fromkeys(self._names, self._sent)
        what = f"{self._sent} rows of each topic"
        until_blocking(lambda: _count_rows(service.events) == wanted, what, WAIT_S)

    def _judge_freshness(self, events: list[Event]) -> tuple[str, list[str]]:
        p99 = sorted(e["p99_seconds"] for e in events if e["event"] == "topic_batch" and e["rows"])
        worst, median = p99[-1], p99[len(p99) // 2]
        text = f"service: p99 of {len(p99)} batches: median {median:.1f} s, worst {worst:.1f} s"
        return text, [] if worst < FRESH_S_MAX else [text]

    def _count(self, code: int | None) -> tuple[str, list[str]]:
        reasons = [] if code == 0 else [f"the service ended with {code} after SIGTERM"]
        for name in self._names:
            tables = [pq.read_table(path, columns=["body"], partitioning=None) for path in self._files(name)]
            numbers = np.sort(np.concatenate([read_numbers(table) for table in tables]))
            if np.array_equal(numbers, np.arange(self._sent)):
                self.topics += 1
            else:
                distinct = len(np.unique(numbers))
                reasons.append(f"{name}: {len(numbers)} rows, {distinct} distinct of {self._sent}")
        return f"service: {self.topics} of {len(self._names)} lakes are exact", reasons

    def _files(self, name: str) -> list[Path]:
        view = view_lake(self._lakes / name)
        places = [Path(place) for piece in view.pieces for place in piece.places]
        return [path for at in places for path in (sorted(at.glob("*.parquet")) if at.is_dir() else [at])]

    def _plant(self, kind: str) -> tuple[str, list[str]]:
        """Removes a row of the first file of a lake, and doubles one of the last file; the check of the lake
        and the audit must find both.
        """
        name = next(name for name in self._names if name.startswith(f"{PREFIX}-{kind}-"))
        cut, *_, doubled = self._files(name)
        table = pq.ParquetFile(cut).read()
        pq.write_table(table.slice(1), cut)
        table = pq.ParquetFile(doubled).read()
        pq.write_table(pa.concat_tables([table, table.slice(0, 1)]), doubled)
        faults = check_lake(self._lakes / name).faults
        # A Parquet lake has a summary of each batch, a table's log names each file.
        places = [path.parent.name if kind == "parquet" else path.name for path in (cut, doubled)]
        missed = [place for place in places if not any(place in fault for fault in faults)]
        options = ("--topic", name, "--lake", str(self._lakes / name), "--master", "local[2]")
        audit = self._start("audit", "--namesrv", self._brokers.namesrv, *options)
        code = audit.end(seconds=WAIT_S)
        verdicts = {e["side"]: e for e in audit.events if e["event"] == "verdict"}
        verdict = verdicts.get(f"lake {self._lakes / name}", {})
        counts = (verdict.get("missing"), verdict.get("repeated"))
        text = f"service: damage in the {kind} lake: lake check missed {missed}, the audit found {counts}"
        return text, [] if not missed and counts == (1, 1) and code == 1 else [f"{text}, exit code {code}"]


def _name_topic(number: int) -> str:
    kind = {1: "delta", 2: "iceberg"}.get(number % TABLE_EVERY - 2, "parquet")
    return f"{PREFIX}-{kind}-{number}"


def _count_rows(events: list[Event]) -> dict[str, int]:
    """Returns the rows of each topic in its last batch event."""
    return {e["topic"]: e["rows_total"] for e in list(events) if e["event"] == "topic_batch"}


def main() -> int:
    parser = argparse.ArgumentParser(description="Prove a service of many topics.")
    parser.add_argument("--topics", type=int, default=200)
    options = parser.parse_args()
    started: list[Pipeline] = []
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tandemmq-service-") as place:
        directory = Path(place)

        def start(name: str, *arguments: str) -> Pipeline:
            started.append(Pipeline(name, *arguments, log=directory / f"{name}.log"))
            return started[-1]

        with running_brokers(directory) as brokers:
            proof = ServiceProof(brokers, start, directory, options.topics)
            try:
                for text, reasons in proof.run():
                    print(text, flush=True)
                    failures += reasons
            finally:
                for pipeline in started:
                    pipeline.kill_all()
    for reason in failures:
        print(f"reason: {reason}")
    print(f"SERVICE {'FAILED' if failures else 'OK'} topics={proof.topics}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
