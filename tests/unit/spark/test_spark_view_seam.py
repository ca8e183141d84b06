"""Tests the boundary between a lake and its live topic."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pyarrow as pa
import pytest
from spark_fakes import FakeNet, FakeQueue

from tandemmq.errors import ConfigError, NoRoute, OffsetOutOfRange
from tandemmq.spark.lake.files import BAD_RECORDS_DIR, SUMMARY_FILE, batch_dir
from tandemmq.spark.lake.home import Lake, LakeFormat
from tandemmq.spark.lake.parquet import ParquetOptions, ParquetStager
from tandemmq.spark.lake.sink import LakeWriter, TaskFiles
from tandemmq.spark.lake.summaries import record_summary
from tandemmq.spark.lake.view import LakeView, view_lake
from tandemmq.spark.offsets import Mark, QueueKey, StreamOffset, encode_offset
from tandemmq.spark.options import parse_options
from tandemmq.spark.pipelines.audit import Audit, run_audit
from tandemmq.spark.pipelines.events import ResultReporter
from tandemmq.spark.pipelines.history import Seam, bound_live, find_seam
from tandemmq.spark.pipelines.options import AuditOptions, ReplayOptions
from tandemmq.spark.pipelines.replay import run_replay
from tandemmq.spark.pipelines.runner import StopFlag, Workplace


def _write(lake: Path, batch: int, end: int) -> None:
    offsets = lake / "_checkpoint" / "offsets"
    offsets.mkdir(parents=True, exist_ok=True)
    document = encode_offset(StreamOffset(positions={QueueKey("T", "b", 0): end}))
    (offsets / str(batch)).write_text(
        "v1\n" + json.dumps({"batchWatermarkMs": 0}) + f"\n{json.dumps(document)}"
    )


def _land(lake: Path, batch: int) -> None:
    directory = batch_dir(lake, batch)
    directory.mkdir(parents=True)
    (directory / "part-00000.parquet").touch()


def test_the_seam_is_the_end_of_the_last_batch_in_the_lake(tmp_path: Path) -> None:
    assert find_seam(tmp_path).view.pieces == ()
    for batch in range(3):
        _write(tmp_path, batch, 10 * (batch + 1))
    for batch in (0, 1):
        _land(tmp_path, batch)
    seam = find_seam(tmp_path)
    # Batch 2 is planned and perhaps running: its messages come from the brokers.
    assert [piece.name for piece in seam.view.pieces] == ["0", "1"]
    assert seam.positions == {QueueKey("T", "b", 0): 20}


def test_a_lake_without_its_checkpoint_is_refused(tmp_path: Path) -> None:
    _land(tmp_path, 4)
    with pytest.raises(ConfigError, match="lacks the end offsets of batch 4"):
        find_seam(tmp_path)


def test_bad_records_count_as_far_as_the_lake_has_their_batch(tmp_path: Path) -> None:
    bad = tmp_path / BAD_RECORDS_DIR
    for batch in range(5):
        _write(tmp_path, batch, 10 * (batch + 1))
    _land(tmp_path, 0)
    for batch in (0, 1, 2, 4):
        _land(bad, batch)
    # If a batch has only bad records, the record of its commit alone shows that it is complete.
    record_summary(tmp_path, 2, [])
    seam = find_seam(tmp_path)
    assert [(piece.name, len(piece.places), len(piece.bad_places)) for piece in seam.view.pieces] == [
        ("0", 1, 1),
        ("1", 0, 1),
        ("2", 0, 1),
    ]
    assert seam.positions == {QueueKey("T", "b", 0): 30}
    # Compaction merges neighbouring batches under the first number, together with their bad records.
    (batch_dir(tmp_path, 0) / SUMMARY_FILE).write_text('{"rows": 1, "bytes": 1, "batches": [0, 1]}')
    (first, second) = view_lake(tmp_path).pieces
    assert (first.name, len(first.bad_places), second.name) == ("0", 2, "2")


def test_a_batch_of_bad_records_alone_is_a_batch_of_the_lake(tmp_path: Path) -> None:
    rows = pa.record_batch({"body": [b"no json"], "badReason": ["no JSON"]})
    options = ParquetOptions()
    for batch in (0, 1):
        bad = tmp_path / BAD_RECORDS_DIR
        stager = ParquetStager(bad, batch_id=batch, partition_id=0, schema=rows.schema, options=options)
        stager.write(rows)
        task = TaskFiles(query_id="q", files=(), bad_files=stager.finish())
        writer = LakeWriter(Lake(tmp_path, LakeFormat.PARQUET), (), "zstd", bad_column="badReason")
        writer.commit([task], batch)
        _write(tmp_path, batch, 10 * (batch + 1))
    seam = find_seam(tmp_path)
    assert [(piece.name, len(piece.bad_places)) for piece in seam.view.pieces] == [("0", 1), ("1", 1)]
    assert seam.positions == {QueueKey("T", "b", 0): 20}


def _bound(seam: Seam, **raw: str) -> tuple[dict[int, int], dict[int, int]]:
    options = parse_options({"nameserver": "ns:1", "topic": "T", **raw}, is_streaming=False)
    starts, ends = bound_live(options, seam)
    return tuple({queue.queue_id: at for queue, at in found.items()} for found in (starts, ends))  # type: ignore[return-value]


def test_a_topic_made_anew_is_not_taken_for_what_follows_the_lake(net: FakeNet, tmp_path: Path) -> None:
    queue = FakeQueue(0, 60)
    net.add_master(T_0=queue, T_1=FakeQueue(0, 10))
    first, second = (QueueKey("T", "b", number) for number in (0, 1))
    mark = Mark(queue_offset=49, log_offset=4900, stored_at_ms=2_049)
    landed = StreamOffset(positions={first: 50, second: 10}, marks={first: mark})
    seam = Seam(view=LakeView(lake=Lake(tmp_path, LakeFormat.PARQUET)), end=landed)
    assert _bound(seam) == ({0: 50, 1: 10}, {0: 60, 1: 10})
    queue.end, queue.time_of = 80, lambda offset: 500_000 + offset
    with pytest.raises(OffsetOutOfRange, match=r"at queue offset 50, .* not the one that was read"):
        _bound(seam)
    assert _bound(seam, failOnDataLoss="false") == ({0: 0, 1: 10}, {0: 80, 1: 10})
    net.queue_counts["T"]["b"] = 1
    with pytest.raises(OffsetOutOfRange, match=r"T@b:1.* the queue is gone"):
        _bound(replace(seam, end=replace(landed, marks={})))
    assert _bound(seam, failOnDataLoss="false") == ({0: 0}, {0: 80})


def test_the_brokers_part_is_filtered_as_the_landing_was(net: FakeNet, tmp_path: Path) -> None:
    net.add_master(T_0=FakeQueue(0, 60))
    tags = parse_options({"nameserver": "ns:1", "topic": "T", "tags": "a"}, is_streaming=False)
    end = StreamOffset(positions={QueueKey("T", "b", 0): 50}, filter_hash=tags.filter_hash)
    seam = Seam(view=LakeView(lake=Lake(tmp_path, LakeFormat.PARQUET)), end=end)
    assert _bound(seam, tags="a") == ({0: 50}, {0: 60})
    for other in ({}, {"tags": "b"}, {"filter": "n > 1"}):
        with pytest.raises(ConfigError, match="differs from the landing's"):
            _bound(seam, **other)


def test_an_audit_leaves_out_no_topic_that_it_names(net: FakeNet, tmp_path: Path) -> None:
    net.add_master(T_0=FakeQueue(0, 60))

    def sides(topic: str) -> list[str]:
        options = AuditOptions(topic=topic, name_servers="ns:1", lakes=(tmp_path,))
        place = Workplace(None, ResultReporter(StringIO(), StringIO()), StopFlag())  # type: ignore[arg-type]
        return [side.name for side in Audit(place, options)._find_sides()]

    assert sides("T") == ["master", f"lake {tmp_path}"]
    with pytest.raises(NoRoute, match="no readable queue of Typo"):
        sides("T,Typo")


def test_audit_and_replay_refuse_a_folder_that_is_not_a_lake(tmp_path: Path) -> None:
    options = AuditOptions(topic="T", name_servers="h:1", lakes=(tmp_path,))
    with pytest.raises(ConfigError, match="is not a lake"):
        run_audit(options, ResultReporter(StringIO(), StringIO()))
    replay = ReplayOptions(lake=tmp_path, name_servers="h:1", to_topic="T")
    with pytest.raises(ConfigError, match="holds no batches"):
        run_replay(replay, ResultReporter(StringIO(), StringIO()))
