"""Tests that dead letters are grouped, selected, and resent to their topics, each once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline_recorder import Recorder

from dead_letter_maker import make_dead_letters
from tandemmq.spark.pipelines.dead_letters import DeadLetter, DeadLetters, DeadLettersSeen
from tandemmq.spark.pipelines.events import ReportTable, Stopped
from tandemmq.spark.pipelines.options import DeadLetterOptions
from tandemmq.spark.pipelines.replay import load_state
from tandemmq.spark.pipelines.runner import StopFlag, Workplace

GROUP, TOPIC = "casualties", "Perilous"


def _run(spark: Any, options: DeadLetterOptions) -> Recorder:
    recorder = Recorder()
    state = load_state(options.state, options.plan()) if options.state else None
    letters = DeadLetters(Workplace(spark, recorder, StopFlag()), options, state)
    assert letters.run() == 0, recorder.events
    return recorder


def test_dead_letters_are_grouped_chosen_and_sent_once(spark: Any, cluster: Any, tmp_path: Path) -> None:
    make_dead_letters(cluster.namesrv, GROUP, TOPIC, 8)
    reported = _run(spark, DeadLetterOptions(name_servers=cluster.namesrv, group=GROUP, shown=3))
    assert reported.of(DeadLettersSeen)[0].messages == 8
    oldest = reported.of(DeadLetter)
    assert len(oldest) == 3
    assert {letter.origin for letter in oldest} == {TOPIC}
    (groups,) = reported.of(ReportTable)
    assert sorted((row[0], row[1], row[2], row[3]) for row in groups.rows) == [
        (TOPIC, "given back 1 times", "under an hour", 4),
        (TOPIC, "out of stock", "under an hour", 4),
    ]

    def resend(**choice: Any) -> Stopped:
        options = DeadLetterOptions(
            name_servers=cluster.namesrv,
            group=GROUP,
            resend=True,
            state=tmp_path / "state.json",
            **choice,
        )
        return _run(spark, options).of(Stopped)[0]

    assert resend(keys=("k2", "k3")).rows_total == 2
    assert resend().rows_total == 8

    def read() -> list[Any]:
        options = {"nameServer": cluster.namesrv, "topic": TOPIC}
        frame = spark.read.format("tandemmq").options(**options).load()
        return list(frame.select("msgId", "body", "keys", "tags", "properties").collect())

    rows = read()
    bodies = [bytes(row.body) for row in rows]
    assert sorted(bodies) == sorted(2 * [b"order %d" % n for n in range(8)])
    assert {row["keys"] for row in rows} == {f"k{n}" for n in range(8)}
    assert not any("RETRY_TOPIC" in row.properties for row in rows)

    # Simulates a kill between sending and recording: the same keys are sent again.
    document = json.loads((tmp_path / "state.json").read_text())
    document["done"].popitem()
    (tmp_path / "state.json").write_text(json.dumps(document))
    assert resend().rows_total == 8
    assert len(read()) == 17
    assert len({row.msgId for row in read()}) == 16
