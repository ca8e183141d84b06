"""Tests compaction, retention and checks of lakes: no row is ever missing or doubled."""

from __future__ import annotations

from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lake_samples import ALL, NOW, write_batch

from tandemmq.errors import ConfigError
from tandemmq.spark.lake import merge
from tandemmq.spark.lake.check import check_lake
from tandemmq.spark.lake.files import (
    BAD_RECORDS_DIR,
    CommitOutcome,
    batch_dir,
    list_batches,
    read_range,
    read_summary,
)
from tandemmq.spark.lake.formats import list_live_files
from tandemmq.spark.lake.home import Lake, LakeFormat, hold_directory
from tandemmq.spark.lake.merge import merge_batches
from tandemmq.spark.lake.upkeep import compact_lake, expire_lake
from tandemmq.spark.lake.view import view_lake


class Killed(Exception):
    """A stand-in for a process that ends at this step."""


def offsets(kind: LakeFormat, root: Path) -> list[int]:
    if kind is LakeFormat.PARQUET:
        table: Any = pq.read_table(root)
    elif kind is LakeFormat.DELTA:
        from deltalake import DeltaTable

        table = DeltaTable(str(root)).to_pyarrow_table()
    else:
        from tandemmq.spark.lake.iceberg import require_iceberg

        table = require_iceberg(Lake(root, LakeFormat.ICEBERG)).scan().to_arrow()
    return sorted(table["queueOffset"].to_pylist())


@pytest.mark.parametrize("kind", ALL)
def test_compaction_changes_files_and_no_row(kind: LakeFormat, tmp_path: Path) -> None:
    root = tmp_path / "lake"
    for batch in range(4):
        write_batch(kind, root, batch)
    before, after = compact_lake(root)
    assert after < before == 24
    assert offsets(kind, root) == list(range(48))
    assert check_lake(root).faults == ()
    # The landing continues, and a replay of the newest batch is recognised.
    assert write_batch(kind, root, 3) is CommitOutcome.ALREADY_COMMITTED
    assert write_batch(kind, root, 4) is CommitOutcome.COMMITTED
    compact_lake(root)
    assert offsets(kind, root) == list(range(60))


@pytest.mark.skipif(find_spec("pyiceberg") is None, reason="no pyiceberg")
def test_concurrent_writes_survive_a_table_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tandemmq.spark.lake import iceberg

    root = tmp_path / "lake"
    for batch in range(3):
        write_batch(LakeFormat.ICEBERG, root, batch)
    merge, is_first = iceberg.merge_files, [True]

    def merge_slowly(*args: Any) -> None:
        merge(*args)
        if is_first:
            is_first.clear()
            # A user's own stream into the sink takes no lock, and neither does another writer in a shared
            # catalog.
            write_batch(LakeFormat.ICEBERG, root, 3)

    monkeypatch.setattr(iceberg, "merge_files", merge_slowly)
    compact_lake(root)
    assert offsets(LakeFormat.ICEBERG, root) == list(range(48))
    before, after = compact_lake(root)
    assert after < before
    assert offsets(LakeFormat.ICEBERG, root) == list(range(48))


@pytest.mark.parametrize("kind", ALL)
def test_old_days_expire_and_the_rest_stays(kind: LakeFormat, tmp_path: Path) -> None:
    root = tmp_path / "lake"
    for batch in range(3):
        write_batch(kind, root, batch)
    assert expire_lake(root, 1, now=NOW) > 0
    left = offsets(kind, root)
    # The newest batch of a Parquet lake stays complete.
    kept = [n for n in range(36) if n % 3 < 2 or (kind is LakeFormat.PARQUET and n >= 24)]
    assert left == kept
    compact_lake(root)
    assert offsets(kind, root) == kept
    assert check_lake(root).faults == ()


