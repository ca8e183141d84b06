"""The Taskiq application of test_taskiq.py, which its worker imports."""

from __future__ import annotations

import os
import time

from tandemmq.integrations.taskiq_broker import TandemBroker

broker = TandemBroker(os.environ["TASKIQ_SERVERS"], invisible_s=5.0).with_results_by_reply()


@broker.task
async def add(one: int, other: int) -> int:
    """Returns the sum."""
    return one + other


@broker.task
def fail() -> None:
    """Fails."""
    raise ValueError("on purpose")


@broker.task
async def finished_at() -> float:
    """Returns the time."""
    return time.time()
