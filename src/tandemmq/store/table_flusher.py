"""Writes the derived tables to their files periodically, and keeps the checkpoint true.

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
from typing import Protocol

from tandemmq.runtime.ports import Clock, Disk, NotOpened, TimerHandle
from tandemmq.runtime.tasks import TaskScope, run_out
from tandemmq.store.admission import Admission
from tandemmq.store.checkpoint import Checkpoint
from tandemmq.store.consume_queue import ConsumeQueue
from tandemmq.store.consume_queues import ConsumeQueues
from tandemmq.store.dispatcher import QUEUE_WRITE_FAILED, Dispatcher
from tandemmq.store.flusher import PAGE_BYTES, Flusher, sync_segments
from tandemmq.store.options import StoreOptions
from tandemmq.telemetry import events
from tandemmq.units import MIB

log = logging.getLogger(__name__)

QUEUES_PER_TURN = 64
QUEUES_PER_SYNC = 256
"""The number of queues synced together: their files are open at once, and descriptors are limited."""
BACKLOG_BYTES_MAX = 512 * MIB
BACKLOG_COUNT_MAX = 500_000
"""The dispatched bytes or records since the last thorough round that trigger the next: each is about a second
of a restart after a crash.
"""
REST_FACTOR = 4
"""The factor of rest: rounds triggered by load take at most one part in five of the time."""


class IndexTables(Protocol):
    """The part of the key index that the flusher uses."""

    async def flush(self) -> bool:
        """Flushes; returns True if the keys of everything dispatched so far are on disk."""


class TableFlusher:
    """The rounds over ConsumeQueues, key index and checkpoint."""

    def __init__(
        self,
        options: StoreOptions,
        *,
        queues: ConsumeQueues,
        indexes: IndexTables | None,
        checkpoint: Checkpoint,
        dispatcher: Dispatcher,
        flusher: Flusher,
        disk: Disk,
        clock: Clock,
        tasks: TaskScope,
        admission: Admission,
        tables_end: int,
    ) -> None:
        assert tables_end >= 0, tables_end
        self.tables_end = tables_end
        """The log offset below which the queue entries of all records are on disk."""
        self._options = options
        self._queues = queues
        self._indexes = indexes
        self._checkpoint = checkpoint
        self._dispatcher = dispatcher
        self._flusher = flusher
        self._disk = disk
        self._clock = clock
        self._tasks = tasks
        self._admission = admission
        self._task: asyncio.Task[None] | None = None
        self._timer: TimerHandle | None = None
        self._thorough_at = clock.monotonic()
        self._thorough_s = 0.0  # the duration of the last thorough round
        self._thorough_end = dispatcher.dispatched_end
        self._thorough_count = dispatcher.dispatched_count
        self._whole_end = dispatcher.dispatched_end  # becomes the durable mark once it is flushed
        self._is_stopped = False

    def start(self) -> None:
        """Starts the rounds."""
        self._timer = self._clock.call_later(self._options.queue_flush_interval_ms / 1000, self._tick)

    def _tick(self) -> None:
        if self._is_stopped:
            return
        self.start()
        if self._task is not None:
            return
        now = self._clock.monotonic()
        is_due = now >= self._thorough_at + self._options.queue_flush_thorough_interval_ms / 1000
        is_rest_over = now >= self._thorough_at + (1 + REST_FACTOR) * self._thorough_s
        is_thorough = is_due or (is_rest_over and self._is_far_behind())
        if is_thorough:
            self._thorough_at = now
        self._task = self._tasks.start("flush_tables", self._round(is_thorough))

    def _is_far_behind(self) -> bool:
        """Returns True if a restart after a crash would have much to redo."""
        dispatcher = self._dispatcher
        assert self._thorough_end <= dispatcher.dispatched_end, self._thorough_end
        assert self._thorough_count <= dispatcher.dispatched_count, "what is dispatched is counted once"
        return (
            dispatcher.dispatched_end - self._thorough_end >= BACKLOG_BYTES_MAX
            or dispatcher.dispatched_count - self._thorough_count >= BACKLOG_COUNT_MAX
        )

    async def flush_soon(self) -> None:
        """Waits for a thorough round that began after the call, or until the flusher is halted."""
        await self.idle()
        if not self._is_stopped:
            self._task = self._tasks.start("flush_tables", self._round(is_thorough=True))
            await asyncio.wait([self._task])

    async def _round(self, is_thorough: bool) -> None:
        try:
            await self.flush(is_thorough=is_thorough)
        except NotOpened as error:
            # Nothing counts as synced, and the next round retries.
            log.error(events.TABLE_FLUSH_POSTPONED, extra={"error": str(error)})
        except OSError as error:
            self._flusher.fail(error)
        finally:
            self._task = None

    async def flush(self, *, is_thorough: bool) -> bool:
        """Runs one round. Returns True if it was thorough and every entry is on disk now.

        Raises:  NotOpened when a file could not be opened now; OSError when an fsync failed.
        """
        stored_at_ms = self._dispatcher.stored_at_ms
        begun_at = self._clock.monotonic()
        if is_thorough:
            self._thorough_end = self._dispatcher.dispatched_end
            self._thorough_count = self._dispatcher.dispatched_count
        is_written, is_blocked = True, False
        least_bytes = 1 if is_thorough else max(1, self._options.queue_flush_least_pages * PAGE_BYTES)
        due: list[ConsumeQueue] = []
        for count, queue in enumerate(self._queues):
            if count % QUEUES_PER_TURN == QUEUES_PER_TURN - 1:
                await next_turn(self._clock)
            is_refused = self._write(queue, is_idle=is_thorough)
            is_written &= is_refused is None
            is_blocked |= bool(is_refused)
            if queue.unsynced_bytes >= least_bytes:
                due.append(queue)
        if not is_blocked:
            self._admission.unblock(QUEUE_WRITE_FAILED)
        is_synced = await self._sync(due)
        is_indexed = is_thorough and self._indexes is not None and await self._indexes.flush()
        if self._flusher.is_failed:
            return False
        has_saved_deletions = await self._save_deletions()
        durable_log_offset = self._flushed_whole_end()
        assert durable_log_offset is None or durable_log_offset <= self._flusher.flushed_end
        is_complete = is_thorough and is_written and is_synced and has_saved_deletions
        if is_complete:
            assert self._thorough_end <= self._dispatcher.dispatched_end, self._thorough_end
            self.tables_end = self._thorough_end
        self._checkpoint.raise_times(
            log_ms=self._flusher.flushed_stored_at_ms,
            queues_ms=stored_at_ms if is_complete else 0,
            index_ms=stored_at_ms if is_indexed else 0,
            durable_log_offset=durable_log_offset,
        )
        await self._disk.offload(self._checkpoint.write)
        if is_thorough:
            self._thorough_s = self._clock.monotonic() - begun_at
        return is_complete

    async def _save_deletions(self) -> bool:
        """Retries a failed write of the deletions, since otherwise a restart would hide newer messages.

        Returns False if it fails again.
        """
        deletions = self._queues.deletions
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
        flushed, dispatched = self._flusher.flushed_end, self._dispatcher.dispatched_end
        assert self._whole_end <= dispatched, (self._whole_end, dispatched)
        durable = None
        if self._whole_end <= flushed:
            durable, self._whole_end = self._whole_end, dispatched
        return dispatched if dispatched <= flushed else durable

    def _write(self, queue: ConsumeQueue, *, is_idle: bool) -> bool | None:
        """Writes entries that are in memory only. Returns None on success, else True if sends are refused for
        it.
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
        count = max(1, min(QUEUES_PER_SYNC, self._options.open_file_count_max // 2))
        for first in range(0, len(queues), count):
            segments = []
            for queue in queues[first : first + count]:
                if queue.is_dropped:
                    continue
                found, end = queue.unsynced_segments()
                segments += found
                ends.append((queue, end))
            await sync_segments(self._disk, segments)
        overtaken = [queue for queue, end in ends if not queue.set_synced(end)]
        return not overtaken

    def cut(self, end: int) -> None:
        """Lowers the marks to an earlier log end: records of another master will end elsewhere."""
        assert end >= 0, end
        self._whole_end = min(self._whole_end, end)
        self._thorough_end = min(self._thorough_end, end)
        self.tables_end = min(self.tables_end, end)

    async def idle(self) -> None:
        """Waits until no round runs; none begins before the next await."""
        await run_out(lambda: self._task)
        self._task = None

    def halt(self) -> None:
        """Starts no more rounds."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    async def stop(self) -> None:
        """Starts no more rounds, and waits until none runs."""
        self.halt()
        await self.idle()


async def next_turn(clock: Clock) -> None:
    """Lets the loop serve others before continuing."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    wake: Callable[[], None] = lambda: None if done.done() else done.set_result(None)  # noqa: E731
    clock.call_soon(wake)
    await done
