"""Tests Delta and Iceberg lakes: each batch once wherever a kill happens, new columns, equal counts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tandemmq.errors import ConfigError
from tandemmq.spark.lake.check import check_lake
from tandemmq.spark.lake.data_files import DataFiles
from tandemmq.spark.lake.files import CommitOutcome, StagedFile, Totals
from tandemmq.spark.lake.formats import commit_files, list_live_files
from tandemmq.spark.lake.home import Lake, LakeFormat, hold_directory, make_lake, parse_format
from tandemmq.spark.lake.parquet import ParquetStager, plan_files
from tandemmq.spark.lake.summaries import list_committed, read_committed
from tandemmq.spark.lake.upkeep import compact_lake
from tandemmq.spark.lake.view import view_lake

_PACKAGES = {LakeFormat.DELTA: "deltalake", LakeFormat.ICEBERG: "pyiceberg"}


def _param(kind: LakeFormat) -> Any:
    package = _PACKAGES.get(kind, "pyarrow")
    return pytest.param(kind, marks=pytest.mark.skipif(find_spec(package) is None, reason=f"no {package}"))


TABLES = [_param(LakeFormat.DELTA), _param(LakeFormat.ICEBERG)]
ALL = [_param(LakeFormat.PARQUET), *TABLES]
TOPICS = ("Orders", "%RETRY%g")


class Killed(Exception):
    """A stand-in for a process that ends at this step."""


def make_rows(first: int, count: int, *, more: bool = False, parsed: Any = None) -> Any:
    numbers = range(first, first + count)
    columns = {
        "topic": pa.array([TOPICS[n % 2] for n in numbers]),
        "queueId": pa.array([n % 4 for n in numbers], pa.int32()),
        "queueOffset": pa.array(numbers, pa.int64()),
        "storeTimestamp": pa.array(
            [datetime(2025, 1, 1 + n % 3, 5, tzinfo=UTC) for n in numbers], pa.timestamp("us", "UTC")
        ),
        "body": pa.array([b"row %d" % n for n in numbers]),
        "properties": pa.array([[("n", str(n))] for n in numbers], pa.map_(pa.string(), pa.string())),
    }
    if parsed is not None:
        kind = pa.struct(
            [("n", pa.int64()), *((name, pa.list_(pa.struct([(name, pa.string())]))) for name in parsed)]
        )
        columns["json"] = pa.array([{"n": n} for n in numbers], kind)
    if more:
        columns["region"] = pa.array(["eu" for _ in numbers])
    return pa.record_batch(columns)


def stage(
    kind: LakeFormat, root: Path, batch_id: int, rows: Any, task: int = 0, address: str = ""
) -> tuple[StagedFile, ...]:
    options = plan_files(Lake(root, kind, address), rows.schema.names, (), "zstd")
    stager = ParquetStager(root, batch_id=batch_id, partition_id=task, schema=rows.schema, options=options)
    stager.write(rows)
    return stager.finish()


def read_table(kind: LakeFormat, root: Path) -> Any:
    if kind is LakeFormat.PARQUET:
        return pq.read_table(root)
    if kind is LakeFormat.DELTA:
        from deltalake import DeltaTable

        return DeltaTable(str(root)).to_pyarrow_table()
    from tandemmq.spark.lake.iceberg import open_iceberg

    table = open_iceberg(Lake(root, LakeFormat.ICEBERG))
    assert table is not None
    return table.scan().to_arrow()


def offsets(kind: LakeFormat, root: Path) -> list[int]:
    return sorted(read_table(kind, root)["queueOffset"].to_pylist())


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("killed_at", ["write", "before commit", "after commit"])
def test_a_batch_is_there_once_whatever_was_killed(
    kind: LakeFormat, killed_at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "lake"
    commit_files(Lake(root, kind), 0, "q", stage(kind, root, 0, make_rows(0, 10)))
    _kill(kind, root, killed_at, stage(kind, root, 1, make_rows(10, 10)))
    # Spark repeats the batch with other files and the same rows.
    outcome = commit_files(Lake(root, kind), 1, "q", stage(kind, root, 1, make_rows(10, 10)))
    is_there = killed_at == "after commit"
    assert outcome is (CommitOutcome.ALREADY_COMMITTED if is_there else CommitOutcome.COMMITTED)
    commit_files(Lake(root, kind), 2, "q", stage(kind, root, 2, make_rows(20, 5)))
    assert offsets(kind, root) == list(range(25))
    assert list_committed(root) == [0, 1, 2]
    assert read_committed(root, 1).rows == 10


def _kill(kind: LakeFormat, root: Path, killed_at: str, files: Sequence[StagedFile]) -> None:
    def crash(step: str) -> None:
        if step == killed_at:
            raise Killed(step)

    if killed_at == "write":
        return
    if kind is LakeFormat.PARQUET:
        if killed_at == "after commit":
            commit_files(Lake(root, kind), 1, "q", files)
        return
    with pytest.raises(Killed):
        commit_files(Lake(root, kind), 1, "q", files, crash=crash)


@pytest.mark.parametrize("kind", TABLES)
def test_the_first_batch_may_be_killed_too(kind: LakeFormat, tmp_path: Path) -> None:
    for killed_at in ("before commit", "after commit"):
        _kill_first(kind, tmp_path, killed_at)
        files = stage(kind, tmp_path, 0, make_rows(0, 10))
        commit_files(Lake(tmp_path, kind), 0, "q", files)
    assert offsets(kind, tmp_path) == list(range(10))
    # The files of the replays are removed, except those of the attempt killed before its commit.
    left = {str(path.relative_to(tmp_path)) for path in (tmp_path / "data").rglob("*.parquet")}
    assert list_live_files(Lake(tmp_path, kind)) <= left


def _kill_first(kind: LakeFormat, root: Path, killed_at: str) -> None:
    def crash(step: str) -> None:
        if step == killed_at:
            raise Killed(step)

    with pytest.raises(Killed):
        commit_files(Lake(root, kind), 0, "q", stage(kind, root, 0, make_rows(0, 10)), crash=crash)


@pytest.mark.parametrize("kind", TABLES)
def test_a_commit_that_is_repeated_with_its_own_files_keeps_them(kind: LakeFormat, tmp_path: Path) -> None:
    files = stage(kind, tmp_path, 0, make_rows(0, 10))
    commit_files(Lake(tmp_path, kind), 0, "q", files)
    assert commit_files(Lake(tmp_path, kind), 0, "q", files) is CommitOutcome.ALREADY_COMMITTED
    assert offsets(kind, tmp_path) == list(range(10))


@pytest.mark.parametrize("kind", TABLES)
def test_new_columns_are_added_and_older_rows_have_nulls(kind: LakeFormat, tmp_path: Path) -> None:
    commit_files(Lake(tmp_path, kind), 0, "q", stage(kind, tmp_path, 0, make_rows(0, 4)))
    commit_files(Lake(tmp_path, kind), 1, "q", stage(kind, tmp_path, 1, make_rows(4, 4, more=True)))
    commit_files(Lake(tmp_path, kind), 2, "q", stage(kind, tmp_path, 2, make_rows(8, 4)))
    table = read_table(kind, tmp_path)
    assert Counter(table["region"].to_pylist()) == {None: 8, "eu": 4}


@pytest.mark.parametrize("kind", TABLES)
def test_a_struct_grows_by_fields_and_never_changes_them(kind: LakeFormat, tmp_path: Path) -> None:
    for batch, names in enumerate(((), ("a",), ("a", "b"))):
        rows = make_rows(4 * batch, 4, parsed=names)
        commit_files(Lake(tmp_path, kind), batch, "q", stage(kind, tmp_path, batch, rows))
    table = read_table(kind, tmp_path)
    assert [field.name for field in table["json"].type] == ["n", "a", "b"]
    assert sorted(row["n"] for row in table["json"].to_pylist()) == list(range(12))
    if kind is LakeFormat.DELTA:
        rows = make_rows(12, 4, parsed=("b",))
        with pytest.raises(ConfigError, match="column json is"):
            commit_files(Lake(tmp_path, kind), 3, "q", stage(kind, tmp_path, 3, rows))


@pytest.mark.parametrize("kind", TABLES)
def test_a_look_at_a_table_finds_its_files_by_batch(kind: LakeFormat, tmp_path: Path) -> None:
    for batch in (0, 1):
        files = stage(kind, tmp_path, batch, make_rows(12 * batch, 12))
        commit_files(Lake(tmp_path, kind), batch, "q", files)
    stage(kind, tmp_path, 2, make_rows(24, 12))
    view = view_lake(tmp_path)
    assert [(piece.name, len(piece.places)) for piece in view.pieces] == [("0", 6), ("1", 6)]
    assert view.last_batch == 1
    assert sum(pq.read_metadata(path).num_rows for piece in view.pieces for path in piece.places) == 24
    if kind is LakeFormat.DELTA:
        assert {values["topic"] for values in view.partitions.values()} == set(TOPICS)
        assert {values["dt"] for values in view.partitions.values()} == {f"2025-01-0{n}" for n in (1, 2, 3)}
    compact_lake(tmp_path)
    merged = view_lake(tmp_path)
    assert not any(piece.is_batch for piece in merged.pieces)
    assert merged.last_batch == 1


@pytest.mark.parametrize("kind", TABLES)
def test_files_are_by_topic_and_day_with_statistics(kind: LakeFormat, tmp_path: Path) -> None:
    files = stage(kind, tmp_path, 0, make_rows(0, 12))
    assert len(files) == 6
    commit_files(Lake(tmp_path, kind), 0, "q", files)
    table = read_table(kind, tmp_path)
    assert set(table["topic"].to_pylist()) == set(TOPICS)
    if kind is LakeFormat.DELTA:
        from deltalake import DeltaTable

        delta = DeltaTable(str(tmp_path))
        actions = pa.table(delta.get_add_actions(flatten=True))
        assert set(actions["num_records"].to_pylist()) == {2}
        assert min(actions["min.queueOffset"].to_pylist()) == 0
        assert max(actions["max.queueOffset"].to_pylist()) == 11
        assert delta.metadata().partition_columns == ["topic", "dt"]
    else:
        from tandemmq.spark.lake.iceberg import open_iceberg

        iceberg = open_iceberg(Lake(tmp_path, LakeFormat.ICEBERG))
        assert iceberg is not None
        wanted = "topic = 'Orders' and storeTimestamp < '2025-01-02T00:00:00+00:00'"
        assert len(list(iceberg.scan(row_filter=wanted).plan_files())) == 1


@pytest.mark.parametrize("kind", ALL)
def test_a_directory_has_one_owner_and_one_kind(kind: LakeFormat, tmp_path: Path) -> None:
    commit_files(Lake(tmp_path, kind), 0, "q", stage(kind, tmp_path, 0, make_rows(0, 4)))
    with pytest.raises(ConfigError, match="written by query q"):
        commit_files(Lake(tmp_path, kind), 0, "p", stage(kind, tmp_path, 0, make_rows(0, 4)))
    other = next(other for other in LakeFormat if other is not kind)
    with pytest.raises(ConfigError, match=f"is a {kind.value} lake"):
        commit_files(Lake(tmp_path, other), 1, "q", ())
    assert read_committed(tmp_path, 7) == Totals(rows=0, size_bytes=0)


def test_a_kind_that_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandemmq.spark.lake.home.find_spec", lambda _name: None)
    assert parse_format("Parquet") is LakeFormat.PARQUET
    with pytest.raises(ConfigError, match=r"pip install .* '\.\[spark,delta\]'"):
        parse_format("delta")
    with pytest.raises(ConfigError, match="parquet, delta, iceberg"):
        parse_format("orc")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A catalog named `shop` in the settings of pyiceberg, and the view of its other readers."""
    catalogs = pytest.importorskip("pyiceberg.catalog")
    from pyiceberg.utils.config import Config

    monkeypatch.setenv("PYICEBERG_CATALOG__SHOP__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__SHOP__URI", f"sqlite:///{tmp_path}/shop.db")
    # pyiceberg reads its settings once, on import.
    monkeypatch.setattr(catalogs, "_ENV_CONFIG", Config())
    catalog = catalogs.load_catalog("shop")
    yield catalog
    catalog.engine.dispose()


