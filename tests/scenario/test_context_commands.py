"""`tandemmq contexts`, and the commands that use a context."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from managed_cluster import managed_cluster
from tandemmq.cli import app
from tandemmq.manage.contexts import contexts_path, read_contexts
from tandemmq.shell.session import VARIABLES

NOBODY = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def config_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("TANDEMMQ_STORE", str(tmp_path / "no cluster"))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def run(*words: str, code: int = 0, given: str | None = None) -> Result:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(words), input=given)
    assert done.exit_code == code, done.output
    return done


def test_a_context_is_set_listed_changed_and_deleted(tmp_path: Path) -> None:
    assert "contexts set" in run("contexts").output
    run("contexts", "set", "prod", "--namesrv", "ns1,ns2:9877", "--access-key", "ops", given="hidden\n")
    held = read_contexts().find("prod")
    assert (held.name_servers, held.secret_key) == ("ns1:9876;ns2:9877", "hidden")
    ca = tmp_path / "ca.pem"
    ca.touch()
    run("contexts", "set", "prod", "--tls-ca", str(ca))
    run("contexts", "use", "prod")
    (row,) = json.loads(run("contexts", "list", "--json").stdout)["contexts"]
    assert row == {
        "context": "prod",
        "current": True,
        "name_servers": "ns1:9876;ns2:9877",
        "access_key": "ops",
        "tls": True,
    }
    assert "hidden" not in run("contexts").output
    run("contexts", "set", "prod", "--no-tls", "--access-key", "")
    held = read_contexts().find("prod")
    assert (held.access_key, held.secret_key, held.tls) == ("", "", None)
    run("contexts", "delete", "prod", code=1, given="n\n")
    run("contexts", "delete", "prod", given="y\n")
    assert (read_contexts().contexts, read_contexts().current) == ({}, "")


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (("contexts", "set", "a b", "-n", NOBODY), 2, "letters, digits"),
        (("contexts", "set", "a"), 2, "needs its name servers"),
        (("contexts", "set", "a", "-n", "host:99999"), 2, "must be host or host:port"),
        (("contexts", "set", "a", "-n", NOBODY, "--tls-ca", "/none"), 2, "there is no such file"),
        (("contexts", "set", "a", "-n", NOBODY, "--access-key", "k"), 1, "no secret key on standard input"),
        (("contexts", "use", "typo"), 1, "unknown context 'typo'"),
        (("contexts", "delete", "typo", "--yes"), 1, "unknown context 'typo'"),
        (("topics", "--context", "typo"), 1, "unknown context 'typo'"),
        (("topics", "--context", "a", "-n", NOBODY), 2, "exclude each other"),
        (("doctor", "-n", "host:99999"), 2, "must be host or host:port"),
    ],
)
def test_mistakes_are_explained(words: tuple[str, ...], code: int, reason: str) -> None:
    assert reason in run(*words, code=code, given="").output
    assert not contexts_path().exists()


async def test_commands_use_the_named_context_or_the_one_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    async def call(*words: str, code: int = 0) -> str:
        return (await asyncio.to_thread(run, *words, code=code)).output

    async with managed_cluster() as managed:
        await managed.send("Orders", 1)
        here = managed.cluster.name_servers
        await call("contexts", "set", "here", "-n", here)
        await call("contexts", "set", "away", "-n", NOBODY)
        assert "tandemmq up" in await call("topics", code=1)
        assert "Orders" in await call("topics", "--context", "here")
        assert "Orders" in await call("admin", "topicList", "--context", "here")
        await call("contexts", "use", "away")
        assert NOBODY in await call("topics", code=1)
        assert NOBODY in await call("admin", "topicList", code=1)
        assert "Orders" in await call("topics", "-n", here)
        assert f"[{here}] Delete" in await call("topics", "delete", "Orders", "--context", "here", code=1)
        monkeypatch.setenv("TANDEMMQ_CONTEXT", "here")
        assert "Orders" in await call("topics")
        monkeypatch.delenv("TANDEMMQ_CONTEXT")
        monkeypatch.setenv("NAMESRV_ADDR", here)
        assert "Orders" in await call("topics")
        assert NOBODY in await call("topics", "--context", "away", code=1)
