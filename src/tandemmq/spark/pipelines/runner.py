"""The environment of every pipeline: its session and the signals that stop it (`open_session`), the
supervision of one streaming query (`Runner`), and interruptible Spark jobs (`Jobs`).
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from tandemmq.errors import ConfigError, TandemError
from tandemmq.spark.lake.files import Totals
from tandemmq.spark.offsets import measure_lag
from tandemmq.spark.pipelines.events import (
    Event,
    Reporter,
    Restarted,
    make_batch_done,
    report_end,
    report_start,
)
from tandemmq.spark.pipelines.options import PipelineOptions
from tandemmq.spark.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_LOG = Path("/dev/null")
POLL_S = 0.1


@contextmanager
def open_session(
    app: str,
    master: str,
    log_file: Path | None = None,
    *,
    is_long: bool = False,
    settings: Sequence[tuple[str, str]] = (),
) -> Iterator[tuple[SparkSession, StopFlag]]:
    """Opens a session with our sources and sinks registered, and yields it with the flag that SIGTERM and
    SIGINT set.

    `is_long`: it runs until a signal. `settings`: the user's own of Spark. Both signals are handled from
    before Java starts until after it has ended.
    """
    stop = StopFlag()
    with stop.listening():
        log = log_file or NO_LOG
        spark = build_session(app, master, log_file=log, is_long=is_long, settings=dict(settings))
        try:
            # Spark installs its own SIGINT handler when the session begins.
            with stop.listening():
                yield spark, stop
        finally:
            # If Java died, the pipeline reports it, and the session cannot be stopped.
            with suppress(Exception):
                spark.stop()


def wait_for_stop(stop: StopFlag, seconds: float) -> bool:
    """Returns True as soon as a signal arrives, False when the time is over."""
    deadline = time.monotonic() + seconds
    while not stop.is_set and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return stop.is_set


class StopFlag:
    """A flag set by SIGTERM or SIGINT; a second signal requests an immediate stop."""

    def __init__(self) -> None:
        self.is_set = False
        self.is_urgent = False

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        self.is_urgent = self.is_set
        self.is_set = True

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handles the two signals for the duration of the block; only in the main thread."""
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


STOP_POLL_S = 0.01
STOP_WAIT_S = 120.0
RESTART_PAUSE_S_MAX = 30.0

_TRANSIENT = ("BrokerUnreachable", "RequestTimeout", "NoRoute", "Busy", "ServiceNotAvailable")
"""The names of our errors after which a later attempt may succeed."""

_TRANSIENT_OF_SPARK = (
    # The planner process of a stream has 10 s to connect to Java, a constant in Spark's code. An overloaded
    # machine sometimes needs longer.
    "Python worker failed to connect back",
    "Timed out while waiting for the Python worker to connect back",
    "STREAMING_PYTHON_RUNNER_INITIALIZATION_TIMEOUT_FAILURE",
)
"""The texts of Spark's failures to start its own Python processes in time."""

