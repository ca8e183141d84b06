"""Where a lake ends and its topic goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tandemmq.errors import ConfigError
from tandemmq.spark.offsets import QueueKey, StreamOffset, encode_offset
from tandemmq.spark.pipelines.audit import AuditOptions, run_audit
from tandemmq.spark.pipelines.events import SilentReporter
from tandemmq.spark.pipelines.replay import ReplayOptions, run_replay
from tandemmq.spark.pipelines.seam import find_seam


def _write(lake: Path, batch: int, end: int) -> None:
    offsets = lake / "_checkpoint" / "offsets"
    offsets.mkdir(parents=True, exist_ok=True)
    document = encode_offset(StreamOffset(positions={QueueKey("T", "b", 0): end}))
    (offsets / str(batch)).write_text(
        "v1\n" + json.dumps({"batchWatermarkMs": 0}) + f"\n{json.dumps(document)}"
    )


def test_the_seam_is_the_end_of_the_last_batch_in_the_lake(tmp_path: Path) -> None:
    assert find_seam(tmp_path).batches == ()
    for batch in range(3):
        _write(tmp_path, batch, 10 * (batch + 1))
    for batch in (0, 1):
        (tmp_path / f"batch={batch:08d}").mkdir()
    seam = find_seam(tmp_path)
    # Batch 2 is planned, perhaps running: its messages come from the brokers.
    assert seam.batches == (0, 1)
    assert seam.positions == {QueueKey("T", "b", 0): 20}


def test_a_lake_without_its_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "batch=00000004").mkdir()
    with pytest.raises(ConfigError, match="does not tell where batch 4"):
        find_seam(tmp_path)


def test_a_table_is_refused(tmp_path: Path) -> None:
    # Its files are there, too, but which of them count is in its log.
    (tmp_path / "_delta_log").mkdir()
    with pytest.raises(ConfigError, match=r"is a delta table: only Parquet lakes"):
        find_seam(tmp_path)
    options = ReplayOptions(lake=tmp_path, name_servers="127.0.0.1:9876", to_topic="T", follow_every_s=1.0)
    with pytest.raises(ConfigError, match=r"is a delta table"):
        run_replay(options, SilentReporter())
    with pytest.raises(ConfigError, match=r"is a delta table"):
        run_audit(AuditOptions(topic="T", name_servers="h:1", lakes=(tmp_path,)), SilentReporter())
