"""Records checked in columns get the same verdict as one by one, whatever the damage and however they are
cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replica_logs import HOST, cut

from tandemmq.protocol import speedups
from tandemmq.protocol.record import NewRecord, RecordOutcome, check_record, encode_blank, encode_record
from tandemmq.protocol.record_layout import INT
from tandemmq.protocol.record_scan import RecordColumns
from tandemmq.replication.core import verifier
from tandemmq.replication.core.verifier import BadRecord, RecordVerifier, VerifiedRun

SEGMENT = 4096
BASE = 3 * SEGMENT
V6 = bytes(16) + b"\0\0\0\1"
TOPICS = ("T", "payments", "%RETRY%" + "g" * 200, "")
PROPERTIES = (b"", b"TAGS\x01a\x02", b"KEYS\x01k v\x02UNIQ_KEY\x01" + b"7" * 32)


@pytest.fixture(autouse=True, scope="module")
def _without_kernel() -> Iterator[None]:
    with patch.object(speedups, "kernel", None):  # its runs: tests/property/test_slave_runs.py
        yield


def make_log(numbers: list[int]) -> bytes:
    """Returns records of every kind by number, with fillers where files end."""
    log = bytearray()
    for number in numbers:
        new = NewRecord(
            topic=TOPICS[number % 3],
            queue_id=number % 5,
            body=bytes([number % 251]) * (number % 701),
            properties=PROPERTIES[number // 3 % 3],
            born_at_ms=number,
            born_host=(HOST, V6)[number // 9 % 2],
            sys_flag=number % 4,
        )
        size = len(encode_record(new, queue_offset=0, log_offset=0, stored_at_ms=1, store_host=HOST))
        room = SEGMENT - (BASE + len(log)) % SEGMENT
        if size + 8 > room:
            log += encode_blank(room).ljust(room, b"\0")
        log += encode_record(
            new, queue_offset=number, log_offset=BASE + len(log), stored_at_ms=number, store_host=HOST
        )
    return bytes(log)


def assert_parsed(run: VerifiedRun) -> None:
    """Asserts that the parsed fields are those of the first records of the run."""
    if isinstance(run.parsed, RecordColumns):
        assert run.parsed.end <= len(run.data)
        return
    position = 0
    for checked in run.parsed:
        assert checked == check_record(run.data, position, log_offset=run.log_offset + position)
        position += INT.unpack_from(run.data, position)[0]
    assert not run.parsed or check_record(run.data, position).outcome in (
        RecordOutcome.END,
        RecordOutcome.BLANK,
    )


def verdict(
    pieces: list[bytes], columns_bytes_min: int
) -> tuple[list[list[tuple[int, bytes]]], BadRecord | None, int, int]:
    """Returns the runs of each piece, the fault, the end and the number of held bytes."""
    subject = RecordVerifier(BASE, segment_bytes=SEGMENT, record_bytes_max=800)
    runs, bad = [], None
    with patch.object(verifier, "COLUMNS_BYTES_MIN", columns_bytes_min):
        for piece in pieces:
            buffer = bytearray(piece)
            found, bad = subject.feed([memoryview(buffer)])
            runs.append([(run.log_offset, bytes(run.data)) for run in found])
            for run in found:
                assert_parsed(run)
            buffer[:] = bytes(len(buffer))  # as a buffer that is reused
            if bad is not None:
                break
    return runs, bad, subject.log_offset, subject.held_bytes


numbers = st.lists(st.integers(0, 2**16), min_size=1, max_size=40)
sizes = st.lists(st.integers(1, 5_000), min_size=1, max_size=6)


@given(numbers=numbers, sizes=sizes)
def test_intact_records_pass_however_they_are_cut(numbers: list[int], sizes: list[int]) -> None:
    log = make_log([number - number % 701 + number % 301 for number in numbers])
    pieces = cut(log, sizes)
    together, alone = verdict(pieces, 8), verdict(pieces, 1 << 30)
    assert together == alone
    assert b"".join(data for runs in together[0] for _, data in runs) == log
    assert together[1:] == (None, BASE + len(log), 0)


@given(
    numbers=numbers,
    sizes=sizes,
    places=st.lists(st.tuples(st.integers(0, 2**20), st.integers(1, 255)), min_size=1, max_size=3),
)
def test_damage_gets_the_same_verdict_at_the_same_place(
    numbers: list[int], sizes: list[int], places: list[tuple[int, int]]
) -> None:
    log = bytearray(make_log(numbers))
    for place, bits in places:
        log[place % len(log)] ^= bits
    pieces = cut(bytes(log), sizes)
    assert verdict(pieces, 8) == verdict(pieces, 1 << 30)


@given(
    numbers=numbers, sizes=sizes, at=st.integers(0, 2**20), patch_bytes=st.binary(min_size=1, max_size=200)
)
def test_garbage_gets_the_same_verdict(
    numbers: list[int], sizes: list[int], at: int, patch_bytes: bytes
) -> None:
    log = make_log(numbers)
    at %= len(log)
    pieces = cut(log[:at] + patch_bytes + log[at + len(patch_bytes) // 2 :], sizes)
    assert verdict(pieces, 8) == verdict(pieces, 1 << 30)


@pytest.mark.parametrize("position", [0, 4, 8, 34, 84, 87, 90])
def test_every_damaged_field_ends_the_columns_there(position: int) -> None:
    log = bytearray(make_log([7] * 20))
    size = len(make_log([7]))
    log[5 * size + position] ^= 0x40
    together = verdict([bytes(log)], 8)
    assert together == verdict([bytes(log)], 1 << 30)
    assert together[1] is not None
    assert together[1].log_offset == BASE + 5 * size


def test_columns_say_what_lies_in_the_run() -> None:
    log = make_log([7] * 9)
    subject = RecordVerifier(BASE, segment_bytes=SEGMENT, record_bytes_max=800)
    with patch.object(verifier, "COLUMNS_BYTES_MIN", 8):
        (run,), bad = subject.feed([memoryview(log)])
    assert bad is None
    assert isinstance(run.parsed, RecordColumns)
    assert run.parsed.end == len(run.data)
    assert run.parsed.log_offset.tolist() == [BASE + n * len(log) // 9 for n in range(9)]
    assert run.parsed.queue_offset.tolist() == [7] * 9
