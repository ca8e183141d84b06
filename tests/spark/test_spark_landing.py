"""The landing as a process: killed, started again, stopped; and replicas killed under it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from spark_cluster import Cluster, start_cluster

WAIT_S = 120.0


class Landing:
    """A running `tandemmq pipeline landing`; its events as they come."""

    def __init__(self, cluster: Cluster, topic: str, out: Path, *more: str) -> None:
        command = [sys.executable, "-m", "tandemmq", "pipeline", "landing", "--namesrv", cluster.namesrv]
        command += ["--topic", topic, "--out", str(out), "--master", "local[2]", "--progress", "json", *more]
        self.events: list[dict[str, Any]] = []
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._follower = threading.Thread(target=self._follow)
        self._follower.start()

    def _follow(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    def wait_for(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first event that fits."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline and (self.process.poll() is None or self._follower.is_alive()):
            for event in list(self.events):
                if condition(event):
                    return event
            time.sleep(0.02)
        raise AssertionError(f"it did not come to that: {self.events}")

    def end(self, number: signal.Signals | None = None) -> int:
        """Its exit code, after a signal or by itself."""
        if number is not None:
            self.process.send_signal(number)
        code = self.process.wait(WAIT_S)
        self._follower.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose processes a test may kill."""
    yield from start_cluster(tmp_path)


def _is_batch(event: dict[str, Any]) -> bool:
    return bool(event["event"] == "batch")


def test_kills_of_the_landing_and_of_the_slave_lose_and_double_nothing(
    own_cluster: Cluster, tmp_path: Path
) -> None:
    out = tmp_path / "lake"
    sent = own_cluster.send("Landed", 3000)
    options = ("--read-from", "prefer-slave", "--batch-rows", "500", "--trigger-seconds", "0")
    landing = Landing(own_cluster, "Landed", out, *options)
    landing.wait_for(_is_batch)
    landing.end(signal.SIGKILL)
    assert pq.read_table(out).num_rows % 500 == 0

    landing = Landing(own_cluster, "Landed", out, *options)
    landing.wait_for(lambda event: _is_batch(event) and event["rows_total"] >= 3000)
    own_cluster.slave.kill()
    landing.wait_for(lambda event: event["event"] == "started")
    # Only the master is left, and it keeps what it has; the send itself would wait for the slave.
    own_cluster.slave.start()
    sent += own_cluster.send("Landed", 2000, first=3000)
    own_cluster.slave.kill()
    landing.wait_for(lambda event: _is_batch(event) and event["rows_total"] >= len(sent))
    assert landing.end(signal.SIGTERM) == 0
    assert landing.events[-1]["reason"] == "signal"

    table = pq.read_table(out)
    places = set(zip(table["queueId"].to_pylist(), table["queueOffset"].to_pylist(), strict=True))
    assert len(places) == table.num_rows
    assert sorted(table["body"].to_pylist()) == sorted(sent)
    assert landing.events[-1]["rows_total"] == table.num_rows


def test_a_landing_that_runs_once_ends_by_itself(cluster: Cluster, tmp_path: Path) -> None:
    sent = cluster.send("LandedOnce", 700)
    out = tmp_path / "lake"
    more = ("--once", "--partition-by", "dt,tags", "--body-as-text", "--batch-rows", "500")
    landing = Landing(cluster, "LandedOnce", out, *more)
    assert landing.end() == 0
    assert landing.events[-1]["reason"] == "done"
    batches = [event for event in landing.events if _is_batch(event)]
    assert [event["rows"] for event in batches] == [500, 200]
    assert [event["lag"] for event in batches] == [200, 0]
    table = pq.read_table(out)
    assert sorted(table["body"].to_pylist()) == sorted(body.decode() for body in sent)
    assert set(table["tags"].to_pylist()) == {"a", "b"}
    assert {"dt", "batch"} <= set(table.schema.names)
