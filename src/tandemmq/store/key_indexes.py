"""The sequence of key index files: filled by the dispatcher, read by queries for a key.

Invariants: files are ordered by name, the local time of their creation; only the last one is filled.
Strategy:   dispatched records are only collected. Their keys are hashed and added many at once: when there
            are enough, after a delay, or at a query. A disk that accepts no index writes ends the indexing,
            not the broker, because delivery does not need keys. The next start recovers missing keys from the
            log.
Source:     spec store 8.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from tandemmq.protocol.hashes import java_hashes, key_hash, key_head
from tandemmq.protocol.record_scan import Ints
from tandemmq.protocol.sys_flag import TRANSACTION_ROLLBACK
from tandemmq.runtime.ports import Clock, Disk, NotOpened, TimerHandle
from tandemmq.store.key_index import KeyIndex, fold_hashes, made_at, new_name
from tandemmq.store.options import StoreOptions, StorePaths
from tandemmq.store.record_block import PlacedBatch, Unit
from tandemmq.telemetry import events
from tandemmq.units import MIB

log = logging.getLogger(__name__)

PENDING_COUNT_MAX = 2048
LATE_KEYS_MAX = 1_000_000
"""The most keys that wait for a file that cannot be opened; beyond it the index counts as failed."""
PENDING_BYTES_MAX = 8 * MIB
"""The most bytes of the log from which records are collected, which are kept with their bodies."""
BUILD_DELAY_S = 0.2


class KeyIndexes:
    """All index files of one store."""

    def __init__(self, options: StoreOptions, paths: StorePaths, *, disk: Disk, clock: Clock) -> None:
        self._options = options
        self._directory = paths.key_indexes
        self._disk = disk
        self._clock = clock
        self._files: list[KeyIndex] = []
        self._unsynced: list[KeyIndex] = []
        self._syncing: KeyIndex | None = None  # its handle is in use off the loop
        self._late: list[tuple[Ints, Ints, Ints]] = []  # keys whose file could not be opened yet
        self._pending: list[Unit] = []
        self._pending_count = 0
        self._pending_bytes = 0
        self._timer: TimerHandle | None = None
        self.indexed_to = -1  # records up to this log offset are in the files already
        self._indexed_key_count = 0  # keys of the record at `indexed_to` in the files; a crash may lose some
        self.is_broken = False
        self.make_name: Callable[[int], str] = self._name_by_clock
        """Returns the name of the next file, whose first record was stored at that time; it is greater than
        the names before. Set by a repair, which keeps the names of the files that it replaces.
        """

    @property
    def files(self) -> Sequence[KeyIndex]:
        """The files, oldest first."""
        return self._files

    def _name_by_clock(self, _stored_at_ms: int) -> str:
        return new_name(self._clock.now_ms(), self._disk.list(self._directory))

    def load(self, *, has_abort: bool) -> None:
        """Opens the files; after a crash the last one is repaired.

        A file whose size differs from the configured one is left alone and not used.
        """
        assert not self._files, "the files are loaded once"
        for name in self._disk.list(self._directory):
            if made_at(name) is None:
                continue
            index = self._index(name)
            if index.load_header():
                index.close()
                self._files.append(index)
            else:
                log.warning(events.STORE_FILE_IGNORED, extra={"path": str(index.path)})
        assert all(one.path < other.path for one, other in pairwise(self._files)), self._directory
        if has_abort:
            self._repair_end()
        self._record_end()

    def _repair_end(self) -> None:
        """Drops files begun since the last flush, and rebuilds the slots of the file that was being filled.

        A header counts the entries on disk; all others are found in the log again.
        """
        while self._files:
            index = self._files[-1]
            if index.header.next_entry > 1 and index.rebuild_slots():
                # The header may be in memory only, if the flush that wrote it failed.
                self._add_unsynced(index)
                return
            self._delete(self._files.pop())

    def cut(self, log_end: int) -> None:
        """Drops entries beyond the end of the log."""
        assert self._syncing is None, f"{self._syncing} is written off the loop"
        assert not self._pending or self._pending[-1][1] < log_end, (self._pending[-1][1], log_end)
        self._late = [
            tuple(column[: int(np.searchsorted(part[1], log_end))] for column in part)  # type: ignore[misc]
            for part in self._late
        ]
        for index in reversed(tuple(self._files)):
            if index.header.next_entry <= 1:
                continue  # its header holds no valid bounds, and the file before it may need a cut
            if index.header.end_log_offset < log_end:
                break
            if index.cut(log_end):
                self._add_unsynced(index)
                break
            self._files.remove(index)
            self._delete(index)
        self._record_end()

    def _delete(self, index: KeyIndex) -> None:
        """Deletes the file. Raises OSError."""
        assert index not in self._files, index.path
        log.warning(events.KEY_INDEX_DELETED, extra={"path": str(index.path)})
        if index in self._unsynced:
            self._unsynced.remove(index)
        index.empty()  # if a power cut brought it back, its keys would be of other records
        index.remove()

    def _record_end(self) -> None:
        self.indexed_to = -1
        self._indexed_key_count = 0
        for index in reversed(self._files):
            if self.indexed_to < 0 and index.header.next_entry > 1:
                self.indexed_to = index.header.end_log_offset
            count = index.count_at_end(self.indexed_to)
            self._indexed_key_count += count
            if count < index.header.next_entry - 1:
                break

    def _index(self, name: str) -> KeyIndex:
        return KeyIndex(
            self._directory / name,
            self._options.key_index_slot_count,
            self._options.key_index_entry_count,
            self._disk,
        )

    # Filling.

    def add(self, units: list[Unit], count: int) -> None:
        """Collects dispatched records, `count` in all, in log order; those already indexed are left out."""
        if self.is_broken:
            return
        if units[0][1] <= self.indexed_to:
            units = [unit for unit in units if unit[1] >= self.indexed_to]
            if not units:
                return
        self._pending += units
        self._pending_count += count
        self._pending_bytes += units[-1][1] + units[-1][2] - units[0][1]
        if self._pending_count >= PENDING_COUNT_MAX or self._pending_bytes >= PENDING_BYTES_MAX:
            self.build()
        elif self._timer is None:
            self._timer = self._clock.call_later(BUILD_DELAY_S, self.build)

    def add_hashes(self, hashes: Ints, log_offsets: Ints, stored_at_ms: Ints) -> None:
        """Adds keys of dispatched records by their hashes, in log order; those already indexed are
        left out.
        """
        assert len(hashes) == len(log_offsets) == len(stored_at_ms), "each key has a record"
        self.build()
        first = int(np.searchsorted(log_offsets, self.indexed_to))
        last = int(np.searchsorted(log_offsets, self.indexed_to, side="right"))
        first = min(first + self._indexed_key_count, last)  # RocketMQ 5.4 and later index the tags, too
        if not self.is_broken:
            self._put(hashes[first:], log_offsets[first:], stored_at_ms[first:])

    def build(self) -> None:
        """Puts the keys of the collected records into the files."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        units = self._pending
        self._pending = []
        assert bool(units) == (self._pending_bytes > 0), (len(units), self._pending_bytes)
        self._pending_count = self._pending_bytes = 0
        if self.is_broken or not units:
            return
        assert self.indexed_to <= units[0][1] <= units[-1][1], (self.indexed_to, units[0][1], units[-1][1])
        texts: list[str] = []
        heads: list[int] = []
        log_offsets: list[int] = []
        times: list[int] = []
        for _queue, log_offset, _size, record, stored_at_ms in units:
            if record.sys_flag & TRANSACTION_ROLLBACK == TRANSACTION_ROLLBACK:
                continue
            if isinstance(record, PlacedBatch):
                found, key_offsets, key_times = _keys_of(record)
                texts += found
                heads += [key_head(record.topic)] * len(found)
                log_offsets += key_offsets
                times += key_times
                continue
            head = key_head(record.topic)
            unique_key, keys = record.unique_key, record.keys
            if unique_key:
                texts.append(unique_key)
                heads.append(head)
                log_offsets.append(log_offset)
                times.append(stored_at_ms)
            if keys:
                for key in keys.split(" "):
                    if key:
                        texts.append(key)
                        heads.append(head)
                        log_offsets.append(log_offset)
                        times.append(stored_at_ms)
        assert len(texts) == len(heads) == len(log_offsets) == len(times), "each key has a record"
        done = 0
        if units[0][1] == self.indexed_to:  # RocketMQ 5.4 and later index the tags, too
            done = min(self._indexed_key_count, log_offsets.count(self.indexed_to))
        if len(texts) > done:
            hashes = fold_hashes(java_hashes(texts[done:], heads[done:]))
            self._put(hashes, np.array(log_offsets[done:]), np.array(times[done:]))

    def _put(self, hashes: Ints, log_offsets: Ints, stored_at_ms: Ints) -> None:
        self._late.append((hashes, log_offsets, stored_at_ms))
        self._put_late()

    def _put_late(self) -> None:
        """Puts waiting keys into the files; they keep waiting while no file can be opened."""
        waiting, self._late = self._late, []
        for number, (hashes, log_offsets, stored_at_ms) in enumerate(waiting):
            done = 0
            try:
                while done < len(hashes):
                    index = self._current(int(stored_at_ms[done]))
                    self._add_unsynced(index)
                    before = done
                    done += index.put_many(hashes[done:], log_offsets[done:], stored_at_ms[done:])
                    assert before < done <= len(hashes), (index.path, before, done, len(hashes))
            except NotOpened as error:
                self._late = [
                    (hashes[done:], log_offsets[done:], stored_at_ms[done:]),
                    *waiting[number + 1 :],
                ]
                if sum(len(part[0]) for part in self._late) > LATE_KEYS_MAX:
                    self._late = []
                    self._break(error)
                return
            except OSError as error:
                self._break(error)
                return

    def _add_unsynced(self, index: KeyIndex) -> None:
        if index not in self._unsynced:
            self._unsynced.append(index)

    def _current(self, stored_at_ms: int) -> KeyIndex:
        """Returns the file to fill; a new one if there is none or it is full. Raises OSError."""
        last = self._files[-1] if self._files else None
        if last is not None and not last.is_full:
            return last
        index = self._index(self.make_name(stored_at_ms))
        assert last is None or last.path < index.path, (last, index.path)
        index.create(last.header if last is not None else None)
        assert not index.is_full, index.path
        self._files.append(index)
        return index

    def _break(self, error: OSError) -> None:
        self.is_broken = True
        log.error(events.KEY_INDEX_FAILED, extra={"path": str(self._directory), "error": str(error)})

    async def flush(self) -> bool:
        """Writes and syncs the files. Returns True if the keys of everything dispatched so far are on disk.

        Raises:  NotOpened when a file could not be opened now: the next flush syncs it. OSError when an fsync
                 failed.
        """
        self.build()
        if self._late and not self.is_broken:
            self._put_late()
        assert self._syncing is None, "one flush at a time"
        dirty, self._unsynced = self._unsynced, []
        for number, index in enumerate(dirty):
            if self.is_broken:
                break
            assert index in self._files, f"{index.path} is deleted and waits to be synced"
            self._syncing = index
            try:
                is_written = await self._disk.offload(index.snapshot().write_and_sync)
            except NotOpened:
                for one in reversed(dirty[number:]):
                    if one in self._files and one not in self._unsynced:
                        self._unsynced.insert(0, one)
                raise
            finally:
                self._syncing = None
            if not is_written:
                self.is_broken = True
                log.error(events.KEY_INDEX_FAILED, extra={"path": str(index.path), "error": "no room"})
            elif index is not self._files[-1] and index not in self._unsynced:
                index.drop_slots()
                index.close()
        return not self.is_broken and not self._late

    # Reading.

    def query(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> list[int]:
        """Returns log offsets of records whose key has this hash, ascending; collisions are among them."""
        self.build()
        wanted = min(count_max, self._options.query_count_max)
        hashed = key_hash(topic, key)
        found: list[int] = []
        for index in reversed(self._files):
            if len(found) >= wanted or (index.header.next_entry > 1 and index.header.end_ms < begin_ms):
                break
            if index.overlaps(begin_ms, end_ms):
                found += index.find(hashed, wanted - len(found), begin_ms, end_ms)
                if index is not self._files[-1] and index is not self._syncing:
                    index.close()
        assert len(found) <= max(0, wanted), (len(found), wanted)
        return sorted(set(found))

    # Cleaning and stop.

    def drop_below(self, log_begin: int) -> int:
        """Deletes leading files whose records are gone, never the last; returns their number (spec
        store 19).
        """
        dropped = 0
        while len(self._files) > 1 and self._files[0].header.end_log_offset < log_begin:
            if self._files[0] is self._syncing:
                break
            index = self._files.pop(0)
            if index in self._unsynced:
                self._unsynced.remove(index)
            index.remove()
            dropped += 1
        return dropped

    def halt(self) -> None:
        """Stops all file access, because the store has failed."""
        self.is_broken = True

    def close(self) -> None:
        """Closes the handles; call `flush` first."""
        assert self._syncing is None, f"{self._syncing} is written off the loop"
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for index in self._files:
            index.close()


def _keys_of(batch: PlacedBatch) -> tuple[Sequence[str], list[int], Sequence[int]]:
    """Returns the keys of a batch, the unique key of a record first, and of each key the log offset and the
    time of its record.
    """
    if all(batch.unique_keys) and not any(batch.keys):
        return batch.unique_keys, batch.log_offsets, batch.stored_times_ms
    texts, log_offsets, times = [], [], []
    columns = batch.unique_keys, batch.keys, batch.log_offsets, batch.stored_times_ms
    for unique_key, keys, log_offset, stored_at_ms in zip(*columns, strict=True):
        for key in (unique_key, *keys.split(" ")):
            if key:
                texts.append(key)
                log_offsets.append(log_offset)
                times.append(stored_at_ms)
    return texts, log_offsets, times
