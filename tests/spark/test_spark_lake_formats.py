"""Tests streams into Delta and Iceberg tables: a replayed batch is stored once, and all counts agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pipeline_recorder import Recorder
from spark_lakes import count_offsets, follow_topic, forget_last_commit, land

from tandemmq.spark.lake.check import check_lake
from tandemmq.spark.lake.formats import list_live_files
from tandemmq.spark.lake.home import LakeFormat, require_lake
from tandemmq.spark.lake.summaries import list_committed
from tandemmq.spark.lake.upkeep import compact_lake
from tandemmq.spark.pipelines.audit import Audit
from tandemmq.spark.pipelines.events import SideJudged
from tandemmq.spark.pipelines.history import FROM_COLUMN, history
from tandemmq.spark.pipelines.options import AuditOptions, ReplayOptions
from tandemmq.spark.pipelines.replay import Replay, load_state
from tandemmq.spark.pipelines.runner import StopFlag, Workplace


@pytest.mark.parametrize(("kind", "is_elsewhere"), [("delta", False), ("delta", True), ("iceberg", False)])
def test_a_replayed_batch_is_in_the_table_once(
    spark: Any, cluster: Any, tmp_path: Path, kind: str, is_elsewhere: bool
) -> None:
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[kind])
    topic, out = f"Table_{kind}_{int(is_elsewhere)}", tmp_path / "lake"
    options = {"format": kind, "data": f"file://{tmp_path}/store" if is_elsewhere else ""}
    sent = cluster.send(topic, 400)

    stream = follow_topic(spark, cluster.namesrv, topic, maxOffsetsPerTrigger="200")
    land(stream, out, **options)
    forget_last_commit(out / "_checkpoint")
    land(stream, out, **options)
    check_rows(spark, cluster, topic, LakeFormat(kind), out, sent)
    assert list_committed(out) == [0, 1]
    assert (out / "data").exists() is not is_elsewhere
    compact_lake(out)
    check_rows(spark, cluster, topic, LakeFormat(kind), out, sent)
    check_damage(spark, cluster, topic, LakeFormat(kind), out)
    check_pipelines(spark, cluster, topic, out, sent)


def check_rows(spark: Any, cluster: Any, topic: str, kind: LakeFormat, out: Path, sent: list[bytes]) -> None:
    """Checks that Spark, pyarrow and the brokers' offsets count each body once."""
    lake = require_lake(out)
    paths = [lake.data.locate(name) for name in sorted(list_live_files(lake))]
    bodies = [body for path in paths for body in pq.ParquetFile(path).read(["body"])["body"].to_pylist()]
    assert sorted(bodies) == sorted(sent)
    assert count_offsets(cluster.namesrv, topic) == len(sent)
    assert spark.read.parquet(*paths).count() == check_lake(out).rows == len(sent)


def check_pipelines(spark: Any, cluster: Any, topic: str, out: Path, sent: list[bytes]) -> None:
    """Tests that the table is audited, read as history and replayed like a Parquet lake."""
    reported = Recorder()
    options = AuditOptions(topic=topic, name_servers=cluster.namesrv, lakes=(out,), count_repeated_keys=False)
    place = Workplace(spark, reported, StopFlag())
    assert Audit(place, options).run(), reported.events
    later = cluster.send(topic, 20, first=len(sent))
    rows = history(spark, lake=out, name_servers=cluster.namesrv).collect()
    assert sorted(bytes(row.body) for row in rows) == sorted([*sent, *later])
    assert sum(row[FROM_COLUMN] for row in rows) == len(sent)
    again = ReplayOptions(
        lake=out, name_servers=cluster.namesrv, to_topic=f"{topic}_again", where="tags = 'b'"
    )
    for _ in range(2):
        assert Replay(place, again, load_state(again.state_path, again.plan())).run() == 0
    assert count_offsets(cluster.namesrv, again.to_topic) == len(sent) // 2


def check_damage(spark: Any, cluster: Any, topic: str, kind: LakeFormat, out: Path) -> None:
    """Tests that audit and check both find a row that is doubled and one that is missing."""
    lake = require_lake(out)
    path = Path(lake.data.path(min(list_live_files(lake))))
    before = path.read_bytes()
    with pq.ParquetFile(path) as file:
        table = file.read()
    options = AuditOptions(topic=topic, name_servers=cluster.namesrv, lakes=(out,), count_repeated_keys=False)
    for rows, counts in [([0, *range(len(table))], (0, 1)), (range(1, len(table)), (1, 0))]:
        pq.write_table(table.take(list(rows)), path)
        assert [fault for fault in check_lake(out).faults if path.name in fault]
        reported = Recorder()
        assert not Audit(Workplace(spark, reported, StopFlag()), options).run()
        (found,) = [event for event in reported.of(SideJudged) if event.side == f"lake {out}"]
        assert (found.missing, found.repeated) == counts
    path.write_bytes(before)
