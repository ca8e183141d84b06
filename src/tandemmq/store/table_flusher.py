"""Writes the queues and the key index to their files periodically, and then raises the checkpoint.

Invariants: one round at a time; the checkpoint's times were read before the fsyncs that they depend on.
Strategy:   every second, entries in memory are written and queues with enough new bytes are synced. A
            thorough round, once a minute and at the end, syncs everything; only then may the checkpoint's
            times for the tables rise. A broker under load runs thorough rounds sooner, because a restart
            after a crash reads everything since the last one.
Source:     spec store 10, 11.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from tandemmq.runtime.ports import Clock, NotOpened
from tandemmq.store.consume_queue import ConsumeQueue
from tandemmq.store.core import StoreCore
from tandemmq.store.dispatcher import QUEUE_WRITE_FAILED, Dispatcher
from tandemmq.store.flusher import Flusher, sync_segments
from tandemmq.store.options import PAGE_BYTES
from tandemmq.telemetry import events
from tandemmq.units import MIB

log = logging.getLogger(__name__)

QUEUES_PER_TURN = 64
QUEUES_PER_SYNC = 256
"""The number of queues synced together: their files are open at once, and descriptors are limited."""
BACKLOG_BYTES_MAX = 512 * MIB
BACKLOG_COUNT_MAX = 500_000
"""The dispatched bytes or records since the last thorough round that trigger the next one. Either costs about
one second of a restart after a crash.
"""
REST_FACTOR = 4
"""The pause after a thorough round, as a multiple of its duration, before load may trigger the next. So these
rounds take at most a fifth of the time.
"""


class TableFlusher:
    """The rounds over ConsumeQueues, key index and checkpoint."""

    def __init__(self, core: StoreCore, dispatcher: Dispatcher, flusher: Flusher) -> None:
        self.tables_end = 0
        """The log offset below which the queue entries of all records are on disk."""
        self._core = core
        self._rounds = core.rounds("flush_tables")
        self._dispatcher = dispatcher
        self._flusher = flusher
        self._thorough_at = core.clock.monotonic()
        self._thorough_s = 0.0  # the duration of the last thorough round
        self._thorough_end = self._thorough_count = 0
        self._whole_end = 0  # the end of a whole record; becomes the durable mark once it is flushed

    async def begin(self, tables_end: int) -> None:
        """Puts the entries that recovery dispatched on disk, before the checkpoint relies on them.

        `tables_end`: the log offset below which the entries were on disk before.
        """
        assert 0 <= tables_end <= self._core.dispatched.value, tables_end
        self.tables_end = tables_end
        self._thorough_end = self._whole_end = self._core.dispatched.value
        self._thorough_count = self._dispatcher.dispatched_count
        await self.flush(is_thorough=True)

    def start(self) -> None:
        """Starts the rounds."""
        self._rounds.after(self._core.options.queue_flush_interval_ms / 1000, self._tick)

    def _tick(self) -> None:
        self.start()
        if self._rounds.is_running:
            return
        now = self._core.clock.monotonic()
        is_due = now >= self._thorough_at + self._core.options.queue_flush_thorough_interval_ms / 1000
        is_rest_over = now >= self._thorough_at + (1 + REST_FACTOR) * self._thorough_s
        is_thorough = is_due or (is_rest_over and self._is_far_behind())
        if is_thorough:
            self._thorough_at = now
        self._rounds.start(partial(self._round, is_thorough))

    def _is_far_behind(self) -> bool:
        """Returns True if a restart after a crash would have much to redo."""
        dispatcher = self._dispatcher
        assert self._thorough_end <= self._core.dispatched.value, self._thorough_end
        assert self._thorough_count <= dispatcher.dispatched_count, "what is dispatched is counted once"
        return (
            self._core.dispatched.value - self._thorough_end >= BACKLOG_BYTES_MAX
            or dispatcher.dispatched_count - self._thorough_count >= BACKLOG_COUNT_MAX
        )

    async def flush_soon(self) -> None:
        """Waits for a thorough round that began after the call, or until the flusher is halted."""
        await self.idle()
        self._rounds.start(partial(self._round, is_thorough=True))
        await self.idle()

    async def _round(self, is_thorough: bool) -> None:
        try:
            await self.flush(is_thorough=is_thorough)
        except NotOpened as error:
            # Nothing counts as synced, and the next round retries.
            log.error(events.TABLE_FLUSH_POSTPONED, extra={"error": str(error)})
        except OSError as error:
            self._flusher.fail(error)

    async def flush(self, *, is_thorough: bool) -> bool:
        """Runs one round. Returns True if it was thorough and every entry is on disk now.

        Raises:  NotOpened when a file could not be opened now; OSError when an fsync failed.
        """
        stored_at_ms = self._dispatcher.stored_at_ms
        begun_at = self._core.clock.monotonic()
        if is_thorough:
            self._thorough_end = self._core.dispatched.value
            self._thorough_count = self._dispatcher.dispatched_count
        is_written, is_blocked = True, False
        least_bytes = 1 if is_thorough else max(1, self._core.options.queue_flush_least_pages * PAGE_BYTES)
        due: list[ConsumeQueue] = []
        for count, queue in enumerate(self._core.queues):
            if count % QUEUES_PER_TURN == QUEUES_PER_TURN - 1:
                await next_turn(self._core.clock)
            is_refused = self._write(queue, is_idle=is_thorough)
            is_written &= is_refused is None
            is_blocked |= bool(is_refused)
            if queue.unsynced_bytes >= least_bytes:
                due.append(queue)
        if not is_blocked:
            self._core.admission.unblock(QUEUE_WRITE_FAILED)
        is_synced = await self._sync(due)
        indexes = self._core.indexes
        is_indexed = is_thorough and indexes is not None and await indexes.flush()
        if self._flusher.is_failed:
            return False
        has_saved_deletions = await self.save_deletions()
        durable_log_offset = self._flushed_whole_end()
        assert durable_log_offset is None or durable_log_offset <= self._core.flushed.value
        is_complete = is_thorough and is_written and is_synced and has_saved_deletions
        if is_complete:
            assert self._thorough_end <= self._core.dispatched.value, self._thorough_end
            self.tables_end = self._thorough_end
        self._core.checkpoint.raise_times(
            log_ms=self._flusher.flushed_stored_at_ms,
            queues_ms=stored_at_ms if is_complete else 0,
            index_ms=stored_at_ms if is_indexed else 0,
            durable_log_offset=durable_log_offset,
        )
        await self._core.disk.offload(self._core.checkpoint.write)
        if is_thorough:
            self._thorough_s = self._core.clock.monotonic() - begun_at
        return is_complete

    async def save_deletions(self) -> bool:
        """Writes the deletions if the file differs, since otherwise a restart would hide newer messages.

        Returns False if the write fails; the next round retries.
        """
        deletions = self._core.queues.deletions
        if not deletions.is_behind:
            return True
        try:
            await deletions.save()
        except OSError as error:
            log.warning(events.TABLE_SAVE_FAILED, extra={"path": str(deletions.path), "reason": str(error)})
            return False
        return True

    def _flushed_whole_end(self) -> int | None:
        """Returns the end of a record below which everything is flushed; None without a new one.

        A slave may have flushed a partial record; dispatched records are whole.
        """
        flushed, dispatched = self._core.flushed.value, self._core.dispatched.value
        assert self._whole_end <= dispatched, (self._whole_end, dispatched)
        durable = None
        if self._whole_end <= flushed:
            durable, self._whole_end = self._whole_end, dispatched
        return dispatched if dispatched <= flushed else durable

    def _write(self, queue: ConsumeQueue, *, is_idle: bool) -> bool | None:
        """Writes the queue's entries that are in memory only. Returns None on success; after a failed write,
        True if sends are refused because of it.
        """
        if queue.is_dropped or not queue.unwritten_bytes:
            if is_idle:
                queue.drop_tail()
            return None
        try:
            queue.write()
        except OSError as error:  # not stored: it references a view of the entries
            return self._dispatcher.block(queue, error)
        return None

    async def _sync(self, queues: list[ConsumeQueue]) -> bool:
        """Syncs the files. Returns False if entries changed meanwhile, since their state on disk is
        unknown.
        """
        ends = []
        # The files stay open while they are synced, whatever else needs descriptors.
        count = max(1, min(QUEUES_PER_SYNC, self._core.options.open_file_count_max // 2))
        for first in range(0, len(queues), count):
            segments = []
            for queue in queues[first : first + count]:
                if queue.is_dropped:
                    continue
                found, end = queue.unsynced_segments()
                segments += found
                ends.append((queue, end))
            await sync_segments(self._core.disk, segments)
        overtaken = [queue for queue, end in ends if not queue.set_synced(end)]
        return not overtaken

    def cut(self, end: int) -> None:
        """Lowers the marks to an earlier log end, because later records, of another master, will end
        elsewhere.
        """
        assert end >= 0, end
        self._whole_end = min(self._whole_end, end)
        self._thorough_end = min(self._thorough_end, end)
        self.tables_end = min(self.tables_end, end)

    async def idle(self) -> None:
        """Waits until no round runs; none begins before the next await."""
        await self._rounds.idle()

    async def stop(self) -> None:
        """Starts no more rounds, and waits until none runs."""
        await self._rounds.stop()


async def next_turn(clock: Clock) -> None:
    """Lets the loop serve others before continuing."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    wake: Callable[[], None] = lambda: None if done.done() else done.set_result(None)  # noqa: E731
    clock.call_soon(wake)
    await done
