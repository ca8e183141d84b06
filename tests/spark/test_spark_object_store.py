"""Tests tables in a bucket: messages that a landing writes, repeats after a crash, and merges exist once.

The S3 server is `moto`, which needs other package versions than our environment, so `scripts/setup s3` gives
it a separate one. `make spark` does that; without it these tests are skipped.
"""

from __future__ import annotations

import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
import pytest
from pipeline_process import running_pipeline
from spark_cluster import Cluster
from spark_lakes import forget_last_commit

from tandemmq.spark.lake.check import check_lake
from tandemmq.spark.lake.formats import list_live_files
from tandemmq.spark.lake.home import LakeFormat, require_lake
from tandemmq.spark.lake.upkeep import compact_lake
from waits import until_blocking

SERVER: Final = Path(__file__).parents[2] / ".venv-s3" / "bin" / "moto_server"
BUCKET: Final = "shop"
READY_S: Final = 60.0


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yields the address of an S3 server that has the bucket."""
    if not SERVER.exists() and not os.environ.get("TANDEMMQ_REQUIRE_S3"):
        pytest.skip("`scripts/setup s3` installs an S3 server to test against")
    reported = tmp_path_factory.mktemp("s3") / "server.log"
    with reported.open("wb") as file:
        server = subprocess.Popen([SERVER, "-H", "127.0.0.1", "-p", "0"], stdout=file, stderr=file)
    try:
        until_blocking(lambda: "Running on" in reported.read_text(), "its address", READY_S)
        found = re.search(r"http://127\.0\.0\.1:\d+", reported.read_text())
        assert found is not None
        made = urllib.request.Request(f"{found[0]}/{BUCKET}", method="PUT")
        with urllib.request.urlopen(made, timeout=READY_S) as answer:
            assert answer.status == 200
        yield found[0]
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Sets and returns the address of the bucket, for this process and its children."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
    }.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}"


@pytest.mark.parametrize("kind", [LakeFormat.DELTA, LakeFormat.ICEBERG])
def test_a_table_in_a_bucket_has_each_message_once(
    bucket: str, cluster: Cluster, tmp_path: Path, kind: LakeFormat
) -> None:
    topic, out = f"Bucket_{kind.value}", tmp_path / "lake"
    sent = cluster.send(topic, 400)
    command = ("--namesrv", cluster.namesrv, "--topic", topic, "--out", str(out), "--once")
    command += ("--format", kind.value, "--data", f"{bucket}/{topic}", "--batch-rows", "200")
    land(*command)
    forget_last_commit(out / "_checkpoint")
    sent += cluster.send(topic, 100, first=400)
    land(*command)

    assert check_bodies(kind, out) == sorted(sent)
    assert not (out / "data").exists()
    compact_lake(out)
    assert check_bodies(kind, out) == sorted(sent)


def land(*command: str) -> None:
    with running_pipeline("landing", *command) as landing:
        assert landing.end() == 0, landing.errors


def check_bodies(kind: LakeFormat, out: Path) -> list[bytes]:
    """Returns the sorted bodies in the table's files, after checking that `lake check` counts as many
    rows.
    """
    lake = require_lake(out)
    data = lake.data
    assert not data.is_local
    bodies = []
    for name in sorted(list_live_files(lake)):
        with data.system.open_input_file(data.path(name)) as source:
            bodies += pq.ParquetFile(source).read(["body"])["body"].to_pylist()
    assert check_lake(out).rows == len(bodies)
    return sorted(bodies)