def land(lake: Lake, batch_id: int, rows: Any, query: str = "q") -> CommitOutcome:
    """Writes and commits one batch, like the sink."""
    files = stage(lake.kind, lake.root, batch_id, rows, address=lake.address)
    return commit_files(lake, batch_id, query, files)


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_may_lie_at_an_address(kind: LakeFormat, tmp_path: Path) -> None:
    root, place = tmp_path / "lake", f"file://{tmp_path}/store/orders/"
    lake = make_lake(root, kind.value, place, "", "")
    for batch_id in (0, 1):
        rows = make_rows(10 * batch_id, 10)
        assert land(lake, batch_id, rows) is CommitOutcome.COMMITTED
        assert land(lake, batch_id, rows) is CommitOutcome.ALREADY_COMMITTED
    check_place(kind, root, tmp_path / "store" / "orders", range(20))
    assert check_lake(root).orphans == 0  # the files of the repeated batches are deleted
    assert [piece.name for piece in view_lake(root).pieces] == ["0", "1"]
    before, after = compact_lake(root)
    assert after < before
    check_place(kind, root, tmp_path / "store" / "orders", range(20))
    with pytest.raises(ConfigError, match=r"is at file:///.*/orders, not in that directory"):
        land(Lake(root, kind), 2, make_rows(20, 1))
    with pytest.raises(ConfigError, match=r"was written by another landing .* is new"):
        land(replace(lake, root=tmp_path / "new"), 0, make_rows(0, 10), "another")


