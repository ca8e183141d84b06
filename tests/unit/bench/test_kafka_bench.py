"""The comparison with Kafka: what is fetched, and what its lines say; tests/spark has a run of it."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

import bench.java.clusters as jars
from bench.kafka.compare import HEAD, render_row
from bench.spark_read import ReadCost
from tandemmq.errors import TandemError


def test_pom_names_the_artifacts_and_no_repository() -> None:
    pom = ElementTree.fromstring(jars.render_pom("x", ["g:a:1", "g:b:2"], has_dependencies=False))
    found = [
        (dependency.findtext("artifactId"), dependency.findtext("version", ""))
        for dependency in pom.iterfind(".//dependency")
    ]
    assert found == [("a", "1"), ("b", "2")]
    assert len(pom.findall(".//exclusion")) == 2
    assert not pom.findall(".//repository")
    assert "exclusion" not in jars.render_pom("x", ["g:a:1"], has_dependencies=True)


def test_jars_are_fetched_once_per_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []

    def fake_maven(pom: Path, folder: Path) -> None:
        runs.append(pom.read_text())
        (folder / f"{len(runs)}.jar").touch()

    monkeypatch.setattr(jars, "_run_maven", fake_maven)
    for versions in (["g:a:1"], ["g:a:1"], ["g:a:2"]):
        found = jars.fetch_jars(tmp_path, "x", versions, has_dependencies=True)
    assert len(runs) == 2
    assert [path.name for path in found] == ["2.jar"]


def test_failed_fetch_is_not_taken_for_a_done_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for _ in range(2):
        with pytest.raises(TandemError, match="Maven is missing"):
            jars.fetch_jars(tmp_path, "x", ["g:a:1"], has_dependencies=True)


def test_a_row_tells_rates_and_processor_time() -> None:
    ours = ReadCost(what="o", rows=100, body_bytes=1, seconds=1.0, broker_us=0.5, spark_us=1.5)
    kafka = ReadCost(what="k", rows=100, body_bytes=1, seconds=2.0, broker_us=1.0, spark_us=3.0)
    row = render_row("three", ours, kafka)
    assert row == "| 1 B | three | 100 | 50 | 2.00 | 2.00 µs | 4.00 µs | 2.00 |"
    assert {line.count("|") for line in (row, *HEAD.split("\n"))} == {9}
