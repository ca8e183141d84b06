"""`tandemmq up`, `status` and `down` as a user runs them, and the remains when a process is killed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tandemmq.cli import app
from tandemmq.errors import ConfigError
from tandemmq.shell import local, supervisor
from waits import PATIENCE_S, until_blocking

pytestmark = pytest.mark.process


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Returns a folder with a space and a non-ASCII letter in its name."""
    path = tmp_path / "our störe"
    yield path
    run(path, "down")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tandemmq", *arguments]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, local.FOLDER_VARIABLE: str(folder)}
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=PATIENCE_S, env=environment, check=False
    )


def run_with_input(folder: Path, text: str, *arguments: str) -> None:
    environment = {**os.environ, local.FOLDER_VARIABLE: str(folder)}
    subprocess.run(
        command(*arguments), input=text, text=True, timeout=PATIENCE_S, env=environment, check=True
    )


def run_here(folder: Path, *arguments: str) -> Result:
    """Runs a command that only looks, in this process, which spares an interpreter."""
    return CliRunner().invoke(app, arguments, env={local.FOLDER_VARIABLE: str(folder)})


def servers(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns role -> the process in the output of `status`."""
    shown = run_here(folder, "status", "--json")
    return {one["role"]: one for one in json.loads(shown.stdout)["processes"]}


def is_well(folder: Path) -> bool:
    return run_here(folder, "status", "--json").exit_code == 0


@contextmanager
def killed(process: subprocess.Popen[str]) -> Iterator[None]:
    """Kills the process at the end, so that a failing test does not wait for it."""
    try:
        yield
    finally:
        process.kill()


def findings(folder: Path) -> list[dict[str, str]]:
    """Returns the doctor's findings, except the fill level of the machine's disk, which is not the
    cluster's.
    """
    told = json.loads(run_here(folder, "doctor", "--json").stdout)["findings"]
    return [one for one in told if one["area"] != "disk"]


def follows(folder: Path) -> bool:
    told = findings(folder)
    is_told = any(re.match(r"slave .* follows broker-a", one["text"]) for one in told)
    return is_told and all(one["level"] == "ok" for one in told)


def test_a_cluster_survives_kills_and_leaves_nothing(folder: Path) -> None:
    with (
        subprocess.Popen(
            command(
                "up",
                "--store",
                str(folder),
                "--no-elected",
                "--no-proxy",
                "--no-console",
                "--port-base",
                "auto",
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as up,
        killed(up),
    ):
        assert up.stdout is not None
        lines = [up.stdout.readline() for _ in range(3)]
        assert [line.split("  ")[0] for line in lines] == [
            "name server",
            "broker-a master",
            "broker-a slave",
        ], lines
        until_blocking(lambda: is_well(folder))
        before = servers(folder)
        assert before["slave"]["lag_bytes"] == 0
        # Both logs are empty, so there is no lag before the slave is connected.
        until_blocking(lambda: follows(folder))
        again = run(folder, "up", "--port-base", "auto")
        assert (again.returncode, "runs in" in again.stdout) == (0, True)
        same = run(folder, "up", "--no-elected", "--processes", "1", "--host", "127.0.0.1")
        assert (same.returncode, "runs in" in same.stdout) == (0, True)
        for extra in ((), ("--detach",)):
            other = run(folder, "up", "--processes", "2", "--elected", "--set", "maxMessageSize=9", *extra)
            assert (other.returncode, other.stdout) == (1, "")
            for part in ("--processes 2 (it runs with 1)", "--elected", "--set maxMessageSize=9", "down"):
                assert part in other.stderr, other.stderr

        os.kill(before["master"]["process"], signal.SIGKILL)
        told = next(line for line in up.stdout if "restarting in" in line)
        assert "broker-a master was killed by SIGKILL; restarting in 0.2 s" in told
        assert "broker-a master is ready again" in up.stdout.readline()
        after = servers(folder)
        assert (after["master"]["restarts"], after["slave"]["restarts"]) == (1, 0)
        assert after["master"]["address"] == before["master"]["address"]

        up.kill()
        up.wait()
    assert len(local.server_pids(folder.resolve())) == 3
    os.kill(after["slave"]["process"], signal.SIGKILL)
    sick = run(folder, "doctor", "--json", "--namesrv", before["name server"]["address"] + ";127.0.0.1:1")
    told = {(one["level"], one["area"]) for one in json.loads(sick.stdout)["findings"]}
    assert sick.returncode == 1
    assert {("problem", "name servers"), ("problem", "replication")} <= told
    left = run(folder, "status")
    assert (left.returncode, "the supervisor" in left.stderr) == (1, True)
    over = run(folder, "up", "--minimal", "--detach", "--no-proxy", "--no-console", "--port-base", "auto")
    assert over.returncode == 0, over.stderr
    assert "stopped 2 processes that an earlier, killed `up` had left" in (folder / "up.log").read_text(
        encoding="utf-8"
    )
    assert set(servers(folder)) == {"name server", "master"}

    pid = local.supervisor_pid(folder.resolve())
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until_blocking(lambda: local.supervisor_pid(folder.resolve()) is None)
    assert "stopped 2 processes" in run(folder, "down").stdout
    assert local.server_pids(folder.resolve()) == []
    assert "no cluster runs" in run(folder, "down").stdout
    nothing = run(folder, "status")
    assert (nothing.returncode, "`tandemmq up`" in nothing.stderr) == (1, True)


def test_a_taken_port_and_a_bad_setting_are_told(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        refused = run(folder, "up", "--port-base", port)
    assert refused.returncode == 1
    assert f"port {port} at 127.0.0.1 is in use" in refused.stderr
    assert "--port-base auto" in refused.stderr
    for extra in ((), ("--detach",)):
        refused = run(folder, "up", "--minimal", "--port-base", "auto", "--set", "brokerRoles=x", *extra)
        assert refused.returncode == 1
        assert "--set: unknown broker setting brokerRoles; did you mean brokerRole?" in refused.stderr
        assert local.server_pids(folder.resolve()) == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--host", "localhost"], "--host localhost: must be a numeric IPv4 address"),
        (["--bind", "10.0.0.300"], "--bind 10.0.0.300: must be a numeric IPv4 address"),
        (["--port-base", "abc"], "--port-base abc: must be a port below"),
        (["--port-base", "65530"], "--port-base 65530: must be a port below"),
        (["--processes", "27"], "--processes 27: must be from 1 to 26"),
        (["--set", "maxMessageSize"], "--set maxMessageSize: must be KEY=VALUE"),
        (["--set", "=5", "--detach"], "--set =5: must be KEY=VALUE"),
    ],
)
def test_a_mistake_in_an_option_ends_with_code_two_before_anything_is_made(
    tmp_path: Path, options: list[str], sentence: str
) -> None:
    done = CliRunner().invoke(app, ["up", "--store", str(tmp_path / "up"), *options])
    assert done.exit_code == 2, done.output
    assert sentence in " ".join(done.stderr.replace("│", " ").split())
    assert not (tmp_path / "up").exists()


def test_an_elected_master_that_dies_is_replaced_and_readers_go_on(folder: Path) -> None:
    started = run(folder, "up", "--detach", "--no-proxy", "--no-console", "--port-base", "auto")
    assert started.returncode == 0, started.stderr
    until_blocking(lambda: is_well(folder))
    before = servers(folder)
    assert set(before) == {"name server", "master", "slave"}
    healthy = findings(folder)
    assert all(one["level"] == "ok" for one in healthy), healthy
    host, _, port = before["name server"]["address"].partition(":")
    controller = f"{host}:{int(port) + local.CONTROLLER_DISTANCE}"

    # The operators' queries to the controllers.
    def ask(*arguments: str, exit_code: int = 0) -> dict[str, list[dict[str, Any]]]:
        done = run_here(folder, "admin", *arguments, "--json")
        assert done.exit_code == exit_code, done.output
        tables: dict[str, list[dict[str, Any]]] = json.loads(done.stdout or "{}")
        return tables

    def replicas() -> dict[str, dict[str, Any]]:
        found = ask("getSyncStateSet", "-a", controller, "-b", "broker-a")["replicas"]
        return {row["address"]: row for row in found}

    (history,) = ask("getSyncStateSet", "-a", controller, "-b", "broker-a")["histories"]
    assert (history["broker"], len(history["group_id"])) == ("broker-a", 32)
    slave = before["slave"]["address"]
    # The follower is not in the set yet, and no other broker may be elected.
    until_blocking(lambda: replicas()[slave]["in_sync"])
    told = {address: (row["in_sync"], row["alive"], row["master"]) for address, row in replicas().items()}
    assert told == {before["master"]["address"]: (True, True, True), slave: (True, True, False)}
    known = run(folder, "admin", "getControllerMetaData", "-a", controller)
    assert controller in known.stdout
    run_with_input(folder, "first", "produce", "T")
    environment = {**os.environ, local.FOLDER_VARIABLE: str(folder)}
    tail = command("tail", "T", "--last", "10")
    with subprocess.Popen(tail, stdout=subprocess.PIPE, text=True, env=environment) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "first\n"
        os.kill(before["master"]["process"], signal.SIGKILL)
        run_with_input(folder, "second", "produce", "T")
        assert reader.stdout.readline() == "second\n"
        reader.kill()
    until_blocking(lambda: is_well(folder))
    after = servers(folder)
    assert after["master"]["address"] == before["slave"]["address"]
    assert (after["slave"]["address"], after["slave"]["restarts"]) == (before["master"]["address"], 1)

    slave = after["slave"]["address"]
    until_blocking(lambda: replicas()[slave]["in_sync"])
    wanted = str(replicas()[slave]["id"])
    place = ("-a", controller, "-bn", "broker-a", "-c", "DefaultCluster", "-b", wanted)
    ask("cleanBrokerMetadata", *place, exit_code=1)  # it is alive
    [master] = ask("electMaster", *place)["masters"]
    assert (master["address"], str(master["id"])) == (slave, wanted)
    until_blocking(lambda: replicas()[slave]["master"])
    terms = ask("getBrokerEpoch", "-b", slave)["terms"]
    assert [row["epoch"] for row in terms] == sorted({row["epoch"] for row in terms})
    assert terms[0]["start_offset"] == 0
    assert all(one["end_offset"] == other["start_offset"] for one, other in pairwise(terms))
    key = "enableElectUncleanMaster"
    ask("updateControllerConfig", "-a", controller, "-k", key, "-v", "true")
    settings = ask("getControllerConfig", "-a", controller)["settings"]
    assert {"controller": controller, "key": key, "value": "true"} in settings
    refused = ask("updateControllerConfig", "-a", controller, "-k", "configStorePath", "-v", "x", exit_code=1)
    assert not refused


def test_a_file_that_cannot_be_written_ends_no_server(folder: Path) -> None:
    """The disk behaves as if full: the state of the cluster is not written, and the cluster keeps running."""
    began = run(folder, "up", "--minimal", "--detach", "--no-proxy", "--no-console", "--port-base", "auto")
    assert began.returncode == 0, began.stderr
    (folder / "up.new").mkdir()
    names, broker = local.server_pids(folder.resolve())
    os.kill(broker, signal.SIGKILL)
    until_blocking(lambda: {names} < set(local.server_pids(folder.resolve())) - {broker})
    assert "up.json cannot be written: Is a directory" in (folder / "up.log").read_text(encoding="utf-8")
    assert "stopped 2 processes" in run(folder, "down").stdout
    assert local.server_pids(folder.resolve()) == []


def test_of_two_at_once_one_starts_and_both_find_it(folder: Path) -> None:
    environment = {**os.environ, local.FOLDER_VARIABLE: str(folder)}
    words = command("up", "--minimal", "--detach", "--no-proxy", "--no-console", "--port-base", "auto")
    # The second time there is an `up.json` with processes and ports that no longer exist.
    for _ in range(2):
        run(folder, "down")
        both = [
            subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
            )
            for _ in range(2)
        ]
        told = [one.communicate(timeout=PATIENCE_S)[0] for one in both]
        assert [one.returncode for one in both] == [0, 0], told
        assert sum("runs in" in text for text in told) <= 1
        assert len(local.server_pids(folder.resolve())) == 2
        first, second = (re.findall(r"^(?:name|broker).*  ready .*$", text, re.MULTILINE) for text in told)
        assert len(first) == 2, told
        assert first == second, told


def test_an_address_that_nobody_reaches_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "SLOW_START_S", 0.1)
    plans = local.make_plan(tmp_path, is_minimal=True, port_base=local.AUTO)
    never = [replace(one, command=("tail", "Orders", "--namesrv", "127.0.0.1:1")) for one in plans]

    async def told() -> str:
        line: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        running = asyncio.create_task(
            supervisor.Supervisor(tmp_path, never, line.set_result).run(lambda _: None)
        )
        try:
            return await line
        finally:
            running.cancel()
            await asyncio.wait([running])

    assert asyncio.run(told()).startswith("not ready after 0.1 s: name server, broker-a master; ")
    assert local.server_pids(tmp_path) == []


@pytest.mark.parametrize("option", ["host", "bind"])
@pytest.mark.parametrize("address", ["::1", "localhost", "127.1", "10.0.0.300"])
def test_an_address_is_a_number_of_ipv4(tmp_path: Path, option: str, address: str) -> None:
    with pytest.raises(ConfigError, match=f"--{option} {address}: must be a numeric IPv4 address"):
        local.make_plan(tmp_path, port_base=local.AUTO, **{option: address})


def test_a_folder_stays_of_the_kind_that_it_began_as(tmp_path: Path) -> None:
    def roles(where: Path, **options: Any) -> set[str]:
        return {plan.role for plan in local.make_plan(where, port_base=local.AUTO, **options)}

    fixed = {"name server", "master", "slave"}
    assert roles(tmp_path / "1", is_elected=False) == fixed
    (tmp_path / "1" / "broker-a" / "store").mkdir()
    assert roles(tmp_path / "1") == fixed
    with pytest.raises(ConfigError, match="without elections"):
        roles(tmp_path / "1", is_elected=True)
    assert roles(tmp_path / "2") == {"name server", local.ELECTED}
    (tmp_path / "2" / "namesrv" / "controller").mkdir()
    (tmp_path / "2" / "broker-a" / "store").mkdir()
    assert roles(tmp_path / "2") == {"name server", local.ELECTED}
    with pytest.raises(ConfigError, match="with elections"):
        roles(tmp_path / "2", is_elected=False)
    assert roles(tmp_path / "3", is_minimal=True) == {"name server", "master"}


def test_log_files_fit_the_disk_and_stay_as_the_store_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 40 << 20
    monkeypatch.setattr(local.shutil, "disk_usage", lambda _place: SimpleNamespace(free=free))

    def sizes(**options: Any) -> set[int]:
        plans = local.make_plan(tmp_path / "up", port_base=local.AUTO, is_elected=False, **options)
        texts = [(plan.directory / "server.properties").read_text() for plan in plans]
        return {int(found[1]) for text in texts if (found := re.search(r"SizeCommitLog=(\d+)", text))}

    assert sizes() == {2 << 20}, "four files for each of two brokers, and a quarter is left"
    assert sizes(overrides=["mappedFileSizeCommitLog=5000000"]) == {5_000_000}
    assert sizes() == {2 << 20}
    free = 100 << 30
    assert sizes() == {128 << 20}
    free = 10 << 20
    with pytest.raises(ConfigError, match=r"has 10 MiB free, and 2 brokers need 11: .*--store"):
        sizes()
    free = 40 << 20
    sizes()
    for name in ("broker-a", "broker-a-slave"):
        (tmp_path / "up" / name / "store" / "commitlog").mkdir(parents=True)
    free = 100 << 30
    assert sizes() == {2 << 20}
    free = 0
    assert sizes() == {2 << 20}


def test_a_first_start_that_failed_decides_nothing(tmp_path: Path) -> None:
    """The controller existed, but no broker got as far as creating its store."""

    def roles(**options: Any) -> set[str]:
        return {plan.role for plan in local.make_plan(tmp_path, port_base=local.AUTO, **options)}

    controller = tmp_path / "namesrv" / "controller"
    controller.mkdir(parents=True)
    (controller / "meta").write_bytes(b"x")
    assert roles() == {"name server", local.ELECTED}
    assert controller.exists()
    assert roles(is_minimal=True) == {"name server", "master"}
    assert not controller.exists()
