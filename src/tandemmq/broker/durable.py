"""Deliveries that survive a kill: waiting messages are appended to their topics, and the progress of a
delivery is saved only once the appended copies are safe.

`Duty` is a background task of a master, such as a delivery or the checks of transactions; `DutyTasks` runs
all duties of one master. `Progress` holds the progress of a delivery back until its copies are safe.
Deliveries read and append through `DurableWriter` only; `restore` builds the message to append.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from tandemmq.errors import MessageIllegal, RequestRejected
from tandemmq.protocol import properties as names
from tandemmq.protocol.properties import PROPERTIES_BYTES_MAX, append_property
from tandemmq.protocol.record import NewRecord, Record, RecordError, decode_record, tag_hash_of
from tandemmq.protocol.topic_names import HALF_TOPIC
from tandemmq.runtime.ports import Clock
from tandemmq.runtime.tasks import TaskScope, TimedEvent
from tandemmq.store import MessageStore, PutStatus
from tandemmq.store.consume_queue import FILLER_SIZE
from tandemmq.store.outcomes import NOT_STORED, Appended, GetStatus
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

T = TypeVar("T")

PROGRESS_COUNT_MAX = 65_536
"""The most deliveries whose copies are not safe yet; then delivery pauses."""


def safe_end(*, flushed: int, appended: int, acknowledged: Iterable[int], gap_bytes_max: int) -> int:
    """Returns the log offset below which neither a power cut nor the loss of the master loses a message.

    A slave that is `gap_bytes_max` or more behind, or ahead of the log, does not count (spec replication
    4.8).
    """
    near = [offset for offset in acknowledged if 0 <= appended - offset < gap_bytes_max]
    return min([flushed, *near])


class Progress(Generic[T]):
    """The progress of a delivery, held back until the delivered copies are safe: values in log order, each
    with the log offset that must be safe.

    A copy in the page cache, or one that no slave holds, may still be lost. If the saved progress were beyond
    such a copy, the message would never be delivered again. So the progress waits until the log is flushed,
    and acknowledged by the in-sync slaves, up to the end of the copy. After a kill, messages without saved
    progress are delivered again.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, T]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[T]:
        """Yields the values whose copies are not safe yet, oldest first."""
        return (value for _, value in self._waiting)

    @property
    def is_full(self) -> bool:
        """True if no further message may be delivered until some deliveries are safe."""
        return len(self._waiting) >= PROGRESS_COUNT_MAX

    def add(self, log_end: int, value: T, *, replaces: bool = False) -> None:
        """Adds `value`, which is safe when the log is safe up to `log_end`.

        `replaces`: the value supersedes an earlier value with the same `log_end`.
        """
        assert not self._waiting or log_end >= self._waiting[-1][0], (log_end, self._waiting[-1][0])
        if replaces and self._waiting and self._waiting[-1][0] == log_end:
            self._waiting.pop()
        self._waiting.append((log_end, value))

    def settle(self, safe: int) -> list[T]:
        """Removes and returns the values that became safe, oldest first."""
        settled: list[T] = []
        while self._waiting and self._waiting[0][0] <= safe:
            settled.append(self._waiting.popleft()[1])
        return settled


class Duty(ABC):
    """A background task that a broker runs while it is a master.

    `run` is the task; after `stop` it returns once its current batch is done. `topic`: dispatched records of
    this topic wake the task (`on_dispatched`).
    """

    name: str
    topic: str | None = None

    def __init__(self, clock: Clock) -> None:
        self._wake = TimedEvent(clock)
        self._is_stopping = False

    def start(self) -> None:
        """Prepares the next run."""
        self._is_stopping = False

    @abstractmethod
    async def run(self) -> None:
        """Runs until `stop` is called."""

    def stop(self) -> None:
        """Makes `run` return once its current batch is done."""
        self._is_stopping = True
        self._wake.set()

    @abstractmethod
    def settle(self, safe: int) -> None:
        """Commits the progress whose copies are below the log offset `safe`."""

    def on_dispatched(self, queue_id: int, queue_end: int) -> None:
        """Wakes the task: a queue of its topic has readable records up to `queue_end`."""
        self._wake.set()


STOP_S_MAX = 5.0
"""The longest time that `DutyTasks.stop` waits. The store may keep rejecting an append, and the broker's stop
must not wait for that.
"""