_OUR_ERROR = re.compile(r"tandemmq\.errors\.(\w+): ([^\n]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A query for the runner: how to start it, how to measure its batches, and its names for people.

    `restarts_max` None: no limit. `is_outdated`: called once per batch with its number; returns True if the
    query must be started anew.
    """

    topic: str
    out: str
    start: Callable[[], Any]
    measure_batch: Callable[[int], Totals]
    measure_all: Callable[[], Totals]
    restarts_max: int | None
    is_outdated: Callable[[int], bool] | None = None


class Runner:
    """Supervises one job: reports each batch, stops between batches, and restarts after transient faults.
    `run` returns the exit code.

    Spark itself can only stop at once, which kills a running batch. That is safe, because the batch is
    replayed, but a planned stop should not waste work. The runner therefore waits for the gap between two
    batches.
    """

    def __init__(self, job: Job, reporter: Reporter, stop: StopFlag) -> None:
        self._job = job
        self._reporter = reporter
        self._stop = stop
        self._totals = Totals()
        self._is_outdated = False

    def run(self) -> int:
        """Returns 0 if everything is read or after a signal, 1 after an error."""
        self._totals = self._job.measure_all()
        restarts = 0
        while True:
            batches_before = self._totals
            error = self._run_once()
            if error is None and self._is_outdated and not self._stop.is_set:
                continue
            if error is None:
                return self._report_end("signal" if self._stop.is_set else "done")
            if self._totals != batches_before:
                restarts = 0
            limit = self._job.restarts_max
            if not is_transient(error) or (limit is not None and restarts >= limit) or self._stop.is_set:
                return self._report_end("error", explain_failure(error))
            pause_s = min(2.0**restarts, RESTART_PAUSE_S_MAX)
            restarts += 1
            self._reporter.report(Restarted(error=explain_failure(error), pause_seconds=pause_s))
            wait_for_stop(self._stop, pause_s)

    def _run_once(self) -> str | None:
        """Runs the query until it ends; returns the text of its failure, None if it ended well."""
        try:
            return self._follow(self._job.start())
        except Exception as error:  # noqa: BLE001  (failures of Spark, py4j and a dead Java share no class)
            # With a dead Java, py4j's errors name only the call.
            is_java_gone = type(error).__name__.startswith("Py4J")
            return f"Spark's Java process does not answer any more ({error})" if is_java_gone else str(error)

    def _follow(self, query: Any) -> str | None:
        report_start(self._reporter, self._job.topic, self._job.out, self._totals)
        reported_id = -1
        self._is_outdated = False
        while query.isActive and not self._stop.is_set and not self._is_outdated:
            reported_id = self._report_batches(query, reported_id)
            # Not awaitTermination: it raises the failure of the query, which is needed below as text.
            time.sleep(POLL_S)
        is_ended = self._stop.is_set or self._is_outdated
        if is_ended:
            self._stop_between_batches(query)
        self._report_batches(query, reported_id)
        failure = query.exception()
        return None if failure is None or is_ended else str(failure)

    def _report_batches(self, query: Any, reported_id: int) -> int:
        """Reports the finished batches after `reported_id`; returns the last reported one."""
        last = query.lastProgress
        if last is None or last.batchId <= reported_id:
            return reported_id
        for progress in query.recentProgress:
            if progress.batchId > reported_id and progress.numInputRows > 0:
                reported_id = progress.batchId
                self._report_batch(progress)
        return reported_id

    def _report_batch(self, progress: Any) -> None:
        done = self._job.measure_batch(progress.batchId)
        # Measured anew instead of added up: a batch that is replayed after a crash was delivered before.
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

    def _report_end(self, reason: str, error: str = "") -> int:
        self._totals = self._job.measure_all()
        return report_end(self._reporter, reason, self._totals, error)


def explain_failure(text: str) -> str:
    """Returns one sentence of Spark's long error texts: our own error if there is one, else the first
    line.
    """
    ours = _OUR_ERROR.findall(text)
    if ours:
        return str(ours[-1][1])
    lines = [line.strip(": ") for line in text.splitlines() if line.strip(": ")]
    # The py4j line names only the call; the next line is the error.
    own = [line for line in lines if not line.startswith("An error occurred while calling")]
    return next(iter(own or lines), "unknown error")


def is_transient(text: str) -> bool:
    """Returns True if a later attempt may succeed: brokers are unreachable, or the machine is overloaded."""
    ours = _OUR_ERROR.findall(text)
    if ours:
        return ours[-1][0] in _TRANSIENT
    return any(sign in text for sign in _TRANSIENT_OF_SPARK)


T = TypeVar("T")

TICK_S = 0.5

Tick = Callable[[int, int], None]
"""A callback that is called periodically with the number of finished tasks and of all known tasks."""


class Interrupted(TandemError):
    """A signal requested a stop while Spark was at work."""


class Jobs:
    """Runs jobs of one session until a signal, each in its own thread, so that neither signals nor progress
    are delayed.
    """

    def __init__(self, spark: SparkSession, stop: StopFlag) -> None:
        self._spark = spark
        self._stop = stop
        self._stages: dict[int, int] = {}

    def run(self, work: Callable[[], T], on_tick: Tick = lambda done, total: None) -> T:
        """Returns the result of `work`.

        Raises:  any error of `work`; Interrupted after a signal, once Spark's tasks are cancelled.
        """
        (result,) = self.run_all([work], on_tick)
        if isinstance(result, BaseException):
            raise result
        return result

    def run_all(
        self, works: Sequence[Callable[[], T]], on_tick: Tick = lambda done, total: None
    ) -> list[T | BaseException]:
        """Runs all concurrently and returns the result or the error of each.

        Raises:  Interrupted after a signal, once Spark's tasks are cancelled.
        """
        results: dict[int, T | BaseException] = {}

        def follow(index: int, work: Callable[[], T]) -> None:
            try:
                # A write looks up its sink in the session of the Java thread that serves this thread, which
                # has none yet; creating a DataFrame sets it.
                self._spark.createDataFrame([], "none int")
                results[index] = work()
            except BaseException as error:  # noqa: BLE001  (passed to the caller's thread)
                results[index] = error

        self._check()
        self._stages.clear()
        threads = [
            threading.Thread(target=follow, args=(index, work), name=f"spark-job-{index}", daemon=True)
            for index, work in enumerate(works)
        ]
        for thread in threads:
            thread.start()
        self._wait(threads, on_tick)
        # A cancelled job fails too, but the signal is the reason.
        if any(isinstance(result, BaseException) for result in results.values()):
            self._check()
        return [results[index] for index in range(len(works))]

    def _wait(self, threads: Sequence[threading.Thread], on_tick: Tick) -> None:
        told_at = time.monotonic()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.05)
                if self._stop.is_set:
                    self._spark.sparkContext.cancelAllJobs()
                if time.monotonic() - told_at >= TICK_S:
                    told_at = time.monotonic()
                    on_tick(*self._count_tasks())

    def _check(self) -> None:
        if self._stop.is_set:
            raise Interrupted("stopped by a signal")

    def _count_tasks(self) -> tuple[int, int]:
        """Returns the finished and the known tasks of all stages since `run_all` began; Spark reports only
        active stages.
        """
        tracker = self._spark.sparkContext.statusTracker()
        left = 0
        for stage_id in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage_id)
            if info is not None:
                self._stages[stage_id] = info.numTasks
                left += info.numTasks - info.numCompletedTasks
        total = sum(self._stages.values())
        return total - left, total


@dataclass(slots=True)
class Workplace:
    """The session of a pipeline, its reporter, and the flag that stops it."""

    spark: SparkSession
    reporter: Reporter
    stop: StopFlag
    jobs: Jobs = field(init=False)

    def __post_init__(self) -> None:
        self.jobs = Jobs(self.spark, self.stop)

    def report(self, event: Event) -> None:
        self.reporter.report(event)

    def report_batch(self, batch: int, done: Totals, total: Totals, lag: int | None, began: float) -> None:
        """Reports a batch that delivered `done` since `began`, a monotonic time."""
        seconds = time.monotonic() - began
        self.report(make_batch_done(batch, done, total, lag=lag, seconds=seconds))

    def repeat(self, work: Callable[[], tuple[str, str]], every_s: float | None) -> tuple[str, str]:
        """Calls `work` once, or with `every_s` repeatedly until a signal; returns how the last call ended:
        `done`, `signal` or `error`, and the error.
        """
        reason, error = work()
        while every_s is not None and not wait_for_stop(self.stop, every_s):
            reason, error = work()
        is_stopped = self.stop.is_set and reason == "done"
        return ("signal" if is_stopped and every_s is not None else reason), error


@contextmanager
def open_workplace(
    options: PipelineOptions, reporter: Reporter, log_file: Path | None = None, *, is_long: bool = False
) -> Iterator[Workplace]:
    """Opens the session of a pipeline, as `open_session` does."""
    name, settings = f"{options.name} {options.subject}", options.settings
    with open_session(name, options.master, log_file, is_long=is_long, settings=settings) as (spark, stop):
        yield Workplace(spark, reporter, stop)


def attempt(
    work: Callable[[], None], refused: tuple[type[Exception], ...] = (ConfigError,)
) -> tuple[str, str]:
    """Returns how `work` ended, `done`, `signal` or `error`, and the error.

    Raises:  the errors of `refused`: the command was refused.
    """
    try:
        work()
    except Interrupted:
        return "signal", ""
    except refused:
        raise
    except Exception as error:  # noqa: BLE001  (failures of Spark and py4j share no class)
        return "error", explain_failure(str(error))
    return "done", ""
