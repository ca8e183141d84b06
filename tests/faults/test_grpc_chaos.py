"""`make grpc ARGS=--chaos`, short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from grpc_chaos import chaos


@pytest.mark.process
def test_one_round_of_each_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert chaos(tmp_path, rounds=3, seed=1) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"GRPC CHAOS OK sent=\d+ lost=0 order=0 repeats_after_ack=0 acks_elsewhere=\d+", lines[-1]
    )
    assert {line.split(":")[0] for line in lines[:3]} == {"proxy-0 killed", "master killed", "hand-over"}