def check_place(kind: LakeFormat, root: Path, place: Path, wanted: range) -> None:
    """Checks that all rows are at the place exactly once, and no table files in the lake's directory."""
    assert not (root / "data").exists()
    assert not (root / "_delta_log").exists()
    files = [str(file) for piece in view_lake(root).pieces for file in piece.places]
    assert all(file.startswith(f"{place}/") for file in files)
    found = pa.concat_tables([pq.read_table(file, columns=["queueOffset"]) for file in files])
    assert sorted(found["queueOffset"].to_pylist()) == list(wanted)
    state = check_lake(root)
    assert (state.kind, state.rows, state.faults) == (kind, len(wanted), ())


def test_an_iceberg_table_may_belong_to_a_catalog(shop: Any, tmp_path: Path) -> None:
    root, place = tmp_path / "lake", f"file://{tmp_path}/warehouse/orders"
    with pytest.raises(
        ConfigError, match=r"catalog shop has no table eu.orders; set the address of its files with --data"
    ):
        make_lake(root, "iceberg", "", "shop", "eu.orders")
    lake = make_lake(root, "iceberg", place, "shop", "eu.orders")
    assert land(lake, 0, make_rows(0, 10)) is CommitOutcome.COMMITTED
    # The catalog now supplies the location.
    assert make_lake(root, "iceberg", "", "shop", "eu.orders") == lake
    assert land(lake, 1, make_rows(10, 5)) is CommitOutcome.COMMITTED
    assert land(lake, 1, make_rows(10, 5)) is CommitOutcome.ALREADY_COMMITTED
    others = shop.load_table("eu.orders").scan().to_arrow()
    assert sorted(others["queueOffset"].to_pylist()) == list(range(15))
    check_place(LakeFormat.ICEBERG, root, tmp_path / "warehouse" / "orders", range(15))
    wanted = r"orders \(eu.orders of the catalog shop\), not at .*orders \(eu.other of the catalog shop\)"
    with pytest.raises(ConfigError, match=wanted):
        land(replace(lake, table="eu.other"), 2, make_rows(15, 1))
    with pytest.raises(ConfigError, match=r"eu.orders was written by another landing \(q\)"):
        land(replace(lake, root=tmp_path / "new"), 0, make_rows(0, 10), "another")
    with pytest.raises(ConfigError, match=r"is at file:///.*/orders, not at file:///elsewhere"):
        make_lake(root, "iceberg", "file:///elsewhere", "shop", "eu.orders")
    with pytest.raises(ConfigError, match=r"catalog nowhere: .*PYICEBERG_CATALOG__NOWHERE__URI"):
        make_lake(root, "iceberg", place, "nowhere", "eu.orders")


