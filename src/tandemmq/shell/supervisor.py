"""Keeps the servers of a local cluster running: starts them, restarts those that die, and stops them in
order.

Invariants: every change is written to `up.json` before it is printed. A server that was never ready ends the
            whole `up`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tandemmq.errors import TandemError
from tandemmq.launcher import ProcessFailed
from tandemmq.shell import local
from tandemmq.shell.local import ServerPlan, ServerState, UpState
from tandemmq.shell.restarts import RestartedProcess, raise_failures, start_server

LOG_BYTES_MAX: Final = 32 * 1024 * 1024
"""The size of one server's log at which it becomes `log.1`, replacing the previous one."""
LOG_CHECK_S: Final = 10.0
REGISTERED_POLL_S: Final = 0.05
SLOW_START_S: Final = 15.0
"""The time after which the user sees which servers are not ready."""

Say = Callable[[str], None]


class SupervisedServer(RestartedProcess):
    """One server process with its restarts."""

    def __init__(self, plan: ServerPlan, folder: Path, on_change: Callable[[], None], say: Say) -> None:
        self.state = ServerState(plan.name, plan.role, plan.address, str(plan.log_path), health=plan.health)
        super().__init__(self.state.label, plan.stop_seconds_max)
        self.plan = plan
        self._environment = local.server_environment(folder)
        self._on_change = on_change
        self._say = say
        self._log_begin = 0

    async def _spawn(self) -> asyncio.subprocess.Process:
        self.bound_log()
        with self.plan.log_path.open("ab") as log:
            self._log_begin = log.tell()
            process = await start_server(*self.plan.command, stderr=log, env=self._environment)
        self.state.pid, self.state.started_at = process.pid, _now_ms()
        self._change("starting")
        return process

    def bound_log(self) -> None:
        """Moves a log that has grown too long aside; lines written during the copy may be lost."""
        path = self.plan.log_path
        with suppress(OSError):
            if path.stat().st_size > LOG_BYTES_MAX:
                shutil.copyfile(path, path.with_name("log.1"))
                os.truncate(path, 0)

    def _first_failure(self, how: str) -> str:
        return f"{self.label} did not start: {self._last_error() or how} (log: {self.plan.log_path})"

    def _last_error(self) -> str:
        """Returns the server's last error message of this run; empty when there is none."""
        with suppress(OSError), self.plan.log_path.open("rb") as log:
            log.seek(self._log_begin)
            lines = log.read(LOG_BYTES_MAX).decode("utf-8", "replace").splitlines()
            said = [line.removeprefix("tandemmq: ") for line in lines if line.startswith("tandemmq: ")]
            return said[-1] if said else ""
        return ""

    def _on_ready(self, pid: int) -> None:
        self._change("ready")
        if self.is_ready.is_set():
            self._say(f"{self.label} is ready again on {self.plan.address}, process {pid}")

    def _on_died(self, how: str, pause_s: float) -> None:
        self._change("restarting", f"{how}; restarting in {pause_s:g} s")
        self._say(f"{self.label} {how}; restarting in {pause_s:g} s (log: {self.plan.log_path})")

    def _on_stopped(self) -> None:
        self._change("stopped")

    def _change(self, state: str, note: str = "") -> None:
        self.state.state, self.state.note, self.state.restarts = state, note, self.restart_count
        self._on_change()


