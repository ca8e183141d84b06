"""Checking the key index, the checkpoint, the marks and the config of a store."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from inspect_rig import change, check, content, damages, flip, log_files, make_store, notes

from tandemmq.errors import StoreError, StoreLocked
from tandemmq.protocol.hashes import java_hash, key_hash
from tandemmq.protocol.properties import encode_properties, find_property
from tandemmq.protocol.record import decode_records
from tandemmq.protocol.record_scan import read_columns, scan_boundaries
from tandemmq.runtime.disk import RealDisk
from tandemmq.store.columns import PropertyScan
from tandemmq.store.inspect import Finding, IndexLayout, StorePart
from tandemmq.store.key_index import KeyIndex

ENTRIES_AT = 40 + 4 * 16
ENTRY_BYTES = 20


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("inspect") / "store")


@pytest.fixture
def root(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "store"))


def index_file(root: Path, index: int = 0) -> Path:
    return sorted((root / "index").iterdir())[index]


def reasons(root: Path, part: StorePart) -> list[str]:
    found = damages(check(root))
    assert {finding.part for finding in found} == {part}
    return [finding.reason for finding in found]


# The key index.


@pytest.mark.parametrize(
    ("byte", "expected"),
    [
        (3, "entries 5 to 5 point to a record without such a key"),
        (10, "entries 5 to 5 point to no record"),
        (19, "entries 5 to 5 break their chain"),
    ],
)
def test_flipped_bit_in_an_index_entry_is_found(root: Path, byte: int, expected: str) -> None:
    path = index_file(root)
    flip(path, ENTRIES_AT + 5 * ENTRY_BYTES + byte)
    found = [f for f in damages(check(root)) if f.reason == expected]
    assert [(f.path, f.offset, f.size_bytes) for f in found] == [(path, ENTRIES_AT + 100, 20)]


@pytest.mark.parametrize(("head", "is_fine"), [("T#", True), ("T@", False)])
def test_index_entries_of_tags_are_none_of_another_key(root: Path, head: str, is_fine: bool) -> None:
    """RocketMQ 5.4 and later index `topic#T#tags` after a record's keys."""
    log = log_files(root)[0].read_bytes()
    tagged = next(one for one in decode_records(log) if one.tags)
    shutil.rmtree(root / "index")
    index = KeyIndex(root / "index" / "20261126120000000", 16, 64, RealDisk())
    (root / "index").mkdir()
    index.create(None)
    keys = [tagged.unique_key, *tagged.keys.split(), head + tagged.tags]
    hashes = np.array([key_hash(tagged.topic, key) for key in keys if key])
    index.put_many(
        hashes,
        np.full(len(hashes), tagged.log_offset),
        np.full(len(hashes), tagged.stored_at_ms),
    )
    index.snapshot().write_and_sync()
    index.close()
    found = [finding.reason for finding in damages(check(root), StorePart.INDEX)]
    number = len(hashes)
    wrong = f"entries {number} to {number} point to a record without such a key"
    assert found == ([] if is_fine else [wrong])


def test_wrong_slot_is_found(root: Path) -> None:
    change(index_file(root), 40, lambda value: value + 1)
    assert reasons(root, StorePart.INDEX) == ["1 slots do not name the newest entry of their chain"]


@pytest.mark.parametrize(
    ("byte", "expected"),
    [
        (7, None),
        (15, None),
        (22, "the header names another first or last record than its entries"),
        (30, "the header names another first or last record than its entries"),
        (35, "the header counts"),
        (37, "the header counts"),
    ],
)
def test_damaged_index_header_is_found(root: Path, byte: int, expected: str | None) -> None:
    flip(index_file(root), byte)
    if expected is not None:
        assert reasons(root, StorePart.INDEX)[0].startswith(expected)
    else:
        assert check(root).is_clean  # a time that is off by a millisecond is harmless


def test_index_that_ends_before_it_begins_is_found(root: Path) -> None:
    change(index_file(root), 8, bytes(8))
    assert "the header ends before it begins" in reasons(root, StorePart.INDEX)


