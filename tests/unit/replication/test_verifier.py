import pytest
from replica_logs import checks_of, make_log, record_at

from tandemmq.protocol import speedups
from tandemmq.protocol.record import NewRecord, encode_blank, encode_record
from tandemmq.replication.core.verifier import BadRecord, RecordVerifier, VerifiedRun

SEGMENT = 4096


@pytest.fixture(autouse=True)
def _without_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speedups, "kernel", None)  # its runs: tests/property/test_slave_runs.py


def verifier(log_offset: int = 0, record_bytes_max: int = 1 << 20) -> RecordVerifier:
    return RecordVerifier(log_offset, segment_bytes=SEGMENT, record_bytes_max=record_bytes_max)


def feed(subject: RecordVerifier, data: bytes) -> tuple[list[VerifiedRun], BadRecord | None]:
    return subject.feed([memoryview(data)])


def joined(runs: list[VerifiedRun]) -> bytes:
    return b"".join(run.data for run in runs)


def test_whole_records_come_out_as_one_run() -> None:
    log, _ = make_log([10, 20, 30], segment_bytes=SEGMENT)
    runs, bad = feed(verifier(), log)
    assert bad is None
    assert runs == [VerifiedRun(0, memoryview(log), checks_of(log))]


def test_incomplete_record_waits_until_it_is_whole() -> None:
    log, offsets = make_log([10, 20], segment_bytes=SEGMENT)
    subject = verifier()
    runs, _ = feed(subject, log[:-1])
    assert joined(runs) == log[: offsets[1]]
    assert subject.log_offset == offsets[1]
    assert subject.held_bytes == len(log) - 1 - offsets[1]
    runs, _ = feed(subject, log[-1:])
    assert runs == [
        VerifiedRun(offsets[1], memoryview(log[offsets[1] :]), checks_of(log[offsets[1] :], offsets[1]))
    ]
    assert subject.held_bytes == 0


def test_run_ends_at_the_end_of_a_segment() -> None:
    log, offsets = make_log([1500] * 4, segment_bytes=SEGMENT)
    assert offsets[2] == SEGMENT
    runs, bad = feed(verifier(), log)
    assert bad is None
    assert [run.log_offset for run in runs] == [0, SEGMENT]
    assert joined(runs) == log


def test_filler_waits_for_all_of_its_bytes() -> None:
    log, offsets = make_log([1500] * 3, segment_bytes=SEGMENT)
    subject = verifier()
    runs, _ = feed(subject, log[: SEGMENT - 1])
    assert joined(runs) == log[: offsets[1] + (offsets[1] - offsets[0])]
    runs, _ = feed(subject, log[SEGMENT - 1 : SEGMENT])
    assert subject.log_offset == SEGMENT


def test_starts_in_the_middle_of_a_log() -> None:
    log, _ = make_log([50], segment_bytes=SEGMENT, start=2 * SEGMENT + 512)
    runs, bad = feed(verifier(2 * SEGMENT + 512), log)
    assert (joined(runs), bad) == (log, None)


def test_records_with_v6_hosts_and_long_topics_pass() -> None:
    new = NewRecord(
        topic="%RETRY%" + "g" * 200,
        queue_id=0,
        body=b"body",
        properties=b"",
        born_at_ms=1,
        born_host=bytes(16) + b"\0\0\0\1",
    )
    record = encode_record(
        new, queue_offset=0, log_offset=0, stored_at_ms=2, store_host=bytes(16) + b"\0\0\0\1"
    )
    runs, bad = feed(verifier(), record)
    assert (joined(runs), bad) == (record, None)


def _flip(record: bytes, position: int) -> bytes:
    return record[:position] + bytes([record[position] ^ 0x40]) + record[position + 1 :]


@pytest.mark.parametrize(
    ("position", "reason"),
    [
        (0, "bytes before the end of its file"),
        (4, "does not begin a record"),
        (8, "checksum"),
        (34, "stored offset is"),
        (84, "lengths contradict"),
        (90, "checksum"),
        (88 + 100, "lengths contradict"),
        (88 + 100 + 2, "lengths contradict"),
    ],
    ids=["size", "magic", "crc", "place", "body-size", "body", "topic-size", "properties-size"],
)
def test_damaged_field_is_named(position: int, reason: str) -> None:
    good = record_at(0)
    damaged = _flip(record_at(len(good)), position)
    runs, bad = feed(verifier(), good + damaged)
    assert joined(runs) == good
    assert bad is not None
    assert bad.log_offset == len(good)
    assert reason in bad.reason


def test_v6_bit_in_a_short_record_is_damage() -> None:
    record = bytearray(record_at(0, body=b""))
    record[39] |= 0x30
    _, bad = feed(verifier(), bytes(record))
    assert bad is not None
    assert "lengths" in bad.reason


@pytest.mark.parametrize("size", [7, 8, 90, 1000])
def test_filler_of_the_wrong_size_is_damage(size: int) -> None:
    good = record_at(0)
    blank = encode_blank(max(size, 8))
    if size < 8:
        blank = size.to_bytes(4, "big") + blank[4:]
    _, bad = feed(verifier(), good + blank.ljust(2000, b"\0"))
    assert bad is not None
    assert "filler" in bad.reason


def test_garbage_is_not_waited_for() -> None:
    record = _flip(record_at(0, body=b"x" * 3000), 30)
    runs, bad = feed(verifier(), record[:60])
    assert runs == []
    assert bad is not None
    assert bad.log_offset == 0


def test_record_above_the_bound_is_damage_and_not_collected() -> None:
    _, bad = feed(verifier(record_bytes_max=1000), record_at(0, body=b"x" * 1000)[:64])
    assert bad is not None
    assert "bytes before the end" in bad.reason


def test_record_that_leaves_no_room_for_a_filler_is_damage() -> None:
    size = len(record_at(0, body=b""))
    fits = record_at(0, body=b"x" * (SEGMENT - 8 - size))
    assert feed(verifier(), fits)[1] is None
    _, bad = feed(verifier(), record_at(0, body=b"x" * (SEGMENT - 7 - size)))
    assert bad is not None
