"""Unique keys that a repeated row gets again.

Spark runs tasks twice and replays batches; (query, batch, task, row) names a row for ever all the same (spec
spark SP-52). A key is 32 hexadecimal digits like every client's: ten bytes of a hash of the first three, then
the row's number in six bytes. Java reads milliseconds since the start of the month from bytes 10 to 13, which
here are the upper part of the row's number and so near zero: its search by unique key looks back far enough.

Pure.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa

KEY_CHARS = 32
_PREFIX_BYTES = 10
_ROW_BYTES = 6
_HEX = np.frombuffer(b"0123456789ABCDEF", dtype=np.uint8)


def make_prefix(*names: object) -> bytes:
    """The first digits of the keys of one task: a hash of what names it."""
    text = "\0".join(str(name) for name in names)
    return hashlib.blake2b(text.encode(), digest_size=_PREFIX_BYTES).hexdigest().upper().encode()


def make_keys(prefix: bytes, first_row: int, count: int) -> Any:
    """The keys of `count` rows from number `first_row` on, as a binary array."""
    numbers = np.arange(first_row, first_row + count, dtype=">u8")
    digits = numbers.view(np.uint8).reshape(count, 8)[:, 8 - _ROW_BYTES :]
    keys = np.empty((count, KEY_CHARS), dtype=np.uint8)
    keys[:, : len(prefix)] = np.frombuffer(prefix, dtype=np.uint8)
    keys[:, len(prefix) :: 2] = _HEX[digits >> 4]
    keys[:, len(prefix) + 1 :: 2] = _HEX[digits & 15]
    return fixed_binary(keys)


def fixed_binary(rows: np.ndarray[Any, np.dtype[np.uint8]]) -> Any:
    """A (count, width) array of bytes as a binary array of `count` values."""
    count, width = rows.shape
    offsets = (
        np.arange(0, (count + 1) * width, width, dtype=np.int32) if width else np.zeros(count + 1, np.int32)
    )
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    )
