"""Pipelines that are killed or stopped go on where they were. The landing has a file of its own."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline_process import is_batch, running_pipeline
from pipeline_recorder import Recorder
from spark_cluster import Cluster
from spark_lakes import follow_topic, forget_last_commit, land, read_topic

from tandemmq.spark.pipelines.events import BatchDone, Stopped
from tandemmq.spark.pipelines.replay import Replay, ReplayOptions
from tandemmq.spark.pipelines.replay_state import load_state
from tandemmq.spark.pipelines.rollup_table import read_rollup
from tandemmq.spark.pipelines.runner import StopFlag

RunPipeline = Callable[..., list[dict[str, Any]]]


class StopsAtFirstBatch(Recorder):
    """What a pipeline tells, and a signal for it as soon as it has told of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.flag = StopFlag()

    def report(self, event: Any) -> None:
        super().report(event)
        if isinstance(event, BatchDone):
            self.flag.on_signal(signal.SIGTERM, None)


def test_a_replay_survives_a_kill_and_stops_in_order(
    lake_spark: Any, cluster: Cluster, tmp_path: Path, run_pipeline: RunPipeline
) -> None:
    sent = cluster.send("Watched", 1200)
    lake = tmp_path / "lake"
    land(follow_topic(lake_spark, cluster.namesrv, "Watched", maxOffsetsPerTrigger="200"), lake)
    command = ("replay", "--lake", str(lake), "--namesrv", cluster.namesrv, "--to", "WatchedAgain")
    with running_pipeline(*command, "--continuous", "--rate", "400") as replay:
        replay.wait_for(is_batch)
        replay.end(signal.SIGKILL)

    options = ReplayOptions(
        lake=lake, name_servers=cluster.namesrv, to_topic="WatchedAgain", follow_every_s=0.1
    )
    told, state = StopsAtFirstBatch(), load_state(options.state_path, options.plan())
    before = len(state.done)
    assert before >= 1
    assert Replay(lake_spark, options, state, told, told.flag).run_all() == 0
    assert told.of(Stopped)[0].reason == "signal"
    assert len(load_state(options.state_path, options.plan()).done) == before + 1

    events = run_pipeline(*command)
    assert (events[-1]["reason"], events[-1]["rows_total"]) == ("done", len(sent))
    rows = read_topic(lake_spark, cluster.namesrv, "WatchedAgain", columns="msgId,body").collect()
    # What was sent when the kill came is sent again with the same key; nothing else is there twice.
    assert sorted(body for _, body in {(row.msgId, bytes(row.body)) for row in rows}) == sorted(sent)
    assert len(sent) <= len(rows) <= len(sent) + 200


def test_a_rollup_goes_on_where_it_was_killed(
    cluster: Cluster, tmp_path: Path, run_pipeline: RunPipeline
) -> None:
    cluster.send("Counted", 900)
    command = ("rollup", "--namesrv", cluster.namesrv, "--topic", "Counted", "--out", str(tmp_path))
    command += ("--batch-rows", "600", "--once")
    assert len([event for event in run_pipeline(*command) if is_batch(event)]) == 2
    forget_last_commit(tmp_path / "_checkpoint")
    cluster.send("Counted", 100, first=900)
    assert run_pipeline(*command)[-1]["reason"] == "done"
    assert sum(row.messages for row in read_rollup(tmp_path, topic="Counted")) == 1000
