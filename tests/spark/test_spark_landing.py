"""Tests the landing as a process: killed and resumed, while replicas are killed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pipeline_process import is_batch, running_pipeline
from pipeline_recorder import Recorder
from spark_cluster import Cluster

from tandemmq.launcher import Server
from tandemmq.spark.pipelines.events import BatchDone, Stopped
from tandemmq.spark.pipelines.landing import run_landing
from tandemmq.spark.pipelines.options import LandingOptions

BATCH_ROWS = 250


class KillsAtFirstBatch(Recorder):
    """Records the events of a pipeline, and kills a server at the first batch."""

    def __init__(self, victim: Server) -> None:
        super().__init__()
        self._victim = victim

    def report(self, event: Any) -> None:
        super().report(event)
        if isinstance(event, BatchDone):
            self._victim.kill()


@pytest.mark.usefixtures("run_command")
def test_kills_of_the_landing_and_of_the_slave_lose_and_double_nothing(
    own_cluster: Cluster, tmp_path: Path
) -> None:
    out = tmp_path / "lake"
    sent = own_cluster.send("Landed", 3000)
    command = ("landing", "--namesrv", own_cluster.namesrv, "--topic", "Landed", "--out", str(out))
    more = ("--read-from", "prefer-slave", "--batch-rows", str(BATCH_ROWS), "--trigger-seconds", "0.3")
    with running_pipeline(*command, *more) as landing:
        landing.wait_for(is_batch)
        landing.end(signal.SIGKILL)
    begun = pq.read_table(out).num_rows
    assert begun > 0
    assert begun % BATCH_ROWS == 0

    options = LandingOptions(
        name_servers=own_cluster.namesrv,
        topic="Landed",
        out=out,
        is_continuous=False,
        batch_records_max=BATCH_ROWS,
        source=(("readFrom", "prefer-slave"),),
    )
    reported = KillsAtFirstBatch(own_cluster.slave)
    assert run_landing(options, reported) == 0, reported.events
    assert reported.of(Stopped)[0].rows_total == len(sent)

    # The send waits for the slave. Afterwards only the master is left, with its messages.
    own_cluster.slave.kill()
    own_cluster.slave.start()
    sent += own_cluster.send("Landed", 500, first=3000)
    own_cluster.slave.kill()
    reported = Recorder()
    assert run_landing(options, reported) == 0, reported.events
    table = pq.read_table(out)
    places = set(zip(table["queueId"].to_pylist(), table["queueOffset"].to_pylist(), strict=True))
    assert len(places) == table.num_rows
    assert sorted(table["body"].to_pylist()) == sorted(sent)
    assert reported.of(Stopped)[0].rows_total == table.num_rows


def test_a_landing_that_runs_once_ends_by_itself(
    cluster: Cluster, tmp_path: Path, run_pipeline: Callable[..., list[dict[str, Any]]]
) -> None:
    sent = cluster.send("LandedOnce", 700)
    command = ("landing", "--namesrv", cluster.namesrv, "--topic", "LandedOnce", "--out", str(tmp_path))
    more = ("--once", "--partition-by", "dt,tags", "--body-as-text", "--batch-rows", "500")
    events = run_pipeline(*command, *more)
    assert events[-1]["reason"] == "done"
    batches = [event for event in events if is_batch(event)]
    assert [event["rows"] for event in batches] == [500, 200]
    assert [event["lag"] for event in batches] == [200, 0]
    table = pq.read_table(tmp_path)
    assert sorted(table["body"].to_pylist()) == sorted(body.decode() for body in sent)
    assert set(table["tags"].to_pylist()) == {"a", "b"}
    assert {"dt", "batch"} <= set(table.schema.names)
