"""Questions to Spark, each in a thread of its own: signals and progress are not late."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from tandemmq.errors import TandemError
from tandemmq.spark.pipelines.runner import StopFlag

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

TICK_S = 0.5

Tick = Callable[[int, int], None]
"""Called now and then with the tasks that are done, and all tasks that are known."""


class Interrupted(TandemError):
    """A signal asked for the end while Spark was at work."""


class Jobs:
    """Runs jobs of one session until a signal."""

    def __init__(self, spark: SparkSession, stop: StopFlag) -> None:
        self._spark = spark
        self._stop = stop
        self._stages: dict[int, int] = {}

    def run(self, work: Callable[[], T], on_tick: Tick = lambda done, total: None) -> T:
        """What `work` returns.

        Raises:  whatever `work` raises; Interrupted when a signal came, after Spark's tasks were cancelled.
        """
        (result,) = self.run_all([work], on_tick)
        if isinstance(result, BaseException):
            raise result
        return result

    def run_all(
        self, works: Sequence[Callable[[], T]], on_tick: Tick = lambda done, total: None
    ) -> list[T | BaseException]:
        """What each returns or raises; all run at the same time.

        Raises:  Interrupted when a signal came, after Spark's tasks were cancelled.
        """
        results: dict[int, T | BaseException] = {}

        def follow(index: int, work: Callable[[], T]) -> None:
            try:
                # A write looks for its sink in the session of the Java thread that serves this one, which has
                # none yet; making a frame of ours gives it one.
                self._spark.createDataFrame([], "none int")
                results[index] = work()
            except BaseException as error:  # noqa: BLE001  (handed to the caller's thread)
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
        # A cancelled job fails too; the signal is the reason.
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
        """Tasks that are done and tasks that are known, of all stages that ran since `run_all` began: Spark
        tells of active ones only.
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
