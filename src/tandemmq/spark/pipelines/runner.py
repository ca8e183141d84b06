"""Runs one streaming query to its end: tells each batch, stops between batches, starts again after passing
faults.

Spark can only be told to stop now, which kills a running batch. That is safe, because the batch is replayed,
but a planned stop should not throw work away: so the runner waits for the gap between two batches.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from tandemmq.spark.offsets import measure_lag
from tandemmq.spark.pipelines.events import Reporter, Restarted, Started, Stopped, Totals, make_batch_done

POLL_S = 0.1
STOP_POLL_S = 0.01
STOP_WAIT_S = 120.0
RESTART_PAUSE_S_MAX = 30.0

_PASSING = ("BrokerUnreachable", "RequestTimeout", "NoRoute", "Busy", "ServiceNotAvailable")
"""Our errors that a later attempt may not meet."""

_PASSING_OF_SPARK = (
    # The process that plans a stream has 10 s to connect to Java, a constant in Spark's code. On a machine
    # with much more to do than it can, it needs longer now and then.
    "Python worker failed to connect back",
    "Timed out while waiting for the Python worker to connect back",
    "STREAMING_PYTHON_RUNNER_INITIALIZATION_TIMEOUT_FAILURE",
)
"""Failures of Spark to start its own Python processes in time."""

_OUR_ERROR = re.compile(r"tandemmq\.errors\.(\w+): ([^\n]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A query as the runner needs it: how to start it, what a batch delivered, and its names for people.

    `restarts_max` None: for ever. `is_outdated`: whether the query must be started anew after a batch, given
    its number; asked once for each.
    """

    topic: str
    out: str
    start: Callable[[], Any]
    measure_batch: Callable[[int], Totals]
    measure_all: Callable[[], Totals]
    restarts_max: int | None
    is_outdated: Callable[[int], bool] | None = None


class StopFlag:
    """Set by SIGTERM or SIGINT; a second signal means: now."""

    def __init__(self) -> None:
        self.is_set = False
        self.is_urgent = False

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        self.is_urgent = self.is_set
        self.is_set = True

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Takes the two signals for the time of the block; only in a main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = [signal.signal(number, self.on_signal) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)


class Runner:
    """Follows one job; `run` returns the process's exit code."""

    def __init__(self, job: Job, reporter: Reporter, stop: StopFlag) -> None:
        self._job = job
        self._reporter = reporter
        self._stop = stop
        self._totals = Totals(rows=0, size_bytes=0)
        self._is_outdated = False

    def run(self) -> int:
        """0 when everything is read or a signal asked for the end, 1 after an error."""
        self._totals = self._job.measure_all()
        restarts = 0
        while True:
            batches_before = self._totals
            error = self._run_once()
            if error is None and self._is_outdated and not self._stop.is_set:
                continue
            if error is None:
                self._tell_end("signal" if self._stop.is_set else "done")
                return 0
            if self._totals != batches_before:
                restarts = 0
            limit = self._job.restarts_max
            if not is_passing(error) or (limit is not None and restarts >= limit) or self._stop.is_set:
                self._tell_end("error", explain_failure(error))
                return 1
            pause_s = min(2.0**restarts, RESTART_PAUSE_S_MAX)
            restarts += 1
            self._reporter.report(Restarted(error=explain_failure(error), pause_seconds=pause_s))
            self._sleep(pause_s)

    def _run_once(self) -> str | None:
        """Runs the query until it ends; the text of its failure, None for a good end."""
        try:
            return self._follow(self._job.start())
        except Exception as error:  # noqa: BLE001  (failures of Spark, py4j and a dead Java share no class)
            # A dead Java gives errors of py4j that only name the call that met them.
            is_java_gone = type(error).__name__.startswith("Py4J")
            return f"Spark's Java process does not answer any more ({error})" if is_java_gone else str(error)

    def _follow(self, query: Any) -> str | None:
        self._reporter.report(
            Started(
                topic=self._job.topic,
                out=self._job.out,
                rows_total=self._totals.rows,
                bytes_total=self._totals.size_bytes,
            )
        )
        told = -1
        self._is_outdated = False
        while query.isActive and not self._stop.is_set and not self._is_outdated:
            told = self._tell_batches(query, told)
            # Not awaitTermination: it raises the failure of the query, which is wanted below as text.
            time.sleep(POLL_S)
        is_ended = self._stop.is_set or self._is_outdated
        if is_ended:
            self._stop_between_batches(query)
        self._tell_batches(query, told)
        failure = query.exception()
        return None if failure is None or is_ended else str(failure)

    def _tell_batches(self, query: Any, told: int) -> int:
        """Reports the batches behind `told` that are finished; returns the last one."""
        last = query.lastProgress
        if last is None or last.batchId <= told:
            return told
        for progress in query.recentProgress:
            if progress.batchId > told and progress.numInputRows > 0:
                told = progress.batchId
                self._tell_batch(progress)
        return told

    def _tell_batch(self, progress: Any) -> None:
        done = self._job.measure_batch(progress.batchId)
        # Counted anew and not added up: a batch that is replayed after a crash was delivered before.
        self._totals = self._job.measure_all()
        source = progress.sources[0]
        lag = measure_lag(source.endOffset, source.latestOffset)
        seconds = progress.batchDuration / 1000
        self._reporter.report(make_batch_done(progress.batchId, done, self._totals, lag=lag, seconds=seconds))
        if self._job.is_outdated is not None and self._job.is_outdated(progress.batchId):
            self._is_outdated = True

    def _stop_between_batches(self, query: Any) -> None:
        deadline = time.monotonic() + STOP_WAIT_S
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
            if self._stop.is_urgent:
                break
            time.sleep(STOP_POLL_S)
        query.stop()

    def _sleep(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._stop.is_set and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def _tell_end(self, reason: str, error: str = "") -> None:
        totals = self._totals = self._job.measure_all()
        self._reporter.report(
            Stopped(
                reason=reason,
                rows_total=totals.rows,
                bytes_total=totals.size_bytes,
                error=error,
                bad_total=totals.bad,
            )
        )


def explain_failure(text: str) -> str:
    """One sentence out of Spark's pages: our own error where there is one, else the first line."""
    ours = _OUR_ERROR.findall(text)
    if ours:
        return str(ours[-1][1])
    lines = [line.strip(": ") for line in text.splitlines() if line.strip(": ")]
    # The bridge to Java only names the call; what went wrong is the next line.
    told = [line for line in lines if not line.startswith("An error occurred while calling")]
    return next(iter(told or lines), "unknown error")


def is_passing(text: str) -> bool:
    """True if a later attempt may not meet the failure: brokers that are away, a machine that is too busy."""
    ours = _OUR_ERROR.findall(text)
    if ours:
        return ours[-1][0] in _PASSING
    return any(sign in text for sign in _PASSING_OF_SPARK)
