"""The command line without servers."""

from __future__ import annotations

import errno
import importlib
import logging
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from tandemmq import __version__
from tandemmq.cli import app
from tandemmq.errors import TandemError


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_version_is_printed() -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"tandemmq {__version__}\n")


def test_help_lists_every_command() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for command in ("namesrv", "broker", "demo", "pipeline", "bench"):
        assert command in result.stdout


def test_help_needs_none_of_the_heavy_modules() -> None:
    heavy = {"numpy", "uvloop", "msgspec", "pyspark"}
    code = f"import sys, tandemmq.cli; print(*sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["broker", "--set", "listenPorts=1"],
            "unknown broker setting listenPorts; did you mean listenPort?",
        ),
        (
            ["broker", "-c", "/none/broker.conf"],
            "/none/broker.conf: cannot be read: No such file or directory",
        ),
        (["broker", "-n", "somewhere"], "namesrvAddr=somewhere: must be host:port"),
        (["namesrv", "--set", "x"], "--set x: must be KEY=VALUE"),
        (["namesrv", "--log-level", "loud"], "--log-level loud: must be one of DEBUG, INFO, WARNING, ERROR"),
        (["admin", "topicList", "-n", ""], "or start one with `tandemmq up`\n"),
    ],
)
def test_mistake_ends_with_one_sentence(arguments: list[str], sentence: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    assert sentence in result.stderr


def test_an_error_of_the_machine_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def bench() -> None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/none")

    stand_in("tandemmq.bench.command", monkeypatch, bench=bench)
    result = run("bench")
    assert result.exit_code == 1
    assert "/none: No such file or directory" in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""


def test_an_audit_that_cannot_ask_is_no_difference() -> None:
    result = run("audit", "-n", "")
    assert (result.exit_code, result.stdout) == (2, "")
    ways = "use -n HOST:PORT or NAMESRV_ADDR, or start one with `tandemmq up`"
    assert result.stderr == f"tandemmq: no name server is given: {ways}\n"


def stand_in(name: str, monkeypatch: pytest.MonkeyPatch, **members: object) -> None:
    module = types.ModuleType(name)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)


def test_command_of_another_part_gets_its_own_options(monkeypatch: pytest.MonkeyPatch) -> None:
    def bench(seconds: int = 1, name: str = "") -> None:
        typer.echo(f"{seconds} {name}")

    stand_in("tandemmq.bench.command", monkeypatch, bench=bench)
    result = run("bench", "--seconds", "3", "--name", "x")
    assert (result.exit_code, result.stdout) == (0, "3 x\n")
    handlers = logging.getLogger("tandemmq").handlers
    assert any(isinstance(one, logging.NullHandler) for one in handlers), "logging would print warnings"
    assert "--seconds" in run("bench", "--help").stdout
    assert run("bench", "--seconds", "x").exit_code == 2


def test_words_after_two_dashes_are_no_options() -> None:
    result = run("topics", "describe", "-n", "127.0.0.1:1", "--", "--queues")
    assert "No such option" not in result.output
    assert "127.0.0.1:1" in result.output


def test_app_of_another_part_keeps_its_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    other = typer.Typer()

    @other.command()
    def landing() -> None:
        typer.echo("landed")

    @other.command()
    def broken() -> None:
        raise TandemError("no luck today")

    stand_in("tandemmq.spark.command", monkeypatch, app=other)
    assert run("pipeline", "landing").stdout == "landed\n"
    result = run("pipeline", "broken")
    assert (result.exit_code, result.stderr) == (1, "tandemmq: no luck today\n")


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        (
            "pyspark",
            "the command pipeline needs pyspark: run `pip install -c constraints.txt '.[spark]'`",
        ),
        ("tandemmq.spark.command", "the command pipeline is not part of this installation"),
    ],
)
def test_missing_extra_is_named(missing: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> types.ModuleType:
        raise ModuleNotFoundError(name=missing)

    monkeypatch.setattr(importlib, "import_module", refuse)
    result = run("pipeline", "--help")
    assert result.exit_code == 1
    assert sentence in result.stderr


@pytest.mark.parametrize(
    ("line", "completions"),
    [
        ("tandemmq rese", {"resend"}),
        ("tandemmq produce Orders --pro", {"--property"}),
        ("tandemmq admin producer", {"producer", "producerConnection"}),
    ],
)
def test_a_shell_completes_commands_and_their_options(line: str, completions: set[str]) -> None:
    shell = {"_TANDEMMQ_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    run = subprocess.run(
        [sys.executable, "-c", "from tandemmq.cli import app; app(prog_name='tandemmq')"],
        capture_output=True,
        text=True,
        env={**os.environ, **shell},
        check=False,
    )
    assert set(run.stdout.split()) == completions, run.stderr


def test_settings_are_checked_without_a_start(tmp_path: Path) -> None:
    path = tmp_path / "broker.properties"
    path.write_text("listenPort=10931\nsendMessageThreadPoolNums=4\n")
    result = run("broker", "-c", str(path), "--check-config")
    assert (result.exit_code, result.stdout) == (
        0,
        "sendMessageThreadPoolNums has no effect here\nthe settings are valid\n",
    )
    path.write_text("listenPrt=10931\n")
    wrong = run("broker", "-c", str(path), "--check-config")
    assert wrong.exit_code == 1
    assert "did you mean listenPort?" in wrong.stderr