class DutyTasks:
    """Runs the duties of a master. A slave runs none; it copies the saved progress and continues there when
    it is promoted.

    Call `start` on a master, `stop` while the store still accepts appends, and `settle` once the store is
    closed. Each may be called repeatedly. `make` returns the duties of one run; they continue at the saved
    progress. `stop` may be called while another `stop` runs, because a fenced master can be replaced just as
    it pauses its duties; the second call then returns after the first.
    """

    def __init__(
        self,
        store: MessageStore,
        make: Callable[[], Sequence[Duty]],
        on_fatal: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._store = store
        self._make = make
        self._on_fatal = on_fatal
        self.duties: Sequence[Duty] = ()
        self._by_topic: dict[str, Duty] = {}
        self._scope = TaskScope("duties")
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Lock()
        store.dispatcher.on_dispatch(self._on_dispatch)

    def start(self) -> None:
        """Starts the duties; does nothing if they run already."""
        if self._tasks:
            return
        on_fatal = self._on_fatal
        self._scope = TaskScope("duties", None if on_fatal is None else lambda _name, error: on_fatal(error))
        self.duties = self._make()
        self._by_topic = {duty.topic: duty for duty in self.duties if duty.topic is not None}
        for duty in self.duties:
            duty.start()
            self._tasks.append(self._scope.start(duty.name, duty.run()))
        log.info(
            events.DELIVERY_STARTED, extra={"has_timers": any(duty.name == "timers" for duty in self.duties)}
        )

    async def stop(self) -> None:
        """Stops all duties and waits for the last append."""
        async with self._stopping:
            if not self._tasks:
                return
            for duty in self.duties:
                duty.stop()
            await asyncio.wait(self._tasks, timeout=STOP_S_MAX)
            await self._scope.close()
            self._tasks = []
            log.info(events.DELIVERY_STOPPED)

    def settle(self) -> None:
        """Commits the progress that is on disk, which is everything once the store is closed. Save the tables
        afterwards.
        """
        for duty in self.duties:
            duty.settle(self._store.flushed.value)

    def _on_dispatch(self, newest: Mapping[tuple[str, int], int]) -> None:
        for topic, queue_id in newest:
            if topic in self._by_topic:
                self._by_topic[topic].on_dispatched(queue_id, newest[topic, queue_id])


OnStored = Callable[[Sequence[NewRecord], Appended], None]

RETRY_AFTER_S = 0.1
BATCH_BYTES_MAX = 262_144
BATCH_COUNT_MAX = 64


class DurableWriter:
    """Reads waiting messages and appends the due ones; shared by delay levels, timers, pops and transactions.

    A batch is one append, and the next batch waits for its outcome, so messages keep their order and no batch
    is half delivered. A temporary rejection by the store is retried. A message that can never be stored is
    dropped with an ERROR, because it would hold back all messages after it.
    """

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.batch_bytes_max = min(BATCH_BYTES_MAX, store.options.commit_log_file_bytes // 4)

    def safe_end(self) -> int:
        """Returns the log offset below which delivered copies are safe."""
        store = self._store
        return safe_end(
            flushed=store.flushed.value,
            appended=store.appended.value,
            acknowledged=store.replies.acks.positions().values(),
            gap_bytes_max=store.options.replica_gap_bytes_max,
        )

    @property
    def log_end(self) -> int:
        """The end of the accepted log, which is never below an offset that `append` returned."""
        return self._store.accepted_log_offset

    def read(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        count_max: int = BATCH_COUNT_MAX,
        *,
        waits: bool = True,
    ) -> tuple[list[Record], int]:
        """Reads messages from `queue_offset` on. Returns the messages and the next offset to read, which
        skips messages deleted by retention.

        An empty list with an unchanged offset means that the queue has no further messages or, with `waits`,
        that an entry is being repaired.
        """
        limit = self.batch_bytes_max
        got = self._store.reader.get_own(
            topic, queue_id, queue_offset, count_max=count_max, bytes_max=limit, waits=waits
        )
        if got.status is not GetStatus.FOUND:
            return [], max(queue_offset, got.next_offset)
        records: list[Record] = []
        for view in got.slices:
            position = 0
            while position < len(view):
                try:
                    record = decode_record(view, position, check_crc=False)
                except RecordError:
                    return self._read_singly(topic, queue_id, queue_offset, got.next_offset), got.next_offset
                records.append(record)
                position += record.size
        return records, got.next_offset

    def _read_singly(self, topic: str, queue_id: int, begin: int, end: int) -> list[Record]:
        """Reads the messages in `[begin, end)` one by one at their queue entries, because the size field of a
        damaged record cannot be trusted. Only the damaged record is lost.
        """
        store = self._store
        records: list[Record] = []
        for number, entry in enumerate(store.queue_entries(topic, queue_id, begin, end - begin), begin):
            log_offset, size, _ = entry
            if size == FILLER_SIZE or log_offset < store.min_log_offset:
                continue
            try:
                # A damaged entry may hold any size.
                view = store.log.valid_view(log_offset, max(0, size))
                record = decode_record(view, check_crc=False, log_offset=log_offset)
            except RecordError as error:
                facts = {"topic": topic, "queue_id": queue_id, "queue_offset": number, "reason": str(error)}
                log.error(events.DELAYED_MESSAGE_LOST, extra=facts)
            else:
                records.append(record)
        return records

    async def append(self, records: Sequence[NewRecord], on_stored: OnStored | None = None) -> int:
        """Appends the records, and returns the end of the log after the records. The records become readable
        without a further call. `on_stored` is called with records that were stored, and their offsets.

        Waits while the store rejects the records. If the call is cancelled meanwhile, the records may or may
        not be appended.
        """
        try:
            appended = await self.put(records)
            if on_stored is not None:
                on_stored(records, appended)
            return appended.end_offset
        except MessageIllegal as error:
            if len(records) == 1:
                self._give_up(records[0], error)
                return self.log_end
        end = self.log_end
        for record in records:
            end = await self.append([record], on_stored)
        return end

    async def put(
        self, records: Sequence[NewRecord], on_appended: Callable[[Appended], None] | None = None
    ) -> Appended:
        """Appends the records and waits until they are stored; tries again while the store rejects them or
        fails to store them. `on_appended` is called with their offsets after every append, before its outcome
        is known.

        Raises:  MessageIllegal if they can never be stored.
        """
        while True:
            done: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()

            def on_done(status: PutStatus, done: asyncio.Future[PutStatus] = done) -> None:
                if not done.done():
                    done.set_result(status)

            try:
                appended = self._store.appender.append(records, on_done)
            except MessageIllegal:
                raise
            except RequestRejected:
                await self._clock.sleep(RETRY_AFTER_S)
                continue
            if on_appended is not None:
                on_appended(appended)
            if await done not in NOT_STORED:
                return appended
            # Not stored, or unknown: the store has stopped or its disk is full. Retry until the caller's task
            # is stopped.
            await self._clock.sleep(RETRY_AFTER_S)

    def _give_up(self, record: NewRecord, error: MessageIllegal) -> None:
        facts = {"topic": record.topic, "unique_key": record.unique_key, "reason": error.remark}
        log.error(events.DELAYED_MESSAGE_REFUSED, extra=facts)


# Restoring messages from the topic in which they waited. Pure.
#
# The properties stay as stored, DELAY, REAL_TOPIC and REAL_QID included, as in RocketMQ (spec store 15); a
# timer message gets its times added (spec store 16).

TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"


def restore(record: Record) -> NewRecord | None:
    """Returns the message for its real topic and queue, or None if it names no real topic.

    Half messages are never restored (spec store 15). The append waits for no acknowledgement
    (`wait_stored=False`), because the sender was answered when the waiting message was stored.
    """
    topic, queue_id = record.text(b"REAL_TOPIC"), record.text(b"REAL_QID")
    if not topic or topic == HALF_TOPIC:
        return None
    is_number = queue_id.isascii() and queue_id.isdigit() and len(queue_id) <= 9
    return copy_record(record, topic, int(queue_id) if is_number else 0, record.raw_properties)


def restore_timer(record: Record, now_ms: int) -> NewRecord | None:
    """Returns the restored timer message, with the times at which its waiting began and ended."""
    restored = restore(record)
    if restored is not None:
        restored.properties = _with_times(record, now_ms)
    return restored


def roll_timer(record: Record, now_ms: int) -> NewRecord:
    """Returns a copy of the message for its timer topic. Retention deletes the copy later than the original,
    so a message with a long delay outlives its log file.
    """
    count = record.text(TIMER_ROLL_TIMES.encode())
    times = int(count) + 1 if count.isascii() and count.isdigit() and len(count) <= 9 else 1
    rolled = _with_pair(_with_times(record, now_ms), TIMER_ROLL_TIMES, str(times))
    return copy_record(record, record.topic, record.queue_id, rolled)


def _with_times(record: Record, now_ms: int) -> bytes:
    timed = _with_pair(record.raw_properties, TIMER_ENQUEUE_MS, str(record.stored_at_ms))
    return _with_pair(timed, TIMER_DEQUEUE_MS, str(now_ms))


def _with_pair(raw: bytes, name: str, value: str) -> bytes:
    """Returns the properties with the pair replaced or added; unchanged if there is no room for it."""
    longer = append_property(names.remove_property(raw, name.encode()), name, value)
    return longer if len(longer) <= PROPERTIES_BYTES_MAX else raw


def copy_record(record: Record, topic: str, queue_id: int, properties: bytes) -> NewRecord:
    """Returns a copy of a stored message for another queue, with these properties. Its append waits for no
    acknowledgement, unless the caller sets `wait_stored`.
    """
    return NewRecord(
        topic=topic,
        queue_id=queue_id,
        body=record.body,
        properties=properties,
        born_at_ms=record.born_at_ms,
        born_host=record.born_host,
        tag_hash=tag_hash_of(properties),
        flag=record.flag,
        sys_flag=record.sys_flag,
        retry_count=record.retry_count,
        prepared_offset=record.prepared_offset,
        keys=record.keys,
        unique_key=record.unique_key,
        wait_stored=False,
        is_internal=True,
    )
