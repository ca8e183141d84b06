"""`tandemmq admin` for users and policies, against brokers with access control."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tandemmq.broker.broker import Broker
from tandemmq.broker.options import AccessOptions, BrokerOptions
from tandemmq.cli import app
from tandemmq.protocol.signature import Credentials
from tandemmq.remoting.options import render_address
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock, SeededRandom, TcpNetwork
from tandemmq.runtime.ports import Machine
from tandemmq.store import StoreOptions

ROOT = Credentials("root", "root-password")
ACCESS = AccessOptions(
    authentication_enabled=True,
    authorization_enabled=True,
    first_user=ROOT,
    inner_credentials=Credentials("inner", "inner-password"),
)


def sign_as(home: Path, monkeypatch: pytest.MonkeyPatch, name: str, password: str) -> None:
    (home / "conf").mkdir(parents=True, exist_ok=True)
    (home / "conf" / "tools.yml").write_text(f"accessKey: {name}\nsecretKey: {password}\n")
    monkeypatch.setenv("ROCKETMQ_HOME", str(home))


@pytest.fixture
async def brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[str]]:
    """Yields the addresses of two independent brokers; the tools sign as their super user."""
    sign_as(tmp_path / "home", monkeypatch, ROOT.access_key, ROOT.secret_key)
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    async with AsyncExitStack() as stack:
        addresses = []
        for name in ("one", "two"):
            store = StoreOptions(
                root=tmp_path / name, commit_log_file_bytes=1 << 20, consume_queue_file_bytes=20_000
            )
            broker = Broker(
                BrokerOptions(listen_host="127.0.0.1", listen_port=0),
                store,
                machine=Machine(TcpNetwork(), RealDisk(), LoopClock(), SeededRandom(7)),
                access=ACCESS,
            )
            stack.push_async_callback(broker.stop)
            await broker.start()
            addresses.append(render_address(broker.address))
        yield addresses


async def invoke(*arguments: str) -> Result:
    """Runs the command in a separate thread, because it runs an event loop."""
    return await asyncio.to_thread(CliRunner().invoke, app, ["admin", *arguments])


async def rows(table: str, *arguments: str, exit_code: int = 0) -> list[dict[str, Any]]:
    result = await invoke(*arguments, "--json")
    assert result.exit_code == exit_code, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)[table]
    return found


async def refusal(*arguments: str, exit_code: int = 1) -> str:
    result = await invoke(*arguments)
    assert result.exit_code == exit_code, result.output
    return " ".join(result.output.replace("│", " ").split())


async def test_a_user_is_made_changed_shown_and_deleted(brokers: list[str]) -> None:
    place = ("-b", brokers[0])
    await rows("changed", "createUser", *place, "-u", "app", "-p", "app-secret", "-t", "Normal")
    assert "exists already" in await refusal("createUser", *place, "-u", "app", "-p", "other-secret")
    expected = {"broker": brokers[0], "user": "app", "password": "app-secret", "type": "Normal"}
    assert await rows("users", "getUser", *place, "-u", "app") == [{**expected, "status": "enable"}]
    await rows("changed", "updateUser", *place, "-u", "app", "-s", "disable")
    assert await rows("users", "listUser", *place, "-f", "ap") == [{**expected, "status": "disable"}]
    assert [row["user"] for row in await rows("users", "listUser", *place)] == ["app", "root"]
    await rows("deleted", "deleteUser", *place, "-u", "app")
    assert await rows("users", "getUser", *place, "-u", "app", exit_code=1) == []
    assert "there is no user app" in await refusal("updateUser", *place, "-u", "app", "-s", "enable")


async def test_mistakes_are_named(brokers: list[str]) -> None:
    place = ("-b", brokers[0])
    assert "-p, -t or -s" in await refusal("updateUser", *place, "-u", "root", exit_code=2)
    assert "either a broker (-b) or a cluster (-c)" in await refusal("listUser", exit_code=2)
    bad_type = await refusal("createUser", *place, "-u", "app", "-p", "app-secret", "-t", "King")
    assert "must be one of Super, Normal" in bad_type
    acl = ("createAcl", *place, "-s", "User:root", "-a", "Pub")
    assert "must be Allow or Deny" in await refusal(*acl, "-r", "Topic:T", "-d", "Perhaps")
    assert "-r must name a resource" in await refusal(*acl, "-r", ",", "-d", "Allow", exit_code=2)


async def test_policies_are_made_changed_shown_and_deleted(brokers: list[str]) -> None:
    place = ("-b", brokers[0], "-s", "User:app")
    await rows("changed", "createUser", "-b", brokers[0], "-u", "app", "-p", "app-secret")
    both = ("-r", "Topic:Orders,Group:billing*", "-a", "Pub,Sub", "-d", "Allow", "-i", "10.0.0.1")
    assert "has no policies" in await refusal("updateAcl", *place, *both)
    await rows("changed", "createAcl", *place, *both)
    await rows("changed", "updateAcl", *place, "-r", "Topic:Orders", "-a", "Sub", "-d", "Deny")

    def short(found: list[dict[str, Any]]) -> list[tuple[str, str, str, str]]:
        return sorted((row["resource"], row["actions"], row["source_ips"], row["decision"]) for row in found)

    group = ("Group:billing*", "Pub,Sub", "10.0.0.1", "Allow")
    topic = ("Topic:Orders", "Sub", "", "Deny")
    assert short(await rows("policies", "getAcl", *place)) == [group, topic]
    assert short(await rows("policies", "listAcl", *place, "-r", "Topic:")) == [topic]
    partly = await refusal("deleteAcl", *place, "-r", "Nonsense:x,Topic:Orders")
    assert f"changed at {brokers[0]}: Topic:Orders; failed at {brokers[0]}: Nonsense:x: " in partly
    assert short(await rows("policies", "getAcl", *place)) == [group]
    await rows("deleted", "deleteAcl", *place)
    assert await rows("policies", "getAcl", *place, exit_code=1) == []


async def test_users_and_policies_are_copied(brokers: list[str]) -> None:
    first, second = brokers
    way = ("-f", first, "-t", second)
    for name in ("app", "web"):
        await rows("changed", "createUser", "-b", first, "-u", name, "-p", f"{name}-secret")
        resource = ("-r", f"Topic:{name}", "-a", "Pub", "-d", "Allow")
        await rows("changed", "createAcl", "-b", first, "-s", f"User:{name}", *resource)
    assert "has no user nobody; its users: app, root, web" in await refusal("copyUser", *way, "-u", "nobody")
    assert "no policies of User:nobody" in await refusal("copyAcl", *way, "-s", "User:nobody")
    assert [row["user"] for row in await rows("copied", "copyUser", *way, "-u", "app")] == ["app"]
    assert [row["user"] for row in await rows("users", "listUser", "-b", second)] == ["app", "root"]
    await rows("copied", "copyUser", *way)
    (web,) = await rows("users", "getUser", "-b", second, "-u", "web")
    assert web["password"] == "web-secret"
    copied = await rows("copied", "copyAcl", *way, "-s", "User:web")
    assert [row["subject"] for row in copied] == ["User:web"]
    for _ in range(2):  # existing entries are not an error
        copied = await rows("copied", "copyAcl", *way)
        assert [row["subject"] for row in copied] == ["User:app", "User:web"]
    listed = await rows("policies", "listAcl", "-b", second)
    assert [row["resource"] for row in listed] == ["Topic:app", "Topic:web"]


async def test_a_user_whose_password_is_not_shown_is_not_copied(
    brokers: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the copy would have no password, or a wrong one."""
    first, second = brokers
    await rows("changed", "createUser", "-b", first, "-u", "viewer", "-p", "viewer-secret")
    rights = ("-r", "Cluster:*", "-a", "All", "-d", "Allow")
    await rows("changed", "createAcl", "-b", first, "-s", "User:viewer", *rights)
    sign_as(tmp_path / "viewer", monkeypatch, "viewer", "viewer-secret")
    text = await refusal("copyUser", "-f", first, "-t", second)
    assert "does not show the password of root: sign as one of its super users" in text
    sign_as(tmp_path / "home", monkeypatch, ROOT.access_key, ROOT.secret_key)
    assert [row["user"] for row in await rows("users", "listUser", "-b", second)] == ["root"]
