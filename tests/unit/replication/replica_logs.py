"""Bytes of a CommitLog for the tests of replication: real records, with a filler before each file's end."""

from __future__ import annotations

from tandemmq.protocol.record import NewRecord, RecordCheck, check_record, encode_blank, encode_record

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"


def record_at(log_offset: int, *, body: bytes = b"x" * 100, queue_offset: int = 0) -> bytes:
    new = NewRecord(
        topic="T", queue_id=0, body=body, properties=b"TAGS\x01a\x02", born_at_ms=1, born_host=HOST
    )
    return encode_record(
        new, queue_offset=queue_offset, log_offset=log_offset, stored_at_ms=2, store_host=HOST
    )


def make_log(sizes: list[int], *, segment_bytes: int, start: int = 0) -> tuple[bytes, list[int]]:
    """Returns a log of records with bodies of `sizes` bytes from `start` on, and the offset of each
    record.
    """
    log, offsets = bytearray(), []
    for number, size in enumerate(sizes):
        at = start + len(log)
        record = record_at(at, body=bytes([number % 251]) * size, queue_offset=number)
        room = segment_bytes - at % segment_bytes
        if len(record) + 8 > room:
            log += encode_blank(room).ljust(room, b"\0")
            at = start + len(log)
            record = record_at(at, body=bytes([number % 251]) * size, queue_offset=number)
        offsets.append(at)
        log += record
    return bytes(log), offsets


def checks_of(log: bytes, start: int = 0) -> list[RecordCheck]:
    """Returns the fields of the records that `log` holds, which begins at offset `start`."""
    checks: list[RecordCheck] = []
    position = 0
    while position < len(log):
        checks.append(check_record(log, position, log_offset=start + position))
        assert checks[-1].size, position
        position += checks[-1].size
    return checks


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """Returns `data` in pieces of the given sizes, repeated as often as needed."""
    pieces, position, turn = [], 0, 0
    while position < len(data):
        size = max(1, sizes[turn % len(sizes)])
        pieces.append(data[position : position + size])
        position += size
        turn += 1
    return pieces
