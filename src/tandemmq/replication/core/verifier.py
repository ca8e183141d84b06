"""The checks that a slave makes on its master's bytes. `RecordVerifier` turns them into runs of intact
records and holds back incomplete ones; `find_difference` finds the first byte in which the logs of slave and
master differ.

Invariants: a run starts and ends at a record boundary and never crosses a segment. The slave's log therefore
            always ends at a record boundary and holds only bytes whose size, magic, offset and checksum were
            correct.
Strategy:   all pieces of one read are joined and parsed in place, once: a run carries the parsed fields to
            dispatching. Large runs are parsed in columns, smaller ones by the optional kernel. The few
            records at the end are parsed one by one, and so are all records without the kernel, those that it
            leaves, and those that the columns found invalid, which yields the reason. An incomplete record
            is kept as pieces and not parsed again before it can be complete. At most one record is held,
            bounded by the options.
Knows not:  sockets, files.
Source:     spec store 3, 3.2, 3.3; spec replication 4.9, 4.10; decision 006.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from struct import Struct
from typing import Final, NamedTuple

from tandemmq.protocol import speedups
from tandemmq.protocol.hashes import crc32
from tandemmq.protocol.record_check import RecordCheck, check_record
from tandemmq.protocol.record_layout import (
    BLANK_BYTES_MIN,
    BODY_SIZE_AT_V4,
    CRC_MASK,
    HOST_V6_EXTRA,
    INT,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PREFIX,
    RECORD_BYTES_MIN,
    RecordOutcome,
)
from tandemmq.protocol.record_run import RecordRun, read_run
from tandemmq.protocol.record_scan import ParsedRecords, RecordColumns, read_intact
from tandemmq.protocol.sys_flag import BORN_HOST_V6, HOSTS_V6_MASK, STORE_HOST_V6
from tandemmq.units import KIB

_FIXED: Final = Struct(">iii16xqi")  # size, magic, body crc, log offset, sysFlag
COLUMNS_BYTES_MIN: Final = 96 * KIB
"""The size in bytes from which parsing all records at once is faster than one by one."""
_RUN_COUNT_MIN: Final = 4
"""A shorter run says that few of these records are plain, or that their topics alternate."""
_RUNS_BYTES_MAX: Final = 768 * KIB
"""The size in bytes from which parsing all records at once is faster than runs of the kernel. A single record
is faster without both.
"""


class VerifiedRun(NamedTuple):
    """Whole, intact records of one segment. `parsed`: the fields of the first records, or of all."""

    log_offset: int
    data: memoryview
    parsed: ParsedRecords = ()


class BadRecord(NamedTuple):
    """The bytes at `log_offset` are not a record that may be stored."""

    log_offset: int
    reason: str


class RecordVerifier:
    """Verifies one connection's stream of log bytes, starting at a record boundary."""

    __slots__ = ("_held", "_held_bytes", "_needed_bytes", "_record_bytes_max", "_segment_bytes", "log_offset")

    def __init__(self, log_offset: int, *, segment_bytes: int, record_bytes_max: int) -> None:
        assert log_offset >= 0, log_offset
        assert segment_bytes > 0, segment_bytes
        assert record_bytes_max > 0, record_bytes_max
        self.log_offset = log_offset
        """The first byte that was not yet returned in a run."""
        self._segment_bytes = segment_bytes
        self._record_bytes_max = record_bytes_max
        self._held: list[bytes | memoryview] = []
        self._held_bytes = 0
        self._needed_bytes = BLANK_BYTES_MIN

    @property
    def held_bytes(self) -> int:
        """The number of bytes received that are not yet part of a whole record."""
        return self._held_bytes

    def feed(
        self, pieces: Sequence[memoryview], around: memoryview | None = None
    ) -> tuple[list[VerifiedRun], BadRecord | None]:
        """Returns the runs completed by `pieces`, and the first fault in the bytes after them, if any.

        No reference to `pieces` is kept, so their buffer may be reused afterwards; but the returned runs may
        point into it.
        `around`: a buffer that ends with the only piece. The bytes before the piece may be overwritten, which
        saves a copy of the piece.
        After a bad record the verifier must not be used again; a new connection needs a new one.
        """
        assert around is None or len(pieces) == 1, len(pieces)
        self._held_bytes += sum(map(len, pieces))
        if self._held_bytes < self._needed_bytes:
            self._held += map(bytes, pieces)
            return [], None
        buffer = self._put_before(around) if around is not None else None
        if buffer is None:
            self._held += pieces
            buffer = memoryview(self._held[0] if len(self._held) == 1 else b"".join(self._held))
        runs: list[VerifiedRun] = []
        position, bad = self._walk(buffer, runs)
        assert 0 <= position <= len(buffer), (position, len(buffer))
        assert all(self._is_of_one_segment(run) for run in runs), runs
        self._held = [bytes(buffer[position:])] if position < len(buffer) else []
        self._held_bytes = len(buffer) - position
        assert bad is not None or self._held_bytes < self._needed_bytes, "what is whole is handed out"
        return runs, bad

    def _is_of_one_segment(self, run: VerifiedRun) -> bool:
        size = len(run.data)
        return 0 < size <= self._segment_bytes - run.log_offset % self._segment_bytes

    def _put_before(self, around: memoryview) -> memoryview | None:
        """Returns all held bytes in one piece that ends where `around` ends; None if there is not enough
        room.
        """
        begin = len(around) - self._held_bytes
        if begin < 0:
            return None
        at = begin
        for part in self._held:
            around[at : at + len(part)] = part
            at += len(part)
        assert at <= len(around), (at, len(around))
        return around[begin:]

    def _walk(self, buffer: memoryview, runs: list[VerifiedRun]) -> tuple[int, BadRecord | None]:
        """Returns the position after the last whole record, and appends the runs before it to `runs`."""
        base, end = self.log_offset, len(buffer)
        segment_end = base - base % self._segment_bytes + self._segment_bytes
        columns, start, position = None, 0, 0
        may_be_run = speedups.kernel is not None and 2 * INT.unpack_from(buffer)[0] <= end < _RUNS_BYTES_MAX
        run_at = 0 if may_be_run else end  # the next position at which a run may begin
        checks: list[RecordCheck | RecordRun] = []
        reason = ""
        self._needed_bytes = BLANK_BYTES_MIN
        while end - position >= BLANK_BYTES_MIN:
            if position >= run_at and columns is None:
                run = self._read_run(buffer, position, segment_end - base)
                is_long = run is not None and len(run.sizes) >= _RUN_COUNT_MIN
                if run is not None and (is_long or end - position < COLUMNS_BYTES_MIN):
                    checks.append(run)
                    position += run.size_bytes
                # The record at which a run ends is read alone, and the next one may begin another run.
                run_at = position + 1 if is_long else end
                continue
            if position == start and columns is None and end - position >= COLUMNS_BYTES_MIN:
                columns = self._read_columns(buffer, position, segment_end - base)
                position += columns.end
                continue
            size, magic = PREFIX.unpack_from(buffer, position)
            log_offset = base + position
            is_blank = magic == MAGIC_BLANK
            reason = self._prefix_fault(size, magic, segment_end - log_offset)
            if reason:
                break
            if size > end - position:
                # The offset field is checked as soon as it has arrived, so that garbage is not waited for.
                has_offset = end - position >= _FIXED.size
                if has_offset and not is_blank:
                    reason = _offset_fault(buffer, position, log_offset)
                self._needed_bytes = size if has_offset or is_blank else _FIXED.size
                break
            if not is_blank:
                checked = check_record(buffer, position, log_offset=log_offset)
                if checked.outcome is not RecordOutcome.OK:
                    reason = _record_fault(buffer, position, size, log_offset)
                    if reason:
                        break
                if columns is None:
                    checks.append(checked)
            position += size
            if is_blank:
                runs.append(VerifiedRun(base + start, buffer[start:position], columns or checks))
                columns, checks, start = None, [], position
                segment_end += self._segment_bytes
        if position > start:
            runs.append(VerifiedRun(base + start, buffer[start:position], columns or checks))
        self.log_offset = base + position
        assert self.log_offset < segment_end, (self.log_offset, segment_end)
        return position, BadRecord(self.log_offset, reason) if reason else None

    def _read_columns(self, buffer: memoryview, start: int, segment_end: int) -> RecordColumns:
        """Parses the intact records from `start` on, up to the room for a filler. `start` and `segment_end`
        are offsets in the buffer.
        """
        return read_intact(
            buffer[start : segment_end - BLANK_BYTES_MIN],
            log_offset=self.log_offset + start,
            record_bytes_max=self._record_bytes_max,
        )

    def _read_run(self, buffer: memoryview, start: int, segment_end: int) -> RecordRun | None:
        """Parses plain intact records from `start` on, up to the room for a filler. `start` and `segment_end`
        are offsets in the buffer.
        """
        return read_run(
            buffer,
            start,
            min(len(buffer), segment_end - BLANK_BYTES_MIN),
            log_offset=self.log_offset + start,
            record_bytes_max=self._record_bytes_max,
        )

    def _prefix_fault(self, size: int, magic: int, room: int) -> str:
        """Returns the fault in the first 8 bytes, or "" if they are valid. `room` is the distance to the
        segment's end.
        """
        if magic in (MAGIC_V1, MAGIC_V2):
            if RECORD_BYTES_MIN <= size <= room - BLANK_BYTES_MIN and size <= self._record_bytes_max:
                return ""
            return f"a record of {size} bytes, {room} bytes before the end of its file; are file sizes equal?"
        if magic == MAGIC_BLANK:
            if size == room and size <= self._record_bytes_max + BLANK_BYTES_MIN:
                return ""
            return f"a filler of {size} bytes, {room} bytes before the end of its file; are file sizes equal?"
        return f"magic {magic & 0xFFFFFFFF:#010x} does not begin a record"


