"""Tests that need jars that Spark lacks. `python -m bench kafka` runs with Kafka's broker and Spark's Kafka
source, and prints all its lines. The documented queries copy a topic from Kafka to ours and back. Spark's
own functions read Avro bodies as documented.

Needs Maven and some minutes, so it is not part of the usual run: `make spark` runs it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("TANDEMMQ_INTEROP_CACHE") or Path(__file__).parents[2] / ".interop-cache")


@pytest.fixture(autouse=True)
def _java_as_it_comes(monkeypatch: pytest.MonkeyPatch, _quick_java: None) -> None:
    """Removes the JVM options of this folder's tests: Kafka's broker and the bench choose another garbage
    collector.
    """
    monkeypatch.delenv("JAVA_TOOL_OPTIONS")


@pytest.mark.interop
@pytest.mark.timeout(900)
def test_both_sources_are_compared_over_the_same_messages() -> None:
    command = [sys.executable, "-m", "bench", "kafka", "--runs", "1", "--cache", str(CACHE)]
    done = subprocess.run(
        [*command, "--small-rows", "4000", "--large-rows", "1000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=800,
        env={**os.environ, "COLUMNS": "200"},
        check=False,
    )
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert sum(line.startswith("| 128 B | ") for line in lines) == 3
    assert sum(line.startswith("| 1024 B | ") for line in lines) == 3
    assert sum("micro-batch of one message" in line for line in lines) == 2


@pytest.mark.interop
@pytest.mark.timeout(900)
def test_a_topic_is_copied_from_kafka_and_back_by_the_documented_queries(tmp_path: Path) -> None:
    assert run_document("kafka_copies.py", "coming-from-kafka.md", tmp_path) == "COPIED blocks=2"


@pytest.mark.interop
@pytest.mark.timeout(900)
def test_avro_bodies_are_read_by_sparks_own_functions_as_documented(tmp_path: Path) -> None:
    assert run_document("avro_reading.py", "spark/landing.md", tmp_path) == "READ rows=100"


def run_document(script: str, document: str, directory: Path) -> str:
    """Runs a script of this folder on a document, and returns the last line of its output."""
    here = Path(__file__)
    paths = [here.with_name(script), here.parents[2] / "docs" / document, CACHE, directory]
    done = subprocess.run(
        [sys.executable, *map(str, paths)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=800,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(here.parent), *sys.path])},
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()[-1]
