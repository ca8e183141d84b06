"""The worker processes of a proxy (`tandemmq proxy --workers N`), which share its port.

The parent process starts them, accepts the connections, passes each to the next worker, and serves no client
itself. Workers share nothing else: each has its own table of clients and its own connections to brokers, like
a proxy of its own.

Invariants: the port refuses connections until all workers are ready; a worker that dies is restarted
            (`restarts`), and the others get its share of new connections meanwhile; without the parent, the
            workers drain and end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Sequence
from typing import Final

from tandemmq.errors import ConfigError
from tandemmq.proxy.options import ProxyOptions
from tandemmq.remoting.options import render_address
from tandemmq.runtime.ports import Address
from tandemmq.runtime.shared_port import SharedPort, ask_to_end
from tandemmq.runtime.tasks import OnFatal
from tandemmq.shell.restarts import RestartedProcess, raise_failures, start_server
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

STOP_EXTRA_S: Final = 20.0
"""The time for a worker to stop, besides `grpcShutdownTimeSeconds` for the calls in flight."""


class ProxyWorker(RestartedProcess):
    """One worker with its restarts."""

    def __init__(self, number: int, command: Sequence[str], port: SharedPort, drain_s: float) -> None:
        """Creates the worker; `command` follows `tandemmq proxy` and its own number."""
        super().__init__(f"proxy worker {number}", drain_s + STOP_EXTRA_S)
        self.number = number
        self._command = command
        self._port = port
        self._pair: socket.socket | None = None

    async def _spawn(self) -> asyncio.subprocess.Process:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._pair = ours
        with theirs:
            return await start_server(
                "proxy",
                f"--worker={self.number}:{theirs.fileno()}",
                *self._command,
                env={name: text for name, text in os.environ.items() if name != "NOTIFY_SOCKET"},
                pass_fds=(theirs.fileno(),),
            )

    def _ask_to_stop(self, process: asyncio.subprocess.Process) -> None:
        if self._pair is None or not ask_to_end(self._pair):
            super()._ask_to_stop(process)

    def _first_failure(self, how: str) -> str:
        self.release()
        return f"{self.label} did not start: it {how}"

    def _on_ready(self, pid: int) -> None:
        assert self._pair is not None
        self._port.add(self._pair)
        if self.is_ready.is_set():
            log.warning(events.PROXY_WORKER_READY, extra={"worker": self.number, "pid": pid})

    def _on_died(self, how: str, pause_s: float) -> None:
        self.release()
        facts = {"worker": self.number, "reason": how, "restart_in_s": pause_s}
        log.warning(events.PROXY_WORKER_DIED, extra=facts)

    def _on_stopped(self) -> None:
        self.release()

    def release(self) -> None:
        """Closes the parent's end of the pair; a worker that still runs ends then."""
        if self._pair is not None:
            pair, self._pair = self._pair, None
            self._port.remove(pair)
            pair.close()


class WorkerGroup:
    """The workers of one proxy. `on_fatal` is called with a bug of the parent."""

    def __init__(self, options: ProxyOptions, command: Sequence[str], on_fatal: OnFatal) -> None:
        """Creates the group. The workers get the options `command`, and the address that the parent bound.

        Raises:  ConfigError when the port cannot be bound.
        """
        self._on_fatal = on_fatal
        self._port = _bind(options)
        host, port = self._port.address
        bound = ("--set", f"bindAddress={host}", "--set", f"grpcServerPort={port}")
        numbers = range(1, options.worker_count + 1)
        self.workers = [
            ProxyWorker(number, (*command, *bound), self._port, options.drain_s) for number in numbers
        ]
        self.exit_code = 0
        """The worst exit code of the workers that were stopped."""
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def address(self) -> Address:
        """The address of the port."""
        return self._port.address

    async def start(self) -> None:
        """Starts the workers; once all are ready, the port accepts connections.

        Raises:  ProcessFailed when one cannot be started, ConfigError when another program has the port.
        """
        self._tasks = [asyncio.create_task(worker.run()) for worker in self.workers]
        ready = asyncio.create_task(self._all_ready())
        try:
            await asyncio.wait([ready, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        raise_failures(self._tasks)
        try:
            self._port.listen()
        except OSError as error:
            raise _unbound(self.address, error) from None
        for task in self._tasks:
            task.add_done_callback(self._on_ended)

    async def stop(self) -> None:
        """Closes the port and lets the workers drain; one that takes too long is killed."""
        self._port.close()
        codes = await asyncio.gather(*(worker.stop() for worker in self.workers))
        # A signal's number is negative.
        self.exit_code = max(self.exit_code, *(1 if code and code < 0 else code or 0 for code in codes))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _all_ready(self) -> None:
        for worker in self.workers:
            await worker.is_ready.wait()

    def _on_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_fatal(error)


def _bind(options: ProxyOptions) -> SharedPort:
    try:
        return SharedPort(options.listen_host, options.listen_port)
    except OSError as error:
        raise _unbound((options.listen_host, options.listen_port), error) from None


def _unbound(address: Address, error: OSError) -> ConfigError:
    reason = (error.strerror or str(error)).lower()
    return ConfigError(f"cannot listen on {render_address(address)}: {reason}")