class Supervisor:
    """All servers of a folder; the caller holds the folder's lock."""

    def __init__(self, folder: Path, plans: Sequence[ServerPlan], say: Say) -> None:
        self._say = say
        self._state_is_written = True
        self.servers = [SupervisedServer(plan, folder, self._write_state, say) for plan in plans]
        states = [server.state for server in self.servers]
        self.state = UpState(os.getpid(), str(folder), plans[0].address, _now_ms(), servers=states)
        self._tasks: list[asyncio.Task[None]] = []

    def _write_state(self) -> None:
        """Writes the state to `up.json`. A full disk must not end the supervisor: the next change tries
        again.
        """
        try:
            local.write_state(self.state)
        except OSError as error:
            if self._state_is_written:
                why = error.strerror or error
                self._say(f"`tandemmq status` is outdated, because up.json cannot be written: {why}")
            self._state_is_written = False
        else:
            self._state_is_written = True

    async def run(self, on_ready: Callable[[UpState], None]) -> None:
        """Runs the servers until a signal ends them.

        Raises:  ProcessFailed when a server cannot be started, OSError when the folder cannot be written.
        """
        due = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # ignored under nohup
                loop.add_signal_handler(number, due.set)
        ending = asyncio.create_task(due.wait())
        try:
            local.write_state(self.state)
            self._tasks = [asyncio.create_task(server.run()) for server in self.servers]
            starting = asyncio.create_task(self._all_ready())
            started = [starting, ending, *self._tasks]
            done, _ = await asyncio.wait(started, timeout=SLOW_START_S, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                self._say(self._pending_text())
                await asyncio.wait(started, return_when=asyncio.FIRST_COMPLETED)
            raise_failures(self._tasks)
            if not due.is_set():
                await starting
                self.state.is_ready = True
                self._write_state()
                on_ready(self.state)
            starting.cancel()
            while not due.is_set():
                await asyncio.wait(
                    [ending, *self._tasks], timeout=LOG_CHECK_S, return_when=asyncio.FIRST_COMPLETED
                )
                raise_failures(self._tasks)
                for server in self.servers:
                    server.bound_log()
        except ProcessFailed as error:
            self.state.error = str(error)
            raise
        finally:
            ending.cancel()
            await self._stop()

    async def _all_ready(self) -> None:
        names = self.servers[0]
        await names.is_ready.wait()
        brokers = self._brokers()
        # A broker registers right before it is ready; if it found no name server, it tries again later.
        was_too_early = any(server.is_ready.is_set() for server in brokers)
        for server in self.servers:
            await server.is_ready.wait()
        is_elected = any(server.plan.role == local.ELECTED for server in brokers)
        if was_too_early or is_elected:
            # An elected broker that is not the master yet may be registered or not.
            groups = Counter(server.plan.name for server in brokers)
            await _wait_until_registered(
                names.plan.address, dict.fromkeys(groups, 1) if is_elected else groups
            )

    def _brokers(self) -> list[SupervisedServer]:
        return [server for server in self.servers if server.plan.is_broker]

    def _pending_text(self) -> str:
        late = [server.label for server in self.servers if not server.is_ready.is_set()]
        if late:
            names = ", ".join(late)
            return f"not ready after {SLOW_START_S:g} s: {names}; the logs are in {self.state.folder}"
        return (
            f"all servers run, but after {SLOW_START_S:g} s not every group has a master at the name server"
            f" {self.state.namesrv}: can the servers reach that address, which --host gives?"
        )

    async def _stop(self) -> None:
        """Stops proxy and console, then the first broker of each group, the others, and the name server. A
        classic master is the first, so its slave receives everything. An elected one hands over to a broker
        that still runs.
        """
        names, brokers = self.servers[0], self._brokers()
        fronts = [server for server in self.servers if server.plan.role in (local.PROXY, local.CONSOLE)]
        firsts = list({server.plan.name: server for server in reversed(brokers)}.values())
        others = [server for server in brokers if server not in firsts]
        for together in (fronts, firsts, others, [names]):
            await asyncio.gather(*(server.stop() for server in together))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._write_state()


async def _wait_until_registered(namesrv: str, groups: Mapping[str, int]) -> None:
    """Waits until the name server knows the given number of brokers of each group, and its master: before
    that, sends fail.
    """
    from tandemmq.api.nameserver import query_cluster_info
    from tandemmq.manage.tools import open_tools

    async with open_tools("") as tools:
        while True:
            with suppress(TandemError):
                known = (await query_cluster_info(tools.remoting, namesrv)).brokers
                addresses = {name: data.addresses for name, data in known.items()}
                if all(
                    0 in addresses.get(name, ()) and len(addresses[name]) >= count
                    for name, count in groups.items()
                ):
                    return
            await asyncio.sleep(REGISTERED_POLL_S)


def _now_ms() -> int:
    return int(time.time() * 1000)
