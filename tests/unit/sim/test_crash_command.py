"""The command around the simulation: verdict, replay, the same trace for the same seed."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys

import pytest

from sim.bit_flips import run_flips
from sim.crash import Summary, main
from sim.run import SeedResult, run_seed

OK = re.compile(r"CRASH OK seeds=4 acknowledged=(\d+) lost=0 phantom=0 divergent=0")


def test_a_clean_run_ends_with_its_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "4"]) == 0
    found = OK.fullmatch(capsys.readouterr().out.splitlines()[-1])
    assert found is not None
    assert int(found[1]) > 100


def test_a_trace_tells_each_operation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--trace"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("seed 3: ")
    assert any(line.startswith("append ") for line in lines)
    assert any("PUT_OK" in line for line in lines)
    assert any("  crash: " in line for line in lines)
    assert logging.root.manager.disable == logging.NOTSET, "what runs next may log"


def test_a_failed_seed_comes_with_the_command_that_replays_it() -> None:
    result = SeedResult(41)
    result.faults.lost.append("#7")
    summary = Summary()
    summary.add(result)
    lines = list(summary.lines())
    assert "seed 41: lost: #7" in lines
    assert "  replay: python -m sim.crash --seed 41 --trace" in lines
    assert lines[-1] == (
        "CRASH FAILED seeds=1 acknowledged=0 lost=1 phantom=0 divergent=0 broken=0 seeds: 41"
    )


def test_the_same_seed_gives_the_same_trace() -> None:
    assert run_seed(5).trace == run_seed(5).trace
    assert run_seed(5).trace != run_seed(6).trace


def test_the_trace_does_not_depend_on_hashes() -> None:
    command = [sys.executable, "-m", "sim.crash", "--seed", "11", "--trace"]
    outputs = [
        subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("seed", range(3))
def test_a_turned_bit_costs_one_record_which_is_not_given_out(seed: int) -> None:
    result = run_flips(seed)
    assert result.flipped_count > 0
    assert result.fenced_count + result.cut_count + result.refused_count > 0
    assert result.returned == []
    assert result.lost == []
