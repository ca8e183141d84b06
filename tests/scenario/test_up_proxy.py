"""`tandemmq up` with a proxy: gRPC clients need one address, and the supervisor keeps the proxy running."""

from __future__ import annotations

import os
import re
import signal
import socket
import urllib.request
from pathlib import Path

import grpc
import pytest
from test_up import run, servers

from tandemmq.shell import local
from waits import until_blocking

pytestmark = pytest.mark.process


def is_serving(address: str) -> bool:
    """Returns True if the health service answers SERVING."""
    with grpc.insecure_channel(address) as channel:
        try:
            answer: bytes = channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=5)
        except grpc.RpcError:
            return False
    return answer == b"\x08\x01"


def is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/health/ready", timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_a_proxy_runs_is_restarted_and_stops_with_the_cluster(tmp_path: Path) -> None:
    folder = tmp_path / "up"
    try:
        metrics = ("--set", "metricsExporterType=PROM")
        began = run(
            folder, "up", "--minimal", "--detach", "--no-console", "--port-base", "auto", "--proxy", *metrics
        )
        assert began.returncode == 0, began.stderr
        proxy = servers(folder)["proxy"]
        pages = re.findall(r"^(\S.*?)  .*http://(\S+)/health/ready$", began.stdout, re.MULTILINE)
        assert [name for name, _ in pages] == ["name server", "broker-a master", "proxy"]
        until_blocking(lambda: is_ready(pages[-1][1]))
        assert f"clients of RocketMQ 5 (gRPC) to the proxy {proxy['address']}." in began.stdout
        assert is_serving(proxy["address"])
        os.kill(proxy["process"], signal.SIGKILL)
        until_blocking(lambda: servers(folder)["proxy"]["restarts"] == 1)
        until_blocking(lambda: is_serving(proxy["address"]))
    finally:
        run(folder, "down")
    assert local.server_pids(folder.resolve()) == []


def test_without_its_port_a_cluster_runs_without_a_proxy(tmp_path: Path) -> None:
    folder = tmp_path / "up"
    plans = local.make_plan(folder, is_minimal=True, port_base=local.AUTO)
    host, names = plans[0].address.rsplit(":", 1)
    with socket.create_server((host, int(names) + local.PROXY_DISTANCE)):
        refused = run(folder, "up", "--minimal", "--detach", "--no-console", "--port-base", names, "--proxy")
        assert refused.returncode == 1
        assert "is in use by another program" in refused.stderr
        try:
            began = run(folder, "up", "--minimal", "--detach", "--no-console", "--port-base", names)
            assert began.returncode == 0, began.stderr
            assert "no proxy for gRPC clients is started" in began.stdout + (folder / "up.log").read_text()
            assert "proxy" not in servers(folder)
        finally:
            run(folder, "down")
