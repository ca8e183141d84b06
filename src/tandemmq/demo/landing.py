"""Drives the landing pipeline as a process of its own: follows its progress, kills it when asked, starts
it again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tandemmq.launcher import ProcessFailed

KILL_AFTER_BATCHES = 2


class Landing:
    """One run (or, after a kill, several) of `tandemmq pipeline landing --once`."""

    def __init__(self, arguments: list[str], log_path: Path, on_progress: Callable[[int], None]) -> None:
        self._command = [
            sys.executable,
            "-m",
            "tandemmq",
            "pipeline",
            "landing",
            "--once",
            "--progress",
            "json",
        ]
        self._command += arguments
        self._log_path = log_path
        self._on_progress = on_progress

    def run(self) -> None:
        """Returns when everything that the topic held is landed. Raises ProcessFailed."""
        process = self._start()
        for _ in self._batches(process):
            pass
        self._finish(process)

    def run_until_killed(self) -> bool:
        """Kills the pipeline and its JVM with SIGKILL after a few batches; False if it ended before that."""
        process = self._start()
        is_killed = False
        for number, _ in enumerate(self._batches(process), start=1):
            if number >= KILL_AFTER_BATCHES:
                os.killpg(process.pid, signal.SIGKILL)
                is_killed = True
                break
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        return is_killed

    def _start(self) -> subprocess.Popen[str]:
        with self._log_path.open("ab") as log:
            # A session of its own: the JVM and the Python workers are killed with it.
            return subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )

    def _batches(self, process: subprocess.Popen[str]) -> Iterator[dict[str, object]]:
        assert process.stdout is not None
        for line in process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if event.get("event") == "batch":
                # A batch that is done again after a kill is in the total once.
                self._on_progress(int(event["rows_total"]))
                yield event

    def _finish(self, process: subprocess.Popen[str]) -> None:
        code = process.wait()
        if process.stdout is not None:
            process.stdout.close()
        if code != 0:
            last = self._log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            reason = last[0] if last else "no message"
            raise ProcessFailed(
                f"the landing pipeline ended with exit code {code}: {reason} (log: {self._log_path})"
            )
