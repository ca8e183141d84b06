"""Streams into Delta and Iceberg tables: a batch that is replayed is there once, and all counts agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tandemmq.spark.lake.formats import LakeFormat, list_committed, list_live_files
from tandemmq.spark.lake.upkeep import check_lake, compact_lake
from tandemmq.spark.metadata import Cluster as Brokers
from tandemmq.spark.options import parse_options


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_replayed_batch_is_in_the_table_once(
    lake_spark: Any, cluster: Any, tmp_path: Path, kind: str
) -> None:
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[kind])
    topic, out = f"Table_{kind}", tmp_path / "lake"
    sent = cluster.send(topic, 400)

    def land() -> None:
        options = {"nameServer": cluster.namesrv, "topic": topic, "startingOffsets": "earliest"}
        source = lake_spark.readStream.format("tandemmq").options(**options, maxOffsetsPerTrigger="200")
        writer = source.load().writeStream.format("tandemmq_lake").option("format", kind)
        writer = writer.option("checkpointLocation", str(out / "_checkpoint")).trigger(availableNow=True)
        writer.start(str(out)).awaitTermination()

    land()
    commits = out / "_checkpoint" / "commits"
    newest = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
    for path in (commits / str(newest), commits / f".{newest}.crc"):
        path.unlink(missing_ok=True)
    land()
    check_rows(lake_spark, cluster, topic, LakeFormat(kind), out, sent)
    assert list_committed(out) == [0, 1]
    compact_lake(out)
    check_rows(lake_spark, cluster, topic, LakeFormat(kind), out, sent)


def check_rows(spark: Any, cluster: Any, topic: str, kind: LakeFormat, out: Path, sent: list[bytes]) -> None:
    """Spark, pyarrow and the brokers' offsets agree: each body once."""
    paths = [str(out / name) for name in sorted(list_live_files(kind, out))]
    bodies = [body for path in paths for body in pq.ParquetFile(path).read(["body"])["body"].to_pylist()]
    assert sorted(bodies) == sorted(sent)
    brokers = Brokers(parse_options({"nameserver": cluster.namesrv, "topic": topic}, is_streaming=False))
    bounds = brokers.read_bounds(brokers.describe()).values()
    assert sum(bound.end - bound.begin for bound in bounds) == len(sent)
    assert spark.read.parquet(*paths).count() == check_lake(out).rows == len(sent)
