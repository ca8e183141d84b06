"""Celery's workers as real processes: results, chains, chords, retries, countdowns, priorities, events,
remote control, the pools; a killed worker, a killed child of a worker, a lost master.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tandemmq.testing import BlockingCluster
from waits import PATIENCE_S, until_blocking

HERE = Path(__file__).parent


@contextmanager
def running_worker(
    folder: Path, name: str, *arguments: str, pool: str = "prefork"
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a worker; its log is in `folder`."""
    command = [sys.executable, "-m", "celery", "-A", "celery_app", "worker", "-n", name, "-P", pool]
    with (folder / f"{name}.log").open("wb") as log:
        worker = subprocess.Popen(
            [*command, "-c", "2", "-l", "INFO", "-E", *arguments],
            cwd=HERE,
            stdout=log,
            stderr=log,
            start_new_session=True,
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
def application(
    cluster: BlockingCluster, folder: Path, *, results: str = "file", **transport: object
) -> Iterator[ModuleType]:
    """Imports the application anew, with this cluster as its broker."""
    stored = folder / "results"
    stored.mkdir()
    os.environ["CELERY_BROKER"] = f"tandemmq://{cluster.name_servers}"
    os.environ["CELERY_RESULTS"] = f"file://{stored}" if results == "file" else f"{results}://"
    os.environ["CELERY_TRANSPORT"] = json.dumps({"visibility_timeout": 5, **transport})
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


@pytest.mark.process
@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_other_pools_run_tasks_and_their_retries(tmp_path: Path, pool: str) -> None:
    with (
        BlockingCluster() as cluster,
        application(cluster, tmp_path) as tasks,
        running_worker(tmp_path, pool, pool=pool) as worker,
    ):
        sums = [tasks.add.delay(number, 1) for number in range(20)]
        assert [one.get(timeout=PATIENCE_S) for one in sums] == list(range(1, 21))
        assert tasks.succeed_at_third.delay().get(timeout=PATIENCE_S) == 2
        # A warm shutdown gives back at once what was prefetched; the visibility timeout is for killed ones.
        marks = [tmp_path / f"mark-{number}" for number in range(6)]
        slow = [tasks.leave_mark.delay(str(mark), 0.5) for mark in marks]
        until_blocking(lambda: any(mark.exists() for mark in marks), "a task runs")
        worker.terminate()
        assert worker.wait(PATIENCE_S) == 0
        with running_worker(tmp_path, "next", pool=pool):
            assert [one.get(timeout=PATIENCE_S) for one in slow] == ["done"] * 6
        assert [mark.read_text() for mark in marks] == ["begun\ndone\n"] * 6


@pytest.mark.process
def test_a_task_whose_child_process_is_killed_runs_again(tmp_path: Path) -> None:
    with (
        BlockingCluster() as cluster,
        application(cluster, tmp_path) as tasks,
        running_worker(tmp_path, "one"),
    ):
        mark = tmp_path / "killed"
        assert tasks.kill_first_run.delay(str(mark)).get(timeout=PATIENCE_S) == "second run"


@pytest.mark.process
def test_higher_priorities_run_first(tmp_path: Path) -> None:
    with (
        BlockingCluster() as cluster,
        application(cluster, tmp_path, priorities=True, queue_count=10) as tasks,
    ):
        mark = tmp_path / "order"
        ranks = [1, 9, 0, 5, 9]
        sent = [tasks.note.apply_async((str(mark), rank), priority=rank) for rank in ranks]
        arguments = ("-c", "1", "--prefetch-multiplier", "1")
        with running_worker(tmp_path, "one", *arguments, pool="solo"):
            for one in sent:
                one.get(timeout=PATIENCE_S)
        assert mark.read_text().split() == ["9", "9", "5", "1", "0"]


@pytest.mark.process
def test_remote_control_of_workers(tmp_path: Path) -> None:
    from celery.exceptions import TaskRevokedError

    with (
        BlockingCluster() as cluster,
        application(cluster, tmp_path) as tasks,
        running_worker(tmp_path, "one"),
        running_worker(tmp_path, "two"),
    ):
        control: Any = tasks.app.control
        until_blocking(lambda: len(control.ping(timeout=2, limit=2)) == 2, "both workers answer")
        later = tasks.add.apply_async((1, 1), countdown=3)
        control.revoke(later.id)
        with pytest.raises(TaskRevokedError):
            later.get(timeout=PATIENCE_S)
        mark = tmp_path / "mark"
        long = tasks.leave_mark.delay(str(mark), 600.0)
        until_blocking(mark.exists, "the task runs")
        active = control.inspect(timeout=PATIENCE_S, limit=2).active()
        assert [one["id"] for found in active.values() for one in found] == [long.id]
        control.revoke(long.id, terminate=True, signal="SIGKILL")
        with pytest.raises(TaskRevokedError):
            long.get(timeout=PATIENCE_S)
        name = "celery@one"
        assert sorted(active) == [name, "celery@two"]
        control.add_consumer("extra", destination=[name], reply=True, timeout=PATIENCE_S, limit=1)
        done = tasks.add.apply_async((2, 2), queue="extra")
        assert done.get(timeout=PATIENCE_S) == 4
        queues = control.inspect([name], timeout=PATIENCE_S, limit=1).active_queues()
        assert sorted(one["name"] for one in queues[name]) == ["celery", "extra"]


@pytest.mark.process
def test_events_of_tasks_and_workers(tmp_path: Path) -> None:
    with (
        BlockingCluster() as cluster,
        application(cluster, tmp_path) as tasks,
        tasks.app.connection() as connection,
    ):
        found: list[tuple[str, str | None]] = []
        receiver = tasks.app.events.Receiver(
            connection, handlers={"*": lambda event: found.append((event["type"], event.get("uuid")))}
        )

        def capture() -> None:
            try:
                receiver.capture(limit=None, timeout=None)
            except connection.connection_errors:
                pass  # released below

        with receiver.consumer_context():
            pass  # from here on events are kept
        listening = threading.Thread(target=capture)
        listening.start()
        with running_worker(tmp_path, "one"):
            task = tasks.add.delay(1, 2)
            assert task.get(timeout=PATIENCE_S) == 3
            wanted = {"task-received", "task-started", "task-succeeded"}
            until_blocking(
                lambda: wanted <= {kind for kind, uuid in found if uuid == task.id}, "the events of the task"
            )
            until_blocking(lambda: "worker-heartbeat" in {kind for kind, _ in found}, "a heartbeat")
        until_blocking(lambda: "worker-offline" in {kind for kind, _ in found}, "the end of the worker")
        receiver.should_stop = True
        listening.join(PATIENCE_S)
        assert not listening.is_alive()


@pytest.mark.process
def test_results_by_message_reach_their_sender(tmp_path: Path) -> None:
    with (
        BlockingCluster(elected=True) as cluster,
        application(cluster, tmp_path, results="rpc") as tasks,
        running_worker(tmp_path, "one"),
    ):
        assert tasks.add.delay(2, 3).get(timeout=PATIENCE_S) == 5
        cluster.lose_master()
        sums = [tasks.add.delay(number, 1) for number in range(10)]
        assert [one.get(timeout=PATIENCE_S) for one in sums] == list(range(1, 11))
