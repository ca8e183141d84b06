"""Looks up records by log offset: which keys they have.

Source: spec store 8.
"""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

from tandemmq.protocol.record_check import RecordCheck, check_record
from tandemmq.protocol.record_layout import RecordOutcome
from tandemmq.protocol.record_scan import Boundaries, RecordColumns, read_columns
from tandemmq.store.column_rows import take_rows
from tandemmq.store.inspect.files import OffsetFiles, map_file
from tandemmq.store.property_scan import PropertyScan
from tandemmq.store.topic_numbers import UNREADABLE, TopicNumbers

Ints = NDArray[np.int64]

ROLLBACK = 0xC
"""Both transaction bits: the record has no keys in the index."""


def has_keys(columns: RecordColumns) -> NDArray[np.bool_]:
    """Which records' keys are indexed."""
    result: NDArray[np.bool_] = columns.sys_flag & ROLLBACK != ROLLBACK
    return result


class KeyHashes:
    """The records of a log by offset; keeps the file of the last look-up mapped."""

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
        """What lies at a log offset; END outside the log."""
        found = self._view(log_offset)
        if found is None:
            return RecordCheck(RecordOutcome.END)
        base, view = found
        return check_record(view, log_offset - base, log_offset=log_offset, check_crc=False)

    def match(self, log_offsets: Ints, hashes: Ints) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Whether a record lies at each offset, and whether one of its keys has that hash."""
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
            rows = order[done:end]
            has_record[rows], has_key[rows] = self._match(view, base, log_offsets[rows], hashes[rows])
            done = end
        return has_record, has_key

    def _match(
        self, view: memoryview, base: int, log_offsets: Ints, hashes: Ints
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """The same for offsets of one file, ascending."""
        distinct, number = np.unique(log_offsets, return_inverse=True)
        bounds = Boundaries(positions=distinct - base, end=len(view), outcome=RecordOutcome.OK)
        all_columns = read_columns(view, bounds, log_offset=base)
        valid = np.flatnonzero(all_columns.is_valid)
        columns = take_rows(all_columns, valid)
        topic = self._topics.read(view, columns)
        is_keyed = has_keys(columns) & (topic != UNREADABLE)
        key_hashes, rows = PropertyScan(view, columns).key_hashes(self._topics.names, topic, is_keyed)
        # One number per (record, hash): hashes have 31 bits.
        wanted = (number.astype(np.int64) << 31) | hashes
        return all_columns.is_valid[number], np.isin(wanted, (valid[rows] << 31) | key_hashes)
