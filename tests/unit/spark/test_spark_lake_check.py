"""Tests that the check of a lake finds missing and doubled rows, and reports nothing for an intact lake."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lake_samples import ALL, NOW, write_batch
from typer.testing import CliRunner

from tandemmq.spark.command import app
from tandemmq.spark.lake.check import check_lake, find_doubled
from tandemmq.spark.lake.data_files import DataFiles
from tandemmq.spark.lake.files import BAD_RECORDS_DIR, batch_dir
from tandemmq.spark.lake.home import Lake, LakeFormat
from tandemmq.spark.lake.sink import LakeWriter
from tandemmq.spark.lake.upkeep import compact_lake


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


@pytest.mark.parametrize("is_merged", [False, True])
@pytest.mark.parametrize("kind", ALL)
def test_bad_records_that_are_gone_are_found(kind: LakeFormat, is_merged: bool, tmp_path: Path) -> None:
    writer = LakeWriter(Lake(tmp_path, kind), (), "zstd", bad_column="badReason")
    for batch, reasons in enumerate((["no JSON", None, None], ["empty", "empty"], [None], [None, "empty"])):
        topics = pa.array(["Orders" for _ in reasons])
        times = pa.array([NOW for _ in reasons], pa.timestamp("us", "UTC"))
        rows = pa.record_batch(
            {"topic": topics, "storeTimestamp": times, "badReason": pa.array(reasons, pa.string())}
        )
        for _ in range(2):  # a batch that is repeated
            writer.commit([writer.stage([rows], "q", batch, 0)], batch)
    if is_merged:
        compact_lake(tmp_path)
    assert check_lake(tmp_path).faults == ()
    shutil.rmtree(batch_dir(tmp_path / BAD_RECORDS_DIR, 3))
    assert check_lake(tmp_path).faults == ("_bad_records/batch=00000003: 1 of 1 bad records are missing",)
    shutil.rmtree(tmp_path / BAD_RECORDS_DIR)
    assert len(check_lake(tmp_path).faults) == 3
    result = CliRunner().invoke(app, ["lake", "check", str(tmp_path)])
    assert (result.exit_code, "1 of 1 bad records are missing" in result.output) == (1, True)


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
