"""What `--chaos` breaks while messages are published: the slave dies without warning and comes back."""

from __future__ import annotations

import asyncio

from tandemmq.launcher import Server

DOWN_SECONDS = 4.0


async def crash_slave_when(slave: Server, it_is_time: asyncio.Event, notes: list[str]) -> None:
    """Kills the slave once `it_is_time`, and starts it again after DOWN_SECONDS; `notes` says so."""
    await it_is_time.wait()
    slave.kill()
    await asyncio.sleep(DOWN_SECONDS)
    await asyncio.to_thread(slave.start)
    notes.append(f"slave killed with SIGKILL while publishing, back after {DOWN_SECONDS:g} s")
