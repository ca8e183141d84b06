"""Tests pipelines as processes: watched, stopped, and resumed."""

from __future__ import annotations

import re
import signal
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline_process import WAIT_S, has_rows, is_batch, running_pipeline
from spark_cluster import Cluster
from spark_lakes import follow_topic, forget_last_commit, land, read_topic

from tandemmq.spark.pipelines.rollup import read_rollup
from waits import until_blocking


def test_a_replay_is_watched_and_stops_in_order(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    sent = cluster.send("Watched", 600)
    lake, report = tmp_path / "lake", tmp_path / "replay.html"
    stream = follow_topic(spark, cluster.namesrv, "Watched", maxOffsetsPerTrigger="200")
    land(stream, lake)
    command = ("replay", "--lake", str(lake), "--namesrv", cluster.namesrv, "--to", "WatchedAgain")
    command += ("--continuous", "--every-seconds", "0.5", "--report", str(report), "--metrics-port", "0")
    with running_pipeline(*command) as replay:
        replay.wait_for(has_rows(len(sent)))
        # Messages that are landed meanwhile are sent, too.
        sent += cluster.send("Watched", 100, first=600)
        land(stream, lake)
        replay.wait_for(has_rows(len(sent)))
        until_blocking(
            lambda: 'tandemmq_pipeline_rows_total{pipeline="replay"} 700.0' in scrape(replay.errors),
            timeout_s=WAIT_S,
        )
        assert replay.end(signal.SIGTERM) == 0
    assert replay.events[-1]["reason"] == "signal"
    page = report.read_text()
    assert page.count("<svg") == 4
    assert "700" in page
    rows = read_topic(spark, cluster.namesrv, "WatchedAgain", columns="body").collect()
    assert sorted(bytes(row.body) for row in rows) == sorted(sent)


def scrape(errors: list[str]) -> str:
    """Returns the metrics of a pipeline from the address that it wrote to standard error."""
    address = next(found[0] for line in errors if (found := re.findall(r"http://\S+", line)))
    with urllib.request.urlopen(address, timeout=WAIT_S) as answer:
        return str(answer.read().decode())


def test_a_rollup_goes_on_where_it_was_killed(
    cluster: Cluster, tmp_path: Path, run_pipeline: Callable[..., list[dict[str, Any]]]
) -> None:
    cluster.send("Counted", 900)
    command = ("rollup", "--namesrv", cluster.namesrv, "--topic", "Counted", "--out", str(tmp_path))
    command += ("--batch-rows", "600", "--once")
    assert len([event for event in run_pipeline(*command) if is_batch(event)]) == 2
    forget_last_commit(tmp_path / "_checkpoint")
    cluster.send("Counted", 100, first=900)
    assert run_pipeline(*command)[-1]["reason"] == "done"
    assert sum(row.messages for row in read_rollup(tmp_path, topic="Counted")) == 1000
