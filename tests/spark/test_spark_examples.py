"""Runs the content of examples/: the notebook, the SQL view, and the declarative pipeline.

`make spark` proves that a second run of such a pipeline resumes from the first.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
import pyarrow.parquet as pq
import pyspark
import pytest
from nbclient import NotebookClient
from spark_cluster import Cluster
from spark_lakes import read_topic

from tandemmq.client import BlockingProducer, Message
from tandemmq.spark.java import find_java
from tandemmq.spark.session import share_python_path
from waits import until_blocking

EXAMPLES = Path(__file__).parents[2] / "examples"
CELL_SECONDS_MAX = 600
GAP_S = 5
RUN_SECONDS_MAX = 840


def test_notebook_runs_from_topic_to_plot(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEMMQ_NAMESRV", cluster.namesrv)
    monkeypatch.setenv("TANDEMMQ_TOPIC", "NotebookFlights")
    share_python_path()
    notebook = nbformat.read(EXAMPLES / "flights.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "commit it without outputs"
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=CELL_SECONDS_MAX, kernel_name="python3", resources=resources).execute()
    data = [output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("5000" in found.get("text/plain", "") for found in data)
    assert any("image/png" in found for found in data)


def test_sql_view_counts_the_topic(spark: Any, cluster: Cluster) -> None:
    send_flights(cluster, "SqlFlights", range(100))
    text = (EXAMPLES / "by_carrier.sql").read_text()
    text = text.replace("127.0.0.1:9876", cluster.namesrv).replace("'Flights'", "'SqlFlights'")
    text = re.sub(r"--.*", "", text)
    rows: list[Any] = []
    for statement in filter(str.strip, text.split(";")):
        rows = spark.sql(statement).collect()
    assert [(row.carrier, row.flights, row.mean_delay) for row in rows] == [
        ("AA", 50, 49.0),
        ("UA", 50, 50.0),
    ]


@pytest.mark.skipif(importlib.util.find_spec("grpc_status") is None, reason="needs the extra `connect`")
def test_declarative_pipeline_fills_its_tables(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(EXAMPLES / "declarative", project)
    spec = project / "spark-pipeline.yml"
    spec.write_text(re.sub(r"file:///.*", f"file://{tmp_path}/storage", spec.read_text()))
    send_flights(cluster, "Flights", range(200))
    run_pipeline(project, cluster.namesrv)
    table = pq.read_table(project / "spark-warehouse" / "flights")
    places = set(zip(*(table[name].to_pylist() for name in ("queueId", "queueOffset")), strict=True))
    assert table.num_rows == len(places) == 200
    delays = pq.read_table(project / "spark-warehouse" / "delays")
    assert sum(delays["flights"].to_pylist()) == 200
    late = read_topic(spark, cluster.namesrv, "LateFlights", columns="tags").collect()
    assert len(late) == 2 * 39
    assert {row.tags for row in late} == {"AA", "UA"}


def test_sessions_end_when_their_pause_has_passed(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    def run() -> list[tuple[str, int, int, int]]:
        command = [sys.executable, str(EXAMPLES / "sessions.py"), cluster.namesrv, "Clicks", str(tmp_path)]
        subprocess.run([*command, "--gap", str(GAP_S)], check=True, timeout=RUN_SECONDS_MAX)
        return sorted(tuple(row) for row in spark.read.parquet(str(tmp_path / "rows")).collect())

    share_python_path()
    click(cluster, "ann", "bob", "ann", "bob")
    wait_for_pause()
    click(cluster, "bob", "bob")
    assert ("ann", 2) in {(user, clicks) for user, _, _, clicks in run()}
    wait_for_pause()
    click(cluster, "cid")
    table = read_topic(spark, cluster.namesrv, "Clicks", columns="keys,storeTimestamp").collect()
    assert run() == sorted(sessions_of([row for row in table if row.keys != "cid"]))


def click(cluster: Cluster, *users: str) -> None:
    """Sends a click of each of these users."""
    with BlockingProducer("examples", cluster.namesrv) as producer:
        for user in users:
            producer.send(Message("Clicks", b"click", keys=user))


def wait_for_pause() -> None:
    """Waits until the clock of this machine, which is the brokers', has passed the gap."""
    began_s = time.time()
    until_blocking(lambda: time.time() > began_s + GAP_S + 0.1, "a pause has passed")


def sessions_of(rows: list[Any]) -> list[tuple[str, int, int, int]]:
    """Returns user, first and last click, and count of each session, by a second way."""
    found: dict[str, list[list[int]]] = {}
    for row in sorted(rows, key=lambda row: row.storeTimestamp):
        at = round(row.storeTimestamp.timestamp() * 1000)
        mine = found.setdefault(row.keys, [])
        if not mine or at - mine[-1][-1] > GAP_S * 1000:
            mine.append([])
        mine[-1].append(at)
    return [(user, one[0], one[-1], len(one)) for user, all_ in found.items() for one in all_]


def send_flights(cluster: Cluster, topic: str, numbers: range) -> None:
    """Writes flights of two carriers alternating; flight `n` is `n % 100` minutes late, so 39 of 100 are more
    than an hour late.
    """
    messages = [
        Message(topic=topic, tags=carrier, body=json.dumps(flight).encode())
        for n in numbers
        for carrier in [("AA", "UA")[n % 2]]
        for flight in [{"carrier": carrier, "origin": "EWR", "hour": n % 24, "delay": float(n % 100)}]
    ]
    with BlockingProducer("examples", cluster.namesrv) as producer:
        producer.send(messages[0])
        producer.send_many(messages[1:])


def run_pipeline(project: Path, namesrv: str) -> None:
    """Runs it as in the README, in the project's directory; SPARK_TESTING makes Connect use a free port."""
    share_python_path()
    own = {
        "TANDEMMQ_NAMESRV": namesrv,
        "SPARK_CONF_DIR": str(project / "conf"),
        "SPARK_TESTING": "1",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_HOME": str(find_java()),
        "PYSPARK_PYTHON": sys.executable,
    }
    done = subprocess.run(
        [str(Path(pyspark.__file__).parent / "bin" / "spark-pipelines"), "run"],
        cwd=project,
        env={**os.environ, **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
