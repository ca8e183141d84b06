"""Tests that the end of a batch is on disk before a sink of ours runs the tasks of the batch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import BinaryType, StructType

from tandemmq.spark.checkpoint import find_last_batch, sync_checkpoint
from tandemmq.spark.lake.sink import LakeSink
from tandemmq.spark.source import TandemSource

SCHEMA = StructType().add("body", BinaryType())


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Returns the files and directories that were flushed, as they are."""
    found: list[Path] = []
    flush = os.fsync

    def record(descriptor: int) -> None:
        found.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    return found


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    for name in ("2", ".2.crc", "10", ".10.crc", ".11.tmp"):
        (offsets / name).write_text("v1")
    (offsets.parent / "metadata").write_text('{"id": "q"}')
    return offsets.parent


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
@pytest.mark.parametrize(
    ("sink", "more"),
    [(LakeSink, {}), (TandemSource, {"nameServer": "ns:1", "topic": "T"})],
)
def test_the_newest_offsets_are_flushed_before_a_batch(
    checkpoint: Path, flushed: list[Path], sink: Any, more: dict[str, str], scheme: str
) -> None:
    if sink is LakeSink:
        more = {"path": str(checkpoint.parent / "lake")}
    options = CaseInsensitiveDict({"checkpointLocation": f"{scheme}{checkpoint}", **more})
    sink(options).streamWriter(schema=SCHEMA, overwrite=False)
    offsets = checkpoint / "offsets"
    assert [path for path in flushed if path.is_relative_to(checkpoint)][:5] == [
        *(offsets / "10", offsets / ".10.crc", checkpoint / "metadata"),
        *(offsets, checkpoint),
    ]


@pytest.mark.parametrize("location", ["", "hdfs://host/path", "relative", "/absent"])
def test_a_checkpoint_elsewhere_is_left_alone(location: str, flushed: list[Path]) -> None:
    sync_checkpoint(location)
    assert flushed == []


def test_a_new_checkpoint_has_no_batch(tmp_path: Path, flushed: list[Path]) -> None:
    (tmp_path / "offsets").mkdir()
    sync_checkpoint(str(tmp_path))
    assert (find_last_batch(tmp_path / "offsets"), find_last_batch(tmp_path / "commits")) == (-1, -1)
    assert flushed == []
