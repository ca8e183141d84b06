"""The supervisor with servers that die and logs that grow; also the judgement of `status`."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from tandemmq.errors import ConfigError
from tandemmq.shell import local, restarts, supervisor, up
from tandemmq.shell.local import ServerPlan, ServerState, UpState
from tandemmq.shell.supervisor import SupervisedServer, Supervisor


def make(tmp_path: Path, lines: list[str]) -> SupervisedServer:
    plan = ServerPlan("broker-a", "master", "127.0.0.1:1", ("broker",), tmp_path)
    return SupervisedServer(plan, tmp_path, lambda: None, lines.append)


@pytest.mark.parametrize(
    ("steady_s", "pauses"),
    [(1e9, ["0.001", "0.002", "0.004", "0.004", "0.004"]), (-1.0, ["0.001"] * 5)],
    ids=["dies_young", "has_run_for_long"],
)
async def test_the_pause_doubles_until_a_run_was_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steady_s: float, pauses: list[str]
) -> None:
    monkeypatch.setattr(restarts, "RESTART_PAUSE_S_MIN", 0.001)
    monkeypatch.setattr(restarts, "RESTART_PAUSE_S_MAX", 0.004)
    monkeypatch.setattr(restarts, "STEADY_S", steady_s)
    lines: list[str] = []
    server = make(tmp_path, lines)
    server.is_ready.set()
    runs = 0

    async def run_once() -> int:
        nonlocal runs
        runs += 1
        if runs == 3:
            raise OSError(28, "No space left on device")
        if runs > 5:
            await server.stop()
        return -9

    monkeypatch.setattr(server, "_run_once", run_once)
    await asyncio.wait_for(server.run(), 60)
    assert [line.partition("restarting in ")[2].split()[0] for line in lines] == pauses
    assert "was killed by SIGKILL" in lines[0]
    assert "cannot be started: No space left on device" in lines[2]
    assert server.restart_count == 5


@pytest.mark.parametrize(
    "roles", [("master", "slave"), (local.ELECTED, local.ELECTED)], ids=["classic", "elected"]
)
async def test_the_first_broker_of_a_group_has_ended_before_the_second_one_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, roles: tuple[str, str]
) -> None:
    seen: list[str] = []

    async def stop(server: SupervisedServer) -> None:
        seen.append(f"stop {server.plan.address}")
        await asyncio.sleep(0)
        seen.append(f"ended {server.plan.address}")

    monkeypatch.setattr(SupervisedServer, "stop", stop)
    rows = [(local.NAME_SERVER, local.NAME_SERVER, "n")]
    rows += [(f"broker-{group}", role, f"{group}{at}") for at, role in enumerate(roles) for group in "ab"]
    plans = [ServerPlan(name, role, address, ("broker",), tmp_path / address) for name, role, address in rows]
    await Supervisor(tmp_path, plans, lambda _: None)._stop()
    stages = [sorted(seen[at : at + 4]) for at in (0, 4)]
    for at, stage in enumerate(stages):
        assert stage == sorted(f"{what} {group}{at}" for what in ("stop", "ended") for group in "ab")
    assert seen[8:] == ["stop n", "ended n"]


def test_a_log_that_is_too_long_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "LOG_BYTES_MAX", 10)
    server = make(tmp_path, [])
    server.bound_log()
    server.plan.log_path.write_bytes(b"0123456789")
    server.bound_log()
    assert server.plan.log_path.read_bytes() == b"0123456789"
    server.plan.log_path.write_bytes(b"0123456789+")
    server.bound_log()
    assert server.plan.log_path.read_bytes() == b""
    assert (tmp_path / "log.1").read_bytes() == b"0123456789+"


def test_servers_that_do_not_listen_are_ended_by_force(tmp_path: Path) -> None:
    deafen = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    code = f"{deafen}; print(flush=True); time.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-c", code], env=local.server_environment(tmp_path), stdout=subprocess.PIPE
    ) as deaf:
        try:
            assert deaf.stdout is not None
            assert deaf.stdout.readline()
            assert local.server_pids(tmp_path) == [deaf.pid]
            assert local.end_servers(tmp_path, stop_seconds_max=0.1) == 1
            assert deaf.wait(60) == -signal.SIGKILL
        finally:
            deaf.kill()


@pytest.mark.parametrize(("wrong", "code"), [("", 0), ("no master is elected yet", 1)])
async def test_status_ends_with_1_when_a_broker_says_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: str, code: int
) -> None:
    async def ask(_: UpState, server: ServerState) -> tuple[str, tuple[str, int | None, str]]:
        return server.address, ("slave", 0, wrong)

    monkeypatch.setattr(up, "_check_broker", ask)
    servers = [
        ServerState(name, name, f"127.0.0.1:{port}", "log", state="ready")
        for name, port in (("n", 1), ("b", 2))
    ]
    with pytest.raises(typer.Exit) as ended:
        await up._show_status(UpState(1, "/f", "127.0.0.1:1", 0, servers=servers), as_json=True)
    assert ended.value.exit_code == code
    assert (wrong or "ready") in capsys.readouterr().out


def test_stop_waits_for_the_time_in_which_a_broker_forwards_sends(tmp_path: Path) -> None:
    plans = local.make_plan(tmp_path, port_base="auto", overrides=["handoverStopLingerMillis=30000"])
    found = {plan.stop_seconds_max for plan in plans if plan.role != local.NAME_SERVER}
    assert found == {local.STOP_SECONDS_MAX + 30}
    assert plans[0].stop_seconds_max == local.STOP_SECONDS_MAX


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("maxMessageSize=abc", "maxMessageSize=abc: must be a whole number"),
        ("maxMesageSize=4", "did you mean maxMessageSize"),
        ("advertisedAddresses=nonsense", "must be NETWORK=host:port"),
    ],
)
def test_an_invalid_setting_is_refused_before_a_process_starts(
    tmp_path: Path, setting: str, reason: str
) -> None:
    plans = local.make_plan(tmp_path, port_base="auto", overrides=[setting])
    with pytest.raises(ConfigError, match=reason):
        local.require_valid(plans, [setting])


def test_each_server_has_a_port_of_its_own_for_metrics_and_health(tmp_path: Path) -> None:
    plain = local.make_plan(tmp_path / "plain", port_base="auto", is_elected=True)
    assert {plan.health for plan in plain} == {""}
    wanted = ["metricsExporterType=PROM", "metricsLabel=zone:a"]
    plans = local.make_plan(tmp_path / "up", port_base="auto", groups=2, is_elected=True, overrides=wanted)
    proxy = local.plan_proxy(tmp_path / "up", plans[0])
    ports = [int(plan.health.rpartition(":")[2]) for plan in (*plans, proxy)]
    taken = [int(plan.address.rpartition(":")[2]) + distance for plan in plans for distance in (-2, 0, 1, 2)]
    assert len({*ports, *taken}) == len(ports) + len(taken), "no port is given twice"
    assert int(proxy.address.rpartition(":")[2]) not in ports
    for plan in (*plans, proxy):
        text = (plan.directory / "server.properties").read_text()
        assert "metricsExporterType=PROM" in text
        assert "metricsLabel=zone:a" in text
    own = local.make_plan(
        tmp_path / "own", port_base="auto", overrides=[*wanted, "metricsPromExporterPort=0"]
    )
    assert local.plan_proxy(tmp_path / "plain", plain[0]).health == ""
    assert [plan.health for plan in own if plan.is_broker] == ["", ""], "which only the broker knows"
