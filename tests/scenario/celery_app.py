"""The Celery application of test_celery.py, which its workers import."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from celery import Celery

from tandemmq.integrations import kombu_transport

kombu_transport.register()
app = Celery("celery_app", broker=os.environ["CELERY_BROKER"], backend=os.environ["CELERY_RESULTS"])
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=4,
    broker_connection_retry_on_startup=True,
    broker_transport_options=json.loads(os.environ["CELERY_TRANSPORT"]),
    worker_hijack_root_logger=False,
)


@app.task
def add(one: int, other: int) -> int:
    """Returns the sum."""
    return one + other


@app.task
def total(numbers: list[int]) -> int:
    """Returns the sum."""
    return sum(numbers)


@app.task(bind=True, max_retries=3)
def succeed_at_third(self: Any) -> int:
    """Fails twice; returns the number of retries."""
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return int(self.request.retries)


@app.task
def finished_at() -> float:
    """Returns the time."""
    return time.time()


@app.task
def leave_mark(path: str, seconds: float) -> str:
    """Appends a line to the file, sleeps, and appends another."""
    with open(path, "a") as file:
        file.write("begun\n")
    time.sleep(seconds)
    with open(path, "a") as file:
        file.write("done\n")
    return "done"


@app.task
def note(path: str, number: int) -> None:
    """Appends the number to the file."""
    with open(path, "a") as file:
        file.write(f"{number}\n")


@app.task
def kill_first_run(path: str) -> str:
    """Kills its process, unless the file shows that it did so before."""
    mark = Path(path)
    if mark.exists():
        return "second run"
    mark.touch()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("the process is dead")
