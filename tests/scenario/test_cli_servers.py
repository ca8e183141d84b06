"""Servers as a user starts them: ready line, clean end, and one sentence when they cannot start."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from ports import free_port
from waits import PATIENCE_S

pytestmark = pytest.mark.process


class Processes:
    """Starts servers and leaves none behind."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._running: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tandemmq", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._running.append(process)
        return process

    def start_broker(self, *settings: str) -> subprocess.Popen[str]:
        common = ["bindAddress=127.0.0.1", "listenPort=0", f"storePathRootDir={self.directory / 'store'}"]
        small = [
            "mappedFileSizeCommitLog=1048576",
            "maxHashSlotNum=1000",
            "maxIndexNum=1000",
            "brokerName=b0",
        ]
        return self.start(
            "broker", *(part for text in [*common, *small, *settings] for part in ("--set", text))
        )

    def close(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    started = Processes(tmp_path)
    yield started
    started.close()


def ready_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def addresses(line: str) -> list[str]:
    return re.findall(r"127\.0\.0\.1:\d+", line)


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_servers_say_that_they_are_ready_and_end_cleanly(
    processes: Processes, number: signal.Signals
) -> None:
    kv_path = processes.directory / "kv.json"
    name_server = processes.start(
        "namesrv",
        "--set",
        "listenPort=0",
        "--set",
        "bindAddress=127.0.0.1",
        "--set",
        f"kvConfigPath={kv_path}",
    )
    (name_server_address,) = addresses(ready_line(name_server))
    broker = processes.start_broker(f"namesrvAddr={name_server_address}")
    line = ready_line(broker)
    assert line.startswith("broker b0 (ASYNC_MASTER) ready on 127.0.0.1:")
    for address in addresses(line):
        host, _, port = address.partition(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S):
            pass
    for process in (broker, name_server):
        process.send_signal(number)
        code, out, err = end(process)
        assert (code, out) == (0, "")
        assert "Traceback" not in err
    assert not (processes.directory / "store" / "abort").exists()


def test_a_controller_runs_alone_and_inside_a_name_server(processes: Processes) -> None:
    port = free_port()
    store = processes.directory / "controller"

    def settings(*texts: str) -> list[str]:
        own = [
            "bindAddress=127.0.0.1",
            f"controllerDLegerPeers=n0-127.0.0.1:{port}",
            "controllerDLegerSelfId=n0",
            f"controllerStorePath={store}",
            f"configStorePath={processes.directory / 'kept.properties'}",
            *texts,
        ]
        return [part for text in own for part in ("--set", text)]

    alone = processes.start("controller", *settings("controllerDLegerGroup=g"))
    line = ready_line(alone)
    assert line.startswith("controller n0 of g ready on"), end(alone)
    assert addresses(line) == [f"127.0.0.1:{port}"]
    again = processes.start("controller", *settings("controllerDLegerGroup=g"))
    assert "locked by another process" in failure(again)
    alone.send_signal(signal.SIGTERM)
    assert end(alone)[0] == 0

    other = processes.start("controller", *settings("controllerDLegerGroup=other"))
    assert "belongs to n0 of the controller group g, not to n0 of other" in failure(other)
    even = settings("controllerDLegerPeers=n0-127.0.0.1:1;n1-127.0.0.1:2")
    assert "2 controllers tolerate no more failures than 1" in failure(processes.start("controller", *even))

    kv = f"kvConfigPath={processes.directory / 'kv.json'}"
    metrics = free_port()
    exported = ("metricsExporterType=PROM", f"metricsPromExporterPort={metrics}")
    inside = settings(
        "controllerDLegerGroup=g", "enableControllerInNamesrv=true", "listenPort=0", kv, *exported
    )
    both = processes.start("namesrv", *inside)
    line = ready_line(both)
    assert f"controller n0 on 127.0.0.1:{port}" in line, end(both)
    with urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=PATIENCE_S) as page:
        assert 'role{address="127.0.0.1:' in page.read().decode(), "the controller's metrics are there"
    both.send_signal(signal.SIGTERM)
    assert end(both)[0] == 0