def _offset_fault(buffer: memoryview, position: int, log_offset: int) -> str:
    stored_offset = _FIXED.unpack_from(buffer, position)[3]
    return "" if stored_offset == log_offset else f"the record's stored offset is {stored_offset}"


def _record_fault(buffer: memoryview, position: int, size: int, log_offset: int) -> str:
    """Returns the fault in a whole record whose prefix is valid, or "" if it is intact (spec store 3.3)."""
    _, magic, crc, stored_offset, sys_flag = _FIXED.unpack_from(buffer, position)
    if stored_offset != log_offset:
        return f"the record's stored offset is {stored_offset}"
    body_at = position + BODY_SIZE_AT_V4 + 4
    end = position + size
    if sys_flag & HOSTS_V6_MASK:
        extra = HOST_V6_EXTRA * (bool(sys_flag & BORN_HOST_V6) + bool(sys_flag & STORE_HOST_V6))
        if size < RECORD_BYTES_MIN + extra:
            return "the record's lengths contradict each other"
        body_at += extra
    body_end = body_at + INT.unpack_from(buffer, body_at - 4)[0]
    if not body_at <= body_end <= end - 3:
        return "the record's lengths contradict each other"
    properties_at = body_end + buffer[body_end] + 3
    if magic == MAGIC_V2:
        properties_at = body_end + (buffer[body_end] << 8 | buffer[body_end + 1]) + 4
    if properties_at > end:
        return "the record's lengths contradict each other"
    if properties_at + (buffer[properties_at - 2] << 8 | buffer[properties_at - 1]) != end:
        return "the record's lengths contradict each other"
    if body_end != body_at and crc32(buffer[body_at:body_end]) & CRC_MASK != crc:
        return "the checksum of the body does not match"
    return ""


