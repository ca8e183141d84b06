"""One hash file of the key index: it maps the hash of a key to the log offsets of its records, newest first.

Invariants: entry 0 is never used; an entry's `previous` is the next older one of its chain; offsets rise with
            the entry number. The header on disk counts only synced entries. Slots on disk may be newer or
            torn after a crash, so they are rebuilt from the entries then.
Strategy:   many keys at once through numpy. Entries are written at once. Slots are 4 bytes at random
            positions, so they stay in memory until a flush. Only the file that is being filled holds its
            slots in memory.
Source:     spec store 8.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import MAXYEAR, datetime, timedelta
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tandemmq.protocol.record_scan import Ints
from tandemmq.runtime.ports import Disk, File

HEADER = Struct(">qqqqii")
SLOT_BYTES = 4
ENTRY = np.dtype([("hash", ">i4"), ("log_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
ENTRY_BYTES = ENTRY.itemsize
SLOTS_PER_PAGE = 1024
ENTRIES_PER_READ = 65_536
_ENTRY = Struct(">iqii")
_SLOT = Struct(">i")
assert _ENTRY.size == ENTRY_BYTES
assert _SLOT.size == SLOT_BYTES
_SECONDS_MAX = 2**31 - 1
_TIME_MS_MAX = 2**63 - 1
_VALUE_BITS = 63  # the value bits of a non-negative int64


class IndexHeader(msgspec.Struct):
    """The first 40 bytes of a file; `next_entry` counts from 1."""

    begin_ms: int = 0
    end_ms: int = 0
    begin_log_offset: int = 0
    end_log_offset: int = 0
    used_slot_count: int = 0
    next_entry: int = 1


class IndexSnapshot(NamedTuple):
    """The data that one flush of one file writes, passed off the loop."""

    file: File
    header: bytes
    slots: NDArray[np.int32] | None
    pages: NDArray[np.intp]

    def write_and_sync(self) -> bool:
        """Writes and syncs the snapshot. Returns False if the disk accepted no write. Blocks.

        Slots may be newer than the header meanwhile; a reader takes those for empty until the next flush. The
        header is written last, so it never counts entries that a power cut may remove.
        Raises:  OSError when an fsync failed.
        """
        try:
            self._write_slots()
        except OSError:
            return False
        self.file.sync()
        try:
            self.file.pwrite(0, (self.header,))
        except OSError:
            return False
        self.file.sync()
        return True

    def _write_slots(self) -> None:
        """Writes the changed pages of slots, neighbouring ones together."""
        if self.slots is None:
            return
        for run in np.split(self.pages, np.flatnonzero(np.diff(self.pages) > 1) + 1):
            if len(run):
                begin = int(run[0]) * SLOTS_PER_PAGE
                part = self.slots[begin : (int(run[-1]) + 1) * SLOTS_PER_PAGE]
                assert len(part) > (len(run) - 1) * SLOTS_PER_PAGE, (self.file.path, begin, len(part))
                self.file.pwrite(HEADER.size + SLOT_BYTES * begin, (part.astype(">i4").tobytes(),))


class Chains(NamedTuple):
    """The links of new entries: each one's older neighbour, and the newest entry of each changed slot."""

    previous: NDArray[np.int32]
    slots: Ints
    newest: NDArray[np.int32]
    new_slot_count: int


