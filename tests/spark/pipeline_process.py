"""Runs a pipeline as a process: its events as they arrive, signals, its exit code."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from waits import until_blocking

WAIT_S = 300.0

Event = dict[str, Any]


class PipelineProcess:
    """A running `tandemmq pipeline ...`."""

    def __init__(self, name: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "tandemmq", "pipeline", name, *arguments]
        command += ["--master", "local[2]", "--progress", "json"]
        self.events: list[Event] = []
        self.errors: list[str] = []
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._followers = [
            threading.Thread(target=self._follow, args=(self._process.stdout, self._on_line)),
            threading.Thread(target=self._follow, args=(self._process.stderr, self.errors.append)),
        ]
        for follower in self._followers:
            follower.start()

    def _follow(self, stream: Any, take: Callable[[str], object]) -> None:
        for line in stream:
            take(line)

    def _on_line(self, line: str) -> None:
        self.events.append(json.loads(line))

    def wait_for(self, condition: Callable[[Event], bool]) -> None:
        """Returns once a matching event has arrived.

        Raises:  AssertionError if the process ends without one, or after WAIT_S.
        """

        def is_there() -> bool:
            is_over = not any(follower.is_alive() for follower in self._followers)
            is_found = any(condition(event) for event in list(self.events))
            assert is_found or not is_over, f"it ended before that: {self.events} {self.errors}"
            return is_found

        until_blocking(is_there, f"an event of {self._process.args!r}", WAIT_S)

    def end(self, number: signal.Signals | None = None) -> int:
        """Waits for the end and returns the exit code, after a signal if one is given."""
        if number is not None:
            self._process.send_signal(number)
        code = self._process.wait(WAIT_S)
        self.close()
        return code

    def close(self) -> None:
        """Kills the process if it still runs, so that nothing of it is left."""
        self._process.kill()
        self._process.wait()
        for follower in self._followers:
            follower.join()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()


@contextmanager
def running_pipeline(name: str, *arguments: str) -> Iterator[PipelineProcess]:
    """Starts a pipeline, and kills it at the end of the block if it has not ended."""
    pipeline = PipelineProcess(name, *arguments)
    try:
        yield pipeline
    finally:
        pipeline.close()


def is_batch(event: Event) -> bool:
    return bool(event["event"] == "batch")


def has_rows(count: int) -> Callable[[Event], bool]:
    """Returns a predicate for a batch event with at least `count` rows in total."""
    return lambda event: is_batch(event) and event["rows_total"] >= count
