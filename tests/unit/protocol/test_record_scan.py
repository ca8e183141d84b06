"""The numpy scan returns the same values as reading the records one by one."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from tandemmq.protocol.message_id import encode_host
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.record import (
    NewRecord,
    RecordOutcome,
    check_record,
    decode_record,
    encode_blank,
    encode_record,
)
from tandemmq.protocol.record_scan import (
    bodies,
    raw_properties,
    read_columns,
    scan_boundaries,
    tag_hashes,
    topic_names,
    verify_bodies,
)

HOSTS = [encode_host("10.0.0.1", 5), encode_host("2001:db8::1", 6)]


def make_log(count: int, *, base: int = 0) -> bytes:
    """Returns records of both versions, both address families and many sizes."""
    log = bytearray()
    for number in range(count):
        new = NewRecord(
            topic="%RETRY%" + "g" * 200 if number % 7 == 0 else f"topic{number % 3}",
            queue_id=number % 4,
            body=bytes([number % 256]) * (number * 37 % 300),
            properties=encode_properties(
                {"TAGS": f"t{number % 5}", "KEYS": f"k{number}"} if number % 6 else {}
            ),
            born_at_ms=1_700_000_000_000 + number,
            born_host=HOSTS[number % 2],
            flag=-number,
            retry_count=number % 16,
            prepared_offset=number * 1_000_000_007,
        )
        log += encode_record(
            new,
            queue_offset=number + 2**40,
            log_offset=base + len(log),
            stored_at_ms=1_700_000_001_000 + number,
            store_host=HOSTS[number // 2 % 2],
        )
    return bytes(log)


def test_columns_agree_with_records_read_one_by_one() -> None:
    log = make_log(100, base=5000)
    boundaries = scan_boundaries(log)
    columns = read_columns(log, boundaries, log_offset=5000)
    assert (len(columns), columns.valid_count, boundaries.end) == (100, 100, len(log))
    assert boundaries.outcome is RecordOutcome.END
    names, raws, payloads = topic_names(log, columns), raw_properties(log, columns), bodies(log, columns)
    hashes = tag_hashes(raws)
    for row, position in enumerate(boundaries.positions.tolist()):
        record = decode_record(log, position)
        for name in ("size", "queue_id", "flag", "queue_offset", "log_offset", "sys_flag", "born_at_ms",
                     "stored_at_ms", "retry_count", "prepared_offset", "body_crc"):  # fmt: skip
            assert int(getattr(columns, name)[row]) == getattr(record, name), name
        assert (names[row], raws[row], payloads[row]) == (record.topic, record.raw_properties, record.body)
        assert hashes[row] == check_record(log, position).tag_hash
    assert verify_bodies(log, columns).all()


@pytest.mark.parametrize(
    ("tail", "outcome"),
    [
        (b"", RecordOutcome.END),
        (bytes(300), RecordOutcome.END),
        (encode_blank(500) + bytes(492), RecordOutcome.BLANK),
        (make_log(1)[:-1], RecordOutcome.TRUNCATED),
        (make_log(1)[:20], RecordOutcome.TRUNCATED),
        (b"\x7f" * 300, RecordOutcome.BAD_MAGIC),
        ((50).to_bytes(4, "big") + make_log(1)[4:], RecordOutcome.BAD_LENGTH),
    ],
)
def test_scan_says_what_lies_behind_the_last_record(tail: bytes, outcome: RecordOutcome) -> None:
    log = make_log(10)
    boundaries = scan_boundaries(log + tail)
    assert (len(boundaries.positions), boundaries.end, boundaries.outcome) == (10, len(log), outcome)


def test_scan_stops_at_its_count_and_goes_on_from_there() -> None:
    log = make_log(10)
    first = scan_boundaries(log, count_max=4)
    rest = scan_boundaries(log, first.end)
    assert (len(first.positions), first.outcome) == (4, RecordOutcome.OK)
    assert (
        np.concatenate([first.positions, rest.positions]).tolist() == scan_boundaries(log).positions.tolist()
    )
    assert scan_boundaries(log, count_max=0).positions.tolist() == []


def test_empty_buffer_gives_empty_columns() -> None:
    columns = read_columns(b"", scan_boundaries(b""))
    assert (len(columns), columns.valid_count, topic_names(b"", columns)) == (0, 0, [])
    assert verify_bodies(b"", columns).tolist() == []


def test_record_with_broken_lengths_or_place_is_not_valid() -> None:
    log = bytearray(make_log(10))
    starts = scan_boundaries(log).positions.tolist()
    log[starts[6] + 84 + 12 : starts[6] + 88 + 12] = b"\x7f\xff\xff\xff"
    columns = read_columns(log, scan_boundaries(log))
    expected = [check_record(log, start, check_crc=False).outcome is RecordOutcome.OK for start in starts]
    assert columns.is_valid.tolist() == expected
    assert (columns.valid_count, topic_names(log, columns)[6], bodies(log, columns)[6]) == (6, "", b"")
    assert not read_columns(log, scan_boundaries(log), log_offset=1).is_valid.any()


def test_changed_body_is_found() -> None:
    log = bytearray(make_log(10))
    columns = read_columns(log, scan_boundaries(log))
    log[int(columns.body_position[5])] ^= 1
    assert verify_bodies(log, columns).tolist() == [True] * 5 + [False] + [True] * 4


def test_mapped_memory_is_read_and_can_be_closed_afterwards() -> None:
    log = make_log(3)
    mapped = mmap.mmap(-1, 8192)
    mapped.write(log)
    view = memoryview(mapped)
    columns = read_columns(view, scan_boundaries(view))
    assert (columns.valid_count, topic_names(view, columns)) == (3, topic_names(log, columns))
    assert verify_bodies(view, columns).all()
    view.release()
    mapped.close()
