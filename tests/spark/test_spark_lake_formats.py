"""Streams into Delta and Iceberg tables: a batch that is replayed is there once, and all counts agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from spark_lakes import count_offsets, follow_topic, forget_last_commit, land

from tandemmq.spark.lake.formats import LakeFormat, list_committed, list_live_files
from tandemmq.spark.lake.upkeep import check_lake, compact_lake


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_replayed_batch_is_in_the_table_once(
    lake_spark: Any, cluster: Any, tmp_path: Path, kind: str
) -> None:
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[kind])
    topic, out = f"Table_{kind}", tmp_path / "lake"
    sent = cluster.send(topic, 400)

    stream = follow_topic(lake_spark, cluster.namesrv, topic, maxOffsetsPerTrigger="200")
    land(stream, out, format=kind)
    forget_last_commit(out / "_checkpoint")
    land(stream, out, format=kind)
    check_rows(lake_spark, cluster, topic, LakeFormat(kind), out, sent)
    assert list_committed(out) == [0, 1]
    compact_lake(out)
    check_rows(lake_spark, cluster, topic, LakeFormat(kind), out, sent)


def check_rows(spark: Any, cluster: Any, topic: str, kind: LakeFormat, out: Path, sent: list[bytes]) -> None:
    """Spark, pyarrow and the brokers' offsets agree: each body once."""
    paths = [str(out / name) for name in sorted(list_live_files(kind, out))]
    bodies = [body for path in paths for body in pq.ParquetFile(path).read(["body"])["body"].to_pylist()]
    assert sorted(bodies) == sorted(sent)
    assert count_offsets(cluster.namesrv, topic) == len(sent)
    assert spark.read.parquet(*paths).count() == check_lake(out).rows == len(sent)
