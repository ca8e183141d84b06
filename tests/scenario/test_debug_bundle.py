"""`tandemmq debug bundle`: the content of the archive."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from managed_cluster import managed_cluster
from tandemmq.cli import app
from tandemmq.manage.tools import open_tools
from tandemmq.shell import debug
from tandemmq.shell.debug import collect, write_archive

SECRET = "a secret of sixteen"


@pytest.fixture(autouse=True)
def local_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "up"
    monkeypatch.setenv("TANDEMMQ_STORE", str(folder))
    (folder / "broker-a").mkdir(parents=True)
    (folder / "broker-a" / "log").write_text("begin\n" + "x" * 100 + "end\n")
    monkeypatch.setattr(debug, "LOG_BYTES_MAX", 50)


async def test_the_archive_has_states_and_no_secrets(tmp_path: Path) -> None:
    async with managed_cluster(settings={"haSharedSecret": SECRET}) as managed:
        await managed.send("Orders", 1)
        parts = await collect(managed.tools, managed.cluster.name_servers)
    (broker,) = [name for name in parts if name.startswith("brokers/")]
    assert json.loads(parts[broker])["settings"]["autoCreateTopicEnable"] == "true"
    assert "Orders" in json.loads(parts["topics.json"])
    assert json.loads(parts["not-read.json"]) == {}
    assert parts["logs/broker-a-log"].endswith(b"end\n")
    assert len(parts["logs/broker-a-log"]) == 50
    assert SECRET.encode() not in b"".join(parts.values())
    path = tmp_path / "b.tar.gz"
    write_archive(path, "top", parts)
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        assert {name.removeprefix("top/") for name in archive.getnames()} == set(parts)


def test_secrets_of_java_brokers_are_hidden() -> None:
    found = debug._without_secrets({"somePassword": "hidden", "brokerName": "b"}, is_tandem=False)
    assert found == {"somePassword": "(hidden)", "brokerName": "b"}


async def test_what_cannot_be_read_is_listed(tmp_path: Path) -> None:
    (tmp_path / "up" / "broker-b" / "log").mkdir(parents=True)
    async with open_tools("") as tools:
        parts = await collect(tools, "127.0.0.1:1")
    failed = json.loads(parts["not-read.json"])
    log = "logs/broker-b-log"
    assert {"cluster", "topics", "groups", "brokers", "name-servers/127.0.0.1-1", log} == set(failed)
    assert failed[log] == "Is a directory"
    assert "does not answer" in parts["doctor.json"].decode()
    assert "logs/broker-a-log" in parts


def test_a_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    first = CliRunner().invoke(app, ["debug", "bundle", str(path), "-n", "127.0.0.1:1"])
    assert first.exit_code == 0, first.output
    again = CliRunner().invoke(app, ["debug", "bundle", str(path), "-n", "127.0.0.1:1"])
    assert again.exit_code == 1
    assert "File exists" in again.output
