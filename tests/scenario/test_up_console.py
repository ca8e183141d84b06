"""`tandemmq up` with a web console: it prints its address, restarts it, and records changes in the folder."""

from __future__ import annotations

import os
import re
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from test_up import run, servers

from tandemmq.shell import local
from waits import until_blocking

pytestmark = pytest.mark.process


def is_serving(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/", timeout=10) as answer:
            return "broker-a" in answer.read().decode()
    except OSError:
        return False


def test_a_console_runs_is_restarted_and_stops_with_the_cluster(tmp_path: Path) -> None:
    folder = tmp_path / "up"
    try:
        began = run(folder, "up", "--minimal", "--detach", "--no-proxy", "--port-base", "auto", "--console")
        assert began.returncode == 0, began.stderr
        console = servers(folder)["console"]
        assert f"The web console is at http://{console['address']}" in began.stdout
        until_blocking(lambda: is_serving(console["address"]))
        foreign = urllib.request.Request(f"http://{console['address']}/", headers={"Host": "evil"})
        with pytest.raises(urllib.error.HTTPError, match="421") as refused:
            urllib.request.urlopen(foreign, timeout=10)
        refused.value.close()
        assert (folder / "console" / "audit.jsonl").exists()
        os.kill(console["process"], signal.SIGKILL)
        until_blocking(lambda: servers(folder)["console"]["restarts"] == 1)
        until_blocking(lambda: is_serving(console["address"]))
        other = run(folder, "up", "--no-console")
        assert re.search("without --no-console", other.stderr + other.stdout)
    finally:
        run(folder, "down")
    assert local.server_pids(folder.resolve()) == []


def test_without_its_port_a_cluster_runs_without_a_console(tmp_path: Path) -> None:
    folder = tmp_path / "up"
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = str(held.getsockname()[1])
        words = ("up", "--minimal", "--detach", "--no-proxy", "--port-base", "auto")
        refused = run(folder, *words, "--console-port", port)
        assert refused.returncode == 1
        assert "is in use by another program" in refused.stderr
