"""`make soak`, short: random faults for some seconds, and no promise is broken."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from soak import soak

pytestmark = pytest.mark.process


def test_some_seconds_of_random_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert soak(tmp_path, seconds=12, seed=3) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(
        r"SOAK OK seconds=\d+ acknowledged=\d+ lost=0 order=0 skipped=0 duplicates=\d+ faults=\d+", last
    )
