"""The tools that read brokers, on clusters in this process; silent brokers are named."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from managed_cluster import ManagedCluster, managed_cluster
from tandemmq.api import broker_admin
from tandemmq.client import Message
from tandemmq.manage.cluster import read_cluster
from tandemmq.manage.groups import change_group
from tandemmq.manage.refusals import read_refusals
from tandemmq.manage.settings import HIDDEN
from tandemmq.manage.tools import Target, Tools, find_targets, open_tools
from tandemmq.mcp import broker_reads
from tandemmq.mcp.answers import UNTRUSTED
from tandemmq.protocol.bodies.tables import AclInfo, EntryInfo, PolicyInfo, UserInfo
from tandemmq.protocol.signature import Credentials
from tandemmq.testing import Cluster
from unit.mcp.mcp_client import read
from waits import until

USERS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"root","password":"root-password"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"inner-password"}',
}


@pytest.fixture
async def managed() -> AsyncIterator[ManagedCluster]:
    async with managed_cluster(settings={"transactionTimeOut": 50}) as subject:
        yield subject


@pytest.fixture
async def root() -> AsyncIterator[Tools]:
    """Yields the super user's connections to a cluster with access control."""
    keys = Credentials("root", "root-password")
    async with Cluster(settings=USERS) as cluster, open_tools(cluster.name_servers, keys) as tools:
        yield tools


async def test_replication_shows_roles_terms_and_controllers() -> None:
    async with managed_cluster(elected=True) as managed:

        async def is_in_sync() -> bool:
            found = await read(managed.tools, "list_replication")
            return [one["in_sync"] for one in found["groups"][0]["brokers"]] == [True, True]

        await until(is_in_sync)
        found = await read(managed.tools, "list_replication")
        [group] = found["groups"]
        assert sorted(one["role"] for one in group["brokers"]) == ["master", "slave"]
        [master] = [one["address"] for one in group["brokers"] if one["role"] == "master"]
        assert group["elected"]["master"] == master
        assert len(group["elected"]["in_sync"]) == 2
        assert found["controllers"]["leader"] in found["controllers"]["addresses"]
        assert (group["problems"], found["incomplete"]) == ([], [])
        assert (await read(managed.tools, "list_replication", search="other"))["groups"] == []
        broker = await read(managed.tools, "describe_broker", broker=master)
        assert broker["role"] == "master"
        assert [one["term"] for one in broker["terms"]] == [group["elected"]["term"]]


async def test_a_broker_shows_its_producers_and_facts_as_data(managed: ManagedCluster) -> None:
    [target] = await find_targets(managed.tools)
    await managed.cluster.create_topic("Orders")
    async with managed.cluster.producer() as producer:
        await producer.send(Message("Orders", b"x"))

        async def is_known() -> bool:
            found = await read(managed.tools, "describe_broker", broker=target.address)
            return bool(found["untrusted"]["producers"])

        await until(is_known)
    found = await read(managed.tools, "describe_broker", broker=target.address, search="brokerVersionDesc")
    assert found["note"] == UNTRUSTED
    assert [one["name"] for one in found["untrusted"]["facts"]] == ["brokerVersionDesc"]
    assert "no broker is registered at" in await read(managed.tools, "describe_broker", broker="127.0.0.1:1")


async def test_settings_show_what_differs(managed: ManagedCluster) -> None:
    [target] = await find_targets(managed.tools)
    found = await read(managed.tools, "list_settings")
    [changed] = [one for one in found["settings"] if one["setting"] == "transactionTimeOut"]
    assert (changed["value"], changed["differs"], changed["brokers"]) == ("50", True, [target.address])
    assert "brokerPermission" not in {one["setting"] for one in found["settings"]}
    found = await read(managed.tools, "list_settings", broker=target.address, search="BROKERPERMISSION")
    assert [(one["setting"], one["differs"]) for one in found["settings"]] == [("brokerPermission", False)]
    found = await read(managed.tools, "list_settings", limit=1)
    assert (len(found["settings"]), found["more_settings"] > 0) == (1, True)


