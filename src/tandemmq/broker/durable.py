"""Deliveries that survive a kill: messages that waited are appended, and progress counts once they are safe.

`Progress` holds progress back until it is valid, `Wake` lets a task sleep, `Writer` is the one place where a
delivery meets the store, and `restore` makes the message that it appends.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from tandemmq.errors import MessageIllegal, RequestRejected
from tandemmq.protocol import properties as names
from tandemmq.protocol.properties import PROPERTIES_BYTES_MAX, append_property, find_property
from tandemmq.protocol.record import NewRecord, Record, RecordError, decode_record, tag_hash_of
from tandemmq.protocol.topic_names import HALF_TOPIC
from tandemmq.runtime.ports import Clock
from tandemmq.store import MessageStore, PutStatus
from tandemmq.store.consume_queue import FILLER_SIZE
from tandemmq.store.outcomes import GetStatus
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

T = TypeVar("T")

PROGRESS_COUNT_MAX = 65_536


def safe_end(*, flushed: int, appended: int, acknowledged: Iterable[int], gap_bytes_max: int) -> int:
    """The log offset below which nothing is lost by a power cut or by losing the master.

    A slave that is `gap_bytes_max` behind, or ahead of the log, does not count (spec replication 4.8).
    """
    near = [offset for offset in acknowledged if 0 <= appended - offset < gap_bytes_max]
    return min([flushed, *near])


class Progress(Generic[T]):
    """Progress of a delivery that becomes valid only once the delivered copies are safe: values in the order
    of the log, each with the end of what it speaks of.

    A copy in the page cache, or one that a slave does not hold, may still be lost; if the progress were ahead
    of it, the message would be lost with it. So progress waits until the log is flushed, and acknowledged by
    the slaves that are in sync, up to the end of what it speaks of. After a kill the rest is delivered again.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, T]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[T]:
        """What is not valid yet, oldest first."""
        return (value for _, value in self._waiting)

    @property
    def is_full(self) -> bool:
        """No more deliveries until some of them are safe."""
        return len(self._waiting) >= PROGRESS_COUNT_MAX

    def add(self, log_end: int, value: T, *, replaces: bool = False) -> None:
        """`value` is valid when the log is safe up to `log_end`.

        `replaces`: it says all that an earlier value for the same place says.
        """
        assert not self._waiting or log_end >= self._waiting[-1][0], (log_end, self._waiting[-1][0])
        if replaces and self._waiting and self._waiting[-1][0] == log_end:
            self._waiting.pop()
        self._waiting.append((log_end, value))

    def settle(self, safe: int) -> list[T]:
        """The values that became valid, oldest first."""
        settled: list[T] = []
        while self._waiting and self._waiting[0][0] <= safe:
            settled.append(self._waiting.popleft()[1])
        return settled


class Wake:
    """One task waits for a signal or for a time, whichever comes first; anyone may set the signal. A signal
    that came before the wait counts.
    """

    __slots__ = ("_clock", "_event")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = asyncio.Event()

    def set(self) -> None:
        """End the wait, or the next one."""
        self._event.set()

    def clear(self) -> None:
        """Forget earlier signals; do it before looking for work, never after."""
        self._event.clear()

    async def wait(self, delay_s: float | None) -> None:
        """Returns on a signal, or after `delay_s` (None: only on a signal); lets others run in any case."""
        if delay_s is None:
            await self._event.wait()
            return
        timer = self._clock.call_later(max(delay_s, 0.0), self._event.set)
        try:
            await self._event.wait()
        finally:
            timer.cancel()


RETRY_AFTER_S = 0.1
BATCH_BYTES_MAX = 262_144
BATCH_COUNT_MAX = 64


