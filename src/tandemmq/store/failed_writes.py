"""Undoes failed writes: zeroes what they may have left after the end of the log.

Owns:       the ranges that may hold bytes of failed writes, and the sends of these writes.
Invariants: a send gets SERVICE_NOT_AVAILABLE ("not stored") only when the disk holds zeros in place of its
            bytes. Otherwise a power cut could bring back a message that its producer has sent to another
            broker. Nothing is written after the end meanwhile: sends are refused.
Strategy:   the zeros are written at once and fsynced off the loop. A failed fsync is fatal as any other. If
            zeros cannot be written either, the sends end with UNKNOWN_ERROR, and a later send tries again.
Knows not:  records, the appender.
Source:     spec store 4.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import pairwise

from tandemmq.runtime.ports import NotOpened
from tandemmq.store.core import StoreCore
from tandemmq.store.flusher import OPEN_RETRY_S, sync_segments
from tandemmq.store.outcomes import PutStatus
from tandemmq.store.replies import Sends, count_sends
from tandemmq.store.segmented_log import Segment
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

RETRY_AFTER_S = 1.0
"""The pause after a failed write, in seconds; producers use another broker meanwhile."""
_WRITE_FAILED = "write failed"

Range = tuple[int, int]
"""(log_offset, size)"""


class FailedWrites:
    """The failed writes of one store; `on_failed(error)` is called when an fsync fails."""

    def __init__(
        self,
        core: StoreCore,
        *,
        on_refused: Callable[[Sends, PutStatus], None],
        on_failed: Callable[[OSError], None],
    ) -> None:
        self._core = core
        self._rounds = core.rounds("undo")
        self._on_refused = on_refused
        self._on_failed = on_failed
        self._dirty: list[Range] = []
        self._unsynced: dict[Segment, None] = {}  # files in which zeros were written
        self._sends: Sends = []  # to be answered when the zeros are on disk
        self._retry_at = 0.0

    def refuse(self, error: OSError) -> None:
        """Refuses sends for a while, because the disk has no room."""
        self._retry_at = self._core.clock.monotonic() + RETRY_AFTER_S
        self._core.admission.block(_WRITE_FAILED, f"the disk accepts no writes: {error.strerror or error}")

    def undo(self, ranges: Sequence[Range], sends: Sends, error: OSError) -> None:
        """Undoes a failed write of these ranges; its sends are answered once that is on disk."""
        assert not self._core.admission.has_failed, "a store that has failed writes nothing"
        assert ranges[0][0] >= self._core.log.end, (ranges[0], self._core.log.end)
        assert all(one[0] + one[1] <= other[0] for one, other in pairwise(ranges)), ranges
        log.error(
            events.LOG_WRITE_FAILED,
            extra={"log_offset": self._core.log.end, "send_count": count_sends(sends), "error": str(error)},
        )
        self.refuse(error)
        self._dirty += ranges
        if not self.zero():
            self._on_refused(sends, PutStatus.UNKNOWN_ERROR)
            return
        assert self._unsynced, "no writer would answer the sends"
        self._sends += sends

    def zero(self) -> bool:
        """Zeroes the remains of failed writes and starts their sync; False if the disk accepts no zeros."""
        try:
            while self._dirty:
                log_offset, size = self._dirty[-1]
                assert log_offset >= self._core.log.end, "what is stored is never taken back"
                self._core.log.zero(log_offset, size)
                segment = self._core.log.log.find(log_offset)
                if segment is not None:
                    self._unsynced[segment] = None
                self._dirty.pop()
        except OSError:
            return False
        if self._unsynced:
            self._rounds.start(self._sync)
        return True

    def retry(self, now: float) -> None:
        """Accepts sends again after a refused one, if no remains are left and the pause is over."""
        if (
            not self._core.admission.is_blocked(_WRITE_FAILED)
            or now < self._retry_at
            or self._core.admission.has_failed
        ):
            return
        if self._rounds.is_running:
            return
        if not self.zero():
            self._retry_at = now + RETRY_AFTER_S
        elif not self._unsynced:
            self._resume()

    def _resume(self) -> None:
        assert not self._dirty, "bytes of a failed write lie behind the end"
        assert not self._unsynced, "zeros are not on disk yet"
        self._core.admission.unblock(_WRITE_FAILED)
        log.warning(events.LOG_WRITE_RESUMED, extra={"log_offset": self._core.log.end})

    async def _sync(self) -> None:
        while self._unsynced and not self._core.admission.has_failed:
            segments, sends = list(self._unsynced), self._sends
            self._unsynced, self._sends = {}, []
            await self._sync_once(segments, sends)
        if not self._core.admission.has_failed and self._core.clock.monotonic() >= self._retry_at:
            self._resume()

    async def _sync_once(self, segments: Sequence[Segment], sends: Sends) -> None:
        try:
            await sync_segments(self._core.disk, segments)
        except NotOpened:
            self._unsynced = dict.fromkeys((*segments, *self._unsynced))
            self._sends = [*sends, *self._sends]
            await self._core.clock.sleep(OPEN_RETRY_S)
            return
        except OSError as error:
            self._on_refused(sends, PutStatus.UNKNOWN_ERROR)
            self._on_failed(error)
            return
        except asyncio.CancelledError:
            self._on_refused(sends, PutStatus.UNKNOWN_ERROR)
            raise
        self._on_refused(sends, PutStatus.SERVICE_NOT_AVAILABLE)

    def halt(self) -> None:
        """Ends the sends that wait for their zeros, because the store has failed."""
        sends, self._sends = self._sends, []
        self._on_refused(sends, PutStatus.UNKNOWN_ERROR)

    async def settle(self) -> bool:
        """Undoes what is left before the store closes or its log is cut.

        Returns True if no bytes of failed writes are left on disk.
        """
        if not self._core.admission.has_failed:
            self.zero()
        await self._rounds.idle()
        assert not self._sends, "a send would never be answered"
        return not self._dirty and not self._unsynced
