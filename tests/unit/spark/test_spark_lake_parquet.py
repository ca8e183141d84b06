"""Tests the Parquet files of one task: complete, partitioned as requested, named by the task alone."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tandemmq.spark.lake.parquet
from tandemmq.errors import ConfigError
from tandemmq.spark.lake.files import commit_batch, staging_dir
from tandemmq.spark.lake.parquet import (
    NAME_BYTES_MAX,
    ParquetOptions,
    ParquetStager,
    check_partition_columns,
    split_by_partition,
)

SCHEMA = pa.schema(
    [("queueOffset", pa.int64()), ("tags", pa.string()), ("storeTimestamp", pa.timestamp("us", "UTC"))]
)


def _batch(first: int, count: int) -> pa.RecordBatch:
    rows = range(first, first + count)
    start = dt.datetime(2025, 1, 31, 23, tzinfo=dt.UTC)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(rows, pa.int64()),
            pa.array([[None, "a/b", "c"][n % 3] for n in rows], pa.string()),
            pa.array([start + dt.timedelta(minutes=n) for n in rows], pa.timestamp("us", "UTC")),
        ],
        schema=SCHEMA,
    )


def _stager(root: Path, *partition_by: str, **settings: str) -> ParquetStager:
    options = ParquetOptions(partition_by=partition_by, **settings)  # type: ignore[arg-type]
    return ParquetStager(root, batch_id=7, partition_id=3, schema=SCHEMA, options=options)


def test_all_rows_are_in_the_files(tmp_path: Path) -> None:
    stager = _stager(tmp_path)
    for first in (0, 50):
        stager.write(_batch(first, 50))
    (file,) = stager.finish()
    assert (file.target, file.rows) == ("part-00003.parquet", 100)
    commit_batch(tmp_path, 7, "q", [file])
    table = pq.read_table(tmp_path)
    assert table["queueOffset"].to_pylist() == list(range(100))
    assert set(table["batch"].to_pylist()) == {7}


def test_partitions_become_directories_that_readers_understand(tmp_path: Path) -> None:
    stager = _stager(tmp_path, "dt", "tags")
    stager.write(_batch(0, 120))
    files = stager.finish()
    assert sorted(file.target for file in files) == [
        f"dt=2025-0{day}/tags={tag}/part-00003.parquet"
        for day in ("1-31", "2-01")
        for tag in ("__HIVE_DEFAULT_PARTITION__", "a%2Fb", "c")
    ]
    commit_batch(tmp_path, 7, "q", files)
    rows = sorted(pq.read_table(tmp_path).to_pylist(), key=lambda row: row["queueOffset"])
    assert [row["queueOffset"] for row in rows] == list(range(120))
    assert [row["tags"] for row in rows] == [[None, "a/b", "c"][n % 3] for n in range(120)]
    assert [row["dt"] for row in rows] == ["2025-01-31"] * 60 + ["2025-02-01"] * 60


def test_values_that_share_a_directory_keep_all_their_rows(tmp_path: Path) -> None:
    tags = [None, "", "a", "__HIVE_DEFAULT_PARTITION__", None, ""]
    batch = pa.record_batch({"queueOffset": pa.array(range(6), pa.int64()), "tags": pa.array(tags)})
    options = ParquetOptions(partition_by=("tags",))
    stager = ParquetStager(tmp_path, batch_id=7, partition_id=3, schema=batch.schema, options=options)
    stager.write(batch)
    files = stager.finish()
    assert [(file.target, file.rows) for file in files] == [
        ("tags=__HIVE_DEFAULT_PARTITION__/part-00003.parquet", 5),
        ("tags=a/part-00003.parquet", 1),
    ]
    commit_batch(tmp_path, 7, "q", files)
    assert pq.read_table(tmp_path / "batch=00000007" / files[0].target)["queueOffset"].to_pylist() == [
        0,
        1,
        3,
        4,
        5,
    ]


def test_values_too_long_for_a_directory_are_cut_and_stay_apart(tmp_path: Path) -> None:
    # A cut in the middle of %2F or of a character would change the end of the text.
    fits = "t" * (NAME_BYTES_MAX - len("tags="))
    tags = [fits, fits + "1", fits + "2", "ü" * 126, "/" * 200]
    batch = pa.record_batch({"queueOffset": pa.array(range(5), pa.int64()), "tags": pa.array(tags)})
    options = ParquetOptions(partition_by=("tags",))
    stager = ParquetStager(tmp_path, batch_id=7, partition_id=3, schema=batch.schema, options=options)
    stager.write(batch)
    commit_batch(tmp_path, 7, "q", stager.finish())
    assert max(len(path.name.encode()) for path in tmp_path.rglob("tags=*")) == NAME_BYTES_MAX
    first, *cut = sorted(pq.read_table(tmp_path).to_pylist(), key=lambda row: row["queueOffset"])
    assert first["tags"] == fits
    for row, tag in zip(cut, tags[1:], strict=True):
        kept, mark = row["tags"].split("...")
        assert tag.startswith(kept)
        assert len(kept) > 70
        assert mark == f"{crc32(tag.encode()):08x}"


def test_directories_are_spelled_as_spark_reads_them(tmp_path: Path) -> None:
    tags = ["über/x", "日本", "a%b", "😀"]
    batch = pa.record_batch({"queueOffset": pa.array(range(4), pa.int64()), "tags": pa.array(tags)})
    options = ParquetOptions(partition_by=("tags",))
    stager = ParquetStager(tmp_path, batch_id=7, partition_id=3, schema=batch.schema, options=options)
    stager.write(batch)
    files = stager.finish()
    # These are Spark's own names: it would read the bytes of "ü" as %C3%BC as two characters.
    assert {file.target.split("/")[0] for file in files} == {
        "tags=über%2Fx",
        "tags=日本",
        "tags=a%25b",
        "tags=😀",
    }
    commit_batch(tmp_path, 7, "q", files)
    assert sorted(pq.read_table(tmp_path)["tags"].to_pylist()) == sorted(tags)


def test_times_are_in_utc_whatever_the_session_says(tmp_path: Path) -> None:
    moment = dt.datetime(2025, 1, 31, 23, 30, tzinfo=dt.UTC)
    local = pa.timestamp("us", "America/New_York")
    items = pa.list_(pa.struct([("at", local)]))
    batch = pa.record_batch(
        {
            "storeTimestamp": pa.array([moment], local),
            "json": pa.array(
                [{"at": moment, "items": [{"at": moment}, None]}],
                pa.struct([("at", local), ("items", items)]),
            ),
            "times": pa.array([[("a", moment)]], pa.map_(pa.string(), local)),
        }
    )
    options = ParquetOptions(partition_by=("dt",))
    stager = ParquetStager(tmp_path, batch_id=7, partition_id=3, schema=batch.schema, options=options)
    stager.write(batch)
    (file,) = stager.finish()
    assert file.target.startswith("dt=2025-01-31/")
    table = pq.read_table(tmp_path / file.staged)
    assert "New_York" not in str(table.schema)
    assert table.to_pylist() == batch.to_pylist()


def test_the_names_do_not_depend_on_how_rows_were_cut_into_batches(tmp_path: Path) -> None:
    whole, pieces = _stager(tmp_path / "a", "tags"), _stager(tmp_path / "b", "tags")
    whole.write(_batch(0, 60))
    for first in range(0, 60, 20):
        pieces.write(_batch(first, 20))
    assert {(f.target, f.rows) for f in whole.finish()} == {(f.target, f.rows) for f in pieces.finish()}


def test_open_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tandemmq.spark.lake.parquet, "FILES_OPEN_MAX", 2)
    stager = _stager(tmp_path, "tags")
    for first in range(0, 60, 20):
        stager.write(_batch(first, 20))
    files = stager.finish()
    assert sum(file.rows for file in files) == 60
    assert len({file.target for file in files}) == len(files) > 3
    commit_batch(tmp_path, 7, "q", files)
    assert sorted(pq.read_table(tmp_path)["queueOffset"].to_pylist()) == list(range(60))


def test_a_discarded_attempt_leaves_no_file(tmp_path: Path) -> None:
    stager = _stager(tmp_path, "tags")
    stager.write(_batch(0, 20))
    stager.discard()
    assert list(staging_dir(tmp_path).iterdir()) == []


@pytest.mark.parametrize("compression", ["zstd", "snappy", "none"])
def test_compressions(tmp_path: Path, compression: str) -> None:
    stager = _stager(tmp_path, compression=compression)
    stager.write(_batch(0, 10))
    (file,) = stager.finish()
    assert pq.read_table(tmp_path / file.staged).num_rows == 10


def test_statistics_allow_to_skip_by_offset_and_time(tmp_path: Path) -> None:
    stager = _stager(tmp_path)
    stager.write(_batch(5, 10))
    (file,) = stager.finish()
    column = pq.read_metadata(tmp_path / file.staged).row_group(0).column(0)
    assert (column.statistics.min, column.statistics.max) == (5, 14)


@pytest.mark.parametrize(
    ("names", "partition_by", "text"),
    [
        (["a"], ["batch"], "already the first level"),
        (["a"], ["b"], "no column 'b'"),
        (["a"], ["dt"], "not written"),
        (["a"], ["a"], "at least one column"),
    ],
)
def test_senseless_partitions_are_refused(names: list[str], partition_by: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        check_partition_columns(names, partition_by)


def test_an_unknown_compression_is_refused() -> None:
    with pytest.raises(ConfigError, match="zstd, snappy, none"):
        ParquetOptions(compression="lzma")


def test_rows_of_one_partition_are_not_copied() -> None:
    batch = _batch(0, 3)
    assert [(name, rows is batch) for name, rows in split_by_partition(batch, [])] == [("", True)]
    assert list(split_by_partition(batch.slice(0, 0), ["tags"])) == []
