"""Servers as processes: their start, signals and errors, their end, and what systemd hears."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tandemmq.cli import app
from tandemmq.errors import ConfigError, FlushFailed
from tandemmq.shell import servers
from tandemmq.shell.servers import ServerEnd, serve
from tandemmq.telemetry import events


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
    monkeypatch.setattr(servers, "is_optimized_python", lambda: False)
    outcome = ServerEnd()

    def ready() -> str:
        asyncio.get_running_loop().call_soon(outcome.end)
        return "ready"

    assert await serve(StandInServer(), outcome, ready, is_worker=is_worker) == 0
    expected = [] if is_worker else [("tandemmq.runtime", events.PYTHON_UNOPTIMIZED)]
    assert [(one.name, one.message) for one in caplog.records] == expected


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
    result = await asyncio.to_thread(CliRunner().invoke, app, ["namesrv", "--set", "listenPort=none"])
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
