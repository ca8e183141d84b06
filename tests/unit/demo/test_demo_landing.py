"""The demo's counts agree with files whose content is known."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tandemmq.demo.landing import count_in_commit_log, count_in_table
from tandemmq.protocol.record import NewRecord, encode_blank, encode_record

HOST_V4 = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
HOST_V6 = bytes(15) + b"\x01\x00\x00\x2a\x9f"
FILE_BYTES = 4096


def record(topic: str, log_offset: int, *, born_host: bytes = HOST_V4, body: bytes = b"body") -> bytes:
    new = NewRecord(
        topic=topic, queue_id=0, body=body, properties=b"", tag_hash=0, born_at_ms=1, born_host=born_host
    )
    return encode_record(new, queue_offset=0, log_offset=log_offset, stored_at_ms=1, store_host=HOST_V4)


def write_log(directory: Path, files: list[list[bytes]], *, has_blank: bool) -> None:
    for number, records in enumerate(files):
        content = b"".join(records)
        if has_blank and number < len(files) - 1:
            content += encode_blank(FILE_BYTES - len(content))
        (directory / f"{number * FILE_BYTES:020d}").write_bytes(content.ljust(FILE_BYTES, b"\0"))


def test_only_the_topic_is_counted_over_all_files(tmp_path: Path) -> None:
    write_log(tmp_path, [[record("a", 0), record("b", 98)], [record("a", FILE_BYTES)]], has_blank=True)
    assert count_in_commit_log(tmp_path, "a") == 2
    assert count_in_commit_log(tmp_path, "b") == 1
    assert count_in_commit_log(tmp_path, "none") == 0


@pytest.mark.parametrize("topic", ["t", "t" * 127, "%RETRY%" + "g" * 130], ids=["short", "longest", "V2"])
def test_topics_of_every_length_are_found(tmp_path: Path, topic: str) -> None:
    write_log(tmp_path, [[record(topic, 0), record(topic, 0, born_host=HOST_V6)]], has_blank=False)
    assert count_in_commit_log(tmp_path, topic) == 2


def test_a_foreign_magic_is_an_error_that_says_where(tmp_path: Path) -> None:
    first = record("a", 0)
    broken = bytearray(record("a", len(first)))
    broken[4] ^= 0xFF
    write_log(tmp_path, [[first, bytes(broken)]], has_blank=False)
    with pytest.raises(ValueError, match=f"at byte {len(first)}"):
        count_in_commit_log(tmp_path, "a")


def test_a_table_is_counted_with_its_doubles(tmp_path: Path) -> None:
    for part in range(2):
        pq.write_table(pa.table({"msgId": ["x", f"y{part}"]}), tmp_path / f"{part}.parquet")
    counted = count_in_table(tmp_path)
    assert (counted.rows, counted.distinct) == (4, 3)