@pytest.mark.parametrize("key", ["initAuthenticationUser", "haSharedSecret", "someAuthToken"])
async def test_secret_settings_are_hidden(
    key: str, managed: ManagedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def shown(tools: Tools, address: str) -> dict[str, str]:
        return {key: "a very secret text"}

    monkeypatch.setattr(broker_reads, "read_settings_of", shown)
    for arguments in ({}, {"search": key}):
        found = await read(managed.tools, "list_settings", **arguments)
        assert [(one["setting"], one["value"]) for one in found["settings"]] == [(key, HIDDEN)]
        assert "a very secret text" not in str(found)


async def test_users_and_policies_are_listed_and_judged(root: Tools) -> None:
    [target] = await find_targets(root)
    app = UserInfo(username="app", password="app-secret", user_type="Normal")
    await broker_admin.create_user(root.remoting, target.address, app)
    entry = EntryInfo(resource="Topic:orders*", actions=("Sub",), decision="Allow")
    acl = AclInfo(subject="User:app", policies=(PolicyInfo(entries=(entry,)),))
    await broker_admin.create_acl(root.remoting, target.address, acl)
    found = await read(root, "list_access")
    assert {one["user"] for one in found["users"]} == {"root", "app"}
    assert [(one["subject"], one["resource"]) for one in found["policies"]] == [("User:app", "Topic:orders*")]
    assert [one["checks_rights"] for one in found["brokers"]] == [True]
    assert "app-secret" not in str(found)
    assert "root-password" not in str(found)
    assert len((await read(root, "list_access", limit=1))["users"]) == 1
    found = await read(root, "check_access", kind="topic", name="orders-1")
    rights = {one["user"]: one["may"] for one in found["rights"]}
    assert rights == {"root": ["read", "write", "change", "delete"], "app": ["read"]}
    [refused] = (await read(root, "check_access", kind="group", name="billing", search="app"))["rights"]
    assert (refused["may"], refused["reason"]) == ([], "no policy matches")


async def test_accounts_are_listed_without_secrets(tmp_path: Path) -> None:
    rules = "accounts:\n- accessKey: operator\n  secretKey: operator-secret\n  admin: true\n"
    (tmp_path / "plain_acl.yml").write_text(rules)
    (tmp_path / "tools.yml").write_text("accessKey: operator\nsecretKey: operator-secret\n")
    settings = {"aclEnable": "true", "aclConfigDir": str(tmp_path)}
    keys = Credentials("operator", "operator-secret")
    async with Cluster(settings=settings) as cluster, open_tools(cluster.name_servers, keys) as tools:
        found = await read(tools, "list_access")
        assert [(one["account"], one["is_admin"]) for one in found["accounts"]] == [("operator", True)]
        assert "operator-secret" not in str(found)
        found = await read(tools, "check_access", kind="topic", name="orders")
        assert [(one["account"], one["reason"]) for one in found["rights"]] == [("operator", "administrator")]


async def test_brokers_that_check_no_rights_are_named(managed: ManagedCluster) -> None:
    [target] = await find_targets(managed.tools)
    found = await read(managed.tools, "check_access", kind="topic", name="Orders")
    assert found["brokers_that_check_nothing"] == [str(target)]


async def test_rejected_requests_are_listed_as_data_with_the_reason(managed: ManagedCluster) -> None:
    await managed.cluster.create_topic("Orders")
    targets = await find_targets(managed.tools)
    await change_group(managed.tools, targets, "billing", {"is_consume_enabled": False})
    reading = await read_cluster(managed.tools, 0)
    async with managed.cluster.consumer("Orders", "billing"):

        async def is_recorded() -> bool:
            return bool((await read_refusals(managed.tools, reading)).rows)

        await until(is_recorded)
    found = await read(managed.tools, "list_rejected_requests", search="billing")
    assert found["note"] == UNTRUSTED
    first = found["untrusted"]["requests"][0]
    assert (first["group"], first["code"]) == ("billing", "NO_PERMISSION")
    [counts] = found["untrusted"]["brokers"]
    assert counts["consumers"] > 0


@pytest.mark.parametrize(
    "tool",
    [
        "list_topics",
        "list_groups",
        "list_replication",
        "list_settings",
        "list_access",
        "check_access",
        "list_rejected_requests",
        "list_waiting_messages",
        "list_transactions",
    ],
)
async def test_a_silent_broker_is_named_as_incomplete(tool: str, managed: ManagedCluster) -> None:
    [known] = await find_targets(managed.tools)
    await managed.register(Target(known.cluster, "broker-b", 0, "127.0.0.1:1"))
    arguments = {"kind": "topic", "name": "Orders"} if tool == "check_access" else {}
    found = await read(managed.tools, tool, **arguments)
    [problem] = found["incomplete"]
    assert problem.startswith("broker-b (127.0.0.1:1)")
