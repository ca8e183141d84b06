"""Kills the pipelines other than the landing, and the broker under one of them: a rollup, a history, a
replay, and a resending of dead letters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from proof_brokers import Brokers
from proof_counts import PLACES_PER_QUEUE, read_numbers
from proof_processes import Event, Pipeline
from proof_publisher import Publisher

from dead_letter_maker import make_dead_letters
from tandemmq.client import BlockingConsumer, ConsumerOptions, StartFrom
from tandemmq.spark.pipelines.rollup import read_rollup
from waits import until_blocking

ROLLED, RESENT, GROUP = "ProofRolled", "ProofResent", "proof-billing"
ROLLED_PER_SECOND = 1000.0
BATCH_ROWS = 1000
DEAD_LETTERS = 1200
"""The number of dead letters, more than one round of sending."""
REPLAYED, AGAIN, REPLAYED_ROWS = "ProofReplayed", "ProofAgain", 3000
WAIT_S = 240.0


class PipelineProof:
    """The checks of the pipelines. `start` starts a pipeline, which the proof must end; each check yields a
    text on its progress, and its faults.
    """

    def __init__(self, brokers: Brokers, start: Callable[..., Pipeline], directory: Path) -> None:
        self._brokers = brokers
        self._start = start
        self._directory = directory
        self._common = ("--namesrv", brokers.namesrv, "--master", "local[2]")

    def roll_up(self) -> Iterator[tuple[str, list[str]]]:
        """Kills Java, then the master, then everything, under a rollup; each message must be counted once."""
        out = self._directory / "rollup"
        self._brokers.create_topic(ROLLED)
        options = ("--topic", ROLLED, "--out", str(out), *self._common)
        small = ("--batch-rows", str(BATCH_ROWS), "--trigger-seconds", "0.5")
        reached = -1
        with Publisher(self._brokers.namesrv, ROLLED, rows_per_second=ROLLED_PER_SECOND, seed=3) as publisher:
            with publisher.publishing():
                for what in ("java", "broker", "everything"):
                    rollup = self._start("rollup", *options, *small)
                    reached, reasons = self._await_later_batch(rollup, reached)
                    if what == "java":
                        rollup.kill_java()
                    elif what == "broker":
                        self._brokers.master.kill()
                        self._brokers.master.start()
                        # The rollup waits for the master, and resumes by itself.
                        reached, more = self._await_later_batch(rollup, reached)
                        reasons += more
                    rollup.kill_all()
                    yield f"rollup: killed {what} after batch {reached}", reasons
            total, acknowledged = self._brokers.message_count(ROLLED), sum(publisher.acknowledged)
        rest = self._start("rollup", *options, "--once")
        code = rest.end(seconds=WAIT_S)
        counted = sum(row.messages for row in read_rollup(out, topic=ROLLED))
        text = f"rollup: counted {counted:,} of {total:,} messages, acknowledged {acknowledged:,}"
        is_good = code == 0 and counted == total >= acknowledged > 0
        yield text, [] if is_good else [f"{text}; exit code {code}: {rest.events[-2:]}"]

    def write_history(
        self, lake: Path, topic: str, acknowledged: bytearray
    ) -> Iterator[tuple[str, list[str]]]:
        """Kills a history while it writes: it must leave nothing, and the next one must contain each message
        once.
        """
        out = self._directory / "export"
        options = ("--lake", str(lake), "--out", str(out), *self._common)
        killed = self._start("history", *options)
        unfinished = out.with_name(f"{out.name}.unfinished")
        until_blocking(lambda: unfinished.exists() or out.exists(), "the first files of a history", WAIT_S)
        was_writing = not out.exists()
        killed.kill_all()
        if was_writing:
            yield "history: killed while it wrote", [f"{out} is there"] if out.exists() else []
        else:
            yield "history: it was done before it could be killed", []
            out = self._directory / "export-again"
            options = ("--lake", str(lake), "--out", str(out), *self._common)
        history = self._start("history", *options)
        code = history.end(seconds=WAIT_S)
        if code != 0:
            yield "history: failed", [f"the history ended with {code}: {history.events[-2:]}"]
            return
        table = pq.read_table(out, columns=["queueId", "queueOffset", "body"])
        queues = table["queueId"].to_numpy().astype(np.int64)
        distinct = len(np.unique(queues * PLACES_PER_QUEUE + table["queueOffset"].to_numpy()))
        promised = np.flatnonzero(np.frombuffer(bytes(acknowledged), dtype=np.uint8))
        lost = len(np.setdiff1d(promised, read_numbers(table)))
        total = self._brokers.message_count(topic)
        text = f"history: {table.num_rows:,} rows, {distinct:,} places, {total:,} messages, {lost} lost"
        yield text, [] if table.num_rows == distinct == total and not lost else [text]

    def resend(self) -> Iterator[tuple[str, list[str]]]:
        """Kills a resending between its rounds and resumes it: each dead letter must arrive, with one key."""
        make_dead_letters(self._brokers.namesrv, GROUP, "ProofOrders", DEAD_LETTERS)
        self._brokers.create_topic(RESENT)
        state = self._directory / "resent.json"
        options = ("--group", GROUP, "--resend", "--to", RESENT, "--state", str(state), *self._common)
        killed = self._start("deadletters", *options)
        found = killed.wait_for(_is_batch)
        killed.kill_all()
        yield "dead letters: killed after a round", [] if found else [f"no round: {killed.events[-2:]}"]
        again = self._start("deadletters", *options)
        code = again.end(seconds=WAIT_S)
        stored = self._brokers.message_count(RESENT)
        bodies, keys = self._consume(RESENT, stored)
        text = f"dead letters: {stored} sent, {len(bodies)} bodies, {len(keys)} keys of {DEAD_LETTERS}"
        is_good = code == 0 and len(bodies) == len(keys) == DEAD_LETTERS
        yield text, [] if is_good else [f"{text}; exit code {code}: {again.events[-2:]}"]

    def replay(self) -> Iterator[tuple[str, list[str]]]:
        """Kills a replay twice between its batches and resumes it: each message must arrive, with one key."""
        lake = self._directory / "replayed"
        self._brokers.create_topic(REPLAYED)
        self._brokers.create_topic(AGAIN)
        with Publisher(self._brokers.namesrv, REPLAYED, rows_per_second=1.0, seed=4) as publisher:
            publisher.publish(REPLAYED_ROWS)
            acknowledged = sum(publisher.acknowledged)
        topic = ("--topic", REPLAYED, "--out", str(lake), "--batch-rows", str(REPLAYED_ROWS // 6), "--once")
        code = self._start("landing", *topic, *self._common).end(seconds=WAIT_S)
        yield "replay: a lake of small batches", [f"its landing ended with {code}"] if code else []
        options = ("--lake", str(lake), "--to", AGAIN, *self._common)
        for what in ("java", "everything"):
            killed = self._start("replay", *options)
            found = killed.wait_for(_is_batch)
            if what == "java":
                killed.kill_java()
            killed.kill_all()
            text = f"replay: killed {what} after batch {found and found['batch']}"
            yield text, [] if found else [f"{text}: {killed.events[-2:]}"]
        again = self._start("replay", *options)
        code = again.end(seconds=WAIT_S)
        stored = self._brokers.message_count(AGAIN)
        bodies, keys = self._consume(AGAIN, stored)
        text = f"replay: {stored} sent, {len(bodies)} bodies, {len(keys)} keys of {acknowledged}"
        is_good = code == 0 and len(bodies) == len(keys) >= acknowledged > 0
        yield text, [] if is_good else [f"{text}; exit code {code}: {again.events[-2:]}"]

    def _consume(self, topic: str, count: int) -> tuple[set[bytes], set[str]]:
        """Consumes `count` messages; returns their distinct bodies and unique keys."""
        bodies: set[bytes] = set()
        keys: set[str] = set()
        seen = 0
        options = ConsumerOptions(start_from=StartFrom.FIRST)
        with BlockingConsumer("proof-counts", self._brokers.namesrv, options=options) as consumer:
            consumer.subscribe(topic)

            def are_all_there() -> bool:
                nonlocal seen
                for message in consumer.poll():
                    seen += 1
                    bodies.add(message.body)
                    keys.add(message.message_id)
                return seen >= count

            until_blocking(are_all_there, f"{count} messages of {topic}", WAIT_S)
        return bodies, keys

    def _await_later_batch(self, rollup: Pipeline, after: int) -> tuple[int, list[str]]:
        """Waits for a later batch; returns its number, and the fault if none arrives."""
        begun = [after, *(event["batch"] for event in rollup.events if _is_batch(event))]
        wanted = max(begun) + 1
        found = rollup.wait_for(lambda event: _is_batch(event) and event["batch"] >= wanted)
        if found is None:
            return wanted, [f"the rollup did not get to batch {wanted}: {rollup.events[-3:]}"]
        return int(found["batch"]), []


def _is_batch(event: Event) -> bool:
    return bool(event["event"] == "batch")
