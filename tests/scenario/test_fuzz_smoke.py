"""The fuzzer against real processes: a short run finds nothing, and an existing fault is found."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from sim.fuzz import run
from sim.fuzz.victims import Ended, Victim, victims

pytestmark = pytest.mark.process


def test_some_thousand_frames(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--frames", "10000", "--seed", "42", "--keep", str(tmp_path)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("FUZZ OK frames=10")
    assert last.endswith(" crashes=0")


async def kill_it(victim: Victim, dice: Any) -> Ended:
    os.kill(victim.server.pid, signal.SIGKILL)
    await asyncio.to_thread(os.waitid, os.P_PID, victim.server.pid, os.WEXITED | os.WNOWAIT)
    return Ended(1)


async def make_it_log(victim: Victim, dice: Any) -> Ended:
    with victim.log_path.open("a") as log:
        log.write("Traceback (most recent call last):\n  somewhere\nZeroDivisionError: by zero\n")
    return Ended(1)


async def test_a_process_that_ends_and_a_logged_exception_are_crashes(tmp_path: Path) -> None:
    with victims(tmp_path) as three:
        logging = run.Target(
            "namesrv", three.name_server, lambda dice: make_it_log(three.name_server, dice), 1
        )
        await logging.run_one(seed=1, batch=5)
        dying = run.Target("broker", three.broker, lambda dice: kill_it(three.broker, dice), 1)
        await dying.run_one(seed=1, batch=6)
    assert "ZeroDivisionError" in logging.crashes[0]
    assert "--target namesrv --batch 5" in logging.crashes[0]
    assert "exit code -9" in dying.crashes[0]
