"""Rebuilds ConsumeQueues and key index from runs of records, in directories beside the old ones.

Invariants: the files have the same bytes as those of a broker that recovers the log without them, because the
            broker's classes write them. The old files are not touched.
Source:     spec store 5, 8.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from tandemmq.protocol.record_scan import Ints
from tandemmq.runtime.ports import Disk
from tandemmq.store.columns import has_keys
from tandemmq.store.consume_queue import FILLER_SIZE
from tandemmq.store.consume_queues import ConsumeQueues
from tandemmq.store.inspect.files import QueueFiles, is_expired
from tandemmq.store.inspect.index_check import IndexLayout
from tandemmq.store.inspect.log_walk import Run
from tandemmq.store.inspect.queue_check import QueueRows
from tandemmq.store.key_index import KeyIndex, made_at, new_name
from tandemmq.store.options import QUEUE_OFFSET_MAX, QUEUE_UNIT_BYTES, StoreOptions, StorePaths
from tandemmq.store.segmented_log import OpenFiles

Key = tuple[str, int]


class QueueBuilder:
    """New ConsumeQueues below `directory`."""

    def __init__(self, directory: Path, file_bytes: int, disk: Disk) -> None:
        assert file_bytes > 0, file_bytes
        assert file_bytes % QUEUE_UNIT_BYTES == 0, file_bytes
        options = StoreOptions(root=directory.parent, consume_queue_file_bytes=file_bytes)
        paths = StorePaths(options)
        paths.consume_queues = directory
        self._files = OpenFiles(disk, options.open_file_count_max)
        self.queues = ConsumeQueues(options, paths, disk, self._files)
        self.restarted: list[Key] = []

    def add(self, rows: QueueRows) -> None:
        """Adds the entries of these records; damaged records get fillers."""
        queue = self.queues.get_or_create(rows.key)
        for queue_offset, log_offset, size, tag_hash, is_good in zip(
            rows.queue_offset.tolist(),
            rows.log_offset.tolist(),
            rows.size.tolist(),
            rows.tag_hash.tolist(),
            rows.is_intact.tolist(),
            strict=True,
        ):
            if not is_good or queue_offset < 0:
                continue
            if queue_offset < queue.max_offset:
                # The topic was deleted and recreated: only messages of the new one are reachable.
                self.restarted.append(rows.key)
            queue.put_at(queue_offset, log_offset, size, tag_hash)
        assert 0 <= queue.min_offset <= queue.max_offset, queue

    def keep(self, old: QueueFiles, log_begin: int) -> bool:
        """Copies a queue without records, so that its offsets continue; True if something was kept.

        Only entries up to the last expired record are worth keeping.
        """
        assert old.key not in self.queues.table, old.key
        end = _expired_end(old, log_begin)
        if end <= old.first:
            return False
        queue = self.queues.get_or_create(old.key)
        first = max(old.first, _last_file_start(old, end))
        assert first < end <= old.end, (old.key, first, end, old.end)
        for at, entries in old.blocks(first, end):
            for index, entry in enumerate(entries.tolist()):
                if queue.max_offset == 0 and at + index > 0:
                    queue.put_at(at + index, *entry)
                elif entry[1] == FILLER_SIZE:
                    queue.put(0, FILLER_SIZE, 0)
                else:
                    queue.put(*entry)
        assert queue.max_offset == end, (queue, end)
        return True

    def fill(self, key: Key, end: int, count_max: int) -> None:
        """Extends the queue to `end` with fillers.

        Nothing is done if more than `count_max` fillers would be needed, since the queue never had that many
        messages.
        """
        assert end > 0, (key, end)
        queue = self.queues.get_or_create(key)
        if end > QUEUE_OFFSET_MAX or (queue.max_offset and end - queue.max_offset > count_max):
            return
        if queue.max_offset == 0:
            queue.put_at(end - 1, 0, FILLER_SIZE, 0)
        while queue.max_offset < end:
            queue.put(0, FILLER_SIZE, 0)

    def finish(self, log_end: int) -> None:
        """Writes and syncs everything. Raises OSError."""
        for queue in self.queues:
            queue.write()
            if queue.end_log_offset > log_end:
                queue.truncate(log_end)
            assert queue.end_log_offset <= log_end, (queue, queue.end_log_offset, log_end)
            assert not queue.unwritten_bytes, (queue, queue.unwritten_bytes)
            for segment in queue.unsynced_segments()[0]:
                segment.file.sync()

    def close(self) -> None:
        """Closes the handles, finished or not."""
        self._files.close()


def _expired_end(old: QueueFiles, log_begin: int) -> int:
    """Returns the queue offset after the last entry of an expired record."""
    end = old.first
    for first, entries in old.blocks(old.first, old.end):
        rows = np.flatnonzero(is_expired(entries, log_begin))
        if len(rows):
            end = min(first + int(rows[-1]) + 1, QUEUE_OFFSET_MAX)
    assert old.first <= end <= old.end, (old.key, old.first, end, old.end)
    return end


def _last_file_start(old: QueueFiles, end: int) -> int:
    """Returns the first queue offset of the file of the last kept entry."""
    file = old.all.find((end - 1) * QUEUE_UNIT_BYTES)
    return end - 1 if file is None else file.base // QUEUE_UNIT_BYTES


NAMED_YEAR_MAX = 9000
"""The last year used in a file name, so that names for the following files remain."""
_NAMED_MS = range(int(datetime(NAMED_YEAR_MAX, 1, 1, tzinfo=UTC).timestamp() * 1000))


class IndexBuilder:
    """New key index files in `directory`, named like the `old` ones as far as those suffice."""

    def __init__(self, directory: Path, layout: IndexLayout, old: Sequence[Path], disk: Disk) -> None:
        assert min(layout.slot_count, layout.entry_count - 1) > 0, layout
        self._directory = directory
        self._layout = layout
        made = [(path.name, made_at(path.name)) for path in old]
        self._names = [name for name, at in made if at is not None and at.year <= NAMED_YEAR_MAX]
        self._disk = disk
        self.files: list[KeyIndex] = []
        self.key_count = 0

    def add(self, run: Run, topics: Sequence[str]) -> None:
        """Adds the keys of the run's intact records. Raises OSError."""
        is_keyed = has_keys(run.columns) & run.is_intact
        hashes, rows = run.properties.key_hashes(topics, run.topic, is_keyed)
        self.add_keys(hashes, run.columns.log_offset[rows], run.columns.stored_at_ms[rows])

    def add_keys(self, hashes: Ints, log_offsets: Ints, stored_at_ms: Ints) -> None:
        """Adds keys by hash, record and the record's store time, in log order. Raises OSError."""
        assert len(hashes) == len(log_offsets) == len(stored_at_ms), "each key has a record"
        done = 0
        while done < len(hashes):
            index = self._current(int(stored_at_ms[done]))
            before = done
            done += index.put_many(hashes[done:], log_offsets[done:], stored_at_ms[done:])
            assert before < done <= len(hashes), (index.path, before, done)
        self.key_count += len(hashes)

    def _current(self, stored_at_ms: int) -> KeyIndex:
        last = self.files[-1] if self.files else None
        if last is not None and not last.is_full:
            return last
        if last is not None:
            _settle(last)
        path = self._directory / self._new_name(stored_at_ms)
        assert last is None or last.path < path, (last, path)
        index = KeyIndex(path, self._layout.slot_count, self._layout.entry_count, self._disk)
        index.create(None if last is None else last.header)
        self.files.append(index)
        return index

    def _new_name(self, stored_at_ms: int) -> str:
        newest = self.files[-1].path.name if self.files else ""
        if self._names:
            name = self._names.pop(0)
            if name > newest:
                return name
        # No checksum covers the store time: an invalid date counts as the earliest one.
        return new_name(stored_at_ms if stored_at_ms in _NAMED_MS else 0, [newest])

    def finish(self, log_end: int) -> int:
        """Writes and syncs everything; returns the store time of the newest key, 0 without keys."""
        while self.files:
            last = self.files[-1]
            if last.header.end_log_offset < log_end or last.cut(log_end):
                _settle(last)
                return last.header.end_ms
            # All of its keys belong to records beyond the log's end.
            self.files.pop().remove()
        return 0

    def close(self) -> None:
        """Closes the handles, finished or not."""
        for index in self.files:
            index.close()


def _settle(index: KeyIndex) -> None:
    if not index.snapshot().write_and_sync():
        raise OSError(errno.ENOSPC, "no room for the key index", str(index.path))
    index.drop_slots()
    index.close()