def test_tasks_write_to_a_store_without_directories(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    address = "memory://bucket/orders"
    files = stage(LakeFormat.DELTA, tmp_path, 0, make_rows(0, 12), address=address)
    data = DataFiles(address)
    assert sorted(file.staged for file in files) == list(data.list_parquet())
    table = pq.read_table(data.path(files[0].staged), filesystem=data.system)
    assert (table.num_rows, data.size(files[0].staged)) == (files[0].rows, files[0].size_bytes)
    assert data.locate(files[0].staged) == data.uri(files[0].staged) == f"{address}/{files[0].staged}"
    for file in files:
        data.delete(file.staged)
        data.delete(file.staged)
    assert list(data.list_parquet()) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (("parquet", "s3://bucket/orders", "", ""), "renaming a directory, which object stores cannot do"),
        (("delta", "bucket/orders", "", ""), "expected an address as s3://bucket/orders"),
        (("delta", "s3://bucket/orders?secret=1", "", ""), "come from the environment"),
        (("delta", "file://orders", "", ""), "needs the whole path"),
        (("delta", "", "shop", "eu.orders"), "for iceberg lakes only"),
        (("iceberg", "", "", "eu.orders"), "are given together"),
        (("iceberg", "", "shop", "orders"), "expected NAMESPACE.NAME"),
    ],
)
def test_a_home_that_cannot_be_is_refused(settings: tuple[str, str, str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make_lake(Path(), *settings)


@pytest.mark.parametrize("work", [view_lake, check_lake, compact_lake])
def test_a_lake_is_no_address(
    work: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="is an address, a lake is a directory"):
        work(Path("s3://bucket/orders"))
    with (
        pytest.raises(ConfigError, match="is an address, a lake is a directory"),
        hold_directory(Path("s3://bucket/orders")),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


WRITER = """
import sys
from pathlib import Path
from test_spark_lake_tables import make_rows, stage
from tandemmq.spark.lake.formats import commit_files
from tandemmq.spark.lake.home import Lake, LakeFormat

kind, root, done = LakeFormat(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
for batch in range(int(done.read_text()), 12):
    commit_files(Lake(root, kind), batch, "q", stage(kind, root, batch, make_rows(batch * 10, 10)))
    print(batch, flush=True)
    done.write_text(str(batch + 1))
"""
"""Commits batches like Spark, which writes its own log of a batch after each commit."""


@pytest.mark.long
@pytest.mark.parametrize("kind", ALL)
def test_a_writer_that_is_killed_again_and_again_writes_every_row_once(
    kind: LakeFormat, tmp_path: Path
) -> None:
    root, done = tmp_path / "lake", tmp_path / "done"
    done.write_text("0")
    command = [sys.executable, "-c", WRITER, kind.value, str(root), str(done)]
    places = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": places}
    for lines in (1, 4):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as writer:
            assert writer.stdout is not None
            for _ in range(lines):
                writer.stdout.readline()
            # The batch number may be anywhere between this commit and the next one.
            writer.kill()
        # Simulates the loss of the last batch's log: the batch is replayed.
        done.write_text(str(max(0, int(done.read_text() or 0) - 1)))
    subprocess.run(command, stdout=subprocess.DEVNULL, env=environment, check=True)
    assert offsets(kind, root) == list(range(120))
