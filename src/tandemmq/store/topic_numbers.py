"""Numbers the topics of many records at once.

Strategy: a few topics repeat, so the bytes of all records are compared with one known topic after the other;
          with many topics a dictionary per record is faster.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tandemmq.protocol.record_scan import RecordColumns, gather_texts

COMPARED_MAX = 16
UNREADABLE = -1
_OPEN = -2


class TopicNumbers:
    """The topics met so far: `names[number]`."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._raw: list[bytes] = []
        self._numbers: dict[bytes, int] = {}

    def read(self, view: memoryview, columns: RecordColumns) -> NDArray[np.int64]:
        """The number of each record's topic; UNREADABLE where it is no UTF-8. All records must be valid."""
        result = np.full(len(columns), _OPEN, dtype=np.int64)
        rest = np.arange(len(columns))
        known = 0
        while len(rest) and known < COMPARED_MAX:
            if known == len(self._raw):
                row = int(rest[0])
                start = int(columns.topic_position[row])
                self._number(bytes(view[start : start + int(columns.topic_size[row])]))
                if known == len(self._raw):  # unreadable: nothing to compare the others with
                    break
            raw = self._raw[known]
            same_size = (columns.topic_size == len(raw)).nonzero()[0]
            # Texts of one size are equal byte by byte; numpy compares them so at once.
            texts = gather_texts(view, columns.topic_position[same_size], len(raw)).view(f"S{len(raw)}")
            result[same_size[(texts == raw).ravel()]] = known
            rest = (result == _OPEN).nonzero()[0]
            known += 1
        starts = columns.topic_position[rest].tolist()
        sizes = columns.topic_size[rest].tolist()
        for row, start, size in zip(rest.tolist(), starts, sizes, strict=True):
            result[row] = self._number(bytes(view[start : start + size]))
        return result

    def _number(self, raw: bytes) -> int:
        number = self._numbers.get(raw)
        if number is None:
            try:
                name = raw.decode()
            except UnicodeDecodeError:
                return UNREADABLE
            number = self._numbers[raw] = len(self.names)
            self.names.append(name)
            self._raw.append(raw)
        return number
