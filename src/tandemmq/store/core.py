"""The values that all parts of an open store share (`StoreCore`), and the task and timer of a part that works
in rounds (`Rounds`).

`MessageStore.open` makes the core. Each part receives it, and the few other parts that it calls.
Invariants: after a failure of the store no round, timer or write begins: `Admission.has_failed` is True and
            every `Rounds` is halted.
Knows not:  the parts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from tandemmq.runtime.ports import Advice, Clock, Disk, TimerHandle
from tandemmq.runtime.tasks import TaskScope, run_out
from tandemmq.store.admission import Admission
from tandemmq.store.checkpoint import Checkpoint, StoreMarks
from tandemmq.store.commit_log import CommitLog, Warmth
from tandemmq.store.consume_queues import ConsumeQueues
from tandemmq.store.key_indexes import KeyIndexes
from tandemmq.store.options import PAGE_BYTES, FlushMode, StoreOptions, StorePaths
from tandemmq.store.recorder import StoreRecorder
from tandemmq.store.segmented_log import OpenFiles, SegmentedLog
from tandemmq.store.watermarks import Watermark
from tandemmq.telemetry import events
from tandemmq.units import EpochMs

log = logging.getLogger(__name__)

OnFailed = Callable[[BaseException], None]


class FailStopClock:
    """A clock that passes the errors of its callbacks to `on_error`.

    Strategy: asyncio passes the error of a callback to the loop's handler, which logs it and continues, with
              the callback's work half done. Tasks have their scope for such errors; this class covers
              callbacks.
    """

    __slots__ = ("_clock", "_on_error", "monotonic", "now_ms")

    def __init__(self, clock: Clock, on_error: OnFailed) -> None:
        self._clock = clock
        self._on_error = on_error
        # Called for each message, so there is no wrapper in between.
        self.now_ms: Callable[[], EpochMs] = clock.now_ms
        self.monotonic: Callable[[], float] = clock.monotonic

    def call_later(self, delay_s: float, fn: Callable[..., object], *args: Any) -> TimerHandle:
        return self._clock.call_later(delay_s, self._run, fn, args)

    def call_soon(self, fn: Callable[..., object], *args: Any) -> None:
        self._clock.call_soon(self._run, fn, args)

    async def sleep(self, delay_s: float) -> None:
        await self._clock.sleep(delay_s)

    def _run(self, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
        try:
            fn(*args)
        except Exception as error:  # whatever it is, the store's state is unknown
            log.critical(events.CALLBACK_FAILED, exc_info=error)
            self._on_error(error)


class Rounds:
    """The task and the timer of a part that works in rounds: one round runs at a time, and one may be due."""

    __slots__ = ("_clock", "_name", "_task", "_tasks", "_timer", "is_stopped")

    def __init__(self, name: str, clock: Clock, tasks: TaskScope) -> None:
        self._name = name
        self._clock = clock
        self._tasks = tasks
        self._task: asyncio.Task[None] | None = None
        self._timer: TimerHandle | None = None
        self.is_stopped = False

    @property
    def is_running(self) -> bool:
        """True while a round runs."""
        return self._task is not None

    @property
    def is_timed(self) -> bool:
        """True while a call of `after` is due."""
        return self._timer is not None

    def start(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Starts a round, unless one runs or the part was stopped."""
        if self._task is None and not self.is_stopped:
            self._task = self._tasks.start(self._name, self._run(work))

    async def _run(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        try:
            await work()
        finally:
            self._task = None

    def after(self, delay_s: float, tick: Callable[[], object]) -> None:
        """Calls `tick` once after a delay; replaces a call that is due. Does nothing once the part is
        stopped.
        """
        self._cancel()
        if not self.is_stopped:
            self._timer = self._clock.call_later(delay_s, self._tick, tick)

    def _tick(self, tick: Callable[[], object]) -> None:
        self._timer = None
        tick()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def halt(self) -> None:
        """Cancels the timer; no further round begins."""
        self.is_stopped = True
        self._cancel()

    async def idle(self) -> None:
        """Waits until no round runs; none begins before the next await."""
        await run_out(lambda: self._task)
        self._task = None

    async def stop(self) -> None:
        """Halts, and waits until no round runs."""
        self.halt()
        await self.idle()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCore:
    """The values that the parts of one store share. `fail` stops the store until the process is restarted;
    only the first error is reported.
    """

    options: StoreOptions
    has_terms: bool
    """True if the master is elected: the log has terms, and its end may be cut by them
    (enableControllerMode).
    """
    paths: StorePaths
    disk: Disk
    clock: Clock
    fail: OnFailed
    tasks: TaskScope
    files: OpenFiles
    log: CommitLog
    queues: ConsumeQueues
    indexes: KeyIndexes | None
    checkpoint: Checkpoint
    marks: StoreMarks
    admission: Admission = field(default_factory=Admission)
    recorder: StoreRecorder = field(default_factory=StoreRecorder)
    appended: Watermark = field(default_factory=lambda: Watermark("appended"))
    flushed: Watermark = field(default_factory=lambda: Watermark("flushed"))
    confirmed: Watermark = field(default_factory=lambda: Watermark("confirmed"))
    dispatched: Watermark = field(default_factory=lambda: Watermark("dispatched"))
    all_rounds: list[Rounds] = field(default_factory=list)

    @classmethod
    def make(
        cls, options: StoreOptions, *, disk: Disk, clock: Clock, fail: OnFailed, has_terms: bool = False
    ) -> StoreCore:
        """Returns the core of a store whose files are not loaded yet."""
        paths = StorePaths(options)
        clock = FailStopClock(clock, fail)
        files = OpenFiles(disk, options.open_file_count_max)
        advice = None if options.read_ahead_enable else Advice.RANDOM
        segments = SegmentedLog(
            paths.commit_log, options.commit_log_file_bytes, files, sparse=False, advice=advice
        )
        has_indexes = options.key_index_enable
        return cls(
            options=options,
            has_terms=has_terms,
            paths=paths,
            disk=disk,
            clock=clock,
            fail=fail,
            tasks=TaskScope("store", lambda _task, error: fail(error)),
            files=files,
            log=CommitLog(
                segments, disk, mapped_bytes_max=options.mapped_bytes_max, warmth=_plan_warmth(options)
            ),
            queues=ConsumeQueues(options, paths, disk, files),
            indexes=KeyIndexes(options, paths, disk=disk, clock=clock) if has_indexes else None,
            checkpoint=Checkpoint(paths, disk),
            marks=StoreMarks(paths, disk),
        )

    def rounds(self, name: str) -> Rounds:
        """Returns a `Rounds` for one part; a failure of the store halts it."""
        made = Rounds(name, self.clock, self.tasks)
        self.all_rounds.append(made)
        return made

    @property
    def watermarks(self) -> tuple[Watermark, Watermark, Watermark, Watermark]:
        """The watermarks, in the order in which a cut lowers them."""
        return self.dispatched, self.confirmed, self.flushed, self.appended


def _plan_warmth(options: StoreOptions) -> Warmth | None:
    if not options.warm_segments:
        return None
    is_sync = options.flush_mode is FlushMode.SYNC_FLUSH
    return Warmth(sync_bytes=options.warm_flush_pages * PAGE_BYTES if is_sync else None)
