"""Checks key index files: header, slots, chains, and that each entry's record has a key with its hash.
`KeyHashes` looks up the records.

Strategy: entries are read in blocks. The expected slots are built on the way, as a broker would fill them,
          and compared with the file's. Records are looked up many at once.
Source:   spec store 8.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from tandemmq.protocol.record_check import RecordCheck, check_record
from tandemmq.protocol.record_layout import RecordOutcome
from tandemmq.protocol.record_scan import Boundaries, Ints, read_columns
from tandemmq.store.columns import UNREADABLE, PropertyScan, TopicNumbers, has_keys, take_rows
from tandemmq.store.inspect.files import OffsetFiles, map_file, read_range
from tandemmq.store.inspect.findings import Findings, StorePart, damage_at
from tandemmq.store.inspect.log_walk import LogWalk, Progress
from tandemmq.store.key_index import ENTRY, ENTRY_BYTES, HEADER, SLOT_BYTES, IndexHeader, link, made_at

ENTRIES_PER_BLOCK = 16_384
SLOTS_PER_ENTRY_DEFAULT = 4
"""The entries per slot in RocketMQ's defaults; for other files the layout must be given."""


class IndexLayout(msgspec.Struct, frozen=True):
    """The number of slots and entries in each file of a store."""

    slot_count: int
    entry_count: int

    @property
    def size_bytes(self) -> int:
        return HEADER.size + SLOT_BYTES * self.slot_count + ENTRY_BYTES * self.entry_count

    @property
    def entries_at(self) -> int:
        return HEADER.size + SLOT_BYTES * self.slot_count


def guess_layout(size_bytes: int) -> IndexLayout | None:
    """Returns the layout of a file of this length if it has four entries per slot, the default; else None."""
    per_slot = SLOT_BYTES + SLOTS_PER_ENTRY_DEFAULT * ENTRY_BYTES
    slot_count, rest = divmod(size_bytes - HEADER.size, per_slot)
    if rest or slot_count <= 0:
        return None
    layout = IndexLayout(slot_count, SLOTS_PER_ENTRY_DEFAULT * slot_count)
    assert layout.size_bytes == size_bytes, (layout, size_bytes)
    return layout


def list_index_files(directory: Path) -> list[Path]:
    """Returns the files of the index, oldest first."""
    paths = sorted(directory.iterdir()) if directory.is_dir() else []
    return [path for path in paths if made_at(path.name) is not None]


class IndexCheck:
    """Checks one file after the other; `is_expected`: a crash explains stale data in the last one."""

    def __init__(self, layout: IndexLayout, keys: KeyHashes, walk: LogWalk, findings: Findings) -> None:
        self._layout = layout
        self._keys = keys
        self._walk = walk
        self._findings = findings
        self.entry_count = 0

    def check(self, path: Path, *, is_expected: bool, on_progress: Progress) -> None:
        """Reports the faults of one file."""
        size = path.stat().st_size
        if size != self._layout.size_bytes:
            reason = f"the file must have {self._layout.size_bytes} bytes, it has {size}"
            self._findings.damage(StorePart.INDEX, path, reason)
            return
        header = IndexHeader(*HEADER.unpack(read_range(path, 0, HEADER.size)))
        header.next_entry = max(1, header.next_entry)
        if header.next_entry > self._layout.entry_count:
            reason = f"the header counts {header.next_entry - 1} entries of {self._layout.entry_count - 1}"
            self._findings.damage(StorePart.INDEX, path, reason, size_bytes=HEADER.size)
            return
        one = _OneFile(self._layout, path, header, self._findings, is_expected=is_expected)
        for first in range(1, header.next_entry, ENTRIES_PER_BLOCK):
            count = min(ENTRIES_PER_BLOCK, header.next_entry - first)
            entries = one.check_block(first, count)
            self._compare_keys(one, first, entries)
            on_progress(count * ENTRY_BYTES)
        self.entry_count += header.next_entry - 1
        one.finish()

    def _compare_keys(self, one: _OneFile, first: int, entries: NDArray[np.void]) -> None:
        log_offsets = entries["log_offset"].astype(np.int64)
        is_ahead = log_offsets >= self._walk.intact_end
        one.report_entries(first, is_ahead, "point behind the log's end", is_expected=one.is_expected)
        rows = np.flatnonzero((log_offsets >= self._walk.begin) & ~is_ahead)
        if not len(rows):
            return
        has_record, has_key = self._keys.match(log_offsets[rows], entries["hash"][rows].astype(np.int64))
        is_lost = np.zeros(len(entries), dtype=np.bool_)
        is_lost[rows[~has_record]] = True
        for row in np.flatnonzero(is_lost).tolist():
            is_lost[row] = damage_at(self._walk.damages, int(log_offsets[row])) is None
        one.report_entries(first, is_lost, "point to no record")
        is_wrong = np.zeros(len(entries), dtype=np.bool_)
        is_wrong[rows[has_record & ~has_key]] = True
        one.report_entries(first, is_wrong, "point to a record without such a key")


