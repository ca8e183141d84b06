"""Thumbnails by Taskiq: a web handler starts tasks and reads their results, which come as replies.

Run a worker with `taskiq worker thumbnails:broker`; NAMESRV names the name servers.
"""

import asyncio
import os

from tandemmq.integrations.taskiq_broker import TandemBroker

broker = TandemBroker(os.environ.get("NAMESRV", "127.0.0.1:9876")).with_results_by_reply()


@broker.task
async def scale(width: int, height: int, edge: int = 200) -> tuple[int, int]:
    """Returns the size of a thumbnail whose longer side has `edge` pixels."""
    if min(width, height) < 1:
        raise ValueError(f"{width} x {height}: must be 1 x 1 or more")
    longer = max(width, height)
    return max(1, width * edge // longer), max(1, height * edge // longer)


async def scale_all(sizes: list[tuple[int, int]], timeout_s: float = 30.0) -> list[tuple[int, int]]:
    """Returns the sizes of all thumbnails. Raises the error of a task that failed."""
    tasks = [await scale.kiq(width, height) for width, height in sizes]
    results = await asyncio.gather(*(task.wait_result(timeout=timeout_s) for task in tasks))
    for result in results:
        result.raise_for_error()
    return [tuple(result.return_value) for result in results]
