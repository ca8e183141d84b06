"""Builds the writing parts of a store once recovery knows the end of the log; starts, stops and halts them
together.

Strategy: each part receives only what it needs here. The parts know each other only through the callbacks
          passed in.
Source:   spec store 4, 10, 12, 19.
"""

from __future__ import annotations

from collections.abc import Callable

from tandemmq.runtime.ports import Clock, Disk
from tandemmq.runtime.tasks import TaskScope
from tandemmq.store.admission import Admission
from tandemmq.store.appender import Appender, Unit
from tandemmq.store.checkpoint import Checkpoint
from tandemmq.store.commit_log import CommitLog
from tandemmq.store.consume_queues import ConsumeQueues
from tandemmq.store.dispatcher import Dispatcher
from tandemmq.store.failed_writes import FailedWrites
from tandemmq.store.flusher import Flusher
from tandemmq.store.key_indexes import KeyIndexes
from tandemmq.store.options import StoreOptions, StorePaths
from tandemmq.store.outcomes import PutStatus
from tandemmq.store.recorder import StoreRecorder
from tandemmq.store.replies import Sends
from tandemmq.store.retention import Cleaner
from tandemmq.store.scrub import Scrubber
from tandemmq.store.table_flusher import TableFlusher
from tandemmq.store.transient_pool import Committer, TransientPool
from tandemmq.store.watermarks import Watermark


class Writers:
    """The appender, the flusher and committer of the log, the flusher of the tables, retention and the
    scrubber.
    """

    def __init__(
        self,
        options: StoreOptions,
        *,
        paths: StorePaths,
        log: CommitLog,
        pool: TransientPool | None,
        queues: ConsumeQueues,
        indexes: KeyIndexes | None,
        checkpoint: Checkpoint,
        dispatcher: Dispatcher,
        admission: Admission,
        recorder: StoreRecorder,
        appended: Watermark,
        flushed: Watermark,
        dispatched: Watermark,
        disk: Disk,
        clock: Clock,
        tasks: TaskScope,
        stored_at_ms: int,
        tables_end: int,
        on_written: Callable[[list[Unit], Sends, int], None],
        on_refused: Callable[[Sends, PutStatus], None],
        on_failed: Callable[[BaseException], None],
        on_damaged: Callable[[], None],
        is_cutting: Callable[[], bool],
    ) -> None:
        assert (pool is not None) == options.uses_transient_pool
        assert dispatched.value == flushed.value == appended.value == log.end, "recovery has settled all"
        self._indexes = indexes
        self._dispatcher = dispatcher
        self.flusher = Flusher(
            options,
            log=log,
            disk=disk,
            clock=clock,
            tasks=tasks,
            recorder=recorder,
            appended=appended,
            flushed=flushed,
            stored_at=self._newest_stored_at,
            on_waiting=lambda error: self.failed_writes.refuse(error),
            on_failed=on_failed,
        )
        self.flusher.flushed_stored_at_ms = stored_at_ms
        self.failed_writes = FailedWrites(
            log=log,
            disk=disk,
            clock=clock,
            tasks=tasks,
            admission=admission,
            on_refused=on_refused,
            on_failed=self.flusher.fail,
        )
        self.appender = Appender(
            options,
            log=log,
            queues=queues,
            clock=clock,
            admission=admission,
            recorder=recorder,
            failed=self.failed_writes,
            on_written=on_written,
            on_refused=on_refused,
            stored_at_ms=stored_at_ms,
        )
        self.committer: Committer | None = None
        if pool is not None:
            self.committer = Committer(
                options,
                pool=pool,
                log=log,
                disk=disk,
                clock=clock,
                tasks=tasks,
                admission=admission,
                recorder=recorder,
                appended=appended,
                written_at_ms=lambda: self.appender.written_at_ms,
            )
        self.table_flusher = TableFlusher(
            options,
            queues=queues,
            indexes=indexes,
            checkpoint=checkpoint,
            dispatcher=dispatcher,
            flusher=self.flusher,
            disk=disk,
            clock=clock,
            tasks=tasks,
            admission=admission,
            tables_end=tables_end,
        )
        self.cleaner = Cleaner(
            options,
            log=log,
            queues=queues,
            indexes=indexes,
            admission=admission,
            directories=(paths.commit_log, paths.consume_queues),
            disk=disk,
            clock=clock,
            flushed=flushed,
            tables_end=lambda: self.table_flusher.tables_end,
            is_held=is_cutting,
        )
        self.scrubber = Scrubber(
            options,
            log=log,
            disk=disk,
            clock=clock,
            tasks=tasks,
            recorder=recorder,
            flushed=flushed,
            dispatched=dispatched,
            on_damaged=on_damaged,
            repair_entries=dispatcher.repair_entries,
        )

    def start(self) -> None:
        """Starts the parts that run on timers."""
        self.flusher.start()
        self.table_flusher.start()
        self.cleaner.start()
        self.scrubber.start()

    async def stop(self) -> None:
        """Stops the parts that run on timers; every part can still be called."""
        self.cleaner.stop()
        await self.scrubber.stop()
        await self.flusher.stop()
        await self.table_flusher.stop()

    def halt(self) -> None:
        """Stops all file access, because the store has failed."""
        self.appender.halt()
        self.failed_writes.halt()
        if self.committer is not None:
            self.committer.halt()
        self.flusher.halt()
        self.table_flusher.halt()
        self.cleaner.stop()
        self.scrubber.halt()
        if self._indexes is not None:
            self._indexes.halt()

    def _newest_stored_at(self) -> int:
        """Returns the store time of the newest record below `appended`."""
        committer = self.committer
        written = self.appender.written_at_ms if committer is None else committer.committed_stored_at_ms
        return max(written, self._dispatcher.stored_at_ms)
