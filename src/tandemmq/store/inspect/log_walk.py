"""Scans every file of a CommitLog: yields runs of whole records, and collects damage.

Invariants: each byte of the log is in a run, in a BLANK, after the end, or in a `Damage`; foreign bytes never
            raise. After damage the scan continues at the next record whose stored offset matches its
            position.
Strategy:   boundaries are found by size and magic, everything else is checked in numpy columns; only damage
            is examined one by one.
Knows not:  ConsumeQueues and key indexes, which consume the runs.
Source:     spec store 3, 3.2, 3.3.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tandemmq.protocol.record_check import check_record, has_good_seal, parse_record
from tandemmq.protocol.record_layout import RECORD_BYTES_MIN, SEAL_BYTES, RecordOutcome
from tandemmq.protocol.record_scan import RecordColumns, read_columns, scan_boundaries, verify_bodies
from tandemmq.store.columns import UNREADABLE, TopicNumbers, take_rows
from tandemmq.store.damage import SEAL_TOPIC, data_end, next_valid
from tandemmq.store.inspect.files import OffsetFile, data_limit, map_file
from tandemmq.store.inspect.findings import Damage, Findings, StorePart, describe_damage
from tandemmq.store.record_block import RecordBlock

RECORDS_PER_RUN = 8192
CLOCK_STEP_MS_MAX = 3_600_000
"""The limit in milliseconds for a falling store time: less is a clock set back, more is a damaged field."""
SEAL_AT = 20
_SEAL_NAME = int.from_bytes(b"__CRC32#", "big")
assert SEAL_AT == SEAL_BYTES < RECORD_BYTES_MIN, "a record's seal is within the record"

Progress = Callable[[int], None]
"""Called with the number of bytes done since the last call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Whole records of one file.

    If `is_intact` is False, the body does not match its checksum; all other fields are consistent.
    """

    file: OffsetFile
    block: RecordBlock
    is_intact: NDArray[np.bool_]

    def intact_block(self) -> RecordBlock:
        """Returns the intact records."""
        return self.block if self.is_intact.all() else self.block.take(np.flatnonzero(self.is_intact))


@dataclass(eq=False)
class LogWalk:
    """One scan; the attributes describe the log once `runs` is exhausted."""

    files: Sequence[OffsetFile]
    _: KW_ONLY
    topics: TopicNumbers
    findings: Findings
    check_crc: bool = True
    on_progress: Progress = lambda _: None

    def __post_init__(self) -> None:
        assert all(one.base < other.base for one, other in pairwise(self.files)), "files are in log order"
        self.damages: list[Damage] = []
        self.sealed: list[tuple[int, int]] = []  # ranges that an operator gave up
        self.begin = self.files[0].base if self.files else 0
        self.intact_end = self.begin  # the end of the last intact record, or of the BLANK after it
        self.last_record_at = -1
        self.stored_at_ms = 0  # of the newest intact record
        self.record_count = 0
        self._before_last = (-1, 0)  # the same two values of the previous record
        self._reported = 0  # bytes of the present file already reported to `on_progress`

    def runs(self) -> Iterator[Run]:
        """Yields the records in log order."""
        assert self.record_count == len(self.damages) == 0, "the log is walked once"
        used = used_count(self.files)
        for file in self.files[used:]:
            if file.size:
                self.findings.note(StorePart.LOG, file.path, "the file is prepared and not used yet")
            self.on_progress(file.size)
        end = self.begin
        for index, file in enumerate(self.files[:used]):
            if file.base != end:
                self._lost_files(file, end)
            # Bytes that exist twice are read once, since records come in log order.
            begin, end = max(0, end - file.base), max(end, file.end)
            yield from self._walk_file(file, begin, is_last=index == used - 1)
            assert self._reported == 0, (file, self._reported)
        assert self.begin <= self.intact_end, (self.begin, self.intact_end)
        for damage in self.damages:
            assert self.begin <= damage.log_offset <= damage.log_end, damage
            damage.is_tail = damage.log_offset >= self.intact_end

    def _lost_files(self, file: OffsetFile, end: int) -> None:
        verb = "missing" if file.base > end else "there twice"
        low, high = sorted((end, file.base))
        assert 0 <= low < high, (file, end)
        reason = f"bytes {low} to {high} of the log are {verb}: the file does not follow the one before it"
        self.damages.append(Damage(file=file, begin=0, end=0, reason=reason, lost=(low, high)))

    def _walk_file(self, file: OffsetFile, position: int, *, is_last: bool) -> Iterator[Run]:
        assert position >= 0, (file, position)
        if not file.size:
            return
        mapped = map_file(file.path)
        mapped.madvise(mmap.MADV_SEQUENTIAL)
        view = memoryview(mapped)
        stored = view[: data_limit(file.path)]
        while position < len(view):
            bounds = scan_boundaries(view, position, count_max=RECORDS_PER_RUN)
            columns = read_columns(view, bounds, log_offset=file.base)
            whole = columns
            if columns.valid_count < len(columns):
                whole = take_rows(columns, slice(columns.valid_count))
            if len(whole):
                run = self._read_run(file, view, whole)
                position = int(whole.position[-1] + whole.size[-1])
                self.record_count += len(whole)
                self.on_progress(position - self._reported)
                self._reported = position
                yield run
            if len(whole) == len(columns):
                assert position == bounds.end, (file, position, bounds.end)
                if bounds.outcome is RecordOutcome.OK:
                    continue
                if self._is_finished(file, view, stored, position, is_last=is_last):
                    break
            end = self._skip_damage(file, view, stored, position, is_last=is_last)
            assert position < end <= len(view), (file, position, end)
            position = end
        self.on_progress(file.size - self._reported)
        self._reported = 0

    # Whole records.

    def _read_run(self, file: OffsetFile, view: memoryview, columns: RecordColumns) -> Run:
        """Returns the run of these records; records damage for wrong checksums, topics or store times."""
        topic = self.topics.read(view, columns)
        is_intact = columns.is_valid.copy()
        if self.check_crc:
            is_intact = verify_bodies(view, columns)
            is_intact &= _good_seals(view, columns)
        for row in np.flatnonzero(~is_intact | (topic == UNREADABLE)).tolist():
            is_unreadable = topic[row] == UNREADABLE
            begin = int(columns.position[row])
            self.damages.append(
                Damage(
                    file=file,
                    begin=begin,
                    end=begin + int(columns.size[row]),
                    reason=(RecordOutcome.BAD_TOPIC if is_unreadable else RecordOutcome.BAD_CRC).value,
                    topic=None if is_unreadable else self.topics.names[topic[row]],
                    queue_id=int(columns.queue_id[row]),
                    queue_offset=int(columns.queue_offset[row]),
                    is_whole=True,
                )
            )
        if SEAL_TOPIC in self.topics.names:
            for row in np.flatnonzero(topic == self.topics.names.index(SEAL_TOPIC)).tolist():
                begin = int(columns.log_offset[row])
                self.sealed.append((begin, begin + int(columns.size[row])))
        self._check_times(file, columns)
        assert len(topic) == len(is_intact) == len(columns), "each record is judged"
        good = np.flatnonzero(is_intact & (topic != UNREADABLE))
        for last in good[-2:].tolist():
            self._before_last = (self.last_record_at, self.stored_at_ms)
            self.last_record_at = int(columns.log_offset[last])
            self.intact_end = self.last_record_at + int(columns.size[last])
            self.stored_at_ms = int(columns.stored_at_ms[last])
        if len(good):
            assert file.base <= self.last_record_at < self.intact_end, (file, self.last_record_at)
            assert self.intact_end <= file.base + len(view), (file, self.intact_end, len(view))
        if (topic == UNREADABLE).any():
            kept = np.flatnonzero(topic != UNREADABLE)
            columns, topic, is_intact = take_rows(columns, kept), topic[kept], is_intact[kept]
        block = RecordBlock(view, columns, topic, self.topics.names)
        return Run(file=file, block=block, is_intact=is_intact)

    def _check_times(self, file: OffsetFile, columns: RecordColumns) -> None:
        assert len(columns), file
        first = self.stored_at_ms if self.record_count else columns.stored_at_ms[0]
        steps = np.diff(columns.stored_at_ms, prepend=first)
        for row in np.flatnonzero(steps < 0).tolist():
            step = -int(steps[row])
            self.findings.report(
                StorePart.LOG,
                file.path,
                f"the record was stored {step} ms before the one in front of it",
                is_expected=step <= CLOCK_STEP_MS_MAX,
                offset=int(columns.position[row]),
                size_bytes=int(columns.size[row]),
                log_offset=int(columns.log_offset[row]),
            )

    # What follows the records.

    def _is_finished(
        self, file: OffsetFile, view: memoryview, stored: memoryview, position: int, *, is_last: bool
    ) -> bool:
        """Returns True if the file ends here properly: with a BLANK, or with zeros at the end of the log.

        `stored` is the view without space that the file system has only reserved; the same applies below.
        """
        found = check_record(view, position, log_offset=file.base + position, check_crc=False)
        remaining = len(view) - position
        assert remaining >= 0, (file, position, len(view))
        if found.outcome is RecordOutcome.BLANK and found.size == remaining:
            self.intact_end = file.end
            if data_end(stored, position + 8) > position + 8:
                reason = "non-zero bytes follow the BLANK; nothing reads them"
                self.findings.note(StorePart.LOG, file.path, reason, offset=position, size_bytes=remaining)
            return True
        if not is_last:
            # After a record that ends with its file, the next file shows if bytes are missing.
            return remaining == 0
        if data_end(stored, position) > position:
            return False
        self._check_last(file, view)
        return True

    def _check_last(self, file: OffsetFile, view: memoryview) -> None:
        """Checks the last record for zeros left by a power cut in its properties, which no checksum
        covers.
        """
        begin = self.last_record_at - file.base
        parsed = parse_record(view, begin) if begin >= 0 else None
        if isinstance(parsed, tuple) and parsed[3].endswith(b"\0"):
            head, _, topic, _ = parsed
            damage = Damage(
                file=file, begin=begin, end=begin + head[0], reason="the record's properties end in zeros"
            )
            damage.topic, damage.queue_id, damage.queue_offset = topic, head[3], head[5]
            self.damages.append(damage)
            assert begin < damage.end <= len(view), (damage, len(view))
            self.intact_end = self.last_record_at
            self.last_record_at, self.stored_at_ms = self._before_last

    def _skip_damage(
        self, file: OffsetFile, view: memoryview, stored: memoryview, position: int, *, is_last: bool
    ) -> int:
        """Records the damage at `position`; returns where the scan continues, the file's end if nowhere."""
        newest_ms = self.stored_at_ms if is_last else 0
        valid, is_stale = next_valid(view, position, base=file.base, newest_ms=newest_ms, check_crc=False)
        end = len(view) if valid is None else valid.log_offset - file.base
        reported_end = end if end < len(view) or not is_last else data_end(stored, position)
        assert position <= reported_end <= end, (file, position, reported_end, end)
        self.damages.append(describe_damage(file, view, position, reported_end, is_stale=is_stale))
        return end


def used_count(files: Sequence[OffsetFile]) -> int:
    """Returns how many files hold data; trailing files of zeros were only prepared."""
    count = len(files)
    while count:
        size = files[count - 1].size
        if size:
            view = memoryview(map_file(files[count - 1].path))
            if any(view[:8]) or data_end(view[: data_limit(files[count - 1].path)], 0):
                break
        count -= 1
    return count


def _good_seals(view: memoryview, columns: RecordColumns) -> NDArray[np.bool_]:
    """Returns a mask; False for records whose trailing checksum over the whole record does not match."""
    assert 0 < columns.end <= len(view), (columns.end, len(view))
    result = np.ones(len(columns), dtype=np.bool_)
    words: NDArray[np.uint64] = np.ndarray((len(view) - 7,), ">u8", buffer=view, strides=(1,))
    is_sealed = words[columns.position + columns.size - SEAL_AT] == _SEAL_NAME
    for row in np.flatnonzero(is_sealed).tolist():
        result[row] = has_good_seal(view, int(columns.position[row]), int(columns.size[row]))
    return result
