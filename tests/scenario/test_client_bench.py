"""`tandemmq bench client` measures every case of the Python client; `bench processes` starts brokers side by
side, and `bench grpc` a proxy.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from client_rig import running_rig
from typer.testing import CliRunner

from bench.client_beside import JAVA_CASES
from tandemmq.bench.client_load import measure_client
from tandemmq.bench.command import app
from tandemmq.client import Admin
from tandemmq.errors import TandemError


async def test_every_case_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    async with running_rig(tmp_path) as rig:
        await rig.start_broker()
        loads = measure_client(rig.namesrv, body_bytes=64, seconds=0.05, broker_pids={"broker": os.getpid()})
        found = [row async for row in loads]
        async with Admin(rig.namesrv) as admin:
            assert not any(topic.startswith("BenchClient") for topic in await admin.topics())
    names = [f"{row.setting}, {row.in_flight} in flight" for row in found]
    assert names[:3] == list(JAVA_CASES)[:3], "Java's client does the same beside it"
    assert [row.setting for row in found[3:]] == list(JAVA_CASES)[3:]
    for row in found:
        assert row.result.count > 0
        assert row.result.per_second > 0
        assert row.processor_us.keys() == {"client", "broker"}
        assert min(row.processor_us.values()) > 0
        assert len(row.result.latencies_us) == (row.result.count if row.setting.startswith("send") else 0)


@pytest.mark.process
def test_the_client_is_measured_with_a_broker_of_its_own() -> None:
    done = CliRunner().invoke(app, ["client", "--seconds", "0.1", "--body", "100"])
    assert done.exit_code == 0, done.output
    assert "100 B bodies" in done.output
    for case in ("send, batched", "consume, pull", "consume, push", "consume, pop"):
        assert done.output.count(case) == 1
    assert done.output.count("client") >= done.output.count("broker ") >= 6, "the processor time of both"


def test_the_client_bench_ends_with_a_clear_error_without_a_cluster() -> None:
    done = CliRunner().invoke(app, ["client", "-n", "127.0.0.1:1", "--seconds", "0.1"])
    assert done.exit_code == 1
    assert isinstance(done.exception, TandemError)
    assert "127.0.0.1:1" in str(done.exception)


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