@pytest.mark.parametrize("kind", ALL)
def test_bad_records_expire_with_the_rest(kind: LakeFormat, tmp_path: Path) -> None:
    root, bad = tmp_path / "lake", tmp_path / "lake" / BAD_RECORDS_DIR
    for batch in range(3):
        write_batch(LakeFormat.PARQUET, bad, batch)
        write_batch(kind, root, batch)
    expire_lake(root, 1, now=NOW)
    assert offsets(LakeFormat.PARQUET, bad) == [n for n in range(36) if n % 3 < 2 or n >= 24]
    expire_lake(root, 0, now=NOW + timedelta(days=9))
    assert offsets(LakeFormat.PARQUET, bad) == list(range(24, 36))
    assert [len(piece.bad_places) for piece in view_lake(root).pieces if piece.bad_places] == [1]


@pytest.mark.parametrize("step", ["before exchange", "after exchange"])
def test_a_compaction_that_is_killed_leaves_the_lake_whole(step: str, tmp_path: Path) -> None:
    root = tmp_path / "lake"
    for batch in range(4):
        write_batch(LakeFormat.PARQUET, root, batch)

    def crash(at: str) -> None:
        if at == step:
            raise Killed(at)

    with pytest.raises(Killed):
        merge_batches(root, crash=crash)
    assert offsets(LakeFormat.PARQUET, root) == list(range(48))
    merge_batches(root)
    assert offsets(LakeFormat.PARQUET, root) == list(range(48))
    assert [path.name for path in tmp_path.iterdir()] == ["lake"]
    assert list_batches(root) == [0, 3]


def test_merged_batches_are_merged_again_with_all_their_numbers(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    for batch in range(5):
        write_batch(LakeFormat.PARQUET, root, batch)
    merge_batches(root, target_bytes=5 * read_summary(root, 0).size_bytes // 2)
    assert [read_range(root, batch) for batch in list_batches(root)] == [range(2), range(2, 4), range(4, 5)]
    alone = sorted(batch_dir(root, 2).rglob("*.parquet"))
    merge_batches(root, target_bytes=1)
    assert sorted(batch_dir(root, 2).rglob("*.parquet")) == alone
    merge_batches(root)
    assert [read_range(root, batch) for batch in list_batches(root)] == [range(4), range(4, 5)]
    assert check_lake(root).faults == ()


def test_columns_that_differ_are_not_merged(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    write_batch(LakeFormat.PARQUET, root, 0, tasks=1)
    write_batch(LakeFormat.PARQUET, root, 1, tasks=1)
    for path in batch_dir(root, 1).rglob("*.parquet"):
        table = pq.read_table(path, partitioning=None)
        pq.write_table(table.append_column("region", pa.array(["eu"] * table.num_rows)), path)
    write_batch(LakeFormat.PARQUET, root, 2, tasks=1)
    assert merge.plan_groups(root, 1 << 20) == [[0], [1]]


def test_a_landing_that_runs_is_left_alone(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    write_batch(LakeFormat.PARQUET, root, 0)
    with pytest.raises(ConfigError, match="is not a lake"):
        compact_lake(tmp_path)
    with hold_directory(root):
        result = _lock_from_another_process(root)
    assert "another pipeline writes" in result


def _lock_from_another_process(root: Path) -> str:
    import subprocess
    import sys

    command = [sys.executable, "-m", "tandemmq", "pipeline", "lake", "compact", str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


@pytest.mark.parametrize("kind", ALL[1:])
def test_files_of_killed_tasks_are_counted(kind: LakeFormat, tmp_path: Path) -> None:
    write_batch(kind, tmp_path, 0)
    live = sorted(list_live_files(Lake(tmp_path, kind)))[0]
    orphan = (tmp_path / live).with_name("00000001-00000-orphan.parquet")
    orphan.write_bytes((tmp_path / live).read_bytes())
    assert check_lake(tmp_path).orphans == 1


def test_bad_records_are_maintained_with_their_lake_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = tmp_path / BAD_RECORDS_DIR
    for root in (tmp_path, bad):
        for batch in range(3):
            write_batch(LakeFormat.PARQUET, root, batch)
    monkeypatch.chdir(bad)
    before = sorted(bad.rglob("*"))
    for place in (bad, Path()):
        with pytest.raises(ConfigError, match=r"is a part of a lake: give the directory that contains it"):
            compact_lake(place)
        with pytest.raises(ConfigError, match=r"is a part of a lake"):
            expire_lake(place, 1)
    assert sorted(bad.rglob("*")) == before