def failure(process: subprocess.Popen[str]) -> str:
    """Returns the one error sentence; log lines begin with a year."""
    code, out, err = end(process)
    sentences = [line for line in err.splitlines() if not re.match(r"\d{4}-", line)]
    assert (code, out, len(sentences)) == (1, "", 1), err
    assert sentences[0].startswith("tandemmq: ")
    return sentences[0]


@pytest.mark.parametrize("key", ["listenPort", "haListenPort"])
def test_taken_port_is_told(processes: Processes, key: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        sentence = failure(processes.start_broker(f"{key}={port}"))
    assert str(port) in sentence
    assert "in use" in sentence


def test_locked_store_is_told(processes: Processes) -> None:
    first = processes.start_broker()
    assert "ready" in ready_line(first)
    assert "locked by another process" in failure(processes.start_broker())


def test_store_that_cannot_be_made_is_told(processes: Processes) -> None:
    # A file in the way simulates a directory that cannot be written, because root may write everywhere else.
    (processes.directory / "file").write_text("")
    sentence = failure(processes.start_broker(f"storePathRootDir={processes.directory / 'file' / 'store'}"))
    assert "Not a directory" in sentence


def test_bad_setting_is_told(processes: Processes) -> None:
    assert "did you mean brokerRole?" in failure(processes.start_broker("brokerRoles=SLAVE"))


def test_settings_come_from_the_file_and_the_command_line(processes: Processes) -> None:
    path = processes.directory / "broker.conf"
    path.write_text(
        "# a comment\nbrokerName = from-file\nbrokerId: 3\nbrokerRole=SLAVE\n"
        "listenPort=0\nbindAddress=127.0.0.1\ntransferMsgByHeap=false\n"
        f"storePathRootDir={processes.directory / 'store'}\nmappedFileSizeCommitLog=1048576\n"
    )
    process = processes.start(
        "broker", "-c", str(path), "--set", "brokerName=from-line", "--log-level", "warning"
    )
    assert ready_line(process).startswith("broker from-line (SLAVE) ready on ")
    process.terminate()
    code, _, err = end(process)
    assert code == 0
    assert "settings.ignored" in err
    assert "keys=transferMsgByHeap" in err
    assert " INFO " not in err


def json_events(process: subprocess.Popen[str]) -> set[str]:
    """Ends the server; returns the events of its log, of which each line is a JSON object."""
    process.send_signal(signal.SIGTERM)
    code, _, err = end(process)
    assert code == 0, err
    lines = [json.loads(line) for line in err.splitlines()]
    assert all({"time", "level", "logger", "event"} <= line.keys() for line in lines)
    return {line["event"] for line in lines}


def test_every_server_logs_json_if_asked(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = processes.directory
    name_server = processes.start(
        *("namesrv", "--log-format", "json", "--set", "listenPort=0", "--set", "bindAddress=127.0.0.1"),
        *("--set", f"kvConfigPath={folder / 'kv.json'}", "--set", f"configStorePath={folder / 'ns.conf'}"),
    )
    (address,) = addresses(ready_line(name_server))
    controller = processes.start(
        *("controller", "--log-format", "JSON", "--set", "controllerDLegerSelfId=n0"),
        *("--set", f"controllerDLegerPeers=n0-127.0.0.1:{free_port()}"),
        *("--set", f"controllerStorePath={folder / 'controller'}"),
    )
    ready_line(controller)
    monkeypatch.setenv("TANDEMMQ_LOG_FORMAT", "json")
    broker = processes.start_broker(f"namesrvAddr={address}")
    ready_line(broker)
    proxy = processes.start(
        *("proxy", "-n", address, "-p", "0", "-w", "2", "--set", "bindAddress=127.0.0.1"),
        *("--set", f"proxyStorePath={folder / 'proxy'}"),
    )
    ready_line(proxy)
    assert "proxy.started" in json_events(proxy), "which its workers write"
    assert "broker.started" in json_events(broker)
    assert "controller.elected" in json_events(controller)
    assert "broker.registered" in json_events(name_server)


def test_an_unknown_format_of_the_log_is_told(processes: Processes) -> None:
    assert failure(processes.start("namesrv", "--log-format", "xml")) == (
        "tandemmq: --log-format xml: must be one of text, json"
    )
