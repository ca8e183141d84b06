"""The main job on a few thousand rows, with its master and its pipeline killed on the way."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tandemmq.shell import local
from waits import until_blocking

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(1_000)]


def run_demo(*arguments: str) -> tuple[int, list[str]]:
    command = [sys.executable, "-m", "tandemmq", "demo", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    return done.returncode, done.stdout.strip().splitlines()


def read_page(address: str) -> str:
    with urllib.request.urlopen(address, timeout=30) as answer:
        return str(answer.read().decode())


def test_nothing_is_lost_when_master_and_pipeline_are_killed(tmp_path: Path) -> None:
    rows = 6000
    kept = tmp_path / "demo"
    try:
        code, lines = run_demo("--chaos", "--rows", str(rows), "--keep", str(kept))
        address = local.running_state(kept).servers[-1].address
        # The console reads the cluster every few seconds.
        until_blocking(lambda: "broker-a" in read_page(f"http://{address}/"), "the console shows the broker")
    finally:
        subprocess.run([sys.executable, "-m", "tandemmq", "down", "--store", str(kept)], check=False)
    counts = " ".join(f"{name}={rows}" for name in ("published", "master", "slave", "landed", "distinct"))
    assert lines[-1] == f"DEMO OK {counts}"
    assert code == 0
    text = "\n".join(lines)
    assert f"http://{address}" in text
    assert text.count("master killed with SIGKILL") == 2
    assert "Spark pipeline killed with SIGKILL" in text
    assert (tmp_path / "demo" / "delays.png").stat().st_size > 10_000
    left = [path for path in (tmp_path / "demo").glob("**/*.tmp") if "_checkpoint" not in path.parts]
    assert left == []  # the checkpoint's contents are Spark's


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--rows", "0"), "--rows"),
        (("--rows", "336777"), "--rows"),
        (("--keep", __file__), "--keep"),
        ((".",), "--keep"),
    ],
)
def test_bad_options_are_refused_by_name(arguments: tuple[str, ...], complaint: str) -> None:
    command = [sys.executable, "-m", "tandemmq", "demo", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert complaint in done.stdout + done.stderr
