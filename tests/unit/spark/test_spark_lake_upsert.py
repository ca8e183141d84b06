"""Tests tables by key: the newest row of each key, deletes, repeated batches, new columns, kills."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tandemmq.errors import ConfigError
from tandemmq.spark.lake.data_files import DataFiles
from tandemmq.spark.lake.files import CONTROL_DIR, OWNER_FILE, CommitOutcome, StagedFile
from tandemmq.spark.lake.formats import commit_files, list_live_files
from tandemmq.spark.lake.home import Lake, LakeFormat
from tandemmq.spark.lake.parquet import ParquetOptions, ParquetStager
from tandemmq.spark.lake.upsert import NO_KEY, check_key, find_keyless
from tandemmq.spark.lake.view import view_lake

Row = tuple[str, str]
_PACKAGES = {LakeFormat.DELTA: "deltalake", LakeFormat.ICEBERG: "pyiceberg"}
TABLES = [
    pytest.param(kind, marks=pytest.mark.skipif(find_spec(package) is None, reason=f"no {package}"))
    for kind, package in _PACKAGES.items()
]


class Killed(Exception):
    """A stand-in for a process that ends at this step."""


def stage(
    root: Path,
    batch_id: int,
    rows: list[Row],
    first: int,
    task: int = 0,
    broker: str = "b",
    queue_id: int = 0,
    second: int | None = None,
    **more: str,
) -> list[StagedFile]:
    """Stages rows of key and body, stored one second apart, or all at `second`."""
    numbers = range(first, first + len(rows))
    times = [
        datetime(2025, 1, 1 + batch_id, second=n % 60 if second is None else second, tzinfo=UTC)
        for n in numbers
    ]
    columns: dict[str, Any] = {
        "topic": pa.array(["T" for _ in rows]),
        "brokerName": pa.array([broker for _ in rows]),
        "queueId": pa.array([queue_id for _ in rows], pa.int32()),
        "queueOffset": pa.array(numbers, pa.int64()),
        "storeTimestamp": pa.array(times, pa.timestamp("us", "UTC")),
        "keys": pa.array([key for key, _ in rows]),
        "body": pa.array([body.encode() for _, body in rows]),
        "properties": pa.array([[("n", str(n))] for n in numbers], pa.map_(pa.string(), pa.string())),
        **{name: pa.array([text for _ in rows]) for name, text in more.items()},
    }
    batch = pa.record_batch(columns)
    stager = ParquetStager(
        root,
        batch_id=batch_id,
        partition_id=task,
        schema=batch.schema,
        options=ParquetOptions(data_dir="data"),
    )
    stager.write(batch)
    return list(stager.finish())


def read(kind: LakeFormat, root: Path) -> dict[str, str]:
    if kind is LakeFormat.DELTA:
        from deltalake import DeltaTable

        table = DeltaTable(str(root)).to_pyarrow_table()
    else:
        from tandemmq.spark.lake.iceberg import require_iceberg

        table = require_iceberg(Lake(root, LakeFormat.ICEBERG)).scan().to_arrow()
    rows = [(row["keys"], bytes(row["body"]).decode()) for row in table.to_pylist()]
    assert len(dict(rows)) == len(rows), rows
    return dict(rows)


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_has_the_newest_row_of_each_key(kind: LakeFormat, tmp_path: Path) -> None:
    root = tmp_path / "lake"
    first = [("a", "1"), ("b", "1"), ("a", "2"), ("c", ""), ("d", "1")]
    assert (
        commit_files(Lake(root, kind), 0, "q", stage(root, 0, first, 0), key="keys")
        is CommitOutcome.COMMITTED
    )
    assert read(kind, root) == {"a": "2", "b": "1", "d": "1"}
    files = stage(root, 1, [("b", "null"), ("c", "3")], 5) + stage(
        root, 1, [("a", "3"), ("b", "")], 7, task=1
    )
    commit_files(Lake(root, kind), 1, "q", files, key="keys")
    assert read(kind, root) == {"a": "3", "c": "3", "d": "1"}
    commit_files(Lake(root, kind), 2, "q", stage(root, 2, [("nobody", "")], 9), key="keys")
    assert read(kind, root) == {"a": "3", "c": "3", "d": "1"}
    # A new column; older rows have nulls.
    commit_files(Lake(root, kind), 3, "q", stage(root, 3, [("e", "1")], 10, region="eu"), key="keys")
    assert read(kind, root) == {"a": "3", "c": "3", "d": "1", "e": "1"}
    live = list_live_files(Lake(root, kind))
    assert not {file.staged for file in files} & live
    assert not [name for name in DataFiles(str(root)).list_parquet() if name in {f.staged for f in files}]


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("killed_at", ["before commit", "after commit"])
def test_a_killed_batch_changes_the_table_once(kind: LakeFormat, killed_at: str, tmp_path: Path) -> None:
    root = tmp_path / "lake"
    commit_files(Lake(root, kind), 0, "q", stage(root, 0, [("a", "1"), ("b", "1")], 0), key="keys")

    def crash(step: str) -> None:
        if step == killed_at:
            raise Killed

    rows = [("a", "2"), ("b", ""), ("c", "2")]
    with pytest.raises(Killed):
        commit_files(Lake(root, kind), 1, "q", stage(root, 1, rows, 2), crash=crash, key="keys")
    commit_files(Lake(root, kind), 1, "q", stage(root, 1, rows, 2), key="keys")
    assert read(kind, root) == {"a": "2", "c": "2"}


@pytest.mark.parametrize("kind", TABLES)
def test_the_last_row_of_a_queue_counts_though_a_clock_went_back(kind: LakeFormat, tmp_path: Path) -> None:
    files = stage(tmp_path, 0, [("a", "1"), ("b", "1")], 0, second=30)
    files += stage(tmp_path, 0, [("a", "2")], 2, task=1, second=10)
    # Other queues are compared by time.
    files += stage(tmp_path, 0, [("a", "older")], 8, task=2, broker="c", second=9)
    files += stage(tmp_path, 0, [("b", "newer")], 0, task=3, broker="d", second=31)
    files += stage(tmp_path, 0, [("a", "older")], 9, task=4, queue_id=1, second=9)
    commit_files(Lake(tmp_path, kind), 0, "q", files, key="keys")
    assert read(kind, tmp_path) == {"a": "2", "b": "newer"}


@pytest.mark.parametrize("kind", TABLES)
def test_a_first_batch_may_only_delete(kind: LakeFormat, tmp_path: Path) -> None:
    commit_files(Lake(tmp_path, kind), 0, "q", stage(tmp_path, 0, [("a", "null")], 0), key="keys")
    assert read(kind, tmp_path) == {}
    commit_files(Lake(tmp_path, kind), 1, "q", stage(tmp_path, 1, [("a", "1")], 1), key="keys")
    assert read(kind, tmp_path) == {"a": "1"}


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_keeps_its_key(kind: LakeFormat, tmp_path: Path) -> None:
    commit_files(Lake(tmp_path, kind), 0, "q", stage(tmp_path, 0, [("a", "1")], 0), key="keys")
    for key, text in (("", "a row per message"), ("topic", "a row per value of topic")):
        with pytest.raises(ConfigError, match=f"has a row per value of keys, this run writes {text}"):
            commit_files(Lake(tmp_path, kind), 1, "q", stage(tmp_path, 1, [("a", "2")], 1), key=key)
    assert [path.name for path in (tmp_path / CONTROL_DIR).glob(f"{OWNER_FILE}*")] == [OWNER_FILE]
    assert read(kind, tmp_path) == {"a": "1"}
    with pytest.raises(ConfigError, match="a row per value of keys: audit, replay and history need all"):
        view_lake(tmp_path)
    owner = tmp_path / CONTROL_DIR / OWNER_FILE
    owner.write_text(owner.read_text().replace(', "key": "keys"', ""))  # as an earlier release wrote it
    commit_files(Lake(tmp_path, kind), 1, "q", stage(tmp_path, 1, [("a", "2")], 1), key="keys")
    assert read(kind, tmp_path) == {"a": "2"}


def test_rows_without_a_key_are_found() -> None:
    found = find_keyless(pa.array(["a", "", None]))
    assert found.to_pylist() == [None, NO_KEY, NO_KEY]


def test_a_key_needs_its_columns() -> None:
    with pytest.raises(
        ConfigError, match="key keys: the columns must include keys, brokerName, storeTimestamp"
    ):
        check_key("keys", ["body", "queueId", "queueOffset"])
    with pytest.raises(ConfigError, match="key properties: expected a column of texts, such as keys"):
        check_key("properties", ["properties"])
