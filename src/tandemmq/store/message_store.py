"""The store's interface for the other layers: builds the parts of a store in order, starts and stops them.

Invariants: min <= dispatched <= confirmed <= appended, flushed <= appended.
Source:     spec store 12 for the order of start and stop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from tandemmq.errors import (
    Corrupt,
    DiskFull,
    FlushFailed,
    LogDiverged,
    LogMissing,
    RequestRejected,
    ServiceNotAvailable,
    StoreError,
)
from tandemmq.protocol.hashes import tag_hash
from tandemmq.protocol.record import NewBatch, NewRecord, RecordOutcome, check_record
from tandemmq.protocol.record_scan import RecordColumns
from tandemmq.replication.core.epochs import EPOCH_BEFORE_TERMS, EpochList
from tandemmq.runtime.ports import Advice, Clock, Disk
from tandemmq.runtime.tasks import OnFatal, TaskScope
from tandemmq.store.admission import Admission
from tandemmq.store.appender import Unit
from tandemmq.store.checkpoint import Checkpoint, CheckpointTimes, EpochFile, StoreMarks
from tandemmq.store.commit_log import CommitLog, Warmth
from tandemmq.store.confirm import AckTable, OnDone
from tandemmq.store.consume_queue import UNIT, ConsumeQueue
from tandemmq.store.consume_queues import ConsumeQueues, QueueKey
from tandemmq.store.damage import DAMAGED, DamagedRange
from tandemmq.store.dispatcher import Dispatcher, DispatchListener
from tandemmq.store.failed_writes import FailStopClock
from tandemmq.store.flusher import PAGE_BYTES
from tandemmq.store.key_indexes import KeyIndexes
from tandemmq.store.options import BrokerRole, FlushMode, StoreOptions, StorePaths
from tandemmq.store.outcomes import NOT_STORED, Appended, GetResult, PutStatus, RecordFilter
from tandemmq.store.reader import GET_BYTES_MAX, Reader
from tandemmq.store.recorder import StoreFacts, StoreRecorder
from tandemmq.store.recovery import Recovered, Recovery
from tandemmq.store.replica_log import ReplicaLog
from tandemmq.store.replies import Replies, Sends
from tandemmq.store.retention import no_room_for_first_file, require_room
from tandemmq.store.scrub import Fetch, Healer
from tandemmq.store.segmented_log import OpenFiles, SegmentedLog
from tandemmq.store.transient_pool import TransientPool
from tandemmq.store.truncation import (
    CutMark,
    PendingCut,
    encode_term_ids,
    encode_terms,
    finish_cut,
    keep_tail,
    zero_behind,
)
from tandemmq.store.watermarks import Watermark
from tandemmq.store.writers import Writers
from tandemmq.telemetry import events
from tandemmq.units import Buffer, ReplicaId

log = logging.getLogger(__name__)


DELETION_ROUNDS_MAX = 3
LOST_ENTRIES_MAX = 1024
"""The number of lost queue entries after which no more are searched for."""
LIMITED_FOR_GOOD = 1 << 63
"""An offset beyond the end of any log."""

_CLOSED = "closed"
_FAILED = "failed"
_ROLE = "role"
_UNVERIFIED = "unverified"
_REPLICA_SHORTAGE = "few copies"


class MessageStore:
    """An open store directory: appends, reads, and the watermarks to follow.

    `append` may be called on a master only, `append_raw` on a slave only. All calls come from the loop's
    thread.
    """

    def __init__(
        self,
        options: StoreOptions,
        *,
        disk: Disk,
        clock: Clock,
        on_fatal: OnFatal | None,
        has_terms: bool,
        epoch_file: Path | None,
    ) -> None:
        # Uncommitted bytes of the pool would reappear after a cut.
        assert not (has_terms and options.uses_transient_pool), "a log that may be cut has no pool"
        self.options = options
        self.has_terms = has_terms
        """True if the master is elected: the log has terms, and its end may be cut by them
        (enableControllerMode).
        """
        self.role = options.role
        self.appended = Watermark("appended")
        self.flushed = Watermark("flushed")
        self.confirmed = Watermark("confirmed")
        self.dispatched = Watermark("dispatched")
        self.recorder = StoreRecorder()
        self._disk = disk
        self._clock: Clock = FailStopClock(clock, self._on_callback_failed)
        self._on_fatal = on_fatal
        self._paths = StorePaths(options)
        self._marks = StoreMarks(self._paths, disk)
        self._files = OpenFiles(disk, options.open_file_count_max)
        self._tasks = TaskScope("store", self._on_task_failed)
        self._admission = Admission()
        self._is_open = False
        self._has_writers = False
        self.may_lack_tail = False
        """With terms only: this copy may have lost acknowledged messages, until `trust_tail` is called."""
        self.unverified_reason = ""
        """The reason why the log may lack acknowledged messages; empty if it lacks none.

        Until `accept_log` such a store has the slave role, so that the missing bytes can be copied verbatim.
        """
        self.on_damaged: Callable[[], None] = lambda: None
        """Called when damage is found while the store is open; set by the owner, as another copy may
        heal it.
        """
        self.on_cut: Callable[[], None] = lambda: None
        """Called when the log and its queues were cut, so progress beyond their ends is void; set by the
        owner.
        """
        self.confirm_offset = 0
        """The offset below which every electable copy holds all bytes, as far as known; with terms only."""
        self._limited_until = 0
        self._epoch_file = EpochFile(epoch_file or self._paths.epochs, disk)
        self._cut_mark = CutMark(self._paths.pending_cut, disk)
        self._is_cutting = False
        self._being_deleted: set[str] = set()
        self._segment_task: asyncio.Task[None] | None = None
        self._log = CommitLog(
            SegmentedLog(
                self._paths.commit_log,
                options.commit_log_file_bytes,
                self._files,
                sparse=False,
                advice=None if options.read_ahead_enable else Advice.RANDOM,
            ),
            disk,
            mapped_bytes_max=options.mapped_bytes_max,
            warmth=_plan_warmth(options),
        )
        self._pool = TransientPool(options, self._log) if options.uses_transient_pool else None
        self._queues = ConsumeQueues(options, self._paths, disk, self._files)
        self._checkpoint = Checkpoint(self._paths, disk)
        self._indexes = (
            KeyIndexes(options, self._paths, disk=disk, clock=self._clock)
            if options.key_index_enable
            else None
        )
        self._dispatcher = Dispatcher(
            options,
            log=self._log,
            queues=self._queues,
            keys=self._indexes,
            admission=self._admission,
            dispatched=self.dispatched,
        )
        self._reader = Reader(
            options,
            log=self._log,
            queues=self._queues,
            recorder=self.recorder,
            role=options.role,
            on_wrong_entry=self._start_entry_repair,
        )
        self._is_repairing = False
        self._lost_entries: set[tuple[QueueKey, int]] = set()
        self._replies = Replies(
            options,
            clock=self._clock,
            admission=self._admission,
            recorder=self.recorder,
            appended=self.appended,
            flushed=self.flushed,
        )
        self._healing = asyncio.Lock()
        self._healer = Healer(
            log=self._log,
            dispatcher=self._dispatcher,
            copies=self._paths.damaged,
            clock=self._clock,
            flush_tables=lambda: self._writers.table_flusher.flush_soon(),
        )
        self._replica_log = ReplicaLog(
            log=self._log, clock=self._clock, recorder=self.recorder, on_written=self._on_raw_written
        )

    @classmethod
    async def open(
        cls,
        options: StoreOptions,
        *,
        disk: Disk,
        clock: Clock,
        on_fatal: OnFatal | None = None,
        has_terms: bool = False,
        epoch_file: Path | None = None,
    ) -> MessageStore:
        """Opens a recovered, running store. `on_fatal` is called once if the store can no longer be trusted.

        `has_terms`: the master is elected (enableControllerMode). `epoch_file`: the file of its terms
        (storePathEpochFile); None: beside the log.
        Raises:  StoreLocked when another process holds the store; Corrupt for foreign files; ConfigError when
                 the disk is too small for one log file; StoreError when the directory cannot be read or
                 written.
        """
        store = cls(
            options,
            disk=disk,
            clock=clock,
            on_fatal=on_fatal,
            has_terms=has_terms,
            epoch_file=epoch_file,
        )
        try:
            await store._start()
        except BaseException as error:
            store._files.close()
            store._marks.release()
            if isinstance(error, OSError):
                raise StoreError(f"the store at {options.root} cannot be opened: {error}") from error
            raise
        return store

    # Start and stop.

    async def _start(self) -> None:
        self._marks.acquire()
        has_abort = self._marks.has_abort
        self._check_tail(has_abort=has_abort)
        same_boot = self._marks.same_boot
        self._marks.ensure_abort()
        self._log.log.load()
        if not self._log.log.segments:
            require_room(self.options, self._disk, self._paths.commit_log)
        self._checkpoint.load()
        if self.has_terms:
            self._epoch_file.load()
        await self._finish_cut()
        self._queues.deletions.load()
        stale_bytes_max = self.options.consume_queue_file_bytes if has_abort else 4096
        self._queues.load(stale_bytes_max=stale_bytes_max)
        if self._indexes is not None:
            self._indexes.load(has_abort=has_abort)
        recovery = Recovery(
            log=self._log,
            queues=self._queues,
            dispatcher=self._dispatcher,
            checkpoint=self._checkpoint,
            clock=self._clock,
            check_crc=self.options.check_crc_on_recover,
            has_indexes=self._indexes is not None,
            copies=self._paths.damaged,
        )
        try:
            recovered = await recovery.run(has_abort=has_abort, same_boot=same_boot)
        except (LogMissing, Corrupt):
            if not has_abort:
                self._marks.remove_abort()  # the last run still ended cleanly
            raise
        if self._indexes is not None:
            self._indexes.cut(self._log.end)
        if self.role is not BrokerRole.SLAVE or not self._log.log.segments:
            self._queues.deletions.cut(self._log.end)
        self._files.release_pages()  # recovery read whole files
        self._restore(recovered)
        self._writers = self._build_writers(recovered)
        self._has_writers = True
        # Entries added by the scan are durable before anything relies on them.
        await self._writers.table_flusher.flush(is_thorough=True)
        self._end_cut()
        self._marks.write_abort()
        if recovered.has_damage:
            self._admission.block(DAMAGED, self._damage_remark())
        self._connect()
        self._assert_marks()
        self._is_open = True
        log.info(
            events.STORE_OPENED,
            extra={
                "path": str(self._paths.root),
                "case": recovered.plan.case.name,
                "log_begin": self._log.begin,
                "log_end": self._log.end,
                "queue_count": len(self._queues),
                "zeroed_bytes": recovered.lost_bytes,
                "damaged_ranges": len(self._log.damaged),
            },
        )

    def _check_tail(self, *, has_abort: bool) -> None:
        """Determines whether acknowledged messages may be lost: a machine restart loses unsynced bytes, which
        a slave may still hold.
        """
        options, marks = self.options, self._marks
        is_lost = has_abort and not marks.same_boot and options.flush_mode is FlushMode.ASYNC_FLUSH
        if self.has_terms and not options.accept_log:
            # The role is decided later, by the controllers, which need this information.
            if is_lost and not marks.tail_mark:
                marks.write_tail_mark(
                    "the last run did not end in order and the machine has been restarted since: what was"
                    " acknowledged and not flushed (ASYNC_FLUSH) may be at other members only"
                )
            self.may_lack_tail = bool(marks.tail_mark)
            return
        if options.role is BrokerRole.SLAVE or options.accept_log:
            marks.remove_tail_mark()  # a slave is compared with its master
            return
        if is_lost and options.slave_ack_count(options.role) and not marks.tail_mark:
            marks.write_tail_mark(
                "the last run did not end in order and the machine has been restarted since: acknowledged"
                " messages that were not flushed (ASYNC_FLUSH) may be at the slaves only"
            )
        self.unverified_reason = marks.tail_mark
        if self.unverified_reason:
            self.role = BrokerRole.SLAVE
            self._admission.block(_UNVERIFIED, self.unverified_reason)

    def _damage_remark(self) -> str:
        """Returns the message for refused senders."""
        assert self._log.damaged, "there is damage"
        damaged = next(iter(self._log.damaged))
        return (
            f"bytes {damaged.begin} to {damaged.end} of the log are damaged ({len(self._log.damaged)} ranges "
            "in all): what can be read is served, messages are taken once it is healed or repaired"
        )

    async def _finish_cut(self) -> None:
        """Completes on the files a cut that a former run began; recovery then finds a log that ends there."""
        pending = self._cut_mark.read()
        if pending is None:
            return
        await finish_cut(self._cut_mark, pending, self._log)
        self._lower_checkpoint(pending.point)
        self._is_cutting = True

    def _end_cut(self) -> None:
        """Records that everything changed by a cut completed at the start is on disk."""
        pending = self._cut_mark.read() if self._is_cutting else None
        if pending is not None:
            assert self._log.end <= max(pending.point, self._log.begin), (self._log.end, pending.point)
            self._epoch_file.save(pending.terms)
            self._cut_mark.clear()
        self._is_cutting = False
        if self.has_terms and not self.epochs and self._log.begin < self._log.end:
            self._epoch_file.save(EpochList().append(EPOCH_BEFORE_TERMS, self._log.begin))

    def _lower_checkpoint(self, point: int) -> int:
        """Lowers the checkpoint to a log that ends at `point`.

        Returns a lower bound of the store time of its last record; 0 if unknown.
        """
        segment = self._log.log.find(max(0, point - 1))
        stored_at_ms = 0
        if segment is not None and segment.base < point:
            head = check_record(segment.view(), 0, log_offset=segment.base, check_crc=False)
            stored_at_ms = head.stored_at_ms if head.outcome is RecordOutcome.OK else 0
        times = self._checkpoint.times
        durable = times.durable_log_offset
        self._checkpoint.replace(
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

    def _restore(self, recovered: Recovered) -> None:
        """Sets the watermarks and the checkpoint to the state that recovery found and synced."""
        confirmed = max(0, recovered.last_log_offset)
        if self.has_terms:
            confirmed_offset = self._checkpoint.times.confirmed_log_offset
            if confirmed_offset > self._log.end and not self.may_lack_tail:
                self._marks.write_tail_mark(
                    f"the log ends at {self._log.end}, confirmed was {confirmed_offset}"
                )
                self.may_lack_tail = True
            confirmed = self.confirm_offset = min(confirmed_offset, self._log.end)
        assert recovered.last_log_offset < self._log.end or not self._log.end, recovered
        assert 0 <= confirmed <= self._log.end, (confirmed, self._log.end)
        for mark in (self.appended, self.flushed, self.confirmed, self.dispatched):
            mark.raise_to(self._log.end)
        self._dispatcher.stored_at_ms = recovered.stored_at_ms
        self._checkpoint.replace(
            CheckpointTimes(
                log_stored_at_ms=recovered.stored_at_ms,
                index_stored_at_ms=min(self._checkpoint.times.index_stored_at_ms, recovered.stored_at_ms),
                confirmed_log_offset=confirmed,
                durable_log_offset=self._log.end,
            )
        )

    def _build_writers(self, recovered: Recovered) -> Writers:
        return Writers(
            self.options,
            paths=self._paths,
            log=self._log,
            pool=self._pool,
            queues=self._queues,
            indexes=self._indexes,
            checkpoint=self._checkpoint,
            dispatcher=self._dispatcher,
            admission=self._admission,
            recorder=self.recorder,
            appended=self.appended,
            flushed=self.flushed,
            dispatched=self.dispatched,
            disk=self._disk,
            clock=self._clock,
            tasks=self._tasks,
            stored_at_ms=recovered.stored_at_ms,
            tables_end=recovered.tables_end,
            on_written=self._on_written,
            on_refused=self._on_refused,
            on_failed=self._fail,
            on_damaged=lambda: self.on_damaged(),
            is_cutting=lambda: self._is_cutting,
        )

    def _connect(self) -> None:
        """Connects each watermark to the one it depends on, and starts the timers."""
        assert not self._is_open, "they follow each other once"
        is_sync = self.options.flush_mode is FlushMode.SYNC_FLUSH
        source = self.flushed if is_sync else self.appended
        source.follow(self.confirmed.raise_to)
        self.confirmed.follow((lambda _end: self._dispatch()) if self.has_terms else self._dispatcher.advance)
        self.set_role(self.role)
        self._writers.start()

    async def close(self) -> None:
        """Writes, flushes and dispatches everything accepted, and leaves the directory as after a clean stop.

        Sends that still wait for slaves end with UNKNOWN_ERROR. After a failure nothing is written and
        `abort` stays, so that the next start recovers.
        """
        if not self._is_open:
            return
        self._is_open = False
        writers = self._writers
        writers.appender.write_staged()
        self._admission.block(_CLOSED, "the store is closed")
        await writers.stop()
        if self._segment_task is not None:
            await asyncio.wait([self._segment_task])
        is_clean = False
        try:
            if writers.committer is None or await writers.committer.stop():
                is_clean = await self._settle()
        except OSError as error:
            writers.flusher.fail(error)
        finally:
            self._replies.fail(PutStatus.UNKNOWN_ERROR)
            for mark in (self.appended, self.flushed, self.confirmed, self.dispatched):
                mark.close()
            await self._tasks.close()
            if self._indexes is not None:
                self._indexes.close()
            self._files.close()
            if self._pool is not None:
                self._pool.close()
            if is_clean:
                try:
                    self._marks.remove_abort()
                except OSError:  # the next start recovers as after a crash, and finds nothing to repair
                    is_clean = False
            self._marks.release()
            log.info(events.STORE_CLOSED, extra={"path": str(self._paths.root), "is_clean": is_clean})

    async def _settle(self) -> bool:
        """Puts everything on disk. Returns True if nothing is missing, so that `abort` may be removed (spec
        store 21.3).
        """
        writers = self._writers
        if not await writers.failed_writes.settle() or self._admission.is_blocked(_FAILED):
            return False
        await writers.flusher.flush()
        if self.has_terms:
            self._dispatch()
        if self.flushed.value < self.appended.value or self._admission.is_blocked(_FAILED):
            return False
        is_complete = await writers.table_flusher.flush(is_thorough=True)
        assert self._log.end == self.appended.value, (self._log.end, self.appended.value)
        self._assert_marks()
        self._log.drop_unused_segments()
        assert self._queues.end_log_offset <= self.dispatched.value, (
            self._queues.end_log_offset,
            self.dispatched.value,
        )
        # A slave may hold a partial record at the end; it cannot be dispatched, and the next start cuts it.
        is_complete = is_complete and self.dispatched.value == self.appended.value
        if is_complete:
            assert self.flushed.value == self._log.end, (self.flushed.value, self._log.end)
            times = msgspec.structs.replace(self._checkpoint.times, queues_digest=self._queues.digest())
            self._checkpoint.replace(times)
            await self._disk.offload(self._checkpoint.write)
        return is_complete

    def _assert_marks(self) -> None:
        """Asserts the invariants of the watermarks; called where the log is moved and not only
        appended to.
        """
        appended = self.appended.value
        assert appended <= self._log.end, (appended, self._log.end)
        assert self.flushed.value <= appended, (self.flushed.value, appended)
        assert self.confirmed.value <= appended, (self.confirmed.value, appended)
        assert self.dispatched.value <= appended, (self.dispatched.value, appended)
        assert self.confirm_offset <= self._log.end or not self.has_terms, (
            self.confirm_offset,
            self._log.end,
        )
        assert self._log.begin <= self._log.end, (self._log.begin, self._log.end)
        damage = tuple(self._log.damaged)
        assert not damage or damage[0].begin >= self._log.begin, (damage[0], self._log.begin)
        # A log is unverified in one of two ways, depending on how its master is chosen.
        assert not self.unverified_reason or not self.has_terms, self.unverified_reason
        assert not self.may_lack_tail or self.has_terms

    def _fail(self, error: BaseException) -> None:
        """Fail-stop: writes nothing more, rejects every request, fails all waiters, and notifies `on_fatal`.

        The only write is the mark that tells the next start whether to trust the page cache.
        """
        if self._admission.is_blocked(_FAILED):
            return
        self._admission.block(_FAILED, "the store has failed")
        if isinstance(error, FlushFailed):
            with suppress(OSError):
                self._marks.write_abort(is_readable=False)
        if self._has_writers:
            self._replica_log.close()
            self._writers.halt()
            self._replies.fail(PutStatus.UNKNOWN_ERROR)
        if self._on_fatal is not None:
            self._on_fatal(error)

    def _on_callback_failed(self, error: Exception) -> None:
        log.critical(events.CALLBACK_FAILED, exc_info=error)
        self._fail(error)

    def _on_task_failed(self, _task: str, error: BaseException) -> None:
        self._fail(error)

    # Writing.

    @property
    def store_host(self) -> bytes:
        """The packed address that is written into records and message ids."""
        return self._writers.appender.store_host

    @store_host.setter
    def store_host(self, value: bytes) -> None:
        assert len(value) in (8, 20), value
        self._writers.appender.store_host = value

    @property
    def acks(self) -> AckTable:
        """The table in which replication reports the bytes that slaves hold."""
        return self._replies.acks

    @property
    def awaits_acks(self) -> bool:
        """True if new sends wait for slaves."""
        return self._replies.awaits_acks

    def set_role(self, role: BrokerRole) -> None:
        """Makes the store a master or a slave.

        A slave that becomes master drops a partial record at its end. A master that becomes slave first
        commits the bytes in its pool.

        Raises:  OSError when the disk accepts no writes; the role is unchanged then.
        """
        assert not self._is_cutting
        is_master = self._is_open and self.role is not BrokerRole.SLAVE
        if self.role is BrokerRole.SLAVE and role is not BrokerRole.SLAVE:
            end = self._replica_log.cut_partial(self.dispatched.value)
            for mark in (self.flushed, self.confirmed, self.appended):
                if mark.value > end:
                    mark.truncate_to(end)
            self.confirm_offset = min(self.confirm_offset, end)
            self._publish_limit()
            self._dispatcher.cut(end)
            # New queue offsets start after every record in the log, flushed or not.
            self._dispatcher.advance(end)
            self._queues.deletions.cut(end)
        if self.role is not BrokerRole.SLAVE and role is BrokerRole.SLAVE:
            writers = self._writers
            writers.appender.write_staged()
            if not writers.failed_writes.zero():
                raise OSError("bytes of a failed write are left behind the end of the log")
            if writers.committer is not None:
                writers.committer.commit_now()
            assert self.appended.value == self.accepted_log_offset == self._log.end, (
                self.appended.value,
                self._log.end,
            )
        self.role = self._reader.role = role
        self._replies.set_role(role)
        if self.has_terms:
            self._dispatch()  # a slave dispatches everything confirmed, and scans later bytes from the log
        if role is BrokerRole.SLAVE:
            self._admission.block(_ROLE, "the broker is a slave; it accepts no messages")
        else:
            self._admission.unblock(_ROLE)
            if not is_master:
                if self._pool is not None:
                    self._pool.restart()
                self._writers.appender.restart(self._pool or self._log, self._dispatcher.stored_at_ms)
        self._assert_marks()
        options = self.options
        is_set_known = self._replies.acks.required is not None
        needs_no_acks = options.in_sync_replicas <= 1 and not options.sync_master_compat4 and not is_set_known
        if role is BrokerRole.SYNC_MASTER and needs_no_acks:
            log.warning(events.SYNC_MASTER_ALONE, extra={"in_sync_replicas": options.in_sync_replicas})

    def begin_role(self, role: BrokerRole) -> None:
        """Sets the role for a broker that is rebuilt over the open store.

        Listeners of the old broker are removed, `options.role` becomes the new role, and waiting sends end
        unconfirmed.

        Raises:  as `set_role`; nothing is changed then.
        """
        if role is not self.role:
            self.set_role(role)
        assert self.role is role, (self.role, role)
        self._replies.end_role()
        object.__setattr__(self.options, "role", role)
        self._dispatcher.forget_listeners()
        self._queues.on_deleted = lambda _topic: None
        self.on_damaged = lambda: None

    def trust_tail(self) -> None:
        """Records that this copy has regained its lost bytes, or that the group continues without them."""
        if self.may_lack_tail:
            try:
                self._marks.remove_tail_mark()
            except OSError as error:
                log.warning(events.LOG_TAIL_MARK_KEPT, extra={"reason": str(error)})
            self.may_lack_tail = False

    def accept_log(self) -> None:
        """Accepts the log as it is: the store takes the role it was opened for.

        Raises:  OSError when the disk accepts no writes.
        """
        if not self.unverified_reason:
            return
        assert self.role is BrokerRole.SLAVE, self.role
        self.set_role(self.options.role)
        self._marks.remove_tail_mark()
        self.unverified_reason = ""
        self._admission.unblock(_UNVERIFIED)

    async def sync(self) -> None:
        """Returns when everything appended so far is on disk, or the store has failed because of an fsync.

        A cancelled caller still waits for the end. The error of an abandoned fsync would go unnoticed, and
        the next fsync would succeed with nothing to write.
        """
        if self._tasks.is_closed:
            return  # the store is closed, or one of its tasks has failed
        end, cut_count = self.appended.value, self.appended.cut_count
        await self._tasks.run_to_completion("sync", self._writers.flusher.flush())
        is_cut = self.appended.cut_count != cut_count
        assert self.flushed.value >= end or is_cut or self._admission.is_blocked(_FAILED), (
            self.flushed.value,
            end,
        )

    def append(self, records: Sequence[NewRecord], on_done: OnDone) -> Appended:
        """Appends records and returns their positions; `on_done(status)` is called once, when the send may be
        answered.

        One append is all or nothing, and within one file. Its bytes are written at the end of this turn of
        the loop. The wait follows the options and the first record's `wait_stored` (spec store 4, 6).
        Raises:  MessageIllegal, ServiceNotAvailable, Busy; then nothing was staged and `on_done` is not
                 called.
        """
        return self._writers.appender.append(records, on_done)

    def append_batch(self, batch: NewBatch, on_done: OnDone) -> Appended:
        """Like `append`, for non-transactional messages of one queue."""
        return self._writers.appender.append_batch(batch, on_done)

    def confirm(self, log_offset: int, on_done: OnDone) -> None:
        """Calls `on_done(status)` once everything appended so far is as safe as an append that waits.

        The outcomes and time limits are those of an append. `log_offset`: the message to confirm; a slave
        whose copy begins after it does not count.
        """
        assert 0 <= log_offset < self.accepted_log_offset, (log_offset, self.accepted_log_offset)
        self._replies.confirm(log_offset, self.accepted_log_offset, on_done)

    def append_raw(self, log_offset: int, data: Buffer, columns: RecordColumns | None = None) -> None:
        """Writes a master's bytes at `log_offset`, which must be the end of the log.

        An empty log may also start at any later multiple of the file size. A chunk may end in the middle of a
        record.
        `columns`: the parsed columns of its first records or of all, so that dispatching need not parse them
        again.
        Raises:  LogDiverged, DiskFull, ServiceNotAvailable; then the log is unchanged.
        """
        if self.role is not BrokerRole.SLAVE:
            raise ServiceNotAvailable("the broker is not a slave")
        if not self._is_open:
            raise ServiceNotAvailable("the store is closed")
        if self._is_cutting:
            raise ServiceNotAvailable("the end of the log is being cut")
        if columns is None:
            self._replica_log.append(log_offset, data)
        else:
            with self._dispatcher.reading(log_offset, data, columns):
                self._replica_log.append(log_offset, data)
        assert self.appended.value == self._log.end, (self.appended.value, self._log.end)

    # Terms.

    @property
    def epochs(self) -> EpochList:
        """The terms of the log: the master that wrote each range of bytes."""
        return self._epoch_file.epochs

    def require_acks(self, replicas: frozenset[ReplicaId] | None) -> None:
        """Requires an ack of each of these replicas to confirm a send; None: of as many as the
        options say.
        """
        self._replies.require(replicas)

    def set_replica_shortage(self, remark: str) -> None:
        """Refuses every send with this remark and SYSTEM_ERROR (spec replication 5.1); empty: accepts sends
        again.
        """
        if remark:
            self._admission.block(_REPLICA_SHORTAGE, remark, RequestRejected)
        else:
            self._admission.unblock(_REPLICA_SHORTAGE)

    async def save_epochs(self, epochs: EpochList) -> None:
        """Saves the terms; they are on disk when the call returns. Raises OSError.

        A cancelled caller still waits for the end: of two concurrent writes either could win.
        """
        epochs = epochs.cut_prefix(self._log.begin)
        if epochs != self.epochs:
            await self._tasks.run_to_completion(
                "save_epochs", self._disk.offload(self._epoch_file.save, epochs)
            )

    def raise_confirm_offset(self, log_offset: int) -> None:
        """Raises the confirmed offset, which falls only by a cut; it is written with the next checkpoint."""
        if log_offset > self.confirm_offset:
            before, self.confirm_offset = self.confirm_offset, min(log_offset, self._log.end)
            assert before <= self.confirm_offset, (before, self.confirm_offset)
            self._checkpoint.raise_times(confirmed_log_offset=self.confirm_offset)
            self._dispatch()
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
        self._reader.limit = self.confirm_offset if self._limited_until else None
        assert self._reader.limit is None or self._reader.limit <= self._log.end, (
            self._reader.limit,
            self._log.end,
        )
        self._dispatcher.set_read_limit(self._reader.limit)

    def _dispatch(self) -> None:
        """Dispatches confirmed records; on a master with required replicas, only what all of them hold.

        Messages not yet on every in-sync replica may be lost in a failover and their offsets reused.
        """
        end = self.confirmed.value
        if self._is_open and self.role is not BrokerRole.SLAVE and self._replies.acks.required is not None:
            end = min(end, self.confirm_offset)
        self._dispatcher.advance(end)

    async def cut(self, point: int, epochs: EpochList, reason: str) -> None:
        """Ends the log at `point`, the end of a record, on a slave that is not copying.

        The removed bytes are kept beside the store, within a limit. From now on none of them comes back,
        whatever happens. `epochs` are the terms when the call returns, or after the next start. A cancelled
        caller still waits for the end, because bytes copied before the end would be cut as well.
        Raises:  LogDiverged when no record ends at `point`, ServiceNotAvailable, also for a full disk; then
                 nothing is changed.
                 FlushFailed: the store has failed.
        """
        self._require_working()
        if self.role is not BrokerRole.SLAVE or self._is_cutting:
            raise ServiceNotAvailable("the broker is not a slave, or its log is being cut")
        self._require_boundary(point)
        self._is_cutting = True
        await self._tasks.run_to_completion("cut", self._run_cut(point, epochs, reason))

    async def _run_cut(self, point: int, epochs: EpochList, reason: str) -> None:
        try:
            await self._writers.failed_writes.settle()  # its files may be gone after the cut
            if self._segment_task is not None:  # its predecessor may be gone after the cut
                await asyncio.wait([self._segment_task])
            await self.sync()
            await self._writers.table_flusher.flush_soon()
            self._require_working()
            if any(queue.unwritten_bytes for queue in self._queues):
                raise ServiceNotAvailable(f"the log cannot be cut at {point}: queue files cannot be written")
            await self._cut(point, epochs, reason)
        except OSError as error:
            self._writers.flusher.fail(error)
            raise FlushFailed(f"the log could not be cut at {point}: {error}") from error
        finally:
            self._is_cutting = False

    def _require_boundary(self, point: int) -> None:
        if point == self._log.begin:
            return
        if self._log.begin < point < self._log.end:
            whole = self._log.check(point, check_crc=True).outcome
            if whole in (RecordOutcome.OK, RecordOutcome.BLANK):
                return
        raise LogDiverged(f"no record of the log begins at {point}, where it is to be cut")

    async def _cut(self, point: int, epochs: EpochList, reason: str) -> None:
        assert self._is_cutting
        assert self.has_terms, "only an elected master's log is cut"
        assert self.role is BrokerRole.SLAVE, self.role
        end = self._log.end
        assert self.flushed.value == end, "nothing comes into a log that is being cut"
        entry = self.epochs.find(point)
        pending = PendingCut(
            point=point,
            epochs=encode_terms(epochs),
            ids=encode_term_ids(epochs),
            epoch=EPOCH_BEFORE_TERMS if entry is None else entry.epoch,
            reason=reason,
        )
        segments = self._log.dirty_segments(point, end)
        parts = [segment.view()[max(0, point - segment.base) : end - segment.base] for segment in segments]
        copy = await self._disk.offload(self._keep_tail, parts, point, end, pending.epoch)
        try:
            try:
                await self._disk.offload(self._cut_mark.write, pending)
            except OSError:
                if self._cut_mark.is_there or copy is None:
                    raise
                # The copy may have used the last free space, and its bytes were never reported as safe.
                await self._disk.offload(self._disk.remove, copy)
                await self._disk.offload(self._cut_mark.write, pending)
        except OSError as error:
            if self._cut_mark.is_there:
                raise
            # The disk is full: nothing has begun, and the caller may retry.
            raise ServiceNotAvailable(f"the log cannot be cut at {point} now: {error}") from error
        await self._writers.table_flusher.idle()  # no thread still writes queue entries of the cut bytes
        # From here on no reader sees the cut bytes.
        for mark in (self.dispatched, self.confirmed, self.flushed, self.appended):
            mark.truncate_to(min(mark.value, point))
        assert self.appended.value == point, (self.appended.value, point)
        self._log.cut_at(point)
        self._dispatcher.cut(point)
        if not self._log.damaged:
            self._admission.unblock(DAMAGED)
        for queue in self._queues:
            queue.write()
        self._queues.truncate(point)
        assert self._queues.end_log_offset <= point, (self._queues.end_log_offset, point)
        if self._indexes is not None:
            self._indexes.cut(point)
        self._queues.deletions.cut(point)
        self._writers.table_flusher.cut(point)
        self.confirm_offset = min(self.confirm_offset, point)
        self._publish_limit()
        stored_at_ms = self._lower_checkpoint(point)
        self._dispatcher.stored_at_ms = self._writers.flusher.flushed_stored_at_ms = stored_at_ms
        for segment in segments:
            segment.pin()
        try:
            await self._disk.offload(zero_behind, segments, point, end)
        finally:
            for segment in segments:
                segment.unpin()
        self._log.log.truncate(point, zero_bytes_max=0)
        await self._writers.table_flusher.flush_soon()
        self._require_working()
        self._lower_checkpoint(point)  # a round that was already running may have raised it
        await self._disk.offload(self._checkpoint.write)
        await self._disk.offload(self._epoch_file.save, epochs)
        await self._disk.offload(self._cut_mark.clear)
        assert self._log.end == self.flushed.value == point, (self._log.end, self.flushed.value, point)
        assert self.epochs == epochs, (self.epochs, epochs)
        assert self._writers.table_flusher.tables_end <= point, (
            self._writers.table_flusher.tables_end,
            point,
        )
        self._assert_marks()
        facts = {"log_offset": point, "reason": reason, "zeroed_bytes": end - point}
        log.warning(events.LOG_TAIL_CUT, extra=facts)
        self.on_cut()

    def _keep_tail(self, parts: list[memoryview], point: int, end: int, epoch: int) -> Path | None:
        return keep_tail(
            parts,
            point,
            end - point,
            epoch=epoch,
            directory=self._paths.divergent,
            bytes_max=self.options.divergent_bytes_max,
            disk=self._disk,
        )

    def _on_written(self, units: list[Unit], sends: Sends, end: int) -> None:
        self._dispatcher.expect(units, end)
        try:
            committer = self._writers.committer
            if committer is None:
                assert self._log.end == end, (self._log.end, end)
                self.appended.raise_to(end)
            else:
                committer.wake()
        finally:
            # Even if a follower fails, the senders are answered.
            self._replies.written(sends)
        if self._log.needs_segment_ahead():
            self._segment_task = self._tasks.start("make_segment", self._log.make_segment_ahead())

    def _on_raw_written(self, end: int) -> None:
        assert end == self._log.end, (end, self._log.end)
        # No file is created ahead: a send can be rejected with a retry, a master's bytes cannot.
        self.appended.raise_to(end)

    def _on_refused(self, sends: Sends, status: PutStatus) -> None:
        assert status in NOT_STORED, status
        self._replies.end_all(sends, status)

    # Reading.

    @property
    def min_log_offset(self) -> int:
        """The first byte of the log that is kept."""
        return self._log.begin

    @property
    def max_log_offset(self) -> int:
        """The end of the written bytes."""
        return self._log.end

    @property
    def confirmed_log_offset(self) -> int:
        """The end of the bytes that may be read; the log's begin while the first bytes of a copy are not on
        disk yet.
        """
        return max(self._log.begin, self.confirmed.value)

    @property
    def accepted_log_offset(self) -> int:
        """The end of the accepted sends; beyond `appended` while bytes are in the transient pool."""
        if self._pool is None or self.role is BrokerRole.SLAVE:
            return self._log.end
        assert self._pool.end >= self._log.end, (self._pool.end, self._log.end)
        return self._pool.end

    def log_view(self, log_offset: int, bytes_max: int) -> memoryview:
        """Returns written bytes from `log_offset` on, of one file, a BLANK tail included; empty at the end.

        The slice stays valid when its file is deleted. It ends where damage begins, and is empty inside
        damage.
        """
        return self._log.valid_view(log_offset, bytes_max)

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int,
        bytes_max: int = GET_BYTES_MAX,
        tag_hashes: frozenset[int] | None = None,
        record_filter: RecordFilter | None = None,
        is_bulk: bool = False,
        is_own: bool = False,
        waits: bool = True,
    ) -> GetResult:
        """Returns records of a queue from `offset` on, at most as many as the transfer limits allow.

        Units:   count_max in records; tag_hashes: the hashes to deliver, None for all; record_filter: applied
                 after the tags; is_bulk: the limits of `bulk_read` instead of RocketMQ's; is_own: for the
                 broker's own tables, which must see messages hidden from readers (`limit_reads`); waits: for
                 an entry that is being repaired, else the entry is skipped.
        Source:  spec store 13.1.
        """
        return self._reader.get(
            topic,
            queue_id,
            offset,
            count_max=count_max,
            bytes_max=bytes_max,
            tag_hashes=tag_hashes,
            record_filter=record_filter,
            is_bulk=is_bulk,
            is_own=is_own,
            waits=waits,
        )

    async def heal(self, fetch: Fetch) -> int:
        """Repairs damaged ranges with the bytes of another copy of this log; returns how many are left.

        If none is left, sends are accepted again.
        Raises:  what `fetch` raises, at once; Corrupt or DiskFull for the last range that was not healed.
        """
        failure: StoreError | None = None
        async with self._healing:
            for damaged in self._log.damaged:
                if not self._is_open:
                    break
                try:
                    await self._healer.heal(damaged, fetch)
                except (Corrupt, DiskFull) as error:
                    if damaged in self._log.damaged:  # else it left the log meanwhile, or grew
                        failure = error
                except OSError as error:
                    self._writers.flusher.fail(error)
                    raise FlushFailed(f"fsync failed, the store must be recovered: {error}") from error
        if not self._log.damaged:
            self._admission.unblock(DAMAGED)
        elif failure is not None:
            raise failure
        return len(self._log.damaged)

    async def scrub(self, log_offset: int, end: int) -> None:
        """Re-reads the log at once, from the record that contains `log_offset` up to `end`."""
        await self.sync()  # only flushed bytes are re-read
        await self._writers.scrubber.scan_range(log_offset, end)

    def _start_entry_repair(self, queue: ConsumeQueue, queue_offset: int) -> bool:
        """Starts a search for the record of a wrong queue entry, in the part of the log where it must be.

        Returns True if readers should wait before the entry, False if an earlier search failed or none can
        run.
        """
        assert queue.min_offset <= queue_offset < queue.max_offset, (queue, queue_offset)
        is_known_lost = (queue.key, queue_offset) in self._lost_entries or not self._has_writers
        if is_known_lost or len(self._lost_entries) >= LOST_ENTRIES_MAX:
            return False
        if not self._is_repairing:
            self._is_repairing = True
            self._tasks.start("repair_entry", self._repair_entry(queue, queue_offset))
        return True

    async def _repair_entry(self, queue: ConsumeQueue, queue_offset: int) -> None:
        assert self._is_repairing, "one at a time"
        begin, end = self._log.begin, self.dispatched.value  # a filler names offset 0
        before, after = queue.entry(queue_offset - 1), queue.entry(queue_offset + 1)
        if before is not None and begin <= before[0] < end:
            begin = before[0]
        if after is not None and begin < after[0] < end:
            end = after[0]
        try:
            await self.scrub(begin, end)
            if not self._reader.names_record(queue, queue_offset):
                self._lost_entries.add((queue.key, queue_offset))
                assert len(self._lost_entries) <= LOST_ENTRIES_MAX, len(self._lost_entries)
                extra = {"topic": queue.key[0], "queue_id": queue.key[1], "queue_offset": queue_offset}
                log.error(events.QUEUE_ENTRY_LOST, extra=extra)
        except (StoreError, RequestRejected) as error:
            if isinstance(error, StoreError) and error.fatal:
                raise
        finally:
            self._is_repairing = False
        self._dispatcher.notify_readable({queue: None})

    @property
    def refusal(self) -> str:
        """The reason for refusing messages now; empty if accepted, and on a slave, which accepts none by
        design.
        """
        if self.role is BrokerRole.SLAVE:
            return ""
        refusal = self._admission.refusal
        if refusal is not None:
            return refusal().remark
        if self._log.log.segments:
            return ""
        return no_room_for_first_file(self.options, self._disk, self._paths.commit_log)

    @property
    def damaged_ranges(self) -> Sequence[DamagedRange]:
        """The known damaged ranges of the log, ascending."""
        return tuple(self._log.damaged)

    def read_record(self, log_offset: int) -> memoryview | None:
        """Returns the whole record that begins at `log_offset`; None without one.

        Accepted records in the transient pool are included: the sender may query its message, or end its
        transaction, before the commit.
        """
        if self._pool is not None and log_offset >= self._log.end:
            return self._pool.record(log_offset)
        return self._log.record(log_offset)

    def queue_min(self, topic: str, queue_id: int) -> int:
        """Returns the first queue offset whose record is kept; 0 for a queue without messages."""
        queue = self._queues.table.get((topic, queue_id))
        return 0 if queue is None else queue.min_offset

    def queue_max(self, topic: str, queue_id: int) -> int:
        """Returns the queue offset after the last dispatched record."""
        queue = self._queues.table.get((topic, queue_id))
        return 0 if queue is None else queue.max_offset

    def queue_next(self, topic: str, queue_id: int) -> int:
        """Returns the queue offset of the next record: at least `queue_max`."""
        queue = self._queues.table.get((topic, queue_id))
        assert queue is None or queue.next_offset >= queue.max_offset, queue
        return 0 if queue is None else queue.next_offset

    def queue_run_start(self, topic: str, queue_id: int) -> int:
        """Returns the end of the queue at the last `begin_run`; 0 for a newer queue."""
        queue = self._queues.table.get((topic, queue_id))
        return 0 if queue is None else queue.run_start

    def begin_run(self) -> None:
        """Records each queue's current end as its start for this broker run, which now assigns queue
        offsets.
        """
        self._queues.begin_run()

    def has_record(
        self, topic: str, queue_id: int, queue_offset: int, log_offset: int, stored_at_ms: int
    ) -> bool | None:
        """Returns True if the record at a queue offset has this log offset and store time.

        None if no record can be read at that queue offset: not yet, not any more, or it is damaged.
        """
        return self._reader.has_record(topic, queue_id, queue_offset, log_offset, stored_at_ms)

    def find_record(self, topic: str, queue_id: int, queue_offset: int) -> tuple[int, int] | None:
        """Returns the log offset and store time of the record at a queue offset; None if none can be read
        there.
        """
        return self._reader.find_record(topic, queue_id, queue_offset)

    def is_far(self, topic: str, queue_id: int, offset: int) -> bool:
        """Returns True if the record at a queue offset is probably on disk only; False without a record."""
        return self._reader.is_far(topic, queue_id, offset)

    def set_read_ahead(self, is_enabled: bool) -> None:
        """Lets the kernel read ahead in the log's files or forbids it; takes effect at once, until the store
        closes.
        """
        self._log.log.advise(Advice.NORMAL if is_enabled else Advice.RANDOM)

    def queue_entries(
        self, topic: str, queue_id: int, offset: int, count_max: int
    ) -> list[tuple[int, int, int]]:
        """Returns (log_offset, size, tag_hash) of each message from `offset` on, as in the ConsumeQueue."""
        queue = self._queues.table.get((topic, queue_id))
        found: list[tuple[int, int, int]] = []
        while queue is not None and len(found) < count_max:
            raw = queue.entries(offset + len(found), count_max - len(found))
            if not raw:
                break
            found += UNIT.iter_unpack(raw)
        assert len(found) <= max(0, count_max), (len(found), count_max)
        return found

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int, *, upper: bool = False) -> int:
        """Returns the first offset stored at `time_ms` or later; `upper`: the last one stored then
        or before.
        """
        return self._reader.offset_by_time(topic, queue_id, time_ms, upper=upper)

    def stored_at(self, topic: str, queue_id: int, offset: int) -> int:
        """Returns the store time of the record at a queue offset, in milliseconds; -1 without one."""
        return self._reader.stored_at(topic, queue_id, offset)

    @property
    def newest_stored_at_ms(self) -> int:
        """The store time of the newest record in the queues; 0 without one."""
        return self._dispatcher.stored_at_ms

    def earliest_stored_at(self, topic: str, queue_id: int) -> int:
        """Returns the store time of the queue's first record, in milliseconds; -1 without one."""
        return self._reader.earliest_stored_at(topic, queue_id)

    @property
    def has_key_index(self) -> bool:
        """True if every dispatched record can be found by its keys."""
        return self._indexes is not None and not self._indexes.is_broken

    def query_keys(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> list[int]:
        """Returns log offsets of records with this key, ascending, hash collisions included (spec
        store 8).
        """
        if self._indexes is None:
            return []
        found = self._indexes.query(topic, key, count_max, begin_ms, end_ms)
        assert len(found) <= max(0, count_max), (len(found), count_max)
        return [log_offset for log_offset in found if log_offset >= self._log.begin]

    def query_tags(
        self, topic: str, tags: str, count_max: int, begin_ms: int, end_ms: int
    ) -> tuple[list[int], bool]:
        """Returns log offsets of a topic's newest records with this tag hash, ascending.

        The second value is True if the whole time range was searched: see `TAG_SCAN_COUNT_MAX`.
        """
        wanted = min(count_max, self.options.query_count_max)
        return self._reader.find_tagged(topic, tag_hash(tags), wanted, begin_ms, end_ms)

    @property
    def dispatched_count(self) -> int:
        """The number of records that became readable since the store was opened, recovered ones included."""
        return self._dispatcher.dispatched_count

    def on_dispatch(self, callback: DispatchListener) -> None:
        """Calls `callback({(topic, queue_id): max_offset})` after each batch that became readable."""
        self._dispatcher.on_dispatch(callback)

    async def drop_topics(self, topics: Collection[str]) -> None:
        """Deletes the queues of these topics with everything sent so far.

        No restart and no slave rebuilds the queues. The records stay in the log until they expire.

        Strategy: the deletion is on disk before a queue is changed. Messages sent meanwhile require another
                  write; under constant sends the last of them may reappear after a restart. A cancelled
                  caller still waits for the end, since two concurrent writes would remove each other's file.
        Raises:   OSError when it cannot be written: then nothing is dropped. ServiceNotAvailable if the store
                  is closed or fails: the deletion may then be in effect when the store is opened again.
        """
        self._require_working()
        await self._tasks.run_to_completion("drop_topics", self._drop_topics(topics))

    async def _drop_topics(self, topics: Collection[str]) -> None:
        self._being_deleted.update(topics)
        try:
            await self._record_deletion(topics)
        finally:
            self._being_deleted.difference_update(topics)
        for topic in topics:
            self._queues.drop_topic(topic)

    async def _record_deletion(self, topics: Collection[str]) -> None:
        for number in range(DELETION_ROUNDS_MAX):
            self._writers.appender.write_staged()
            before, end = self._queues.next_offsets(topics), self.accepted_log_offset
            ends = dict.fromkeys((topic for topic, _ in before), end)
            try:
                if ends:
                    await self._queues.deletions.record(ends, log_begin=self._log.begin)
            except OSError:
                if number == 0:
                    raise
                return
            self._require_working()
            if self._queues.next_offsets(topics) == before:
                return

    @property
    def deleted_topics(self) -> Mapping[str, int]:
        """Topic -> log offset: records of the topic below that offset are deleted."""
        return self._queues.deletions.ends

    @property
    def done_deletions(self) -> dict[str, int]:
        """The deletions to report to slaves; those still being written are left out.

        The topic's offsets still exist here during the write, and a slave that had dropped its own would copy
        them.
        """
        ends = self.deleted_topics
        return {topic: end for topic, end in ends.items() if topic not in self._being_deleted}

    def on_topic_deleted(self, callback: Callable[[str], None]) -> None:
        """Calls `callback(topic)` when copied records reveal a deleted and recreated topic of which no notice
        came.
        """
        self._queues.on_deleted = callback

    def begin_copy(self) -> None:
        """Prepares a slave to copy a master's bytes from the end of the log on.

        The new master may have a different history, so deletions reported beyond our log end are discarded.
        That happens if a shorter slave became master, or the master came back shorter. The master reports its
        own deletions again.
        """
        assert self.role is BrokerRole.SLAVE, self.role
        if self._queues.deletions.lower(self._log.end):
            self._tasks.start("save_deletions", self._save_deletions())

    async def _save_deletions(self) -> None:
        try:
            await self._queues.deletions.save()
        except OSError as error:  # the next round of the table flusher retries
            extra = {"path": str(self._paths.deletions), "reason": str(error)}
            log.warning(events.TABLE_SAVE_FAILED, extra=extra)

    async def apply_deletions(self, deleted: Mapping[str, int]) -> list[str]:
        """Applies the master's deletions on a slave; returns the topics that were not known as deleted.

        A cancelled caller still waits for the end, as in `drop_topics`.
        Raises:  OSError when it cannot be written, ServiceNotAvailable: then nothing is dropped.
        """
        self._require_working()
        assert self.role is BrokerRole.SLAVE, self.role
        known, begin = self.deleted_topics, self._log.begin
        new = {topic: end for topic, end in deleted.items() if end > max(begin, known.get(topic, 0))}
        if new:
            await self._tasks.run_to_completion("apply_deletions", self._apply_deletions(new, begin))
        return list(new)

    async def _apply_deletions(self, new: Mapping[str, int], log_begin: int) -> None:
        await self._queues.deletions.record(new, log_begin=log_begin)
        self._require_working()
        self._queues.drop_deleted()

    def _require_working(self) -> None:
        if not self._is_open or self._admission.is_blocked(_FAILED):
            raise ServiceNotAvailable("the store is closed or has failed")

    def clean(self, *, at_any_hour: bool = False) -> int:
        """Deletes expired log files now instead of in the next round; returns their number (spec store 19).

        Nothing is deleted while the end of the log is being cut.

        Units:   at_any_hour: also outside `deleteWhen`, for a request by an operator.
        """
        return self._writers.cleaner.clean(at_any_hour=at_any_hour)

    def cut_queues(self) -> None:
        """Deletes queue files whose records are all gone; queue offsets continue."""
        self._writers.cleaner.cut_tables()

    def queue_keys(self) -> Sequence[tuple[str, int]]:
        """Returns the (topic, queue_id) of every existing queue."""
        return tuple(self._queues.table)

    def facts(self) -> StoreFacts:
        """Returns the facts for metrics and health checks that watermarks and recorder do not hold."""
        refusal = self._admission.refusal
        lines = self._replies.lines
        pool = None if self.role is BrokerRole.SLAVE else self._pool
        assert 0 <= lines.ack_count <= len(lines), (lines.ack_count, len(lines))
        assert pool is None or pool.uncommitted_bytes >= 0, (pool.end, self._log.end)
        assert pool is None or pool.free_count >= 0, pool.free_count
        return StoreFacts(
            is_failed=self._admission.is_blocked(_FAILED),
            refusal=None if refusal is None else refusal().remark,
            log_file_count=len(self._log.log.segments),
            queue_count=len(self._queues),
            sends_waiting_for_flush=len(lines) - lines.ack_count,
            sends_waiting_for_acks=lines.ack_count,
            has_pool=pool is not None,
            pool_free_count=0 if pool is None else pool.free_count,
            uncommitted_bytes=0 if pool is None else pool.uncommitted_bytes,
            damaged_range_count=len(self._log.damaged),
            damaged_bytes=self._log.damaged.size_bytes,
        )


def _plan_warmth(options: StoreOptions) -> Warmth | None:
    if not options.warm_segments:
        return None
    is_sync = options.flush_mode is FlushMode.SYNC_FLUSH
    return Warmth(sync_bytes=options.warm_flush_pages * PAGE_BYTES if is_sync else None)
