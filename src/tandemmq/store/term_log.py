"""The terms of an elected group's log and everything that depends on them: the group's confirmed offset, the
read limit, and the cut of the log's end.

`MessageStore` builds one as `store.terms`; the replication of elected groups calls it. Without controllers
only the completion of a pending cut applies.
Invariants: confirm_offset <= appended; it falls only by a cut. A cut that has begun is completed, by this
            process or by the next start. While the end is cut, nothing is appended and no file is deleted.
Strategy:   the bytes to be cut are first copied to a file beside the store. Then a mark on disk records the
            cut; from then on none of the bytes reappears, even after a crash. The terms are saved last.
Source:     spec controller 4.6, 10.9.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass
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
"""A value of `until` that no log reaches."""


@dataclass(eq=False)
class TermLog:
    """The terms of one store's log.

    `quiesce()` is called before a cut. It puts everything written so far on disk; when it returns, no file of
    the log is being created or written.
    """

    core: StoreCore
    epoch_file: InitVar[Path | None]
    _: KW_ONLY
    dispatcher: Dispatcher
    reader: Reader
    replies: Replies
    flusher: Flusher
    table_flusher: TableFlusher
    quiesce: Callable[[], Awaitable[None]]

    def __post_init__(self, epoch_file: Path | None) -> None:
        self._epoch_file = EpochFile(epoch_file or self.core.paths.epochs, self.core.disk)
        self._cut_mark = CutMark(self.core.paths.pending_cut, self.core.disk)
        self._limited_until = 0
        self.is_cutting = False
        self.may_lack_tail = False
        """True if this copy of the log may lack acknowledged messages; `trust_tail` ends that."""
        self.confirm_offset = 0
        """The group's confirmed offset, as far as this broker knows: every member of the set holds all bytes
        below it. 0 without terms. Unlike the watermark `confirmed`, which this store alone decides.
        """
        self.on_cut: Callable[[], None] = lambda: None
        """Called after the log and its queues were cut: offsets beyond their ends are void. Set by the owner
        of the store.
        """

    @property
    def epochs(self) -> EpochList:
        """The terms of the log: the masterEpoch in which each range of bytes was written."""
        return self._epoch_file.epochs

    # The start of the store.

    async def load(self, *, may_lack_tail: bool) -> None:
        """Loads the terms, and completes a cut that an earlier run began; recovery then finds a log that ends
        at the cut.
        """
        self.may_lack_tail = may_lack_tail
        if self.core.has_terms:
            self._epoch_file.load()
        pending = self._cut_mark.read()
        if pending is not None:
            await finish_cut(self._cut_mark, pending, self.core.log)
            self._lower_checkpoint(pending.point)
            self.is_cutting = True

    def restore(self) -> None:
        """Restores the confirmed offset. A recovered log that ends below it may lack acknowledged messages,
        which is recorded on disk.
        """
        confirmed, end = self.core.checkpoint.times.confirmed_log_offset, self.core.log.end
        if confirmed > end and not self.may_lack_tail:
            self.core.marks.write_tail_mark(f"the log ends at {end}, confirmed was {confirmed}")
            self.may_lack_tail = True
        self.confirm_offset = min(confirmed, end)

    def end_load(self) -> None:
        """Ends a cut that `load` has completed: recovery has put its result on disk, so the terms are saved
        and the mark is removed.
        """
        core = self.core
        pending = self._cut_mark.read() if self.is_cutting else None
        if pending is not None:
            assert core.log.end <= max(pending.point, core.log.begin), (core.log.end, pending.point)
            self._epoch_file.save(pending.terms)
            self._cut_mark.clear()
        self.is_cutting = False
        if core.has_terms and not self.epochs and core.log.begin < core.log.end:
            self._epoch_file.save(EpochList().append(EPOCH_BEFORE_TERMS, core.log.begin))

    def trust_tail(self) -> None:
        """Records that this copy has its lost bytes again, or that the group continues without the bytes."""
        if self.may_lack_tail:
            try:
                self.core.marks.remove_tail_mark()
            except OSError as error:
                log.warning(events.LOG_TAIL_MARK_KEPT, extra={"reason": str(error)})
            self.may_lack_tail = False

    # The terms and the confirmed offset.

    async def save_epochs(self, epochs: EpochList) -> None:
        """Saves the terms; they are on disk when the call returns. Raises OSError.

        A cancelled caller still waits for the end, because of two concurrent writes either could win.
        """
        core = self.core
        epochs = epochs.cut_prefix(core.log.begin)
        if epochs != self.epochs:
            save = core.disk.offload(self._epoch_file.save, epochs)
            await core.tasks.run_to_completion("save_epochs", save)

    def raise_confirm_offset(self, log_offset: int) -> None:
        """Raises the confirmed offset, at most to the end of the log; the next checkpoint contains it."""
        if log_offset > self.confirm_offset:
            before, self.confirm_offset = self.confirm_offset, min(log_offset, self.core.log.end)
            assert before <= self.confirm_offset, (before, self.confirm_offset)
            self.core.checkpoint.raise_times(confirmed_log_offset=self.confirm_offset)
            self.dispatch()
            self._publish_limit()

    def lower_confirm_offset(self, end: int) -> None:
        """Lowers the confirmed offset to the new end of the log, if it is above."""
        self.confirm_offset = min(self.confirm_offset, end)
        self._publish_limit()

    def limit_reads(self, *, until: int = LIMITED_FOR_GOOD) -> None:
        """Restricts readers to bytes below `confirm_offset` until it has reached `until`; 0: no limit.

        Bytes above it may be cut and their offsets reused: on a slave, and on a master in the part of its log
        that is older than its term.
        """
        assert until >= 0, until
        self._limited_until = until
        self._publish_limit()

    def _publish_limit(self) -> None:
        """Publishes the read limit to the reader and the dispatcher."""
        if self.confirm_offset >= self._limited_until:
            self._limited_until = 0
        limit = self.reader.limit = self.confirm_offset if self._limited_until else None
        assert limit is None or limit <= self.core.log.end, (limit, self.core.log.end)
        self.dispatcher.set_read_limit(limit)

    def dispatch(self) -> None:
        """Dispatches confirmed records; if a master's sends wait for its whole set, only records that the
        whole set holds.

        Messages not yet on every in-sync replica may be lost in a failover and their offsets reused.
        """
        end = self.core.confirmed.value
        if self.reader.role is not BrokerRole.SLAVE and self.replies.acks.required is not None:
            end = min(end, self.confirm_offset)
        self.dispatcher.advance(end)

    # The cut.

    async def cut(self, point: int, epochs: EpochList, reason: str) -> None:
        """Ends the log at `point`, the end of a record, on a slave that is not copying.

        The removed bytes are kept in a file beside the store, up to `divergent_bytes_max`. `epochs` become
        the terms of the log. Once the cut has begun, a crash does not undo it: the next start completes it. A
        cancelled caller still waits for the end, because bytes copied meanwhile would be cut as well.
        Raises:  LogDiverged when no record ends at `point`, ServiceNotAvailable, also for a full disk; then
                 nothing is changed.
                 FlushFailed: the store has failed.
        """
        self.core.admission.require_open()
        assert self.core.has_terms, "only an elected master's log is cut"
        if self.reader.role is not BrokerRole.SLAVE or self.is_cutting:
            raise ServiceNotAvailable("the log can only be cut on a slave, and while no other cut runs")
        self._require_boundary(point)
        self.is_cutting = True
        await self.core.tasks.run_to_completion("cut", self._run_cut(point, epochs, reason))

    def _require_boundary(self, point: int) -> None:
        log_ = self.core.log
        if point == log_.begin:
            return
        if log_.begin < point < log_.end:
            whole = log_.check(point, check_crc=True).outcome
            if whole in (RecordOutcome.OK, RecordOutcome.BLANK):
                return
        raise LogDiverged(f"the log cannot be cut at {point}: no record begins there")

    async def _run_cut(self, point: int, epochs: EpochList, reason: str) -> None:
        try:
            await self.quiesce()
            self.core.admission.require_open()
            if any(queue.unwritten_bytes for queue in self.core.queues):
                raise ServiceNotAvailable(f"the log cannot be cut at {point}: queue files cannot be written")
            await self._cut(point, epochs, reason)
        except OSError as error:
            self.flusher.fail(error)
            raise FlushFailed(f"the log could not be cut at {point}: {error}") from error
        finally:
            self.is_cutting = False

    async def _cut(self, point: int, epochs: EpochList, reason: str) -> None:
        core, end = self.core, self.core.log.end
        assert self.reader.role is BrokerRole.SLAVE, self.reader.role
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
        await self.table_flusher.idle()  # no thread still writes queue entries of the cut bytes
        self._shorten(point)
        await zero_behind(core.disk, segments, point, end)
        core.log.log.truncate(point, zero_bytes_max=0)
        await self.table_flusher.flush_soon()
        core.admission.require_open()
        self._lower_checkpoint(point)  # a round that was already running may have raised it
        await core.disk.offload(core.checkpoint.write)
        await core.disk.offload(self._epoch_file.save, epochs)
        await core.disk.offload(self._cut_mark.clear)
        assert core.log.end == core.flushed.value == point, (core.log.end, core.flushed.value, point)
        assert self.epochs == epochs, (self.epochs, epochs)
        assert self.table_flusher.tables_end <= point, (self.table_flusher.tables_end, point)
        facts = {"log_offset": point, "reason": reason, "zeroed_bytes": end - point}
        log.warning(events.LOG_TAIL_CUT, extra=facts)
        self.on_cut()

    async def _mark_cut(self, pending: PendingCut, segments: Sequence[Segment], end: int) -> None:
        """Copies the bytes to a file beside the store and writes the mark. With the mark, the cut has begun.

        Raises:  ServiceNotAvailable when the disk is full; nothing has begun, and the caller may retry.
        """
        offload, point = self.core.disk.offload, pending.point
        parts = [segment.view()[max(0, point - segment.base) : end - segment.base] for segment in segments]
        copy = await offload(self._keep_tail, parts, point, end, pending.epoch)
        try:
            try:
                await offload(self._cut_mark.write, pending)
            except OSError:
                if self._cut_mark.is_there or copy is None:
                    raise
                # The copy may have used the last free space. Its bytes were never reported as safe.
                await offload(self.core.disk.remove, copy)
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
            directory=self.core.paths.divergent,
            bytes_max=self.core.options.divergent_bytes_max,
            disk=self.core.disk,
        )

    def _shorten(self, point: int) -> None:
        """Ends the log, the watermarks and the tables in memory at `point`: no reader sees the cut bytes."""
        core = self.core
        for mark in core.watermarks:
            mark.truncate_to(min(mark.value, point))
        assert core.appended.value == point, (core.appended.value, point)
        core.log.cut_at(point)
        self.dispatcher.cut(point)
        if not core.log.damaged:
            core.admission.unblock(DAMAGED)
        for queue in core.queues:
            queue.write()
        core.queues.truncate(point)
        assert core.queues.end_log_offset <= point, (core.queues.end_log_offset, point)
        if core.indexes is not None:
            core.indexes.cut(point)
        core.queues.deletions.cut(point)
        self.table_flusher.cut(point)
        self.lower_confirm_offset(point)
        stored_at_ms = self._lower_checkpoint(point)
        self.dispatcher.stored_at_ms = self.flusher.flushed_stored_at_ms = stored_at_ms

    def _lower_checkpoint(self, point: int) -> int:
        """Lowers the checkpoint to a log that ends at `point`.

        Returns a lower bound of the store time of its last record; 0 if unknown.
        """
        segment = self.core.log.log.find(max(0, point - 1))
        stored_at_ms = 0
        if segment is not None and segment.base < point:
            head = check_record(segment.view(), 0, log_offset=segment.base, check_crc=False)
            stored_at_ms = head.stored_at_ms if head.outcome is RecordOutcome.OK else 0
        times = self.core.checkpoint.times
        durable = times.durable_log_offset
        self.core.checkpoint.replace(
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
