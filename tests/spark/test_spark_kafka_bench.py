"""`tandemmq bench kafka` runs: Kafka's broker, Spark's source for it, the same messages, all lines printed.

Needs Maven and a minute, so it is no part of the usual run: `pytest -m interop tests/spark` runs it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("TANDEMMQ_INTEROP_CACHE") or Path(__file__).parents[2] / ".interop-cache")


@pytest.mark.interop
@pytest.mark.timeout(900)
def test_both_sources_are_compared_over_the_same_messages() -> None:
    command = [sys.executable, "-m", "tandemmq", "bench", "kafka", "--runs", "1", "--cache", str(CACHE)]
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
    assert sum("tandemmq : kafka" in line for line in lines) == 4
    assert sum(line.startswith("4,000 rows of 128 B") for line in lines) == 4
    assert sum(line.startswith("1,000 rows of 1024 B") for line in lines) == 4
    assert sum("micro-batch of one message" in line for line in lines) == 2
