"""Checking the CommitLog of a store: each injected fault is named, and everything after it is still read."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from inspect_rig import LOG_FILE_BYTES, change, check, content, damages, flip, log_files, make_store, notes

from tandemmq.protocol.record import Record, decode_record, encode_sealed_record
from tandemmq.store.inspect import Finding, StorePart, StoreReport
from tandemmq.store.inspect.files import data_limit


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("inspect") / "store")


@pytest.fixture
def root(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "store"))


def nth_record(path: Path, number: int) -> Record:
    """Returns the record `number` of a file."""
    data = path.read_bytes()
    at = 0
    for _ in range(number):
        at += decode_record(data, at).size
    return decode_record(data, at)


def place(path: Path, number: int) -> tuple[int, Record]:
    found = nth_record(path, number)
    return found.log_offset - int(path.name), found


def log_damage(report: StoreReport) -> Finding:
    (found,) = damages(report)
    assert found.part is StorePart.LOG
    return found


def test_intact_store_is_clean_and_stays_as_it_is(root: Path) -> None:
    before = content(root)
    times = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    report = check(root)
    assert report.is_clean
    assert report.findings.listed == []
    assert report.record_count == 60
    assert report.log_files == len(log_files(root)) == 3
    assert report.queue_count == 5
    assert report.index_files > 1
    assert content(root) == before
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == times


@pytest.mark.timeout(30)
def test_room_that_is_only_kept_for_files_is_not_read(tmp_path: Path) -> None:
    """Reading sparse files of that size would take minutes; the same holds for a prepared log file after the
    last one.
    """
    tib = 1 << 40
    root = make_store(tmp_path / "store", commit_log_file_bytes=1 << 20, consume_queue_file_bytes=6_000_000)
    (last,) = log_files(root)
    os.truncate(last, tib)
    (last.parent / f"{tib:020d}").touch()
    os.truncate(last.parent / f"{tib:020d}", tib)
    for path in (root / "consumequeue").glob("*/*/*"):
        os.truncate(path, tib // 20 * 20)
    report = check(root)
    assert report.is_clean
    assert (report.record_count, report.log_end < 1 << 20) == (60, True)
    with open(last, "r+b") as file:
        file.seek(tib - 1)
        file.write(b"x")
    assert data_limit(last) == tib


def test_flipped_bit_in_a_body_names_file_offset_and_topic(root: Path) -> None:
    path = log_files(root)[1]
    at, record = place(path, 3)
    flip(path, at + 100, 5)
    report = check(root)
    found = log_damage(report)
    assert (found.path, found.offset, found.size_bytes) == (path, at, record.size)
    assert (found.topic, found.queue_id) == (record.topic, record.queue_id)
    assert (found.queue_offset, found.log_offset) == (record.queue_offset, record.log_offset)
    assert found.reason == "the checksum does not match"
    assert report.record_count == 60
    assert damages(report) == [found]


def test_checksums_are_not_compared_when_not_wanted(root: Path) -> None:
    at, _ = place(log_files(root)[1], 3)
    flip(log_files(root)[1], at + 100)
    assert check(root, check_crc=False).is_clean


@pytest.mark.parametrize(
    ("field_at", "reason"),
    [
        (2, "the record's size field is"),
        (6, "no record begins here"),
        (33, "the record's stored offset is not its position: at"),
        (86, "the record's lengths contradict each other"),
    ],
)
def test_damaged_head_costs_one_record_and_its_queue_is_still_named(
    root: Path, field_at: int, reason: str
) -> None:
    path = log_files(root)[1]
    at, record = place(path, 2)
    flip(path, at + field_at, 1)
    report = check(root)
    found = log_damage(report)
    assert (found.offset, found.size_bytes) == (at, record.size)
    assert (found.topic, found.queue_id, found.queue_offset) == (
        record.topic,
        record.queue_id,
        record.queue_offset,
    )
    assert reason in found.reason
    assert report.record_count == 59
    assert damages(report, StorePart.QUEUE) == []


def test_each_byte_of_a_record_that_matters_is_watched(root: Path) -> None:
    """Not covered: flag, sender, hosts, retries, milliseconds; of the properties everything except tags and
    keys.
    """
    path = log_files(root)[0]
    at, record = place(path, 1)
    assert record.keys
    original = path.read_bytes()
    unseen = []
    for offset in range(record.size):
        flip(path, at + offset, 3)
        if check(root).is_clean:
            unseen.append(offset)
        path.write_bytes(original)
    unguarded = {*range(16, 20), *range(36, 56), *range(59, 84)}
    properties_at = record.size - len(record.raw_properties)
    assert {offset for offset in unseen if offset < properties_at} <= unguarded
    assert [o for o in unseen if o >= properties_at] == []


def test_range_of_zeros_over_several_records_is_one_damage(root: Path) -> None:
    path = log_files(root)[1]
    first, _ = place(path, 2)
    after, _ = place(path, 5)
    change(path, first, bytes(after - first - 7))
    found = log_damage(report := check(root))
    assert (found.offset, found.size_bytes) == (first, after - first)
    assert found.topic is not None
    assert report.record_count == 57


def test_foreign_bytes_from_the_start_of_a_file(root: Path) -> None:
    path = log_files(root)[2]
    third, _ = place(path, 3)
    change(path, 0, b"\xff" * (third - 1))
    assert (log_damage(check(root)).offset, log_damage(check(root)).size_bytes) == (0, third)


def test_file_full_of_foreign_bytes_is_one_damage(root: Path) -> None:
    path = log_files(root)[1]
    path.write_bytes(b"\xda\xa3\x20\xa7" * (LOG_FILE_BYTES // 4))
    found = log_damage(check(root))
    assert (found.path, found.offset, found.size_bytes) == (path, 0, LOG_FILE_BYTES)


def test_record_that_lies_inside_a_body_is_not_taken_for_one(root: Path) -> None:
    """The copy of a record has a different stored offset, so the scan does not continue with it."""
    path = log_files(root)[1]
    at, record = place(path, 2)
    copy = path.read_bytes()[:100]
    change(path, at, b"\0" * 8 + copy)
    assert log_damage(check(root)).size_bytes == record.size


def blank_at(path: Path) -> int:
    at = path.read_bytes().rindex(b"\xcb\xd4\x31\x94") - 4
    assert at > 0
    return at


@pytest.mark.parametrize("byte", [2, 5])
def test_damaged_blank_is_found(root: Path, byte: int) -> None:
    path = log_files(root)[0]
    at = blank_at(path)
    flip(path, at + byte)
    found = log_damage(check(root))
    assert (found.path, found.offset, found.size_bytes) == (path, at, LOG_FILE_BYTES - at)


def test_missing_blank_is_found(root: Path) -> None:
    path = log_files(root)[0]
    change(path, blank_at(path), bytes(8))
    assert log_damage(check(root)).reason == "the file ends without a BLANK"


def test_bytes_behind_a_blank_are_a_note(root: Path) -> None:
    path = log_files(root)[0]
    change(path, LOG_FILE_BYTES - 1, b"x")
    report = check(root)
    assert report.is_clean
    assert notes(report) == ["non-zero bytes follow the BLANK; nothing reads them"]


def test_missing_file_is_named_by_the_bytes_it_had(root: Path) -> None:
    log_files(root)[1].unlink()
    found = log_damage(report := check(root))
    assert found.reason.startswith(f"bytes {LOG_FILE_BYTES} to {2 * LOG_FILE_BYTES} of the log are missing")
    assert damages(report, StorePart.QUEUE) == []


def test_short_file_is_damage(root: Path) -> None:
    path = log_files(root)[1]
    path.write_bytes(path.read_bytes()[:3000])
    reasons = [finding.reason for finding in damages(check(root), StorePart.LOG)]
    assert f"the file must have {LOG_FILE_BYTES} bytes, it has 3000" in reasons


def test_file_that_was_cut_between_two_records_is_named_by_the_bytes_it_had(root: Path) -> None:
    path = log_files(root)[1]
    at, _ = place(path, 3)
    path.write_bytes(path.read_bytes()[:at])
    reasons = [finding.reason for finding in damages(check(root), StorePart.LOG)]
    end = LOG_FILE_BYTES + at
    assert reasons == [
        f"the file must have {LOG_FILE_BYTES} bytes, it has {at}",
        f"bytes {end} to {2 * LOG_FILE_BYTES} of the log are missing: "
        "the file does not follow the one before it",
    ]


def test_records_that_lie_in_two_files_are_read_once(root: Path) -> None:
    path = log_files(root)[1]
    at, _ = place(path, 3)
    (path.parent / f"{LOG_FILE_BYTES + at:020d}").write_bytes(path.read_bytes()[at:])
    report = check(root)
    assert report.record_count == 60
    assert any("of the log are there twice" in finding.reason for finding in damages(report))


@pytest.mark.parametrize("name", ["copy of 0", "9" * 20, f"{2**63 - 1:020d}"])
def test_name_that_is_no_offset_is_a_note(root: Path, name: str) -> None:
    (root / "commitlog" / name).write_bytes(log_files(root)[0].read_bytes())
    assert notes(check(root)) == ["the name is not an offset; RocketMQ does not start with it"]


def test_prepared_files_are_no_damage(root: Path) -> None:
    last = int(log_files(root)[-1].name)
    (root / "commitlog" / f"{last + LOG_FILE_BYTES:020d}").write_bytes(bytes(LOG_FILE_BYTES))
    report = check(root)
    assert report.is_clean
    assert notes(report) == ["the file is prepared and not used yet"]


def tail_of(root: Path) -> tuple[Path, int]:
    """Returns the last file and the end of its records."""
    path = log_files(root)[-1]
    return path, len(path.read_bytes().rstrip(b"\0"))


@pytest.mark.parametrize("has_abort", [True, False])
def test_unfinished_tail_is_damage_unless_the_store_crashed(root: Path, has_abort: bool) -> None:
    path, end = tail_of(root)
    change(path, end, b"\0\0\1\0\xda\xa3\x20\xa7 half a record")
    if has_abort:
        (root / "abort").write_bytes(b"123")
    report = check(root)
    assert report.is_clean is has_abort
    found = next(f for f in report.findings.listed if f.part is StorePart.LOG)
    assert found.offset == end
    assert "the next start of a broker ends the log here" in found.reason


def test_wrong_checksum_in_the_last_record_is_damage_even_after_a_crash(root: Path) -> None:
    path, end = tail_of(root)
    (root / "abort").write_bytes(b"123")
    flip(path, end - 60)
    (found,) = damages(check(root), StorePart.LOG)
    assert found.size_bytes > 0
    assert "nothing intact follows" in found.reason


def test_left_overs_behind_the_end_are_no_part_of_the_log(tmp_path: Path) -> None:
    """RocketMQ does not zero cut bytes: an older record may still be at its original offset."""
    root = make_store(tmp_path / "store", 45)
    path, end = tail_of(root)
    data = path.read_bytes()
    first = decode_record(data, 0)
    stale = bytearray(data[: first.size])
    at = end + 40
    stale[28:36] = (int(path.name) + at).to_bytes(8, "big")
    stale[56:64] = (first.stored_at_ms - 10_000).to_bytes(8, "big")
    change(path, end, b"\xee" * 40 + bytes(stale))
    report = check(root)
    assert report.is_clean
    assert report.record_count == 45
    assert "stale bytes after an earlier end of the log" in notes(report)[0]


def test_clock_that_was_set_back_is_a_note_but_a_torn_time_is_damage(root: Path) -> None:
    path = log_files(root)[1]
    at, record = place(path, 3)
    change(path, at + 56, (record.stored_at_ms - 5_000).to_bytes(8, "big"))
    report = check(root)
    assert report.is_clean
    assert any("before the one in front of it" in note for note in notes(report))
    change(path, at + 56, (record.stored_at_ms // 2).to_bytes(8, "big"))
    assert "before the one in front of it" in damages(check(root), StorePart.LOG)[0].reason


def test_checksum_over_a_whole_record_is_compared_where_there_is_one(tmp_path: Path) -> None:
    from store_rig import STORE_HOST, record

    directory = tmp_path / "commitlog"
    directory.mkdir()
    facts = {"queue_offset": 0, "log_offset": 0, "stored_at_ms": 1, "store_host": STORE_HOST}
    sealed = encode_sealed_record(record(b"x", topic="S"), **facts)
    path = directory / f"{0:020d}"
    path.write_bytes(sealed.ljust(1024, b"\0"))
    (tmp_path / "abort").write_bytes(b"1")
    assert check(tmp_path).is_clean
    flip(path, 17)
    assert log_damage(check(tmp_path)).topic == "S"
