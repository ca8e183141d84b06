"""Every Python example of docs/spark.md runs, in order, in one session."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from spark_cluster import Cluster
from typer.testing import CliRunner

import tandemmq.spark.pipelines.sessions
from tandemmq.spark.command import app

DOCUMENT = Path(__file__).parents[2] / "docs" / "spark.md"


def test_the_examples_run(spark: Any, cluster: Cluster, tmp_path: Path, monkeypatch: Any) -> None:
    cluster.send("Orders", 400)
    (tmp_path / "store").symlink_to(cluster.directory / "master")
    # The landing command of the document, in the session that is there.
    monkeypatch.setattr(tandemmq.spark.pipelines.sessions, "build_session", lambda *args, **kwargs: spark)
    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    text = DOCUMENT.read_text().replace("127.0.0.1:9876", cluster.namesrv).replace("/data/", f"{tmp_path}/")
    command = next(line.split()[2:] for line in text.splitlines() if line.endswith("--once"))
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "400 rows" in result.output
    command = next(line.split()[2:] for line in text.splitlines() if "pipeline audit --namesrv" in line)
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "OK: all sides are equal" in result.output
    command = next(shlex.split(line)[2:] for line in text.splitlines() if "pipeline replay --lake" in line)
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "200 rows" in result.output
    text = text.replace("--report", "--once --report")
    for name in ("rollup", "history"):
        command = next(shlex.split(line)[2:] for line in text.splitlines() if f"pipeline {name} --" in line)
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
        assert "400 rows" in result.output if name == "rollup" else "200 rows" in result.output
    scope: dict[str, Any] = {"spark": spark}
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 7
    for block in blocks:
        exec(compile(re.sub(r"spark = build_session.*", "", block), str(DOCUMENT), "exec"), scope)
    assert scope["table"].num_rows == 400
    for topic in ("Answers", "Copied"):
        source = spark.read.format("tandemmq").options(nameServer=cluster.namesrv, topic=topic)
        assert source.load().count() == 400
    assert sum(row["count"] for row in spark.table("by_tag").collect()) == 400
    assert spark.read.parquet(f"{tmp_path}/lake").count() == 400