class _OneFile:
    """The header, slots and chains of one file, entry block by entry block."""

    def __init__(
        self, layout: IndexLayout, path: Path, header: IndexHeader, findings: Findings, *, is_expected: bool
    ) -> None:
        self._layout = layout
        self._path = path
        self._header = header
        self._findings = findings
        self.is_expected = is_expected
        self._slots = np.zeros(layout.slot_count, dtype=np.int32)
        self._ends: list[int] = []  # log offsets of the first and the last entry

    def check_block(self, first: int, count: int) -> NDArray[np.void]:
        """Returns entries from `first` on, after checking their chains."""
        assert 1 <= first < first + count <= self._header.next_entry, (self._path, first, count)
        at = self._layout.entries_at + ENTRY_BYTES * first
        assert at + count * ENTRY_BYTES <= self._layout.size_bytes, (self._path, at, count)
        entries: NDArray[np.void] = np.frombuffer(
            read_range(self._path, at, count * ENTRY_BYTES), dtype=ENTRY
        )
        log_offsets = entries["log_offset"].astype(np.int64)
        before = self._ends[-1] if self._ends else -1
        falls = np.diff(log_offsets, prepend=before) < 0
        self.report_entries(first, falls, "point before the entry in front of them")
        self._ends = [self._ends[0] if self._ends else int(log_offsets[0]), int(log_offsets[-1])]
        hashes = entries["hash"].astype(np.int64)
        self.report_entries(first, hashes < 0, "have a negative hash")
        numbers = np.arange(first, first + count, dtype=np.int32)
        chains = link(np.abs(hashes) % self._layout.slot_count, numbers, self._slots)
        assert (chains.previous < numbers).all(), "a chain leads to older entries"
        self._slots[chains.slots] = chains.newest
        self.report_entries(first, entries["previous"] != chains.previous, "break their chain")
        return entries

    def report_entries(
        self, first: int, is_bad: NDArray[np.bool_], what: str, *, is_expected: bool = False
    ) -> None:
        """Reports the marked entries, neighbours together."""
        assert first + len(is_bad) <= self._header.next_entry, (self._path, first, len(is_bad))
        bad = np.flatnonzero(is_bad)
        if not len(bad):
            return
        for run in np.split(bad, np.flatnonzero(np.diff(bad) > 1) + 1):
            number, count = first + int(run[0]), len(run)
            assert count == int(run[-1] - run[0]) + 1, (self._path, run)
            self._findings.report(
                StorePart.INDEX,
                self._path,
                f"entries {number} to {number + count - 1} {what}",
                is_expected=is_expected,
                offset=self._layout.entries_at + ENTRY_BYTES * number,
                size_bytes=count * ENTRY_BYTES,
            )

    def finish(self) -> None:
        """Compares the slots and the header with the entries."""
        raw = read_range(self._path, HEADER.size, SLOT_BYTES * self._layout.slot_count)
        slots = np.frombuffer(raw, dtype=">i4")
        bad = np.flatnonzero(slots != self._slots)
        if len(bad):
            self._findings.report(
                StorePart.INDEX,
                self._path,
                f"{len(bad)} slots do not name the newest entry of their chain",
                is_expected=self.is_expected,
                offset=HEADER.size + SLOT_BYTES * int(bad[0]),
                size_bytes=SLOT_BYTES * int(bad[-1] - bad[0] + 1),
            )
        header = self._header
        if header.next_entry == 1:
            return
        used = int(np.count_nonzero(self._slots))
        assert 0 < used < header.next_entry, (self._path, used, header)
        assert len(self._ends) == 2, (self._path, self._ends)
        facts: Sequence[tuple[str, Callable[[], bool]]] = (
            (f"counts {header.used_slot_count} used slots of {used}", lambda: header.used_slot_count != used),
            ("ends before it begins", lambda: header.end_ms < header.begin_ms),
            (
                "names another first or last record than its entries",
                lambda: [header.begin_log_offset, header.end_log_offset] != self._ends,
            ),
        )
        for reason, is_wrong in facts:
            if is_wrong():
                self._findings.report(
                    StorePart.INDEX,
                    self._path,
                    f"the header {reason}",
                    is_expected=self.is_expected,
                    size_bytes=HEADER.size,
                )


