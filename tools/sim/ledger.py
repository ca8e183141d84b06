"""The sends of a simulated run and their outcomes; and the records that must, may and must not be in the log.

Units:     offsets are log offsets in bytes; ends are exclusive.
Strategy:  a send is identified by the exact bytes that its record must have, at the offset that it was
           assigned. Two marks tell how much of the log must survive: `written_end` for a killed process,
           `durable_end` for a power cut.
Knows not: the store, or how it is called.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from tandemmq.protocol.record import NewRecord, encode_record
from tandemmq.store import Appended, PutStatus


class Fate(Enum):
    """The current outcome of a send."""

    PENDING = "pending"
    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused, nothing may be stored"
    UNKNOWN = "not confirmed"


@dataclass(slots=True, eq=False)
class Send:
    """One record of an append."""

    number: int
    record: NewRecord
    log_offset: int
    data: bytes
    at_s: float = 0.0  # when it was accepted, by the machine's clock
    fate: Fate = Fate.PENDING
    is_deleted: bool | None = False
    """True if it was deleted with its topic; None if that is unknown, because the machine or the store failed
    meanwhile.
    """

    @property
    def end(self) -> int:
        return self.log_offset + len(self.data)

    def __str__(self) -> str:
        record = self.record
        return f"#{self.number} {record.topic}/{record.queue_id} at {self.log_offset} ({self.fate.value})"


_FATES = {
    PutStatus.PUT_OK: Fate.ACKNOWLEDGED,
    PutStatus.SERVICE_NOT_AVAILABLE: Fate.REFUSED,
}


@dataclass(slots=True)
class Ledger:
    """All sends whose bytes may be on the disk, by log offset."""

    is_sync: bool
    is_pooled: bool
    """True if an answer only promises memory; bytes that the store calls appended survive a killed
    process.
    """
    store_host: bytes
    acknowledged_count: int = 0
    written_end: int = 0
    durable_end: int = 0
    begin: int = 0
    """The begin of the log: files below it were deleted on purpose, but may come back after a power cut."""
    is_frozen: bool = False
    """True from a crash to the next start: answers of the dying store are ignored."""
    by_offset: dict[int, list[Send]] = field(default_factory=dict)
    _count: int = 0

    def add(self, records: list[NewRecord], placed: Appended, at_s: float) -> list[Send]:
        """Adds the sends of an append that was accepted."""
        sends = []
        queue_offset = placed.queue_offset
        for record, log_offset in zip(records, placed.log_offsets, strict=True):
            is_queued = not record.sys_flag & 0x4
            data = encode_record(
                record,
                queue_offset=queue_offset if is_queued else 0,
                log_offset=log_offset,
                stored_at_ms=placed.stored_at_ms,
                store_host=self.store_host,
            )
            queue_offset += is_queued
            sends.append(Send(self._count, record, log_offset, data, at_s))
            self._count += 1
            self.by_offset.setdefault(log_offset, []).append(sends[-1])
        return sends

    def settle(self, sends: list[Send], status: PutStatus) -> None:
        """Records the store's answer to an append."""
        if self.is_frozen:
            return
        fate = _FATES.get(status, Fate.UNKNOWN)
        for send in sends:
            assert send.fate is Fate.PENDING, f"answered twice: {send}"
            send.fate = fate
        if fate is not Fate.ACKNOWLEDGED:
            return
        self.acknowledged_count += len(sends)
        end = sends[-1].end
        if not self.is_pooled:
            self.written_end = max(self.written_end, end)
        if self.is_sync and sends[0].record.wait_stored:
            self.durable_end = max(self.durable_end, end)

    def record_written(self, end: int) -> None:
        """Records that the store reported everything below `end` as written."""
        if not self.is_frozen:
            self.written_end = max(self.written_end, end)

    def record_durable(self, end: int) -> None:
        """Records that everything below `end` was reported as flushed, or was shown to a reader that may rely
        on it.
        """
        if not self.is_frozen:
            self.durable_end = max(self.durable_end, end)

    def record_clean_stop(self) -> None:
        """Records that the store stopped with nothing to recover: every acknowledged send is on disk."""
        ends = (s.end for s in self._all() if s.fate is Fate.ACKNOWLEDGED)
        self.written_end = max(self.written_end, *ends, 0)
        self.durable_end = max(self.durable_end, self.written_end)

    def oldest_unwritten(self) -> Send | None:
        """Returns the oldest send that was answered and is in memory only; None if there is none."""
        sends = (s for s in self._all() if s.fate is Fate.ACKNOWLEDGED and s.end > self.written_end)
        return min(sends, key=lambda send: send.at_s, default=None)

    def _all(self) -> Iterator[Send]:
        return (send for sends in self.by_offset.values() for send in sends)

    def candidates(self, log_offset: int) -> list[Send]:
        """Returns the sends that may be at an offset: refused ones never come back."""
        return [send for send in self.by_offset.get(log_offset, ()) if send.fate is not Fate.REFUSED]

    def begin_deletion(self, topic: str) -> list[Send]:
        """Marks all sends to the topic as possibly gone from its queues, and returns them."""
        sends = [send for send in self._all() if send.record.topic == topic and not send.is_deleted]
        for send in sends:
            send.is_deleted = None
        return sends

    def end_deletion(self, sends: list[Send]) -> None:
        """Records that the store has deleted them. An unconfirmed send may still be found, as if sent
        later.
        """
        if not self.is_frozen:
            for send in sends:
                send.is_deleted = None if send.fate is Fate.UNKNOWN else True

    def freeze(self) -> None:
        """Ignores the store from now on: the machine is lost."""
        self.is_frozen = True

    def record_cleaned(self, begin: int) -> None:
        """Records that the log now begins at `begin`; if the machine was lost meanwhile, it may not yet."""
        self.begin = max(self.begin, begin)

    def required(self, *, after_power_cut: bool) -> list[Send]:
        """Returns the sends that must be in the log, in log order."""
        end = self.durable_end if after_power_cut else self.written_end
        return [
            send
            for offset in sorted(self.by_offset)
            for send in self.by_offset[offset]
            if self.begin <= offset and send.end <= end and send.fate in (Fate.ACKNOWLEDGED, Fate.PENDING)
        ]

    def restart_at(self, kept: list[Send], end: int) -> None:
        """Starts again after a recovery: these records are the durable log now, and nothing else can come
        back.
        """
        self.by_offset = {at: sends for at, sends in self.by_offset.items() if at < self.begin}
        for send in kept:
            send.fate = Fate.ACKNOWLEDGED
            self.by_offset[send.log_offset] = [send]
        self.written_end = self.durable_end = end
        self.is_frozen = False
