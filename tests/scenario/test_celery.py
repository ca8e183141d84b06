"""Celery's workers as real processes: results, chains, chords, retries, countdowns, remote control; a killed
worker and a lost master.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from tandemmq.testing import BlockingCluster
from waits import PATIENCE_S, until_blocking

HERE = Path(__file__).parent


@contextmanager
def running_worker(folder: Path, name: str, *, pool: str = "prefork") -> Iterator[subprocess.Popen[bytes]]:
    """Runs a worker; its log is in `folder`."""
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "celery_app",
        "worker",
        "-n",
        name,
        "-P",
        pool,
        "-c",
        "2",
    ]
    with (folder / f"{name}.log").open("wb") as log:
        worker = subprocess.Popen(
            [*command, "-l", "INFO", "-E"], cwd=HERE, stdout=log, stderr=log, start_new_session=True
        )
        try:
            yield worker
        finally:
            worker.terminate()
            try:
                worker.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                os.killpg(worker.pid, signal.SIGKILL)
                raise


@contextmanager
def application(cluster: BlockingCluster, folder: Path) -> Iterator[ModuleType]:
    """Imports the application anew, with this cluster as its broker."""
    results = folder / "results"
    results.mkdir()
    os.environ["CELERY_BROKER"] = f"tandemmq://{cluster.name_servers}"
    os.environ["CELERY_RESULTS"] = f"file://{results}"
    sys.modules.pop("celery_app", None)
    sys.path.insert(0, str(HERE))
    import celery_app

    try:
        yield celery_app
    finally:
        celery_app.app.close()
        sys.path.remove(str(HERE))


@pytest.mark.process
def test_tasks_run_with_results_retries_countdowns_and_remote_control(tmp_path: Path) -> None:
    from celery import chain, chord

    with (
        BlockingCluster() as cluster,
        application(cluster, tmp_path) as tasks,
        running_worker(tmp_path, "one"),
    ):
        assert tasks.add.delay(2, 3).get(timeout=PATIENCE_S) == 5
        steps = chain(tasks.add.s(1, 2), tasks.add.s(10), tasks.add.s(100))
        assert steps.apply_async().get(timeout=PATIENCE_S) == 113
        header = [tasks.add.s(number, number) for number in range(10)]
        assert chord(header)(tasks.total.s()).get(timeout=PATIENCE_S) == 90
        assert tasks.succeed_at_third.delay().get(timeout=PATIENCE_S) == 2
        sent_at = time.time()
        assert tasks.finished_at.apply_async(countdown=2).get(timeout=PATIENCE_S) >= sent_at + 2
        (answer,) = tasks.app.control.ping(timeout=PATIENCE_S, limit=1)
        assert list(answer.values()) == [{"ok": "pong"}]


@pytest.mark.process
def test_chains_and_chords_survive_a_killed_worker_and_a_lost_master(tmp_path: Path) -> None:
    from celery import chain, chord

    with (
        BlockingCluster(elected=True) as cluster,
        application(cluster, tmp_path) as tasks,
        running_worker(tmp_path, "survivor"),
    ):
        with running_worker(tmp_path, "victim") as victim:
            assert tasks.add.delay(1, 1).get(timeout=PATIENCE_S) == 2
            marks = [tmp_path / f"mark-{number}" for number in range(6)]
            slow = [tasks.leave_mark.delay(str(mark), 1.0) for mark in marks]
            until_blocking(lambda: sum(mark.exists() for mark in marks) >= 3, "tasks run in both workers")
            os.killpg(victim.pid, signal.SIGKILL)
            victim.wait(PATIENCE_S)
        assert [one.get(timeout=PATIENCE_S) for one in slow] == ["done"] * 6
        header = [tasks.add.s(number, number) for number in range(20)]
        joined = chord(header)(tasks.total.s())
        steps = chain(tasks.add.s(1, 2), *(tasks.add.s(1) for _ in range(10))).apply_async()
        cluster.lose_master()
        after = [tasks.add.delay(number, 1) for number in range(20)]
        assert joined.get(timeout=PATIENCE_S) == 380
        assert steps.get(timeout=PATIENCE_S) == 13
        assert [one.get(timeout=PATIENCE_S) for one in after] == list(range(1, 21))
