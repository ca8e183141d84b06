"""Tests that the check of a lake finds missing and doubled rows, and reports nothing for an intact lake."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from datetime import timedelta
from itertools import count, permutations
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lake_samples import ALL, NOW, write_batch
from typer.testing import CliRunner

from tandemmq.spark.command import app
from tandemmq.spark.lake.check import check_lake, find_doubled
from tandemmq.spark.lake.data_files import DataFiles
from tandemmq.spark.lake.files import BAD_RECORDS_DIR, batch_dir, list_batches
from tandemmq.spark.lake.home import Lake, LakeFormat
from tandemmq.spark.lake.sink import LakeWriter
from tandemmq.spark.lake.upkeep import compact_lake, expire_lake
from tandemmq.spark.lake.view import view_lake


def _rewrite(path: Path, rows: Callable[[int], list[int]]) -> None:
    """Replaces the file by the rows with these numbers of its own."""
    with pq.ParquetFile(path) as file:
        table = file.read()
    pq.write_table(table.take(rows(table.num_rows)), path)


def _delete(path: Path) -> None:
    path.unlink()


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def _lose_row(path: Path) -> None:
    _rewrite(path, lambda count: list(range(1, count)))


def _double_row(path: Path) -> None:
    _rewrite(path, lambda count: [0, *range(count)])


def _double_one_for_another(path: Path) -> None:
    _rewrite(path, lambda count: [1, *range(1, count)])


@pytest.mark.parametrize("is_merged", [False, True])
@pytest.mark.parametrize("plant", [_delete, _truncate, _lose_row, _double_row, _double_one_for_another])
@pytest.mark.parametrize("kind", ALL)
def test_damage_to_a_file_is_found_in_every_kind_of_lake(
    kind: LakeFormat, plant: Callable[[Path], None], is_merged: bool, tmp_path: Path
) -> None:
    for batch in range(3):
        write_batch(kind, tmp_path, batch)
    if is_merged:
        compact_lake(tmp_path)
    assert check_lake(tmp_path).faults == ()
    live = {*tmp_path.rglob("*.parquet")}
    if is_merged and kind is not LakeFormat.PARQUET:
        live = {path for path in live if "merged" in path.name or "part-" in path.name}
    plant(min(path for path in live if "batch=00000002" not in str(path)))
    result = CliRunner().invoke(app, ["lake", "check", str(tmp_path)])
    assert result.exit_code == 1, result.output
    assert "fault: " in result.output


def test_missing_and_doubled_batches_of_a_parquet_lake_are_found(tmp_path: Path) -> None:
    root, bad = tmp_path / "lake", tmp_path / "lake" / BAD_RECORDS_DIR
    for batch in range(4):
        write_batch(LakeFormat.PARQUET, root, batch)
    shutil.copytree(batch_dir(root, 2), batch_dir(root, 9))
    assert check_lake(root).faults == (
        "Orders@b:0: 12 messages are there more than once, the first at queue offset 24",
    )
    shutil.rmtree(batch_dir(root, 9))
    shutil.rmtree(batch_dir(root, 2))
    assert check_lake(root).faults == ("batch=00000002: the directory is missing",)
    compact_lake(root)
    assert check_lake(root).faults == ("batch=00000002: the directory is missing",)
    shutil.rmtree(root)
    # A message is a good row or a bad record, never both.
    write_batch(LakeFormat.PARQUET, bad, 0)
    write_batch(LakeFormat.PARQUET, root, 0)
    assert check_lake(root).faults[0].startswith("Orders@b:0: 12 messages are there more than once")
    next(bad.rglob("*.parquet")).unlink()
    assert any(fault.startswith("_bad_records/batch=00000000: ") for fault in check_lake(root).faults)


def test_a_compaction_hides_no_batch_that_is_missing(tmp_path: Path) -> None:
    for batch in range(6):
        write_batch(LakeFormat.PARQUET, tmp_path, batch)
    compact_lake(tmp_path, target_bytes=1)  # the batches keep their numbers
    shutil.rmtree(batch_dir(tmp_path, 2))
    for batch in (6, 7):
        assert check_lake(tmp_path).faults == ("batch=00000002: the directory is missing",)
        compact_lake(tmp_path)
        assert list_batches(tmp_path) == [0, 3, batch - 1]
        write_batch(LakeFormat.PARQUET, tmp_path, batch)


def _land(kind: LakeFormat, root: Path, batch: int, reasons: list[str | None], *, days: int = 0) -> None:
    """Commits a batch twice, as after a crash; a row with a reason is a bad record."""
    writer = LakeWriter(Lake(root, kind), (), "zstd", bad_column="badReason")
    topics = pa.array(["Orders" for _ in reasons])
    times = pa.array([NOW - timedelta(days=days) for _ in reasons], pa.timestamp("us", "UTC"))
    rows = pa.record_batch(
        {"topic": topics, "storeTimestamp": times, "badReason": pa.array(reasons, pa.string())}
    )
    for _ in range(2):
        writer.commit([writer.stage([rows], "q", batch, 0)], batch)


@pytest.mark.parametrize("is_merged", [False, True])
@pytest.mark.parametrize("kind", ALL)
def test_bad_records_that_are_gone_are_found(kind: LakeFormat, is_merged: bool, tmp_path: Path) -> None:
    for batch, reasons in enumerate((["no JSON", None, None], ["empty", "empty"], [None], [None, "empty"])):
        _land(kind, tmp_path, batch, reasons)
    if is_merged:
        compact_lake(tmp_path)
    assert check_lake(tmp_path).faults == ()
    shutil.rmtree(batch_dir(tmp_path / BAD_RECORDS_DIR, 3))
    assert check_lake(tmp_path).faults == ("_bad_records/batch=00000003: 1 of 1 bad records are missing",)
    shutil.rmtree(batch_dir(tmp_path / BAD_RECORDS_DIR, 0))
    assert len(check_lake(tmp_path).faults) == 3  # batch 1 names its predecessor
    shutil.rmtree(tmp_path / BAD_RECORDS_DIR)
    is_one = is_merged and kind is LakeFormat.PARQUET
    assert len(check_lake(tmp_path).faults) == (2 if is_one else 3)
    result = CliRunner().invoke(app, ["lake", "check", str(tmp_path)])
    assert (result.exit_code, "1 of 1 bad records are missing" in result.output) == (1, True)


@pytest.mark.parametrize("kind", ALL)
def test_a_lake_with_bad_records_only_is_checked(kind: LakeFormat, tmp_path: Path) -> None:
    for batch in range(2):
        _land(kind, tmp_path, batch, ["no JSON", "empty"], days=9)
    state = check_lake(tmp_path)
    assert (state.owner, state.rows, state.faults) == ("q", 0, ())
    assert compact_lake(tmp_path) == (0, 0)
    assert expire_lake(tmp_path, 5, now=NOW) == 1
    shutil.rmtree(batch_dir(tmp_path / BAD_RECORDS_DIR, 1))
    assert check_lake(tmp_path).faults == ("_bad_records/batch=00000001: 2 of 2 bad records are missing",)
    _land(kind, tmp_path, 2, [None])
    assert check_lake(tmp_path).kind is kind


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_batch_of_bad_records_only_hides_no_other_that_is_lost(lost: int, tmp_path: Path) -> None:
    counts = {0: 2, 1: 5, 2: 1}
    for batch, bad_rows in counts.items():
        good: list[str | None] = [] if batch == 1 else [None]
        _land(LakeFormat.PARQUET, tmp_path, batch, [*good, *["no JSON"] * bad_rows])
    _land(LakeFormat.PARQUET, tmp_path, 3, [None, "empty"])
    compact_lake(tmp_path)
    assert check_lake(tmp_path).faults == ()
    shutil.rmtree(batch_dir(tmp_path / BAD_RECORDS_DIR, lost))
    fault = f"_bad_records/batch=00000000: {counts[lost]} of 8 bad records are missing"
    assert fault in check_lake(tmp_path).faults


@pytest.mark.parametrize("steps", list(permutations(("expire", "compact", "land"))))
@pytest.mark.parametrize("kind", ALL)
def test_no_order_of_upkeep_makes_a_fault_of_bad_records_or_hides_one(
    kind: LakeFormat, steps: tuple[str, ...], tmp_path: Path
) -> None:
    numbers = count()

    def land() -> None:
        first = 4 * next(numbers)
        _land(kind, tmp_path, first, [None, "old"], days=9)
        _land(kind, tmp_path, first + 1, ["only bad", "only bad"], days=9)
        _land(kind, tmp_path, first + 2, [None, None, "new"])
        _land(kind, tmp_path, first + 3, [None])

    works = {
        "expire": lambda: expire_lake(tmp_path, 5, now=NOW),
        "compact": lambda: compact_lake(tmp_path),
        "land": land,
    }
    land()
    for step in (*steps, *steps):
        works[step]()
        assert check_lake(tmp_path).faults == (), step
    bad = tmp_path / BAD_RECORDS_DIR
    shutil.rmtree(batch_dir(bad, 2))
    assert any(
        "1 of " in fault and "bad records are missing" in fault for fault in check_lake(tmp_path).faults
    )


def test_bad_records_that_are_deleted_on_purpose_are_no_fault(tmp_path: Path) -> None:
    _land(LakeFormat.PARQUET, tmp_path, 0, [None, "no JSON"])
    _land(LakeFormat.PARQUET, tmp_path, 1, ["no JSON"])
    bad = tmp_path / BAD_RECORDS_DIR
    # The command of docs/spark/landing.md.
    deletion = ["-name", "*.parquet", "-execdir", "touch", "_expired", ";", "-delete"]
    subprocess.run(["find", str(bad), *deletion], check=True)
    assert not [*bad.rglob("*.parquet")]
    assert check_lake(tmp_path).faults == ()
    assert all(not piece.bad_places for piece in view_lake(tmp_path).pieces)
    _land(LakeFormat.PARQUET, tmp_path, 2, [None, "no JSON"])
    assert check_lake(tmp_path).faults == ()


def test_the_check_says_what_is_missing(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    for batch in range(2):
        write_batch(LakeFormat.PARQUET, root, batch)
    run = CliRunner().invoke
    good = run(app, ["lake", "check", str(root)])
    assert (good.exit_code, "rows        24" in good.output) == (0, True)
    next(batch_dir(root, 0).rglob("*.parquet")).unlink()
    bad = run(app, ["lake", "check", str(root)])
    assert bad.exit_code == 1
    assert "of 12 rows are missing" in bad.output
    assert run(app, ["lake", "compact", str(root), "--target-mib", "1"]).exit_code == 0
    assert run(app, ["lake", "expire", str(root), "--days", "1"]).exit_code == 0
    assert run(app, ["lake", "check", str(tmp_path)]).exit_code == 2


@pytest.mark.parametrize("text", ["", "{", "[]"])
@pytest.mark.parametrize("name", ["_tandemmq/owner.json", "batch=00000001/_summary.json"])
def test_a_broken_file_of_a_lake_is_named(name: str, text: str, tmp_path: Path) -> None:
    for batch in range(2):
        write_batch(LakeFormat.PARQUET, tmp_path, batch)
    (tmp_path / name).write_text(text)
    result = CliRunner().invoke(app, ["lake", "check", str(tmp_path)])
    assert (result.exit_code, f"{name} is not a JSON object" in result.output) == (2, True)


def test_messages_of_a_topic_that_was_created_again_are_not_doubled(tmp_path: Path) -> None:
    write_batch(LakeFormat.PARQUET, tmp_path / "one", 0)
    write_batch(LakeFormat.PARQUET, tmp_path / "two", 0, now=NOW + timedelta(hours=1))
    places = [
        (data, list(data.list_parquet(under="batch=00000000")))
        for data in (DataFiles(str(tmp_path / name)) for name in ("one", "two"))
    ]
    assert find_doubled(places) == []
    assert find_doubled([*places, places[0]]) == [
        "Orders@b:0: 12 messages are there more than once, the first at queue offset 0"
    ]
