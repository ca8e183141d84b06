"""One seed: a random history of a store with all kinds of disk faults, checked after every start."""

from __future__ import annotations

import asyncio
import gc
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from sim.checks import Faults, StoreCheck
from sim.dice import Dice
from sim.disk import SLOW_MS_MAX, Crash
from sim.disk import Faults as DiskFaults
from sim.image import Tear
from sim.ledger import Fate, Ledger, Send
from sim.machine import STEP_S, Hung, Machine, OpenStore, is_fail_stop
from sim.workload import (
    QUEUES_PER_TOPIC,
    STORE_HOST,
    TOPICS,
    make_batch,
    random_batch,
    random_options,
    random_record,
)
from tandemmq.errors import FlushFailed, RequestRejected
from tandemmq.protocol.record import NewRecord, decode_records
from tandemmq.store import FlushMode, GetStatus, MessageStore, PutStatus
from tandemmq.store.outcomes import Appended

STEPS_PER_RUN = 220
STARTS_MAX = 30
TEARS = (
    (1, Tear.NOTHING),
    (1, Tear.EVERYTHING),
    (2, Tear.IN_ORDER),
    (3, Tear.SECTORS),
    (2, Tear.PAGES),
)


@dataclass(slots=True)
class SeedResult:
    """The actions and findings of one seed; `trace` is the same for every run of the seed."""

    seed: int
    acknowledged_count: int = 0
    start_count: int = 0
    crash_count: int = 0
    faults: Faults = field(default_factory=Faults)
    trace: list[str] = field(default_factory=list)


def run_seed(seed: int, *, open_store: OpenStore = MessageStore.open) -> SeedResult:
    """Runs one seed; tests pass another `open_store` to plant a bug.

    The garbage collector is disabled meanwhile. Its timing depends on everything that the process did before,
    and it decides when a view of a deleted file is released, and hence what the store does with the file.
    """
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        return asyncio.run(CrashRun(seed, open_store).run())
    finally:
        if was_collecting:
            gc.enable()


