"""`make strangers`, short, and a test that its judge finds faults."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from strangers import ATTACKS, GROWN_MIB_MAX, KEPT_MIN, LIMIT, STALL_S_MAX, Outcome, strangers


@pytest.mark.process
@pytest.mark.long
def test_some_attacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["loose_headers", "references", "idle_connections", "unsigned_requests"]
    assert set(names) < set(ATTACKS)
    code = strangers(tmp_path, names=names, controller_count=1)
    out = capsys.readouterr().out
    assert code == 0, out
    assert re.search(r"^STRANGERS OK attacks=4 elections=0 refused_sends=0\n\Z", out, re.MULTILINE), out


@pytest.mark.parametrize(
    ("outcome", "fault"),
    [
        (Outcome("x", KEPT_MIN - 0.01, 100.0, 0.1, 0.1, 1.0, 50), "kept 79%"),
        (Outcome("x", 1.0, 100.0, STALL_S_MAX + 1, 0.1, 1.0, 50), "nothing was acknowledged for 2.5 s"),
        (Outcome("x", 1.0, 100.0, 0.1, math.inf, 1.0, 50), "a new producer was not served"),
        (Outcome("x", 1.0, 100.0, 0.1, 0.1, GROWN_MIB_MAX + 1, 50), "grew by 301 MiB"),
        (Outcome("x", 1.0, 100.0, 0.1, 0.1, 1.0, LIMIT + 1), "1025 descriptors"),
    ],
)
def test_the_judge_finds_it(outcome: Outcome, fault: str) -> None:
    assert [fault in line for line in outcome.faults] == [True]
    assert Outcome("x", 1.0, 100.0, 0.1, 0.1, 1.0, 50).faults == []
