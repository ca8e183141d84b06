"""`python -m bench client` measures every case against a given cluster; `bench processes` starts brokers side
by side, and `bench grpc` a proxy.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from client_rig import running_rig
from typer.testing import CliRunner

from bench.client_bench import measure_client
from bench.java.measure import CLIENT_CASES
from tandemmq.bench.command import app
from tandemmq.client import Admin


async def test_every_case_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    async with running_rig(tmp_path) as rig:
        await rig.start_broker()
        found = [one async for one in measure_client(rig.namesrv, body_bytes=64, seconds=0.05)]
        async with Admin(rig.namesrv) as admin:
            assert not any(topic.startswith("BenchClient") for topic in await admin.topics())
    assert [one.case for one in found] == list(CLIENT_CASES), "Java's client does the same beside it"
    for one in found:
        assert one.error == ""
        assert one.message_count > 0
        if one.case.startswith("send"):
            assert one.p50_us is not None
            assert one.p99_us is not None
            assert 0 < one.p50_us <= one.p99_us


@pytest.mark.process
def test_brokers_side_by_side_are_measured_one_and_two_at_once() -> None:
    done = CliRunner().invoke(app, ["processes", "--most", "2", "--seconds", "0.1"])
    assert done.exit_code == 0, done.output
    for setting in ("1 broker ", "2 brokers"):
        assert done.output.count(setting) == 3, "1, 16 and 64 in flight"
    assert "generator" in done.output


@pytest.mark.process
def test_a_proxy_is_measured_and_a_running_one_too() -> None:
    done = CliRunner().invoke(app, ["grpc", "--seconds", "0.1"])
    assert done.exit_code == 0, done.output
    for operation in ("send", "receive", "ack"):
        assert done.output.count(f"{operation} ") >= 3, "1, 16 and 64 in flight"
    assert "the proxy answered" in done.output
