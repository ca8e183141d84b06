"""Counts taken from files alone, so that no running process can vouch for itself.

The CommitLog walk reads sizes, magics and topics straight from the bytes (spec store 3) and shares no
code with the store that wrote them.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.dataset as ds

_SIZE_AND_MAGIC = struct.Struct(">iI")
_INT32 = struct.Struct(">i")
_MAGIC_V1 = 0xDAA320A7
_MAGIC_V2 = 0xDAA320AB
_MAGIC_BLANK = 0xCBD43194
_SYS_FLAG_AT = 36
_HOSTS_START = 48
_BORN_HOST_V6 = 0x10
_STORE_HOST_V6 = 0x20


def count_in_commit_log(directory: Path, topic: str) -> int:
    """The records of `topic` in the CommitLog files of `directory`, oldest file first, up to the first
    free byte."""
    wanted = topic.encode()
    return sum(
        _count_in_file(path, wanted) for path in sorted(directory.iterdir()) if path.stat().st_size > 0
    )


def _count_in_file(path: Path, topic: bytes) -> int:
    count = 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        position = 0
        while position + _SIZE_AND_MAGIC.size <= len(data):
            size, magic = _SIZE_AND_MAGIC.unpack_from(data, position)
            if magic == _MAGIC_BLANK or size <= 0:
                break
            if magic not in (_MAGIC_V1, _MAGIC_V2):
                raise ValueError(f"{path} at byte {position}: no record starts here (magic {magic:#x})")
            if _topic_of(data, position, is_long=magic == _MAGIC_V2) == topic:
                count += 1
            position += size
    return count


def _topic_of(data: mmap.mmap, position: int, *, is_long: bool) -> bytes:
    sys_flag = _INT32.unpack_from(data, position + _SYS_FLAG_AT)[0]
    hosts_size = (20 if sys_flag & _BORN_HOST_V6 else 8) + (20 if sys_flag & _STORE_HOST_V6 else 8)
    # Behind the born host: the store time (8). Behind the store host: retries (4), prepared offset (8).
    body_size_at = position + _HOSTS_START + hosts_size + 8 + 4 + 8
    topic_size_at = body_size_at + 4 + _INT32.unpack_from(data, body_size_at)[0]
    if is_long:
        size, start = int.from_bytes(data[topic_size_at : topic_size_at + 2], "big"), topic_size_at + 2
    else:
        size, start = data[topic_size_at], topic_size_at + 1
    return data[start : start + size]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCount:
    """Rows of a landed table, and how many different messages they are."""

    rows: int
    distinct: int


def count_in_table(directory: Path) -> TableCount:
    """Rows and distinct message ids of a Parquet table, read by pyarrow alone."""
    column = ds.dataset(directory, format="parquet").to_table(columns=["msgId"])["msgId"]
    return TableCount(rows=len(column), distinct=pc.count_distinct(column).as_py())
