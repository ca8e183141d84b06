"""The Taskiq application of test_taskiq.py, which its worker imports."""

from __future__ import annotations

import os
import time

from taskiq import Context, SmartRetryMiddleware, TaskiqDepends

from tandemmq.integrations.taskiq_broker import TandemBroker

broker = TandemBroker(os.environ["TASKIQ_SERVERS"], invisible_s=5.0).with_results_by_reply()
broker.add_middlewares(SmartRetryMiddleware(default_delay=0.1))


@broker.task
async def add(one: int, other: int) -> int:
    """Returns the sum."""
    return one + other


@broker.task
def fail() -> None:
    """Fails."""
    raise ValueError("on purpose")


@broker.task(retry_on_error=True, max_retries=5)
async def succeed_at_third(context: Context = TaskiqDepends()) -> int:
    """Fails twice; returns the number of retries."""
    retries = int(context.message.labels.get("_retries", 0))
    if retries < 2:
        raise ValueError("not yet")
    return retries


@broker.task
async def requeue_once(context: Context = TaskiqDepends()) -> str:
    """Sends itself again at its first run; returns the number of times that it did so."""
    times: str = context.message.labels.get("X-Taskiq-requeue", "")
    if not times:
        await context.requeue()
    return times


@broker.task
def nap(path: str) -> str:
    """Notes its runs in the file, and takes a moment."""
    with open(path, "a") as file:
        file.write("begun\n")
    time.sleep(1)
    return "rested"


@broker.task
async def finished_at() -> float:
    """Returns the time."""
    return time.time()
