"""Pipelines and Spark's own servers as processes that can be killed, with all their children."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyspark

from tandemmq.spark.java import find_java
from waits import until_blocking

WAIT_S = 240.0
_MASTER_AT = re.compile(r"Starting Spark master at (spark://\S+)")

Event = dict[str, Any]


class Process:
    """A process with its own session, so that all its descendants can be found."""

    def __init__(self, command: list[str], log: Path, *, has_output: bool) -> None:
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "JAVA_HOME": str(find_java())}
        environment["PYSPARK_PYTHON"] = sys.executable
        self.log = log
        with log.open("ab") as file:
            self.popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if has_output else file,
                stderr=file,
                start_new_session=True,
                text=True,
                env=environment,
            )

    def children(self, word: str) -> list[int]:
        """Returns the processes of the session whose command contains the word."""
        found = []
        for pid in list_session(self.popen.pid):
            with suppress(OSError):
                if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def kill_java(self, seconds: float = WAIT_S) -> None:
        """Kills the Java of a driver as soon as it exists.

        Raises:  AssertionError if it does not start in time.
        """
        pids: list[int] = []
        until_blocking(
            lambda: pids.extend(self.children("-Dlog4j2.configurationFile")) or pids,
            f"a Java of process {self.popen.pid}",
            seconds,
        )
        for pid in pids:
            kill(pid)

    def kill_all(self) -> None:
        """Kills everything of the session."""

        def is_gone() -> bool:
            pids = list_session(self.popen.pid)
            for pid in pids:
                kill(pid)
            self.popen.poll()
            return not pids

        until_blocking(is_gone, f"the end of session {self.popen.pid}", WAIT_S)
        self.popen.wait()


class Pipeline(Process):
    """A running `tandemmq pipeline ...`, with its events as they arrive."""

    def __init__(self, name: str, *arguments: str, log: Path) -> None:
        command = [sys.executable, "-m", "tandemmq", "pipeline", name, *arguments, "--progress", "json"]
        super().__init__(command, log, has_output=True)
        self.events: list[Event] = []
        self._follower = threading.Thread(target=self._follow, daemon=True)
        self._follower.start()

    def _follow(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            # A kill may truncate the last line.
            with suppress(ValueError):
                self.events.append(json.loads(line))

    def wait_for(self, condition: Callable[[Event], bool], seconds: float = WAIT_S) -> Event | None:
        """Returns the first matching event; None if the process ends or the time is over before."""
        found: list[Event] = []

        def is_settled() -> bool:
            is_over = not self._follower.is_alive()
            found.extend(event for event in list(self.events) if condition(event))
            return is_over or bool(found)

        with suppress(AssertionError):
            until_blocking(is_settled, "an event", seconds)
        return next(iter(found), None)

    def end(self, number: signal.Signals | None = None, seconds: float = WAIT_S) -> int | None:
        """Returns the exit code, after a signal or by itself; None if the process had to be killed."""
        if number is not None:
            self.popen.send_signal(number)
        code: int | None = None
        with suppress(subprocess.TimeoutExpired):
            code = self.popen.wait(seconds)
        self.kill_all()
        self._follower.join()
        return code


class Standalone:
    """Spark's standalone cluster on this machine: a master, and workers of one core each."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
        self.processes: list[Process] = []
        self.master = self._start("Master", "--host", "127.0.0.1", "--port", "0")
        self.url = self._wait_for_url()
        self.workers = [self.start_worker() for _ in range(2)]

    def start_worker(self) -> Process:
        number = len(self.processes)
        more = ("--host", "127.0.0.1", "--cores", "1", "--memory", "1200m")
        return self._start("Worker", *more, "-d", str(self._directory / f"work-{number}"), self.url)

    def executors(self) -> list[int]:
        """Returns the running executor processes."""
        return [pid for worker in self.workers for pid in worker.children("CoarseGrainedExecutorBackend")]

    def close(self) -> None:
        for process in reversed(self.processes):
            process.kill_all()

    def _start(self, name: str, *arguments: str) -> Process:
        main = f"org.apache.spark.deploy.{name.lower()}.{name}"
        log = self._directory / f"spark-{name.lower()}-{len(self.processes)}.log"
        process = Process([self._class, main, "--webui-port", "0", *arguments], log, has_output=False)
        self.processes.append(process)
        return process

    def _wait_for_url(self) -> str:
        found: list[str] = []

        def is_reported() -> bool:
            is_over = self.master.popen.poll() is not None
            found.extend(_MASTER_AT.findall(self.master.log.read_text(errors="replace")))
            assert found or not is_over, f"Spark's master did not start (log: {self.master.log})"
            return bool(found)

        until_blocking(is_reported, f"the address of Spark's master in {self.master.log}", WAIT_S)
        return found[0]


@contextmanager
def standalone(directory: Path) -> Iterator[Standalone]:
    cluster = Standalone(directory)
    try:
        yield cluster
    finally:
        cluster.close()


def list_session(session: int) -> list[int]:
    """Returns the processes of a session that have not ended."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError, ValueError):
                # The fields after the name in brackets: state, parent, group, session.
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                if fields[0] not in "ZX" and int(fields[3]) == session:
                    found.append(int(entry))
    return found


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
