"""Tests `pipeline serve` as a process: topics in several formats, killed at any moment, each row once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pipeline_process import Event, running_pipeline
from spark_cluster import Cluster
from test_spark_pipeline_processes import scrape

from tandemmq.spark.lake.check import check_lake
from tandemmq.spark.lake.rows import read_rows
from tandemmq.spark.lake.view import view_lake

FORMATS = ("parquet", "delta", "iceberg")


def write_config(path: Path, cluster: Cluster, prefix: str, **more: Any) -> Path:
    """Writes a configuration with a pattern per format; the lakes are beside it."""
    topics = [{"pattern": f"{prefix}-{kind}-.*", "format": kind} for kind in FORMATS]
    defaults = {"startingOffsets": "earliest", "batchRows": 100, "readFrom": "prefer-slave"}
    document = {"nameServer": cluster.namesrv, "out": str(path.parent / "lakes"), "defaults": defaults}
    path.write_text(yaml.safe_dump({**document, "pollSeconds": 0.2, "topics": topics, **more}))
    return path


def read_bodies(spark: Any, root: Path) -> list[bytes]:
    rows = read_rows(spark, view_lake(root))
    return [] if rows is None else sorted(bytes(row.body) for row in rows.select("body").collect())


def has_batch(topic: str, rows: int) -> Callable[[Event], bool]:
    return lambda event: (
        event["event"] == "topic_batch" and event["topic"] == topic and event["rows_total"] >= rows
    )


@pytest.mark.long
def test_a_killed_service_lands_each_message_once(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    config = write_config(tmp_path / "lake.yaml", cluster, "Served")
    sent = {
        f"Served-{kind}-{n}": cluster.send(f"Served-{kind}-{n}", 250) for kind in FORMATS for n in range(2)
    }
    with running_pipeline("serve", "--config", str(config)) as service:
        service.wait_for(lambda event: event["event"] == "topic_batch" and event["batch"] >= 1)
        service.end(signal.SIGKILL)
    for topic in sent:
        sent[topic] += cluster.send(topic, 30, first=250)
    with running_pipeline("serve", "--config", str(config), "--metrics-port", "0") as service:
        for topic in sent:
            service.wait_for(has_batch(topic, 280))
        sent["Served-parquet-new"] = cluster.send("Served-parquet-new", 40)
        service.wait_for(has_batch("Served-parquet-new", 40))
        text = scrape(service.errors)
        assert service.end(signal.SIGTERM) == 0
    assert 'tandemmq_pipeline_topic_rows_total{pipeline="serve",topic="Served-delta-1"} 280.0' in text
    assert (
        'tandemmq_pipeline_topic_freshness_p99_seconds{pipeline="serve",topic="Served-parquet-new"}' in text
    )
    for topic, bodies in sent.items():
        root = tmp_path / "lakes" / topic
        assert read_bodies(spark, root) == sorted(bodies), topic
        assert check_lake(root).faults == (), topic


def test_a_lake_changes_between_a_service_and_a_landing(
    spark: Any, cluster: Cluster, tmp_path: Path, run_pipeline: Callable[..., list[dict[str, Any]]]
) -> None:
    topic = "Taken-parquet-0"
    sent = cluster.send(topic, 120)
    config = write_config(tmp_path / "lake.yaml", cluster, "Taken")
    out = tmp_path / "lakes" / topic
    once = ("serve", "--config", str(config), "--once")
    landing = ("landing", "--namesrv", cluster.namesrv, "--topic", topic, "--out", str(out), "--once")
    for number, command in enumerate((once, landing, once, landing)):
        events = run_pipeline(*command)
        assert events[-1]["reason"] == "done", events
        assert read_bodies(spark, out) == sorted(sent)
        sent += cluster.send(topic, 10, first=120 + 10 * number)