class CrashRun:
    """The random operations of one seed."""

    def __init__(self, seed: int, open_store: OpenStore) -> None:
        self.result = SeedResult(seed)
        self.dice = Dice(seed)
        options = random_options(self.dice)
        self.options = options
        is_sync = options.flush_mode is FlushMode.SYNC_FLUSH
        self.ledger = Ledger(is_sync=is_sync, is_pooled=options.uses_transient_pool, store_host=STORE_HOST)
        self.machine = Machine(
            options, dice=self.dice, ledger=self.ledger, note=self._note, open_store=open_store
        )
        self._number = 0
        self._is_index_complete = True
        self._operations: tuple[tuple[int, Callable[[], Awaitable[None]]], ...] = (
            (40, self._append),
            (8, self._append_batch),
            (8, self._append_burst),
            (22, self._pass_a_moment),
            (6, self._pass_seconds),
            (1, self._pass_a_minute),
            (8, self._read),
            (2, self._query),
            (1, self._clean),
            (3, self._delete_topic),
            (3, self._restart),
            (2, self._kill),
            (2, self._cut_power),
            (4, self._arm_crash),
            (3, self._inject_write_faults),
            (2, self._inject_sync_faults),
            (4, self._clear_faults),
        )
        pool = f", pool of {options.transient_pool_size}" if options.uses_transient_pool else ""
        self._note(
            f"seed {seed}: {options.flush_mode.value}{pool}, "
            f"log files of {options.commit_log_file_bytes} bytes"
        )

    def _note(self, text: str) -> None:
        self.result.trace.append(text)

    @property
    def _store(self) -> MessageStore:
        store = self.machine.store
        assert store is not None
        return store

    async def run(self) -> SeedResult:
        """Runs all operations; a fault ends the run."""
        asyncio.get_running_loop().set_exception_handler(self._on_loop_error)
        try:
            await self._start()
            for _ in range(STEPS_PER_RUN):
                if self.result.faults:
                    break
                await self.dice.pick_weighted(self._operations)()
                await self._recover_from_crash()
            if not self.result.faults:
                await self._restart()
        except (Exception, Hung):  # noqa: BLE001 (any error of the store is a finding)
            self.result.faults.broken.append(traceback.format_exc().strip())
        await self.machine.end_tasks()
        self.result.acknowledged_count = self.ledger.acknowledged_count
        return self.result

    def _on_loop_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        if isinstance(error, Exception) and not self.machine.disk.is_lost:
            self.result.faults.broken.append("".join(traceback.format_exception(error)).strip())

    # Starts and stops.

    async def _start(self) -> None:
        """Opens a store, through as many crashes and faults as the dice decide, and checks it."""
        machine = self.machine
        for attempt in range(STARTS_MAX):
            if attempt < STARTS_MAX - 5:
                self._inject_start_faults()
            is_open = await machine.start()
            self.result.start_count += 1
            self._record_index_faults()
            self._record_failures()
            if is_open and not machine.disk.is_lost and not machine.disk.failed_paths and not machine.fatal:
                machine.disk.crash = None
                machine.disk.faults = DiskFaults(slow_sync_percent=self.dice.pick((0, 30, 80)))
                self._check()
                return
            if not machine.disk.is_lost:
                # Tables may wait in memory for a working disk; a check of files needs a new start.
                machine.lose(is_power_cut=self.dice.happens(30), tear=self.dice.pick_weighted(TEARS))
            await machine.replace()
        raise Hung("the store did not come up without faults")

    def _inject_start_faults(self) -> None:
        faults = self.machine.disk.faults
        if self.dice.happens(25):
            self._arm(self.dice.between(0, 30))
        if self.dice.happens(8):
            faults.write_error_percent = self.dice.pick((5, 50))
            faults.create_error_percent = self.dice.pick((0, 50))
        if self.dice.happens(5):
            faults.sync_errors = 1
            faults.is_dropping_pages = self.dice.happens(50)

    def _check(self) -> None:
        store = self._store
        self._note(f"  open: log {store.min_log_offset}..{store.max_log_offset}")
        check = StoreCheck(
            store=store,
            disk=self.machine.disk,
            ledger=self.ledger,
            faults=self.result.faults,
            after_power_cut=self.machine.after_power_cut,
            is_index_complete=self._is_index_complete,
        )
        kept = check.run()
        self.ledger.restart_at(kept, store.max_log_offset)
        self.machine.after_power_cut = False

    async def _recover_from_crash(self) -> None:
        """After each operation: replaces a lost machine, and checks a store that must have stopped."""
        machine = self.machine
        self._record_index_faults()
        self._record_failures()
        if not machine.disk.is_lost and machine.disk.sync_failed:
            await self._check_fail_stop()
            machine.lose(is_power_cut=self.dice.happens(50), tear=self.dice.pick_weighted(TEARS))
        if machine.disk.is_lost:
            self.result.crash_count += 1
            self._check_loss_window()
            await machine.replace()
            await self._start()

    def _check_loss_window(self) -> None:
        """Checks that with the pool a kill loses only the most recent sends, unless the disk refused
        writes.
        """
        disk, options = self.machine.disk, self.options
        oldest = self.ledger.oldest_unwritten()
        if oldest is None or disk.failed_paths or disk.sync_failed:
            return
        age_ms = (disk.lost_at_s - oldest.at_s) * 1000
        # A put may just miss one commit, and both may be slow.
        window_ms = options.commit_interval_ms + options.commit_thorough_interval_ms + 2 * SLOW_MS_MAX
        if age_ms > window_ms + STEP_S * 1000:
            self.result.faults.lost.append(f"{oldest}: in memory only for {age_ms:.0f} ms")

    def _record_index_faults(self) -> None:
        """Records write errors of the index: it then gives up, as RocketMQ's does, and may lack keys from
        then on.
        """
        if any(path.parent.name == "index" for path in self.machine.disk.failed_paths):
            self._is_index_complete = False

    def _record_failures(self) -> None:
        """Reports store failures other than a failed fsync."""
        if self.machine.disk.is_lost:
            return
        for error in self.machine.fatal:
            if not isinstance(error, FlushFailed):
                text = "".join(traceback.format_exception(error)).strip()
                self.result.faults.broken.append(text)

    async def _check_fail_stop(self) -> None:
        """Checks a store after a failed fsync: the owner was notified, no file is touched and no send is
        accepted.
        """
        machine = self.machine
        await machine.pass_time(0.1)
        if machine.disk.is_lost:
            return
        written = machine.disk.write_count
        if not is_fail_stop(machine.fatal):
            self.result.faults.broken.append(f"an fsync failed, the owner was notified of {machine.fatal}")
        acknowledged = self.ledger.acknowledged_count
        try:
            self._append_records([random_record(self.dice, self.options, self._next_number())])
        except RequestRejected:
            pass
        else:
            self.result.faults.broken.append("a send was accepted after a failed fsync")
        await machine.pass_time(3)
        if machine.disk.write_count != written and not machine.disk.is_lost:
            self.result.faults.broken.append(f"written after a failed fsync: {machine.disk.last_written}")
        if self.ledger.acknowledged_count != acknowledged:
            self.result.faults.broken.append("sends were acknowledged after a failed fsync")
        if self.dice.happens(30) and not machine.disk.is_lost and await machine.stop():
            self.result.faults.broken.append("a clean stop was claimed after a failed fsync")

    async def _restart(self) -> None:
        """Stops the store cleanly, sometimes cuts the power right after it, and starts it."""
        machine = self.machine
        self._note("restart")
        is_clean = await machine.stop()
        self._record_index_faults()
        disk = machine.disk
        if not disk.is_lost and not disk.sync_failed:
            if is_clean:
                self.ledger.record_clean_stop()
            elif not disk.failed_paths:
                self.result.faults.broken.append("a stop without faults was not clean")
            pending = [s for sends in self.ledger.by_offset.values() for s in sends if s.fate is Fate.PENDING]
            if pending:
                self.result.faults.broken.append(f"never answered: {pending[0]}")
        if not disk.is_lost and self.dice.happens(40):
            machine.lose(is_power_cut=True, tear=self.dice.pick_weighted(TEARS))
        await machine.replace()
        await self._start()

    async def _kill(self) -> None:
        self._note("kill")
        self.machine.lose(is_power_cut=False, tear=Tear.EVERYTHING)

    async def _cut_power(self) -> None:
        self._note("power cut")
        self.machine.lose(is_power_cut=True, tear=self.dice.pick_weighted(TEARS))

    async def _arm_crash(self) -> None:
        self._arm(self.dice.between(0, 60))

    def _arm(self, operations: int) -> None:
        is_power_cut = self.dice.happens(60)
        self.machine.disk.crash = Crash(operations, is_power_cut, self.dice.pick_weighted(TEARS))
        self._note(f"crash armed: in {operations} disk operations")

    # Faults.

    async def _inject_write_faults(self) -> None:
        faults = self.machine.disk.faults
        faults.write_error_percent = self.dice.pick((5, 30, 100))
        faults.create_error_percent = self.dice.pick((0, 30, 100))
        self._note(f"writes fail: {faults.write_error_percent} %, creations {faults.create_error_percent} %")

    async def _inject_sync_faults(self) -> None:
        faults = self.machine.disk.faults
        faults.sync_errors = 1
        faults.is_dropping_pages = self.dice.happens(50)
        self._note("the next fsync fails")

    async def _clear_faults(self) -> None:
        faults = self.machine.disk.faults
        faults.write_error_percent = faults.create_error_percent = 0
        self._note("writes work")

    # Operations.

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _append_records(self, records: list[NewRecord]) -> None:
        """Appends records. Raises RequestRejected."""
        sends: list[Send] = []

        def on_done(status: PutStatus) -> None:
            if not self.ledger.is_frozen:
                self._note(f"  #{sends[0].number} {status.value}")
            self.ledger.settle(sends, status)

        batch = make_batch(records) if len(records) > 1 else None
        if batch is None:
            placed = self._store.appender.append(records, on_done)
        else:
            placed = self._store.appender.append_batch(batch, on_done)
        sends += self.ledger.add(records, placed, self.machine.clock.monotonic())
        head = sends[0]
        self._note(
            f"append {len(sends)}: #{head.number} {records[0].topic}/{records[0].queue_id} "
            f"offset {placed.queue_offset} at {head.log_offset}..{sends[-1].end}"
        )

    def _try_append(self, records: list[NewRecord]) -> None:
        self._number += len(records)
        try:
            self._append_records(records)
        except RequestRejected as error:
            self._note(f"append refused: {error.remark}")

    async def _append(self) -> None:
        self._try_append([random_record(self.dice, self.options, self._next_number())])

    async def _append_batch(self) -> None:
        self._try_append(random_batch(self.dice, self.options, self._next_number()))

    async def _append_burst(self) -> None:
        count = self.dice.between(2, 12)
        if self.dice.happens(50):
            self._append_block(
                [random_record(self.dice, self.options, self._next_number()) for _ in range(count)]
            )
            return
        for _ in range(count):
            await self._append()

    def _append_block(self, records: list[NewRecord]) -> None:
        """Appends records of one topic together; one by one if they cannot form a block."""
        first = records[0]
        for record in records:
            record.topic, record.sys_flag, record.retry_count = first.topic, first.sys_flag, first.retry_count
            record.wait_stored = True
        sends: list[Send] = []

        def on_done(status: PutStatus) -> None:
            if not self.ledger.is_frozen:
                self._note(f"  block from #{sends[0].number} {status.value}")
            self.ledger.settle(sends, status)

        block = None if first.sys_flag else make_batch(records)
        placed = None if block is None else self._store.appender.append_block(block, on_done)
        if placed is None:
            for record in records:
                self._try_append([record])
            return
        now = self._store.appender.stored_at_ms
        for record, log_offset, queue_offset, size in zip(records, *placed, strict=True):
            appended = Appended(queue_offset, (log_offset,), log_offset + size, now)
            sends += self.ledger.add([record], appended, self.machine.clock.monotonic())
        self._note(
            f"append a block of {len(sends)}: #{sends[0].number} at {sends[0].log_offset}..{sends[-1].end}"
        )

    async def _pass_a_moment(self) -> None:
        await self.machine.pass_time(self.dice.between(0, 50) / 1000)

    async def _pass_seconds(self) -> None:
        await self.machine.pass_time(self.dice.between(1, 6))

    async def _pass_a_minute(self) -> None:
        self._note("a minute passes")
        await self.machine.pass_time(61)

    async def _read(self) -> None:
        """Reads at a random offset; a record that a reader saw under SYNC_FLUSH must stay on disk."""
        store = self._store
        topic, queue_id = self.dice.pick(TOPICS), self.dice.below(QUEUES_PER_TOPIC)
        low, high = store.queue_min(topic, queue_id), store.queue_max(topic, queue_id)
        offset = self.dice.between(low, high)
        result = store.reader.get(topic, queue_id, offset, count_max=self.dice.between(1, 32))
        if result.status is not GetStatus.FOUND:
            if offset < high:
                self.result.faults.divergent.append(f"{topic}/{queue_id} at {offset}: {result.status.value}")
            return
        for record in (record for view in result.slices for record in decode_records(view)):
            sends = self.ledger.candidates(record.log_offset)
            is_sent = any(send.record.body == record.body for send in sends)
            if not is_sent or record.queue_offset != offset:
                self.result.faults.phantom.append(f"{topic}/{queue_id} at {offset}: read {record.log_offset}")
            if self.ledger.is_sync:
                self.ledger.record_durable(record.log_offset + record.size)
            offset += 1

    async def _query(self) -> None:
        now_ms = self.machine.clock.now_ms()
        self._store.query_keys(self.dice.pick(TOPICS), f"order{self.dice.below(20)}", 32, 0, now_ms)

    async def _delete_topic(self) -> None:
        """Deletes a topic: all sends to it are gone from its queues; the next send creates it again."""
        topic = self.dice.pick(TOPICS)
        doomed = self.ledger.begin_deletion(topic)
        self._note(f"delete {topic}: {len(doomed)} messages")
        try:
            await self.machine.drive(self._store.deletions.drop([topic]))
        except RequestRejected as error:
            self._note(f"  refused: {error.remark}")
        else:
            self.ledger.end_deletion(doomed)

    async def _clean(self) -> None:
        """Deletes log files that are an hour old."""
        count = self._store.cleaner.clean()
        if count:
            self._note(f"cleaned {count} log files")
        self.ledger.record_cleaned(self._store.min_log_offset)
