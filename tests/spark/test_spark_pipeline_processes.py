"""A pipeline as a process: killed, started again, watched, stopped. Landings have a file of their own."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dead_letter_maker import make_dead_letters
from spark_cluster import Cluster

from tandemmq.spark.pipelines.rollup_table import read_rollup

WAIT_S = 120.0


class Pipeline:
    """A running `tandemmq pipeline ...`; its events as they come."""

    def __init__(self, name: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "tandemmq", "pipeline", name, *arguments]
        command += ["--master", "local[2]", "--progress", "json"]
        self.events: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._followers = [
            threading.Thread(target=self._follow, args=(self.process.stdout, self._take)),
            threading.Thread(target=self._follow, args=(self.process.stderr, self.errors.append)),
        ]
        for follower in self._followers:
            follower.start()

    def _take(self, line: str) -> None:
        self.events.append(json.loads(line))

    def _follow(self, stream: Any, take: Callable[[str], None]) -> None:
        for line in stream:
            take(line)

    def wait_for(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first event that fits."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            for event in list(self.events):
                if condition(event):
                    return event
            time.sleep(0.02)
        raise AssertionError(f"it did not come to that: {self.events} {self.errors}")

    def end(self, number: signal.Signals | None = None) -> int:
        """Its exit code, after a signal or by itself."""
        if number is not None:
            self.process.send_signal(number)
        code = self.process.wait(WAIT_S)
        for follower in self._followers:
            follower.join()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return code


def _is_batch(event: dict[str, Any]) -> bool:
    return bool(event["event"] == "batch")


def test_a_replay_survives_a_kill_stops_in_order_and_is_watched(
    lake_spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    sent = cluster.send("Watched", 1200)
    lake = tmp_path / "lake"
    query = (
        lake_spark.readStream.format("tandemmq")
        .options(nameServer=cluster.namesrv, subscribe="Watched", startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", "200")
        .load()
        .writeStream.format("tandemmq_lake")
        .option("checkpointLocation", str(lake / "_checkpoint"))
        .trigger(availableNow=True)
        .start(str(lake))
    )
    query.awaitTermination()
    command = ("--lake", str(lake), "--namesrv", cluster.namesrv, "--to", "WatchedAgain", "--continuous")
    replay = Pipeline("replay", *command, "--rate", "400")
    replay.wait_for(_is_batch)
    replay.end(signal.SIGKILL)

    report = tmp_path / "replay.html"
    replay = Pipeline("replay", *command, "--report", str(report), "--metrics-port", "0")
    replay.wait_for(lambda event: _is_batch(event) and event["rows_total"] == len(sent))
    address = next(found[0] for line in replay.errors if (found := re.findall(r"http://\S+", line)))
    text = urllib.request.urlopen(address, timeout=10).read().decode()
    assert 'tandemmq_pipeline_rows_total{pipeline="replay"} 1200.0' in text
    assert replay.end(signal.SIGTERM) == 0
    assert replay.events[-1]["reason"] == "signal"
    page = report.read_text()
    assert page.count("<svg") == 4
    assert "1,200" in page

    source = lake_spark.read.format("tandemmq").options(nameServer=cluster.namesrv, topic="WatchedAgain")
    rows = source.load().select("msgId", "body").collect()
    # What was sent when the kill came is sent again with the same key; nothing else is there twice.
    assert sorted(body for _, body in {(row.msgId, bytes(row.body)) for row in rows}) == sorted(sent)
    assert len(sent) <= len(rows) <= len(sent) + 200


def test_a_killed_rollup_goes_on_and_dead_letters_are_sent_by_commands(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.send("Counted", 900)
    make_dead_letters(cluster, "undertakers", "Undone", 4)
    table = tmp_path / "rollup"
    counting = (
        "--namesrv",
        cluster.namesrv,
        "--topic",
        "Counted",
        "--out",
        str(table),
        "--batch-rows",
        "300",
    )
    rollup = Pipeline("rollup", *counting, "--trigger-seconds", "0")
    state = ("--resend", "--state", str(tmp_path / "state.json"))
    letters = Pipeline("deadletters", "--namesrv", cluster.namesrv, "--group", "undertakers", *state)
    rollup.wait_for(_is_batch)
    rollup.end(signal.SIGKILL)
    rollup = Pipeline("rollup", *counting, "--once")
    assert letters.end() == 0
    assert (letters.events[-1]["event"], letters.events[-1]["rows_total"]) == ("stopped", 4)
    assert rollup.end() == 0
    assert sum(row.messages for row in read_rollup(table, topic="Counted")) == 900