def test_index_entries_behind_the_log_are_found(root: Path) -> None:
    path = log_files(root)[-1]
    path.write_bytes(bytes(len(path.read_bytes())))
    shutil.rmtree(root / "consumequeue")
    (root / "checkpoint").unlink()
    found = [f.reason for f in damages(check(root)) if f.part is StorePart.INDEX]
    assert any("point behind the log's end" in reason for reason in found)


def test_stale_slots_of_the_last_index_file_are_a_note_after_a_crash(root: Path) -> None:
    change(index_file(root, -1), 40, bytes(16))
    assert not check(root).is_clean
    (root / "abort").write_bytes(b"1")
    assert check(root).is_clean


def test_index_of_an_odd_length_needs_its_layout(root: Path) -> None:
    paths = sorted((root / "index").iterdir())
    for path in paths[:-1]:
        path.unlink()
    paths[-1].write_bytes(paths[-1].read_bytes()[:-1])
    assert any("pass the numbers of slots" in note for note in notes(check(root)))
    (found,) = damages(check(root, index_layout=IndexLayout(16, 64)))
    assert found.reason == "the file must have 1384 bytes, it has 1383"


# Checkpoint, marks, config.


def one_damage(root: Path) -> Finding:
    (found,) = damages(check(root))
    return found


@pytest.mark.parametrize("field", [0, 1, 2, 4])
def test_checkpoint_that_claims_too_much_is_damage(root: Path, field: int) -> None:
    path = root / "checkpoint"
    change(path, 8 * field, (2**62).to_bytes(8, "big"))
    found = one_damage(root)
    assert (found.part, found.path, found.offset) == (StorePart.CHECKPOINT, path, 8 * field)


def test_short_checkpoint_is_damage_and_a_missing_one_a_note(root: Path) -> None:
    path = root / "checkpoint"
    path.write_bytes(b"short")
    assert one_damage(root).reason == "the file must have 4096 bytes, it has 5"
    path.unlink()
    assert check(root).is_clean
    assert "there is none" in notes(check(root))[0]


@pytest.mark.parametrize("content", [b"4711", b"4711 0f3a-boot"])
def test_abort_is_a_note(root: Path, content: bytes) -> None:
    (root / "abort").write_bytes(content)
    assert notes(check(root)) == [
        "the store was not closed (by process 4711): the next start will recover it"
    ]


def test_unreadable_config_is_damage_and_an_unreadable_backup_a_note(root: Path) -> None:
    path = root / "config" / "topics.json"
    path.write_text('{"topicConfigTable":{')
    (root / "config" / "topics.json.bak").write_text("]")
    found = one_damage(root)
    assert (found.part, found.path) == (StorePart.CONFIG, path)
    path.write_text("")
    assert check(root).is_clean
    path.write_text("[1]")
    assert one_damage(root).reason == "is not a JSON object"


def test_group_that_is_ahead_of_its_queue_is_a_note(root: Path) -> None:
    (root / "config" / "consumerOffset.json").write_text('{"offsetTable":{"A@g":{0:3000}}}')
    report = check(root)
    assert report.is_clean
    assert notes(report)[0].startswith("group g has consumed up to 3000, but the queue ends at")


@pytest.mark.parametrize("queue", ["²", "1" * 5000, "-1", "x"])
def test_group_that_names_no_queue_is_passed_over(root: Path, queue: str) -> None:
    (root / "config" / "consumerOffset.json").write_text(f'{{"offsetTable":{{"A@g":{{"{queue}":3000}}}}}}')
    report = check(root)
    assert report.is_clean
    assert notes(report) == []


def test_files_that_only_rocketmq_writes_are_named_as_not_checked(root: Path) -> None:
    (root / "timerlog").mkdir()
    (root / "timerlog" / "0").write_bytes(b"")
    assert notes(check(root)) == ["not checked: only RocketMQ writes these files"]


# The directory.


