"""The applications in examples/, each with the pytest suite that it has."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from waits import PATIENCE_S

EXAMPLES = Path(__file__).parents[2] / "examples"
CASES = {"agents": 3, "celery_app": 3, "shop": 4, "taskiq_app": 3}


@pytest.mark.process
@pytest.mark.parametrize("name", CASES)
def test_the_suite_of_an_example_passes(name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLES / name, tmp_path / name)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "."]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=5 * PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{CASES[name]} passed" in done.stdout
