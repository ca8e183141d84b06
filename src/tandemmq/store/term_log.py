"""The part of the log that an elected master's term decides: the terms, the confirmed offset, the read limit,
and the cut of the log's end.

Invariants: confirm_offset <= appended; it falls only by a cut. A cut that has begun is completed, by this
            process or by the next start. While the end is cut, nothing is appended and no file is deleted.
Strategy:   the cut bytes are copied aside first. Then a mark records the cut, so that none of the bytes comes
            back whatever happens; the terms are saved last.
Source:     spec controller 4.6, 10.9.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from tandemmq.errors import FlushFailed, LogDiverged, ServiceNotAvailable
from tandemmq.protocol.record import RecordOutcome, check_record
from tandemmq.replication.core.epochs import EPOCH_BEFORE_TERMS, EpochList
from tandemmq.store.checkpoint import CheckpointTimes, EpochFile
from tandemmq.store.core import StoreCore
from tandemmq.store.damage import DAMAGED
from tandemmq.store.dispatcher import Dispatcher
from tandemmq.store.flusher import Flusher
from tandemmq.store.options import BrokerRole
from tandemmq.store.reader import Reader
from tandemmq.store.replies import Replies
from tandemmq.store.segmented_log import Segment
from tandemmq.store.table_flusher import TableFlusher
from tandemmq.store.truncation import (
    CutMark,
    PendingCut,
    encode_term_ids,
    encode_terms,
    finish_cut,
    keep_tail,
    zero_behind,
)
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

LIMITED_FOR_GOOD = 1 << 63
"""An offset beyond the end of any log."""


class TermLog:
    """The terms of one store's log.

    `quiesce()` puts everything written so far on disk, before a cut; no file of the log is created or
    written when it returns.
    """

    def __init__(
        self,
        core: StoreCore,
        epoch_file: Path | None,
        *,
        dispatcher: Dispatcher,
        reader: Reader,
        replies: Replies,
        flusher: Flusher,
        table_flusher: TableFlusher,
        quiesce: Callable[[], Awaitable[None]],
    ) -> None:
        self._core = core
        self._epoch_file = EpochFile(epoch_file or core.paths.epochs, core.disk)
        self._cut_mark = CutMark(core.paths.pending_cut, core.disk)
        self._dispatcher = dispatcher
        self._reader = reader
        self._replies = replies
        self._flusher = flusher
        self._table_flusher = table_flusher
        self._quiesce = quiesce
        self._limited_until = 0
        self.is_cutting = False
        self.may_lack_tail = False
        """True if this copy may have lost acknowledged messages, until `trust_tail` is called."""
        self.confirm_offset = 0
        """The offset below which every electable copy holds all bytes, as far as known; with terms only."""
        self.on_cut: Callable[[], None] = lambda: None
        """Called when the log and its queues were cut, so progress beyond their ends is void; set by the
        owner.
        """

    @property
    def epochs(self) -> EpochList:
        """The terms of the log: the master that wrote each range of bytes."""
        return self._epoch_file.epochs

    # The start of the store.

    async def load(self, *, may_lack_tail: bool) -> None:
        """Loads the terms, and completes on the files a cut that a former run began; recovery then finds a
        log that ends there.
        """
        self.may_lack_tail = may_lack_tail
        if self._core.has_terms:
            self._epoch_file.load()
        pending = self._cut_mark.read()
        if pending is not None:
            await finish_cut(self._cut_mark, pending, self._core.log)
            self._lower_checkpoint(pending.point)
            self.is_cutting = True

    def restore(self) -> None:
        """Sets the confirmed offset of the recovered log, and records if the log ends before it."""
        confirmed, end = self._core.checkpoint.times.confirmed_log_offset, self._core.log.end
        if confirmed > end and not self.may_lack_tail:
            self._core.marks.write_tail_mark(f"the log ends at {end}, confirmed was {confirmed}")
            self.may_lack_tail = True
        self.confirm_offset = min(confirmed, end)

    def end_load(self) -> None:
        """Records that everything changed by a cut completed at the start is on disk."""
        core = self._core
        pending = self._cut_mark.read() if self.is_cutting else None
        if pending is not None:
            assert core.log.end <= max(pending.point, core.log.begin), (core.log.end, pending.point)
            self._epoch_file.save(pending.terms)
            self._cut_mark.clear()
        self.is_cutting = False
        if core.has_terms and not self.epochs and core.log.begin < core.log.end:
            self._epoch_file.save(EpochList().append(EPOCH_BEFORE_TERMS, core.log.begin))

    def trust_tail(self) -> None:
        """Records that this copy has regained its lost bytes, or that the group continues without them."""
        if self.may_lack_tail:
            try:
                self._core.marks.remove_tail_mark()
            except OSError as error:
                log.warning(events.LOG_TAIL_MARK_KEPT, extra={"reason": str(error)})
            self.may_lack_tail = False

    # The terms and the confirmed offset.

    async def save_epochs(self, epochs: EpochList) -> None:
        """Saves the terms; they are on disk when the call returns. Raises OSError.

        A cancelled caller still waits for the end: of two concurrent writes either could win.
        """
        core = self._core
        epochs = epochs.cut_prefix(core.log.begin)
        if epochs != self.epochs:
            save = core.disk.offload(self._epoch_file.save, epochs)
            await core.tasks.run_to_completion("save_epochs", save)

    def raise_confirm_offset(self, log_offset: int) -> None:
        """Raises the confirmed offset, which falls only by a cut; it is written with the next checkpoint."""
        if log_offset > self.confirm_offset:
            before, self.confirm_offset = self.confirm_offset, min(log_offset, self._core.log.end)
            assert before <= self.confirm_offset, (before, self.confirm_offset)
            self._core.checkpoint.raise_times(confirmed_log_offset=self.confirm_offset)
            self.dispatch()
            self._publish_limit()

    def lower_confirm_offset(self, end: int) -> None:
        """Adapts the confirmed offset to a log that now ends at `end`."""
        self.confirm_offset = min(self.confirm_offset, end)
        self._publish_limit()

    def limit_reads(self, *, until: int = LIMITED_FOR_GOOD) -> None:
        """Restricts readers to confirmed messages until everything below `until` is confirmed; 0: no limit.

        Bytes beyond may be cut, and their offsets reused. That concerns slaves, and the part of a master's
        log from before its term.
        """
        assert until >= 0, until
        self._limited_until = until
        self._publish_limit()

    def _publish_limit(self) -> None:
        """Publishes the read limit to the reader and the dispatcher."""
        if self.confirm_offset >= self._limited_until:
            self._limited_until = 0
        limit = self._reader.limit = self.confirm_offset if self._limited_until else None
        assert limit is None or limit <= self._core.log.end, (limit, self._core.log.end)
        self._dispatcher.set_read_limit(limit)

    def dispatch(self) -> None:
        """Dispatches confirmed records; on a master with required replicas, only what all of them hold.

        Messages not yet on every in-sync replica may be lost in a failover and their offsets reused.
        """
        end = self._core.confirmed.value
        if self._reader.role is not BrokerRole.SLAVE and self._replies.acks.required is not None:
            end = min(end, self.confirm_offset)
        self._dispatcher.advance(end)

    # The cut.

    async def cut(self, point: int, epochs: EpochList, reason: str) -> None:
        """Ends the log at `point`, the end of a record, on a slave that is not copying.

        The removed bytes are kept beside the store, within a limit. From now on none of them comes back,
        whatever happens. `epochs` are the terms when the call returns, or after the next start. A cancelled
        caller still waits for the end, because bytes copied before the end would be cut as well.
        Raises:  LogDiverged when no record ends at `point`, ServiceNotAvailable, also for a full disk; then
                 nothing is changed.
                 FlushFailed: the store has failed.
        """
        self._core.admission.require_open()
        assert self._core.has_terms, "only an elected master's log is cut"
        if self._reader.role is not BrokerRole.SLAVE or self.is_cutting:
            raise ServiceNotAvailable("the broker is not a slave, or its log is being cut")
        self._require_boundary(point)
        self.is_cutting = True
        await self._core.tasks.run_to_completion("cut", self._run_cut(point, epochs, reason))

    def _require_boundary(self, point: int) -> None:
        log_ = self._core.log
        if point == log_.begin:
            return
        if log_.begin < point < log_.end:
            whole = log_.check(point, check_crc=True).outcome
            if whole in (RecordOutcome.OK, RecordOutcome.BLANK):
                return
        raise LogDiverged(f"no record of the log begins at {point}, where it is to be cut")

    async def _run_cut(self, point: int, epochs: EpochList, reason: str) -> None:
        try:
            await self._quiesce()
            self._core.admission.require_open()
            if any(queue.unwritten_bytes for queue in self._core.queues):
                raise ServiceNotAvailable(f"the log cannot be cut at {point}: queue files cannot be written")
            await self._cut(point, epochs, reason)
        except OSError as error:
            self._flusher.fail(error)
            raise FlushFailed(f"the log could not be cut at {point}: {error}") from error
        finally:
            self.is_cutting = False

    async def _cut(self, point: int, epochs: EpochList, reason: str) -> None:
        core, end = self._core, self._core.log.end
        assert self._reader.role is BrokerRole.SLAVE, self._reader.role
        assert core.flushed.value == end, "nothing comes into a log that is being cut"
        segments = core.log.dirty_segments(point, end)
        entry = self.epochs.find(point)
        pending = PendingCut(
            point=point,
            epochs=encode_terms(epochs),
            ids=encode_term_ids(epochs),
            epoch=EPOCH_BEFORE_TERMS if entry is None else entry.epoch,
            reason=reason,
        )
        await self._mark_cut(pending, segments, end)
        await self._table_flusher.idle()  # no thread still writes queue entries of the cut bytes
        self._shorten(point)
        await self._zero(segments, point, end)
        core.log.log.truncate(point, zero_bytes_max=0)
        await self._table_flusher.flush_soon()
        core.admission.require_open()
        self._lower_checkpoint(point)  # a round that was already running may have raised it
        await core.disk.offload(core.checkpoint.write)
        await core.disk.offload(self._epoch_file.save, epochs)
        await core.disk.offload(self._cut_mark.clear)
        assert core.log.end == core.flushed.value == point, (core.log.end, core.flushed.value, point)
        assert self.epochs == epochs, (self.epochs, epochs)
        assert self._table_flusher.tables_end <= point, (self._table_flusher.tables_end, point)
        facts = {"log_offset": point, "reason": reason, "zeroed_bytes": end - point}
        log.warning(events.LOG_TAIL_CUT, extra=facts)
        self.on_cut()

    async def _mark_cut(self, pending: PendingCut, segments: Sequence[Segment], end: int) -> None:
        """Copies the bytes to be cut aside, and writes the mark: the cut has begun.

        Raises:  ServiceNotAvailable when the disk is full; nothing has begun, and the caller may retry.
        """
        offload, point = self._core.disk.offload, pending.point
        parts = [segment.view()[max(0, point - segment.base) : end - segment.base] for segment in segments]
        copy = await offload(self._keep_tail, parts, point, end, pending.epoch)
        try:
            try:
                await offload(self._cut_mark.write, pending)
            except OSError:
                if self._cut_mark.is_there or copy is None:
                    raise
                # The copy may have used the last free space, and its bytes were never reported as safe.
                await offload(self._core.disk.remove, copy)
                await offload(self._cut_mark.write, pending)
        except OSError as error:
            if self._cut_mark.is_there:
                raise
            raise ServiceNotAvailable(f"the log cannot be cut at {point} now: {error}") from error

    def _keep_tail(self, parts: list[memoryview], point: int, end: int, epoch: int) -> Path | None:
        return keep_tail(
            parts,
            point,
            end - point,
            epoch=epoch,
            directory=self._core.paths.divergent,
            bytes_max=self._core.options.divergent_bytes_max,
            disk=self._core.disk,
        )

    def _shorten(self, point: int) -> None:
        """Ends the log, the watermarks and the tables in memory at `point`: no reader sees the cut bytes."""
        core = self._core
        for mark in core.watermarks:
            mark.truncate_to(min(mark.value, point))
        assert core.appended.value == point, (core.appended.value, point)
        core.log.cut_at(point)
        self._dispatcher.cut(point)
        if not core.log.damaged:
            core.admission.unblock(DAMAGED)
        for queue in core.queues:
            queue.write()
        core.queues.truncate(point)
        assert core.queues.end_log_offset <= point, (core.queues.end_log_offset, point)
        if core.indexes is not None:
            core.indexes.cut(point)
        core.queues.deletions.cut(point)
        self._table_flusher.cut(point)
        self.lower_confirm_offset(point)
        stored_at_ms = self._lower_checkpoint(point)
        self._dispatcher.stored_at_ms = self._flusher.flushed_stored_at_ms = stored_at_ms

    async def _zero(self, segments: Sequence[Segment], point: int, end: int) -> None:
        for segment in segments:
            segment.pin()
        try:
            await self._core.disk.offload(zero_behind, segments, point, end)
        finally:
            for segment in segments:
                segment.unpin()

    def _lower_checkpoint(self, point: int) -> int:
        """Lowers the checkpoint to a log that ends at `point`.

        Returns a lower bound of the store time of its last record; 0 if unknown.
        """
        segment = self._core.log.log.find(max(0, point - 1))
        stored_at_ms = 0
        if segment is not None and segment.base < point:
            head = check_record(segment.view(), 0, log_offset=segment.base, check_crc=False)
            stored_at_ms = head.stored_at_ms if head.outcome is RecordOutcome.OK else 0
        times = self._core.checkpoint.times
        durable = times.durable_log_offset
        self._core.checkpoint.replace(
            CheckpointTimes(
                log_stored_at_ms=min(times.log_stored_at_ms, stored_at_ms),
                queues_stored_at_ms=min(times.queues_stored_at_ms, stored_at_ms),
                index_stored_at_ms=min(times.index_stored_at_ms, stored_at_ms),
                master_flushed_offset=times.master_flushed_offset,
                confirmed_log_offset=min(times.confirmed_log_offset, point),
                durable_log_offset=None if durable is None else min(durable, point),
            )
        )
        return stored_at_ms
