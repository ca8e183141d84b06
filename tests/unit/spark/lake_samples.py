"""Small lakes of each kind for tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tandemmq.spark.lake.files import CommitOutcome
from tandemmq.spark.lake.formats import commit_files
from tandemmq.spark.lake.home import Lake, LakeFormat
from tandemmq.spark.lake.parquet import ParquetStager, plan_files

NOW = datetime(2025, 1, 10, 12, tzinfo=UTC)
_PACKAGES = {LakeFormat.DELTA: "deltalake", LakeFormat.ICEBERG: "pyiceberg"}


def _param(kind: LakeFormat) -> Any:
    package = _PACKAGES.get(kind, "pyarrow")
    return pytest.param(kind, marks=pytest.mark.skipif(find_spec(package) is None, reason=f"no {package}"))


ALL = [_param(kind) for kind in LakeFormat]


def write_batch(
    kind: LakeFormat, root: Path, batch_id: int, count: int = 6, *, tasks: int = 2, now: datetime = NOW
) -> CommitOutcome:
    """Commits a batch of rows of the last three days, numbered across all batches and tasks."""
    files = []
    for task in range(tasks):
        first = (batch_id * tasks + task) * count
        numbers = range(first, first + count)
        rows = pa.record_batch(
            {
                "topic": pa.array(["Orders" for _ in numbers]),
                "brokerName": pa.array(["b" for _ in numbers]),
                "queueId": pa.array([0 for _ in numbers], pa.int32()),
                "queueOffset": pa.array(numbers, pa.int64()),
                "storeTimestamp": pa.array(
                    [now - timedelta(days=n % 3) for n in numbers], pa.timestamp("us", "UTC")
                ),
            }
        )
        partition_by = ("dt",) if kind is LakeFormat.PARQUET else ()
        options = plan_files(Lake(root, kind), rows.schema.names, partition_by, "zstd")
        stager = ParquetStager(
            root, batch_id=batch_id, partition_id=task, schema=rows.schema, options=options
        )
        stager.write(rows)
        files += stager.finish()
    return commit_files(Lake(root, kind), batch_id, "q", files)
