"""Tests the options that the landing rejects before it starts anything."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import tandemmq.spark.pipelines.lake_job
import tandemmq.spark.pipelines.landing
import tandemmq.spark.pipelines.runner
import tandemmq.spark.session
from tandemmq.errors import ConfigError
from tandemmq.spark.columns import render_ddl
from tandemmq.spark.command import app
from tandemmq.spark.lake.files import Totals, claim_lake
from tandemmq.spark.lake.home import check_writer, hold_directory
from tandemmq.spark.lake.sink import LakeSink
from tandemmq.spark.lake.summaries import LakeMeter
from tandemmq.spark.options import parse_options
from tandemmq.spark.pipelines.audit import run_audit
from tandemmq.spark.pipelines.events import JsonReporter
from tandemmq.spark.pipelines.feed import Feed
from tandemmq.spark.pipelines.history import run_history
from tandemmq.spark.pipelines.landing import plan_landing, run_landing
from tandemmq.spark.pipelines.options import AuditOptions, HistoryOptions, LandingOptions
from tandemmq.spark.session import hush_pandas, share_python_path


def _options(out: Path, **settings: object) -> LandingOptions:
    given = {"name_servers": "ns:1", "topic": "T", "out": out, **settings}
    return LandingOptions(**given)  # type: ignore[arg-type]


def _check(options: LandingOptions) -> None:
    check_writer(plan_landing(options).lake, options.checkpoint_dir)


def _write_checkpoint(path: Path, query: str) -> None:
    path.mkdir(parents=True)
    (path / "metadata").write_text(json.dumps({"id": query}))


def test_a_new_directory_with_a_new_checkpoint_is_fine(tmp_path: Path) -> None:
    _check(_options(tmp_path))


def test_a_directory_goes_on_with_its_checkpoint(tmp_path: Path) -> None:
    claim_lake(tmp_path, "q1")
    _write_checkpoint(tmp_path / "_checkpoint", "q1")
    _check(_options(tmp_path))


def test_a_directory_with_another_kind_of_lake_is_refused(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    with pytest.raises(ConfigError, match="is a delta lake, not parquet"):
        _check(_options(tmp_path))


def test_a_landing_into_the_table_of_another_leaves_no_directory(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    (tmp_path / "far" / "_delta_log").mkdir(parents=True)
    (tmp_path / "far" / "_delta_log" / "00000000000000000000.json").touch()
    out = tmp_path / "new"
    options = _options(out, lake_format="delta", data=f"file://{tmp_path}/far")
    with pytest.raises(ConfigError, match=r"was written by another landing \(_delta_log\), and .* is new"):
        run_landing(options, JsonReporter(io.StringIO(), io.StringIO()))
    assert not out.exists()


def test_an_old_directory_with_a_new_checkpoint_is_refused(tmp_path: Path) -> None:
    claim_lake(tmp_path, "q1")
    with pytest.raises(ConfigError, match=r"was written with another checkpoint .* is empty"):
        _check(_options(tmp_path))
    _write_checkpoint(tmp_path / "other", "q2")
    with pytest.raises(ConfigError, match="belongs to query q2"):
        _check(_options(tmp_path, checkpoint=tmp_path / "other"))


@pytest.mark.parametrize("place", ["batch=00000001", "_bad_records/batch=00000001"])
def test_a_checkpoint_without_the_newest_batch_of_the_lake_is_refused(tmp_path: Path, place: str) -> None:
    claim_lake(tmp_path, "q1")
    checkpoint = tmp_path / "_checkpoint"
    _write_checkpoint(checkpoint, "q1")
    (checkpoint / "offsets").mkdir()
    for name in ("0", ".0.crc", "1", ".1.crc"):
        (checkpoint / "offsets" / name).touch()
    (tmp_path / "batch=00000000").mkdir()
    (tmp_path / place).mkdir(parents=True)
    _check(_options(tmp_path))  # the batch that the lake has, and Spark has not recorded as done
    (checkpoint / "offsets" / "1").unlink()
    with pytest.raises(
        ConfigError, match=r"_checkpoint ends with batch 0, and .* has batch 1: the newest files"
    ):
        _check(_options(tmp_path))
    with pytest.raises(ConfigError, match="ends with batch 0"):
        Feed(_options(tmp_path)).run_batch(lambda _task, _tasks: [])


def test_batches_without_an_owner_are_refused(tmp_path: Path) -> None:
    (tmp_path / "batch=00000000").mkdir()
    with pytest.raises(ConfigError, match="not the record of the query"):
        _check(_options(tmp_path))


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "README").touch()
    _check(_options(tmp_path))
    (tmp_path / "old.parquet").touch()
    with pytest.raises(ConfigError, match=r"holds old\.parquet, which no landing wrote"):
        _check(_options(tmp_path))


def test_a_directory_is_held_by_one_landing(tmp_path: Path) -> None:
    hold = (
        "import sys; from pathlib import Path; from tandemmq.spark.lake.home import hold_directory\n"
        "with hold_directory(Path(sys.argv[1])): print('held')"
    )
    command = [sys.executable, "-c", hold, str(tmp_path)]
    with hold_directory(tmp_path):
        other = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "another pipeline writes to" in other.stderr
        assert other.stdout == ""
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "held\n"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"partition_by": ("nothing",)}, "no column 'nothing'"),
        ({"columns": ("body",), "partition_by": ("dt",)}, "storeTimestamp"),
        ({"columns": ("bodi",)}, "did you mean body"),
        ({"compression": "zip"}, "compression"),
        ({"source": (("readFrom", "slave"),)}, "readFrom"),
        ({"source": (("maxoffset", "1"),)}, "unknown option"),
    ],
)
def test_senseless_options_are_refused(tmp_path: Path, settings: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        plan_landing(_options(tmp_path, **settings))


def test_the_landed_schema(tmp_path: Path) -> None:
    options = _options(tmp_path, columns=("queueId", "body", "properties"), is_body_text=True)
    schema = render_ddl(plan_landing(options).columns)
    assert schema == "`queueId` int, `body` string, `properties` map<string,string>"
    options = _options(tmp_path, columns=("body", "properties"), source=(("propertiesAs", "string"),))
    assert render_ddl(plan_landing(options).columns) == "`body` binary, `properties` string"


def test_the_users_options_win(tmp_path: Path) -> None:
    options = _options(tmp_path, batch_records_max=1000, source=(("packRecords", "7"),))
    assert options.source_options()["maxRecordsPerPartition"] == "313"
    assert options.source_options()["packRecords"] == "7"


def test_a_further_option_replaces_a_default_in_any_spelling(tmp_path: Path) -> None:
    options = _options(tmp_path, source=(("subExpression", "A || B"), ("maxOffsetsPerTrigger", "7")))
    source = parse_options(options.source_options(), is_streaming=True)
    assert (source.tags, source.trigger_records_max) == (("A", "B"), 7)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"tags": "A", "source": (("tags", "B"),)}, "option tags: --tags sets the same"),
        ({"tags": "A", "source": (("TAG", "A"),)}, "option TAG: --tags sets the same"),
        ({"source": (("nameServer", "other:1"),)}, "option nameServer: --namesrv sets the same"),
        ({"source": (("topic", "Other"),)}, "option topic: --topic sets the same"),
        ({"batch_records_max": 9, "source": (("maxOffsetsPerTrigger", "7"),)}, "--batch-rows sets the same"),
        ({"source": (("columns", "body"),)}, "option columns: --columns sets the same"),
    ],
)
def test_nothing_is_set_by_a_flag_and_by_a_further_option(
    tmp_path: Path, settings: dict[str, object], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        plan_landing(_options(tmp_path, **settings))


@pytest.mark.parametrize("name", ["columns", "replica"])
def test_an_audit_chooses_columns_and_replicas_itself(name: str) -> None:
    options = AuditOptions(topic="T", name_servers="ns:1", source=((name, "1"),))
    with pytest.raises(ConfigError, match=f"option {name}: this pipeline sets it itself"):
        run_audit(options, JsonReporter(io.StringIO(), io.StringIO()))


def test_a_history_has_the_columns_of_its_flag_only(tmp_path: Path) -> None:
    source = (("columns", "body"),)
    options = HistoryOptions(name_servers="ns:1", lake=tmp_path, out=tmp_path / "new", source=source)
    with pytest.raises(ConfigError, match="option columns: --columns sets the same"):
        run_history(options, JsonReporter(io.StringIO(), io.StringIO()))


def test_the_meter_counts_each_batch_once(tmp_path: Path) -> None:
    meter = LakeMeter(tmp_path)
    for batch_id in (0, 1):
        directory = tmp_path / f"batch={batch_id:08d}"
        directory.mkdir()
        (directory / "_summary.json").write_text('{"rows": 5, "bytes": 7}')
        assert meter.measure_all() == Totals(rows=5 * (batch_id + 1), size_bytes=7 * (batch_id + 1))
    assert meter.measure_batch(1) == Totals(rows=5, size_bytes=7)
    # Bad records count up to the last committed batch, whatever a compaction did to the lake.
    for batch_id in (0, 1, 2):
        directory = tmp_path / "_bad_records" / f"batch={batch_id:08d}"
        directory.mkdir(parents=True)
        (directory / "_summary.json").write_text('{"rows": 2, "bytes": 3}')
    assert meter.measure_all() == meter.measure_all() == Totals(rows=10, size_bytes=14, bad=4)
    assert meter.measure_batch(1).bad == 2


def test_the_command_says_what_is_wrong_in_one_line(tmp_path: Path) -> None:
    command = ["landing", "--namesrv", "x", "--topic", "T", "--out", str(tmp_path), "--progress", "none"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert result.output == "error: option nameServer: expected host:port, got 'x'\n"


def test_the_sink_of_lakes_takes_streams_only(tmp_path: Path) -> None:
    sink = LakeSink({"path": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"not a table: use writeStream and start.* parquet, delta"):
        sink.writer(schema=None, overwrite=False)
    with pytest.raises(ConfigError, match=r"needs a directory: .*, not toTable"):
        LakeSink({}).streamWriter(schema=None, overwrite=False)


def test_help_imports_neither_spark_nor_arrow() -> None:
    heavy = "('pyspark', 'pyarrow', 'numpy')"
    code = f"import sys, tandemmq.spark.command; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_workers_can_import_the_package_and_do_not_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("PYTHONWARNINGS", "error::ResourceWarning")
    root = share_python_path()
    share_python_path()
    assert os.environ["PYTHONPATH"] == f"{root}{os.pathsep}/elsewhere"
    assert (Path(root) / "tandemmq" / "spark" / "session.py") == Path(tandemmq.spark.session.__file__)
    hush_pandas()
    hush_pandas()
    rules = os.environ["PYTHONWARNINGS"].split(",")
    assert rules == ["error::ResourceWarning", "ignore:PySpark does not yet fully support pandas"]


def test_an_interrupt_still_stops_in_order_after_spark_took_the_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGINT)

    def build_session(*args: object, **kwargs: object) -> SimpleNamespace:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return SimpleNamespace(stop=lambda: None)

    query = SimpleNamespace(
        isActive=True,
        lastProgress=None,
        status={"isTriggerActive": False},
        stop=lambda: None,
        exception=lambda: None,
    )

    def start() -> SimpleNamespace:
        signal.raise_signal(signal.SIGINT)
        return query

    monkeypatch.setattr(tandemmq.spark.pipelines.runner, "build_session", build_session)
    monkeypatch.setattr(tandemmq.spark.pipelines.lake_job, "warm_up", lambda spark: None)
    monkeypatch.setattr(tandemmq.spark.pipelines.lake_job, "_start_query", lambda *args: start())
    monkeypatch.setattr(tandemmq.spark.pipelines.landing, "_make_stream", lambda *args: None)
    stream = io.StringIO()
    assert run_landing(_options(tmp_path), JsonReporter(stream, stream)) == 0
    assert json.loads(stream.getvalue().splitlines()[-1])["reason"] == "signal"
    assert signal.getsignal(signal.SIGINT) == before
