"""Tests that a lake is sent to a topic once, and after an interruption with the same keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline_recorder import Recorder
from spark_lakes import follow_topic, land, read_topic

from tandemmq.spark.pipelines.events import BatchDone, Stopped
from tandemmq.spark.pipelines.options import ReplayOptions
from tandemmq.spark.pipelines.replay import Replay, load_state
from tandemmq.spark.pipelines.runner import StopFlag, Workplace


def _replay(spark: Any, options: ReplayOptions) -> list[Any]:
    recorder = Recorder()
    state = load_state(options.state_path, options.plan())
    code = Replay(Workplace(spark, recorder, StopFlag()), options, state).run()
    assert code == 0, recorder.events
    return recorder.events


def test_a_replay_sends_once_and_repeats_with_the_same_keys(spark: Any, cluster: Any, tmp_path: Path) -> None:
    bodies = cluster.send("ReplayFrom", 900)
    land(follow_topic(spark, cluster.namesrv, "ReplayFrom", maxOffsetsPerTrigger="500"), tmp_path)
    options = ReplayOptions(
        lake=tmp_path,
        name_servers=cluster.namesrv,
        to_topic="ReplayTo",
        where="tags = 'b'",
        keep_queues=True,
    )
    reported = _replay(spark, options)
    assert sum(event.rows for event in reported if isinstance(event, BatchDone)) == 450
    assert reported[-1] == Stopped(
        reason="done", rows_total=450, bytes_total=sum(len(body) for body in bodies[1::2])
    )
    assert not [event for event in _replay(spark, options) if isinstance(event, BatchDone)]
    # The messages of each queue are in order.
    for queue in range(4):
        before, after = (
            [bytes(row.body) for row in rows.where(f"queueId = {queue}").orderBy("queueOffset").collect()]
            for rows in (
                read_topic(spark, cluster.namesrv, "ReplayFrom", tags="b"),
                read_topic(spark, cluster.namesrv, "ReplayTo"),
            )
        )
        assert before == after, queue

    # Simulates a kill before the last batch was recorded.
    document = json.loads(options.state_path.read_text())
    del document["done"]["1"]
    options.state_path.write_text(json.dumps(document))
    (again,) = [event for event in _replay(spark, options) if isinstance(event, BatchDone)]
    rows = read_topic(spark, cluster.namesrv, "ReplayTo", columns="msgId,body,tags").collect()
    assert len(rows) == 450 + again.rows
    assert sorted({(row.msgId, bytes(row.body)) for row in rows}, key=lambda pair: pair[1]) == sorted(
        {row.msgId: (row.msgId, bytes(row.body)) for row in rows}.values(), key=lambda pair: pair[1]
    )
    assert sorted({bytes(row.body) for row in rows}) == sorted(bodies[1::2])
    assert {row.tags for row in rows} == {"b"}