def test_directory_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a directory"):
        check(tmp_path / "none")
    with pytest.raises(StoreError, match="is not a store"):
        check(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_empty_store_is_clean(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    assert check(tmp_path).is_clean


def test_commit_log_may_lie_elsewhere(root: Path, tmp_path: Path) -> None:
    (root / "commitlog").rename(tmp_path / "elsewhere")
    assert check(root, commit_log_dir=tmp_path / "elsewhere").record_count == 60


HOLDER = """
import sys
from pathlib import Path
from tandemmq.runtime.disk import RealDisk
lock = RealDisk().lock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_store_of_a_running_broker_is_refused_and_left_alone(root: Path) -> None:
    before = content(root)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(root / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline()
        with pytest.raises(StoreLocked, match="is in use: a broker runs on it"):
            check(root)
        holder.communicate()
    assert content(root) == before
    assert check(root).is_clean
    (root / "lock").unlink()
    assert check(root).is_clean
    assert not (root / "lock").exists()


TAKER = """
import sys
from pathlib import Path
from tandemmq.errors import StoreLocked
from tandemmq.runtime.disk import RealDisk
try:
    RealDisk().lock(Path(sys.argv[1]))
except StoreLocked:
    print("refused")
"""


def test_no_broker_starts_while_a_store_is_checked(root: Path) -> None:
    from tandemmq.store.inspect import InspectOptions, check_store

    answers = []

    def try_to_start(_what: str, _done: int, _total: int) -> None:
        if not answers:
            command = [sys.executable, "-c", TAKER, str(root / "lock")]
            answers.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    check_store(InspectOptions(root=root), try_to_start)
    assert answers == ["refused\n"]
    RealDisk().lock(root / "lock").release()


# Properties of many records.

AWKWARD = [
    b"",
    b"TAGS\x01a\x02",
    b"TAGS\x01a",
    b"XTAGS\x01a\x02",
    b"TAGS\x01\x02",
    b"TAGS\x01a\x02TAGS\x01bb\x02",
    b"TAGS\x01a\x02TAGS\x01\x02",
    b"KEYS\x01 a  bc \x02UNIQ_KEY\x01u\x02",
    b"KEYS\x01   \x02",
    b"KEYS\x01caf\xc3\xa9 \xff\x02TAGS\x01\xf0\x9f\x98\x80\x02",
    b"\x02\x01\x02\x01TAGS\x01x",
    encode_properties({"UNIQ_KEY": "0A" * 16, "KEYS": "k1 k2", "WAIT": "true", "TAGS": "t" * 300}),
]


def test_property_scan_finds_what_looking_at_each_record_finds() -> None:
    from store_rig import STORE_HOST, record

    from tandemmq.protocol.record import encode_record

    log = b""
    for raw in AWKWARD * 2:
        new = record(b"b", topic="Tö")
        new.properties = raw
        log += encode_record(new, queue_offset=0, log_offset=len(log), stored_at_ms=1, store_host=STORE_HOST)
    columns = read_columns(log, scan_boundaries(log), log_offset=0)
    scan = PropertyScan(memoryview(log), columns)
    raws = [found.raw_properties for found in decode_records(log)]
    for name in (b"TAGS", b"KEYS", b"UNIQ_KEY"):
        values = scan.find(name)
        expected = [(row, value) for row, raw in enumerate(raws) if (value := find_property(raw, name))]
        assert list(zip(values.row.tolist(), scan.texts(values), strict=True)) == expected
    tags = [find_property(raw, b"TAGS") or b"" for raw in raws]
    assert scan.tag_hashes().tolist() == [java_hash(str(tag, "utf-8", "replace")) for tag in tags]
    hashes, rows = scan.key_hashes(
        ["Tö"], np.zeros(len(raws), dtype=np.int64), np.ones(len(raws), dtype=bool)
    )
    keys = []
    for row, raw in enumerate(raws):
        texts = [str(find_property(raw, b"UNIQ_KEY") or b"", "utf-8", "replace")]
        texts += str(find_property(raw, b"KEYS") or b"", "utf-8", "replace").split(" ")
        keys += [(row, key_hash("Tö", text)) for text in texts if text]
    assert list(zip(rows.tolist(), hashes.tolist(), strict=True)) == keys
    hashes, rows = scan.tag_key_hashes(
        ["Tö"], np.zeros(len(raws), dtype=np.int64), np.ones(len(raws), dtype=bool)
    )
    tag_keys = [
        (row, key_hash("Tö", "T#" + str(tag, "utf-8", "replace"))) for row, tag in enumerate(tags) if tag
    ]
    assert list(zip(rows.tolist(), hashes.tolist(), strict=True)) == tag_keys