# The end of a slave's log is compared with its master's before the slave follows.
#
# A master may lose its tail and then grow past a slave's end. Without the comparison, the slave would
# continue in the middle of a different history: offsets alone do not reveal it. TandemMQ slaves and masters
# therefore compare checksums of the last bytes.

ChecksumOf = Callable[[int, int], Awaitable[int]]
"""(log_offset, size_bytes) -> CRC-32 of those bytes of one log, which must hold them all."""


class TailOutcome(Enum):
    """The result of comparing a slave's end with the master's log before the slave follows."""

    SAME = "the last bytes are the master's"
    NOT_COMPARED = "not compared"
    DIFFERENT = "the master has other bytes at the same place"
    SLAVE_AHEAD = "the slave holds more than its master"
    TOO_OLD = "the master no longer keeps the slave's next byte"
    FAILED = "the master did not answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class TailVerdict:
    """The result of a comparison. `log_offset`: the first difference, the master's end, or the master's
    start, depending on the outcome; otherwise the slave's own end. `master_start`: the begin of the master's
    log, None if unknown. `run_id`: an identifier of the master's current run, "" if the master reports
    none.
    """

    outcome: TailOutcome
    log_offset: int
    detail: str = ""
    master_start: int | None = None
    run_id: str = ""


async def find_difference(ours: ChecksumOf, theirs: ChecksumOf, start: int, end: int) -> int | None:
    """Returns the first byte of `[start, end)` in which two logs differ; None if they are equal.

    Strategy: binary search, so about log2 of the size in requests, and twice the size in bytes.
    """
    assert start >= 0, start
    assert start <= end
    if start == end or await ours(start, end - start) == await theirs(start, end - start):
        return None
    while end - start > 1:
        middle = (start + end) // 2
        if await ours(start, middle - start) == await theirs(start, middle - start):
            start = middle
        else:
            end = middle
    assert start + 1 == end, (start, end)
    return start
