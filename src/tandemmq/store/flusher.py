"""Makes appended bytes survive a power cut: follows `appended`, raises `flushed`.

Invariants: one flush at a time. `flushed` rises only after the fsync of every file below it. After a failed
            fsync nothing is flushed again, because the kernel may have dropped the pages. A file that cannot
            be opened for lack of descriptors or memory is not a failed fsync: the round waits.
Strategy:   SYNC_FLUSH is a group commit: a flush starts when bytes arrive and none runs, and repeats until it
            has caught up, so that all sends that arrive during one fsync share the next. ASYNC_FLUSH runs on
            a timer. fsync itself runs off the loop.
Source:     spec store 11.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from tandemmq.errors import FlushFailed
from tandemmq.runtime.ports import Clock, Disk, File, NotOpened, TimerHandle
from tandemmq.runtime.tasks import TaskScope, run_out
from tandemmq.store.commit_log import CommitLog
from tandemmq.store.options import FlushMode, StoreOptions
from tandemmq.store.recorder import StoreRecorder
from tandemmq.store.segmented_log import Segment
from tandemmq.store.watermarks import Watermark
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

PAGE_BYTES = 4096
OPEN_RETRY_S = 0.2
OPEN_TRIES_MAX = 25
"""The number of attempts of a flush to open its files once the flusher is stopped."""


class Flusher:
    """The log's fsyncs. `stored_at()` returns the time of the newest appended record."""

    def __init__(
        self,
        options: StoreOptions,
        *,
        log: CommitLog,
        disk: Disk,
        clock: Clock,
        tasks: TaskScope,
        recorder: StoreRecorder,
        appended: Watermark,
        flushed: Watermark,
        stored_at: Callable[[], int],
        on_waiting: Callable[[OSError], None],
        on_failed: Callable[[FlushFailed], None],
    ) -> None:
        """Creates the flusher. `on_waiting` is called whenever a round waits because a file cannot
        be opened.
        """
        self._options = options
        self._log = log
        self._disk = disk
        self._clock = clock
        self._tasks = tasks
        self._recorder = recorder
        self._appended = appended
        self._flushed = flushed
        self._stored_at = stored_at
        self._on_waiting = on_waiting
        self._on_failed = on_failed
        self._is_waiting = False
        self._task: asyncio.Task[None] | None = None
        self._timer: TimerHandle | None = None
        self._thorough_at = clock.monotonic()
        self._is_stopped = False
        self.is_failed = False
        self.flushed_stored_at_ms = 0

    def start(self) -> None:
        """Starts flushing according to the options."""
        assert self._timer is None, "it is started once"
        if self._options.flush_mode is FlushMode.SYNC_FLUSH:
            self._appended.follow(self._on_appended)
        else:
            self._tick()

    def _on_appended(self, _appended: int) -> None:
        if self._task is None and not self._is_stopped:
            self._task = self._tasks.start("flush", self._catch_up())

    def _tick(self) -> None:
        if self._is_stopped:
            return
        self._timer = self._clock.call_later(self._options.flush_interval_ms / 1000, self._tick)
        now = self._clock.monotonic()
        is_thorough = now >= self._thorough_at + self._options.flush_thorough_interval_ms / 1000
        if is_thorough:
            self._thorough_at = now
        least_pages = 0 if is_thorough else self._options.flush_least_pages
        if self._task is None and self._has_work(least_pages):
            self._task = self._tasks.start("flush", self._catch_up())

    def _has_work(self, least_pages: int) -> bool:
        flushed, appended = self._flushed.value, self._appended.value
        assert flushed <= appended, (flushed, appended)
        if flushed == appended or least_pages == 0:
            return flushed < appended
        size = self._log.segment_bytes
        is_file_full = flushed // size != appended // size
        return is_file_full or appended // PAGE_BYTES - flushed // PAGE_BYTES >= least_pages

    @property
    def flushed_end(self) -> int:
        """The offset below which everything is on disk."""
        return self._flushed.value

    async def _catch_up(self) -> None:
        try:
            await self.flush()
            while self._options.flush_mode is FlushMode.SYNC_FLUSH and self._is_behind():
                await self.flush()
        finally:
            self._task = None

    def _is_behind(self) -> bool:
        return not self._is_stopped and self._flushed.value < self._appended.value

    async def flush(self) -> None:
        """Runs one round: flushes everything appended so far, unless an fsync fails.

        While the files cannot be opened it retries; once the flusher is stopped, at most OPEN_TRIES_MAX
        times.
        """
        tries = 0
        while True:
            try:
                if await self._flush_once():
                    break
            except NotOpened as error:
                tries += self._is_stopped
                if tries > OPEN_TRIES_MAX:
                    self.fail(error)
                    return
                self._wait(error)
                await self._clock.sleep(OPEN_RETRY_S)
        if self._is_waiting:
            self._is_waiting = False
            log.warning(events.FLUSH_RESUMED, extra={"flushed": self._flushed.value})

    def _wait(self, error: NotOpened) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            log.error(events.FLUSH_POSTPONED, extra={"flushed": self._flushed.value, "error": str(error)})
        self._on_waiting(error)

    async def _flush_once(self) -> bool:
        """Flushes once. Returns False if the log was cut meanwhile, since other bytes than the synced ones
        may be there.

        Raises:  NotOpened: nothing is known to be flushed, and no bytes are unverified.
        """
        if self.is_failed:
            return True  # the failed pages count as clean by now: a second fsync proves nothing
        target, cut_count = self._appended.value, self._appended.cut_count
        assert self._flushed.value <= target, (self._flushed.value, target)
        assert target <= self._log.end, (target, self._log.end)
        stored_at_ms = self._stored_at()
        segments = self._log.dirty_segments(self._flushed.value, target)
        assert segments or self._flushed.value == target, (self._flushed.value, target)
        assert not segments or segments[-1].base <= target <= segments[-1].end, (segments[-1], target)
        begun_at = self._clock.monotonic()
        try:
            await sync_segments(self._disk, segments)
        except NotOpened:
            raise
        except OSError as error:
            self.fail(error)
            return True
        if self._appended.cut_count != cut_count:
            return False
        assert target <= self._appended.value, "only a cut lowers what is appended"
        if segments:
            self._recorder.flush_s.observe(self._clock.monotonic() - begun_at)
        self.flushed_stored_at_ms = max(self.flushed_stored_at_ms, stored_at_ms)
        self._flushed.raise_to(target)
        return True

    def fail(self, error: OSError) -> None:
        """Stops for good after a failed fsync, here or of a derived table, and reports it once."""
        if self.is_failed:
            return
        self.is_failed = True
        self.halt()
        log.critical(events.FLUSH_FAILED, extra={"flushed": self._flushed.value, "error": str(error)})
        self._on_failed(FlushFailed(f"fsync failed, the store must be recovered: {error}"))

    def halt(self) -> None:
        """Starts no more flushes."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def stop(self) -> None:
        """Starts no more flushes, and waits until none runs."""
        self.halt()
        await run_out(lambda: self._task)
        self._task = None


async def sync_segments(disk: Disk, segments: Sequence[Segment]) -> None:
    """Syncs these files off the loop; they stay open meanwhile.

    Strategy: together, or one at a time if the process has too few descriptors for all.
    Raises:   NotOpened when a file or its directory could not be opened: call again later. OSError when an
              fsync failed.
    """
    try:
        await _sync_together(disk, segments)
    except NotOpened:
        for segment in segments:
            segment.make_room()
            await _sync_together(disk, (segment,))


async def _sync_together(disk: Disk, segments: Sequence[Segment]) -> None:
    pinned: list[Segment] = []
    files: list[File] = []
    try:
        for segment in segments:
            files.append(segment.pin())
            pinned.append(segment)
        if files:
            await disk.offload(_sync_all, files)
    finally:
        for segment in pinned:
            segment.unpin()


def _sync_all(files: Sequence[File]) -> None:
    for file in files:
        file.sync()
