"""Tests the loop of `pipeline serve` without Spark: turns, failing topics, pauses, new topics, and redo."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from spark_fakes import FakeNet, FakeQueue
from typer.testing import CliRunner

import tandemmq.spark.pipelines.serve
from tandemmq.errors import BrokerUnreachable, ConfigError
from tandemmq.spark.command import app
from tandemmq.spark.lake.files import CONTROL_DIR
from tandemmq.spark.pipelines.events import Event, TopicBatch, TopicChanged
from tandemmq.spark.pipelines.feed import Feed, NumberedTask, RunTasks, StagedRows
from tandemmq.spark.pipelines.meters import MetricsReporter
from tandemmq.spark.pipelines.runner import StopFlag
from tandemmq.spark.pipelines.serve import REPLACED, JavaEnded, LakeService, find_topics
from tandemmq.spark.pipelines.serve_config import ServeConfig, parse_config
from tandemmq.spark.pipelines.served import begin_redo, order, read_status, render_status
from tandemmq.spark.wire import BlockingNameServers

HOLD = """
import pathlib, sys
from tandemmq.spark.lake.home import hold_directory
with hold_directory(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""
"""A program that holds a lake until its input ends."""


class Recorder:
    """Keeps the events, and sets the flag after one that `until` accepts."""

    def __init__(self, until: Callable[[Event], bool] = lambda event: False) -> None:
        self.events: list[Event] = []
        self.stop = StopFlag()
        self._until = until

    def report(self, event: Event) -> None:
        self.events.append(event)
        self.stop.is_set = self.stop.is_set or self._until(event)

    def close(self) -> None:
        pass


def run_here(work: Callable[[NumberedTask], StagedRows], tasks: Sequence[NumberedTask]) -> list[StagedRows]:
    return [work(task) for task in tasks]


def run_topic(topic: str) -> RunTasks:
    return run_here


def make_config(out: Path, topics: Sequence[dict[str, Any]], **more: Any) -> ServeConfig:
    defaults = {"startingOffsets": "earliest", "batchRows": 10}
    return parse_config(
        {"nameServer": "ns:1", "out": str(out), "defaults": defaults, "topics": topics, **more}
    )


def serve(
    config: ServeConfig, recorder: Recorder, run: Any = run_topic, *, is_once: bool = True
) -> LakeService:
    service = LakeService(config, recorder, run, is_once=is_once)
    service.run(recorder.stop, lambda: None, lambda: None)
    return service


def shown(config: ServeConfig) -> str:
    return "\n".join(render_status(config.out))


def count_rows(out: Path) -> int:
    return int(pq.read_table(out, columns=["queueId"]).num_rows)


def test_all_topics_of_a_pattern_are_landed_in_turns(net: FakeNet, tmp_path: Path) -> None:
    net.add_master(**{f"Shop{n}_0": FakeQueue(0, 10 * n) for n in range(1, 6)}, Other_0=FakeQueue(0, 3))
    recorder = Recorder()
    config = make_config(tmp_path, [{"pattern": "Shop.*"}], batchesAtOnce=1)
    service = serve(config, recorder)
    assert {name: count_rows(tmp_path / name) for name in service.topics} == {
        f"Shop{n}": 10 * n for n in range(1, 6)
    }
    assert service.total.rows == 150
    batches = [event.topic for event in recorder.events if isinstance(event, TopicBatch)]
    # The small topics do not wait for the large ones.
    assert set(batches[:5]) == set(service.topics)
    status = json.loads((tmp_path / CONTROL_DIR / "status.json").read_text())
    assert status["topics"]["Shop3"]["total"]["rows"] == 30


def test_a_topic_has_metrics_before_its_first_batch(net: FakeNet, tmp_path: Path) -> None:
    net.add_master(New_0=FakeQueue(0, 0), Read_0=FakeQueue(0, 7))
    config = make_config(tmp_path, [{"name": "New"}, {"name": "Read"}, {"name": "Paused"}])
    order(tmp_path, "Paused", "pause")
    serve(config, Recorder())
    recorder = Recorder()
    serve(config, recorder)
    metrics = MetricsReporter("serve", 0, "127.0.0.1")
    try:
        for event in recorder.events:
            metrics.report(event)
        seen = {
            (sample.labels[1], sample.metric.name.removeprefix("tandemmq_pipeline_topic_")): sample.value
            for sample in metrics.read()
        }
    finally:
        metrics.close()
    names = ("rows_total", "bad_records_total", "lost_messages_total", "lag_messages")
    assert seen == {
        **{("New", name): 0 for name in (*names, "batches_total", "failing")},
        **{("Read", name): 0 for name in (*names, "batches_total", "failing")},
        ("Read", "rows_total"): 7,
        **{("Paused", name): 0 for name in ("batches_total", "failing")},
    }


def test_a_failing_topic_does_not_stop_the_others(net: FakeNet, tmp_path: Path) -> None:
    net.add_master(Good_0=FakeQueue(0, 30), Bad_0=FakeQueue(0, 30))

    def run(topic: str) -> RunTasks:
        def fail(work: object, tasks: object) -> list[StagedRows]:
            raise OSError("no space left")

        return fail if topic == "Bad" else run_here

    recorder = Recorder()
    config = make_config(tmp_path, [{"name": "Bad"}, {"name": "Good"}])
    serve(config, recorder, run)
    assert count_rows(tmp_path / "Good") == 30
    changes = [event for event in recorder.events if isinstance(event, TopicChanged) and event.error]
    assert [(event.topic, event.error) for event in changes] == [("Bad", "no space left")]
    assert changes[0].next_try_seconds == 1.0
    assert "no space left (next try in" in shown(config)
    # Its next turn repeats the batch.
    serve(config, Recorder())
    assert count_rows(tmp_path / "Bad") == 30
    # The lakes are shown, too, if a service has found nothing new in them.
    serve(config, Recorder())
    assert all(re.search(rf"^{name} +running +30 ", shown(config), re.MULTILINE) for name in ("Bad", "Good"))


@pytest.mark.parametrize(("failure", "tries"), [(BrokerUnreachable("away"), 4), (OSError("full"), 1)])
def test_a_service_that_runs_once_repeats_what_may_succeed_later(
    net: FakeNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception, tries: int
) -> None:
    monkeypatch.setattr(tandemmq.spark.pipelines.serve, "PAUSE_S_MAX", 0.01)
    net.add_master(A_0=FakeQueue(0, 5))
    tried: list[str] = []

    def fail(work: object, tasks: object) -> list[StagedRows]:
        tried.append("A")
        raise failure

    config = make_config(tmp_path, [{"name": "A"}])
    service = serve(config, Recorder(), lambda topic: fail)
    assert (len(tried), service.topics["A"].error) == (tries, str(failure))


def test_a_topic_that_is_made_later_is_added(
    net: FakeNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tandemmq.spark.pipelines.serve, "DISCOVER_S", 0.0)
    net.add_master(First_0=FakeQueue(0, 5))

    def add(event: Event) -> bool:
        if isinstance(event, TopicBatch) and event.topic == "First":
            net.add_master(Second_0=FakeQueue(0, 6))
        return isinstance(event, TopicBatch) and event.topic == "Second"

    serve(make_config(tmp_path, [{"pattern": ".*"}], pollSeconds=0.01), Recorder(add), is_once=False)
    assert count_rows(tmp_path / "Second") == 6


def test_a_topic_can_be_paused_resumed_and_landed_anew(net: FakeNet, tmp_path: Path) -> None:
    queue = FakeQueue(0, 5)
    net.add_master(A_0=queue, B_0=FakeQueue(0, 5))
    config = make_config(tmp_path, [{"pattern": ".*"}])
    order(tmp_path, "A", "pause")
    service = serve(config, Recorder())
    assert service.topics["A"].state == "paused"
    assert not (tmp_path / "A" / "batch=00000000").exists()
    assert count_rows(tmp_path / "B") == 5
    for _ in range(2):  # the second one finds nothing to change
        order(tmp_path, "A", "resume")
    serve(config, Recorder())
    assert count_rows(tmp_path / "A") == 5
    queue.end = 8
    order(tmp_path, "A", "redo")
    assert "to be landed anew; --cancel-redo keeps its lake" in shown(config)
    order(tmp_path, "A", "cancel-redo")
    assert "to be landed anew" not in shown(config)
    with pytest.raises(ConfigError, match="A: no redo is pending"):
        order(tmp_path, "A", "cancel-redo")
    order(tmp_path, "A", "redo")
    status = read_status(tmp_path)
    assert status is not None
    assert [(one.name, one.state, one.is_redone, one.rows) for one in status.topics] == [
        ("A", "running", True, 5),
        ("B", "running", False, 5),
    ]
    serve(config, Recorder())
    assert count_rows(tmp_path / "A") == 8
    (before,) = (tmp_path / CONTROL_DIR / REPLACED).iterdir()
    assert count_rows(before) == 5
    serve(config, Recorder())
    assert count_rows(tmp_path / "A") == 8
    with pytest.raises(
        ConfigError, match="no entry of the configuration matches the topic 'SCHEDULE_TOPIC_XXXX'"
    ):
        config.check_topics(["A", "SCHEDULE_TOPIC_XXXX"])


def test_a_redo_is_withdrawn_or_begins_but_never_both(
    net: FakeNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net.add_master(A_0=FakeQueue(0, 5))
    config = make_config(tmp_path, [{"name": "A"}])
    serve(config, Recorder())
    order(tmp_path, "A", "redo")
    close = Feed.close

    def withdraw_and_close(feed: Feed) -> None:
        # The service has found the mark, and has not moved the lake.
        monkeypatch.setattr(Feed, "close", close)
        order(tmp_path, "A", "cancel-redo")
        feed.close()

    monkeypatch.setattr(Feed, "close", withdraw_and_close)
    serve(config, Recorder())
    assert not (tmp_path / CONTROL_DIR / REPLACED).exists()
    assert count_rows(tmp_path / "A") == 5


def test_a_redo_that_has_begun_continues_after_a_kill(net: FakeNet, tmp_path: Path) -> None:
    net.add_master(A_0=FakeQueue(0, 5))
    config = make_config(tmp_path, [{"name": "A"}])
    serve(config, Recorder())
    order(tmp_path, "A", "redo")
    assert begin_redo(tmp_path, "A")
    with pytest.raises(ConfigError, match="A: no redo is pending: none was ordered, or it has begun"):
        order(tmp_path, "A", "cancel-redo")
    serve(config, Recorder())
    serve(config, Recorder())
    (before,) = (tmp_path / CONTROL_DIR / REPLACED).iterdir()
    assert (count_rows(before), count_rows(tmp_path / "A")) == (5, 5)


def test_a_redo_of_a_lake_that_another_process_writes_to_can_be_withdrawn(
    net: FakeNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tandemmq.spark.pipelines.serve, "PAUSE_S_MAX", 0.01)
    net.add_master(A_0=FakeQueue(0, 5))
    config = make_config(tmp_path, [{"name": "A"}])
    serve(config, Recorder())
    order(tmp_path, "A", "redo")
    command = [sys.executable, "-c", HOLD, str(tmp_path / "A")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        service = serve(config, Recorder())
        holder.communicate()
    assert "another pipeline writes to" in service.topics["A"].error
    order(tmp_path, "A", "cancel-redo")
    assert not (tmp_path / CONTROL_DIR / REPLACED).exists()
    assert count_rows(tmp_path / "A") == 5


def test_the_command_gives_each_order(tmp_path: Path) -> None:
    file = tmp_path / "lake.yaml"
    file.write_text(f"nameServer: ns:1\nout: {tmp_path}\ntopics: [{{name: A}}, {{name: B}}]\n")

    def marks(*options: str) -> list[str]:
        answer = CliRunner().invoke(app, ["served", "--config", str(file), *options])
        assert answer.exit_code == 0, answer.output
        return sorted(f"{path.parent.name} {path.name}" for path in tmp_path.glob(f"{CONTROL_DIR}/*/*"))

    assert marks("--pause", "A", "--redo", "A", "--redo", "B") == ["paused A", "redo A", "redo B"]
    assert marks("--cancel-redo", "A") == ["paused A", "redo B"]
    assert marks("--resume", "A") == ["redo B"]
    refused = CliRunner().invoke(app, ["served", "--config", str(file), "--cancel-redo", "A"])
    assert (refused.exit_code, "A: no redo is pending: none was ordered" in refused.output) == (2, True)


def test_a_service_without_java_ends(net: FakeNet, tmp_path: Path) -> None:
    net.add_master(A_0=FakeQueue(0, 5))

    def check_java() -> None:
        raise JavaEnded("gone")

    recorder = Recorder()
    service = LakeService(make_config(tmp_path, [{"name": "A"}]), recorder, run_topic, is_once=False)
    with pytest.raises(JavaEnded):
        service.run(recorder.stop, check_java, lambda: None)


def test_unreachable_name_servers_are_shown(
    net: FakeNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tandemmq.spark.pipelines.serve, "PAUSE_S_MAX", 0.01)
    net.is_name_server_down = True
    config = make_config(tmp_path, [{"name": "A"}, {"pattern": "B.*"}])
    service = serve(config, Recorder())
    assert "no name server answers" in service.error
    assert service.topics["A"].state == "failing"
    assert "name servers: no name server answers" in shown(config)


def test_a_listed_topic_whose_name_would_leave_the_directory_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = ["Orders", "../../Orders", "Orders/x", "", "O" * 200]
    monkeypatch.setattr(BlockingNameServers, "list_topics", lambda _: listed)
    assert find_topics(make_config(tmp_path, [{"pattern": ".*"}])) == ("Orders",)