def link(places: Ints, numbers: NDArray[np.int32], slots: NDArray[np.int32]) -> Chains:
    """Returns the links of entries with ascending `numbers` that belong into the slots `places`."""
    count = len(places)
    order = stable_order(places)
    ordered = places[order]
    is_first = np.ones(count, dtype=np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    is_last = np.ones(count, dtype=np.bool_)
    is_last[:-1] = is_first[1:]
    heads = slots[ordered[is_first]]
    previous = np.empty(count, dtype=np.int32)
    previous[order[1:]] = numbers[order[:-1]]
    previous[order[is_first]] = heads
    return Chains(previous, ordered[is_last], numbers[order[is_last]], int((heads == 0).sum()))


class KeyIndex:
    """A file of `slot_count` slots and `entry_count` entries."""

    def __init__(self, path: Path, slot_count: int, entry_count: int, disk: Disk) -> None:
        assert slot_count > 0, (path, slot_count)
        assert entry_count > 1, (path, entry_count)
        self.path = path
        self.header = IndexHeader()
        self._slot_count = slot_count
        self._entry_count = entry_count
        self._disk = disk
        self._file: File | None = None
        self._slots: NDArray[np.int32] | None = None
        self._dirty = np.zeros(-(-slot_count // SLOTS_PER_PAGE), dtype=np.bool_)

    @property
    def size_bytes(self) -> int:
        return HEADER.size + SLOT_BYTES * self._slot_count + ENTRY_BYTES * self._entry_count

    @property
    def is_full(self) -> bool:
        return self.header.next_entry >= self._entry_count

    @property
    def file(self) -> File:
        """The open file; opened at first use."""
        if self._file is None:
            self._file = self._disk.open(self.path)
        return self._file

    def create(self, older: IndexHeader | None) -> None:
        """Creates the file. Until its first entry it carries the end time and offset of the previous file.

        Raises:  OSError, and then no file exists.
        """
        assert self._file is None, self.path
        assert self.header.next_entry == 1, (self.path, self.header)
        self._file = self._disk.create(self.path, self.size_bytes, sparse=True)
        self._slots = np.zeros(self._slot_count, dtype=np.int32)
        if older is not None:
            self.header = IndexHeader(older.end_ms, older.end_ms, older.end_log_offset, older.end_log_offset)

    def load_header(self) -> bool:
        """Reads the header; False if the size or the header does not fit this form."""
        if self._disk.size(self.path) != self.size_bytes:
            return False
        header = IndexHeader(*HEADER.unpack(self.file.pread(0, HEADER.size)))
        header.next_entry = max(1, header.next_entry)
        if header.next_entry > self._entry_count:
            return False
        self.header = header
        return True

    # Filling.

    def put_many(self, hashes: Ints, log_offsets: Ints, stored_at_ms: Ints) -> int:
        """Adds as many of the keys as fit, in order, and returns their number.

        Raises:  OSError, and then nothing was added.
        """
        header = self.header
        count = min(len(hashes), self._entry_count - header.next_entry)
        if count <= 0:
            return 0
        hashes, log_offsets, stored_at_ms = hashes[:count], log_offsets[:count], stored_at_ms[:count]
        assert len(log_offsets) == len(stored_at_ms) == count, "each key has a record"
        assert (log_offsets[1:] >= log_offsets[:-1]).all(), "keys come in the order of the log"
        # The header of a file without entries may hold any offset.
        assert header.next_entry == 1 or log_offsets[0] >= header.end_log_offset, (self.path, header)
        slots = self._loaded_slots()
        numbers = np.arange(header.next_entry, header.next_entry + count, dtype=np.int32)
        chains = link(hashes % self._slot_count, numbers, slots)

        begin_ms = int(stored_at_ms[0]) if header.next_entry == 1 else header.begin_ms
        seconds = np.clip((stored_at_ms - begin_ms) // 1000, 0, _SECONDS_MAX) if begin_ms > 0 else 0
        entries = np.empty(count, dtype=ENTRY)
        entries["hash"] = hashes
        entries["log_offset"] = log_offsets
        entries["seconds"] = seconds
        entries["previous"] = chains.previous
        self.file.pwrite(self._entry_at(header.next_entry), (entries.tobytes(),))

        header.used_slot_count += chains.new_slot_count
        slots[chains.slots] = chains.newest
        self._dirty[chains.slots // SLOTS_PER_PAGE] = True
        if header.next_entry == 1:
            header.begin_ms = begin_ms
            header.begin_log_offset = int(log_offsets[0])
        header.next_entry += count
        assert 1 < header.next_entry <= self._entry_count, (self.path, header)
        header.end_ms = int(stored_at_ms[-1])
        header.end_log_offset = int(log_offsets[-1])
        return count

    def _entry_at(self, number: int) -> int:
        assert 0 < number < self._entry_count, (self.path, number)
        return HEADER.size + SLOT_BYTES * self._slot_count + ENTRY_BYTES * number

    def _loaded_slots(self) -> NDArray[np.int32]:
        if self._slots is None:
            raw = self.file.pread(HEADER.size, SLOT_BYTES * self._slot_count)
            slots = np.frombuffer(raw, dtype=">i4").astype(np.int32)
            slots[(slots < 0) | (slots >= self.header.next_entry)] = 0
            self._slots = slots
        return self._slots

    def snapshot(self) -> IndexSnapshot:
        """Returns the data that a flush has to write, taken on the loop; later changes belong to the next
        flush.
        """
        file = self.file  # if opening fails, the pages stay dirty
        pages = np.flatnonzero(self._dirty)
        assert self._slots is not None or not len(pages), f"{self.path} lost slots that were not written"
        self._dirty[pages] = False
        header = HEADER.pack(*msgspec.structs.astuple(self.header))
        return IndexSnapshot(file, header, self._slots, pages)

    def drop_slots(self) -> None:
        """Releases the slots of a full, synced file; from now on they are read from disk."""
        assert not self._dirty.any(), f"{self.path} has slots that were not written"
        self._slots = None

    # After a crash.

    def rebuild_slots(self) -> bool:
        """Builds the slots from the entries; False if the entries contradict each other."""
        slots = np.zeros(self._slot_count, dtype=np.int32)
        newest = -1
        for first, entries in self._entry_blocks():
            offsets = entries["log_offset"].astype(np.int64)
            numbers = np.arange(first, first + len(entries), dtype=np.int32)
            is_rising = bool((np.diff(offsets, prepend=newest) >= 0).all())
            previous = entries["previous"]
            if not is_rising or bool(((previous < 0) | (previous >= numbers)).any()):
                return False
            newest = int(offsets[-1])
            # numpy keeps the last of several values for one slot, which is the newest entry.
            slots[entries["hash"].astype(np.int64) % self._slot_count] = numbers
        self._slots = slots
        self._dirty[:] = True
        self.header.used_slot_count = int(np.count_nonzero(slots))
        assert self.header.used_slot_count < self.header.next_entry, (self.path, self.header)
        return True

    def cut(self, log_end: int) -> bool:
        """Drops entries of records at or after `log_end`; False if no valid entry is left."""
        assert log_end >= 0, log_end
        header = self.header
        kept = 0
        last: Any = None
        for _first, entries in self._entry_blocks():
            below = int(np.count_nonzero(entries["log_offset"] < log_end))
            kept += below
            if below:
                last = entries[below - 1]
            if below < len(entries):
                break
        if last is None:
            return False
        assert kept < header.next_entry, (self.path, kept, header)
        header.next_entry = kept + 1
        header.end_log_offset = int(last["log_offset"])
        # The sum may have any value, since no checksum covers the store times.
        header.end_ms = min(header.begin_ms + int(last["seconds"]) * 1000 + 999, _TIME_MS_MAX)
        return self.rebuild_slots()

    def _entry_blocks(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yields all entries in blocks, with the number of each block's first entry."""
        next_entry = self.header.next_entry
        for first in range(1, next_entry, ENTRIES_PER_READ):
            count = min(ENTRIES_PER_READ, next_entry - first)
            raw = self.file.pread(self._entry_at(first), count * ENTRY_BYTES)
            yield first, np.frombuffer(raw, dtype=ENTRY)

    def count_at_end(self, log_offset: int) -> int:
        """Returns how many of the last entries belong to the record at `log_offset`."""
        number = self.header.next_entry
        while number > 1:
            raw = self.file.pread(self._entry_at(number - 1), ENTRY_BYTES)
            if _ENTRY.unpack(raw)[1] != log_offset:
                break
            number -= 1
        return self.header.next_entry - number

    # Reading.

    def find(self, key_hash: int, count_max: int, begin_ms: int, end_ms: int) -> list[int]:
        """Returns log offsets of records with this hash stored in `begin_ms <= time <= end_ms`,
        newest first.
        """
        assert key_hash >= 0, key_hash
        header = self.header
        found: list[int] = []
        number = self._slot(key_hash % self._slot_count) if header.next_entry > 1 else 0
        while 0 < number < header.next_entry and len(found) < count_max:
            raw = self.file.pread(self._entry_at(number), ENTRY_BYTES)
            entry_hash, log_offset, seconds, previous = _ENTRY.unpack(raw)
            stored_at_ms = header.begin_ms + seconds * 1000
            if seconds < 0 or stored_at_ms + 999 < begin_ms:
                break
            if entry_hash == key_hash and stored_at_ms <= end_ms:
                found.append(log_offset)
            if previous >= number:
                break
            number = previous
        return found

    def _slot(self, place: int) -> int:
        assert 0 <= place < self._slot_count, (self.path, place)
        if self._slots is not None:
            return int(self._slots[place])
        value: int = _SLOT.unpack(self.file.pread(HEADER.size + SLOT_BYTES * place, SLOT_BYTES))[0]
        return value

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Returns True if the file may contain records of this time range."""
        return (
            self.header.next_entry > 1 and self.header.begin_ms <= end_ms and begin_ms <= self.header.end_ms
        )

    def close(self) -> None:
        """Closes the handle; the next use opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def empty(self) -> None:
        """Clears the header on disk, because a power cut may bring a deleted file back. Raises OSError."""
        self.file.pwrite(0, (bytes(HEADER.size),))
        self.file.sync()

    def remove(self) -> None:
        """Deletes the file."""
        self.close()
        self._disk.remove(self.path)


def made_at(name: str) -> datetime | None:
    """Returns the creation time in the file name; None if the name is not an index file's."""
    try:
        # With the zeros appended every field has all its digits, so the name parses in only one way.
        moment = datetime.strptime(name + "000", "%Y%m%d%H%M%S%f")
    except ValueError:
        return None
    return moment if _name_of(moment) == name and moment.year < MAXYEAR else None


def new_name(now_ms: int, names: Iterable[str]) -> str:
    """Returns the name of a file created now, greater than those of the index files among `names`."""
    moment = datetime.fromtimestamp(now_ms / 1000)
    for name in names:
        made = made_at(name)
        if made is not None:
            moment = max(moment, made + timedelta(milliseconds=1))
    return _name_of(moment)


def _name_of(moment: datetime) -> str:
    return moment.strftime("%Y%m%d%H%M%S") + f"{moment.microsecond // 1000:03d}"


def fold_hashes(hashes: NDArray[np.int32]) -> NDArray[Any]:
    """Converts Java string hashes to index hashes: absolute values, and 0 for the one without a positive
    twin.
    """
    folded = np.abs(hashes.astype(np.int64))
    folded[folded > _SECONDS_MAX] = 0
    return folded


def stable_order(values: Ints) -> Ints:
    """Returns the indices that sort `values`; equal values keep their order.

    For numbers of few bits this is several times faster than numpy's stable sort.
    """
    count = len(values)
    bits = count.bit_length()
    if not count or int(values.min()) < 0 or int(values.max()) >> (_VALUE_BITS - bits):
        return values.argsort(kind="stable")
    # With the index in its low bits each value is unique, so the fastest sort is stable and moves no indices.
    packed = values << bits | np.arange(count)
    packed.sort()
    return packed & ((1 << bits) - 1)
