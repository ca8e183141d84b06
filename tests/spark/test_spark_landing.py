"""The landing: killed, started again, watched and stopped as a process; and replicas killed under it."""

from __future__ import annotations

import re
import signal
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pipeline_process import WAIT_S, has_rows, is_batch, running_pipeline
from spark_cluster import Cluster

from waits import until_blocking


def test_kills_of_the_landing_and_of_the_slave_lose_and_double_nothing(
    own_cluster: Cluster, tmp_path: Path
) -> None:
    out, report = tmp_path / "lake", tmp_path / "landing.html"
    sent = own_cluster.send("Landed", 3000)
    command = ("landing", "--namesrv", own_cluster.namesrv, "--topic", "Landed", "--out", str(out))
    command += ("--read-from", "prefer-slave", "--batch-rows", "500", "--trigger-seconds", "0.3")
    with running_pipeline(*command) as landing:
        landing.wait_for(is_batch)
        landing.end(signal.SIGKILL)
    assert pq.read_table(out).num_rows % 500 == 0

    with running_pipeline(*command, "--report", str(report), "--metrics-port", "0") as landing:
        landing.wait_for(has_rows(3000))
        own_cluster.slave.kill()
        # Only the master is left, and it keeps what it has; the send itself would wait for the slave.
        own_cluster.slave.start()
        sent += own_cluster.send("Landed", 2000, first=3000)
        own_cluster.slave.kill()
        landing.wait_for(has_rows(len(sent)))
        until_blocking(
            lambda: 'tandemmq_pipeline_rows_total{pipeline="landing"} 5000.0' in scrape(landing.errors),
            timeout_s=WAIT_S,
        )
        assert landing.end(signal.SIGTERM) == 0
    assert landing.events[-1]["reason"] == "signal"
    page = report.read_text()
    assert page.count("<svg") == 4
    assert "5,000" in page

    table = pq.read_table(out)
    places = set(zip(table["queueId"].to_pylist(), table["queueOffset"].to_pylist(), strict=True))
    assert len(places) == table.num_rows
    assert sorted(table["body"].to_pylist()) == sorted(sent)
    assert landing.events[-1]["rows_total"] == table.num_rows


def scrape(errors: list[str]) -> str:
    """The metrics of a pipeline that wrote on standard error where they are."""
    address = next(found[0] for line in errors if (found := re.findall(r"http://\S+", line)))
    with urllib.request.urlopen(address, timeout=WAIT_S) as answer:
        return str(answer.read().decode())


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
