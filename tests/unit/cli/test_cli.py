"""The command line without servers."""

from __future__ import annotations

import asyncio
import errno
import gc
import importlib
import logging
import os
import socket
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from tandemmq import __version__
from tandemmq.cli import ServerEnd, app, serve
from tandemmq.errors import ConfigError, FlushFailed, TandemError
from tandemmq.runtime import machine
from tandemmq.telemetry import events


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


class StandInServer:
    """A server whose start and failure the test decides."""

    def __init__(self, *, start_error: Exception | None = None, hangs: bool = False) -> None:
        self.is_stopped = False
        self.start_error = start_error
        self.hangs = hangs

    async def start(self) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.start_error is not None:
            raise self.start_error

    async def stop(self) -> None:
        self.is_stopped = True


async def test_signal_during_a_long_start_stops_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    server, outcome = StandInServer(hangs=True), ServerEnd()
    outcome.end()
    assert await serve(server, outcome, lambda: "ready") == 0
    assert server.is_stopped
    assert capsys.readouterr().out == ""


async def test_fatal_error_stops_the_server_with_exit_code_one(capsys: pytest.CaptureFixture[str]) -> None:
    server, outcome = StandInServer(), ServerEnd()
    outcome.fail(FlushFailed("fsync of /d/0: I/O error"))
    outcome.fail(ValueError("a consequence"))
    assert await serve(server, outcome, lambda: "ready") == 1
    assert server.is_stopped
    assert capsys.readouterr().err == "tandemmq: stopped: fsync of /d/0: I/O error\n"


async def test_a_server_that_was_ready_retires_before_it_stops() -> None:
    server, seen = StandInServer(), list[bool]()

    async def retire() -> None:
        for _ in range(3):
            await asyncio.sleep(0)  # the signal that began the stop does not end it
        seen.append(server.is_stopped)

    def ready() -> str:
        asyncio.get_running_loop().call_soon(outcome.end)
        return "ready"

    outcome = ServerEnd()
    assert await serve(server, outcome, ready, retire=retire) == 0
    assert (seen, server.is_stopped) == ([False], True)
    for early in (StandInServer(hangs=True), StandInServer()):
        outcome = ServerEnd()
        outcome.end() if early.hangs else outcome.fail(FlushFailed("fsync of /d/0: I/O error"))
        await serve(early, outcome, lambda: "ready", retire=retire)
        assert (seen, early.is_stopped) == ([False], True), "it was not ready, or cannot be trusted"


@pytest.mark.parametrize("is_worker", [False, True])
async def test_a_ready_server_warns_of_a_python_without_optimisation(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_worker: bool
) -> None:
    monkeypatch.setattr(machine, "is_optimized_python", lambda: False)
    outcome = ServerEnd()

    def ready() -> str:
        asyncio.get_running_loop().call_soon(outcome.end)
        return "ready"

    assert await serve(StandInServer(), outcome, ready, is_worker=is_worker) == 0
    assert (events.PYTHON_UNOPTIMIZED in caplog.text) is not is_worker


async def test_a_fatal_error_ends_the_wait_of_a_server_that_retires() -> None:
    server, outcome = StandInServer(), ServerEnd()

    async def retire() -> None:
        outcome.fail(FlushFailed("fsync of /d/0: I/O error"))
        await asyncio.Event().wait()

    def ready() -> str:
        asyncio.get_running_loop().call_soon(outcome.end)
        return "ready"

    assert await serve(server, outcome, ready, retire=retire) == 1
    assert server.is_stopped


async def test_a_bug_of_a_server_that_retires_is_raised_after_its_stop() -> None:
    server, outcome = StandInServer(), ServerEnd()

    async def retire() -> None:
        raise ZeroDivisionError

    def ready() -> str:
        asyncio.get_running_loop().call_soon(outcome.end)
        return "ready"

    with pytest.raises(ZeroDivisionError):
        await serve(server, outcome, ready, retire=retire)
    assert server.is_stopped


async def test_a_server_has_its_garbage_collected_though_its_imports_had_not() -> None:
    class Looking(StandInServer):
        was_enabled = False

        async def start(self) -> None:
            self.was_enabled = gc.isenabled()

    server, outcome = Looking(), ServerEnd()
    asyncio.get_running_loop().call_later(0.01, outcome.end)
    gc.disable()
    try:
        assert await serve(server, outcome, lambda: "ready") == 0
    finally:
        gc.enable()
    assert server.was_enabled
    result = await asyncio.to_thread(run, "namesrv", "--set", "listenPort=none")
    assert (result.exit_code, gc.isenabled()) == (1, True)


@pytest.fixture
def _nothing_frozen() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("_nothing_frozen")
async def test_collections_of_a_server_pass_over_what_it_began_with() -> None:
    outcome = ServerEnd()
    made_at_start: list[list[object]] = []
    seen: dict[str, bool] = {}

    class Making(StandInServer):
        async def start(self) -> None:
            seen["imports"] = gc.get_freeze_count() > 0
            made_at_start.append([])

    def ready() -> str:
        seen["start"] = not any(one is made_at_start[0] for one in gc.get_objects())
        asyncio.get_running_loop().call_soon(outcome.end)
        return "ready"

    assert await serve(Making(), outcome, ready) == 0
    assert seen == {"imports": True, "start": True}
    assert gc.get_freeze_count() == 0
    assert any(one is made_at_start[0] for one in gc.get_objects())


async def test_failed_start_is_raised_after_stopping() -> None:
    server = StandInServer(start_error=ConfigError("no"))
    with pytest.raises(ConfigError):
        await serve(server, ServerEnd(), lambda: "ready")
    assert server.is_stopped


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


async def test_a_server_tells_systemd_when_it_is_ready_and_when_it_stops(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The socket's path is too long in pytest's folders, so the test uses an abstract name, as systemd
    may.
    """
    name = f"tandemmq-{tmp_path.name}-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(f"\0{name}")
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        outcome = ServerEnd()
        outcome.end()

        class Served:
            async def start(self) -> None: ...

            async def stop(self) -> None: ...

        assert await serve(Served(), outcome, lambda: "ready") == 0
        assert [heard.recv(64) for _ in "12"] == [b"READY=1", b"STOPPING=1"]


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