class KeyHashes:
    """The records of a log and their keys, by log offset; keeps the last file mapped."""

    def __init__(self, files: OffsetFiles) -> None:
        self._files = files
        self._topics = TopicNumbers()
        self._base = -1
        self._mapped: mmap.mmap | None = None

    def _view(self, log_offset: int) -> tuple[int, memoryview] | None:
        file = self._files.find(log_offset)
        if file is None or not file.size:
            return None
        if self._mapped is None or self._base != file.base:
            self._mapped = map_file(file.path)
            self._base = file.base
        return file.base, memoryview(self._mapped)

    def record_at(self, log_offset: int) -> RecordCheck:
        """Checks the record at a log offset; END outside the log."""
        found = self._view(log_offset)
        if found is None:
            return RecordCheck(RecordOutcome.END)
        base, view = found
        return check_record(view, log_offset - base, log_offset=log_offset, check_crc=False)

    def match(self, log_offsets: Ints, hashes: Ints) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Returns two masks: offsets with a record, and those whose record has a key with that hash."""
        assert len(log_offsets) == len(hashes), (len(log_offsets), len(hashes))
        has_record = np.zeros(len(log_offsets), dtype=np.bool_)
        has_key = np.zeros(len(log_offsets), dtype=np.bool_)
        order = np.argsort(log_offsets, kind="stable")
        done = 0
        while done < len(order):
            found = self._view(int(log_offsets[order[done]]))
            if found is None:
                done += 1
                continue
            base, view = found
            end = int(np.searchsorted(log_offsets[order], base + len(view)))
            assert done < end <= len(order), (base, done, end)
            rows = order[done:end]
            has_record[rows], has_key[rows] = self._match(view, base, log_offsets[rows], hashes[rows])
            done = end
        assert not (has_key & ~has_record).any(), "only a record has keys"
        return has_record, has_key

    def _match(
        self, view: memoryview, base: int, log_offsets: Ints, hashes: Ints
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Like `match`, for ascending offsets of one file."""
        assert base <= int(log_offsets[0]) <= int(log_offsets[-1]) < base + len(view), (base, log_offsets)
        distinct, number = np.unique(log_offsets, return_inverse=True)
        bounds = Boundaries(positions=distinct - base, end=len(view), outcome=RecordOutcome.OK)
        all_columns = read_columns(view, bounds, log_offset=base)
        # A truncated file may end in the middle of the last record.
        is_whole = all_columns.is_valid & (all_columns.position + all_columns.size <= len(view))
        valid = np.flatnonzero(is_whole)
        columns = take_rows(all_columns, valid)
        topic = self._topics.read(view, columns)
        is_keyed = has_keys(columns) & (topic != UNREADABLE)
        scan = PropertyScan(view, columns)
        key_hashes, rows = scan.key_hashes(self._topics.names, topic, is_keyed)
        tag_hashes, tag_rows = scan.tag_key_hashes(self._topics.names, topic, is_keyed)
        key_hashes, rows = np.concatenate((key_hashes, tag_hashes)), np.concatenate((rows, tag_rows))
        # One number per (record, hash): hashes have 31 bits.
        assert not (key_hashes >> 31).any(), key_hashes
        wanted = (number.astype(np.int64) << 31) | hashes
        return is_whole[number], np.isin(wanted, (valid[rows] << 31) | key_hashes)
