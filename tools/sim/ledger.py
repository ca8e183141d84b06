"""What a simulated run sent and was promised; what of it must, may and must not be in the log.

Units:      offsets are log offsets in bytes; ends are exclusive.
Strategy:   a send is known by the exact bytes that its record must have, at the offset that it was given.
            The marks say how far the log must survive: `written_end` the death of the process, `durable_end`
            a power cut.
Knows not:  the store; how it was asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from tandemmq.protocol.record import NewRecord, encode_record
from tandemmq.store import Appended, PutStatus


class Fate(Enum):
    """What became of a send so far."""

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
    """With its topic; None while nobody knows, because the machine or the store failed on the way."""

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
    """All sends whose bytes may lie on the disk, by log offset."""

    is_sync: bool
    is_pooled: bool
    """An answer promises memory only; what the store calls appended survives it."""
    store_host: bytes
    acknowledged_count: int = 0
    written_end: int = 0
    durable_end: int = 0
    begin: int = 0
    """Files below were deleted on purpose; a power cut may bring them back."""
    is_frozen: bool = False
    """True from a crash to the next start: what a dying store says was heard by nobody."""
    by_offset: dict[int, list[Send]] = field(default_factory=dict)
    _count: int = 0

    def add(self, records: list[NewRecord], placed: Appended, at_s: float) -> list[Send]:
        """The sends of an append that was accepted."""
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
        """The store's answer to an append."""
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

    def note_written(self, end: int) -> None:
        """The store says that it wrote everything below `end`."""
        if not self.is_frozen:
            self.written_end = max(self.written_end, end)

    def note_durable(self, end: int) -> None:
        """Everything below `end` is said to be flushed, or was shown to a reader who may rely on it."""
        if not self.is_frozen:
            self.durable_end = max(self.durable_end, end)

    def note_clean_stop(self) -> None:
        """The store says that it left nothing to recover: everything that was promised is on disk."""
        ends = (s.end for s in self._all() if s.fate is Fate.ACKNOWLEDGED)
        self.written_end = max(self.written_end, *ends, 0)
        self.durable_end = max(self.durable_end, self.written_end)

    def oldest_unwritten(self) -> Send | None:
        """The first send that was answered and is in memory only; None without one."""
        sends = (s for s in self._all() if s.fate is Fate.ACKNOWLEDGED and s.end > self.written_end)
        return min(sends, key=lambda send: send.at_s, default=None)

    def _all(self) -> Iterator[Send]:
        return (send for sends in self.by_offset.values() for send in sends)

    def candidates(self, log_offset: int) -> list[Send]:
        """The sends that may lie at an offset: refused ones never come back."""
        return [send for send in self.by_offset.get(log_offset, ()) if send.fate is not Fate.REFUSED]

    def begin_deletion(self, topic: str) -> list[Send]:
        """All that was sent to the topic so far may be gone from its queues from now on."""
        sends = [send for send in self._all() if send.record.topic == topic and not send.is_deleted]
        for send in sends:
            send.is_deleted = None
        return sends

    def end_deletion(self, sends: list[Send]) -> None:
        """The store says that they are. One that was not confirmed may yet be found, as if sent later."""
        if not self.is_frozen:
            for send in sends:
                send.is_deleted = None if send.fate is Fate.UNKNOWN else True

    def freeze(self) -> None:
        """The machine is lost: nobody hears the store any more."""
        self.is_frozen = True

    def note_cleaned(self, begin: int) -> None:
        """The log begins at `begin` now, or does not yet, if the machine was lost meanwhile."""
        self.begin = max(self.begin, begin)

    def required(self, *, after_power_cut: bool) -> list[Send]:
        """The sends that must be in the log, in its order."""
        end = self.durable_end if after_power_cut else self.written_end
        return [
            send
            for offset in sorted(self.by_offset)
            for send in self.by_offset[offset]
            if self.begin <= offset and send.end <= end and send.fate in (Fate.ACKNOWLEDGED, Fate.PENDING)
        ]

    def begin_again(self, kept: list[Send], end: int) -> None:
        """After a recovery: these records are the log now, durably, and nothing else can come back."""
        self.by_offset = {at: sends for at, sends in self.by_offset.items() if at < self.begin}
        for send in kept:
            send.fate = Fate.ACKNOWLEDGED
            self.by_offset[send.log_offset] = [send]
        self.written_end = self.durable_end = end
        self.is_frozen = False