class Writer:
    """Reads waiting messages and appends the due ones; shared by delay levels and timers.

    A batch is one append, awaited before the next, so messages keep their order and no batch is half
    delivered. A store that refuses for now is asked again; a message that can never be stored is given up
    with an ERROR, because it would hold back all others.
    """

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.batch_bytes_max = min(BATCH_BYTES_MAX, store.options.commit_log_file_bytes // 4)

    def safe_end(self) -> int:
        """Below this log offset delivered copies are safe."""
        store = self._store
        return safe_end(
            flushed=store.flushed.value,
            appended=store.appended.value,
            acknowledged=store.acks.positions().values(),
            gap_bytes_max=store.options.replica_gap_bytes_max,
        )

    @property
    def log_end(self) -> int:
        """The end of what the store has accepted, which never falls behind what `append` returned."""
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
        """Messages from `queue_offset` on, and the offset to go on at: beyond what retention deleted.

        No messages and the same offset: nothing is there, or with `waits` an entry that is being mended.
        """
        limit = self.batch_bytes_max
        got = self._store.get(
            topic, queue_id, queue_offset, count_max=count_max, bytes_max=limit, is_own=True, waits=waits
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
        """The same messages, each from where the queue has it: one is damaged, and what it says of its size
        with it. Only that one is lost."""
        store = self._store
        records: list[Record] = []
        for number, entry in enumerate(store.queue_entries(topic, queue_id, begin, end - begin), begin):
            log_offset, size, _ = entry
            if size == FILLER_SIZE or log_offset < store.min_log_offset:
                continue
            try:
                # A damaged entry may say any size.
                view = store.log_view(log_offset, max(0, size))
                record = decode_record(view, check_crc=False, log_offset=log_offset)
            except RecordError as error:
                facts = {"topic": topic, "queue_id": queue_id, "queue_offset": number, "reason": str(error)}
                log.error(events.DELAYED_MESSAGE_LOST, extra=facts)
            else:
                records.append(record)
        return records

    async def append(self, records: Sequence[NewRecord]) -> int:
        """Where the log ends behind these records; they are readable or soon will be.

        Waits as long as the store refuses. Cancelled in between, they may be appended or not.
        """
        try:
            return await self._append_all(records)
        except MessageIllegal as error:
            if len(records) == 1:
                self._give_up(records[0], error)
                return self.log_end
        end = self.log_end
        for record in records:
            end = await self.append([record])
        return end

    async def _append_all(self, records: Sequence[NewRecord]) -> int:
        while True:
            done: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()

            def on_done(status: PutStatus, done: asyncio.Future[PutStatus] = done) -> None:
                if not done.done():
                    done.set_result(status)

            try:
                appended = self._store.append(records, on_done)
            except MessageIllegal:
                raise
            except RequestRejected:
                await self._clock.sleep(RETRY_AFTER_S)
                continue
            status = await done
            if status not in (PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.UNKNOWN_ERROR):
                return appended.end_offset
            # Not stored, or unknown: the store has stopped or its disk is full. Try until we are stopped.
            await self._clock.sleep(RETRY_AFTER_S)

    def _give_up(self, record: NewRecord, error: MessageIllegal) -> None:
        facts = {"topic": record.topic, "unique_key": record.unique_key, "reason": error.remark}
        log.error(events.DELAYED_MESSAGE_REFUSED, extra=facts)


# Stored messages on their way back from a waiting topic; pure.
#
# The properties stay as they were stored, DELAY, REAL_TOPIC and REAL_QID included, because that is what
# RocketMQ stores (spec store 15); a timer message gets its times added (spec store 16).

TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"


def restore(record: Record) -> NewRecord | None:
    """The message for the topic and queue that it was meant for; None when it has no such topic.

    Half messages are never brought back (spec store 15). Its sender was answered long ago, so it waits for
    nothing.
    """
    topic = _text(record, b"REAL_TOPIC")
    queue_id = _text(record, b"REAL_QID")
    if not topic or topic == HALF_TOPIC:
        return None
    is_number = queue_id.isascii() and queue_id.isdigit() and len(queue_id) <= 9
    return _copy(record, topic, int(queue_id) if is_number else 0, record.raw_properties)


def restore_timer(record: Record, now_ms: int) -> NewRecord | None:
    """The same for a timer message, with when it began and ended to wait."""
    restored = restore(record)
    if restored is not None:
        restored.properties = _with_times(record, now_ms)
    return restored


def roll_timer(record: Record, now_ms: int) -> NewRecord:
    """The message for another stay in its timer topic: a younger copy, which retention reaches later."""
    count = _text(record, TIMER_ROLL_TIMES.encode())
    times = int(count) + 1 if count.isascii() and count.isdigit() and len(count) <= 9 else 1
    rolled = _with_pair(_with_times(record, now_ms), TIMER_ROLL_TIMES, str(times))
    return _copy(record, record.topic, record.queue_id, rolled)


def _with_times(record: Record, now_ms: int) -> bytes:
    timed = _with_pair(record.raw_properties, TIMER_ENQUEUE_MS, str(record.stored_at_ms))
    return _with_pair(timed, TIMER_DEQUEUE_MS, str(now_ms))


def _with_pair(raw: bytes, name: str, value: str) -> bytes:
    """With the pair in the place of an older one; a message that has no room for it goes without."""
    longer = append_property(names.remove_property(raw, name.encode()), name, value)
    return longer if len(longer) <= PROPERTIES_BYTES_MAX else raw


def _copy(record: Record, topic: str, queue_id: int, properties: bytes) -> NewRecord:
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


def _text(record: Record, name: bytes) -> str:
    value = find_property(record.raw_properties, name)
    return "" if value is None else str(value, "utf-8", "replace")
