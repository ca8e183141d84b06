"""Tests that each option of `tandemmq pipeline` reaches its pipeline and changes nothing else."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tandemmq.spark.command import app
from tandemmq.spark.pipelines import dead_letters, landing, replay

REPLAY = ["replay", "--lake", "/lake", "--namesrv", "ns:1", "--to", "T"]
DEAD_LETTERS = ["deadletters", "--namesrv", "ns:1", "--group", "g"]
LANDING = ["landing", "--namesrv", "ns:1", "--topic", "T", "--out", "/lake"]


@pytest.fixture
def arrived(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Records the options with which the pipelines are started."""
    found: list[Any] = []

    def note(options: object, _reporter: object) -> int:
        found.append(options)
        return 0

    for module, name in (
        (replay, "run_replay"),
        (dead_letters, "run_dead_letters"),
        (landing, "run_landing"),
    ):
        monkeypatch.setattr(module, name, note)
    return found


@pytest.mark.parametrize(
    ("command", "flags", "changed"),
    [
        (REPLAY, ["--from-time", "1000"], {"begin_ms": 1000}),
        (REPLAY, ["--until-time", "1970-01-01T00:00:02"], {"end_ms": 2000}),
        (REPLAY, ["--where", "queueId = 1"], {"where": "queueId = 1"}),
        (REPLAY, ["--rate", "500"], {"rate": 500}),
        (REPLAY, ["--keep-keys"], {"keep_keys": True}),
        (REPLAY, ["--keep-queues"], {"keep_queues": True}),
        (REPLAY, ["--state", "/s.json"], {"state": Path("/s.json")}),
        (REPLAY, ["--continuous", "--every-seconds", "7"], {"is_continuous": True, "every_s": 7.0}),
        (REPLAY, ["--master", "spark://h:1"], {"master": "spark://h:1"}),
        (REPLAY, ["--conf", "spark.ui.enabled=true"], {"settings": (("spark.ui.enabled", "true"),)}),
        (REPLAY, ["--option", "retries=3"], {"sink": (("retries", "3"),)}),
        (DEAD_LETTERS, ["--from-time", "1000"], {"begin_ms": 1000}),
        (DEAD_LETTERS, ["--until-time", "2000"], {"end_ms": 2000}),
        (DEAD_LETTERS, ["--id", "A", "--id", "B"], {"ids": ("A", "B")}),
        (DEAD_LETTERS, ["--key", "k"], {"keys": ("k",)}),
        (DEAD_LETTERS, ["--where", "age > 5"], {"where": "age > 5"}),
        (DEAD_LETTERS, ["--error-property", "reason"], {"error_property": "reason"}),
        (DEAD_LETTERS, ["--show", "3"], {"shown": 3}),
        (DEAD_LETTERS, ["--resend", "--state", "/s"], {"resend": True, "state": Path("/s")}),
        (DEAD_LETTERS, ["--to", "Again"], {"to_topic": "Again"}),
        (DEAD_LETTERS, ["--continuous"], {"is_continuous": True}),
        (DEAD_LETTERS, ["--source-option", "tags=A"], {"source": (("tags", "A"),)}),
        (DEAD_LETTERS, ["--option", "retries=3"], {"sink": (("retries", "3"),)}),
        (LANDING, ["--once"], {"is_continuous": False}),
        (LANDING, ["--trigger-seconds", "3"], {"trigger_s": 3.0}),
        (LANDING, ["--batch-rows", "77"], {"batch_records_max": 77}),
        (LANDING, ["--compression", "gzip"], {"compression": "gzip"}),
        (LANDING, ["--partition-by", "date,queueId"], {"partition_by": ("date", "queueId")}),
        (LANDING, ["--columns", "body,keys"], {"columns": ("body", "keys")}),
        (LANDING, ["--body-as-text"], {"is_body_text": True}),
        (LANDING, ["--json-schema", "id bigint"], {"json_schema": "id bigint"}),
        (LANDING, ["--bad-topic", "Bad"], {"bad_topic": "Bad"}),
    ],
)
def test_a_flag_changes_what_it_names(
    arrived: list[Any], command: list[str], flags: list[str], changed: dict[str, object]
) -> None:
    for words in (command, [*command, *flags]):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
    plain, reported = arrived
    different = {
        field.name: getattr(reported, field.name)
        for field in fields(reported)
        if getattr(reported, field.name) != getattr(plain, field.name)
    }
    assert different == changed


def test_a_setting_that_spark_would_ignore_is_refused() -> None:
    result = CliRunner().invoke(app, [*LANDING, "--conf", "driver.memory=4g"])
    assert result.exit_code == 2
    assert "--conf" in result.output
    assert "begin with" in result.output
