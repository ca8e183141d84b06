"""What `--chaos` breaks while messages are published: the slave dies without warning and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tandemmq.launcher import Server

DOWN_SECONDS = 4.0
_POLL_SECONDS = 0.05


async def crash_slave_when(slave: Server, is_time: Callable[[], bool], notes: list[str]) -> None:
    """Kills the slave once `is_time()` holds, and starts it again after DOWN_SECONDS; `notes` says so."""
    while not is_time():
        await asyncio.sleep(_POLL_SECONDS)
    slave.kill()
    await asyncio.sleep(DOWN_SECONDS)
    await asyncio.to_thread(slave.start)
    notes.append(f"slave killed with SIGKILL while publishing, back after {DOWN_SECONDS:g} s")
