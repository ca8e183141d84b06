"""TandemMQ servers as processes of this machine: starts them, waits until they are ready, kills and stops
them.

A server is ready when it has printed a line with its bound address (`host:port`) on standard output. Its log
goes to a file, and error messages refer to that file. The demo, the benchmarks and the tests that kill
processes use this module.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tandemmq.errors import TandemError

READY_SECONDS_MAX = 120.0
"""The longest wait for a ready line: a busy machine starts processes slowly. An exit is noticed at once."""
STOP_SECONDS_MAX = 20.0
_ADDRESS = re.compile(r"((?:\d+\.\d+\.\d+\.\d+|\[[0-9a-f:.]+\]):\d+)")


class ProcessFailed(TandemError):
    """A server process ended, or never became ready; the text names it and its log."""


def write_properties(path: Path, settings: Mapping[str, object]) -> Path:
    """Writes the settings to `path` as a RocketMQ properties file; returns `path`."""
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
    return path


class Server:
    """One `tandemmq` server process that can be started, killed and started again."""

    def __init__(self, name: str, command: list[str], log_path: Path) -> None:
        self.name = name
        self.address = ""
        self.environment: Mapping[str, str] | None = None
        """The environment of the next start; None: that of this process."""
        self._command = [sys.executable, "-m", "tandemmq", *command]
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id; -1 while the server does not run."""
        return self._process.pid if self._process is not None else -1

    def start(self) -> str:
        """Starts the server; returns the first address on its ready line.

        Raises:  ProcessFailed when the server exits or prints no address within READY_SECONDS_MAX.
        """
        with self._log_path.open("ab") as log:
            process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=log, env=self.environment
            )
        self._process = process
        watchdog = threading.Timer(READY_SECONDS_MAX, process.kill)
        watchdog.start()
        try:
            self.address = self._read_address(process)
        finally:
            watchdog.cancel()
        return self.address

    def _read_address(self, process: subprocess.Popen[bytes]) -> str:
        assert process.stdout is not None
        for line in process.stdout:
            found = _ADDRESS.search(line.decode("utf-8", "replace"))
            if found:
                # Later output must not fill the pipe and block the server.
                threading.Thread(target=process.stdout.read, daemon=True).start()
                return found.group(1)
        process.wait()
        last = self._log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        reason = last[0] if last else f"exit code {process.returncode}"
        raise ProcessFailed(f"{self.name} did not start: {reason} (log: {self._log_path})")

    def kill(self) -> None:
        """Ends the process with SIGKILL, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._close()

    def stop(self) -> None:
        """Ends the process with SIGTERM, or with SIGKILL after STOP_SECONDS_MAX."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._close()

    @property
    def is_alive(self) -> bool:
        """True if the process runs."""
        return self._process is not None and self._process.poll() is None

    def check_alive(self) -> None:
        """Raises ProcessFailed when the server has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            raise ProcessFailed(
                f"{self.name} ended with exit code {self._process.returncode} (log: {self._log_path})"
            )

    def _close(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdout is not None:
            process.stdout.close()


@contextmanager
def stopping(servers: list[Server]) -> Iterator[None]:
    """Stops the servers at the end, last started first, even after an error."""
    try:
        yield
    finally:
        for server in reversed(servers):
            server.stop()
