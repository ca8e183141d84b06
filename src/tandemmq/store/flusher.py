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

import logging
from collections.abc import Callable, Sequence

from tandemmq.errors import FlushFailed
from tandemmq.runtime.ports import Disk, File, NotOpened
from tandemmq.store.core import StoreCore
from tandemmq.store.options import PAGE_BYTES, FlushMode
from tandemmq.store.segmented_log import Segment, pinned
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

OPEN_RETRY_S = 0.2
OPEN_TRIES_MAX = 25
"""The number of attempts of a flush to open its files once the flusher is stopped."""


class Flusher:
    """The log's fsyncs. `stored_at()` returns the time of the newest appended record."""

    def __init__(
        self,
        core: StoreCore,
        stored_at: Callable[[], int],
        *,
        on_waiting: Callable[[OSError], None],
    ) -> None:
        """Creates the flusher. `on_waiting` is called whenever a round waits because a file cannot
        be opened.
        """
        self._core = core
        self._rounds = core.rounds("flush")
        self._stored_at = stored_at
        self._on_waiting = on_waiting
        self._is_waiting = False
        self._thorough_at = core.clock.monotonic()
        self.is_failed = False
        self.flushed_stored_at_ms = 0

    def start(self) -> None:
        """Starts flushing according to the options."""
        assert not self._rounds.is_timed, "it is started once"
        if self._core.options.flush_mode is FlushMode.SYNC_FLUSH:
            self._core.appended.follow(self._on_appended)
        else:
            self._tick()

    def _on_appended(self, _appended: int) -> None:
        self._rounds.start(self._catch_up)

    def _tick(self) -> None:
        self._rounds.after(self._core.options.flush_interval_ms / 1000, self._tick)
        now = self._core.clock.monotonic()
        is_thorough = now >= self._thorough_at + self._core.options.flush_thorough_interval_ms / 1000
        if is_thorough:
            self._thorough_at = now
        least_pages = 0 if is_thorough else self._core.options.flush_least_pages
        if self._has_work(least_pages):
            self._rounds.start(self._catch_up)

    def _has_work(self, least_pages: int) -> bool:
        flushed, appended = self._core.flushed.value, self._core.appended.value
        assert flushed <= appended, (flushed, appended)
        if flushed == appended or least_pages == 0:
            return flushed < appended
        size = self._core.log.segment_bytes
        is_file_full = flushed // size != appended // size
        return is_file_full or appended // PAGE_BYTES - flushed // PAGE_BYTES >= least_pages

    async def _catch_up(self) -> None:
        await self.flush()
        while self._core.options.flush_mode is FlushMode.SYNC_FLUSH and self._is_behind():
            await self.flush()

    def _is_behind(self) -> bool:
        return not self._rounds.is_stopped and self._core.flushed.value < self._core.appended.value

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
                tries += self._rounds.is_stopped
                if tries > OPEN_TRIES_MAX:
                    self.fail(error)
                    return
                self._wait(error)
                await self._core.clock.sleep(OPEN_RETRY_S)
        if self._is_waiting:
            self._is_waiting = False
            log.warning(events.FLUSH_RESUMED, extra={"flushed": self._core.flushed.value})

    def _wait(self, error: NotOpened) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            log.error(
                events.FLUSH_POSTPONED, extra={"flushed": self._core.flushed.value, "error": str(error)}
            )
        self._on_waiting(error)

    async def _flush_once(self) -> bool:
        """Flushes once. Returns False if the log was cut meanwhile, since other bytes than the synced ones
        may be there.

        Raises:  NotOpened: nothing is known to be flushed, and no bytes are unverified.
        """
        if self.is_failed:
            return True  # the failed pages count as clean by now: a second fsync proves nothing
        target, cut_count = self._core.appended.value, self._core.appended.cut_count
        assert self._core.flushed.value <= target, (self._core.flushed.value, target)
        assert target <= self._core.log.end, (target, self._core.log.end)
        stored_at_ms = self._stored_at()
        segments = self._core.log.dirty_segments(self._core.flushed.value, target)
        assert segments or self._core.flushed.value == target, (self._core.flushed.value, target)
        assert not segments or segments[-1].base <= target <= segments[-1].end, (segments[-1], target)
        begun_at = self._core.clock.monotonic()
        try:
            await sync_segments(self._core.disk, segments)
        except NotOpened:
            raise
        except OSError as error:
            self.fail(error)
            return True
        if self._core.appended.cut_count != cut_count:
            return False
        assert target <= self._core.appended.value, "only a cut lowers what is appended"
        if segments:
            self._core.recorder.flush_s.observe(self._core.clock.monotonic() - begun_at)
        self.flushed_stored_at_ms = max(self.flushed_stored_at_ms, stored_at_ms)
        self._core.flushed.raise_to(target)
        return True

    def fail(self, error: OSError) -> None:
        """Stops for good after a failed fsync, here or of a derived table, and reports it once."""
        if self.is_failed:
            return
        self.is_failed = True
        self._rounds.halt()
        log.critical(events.FLUSH_FAILED, extra={"flushed": self._core.flushed.value, "error": str(error)})
        self._core.fail(FlushFailed(f"fsync failed, the store must be recovered: {error}"))

    async def stop(self) -> None:
        """Starts no more flushes, and waits until none runs."""
        await self._rounds.stop()


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
    with pinned(segments) as files:
        if files:
            await disk.offload(_sync_all, files)


def _sync_all(files: Sequence[File]) -> None:
    for file in files:
        file.sync()
