"""CommitLog bytes in bulk: whole files of records that differ in place, queue offset, key and body size.

Strategy: some thousand records are encoded as a broker does it; every later round of them is the same bytes
          with the fields that must differ written over in columns.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.record import NewRecord, encode_record, tag_hash_of
from tandemmq.protocol.record_encode import encode_blank
from tandemmq.protocol.record_layout import BLANK_BYTES_MIN

TOPICS: Final = ("orders", "payments-europe", "clicks", "inventory")
QUEUE_COUNT: Final = 4  # of each topic
_ROUND_COUNT: Final = 4096
_QUEUE_OFFSET_AT, _LOG_OFFSET_AT, _STORED_AT = 20, 28, 56
_HOST: Final = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
_KEY: Final = "7F0000010000"
_KEY_DIGITS: Final = 20
_CHANGED_DIGITS: Final = 8
_HEX: Final = np.frombuffer(b"0123456789ABCDEF", dtype=np.uint8)
_BORN_AT_MS: Final = 1_700_000_000_000

Ints = NDArray[np.int64]


class LogMaker:
    """Records for a log of files of `segment_bytes`, one after the other."""

    def __init__(self, *, segment_bytes: int, body_bytes: int) -> None:
        assert segment_bytes > 2 * body_bytes + 4096
        self._segment_bytes = segment_bytes
        chance = random.Random(1)
        records = [_encode(chance, body_bytes) for _ in range(_ROUND_COUNT)]
        self._raw = b"".join(raw for raw, _ in records)
        self._ends = np.cumsum([len(raw) for raw, _ in records])
        self._starts = self._ends - [len(raw) for raw, _ in records]
        self._key_at = self._starts + [raw.index(_KEY.encode()) + len(_KEY) for raw, _ in records]
        self._queue = np.array([queue for _, queue in records])
        self._rank = np.zeros(_ROUND_COUNT, dtype=np.int64)
        for queue in range(len(TOPICS) * QUEUE_COUNT):
            rows = np.flatnonzero(self._queue == queue)
            self._rank[rows] = np.arange(len(rows))
        self._queue_ends = np.zeros(len(TOPICS) * QUEUE_COUNT, dtype=np.int64)
        self.count = 0
        """How many records were made."""

    def pieces(self, size_bytes: int) -> Iterator[tuple[int, memoryview]]:
        """(log offset, bytes) of whole records from byte 0 on, at least `size_bytes` in all; fillers where
        a file ends. A piece lies within one file."""
        log_offset = 0
        while log_offset < size_bytes:
            room = self._segment_bytes - log_offset % self._segment_bytes
            count = int(np.searchsorted(self._ends, room - BLANK_BYTES_MIN, side="right"))
            data = self._round(log_offset, count)
            yield log_offset, memoryview(data)
            log_offset += len(data)
            if count < _ROUND_COUNT:
                room -= len(data)
                yield log_offset, memoryview(encode_blank(room) + bytes(room - BLANK_BYTES_MIN))
                log_offset += room

    def _round(self, log_offset: int, count: int) -> bytes:
        """The first `count` records of a round, placed at `log_offset`."""
        size = int(self._ends[count - 1]) if count else 0
        data = np.frombuffer(self._raw, dtype=np.uint8)[:size].copy()
        starts, queue = self._starts[:count], self._queue[:count]
        numbers = self.count + np.arange(count)
        _put(data, starts + _LOG_OFFSET_AT, log_offset + starts)
        _put(data, starts + _QUEUE_OFFSET_AT, self._queue_ends[queue] + self._rank[:count])
        _put(data, starts + _STORED_AT, _BORN_AT_MS + numbers // 100)
        first = _KEY_DIGITS - _CHANGED_DIGITS
        for digit in range(_CHANGED_DIGITS):
            values = numbers >> 4 * (_CHANGED_DIGITS - 1 - digit) & 15
            data[self._key_at[:count] + first + digit] = _HEX[values]
        self._queue_ends += np.bincount(queue, minlength=len(self._queue_ends))
        self.count += count
        return data.tobytes()


def _put(data: NDArray[np.uint8], positions: Ints, values: Ints) -> None:
    """Write 8 bytes, the most significant first, at each position."""
    raw = values.astype(">i8").view(np.uint8).reshape(-1, 8)
    data[positions[:, None] + np.arange(8)] = raw


def _encode(chance: random.Random, body_bytes: int) -> tuple[bytes, int]:
    """A record and the number of its queue."""
    queue = chance.randrange(len(TOPICS) * QUEUE_COUNT)
    key = _KEY + "0" * _KEY_DIGITS
    properties = encode_properties({"UNIQ_KEY": key, "TAGS": f"tag{queue % 3}", "WAIT": "true"})
    record = NewRecord(
        topic=TOPICS[queue // QUEUE_COUNT],
        queue_id=queue % QUEUE_COUNT,
        body=chance.randbytes(body_bytes),
        properties=properties,
        tag_hash=tag_hash_of(properties),
        born_at_ms=_BORN_AT_MS,
        born_host=_HOST,
    )
    raw = encode_record(record, queue_offset=0, log_offset=0, stored_at_ms=0, store_host=_HOST)
    return raw, queue
