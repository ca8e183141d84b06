"""Where a lake ends and its topic goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tandemmq.errors import ConfigError
from tandemmq.spark.lake.files import BAD_RECORDS_DIR, SUMMARY_FILE, batch_dir
from tandemmq.spark.lake.formats import note_summary
from tandemmq.spark.lake.view import view_lake
from tandemmq.spark.offsets import QueueKey, StreamOffset, encode_offset
from tandemmq.spark.pipelines.audit import AuditOptions, run_audit
from tandemmq.spark.pipelines.events import SilentReporter
from tandemmq.spark.pipelines.history import find_seam
from tandemmq.spark.pipelines.replay import ReplayOptions, run_replay


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
    # Batch 2 is planned, perhaps running: its messages come from the brokers.
    assert [piece.name for piece in seam.view.pieces] == ["0", "1"]
    assert seam.positions == {QueueKey("T", "b", 0): 20}


def test_a_lake_without_its_checkpoint_is_refused(tmp_path: Path) -> None:
    _land(tmp_path, 4)
    with pytest.raises(ConfigError, match="does not tell where batch 4"):
        find_seam(tmp_path)


def test_bad_records_count_as_far_as_the_lake_has_their_batch(tmp_path: Path) -> None:
    bad = tmp_path / BAD_RECORDS_DIR
    for batch in range(5):
        _write(tmp_path, batch, 10 * (batch + 1))
    _land(tmp_path, 0)
    for batch in (0, 1, 2, 4):
        _land(bad, batch)
    # Of a batch with bad records only the note of its commit says that it is whole.
    note_summary(tmp_path, 2, [])
    seam = find_seam(tmp_path)
    assert [(piece.name, len(piece.places), len(piece.bad_places)) for piece in seam.view.pieces] == [
        ("0", 1, 1),
        ("1", 0, 1),
        ("2", 0, 1),
    ]
    assert seam.positions == {QueueKey("T", "b", 0): 30}
    # Compaction puts neighbours together under the first number; their bad records go with them.
    (batch_dir(tmp_path, 0) / SUMMARY_FILE).write_text('{"rows": 1, "bytes": 1, "batches": [0, 1]}')
    (first, second) = view_lake(tmp_path).pieces
    assert (first.name, len(first.bad_places), second.name) == ("0", 2, "2")


def test_what_is_no_lake_is_refused(tmp_path: Path) -> None:
    options = AuditOptions(topic="T", name_servers="h:1", lakes=(tmp_path,))
    with pytest.raises(ConfigError, match="is no lake"):
        run_audit(options, SilentReporter())
    replay = ReplayOptions(lake=tmp_path, name_servers="h:1", to_topic="T")
    with pytest.raises(ConfigError, match="holds no batches"):
        run_replay(replay, SilentReporter())
