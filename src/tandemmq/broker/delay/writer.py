"""Appends what is due: the one place where a delivery meets the store.

A batch is one append, awaited before the next, so messages keep their order and no batch is half delivered.
A store that refuses for now is asked again; a message that can never be stored is given up with an ERROR,
because it would hold back all others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from tandemmq.broker.delay.progress import safe_end
from tandemmq.errors import MessageIllegal, RequestRejected
from tandemmq.protocol.record import NewRecord, Record, RecordError, decode_record
from tandemmq.runtime.ports import Clock
from tandemmq.store import MessageStore, PutStatus
from tandemmq.store.outcomes import GetStatus
from tandemmq.store.queue_entries import FILLER_SIZE
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

RETRY_AFTER_S = 0.1
BATCH_BYTES_MAX = 262_144
BATCH_COUNT_MAX = 64


class Writer:
    """Reads waiting messages and appends the due ones; shared by delay levels and timers."""

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
                record = decode_record(
                    store.log_view(log_offset, size), check_crc=False, log_offset=log_offset
                )
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
