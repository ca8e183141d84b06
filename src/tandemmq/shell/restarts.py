"""A server process that is started again when it dies, for the supervisors of `tandemmq up` and of a proxy's
workers.

Invariants: a process that dies is restarted after a pause that doubles with each death, up to
            RESTART_PAUSE_S_MAX; the pause is reset once the process has run for STEADY_S. One that was never
            ready is not restarted, because another try would fail in the same way.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from tandemmq.launcher import ProcessFailed

RESTART_PAUSE_S_MIN: Final = 0.2
RESTART_PAUSE_S_MAX: Final = 30.0
STEADY_S: Final = 60.0
READY_MARK: Final = b" ready on "
"""The text of the line on standard output with which servers report that they are ready."""


class RestartedProcess(ABC):
    """One server process with its restarts."""

    def __init__(self, label: str, stop_seconds_max: float) -> None:
        self.label = label
        """The name in lines for people."""
        self.is_ready = asyncio.Event()
        """Set once the process was ready for the first time."""
        self.restart_count = 0
        self._stop_seconds_max = stop_seconds_max
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Runs the process until `stop`. Raises ProcessFailed when the first start fails."""
        pause_s = RESTART_PAUSE_S_MIN
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                how = _exit_text(await self._run_once())
            except OSError as error:  # no process or file can be created now
                how = f"cannot be started: {error.strerror or error}"
            if self._stopping.is_set():
                return
            if not self.is_ready.is_set():
                raise ProcessFailed(self._first_failure(how))
            if time.monotonic() - began > STEADY_S:
                pause_s = RESTART_PAUSE_S_MIN
            self._on_died(how, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RESTART_PAUSE_S_MAX)
            self.restart_count += 1

    async def stop(self) -> int | None:
        """Stops the process; kills it after the longest time for a stop. Returns its exit code, negative for
        a signal, or None if it did not run.
        """
        self._stopping.set()
        process = self._process
        if process is None or process.returncode is not None:
            return None
        self._ask_to_stop(process)
        try:
            async with asyncio.timeout(self._stop_seconds_max):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        self._on_stopped()
        return process.returncode

    async def _run_once(self) -> int:
        """Runs the process once; returns its exit code."""
        self._process = process = await self._spawn()
        if self._stopping.is_set():
            self._ask_to_stop(process)
        assert process.stdout is not None
        was_ready = False
        async for line in process.stdout:
            if READY_MARK in line and not was_ready:
                was_ready = True
                self._on_ready(process.pid)
                self.is_ready.set()
        return await process.wait()

    def _ask_to_stop(self, process: asyncio.subprocess.Process) -> None:
        with suppress(ProcessLookupError):
            process.terminate()

    @abstractmethod
    async def _spawn(self) -> asyncio.subprocess.Process:
        """Starts the process, with its standard output as a pipe. Raises OSError."""

    @abstractmethod
    def _first_failure(self, how: str) -> str:
        """Returns the error of a process that was never ready."""

    @abstractmethod
    def _on_ready(self, pid: int) -> None:
        """Reports that this run is ready; `is_ready` is still unset for the first one."""

    @abstractmethod
    def _on_died(self, how: str, pause_s: float) -> None:
        """Reports a death, after which the process is restarted."""

    @abstractmethod
    def _on_stopped(self) -> None:
        """Reports the end of a process that was asked to stop."""


async def start_server(*arguments: str, **settings: Any) -> asyncio.subprocess.Process:
    """Starts `tandemmq` with these arguments, and its standard output as a pipe. Raises OSError."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tandemmq",
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        # Ctrl-C reaches every process of a terminal's session; these end when their parent asks them.
        start_new_session=True,
        **settings,
    )


def raise_failures(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Raises the error of a task that has failed."""
    for task in tasks:
        if task.done():
            task.result()


def _exit_text(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    return f"was killed by {signal.Signals(-code).name}"
