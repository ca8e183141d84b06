"""An open store directory: builds the parts of the store in order, starts and stops them.

Callers use the parts, which are public attributes: they append with `store.appender`, read with
`store.reader`, follow new messages with `store.dispatcher`, delete topics with `store.deletions`, and reach
the terms of an elected group with `store.terms`. `MessageStore` itself does only work that concerns several
parts: opening, closing, changes of the role, failures. All parts share one `StoreCore`.

Invariants: min <= dispatched <= confirmed <= appended, flushed <= appended.
Source:     spec store 12 for the order of start and stop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from tandemmq.errors import Corrupt, FlushFailed, LogMissing, RequestRejected, ServiceNotAvailable, StoreError
from tandemmq.protocol.record_scan import ParsedRecords
from tandemmq.runtime.ports import Advice, Clock, Disk
from tandemmq.runtime.tasks import OnFatal
from tandemmq.store.appender import Appender
from tandemmq.store.checkpoint import CheckpointTimes
from tandemmq.store.confirm import OnDone
from tandemmq.store.consume_queue import UNIT
from tandemmq.store.core import StoreCore
from tandemmq.store.damage import DAMAGED, DamagedRange
from tandemmq.store.dispatcher import Dispatcher
from tandemmq.store.failed_writes import FailedWrites
from tandemmq.store.flusher import Flusher
from tandemmq.store.heal import Healer
from tandemmq.store.options import BrokerRole, FlushMode, StoreOptions
from tandemmq.store.outcomes import NO_BOUNDS, NOT_STORED, PutStatus, QueueBounds
from tandemmq.store.reader import Reader
from tandemmq.store.record_block import Unit
from tandemmq.store.recorder import StoreFacts
from tandemmq.store.recovery import Recovered, Recovery
from tandemmq.store.replica_log import ReplicaLog
from tandemmq.store.replies import Replies, Sends
from tandemmq.store.retention import Cleaner, no_room_for_first_file, require_room
from tandemmq.store.scrub import EntryRepair, Scrubber
from tandemmq.store.table_flusher import TableFlusher
from tandemmq.store.term_log import TermLog
from tandemmq.store.topic_deletions import TopicDeletions
from tandemmq.store.transient_pool import Committer, TransientPool
from tandemmq.telemetry import events
from tandemmq.units import Buffer

log = logging.getLogger(__name__)

_ROLE = "role"
_UNVERIFIED = "unverified"
_REPLICA_SHORTAGE = "few copies"


class MessageStore:
    """An open store directory. All calls come from the loop's thread.

    `appender` is for a master, `append_raw` for a slave. `assigned_role`: the role that the store has, or
    gets once its log is verified.
    """

    def __init__(self, core: StoreCore, *, epoch_file: Path | None, on_fatal: OnFatal | None) -> None:
        options = core.options
        # Uncommitted bytes of the pool would reappear after a cut.
        assert not (core.has_terms and options.uses_transient_pool), "a log that may be cut has no pool"
        self._core = core
        self._on_fatal = on_fatal
        self.options = options
        self.has_terms = core.has_terms
        self.role = self.assigned_role = options.role
        self.appended, self.flushed = core.appended, core.flushed
        self.confirmed, self.dispatched = core.confirmed, core.dispatched
        self.recorder = core.recorder
        self.log, self.queues, self.indexes = core.log, core.queues, core.indexes
        self.unverified_reason = ""
        """The reason why the log may lack acknowledged messages; empty if it cannot. Without controllers
        only; with controllers see `TermLog.may_lack_tail`.

        Until `accept_log`, such a store has the slave role, so that the missing bytes can be copied verbatim.
        """
        self.on_damaged: Callable[[], None] = lambda: None
        """Called when damage is found while the store is open. Set by the owner, which may fetch the damaged
        bytes from another copy of the log.
        """
        self._ahead = core.rounds("make_segment")
        self._pool = TransientPool(options, core.log) if options.uses_transient_pool else None
        self.dispatcher = Dispatcher(core)
        self.replies = Replies(core)
        self.flusher = Flusher(
            core, self._newest_stored_at, on_waiting=lambda error: self.failed_writes.refuse(error)
        )
        self.failed_writes = FailedWrites(core, on_refused=self._on_refused, on_failed=self.flusher.fail)
        self.appender = Appender(
            core, failed=self.failed_writes, on_written=self._on_written, on_refused=self._on_refused
        )
        self.committer = (
            None if self._pool is None else Committer(core, self._pool, lambda: self.appender.written_at_ms)
        )
        self.table_flusher = TableFlusher(core, self.dispatcher, self.flusher)
        self.cleaner = Cleaner(
            core, tables_end=lambda: self.table_flusher.tables_end, is_held=lambda: self.terms.is_cutting
        )
        self.scrubber = Scrubber(
            core, on_damaged=lambda: self.on_damaged(), repair_entries=self.dispatcher.repair_entries
        )
        self.healer = Healer(core, self.dispatcher, self.flusher, self.table_flusher)
        self.reader = Reader(core, EntryRepair(core, self.dispatcher, self.scrub).start)
        self.terms = TermLog(
            core,
            epoch_file,
            dispatcher=self.dispatcher,
            reader=self.reader,
            replies=self.replies,
            flusher=self.flusher,
            table_flusher=self.table_flusher,
            quiesce=self._quiesce,
        )
        self.deletions = TopicDeletions(
            core, self.appender, self.table_flusher, lambda: self.accepted_log_offset
        )
        self._replica_log = ReplicaLog(core)

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
        core = StoreCore.make(
            options, disk=disk, clock=clock, fail=lambda error: store._fail(error), has_terms=has_terms
        )
        store = cls(core, epoch_file=epoch_file, on_fatal=on_fatal)
        try:
            await store._start()
        except BaseException as error:
            core.files.close()
            core.marks.release()
            if isinstance(error, OSError):
                raise StoreError(f"the store at {options.root} cannot be opened: {error}") from error
            raise
        return store

    # Start and stop.

    async def _start(self) -> None:
        core = self._core
        core.marks.acquire()
        has_abort, same_boot = core.marks.has_abort, core.marks.same_boot
        may_lack_tail = self._check_tail(has_abort=has_abort)
        core.marks.ensure_abort()
        await self._load(has_abort=has_abort, may_lack_tail=may_lack_tail)
        try:
            recovered = await Recovery(core, self.dispatcher).run(has_abort=has_abort, same_boot=same_boot)
        except (LogMissing, Corrupt):
            if not has_abort:
                core.marks.remove_abort()  # the last run still ended cleanly
            raise
        if core.indexes is not None:
            core.indexes.cut(core.log.end)
        if self.role is not BrokerRole.SLAVE or not core.log.log.segments:
            core.queues.deletions.cut(core.log.end)
        core.files.release_pages()  # recovery read whole files
        self._restore(recovered)
        await self.table_flusher.begin(recovered.tables_end)
        self.terms.end_load()
        core.marks.write_abort()
        if core.log.damaged:
            core.admission.block(DAMAGED, self._damage_remark())
        self._connect()
        log.info(
            events.STORE_OPENED,
            extra={
                "path": str(core.paths.root),
                "case": recovered.case.name,
                "log_begin": core.log.begin,
                "log_end": core.log.end,
                "queue_count": len(core.queues),
                "zeroed_bytes": recovered.lost_bytes,
                "damaged_ranges": len(core.log.damaged),
            },
        )

    def _check_tail(self, *, has_abort: bool) -> bool:
        """Determines whether the log may lack acknowledged messages: a power cut loses unsynced bytes, which
        other replicas may still hold.

        Returns True if the broker must report that to its controllers, which decide its role. A broker
        without controllers waits for its slaves (`unverified_reason`).
        """
        options, marks = self.options, self._core.marks
        is_lost = has_abort and not marks.same_boot and options.flush_mode is FlushMode.ASYNC_FLUSH
        if self.has_terms and not options.accept_log:
            if is_lost and not marks.tail_mark:
                marks.write_tail_mark(
                    "the last run did not end in order and the machine has been restarted since: acknowledged"
                    " messages that were not flushed (ASYNC_FLUSH) may be at other members only"
                )
            return bool(marks.tail_mark)
        if options.role is BrokerRole.SLAVE or options.accept_log:
            marks.remove_tail_mark()  # a slave is compared with its master
            return False
        if is_lost and options.slave_ack_count(options.role) and not marks.tail_mark:
            marks.write_tail_mark(
                "the last run did not end in order and the machine has been restarted since: acknowledged"
                " messages that were not flushed (ASYNC_FLUSH) may be at the slaves only"
            )
        self.unverified_reason = marks.tail_mark
        if self.unverified_reason:
            self.role = BrokerRole.SLAVE
            self._core.admission.block(_UNVERIFIED, self.unverified_reason)
        return False

    async def _load(self, *, has_abort: bool, may_lack_tail: bool) -> None:
        """Loads what the files hold, before recovery."""
        core = self._core
        core.log.log.load()
        if not core.log.log.segments:
            require_room(self.options, core.disk, core.paths.commit_log)
        core.checkpoint.load()
        await self.terms.load(may_lack_tail=may_lack_tail)
        core.queues.deletions.load()
        core.queues.load(stale_bytes_max=self.options.consume_queue_file_bytes if has_abort else 4096)
        if core.indexes is not None:
            core.indexes.load(has_abort=has_abort)

    def _damage_remark(self) -> str:
        """Returns the message for refused senders."""
        damaged = self.damaged_ranges
        assert damaged, "there is damage"
        return (
            f"bytes {damaged[0].begin} to {damaged[0].end} of the log are damaged ({len(damaged)} ranges in"
            " all): all other messages are served, and sends are accepted once the log is healed or repaired"
        )

    def _restore(self, recovered: Recovered) -> None:
        """Sets the parts to the state that recovery found and synced."""
        core, end, stored_at_ms = self._core, self.log.end, recovered.stored_at_ms
        confirmed = max(0, recovered.last_log_offset)
        if self.has_terms:
            self.terms.restore()
            confirmed = self.terms.confirm_offset
        assert recovered.last_log_offset < end or not end, recovered
        assert 0 <= confirmed <= end, (confirmed, end)
        for mark in core.watermarks:
            mark.raise_to(end)
        self.dispatcher.stored_at_ms = self.flusher.flushed_stored_at_ms = stored_at_ms
        if self._pool is not None:
            self._pool.restart()
        self.appender.restart(self._pool or self.log, stored_at_ms)
        core.checkpoint.replace(
            CheckpointTimes(
                log_stored_at_ms=stored_at_ms,
                index_stored_at_ms=min(core.checkpoint.times.index_stored_at_ms, stored_at_ms),
                confirmed_log_offset=confirmed,
                durable_log_offset=end,
            )
        )

    def _connect(self) -> None:
        """Connects each watermark to the watermark that it follows, sets the role, and starts the timers."""
        is_sync = self.options.flush_mode is FlushMode.SYNC_FLUSH
        source = self.flushed if is_sync else self.appended
        source.follow(self.confirmed.raise_to)
        # With terms, `TermLog` may dispatch less than is confirmed.
        dispatch = (lambda _end: self.terms.dispatch()) if self.has_terms else self.dispatcher.advance
        self.confirmed.follow(dispatch)
        self._apply_role(self.role)
        self.flusher.start()
        self.table_flusher.start()
        self.cleaner.start()
        self.scrubber.start()

    async def close(self) -> None:
        """Writes, flushes and dispatches everything accepted, and leaves the directory as after a clean stop.

        Sends that still wait for slaves end with UNKNOWN_ERROR. After a failure nothing is written and
        `abort` stays, so that the next start recovers.
        """
        core = self._core
        if core.admission.is_closed:
            return
        self.appender.write_staged()
        core.admission.close()
        self.cleaner.stop()
        await self.scrubber.stop()
        await self.flusher.stop()
        await self.table_flusher.stop()
        await self._ahead.idle()
        is_clean = False
        try:
            if self.committer is None or await self.committer.stop():
                is_clean = await self._settle()
        except OSError as error:
            self.flusher.fail(error)
        finally:
            self.replies.fail(PutStatus.UNKNOWN_ERROR)
            for mark in core.watermarks:
                mark.close()
            await core.tasks.close()
            if core.indexes is not None:
                core.indexes.close()
            core.files.close()
            if self._pool is not None:
                self._pool.close()
            if is_clean:
                try:
                    core.marks.remove_abort()
                except OSError:  # the next start recovers as after a crash, and finds nothing to repair
                    is_clean = False
            core.marks.release()
            log.info(events.STORE_CLOSED, extra={"path": str(core.paths.root), "is_clean": is_clean})

    async def _settle(self) -> bool:
        """Puts everything on disk. Returns True if nothing is missing, so that `abort` may be removed (spec
        store 21.3).
        """
        core = self._core
        if not await self.failed_writes.settle() or core.admission.has_failed:
            return False
        await self.flusher.flush()
        self.dispatcher.advance(self.confirmed.value)
        if self.flushed.value < self.appended.value or core.admission.has_failed:
            return False
        is_complete = await self.table_flusher.flush(is_thorough=True)
        assert core.log.end == self.appended.value, (core.log.end, self.appended.value)
        self._assert_marks()
        core.log.drop_unused_segments()
        dispatched = self.dispatched.value
        assert core.queues.end_log_offset <= dispatched, (core.queues.end_log_offset, dispatched)
        # A slave may hold a partial record at the end; it cannot be dispatched, and the next start cuts it.
        is_complete = is_complete and dispatched == self.appended.value
        if is_complete:
            assert self.flushed.value == core.log.end, (self.flushed.value, core.log.end)
            times = msgspec.structs.replace(core.checkpoint.times, queues_digest=core.queues.digest())
            core.checkpoint.replace(times)
            await core.disk.offload(core.checkpoint.write)
        return is_complete

    def _assert_marks(self) -> None:
        """Asserts the invariants of the watermarks; called after a change of role and at the end, where the
        log may have been shortened.
        """
        appended, end, begin = self.appended.value, self.log.end, self.log.begin
        assert begin <= end, (begin, end)
        assert appended <= end, (appended, end)
        for mark in self._core.watermarks:
            assert mark.value <= appended, (mark.name, mark.value, appended)
        confirmed = self.terms.confirm_offset
        assert confirmed <= end or not self.has_terms, (confirmed, end)
        damage = self.damaged_ranges
        assert not damage or damage[0].begin >= begin, (damage[0], begin)
        # A log is unverified in one of two ways, depending on how its master is chosen.
        assert not self.unverified_reason or not self.has_terms, self.unverified_reason
        assert not self.terms.may_lack_tail or self.has_terms

    def _fail(self, error: BaseException) -> None:
        """Fail-stop: writes nothing more, answers every waiting send, rejects further ones, calls `on_fatal`.

        The only write is the mark that tells the next start whether to trust the page cache.
        """
        core = self._core
        if core.admission.has_failed:
            return
        core.admission.fail()
        if isinstance(error, FlushFailed):
            with suppress(OSError):
                core.marks.write_abort(is_readable=False)
        self.failed_writes.halt()
        for rounds in core.all_rounds:
            rounds.halt()
        if core.indexes is not None:
            core.indexes.halt()
        self.replies.fail(PutStatus.UNKNOWN_ERROR)
        if self._on_fatal is not None:
            self._on_fatal(error)

    # The role.

    def become(self, role: BrokerRole) -> None:
        """Makes the store a master or a slave; does nothing if it has the role.

        A slave that becomes master drops a partial record at its end. A master that becomes slave first
        commits the bytes in its pool.

        Raises:  OSError when the disk accepts no writes; the role is unchanged then.
        """
        if role is not self.role:
            self._apply_role(role)
        self.assigned_role = role

    def _apply_role(self, role: BrokerRole) -> None:
        assert not self.terms.is_cutting
        is_promoted = self.role is BrokerRole.SLAVE and role is not BrokerRole.SLAVE
        if is_promoted:
            self._end_slave()
        if self.role is not BrokerRole.SLAVE and role is BrokerRole.SLAVE:
            self.appender.write_staged()
            if not self.failed_writes.zero():
                raise OSError("bytes of a failed write remain after the end of the log")
            if self.committer is not None:
                self.committer.commit_now()
            appended, accepted = self.appended.value, self.accepted_log_offset
            assert appended == accepted == self.log.end, (appended, self.log.end)
        self.role = self.reader.role = role
        self.replies.set_role(role)
        if self.has_terms:
            self.terms.dispatch()  # its limit depends on the role
        if role is BrokerRole.SLAVE:
            self._core.admission.block(_ROLE, "the broker is a slave; it accepts no messages")
        else:
            self._core.admission.unblock(_ROLE)
        if is_promoted:
            if self._pool is not None:
                self._pool.restart()
            self.appender.restart(self._pool or self.log, self.dispatcher.stored_at_ms)
        self._assert_marks()
        options = self.options
        is_set_known = self.replies.acks.required is not None
        needs_no_acks = options.in_sync_replicas <= 1 and not options.sync_master_compat4 and not is_set_known
        if role is BrokerRole.SYNC_MASTER and needs_no_acks:
            log.warning(events.SYNC_MASTER_ALONE, extra={"in_sync_replicas": options.in_sync_replicas})

    def _end_slave(self) -> None:
        """Drops a partial record at the end of a copied log, and dispatches all others."""
        end = self._replica_log.cut_partial(self.dispatched.value)
        for mark in (self.flushed, self.confirmed, self.appended):
            if mark.value > end:
                mark.truncate_to(end)
        self.terms.lower_confirm_offset(end)
        self.dispatcher.cut(end)
        # New queue offsets start after every record in the log, flushed or not.
        self.dispatcher.advance(end)
        self.queues.deletions.cut(end)

    def detach(self) -> None:
        """Removes the listeners of the broker over this store, and ends waiting sends unconfirmed, because
        another broker is built over the open store.
        """
        self.replies.end_role()
        self.dispatcher.forget_listeners()
        self.queues.on_deleted = lambda _topic: None
        self.on_damaged = lambda: None

    def accept_log(self) -> None:
        """Accepts the log as it is: the store gets the role that it was opened with.

        Raises:  OSError when the disk accepts no writes.
        """
        if not self.unverified_reason:
            return
        assert self.role is BrokerRole.SLAVE, self.role
        self.become(self.assigned_role)
        self._core.marks.remove_tail_mark()
        self.unverified_reason = ""
        self._core.admission.unblock(_UNVERIFIED)

    def set_replica_shortage(self, remark: str) -> None:
        """Refuses every send with this remark and SYSTEM_ERROR, because the set is too small (spec
        replication 5.1). An empty remark accepts sends again.
        """
        if remark:
            self._core.admission.block(_REPLICA_SHORTAGE, remark, RequestRejected)
        else:
            self._core.admission.unblock(_REPLICA_SHORTAGE)

    @property
    def refusal(self) -> str:
        """The reason why sends are refused now; empty if sends are accepted. Also empty on a slave, where
        refusing sends is not a fault.
        """
        if self.role is BrokerRole.SLAVE:
            return ""
        refusal = self._core.admission.refusal
        if refusal is not None:
            return refusal().remark
        if self.log.log.segments:
            return ""
        return no_room_for_first_file(self.options, self._core.disk, self._core.paths.commit_log)

    # Writing.

    def _on_written(self, units: list[Unit], sends: Sends, end: int) -> None:
        self.dispatcher.expect(units, end)
        try:
            if self.committer is None:
                assert self.log.end == end, (self.log.end, end)
                self.appended.raise_to(end)
            else:
                self.committer.wake()
        finally:
            # Even if a follower fails, the senders are answered.
            self.replies.written(sends)
        if self.log.needs_segment_ahead():
            self._ahead.start(self.log.make_segment_ahead)

    def _on_refused(self, sends: Sends, status: PutStatus) -> None:
        assert status in NOT_STORED, status
        self.replies.end_all(sends, status)

    def _newest_stored_at(self) -> int:
        """Returns the store time of the newest record below `appended`."""
        committer = self.committer
        written = self.appender.written_at_ms if committer is None else committer.committed_stored_at_ms
        return max(written, self.dispatcher.stored_at_ms)

    def confirm(self, log_offset: int, on_done: OnDone) -> None:
        """Calls `on_done(status)` once everything appended so far is as safe as an append that waits.

        The outcomes and time limits are those of an append. `log_offset`: the message to confirm; a slave
        whose copy begins after it does not count.
        """
        assert 0 <= log_offset < self.accepted_log_offset, (log_offset, self.accepted_log_offset)
        self.replies.confirm(log_offset, self.accepted_log_offset, on_done)

    def append_raw(self, log_offset: int, data: Buffer, parsed: ParsedRecords = ()) -> None:
        """Writes a master's bytes at `log_offset`, which must be the end of the log.

        An empty log may also start at any later multiple of the file size. A chunk may end in the middle of a
        record.
        `parsed`: the fields of its first records or of all, so that dispatching need not parse them again.
        Raises:  LogDiverged, DiskFull, ServiceNotAvailable; then the log is unchanged.
        """
        self._core.admission.require_open()
        if self.role is not BrokerRole.SLAVE:
            raise ServiceNotAvailable("the broker is not a slave")
        if self.terms.is_cutting:
            raise ServiceNotAvailable("the end of the log is being cut")
        self.dispatcher.parsed = log_offset, data, parsed
        try:
            self._replica_log.append(log_offset, data)
        finally:
            self.dispatcher.parsed = None
        assert self.appended.value == self.log.end, (self.appended.value, self.log.end)

    async def sync(self) -> None:
        """Returns when everything appended so far is on disk, or the store has failed because of an fsync.

        A cancelled caller still waits for the end. The error of an abandoned fsync would go unnoticed, and
        the next fsync would succeed with nothing to write.
        """
        if self._core.tasks.is_closed:
            return  # the store is closed, or one of its tasks has failed
        end, cut_count = self.appended.value, self.appended.cut_count
        await self._core.tasks.run_to_completion("sync", self.flusher.flush())
        is_excused = self.appended.cut_count != cut_count or self._core.admission.has_failed
        assert self.flushed.value >= end or is_excused, (self.flushed.value, end)

    async def _quiesce(self) -> None:
        """Puts everything on disk before the end of the log is cut."""
        await self.failed_writes.settle()  # its files may be gone after the cut
        await self._ahead.idle()  # the file it continues may be gone after the cut
        await self.sync()
        await self.table_flusher.flush_soon()

    async def scrub(self, log_offset: int, end: int) -> None:
        """Re-reads the log at once, from the record that contains `log_offset` up to `end`."""
        await self.sync()  # only flushed bytes are re-read
        await self.scrubber.scan_range(log_offset, end)

    # Reading.

    @property
    def min_log_offset(self) -> int:
        """The begin of the log: retention has deleted the bytes before it."""
        return self.log.begin

    @property
    def max_log_offset(self) -> int:
        """The end of the written bytes."""
        return self.log.end

    @property
    def confirmed_log_offset(self) -> int:
        """The end of the bytes that may be read; the log's begin while the first bytes of a copy are not on
        disk yet.
        """
        return max(self.log.begin, self.confirmed.value)

    @property
    def accepted_log_offset(self) -> int:
        """The end of the accepted sends; beyond `appended` while bytes are in the transient pool."""
        if self._pool is None or self.role is BrokerRole.SLAVE:
            return self.log.end
        assert self._pool.end >= self.log.end, (self._pool.end, self.log.end)
        return self._pool.end

    @property
    def damaged_ranges(self) -> Sequence[DamagedRange]:
        """The known damaged ranges of the log, ascending."""
        return tuple(self.log.damaged)

    def read_record(self, log_offset: int) -> memoryview | None:
        """Returns the whole record that begins at `log_offset`; None without one.

        Accepted records in the transient pool are included: the sender may query its message, or end its
        transaction, before the commit.
        """
        if self._pool is not None and log_offset >= self.log.end:
            return self._pool.record(log_offset)
        return self.log.record(log_offset)

    def queue_bounds(self, topic: str, queue_id: int) -> QueueBounds:
        """Returns the offsets of a queue; all 0 for a queue without messages."""
        queue = self.queues.table.get((topic, queue_id))
        if queue is None:
            return NO_BOUNDS
        return QueueBounds(queue.min_offset, queue.max_offset, queue.next_offset, queue.run_start)

    def queue_min(self, topic: str, queue_id: int) -> int:
        """Returns the first queue offset whose record is kept; 0 for a queue without messages."""
        queue = self.queues.table.get((topic, queue_id))
        return 0 if queue is None else queue.min_offset

    def queue_max(self, topic: str, queue_id: int) -> int:
        """Returns the queue offset after the last dispatched record."""
        queue = self.queues.table.get((topic, queue_id))
        return 0 if queue is None else queue.max_offset

    def queue_next(self, topic: str, queue_id: int) -> int:
        """Returns the queue offset of the next record: at least `queue_max`."""
        queue = self.queues.table.get((topic, queue_id))
        assert queue is None or queue.next_offset >= queue.max_offset, queue
        return 0 if queue is None else queue.next_offset

    def queue_entries(
        self, topic: str, queue_id: int, offset: int, count_max: int
    ) -> list[tuple[int, int, int]]:
        """Returns (log_offset, size, tag_hash) of each message from `offset` on, as in the ConsumeQueue."""
        queue = self.queues.table.get((topic, queue_id))
        found: list[tuple[int, int, int]] = []
        while queue is not None and len(found) < count_max:
            raw = queue.entries(offset + len(found), count_max - len(found))
            if not raw:
                break
            found += UNIT.iter_unpack(raw)
        assert len(found) <= max(0, count_max), (len(found), count_max)
        return found

    @property
    def has_key_index(self) -> bool:
        """True if every dispatched record can be found by its keys."""
        return self.indexes is not None and not self.indexes.is_broken

    def query_keys(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> list[int]:
        """Returns log offsets of records with this key, ascending, hash collisions included (spec
        store 8).
        """
        if self.indexes is None:
            return []
        found = self.indexes.query(topic, key, count_max, begin_ms, end_ms)
        assert len(found) <= max(0, count_max), (len(found), count_max)
        return [log_offset for log_offset in found if log_offset >= self.log.begin]

    def set_read_ahead(self, is_enabled: bool) -> None:
        """Lets the kernel read ahead in the log's files or forbids it; takes effect at once, until the store
        closes.
        """
        self.log.log.advise(Advice.NORMAL if is_enabled else Advice.RANDOM)

    # Facts.

    def queue_keys(self) -> Sequence[tuple[str, int]]:
        """Returns the (topic, queue_id) of every existing queue."""
        return tuple(self.queues.table)

    def facts(self) -> StoreFacts:
        """Returns the facts for metrics and health checks that watermarks and recorder do not hold."""
        refusal = self._core.admission.refusal
        lines = self.replies.lines
        pool = None if self.role is BrokerRole.SLAVE else self._pool
        assert 0 <= lines.ack_count <= len(lines), (lines.ack_count, len(lines))
        assert pool is None or pool.uncommitted_bytes >= 0, (pool.end, self.log.end)
        assert pool is None or pool.free_count >= 0, pool.free_count
        return StoreFacts(
            is_failed=self._core.admission.has_failed,
            refusal=None if refusal is None else refusal().remark,
            log_file_count=len(self.log.log.segments),
            queue_count=len(self.queues),
            sends_waiting_for_flush=len(lines) - lines.ack_count,
            sends_waiting_for_acks=lines.ack_count,
            has_pool=pool is not None,
            pool_free_count=0 if pool is None else pool.free_count,
            uncommitted_bytes=0 if pool is None else pool.uncommitted_bytes,
            damaged_range_count=len(self.log.damaged),
            damaged_bytes=self.log.damaged.size_bytes,
        )
