"""Users, policies and accounts through `Admin`, on clusters with access control in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tandemmq.client import Admin, BlockingAdmin, ClientOptions
from tandemmq.errors import BadRequest, ConfigError, NotPermitted, RequestRejected
from tandemmq.testing import Cluster

USERS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"root","password":"root-password"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"inner-password"}',
}


def signed(name: str, password: str) -> ClientOptions:
    return ClientOptions(access_key=name, secret_key=password)


@asynccontextmanager
async def super_admin() -> AsyncIterator[tuple[Admin, str]]:
    """Yields the super user's `Admin`, and the name servers."""
    keys = signed("root", "root-password")
    async with Cluster(settings=USERS) as cluster, Admin(cluster.name_servers, options=keys) as admin:
        yield admin, cluster.name_servers


async def test_a_user_has_the_rights_of_its_policies_until_they_end() -> None:
    async with super_admin() as (admin, servers):
        await admin.create_user("app", "app-password")
        await admin.set_policy("app", "Topic:Orders", ["Get", "Update"], source_ips=["127.0.0.1"])
        await admin.create_topic("Orders", queue_count=1)
        await admin.create_topic("Other", queue_count=1)
        async with Admin(servers, options=signed("app", "app-password")) as own:
            assert set(await own.topic_config("Orders")) == {"broker-a"}
            with pytest.raises(NotPermitted):
                await own.topic_config("Other")
            with pytest.raises(NotPermitted):
                await own.create_user("friend", "friend-password")
            await admin.update_user("app", status="disable")
            with pytest.raises(NotPermitted):
                await own.topic_config("Orders")
            await admin.update_user("app", status="Enable")
            await admin.delete_policies("app", ["Topic:Orders"])
            with pytest.raises(NotPermitted):
                await own.topic_config("Orders")
        await admin.delete_user("app")
        ((_, users),) = (await admin.users()).items()
        assert [one.username for one in users] == ["root"]


async def test_policies_are_listed_and_copied() -> None:
    async with super_admin() as (admin, _), super_admin() as (other, _):
        await admin.create_user("app", "app-password", user_type="super")
        await admin.set_policy("app", ["Topic:Orders", "Group:billing*"], "Sub", decision="deny")
        ((source, (held,)),) = (await admin.policies()).items()
        entries = {one.resource: (one.decision, one.actions) for one in held.policies[0].entries}
        assert held.subject == "User:app"
        assert entries == {"Topic:Orders": ("Deny", ("Sub",)), "Group:billing*": ("Deny", ("Sub",))}
        (target,) = await other.users()
        assert await admin.copy_users(source, target, ["app"]) == ["app"]
        assert await admin.copy_policies(source, target, "app") == ["User:app"]
        ((_, (copied,)),) = (await other.policies()).items()
        assert copied == held
        with pytest.raises(ConfigError, match="has no user nobody; its users: "):
            await admin.copy_users(source, target, ["nobody"])
        await admin.delete_policies("app", [])
        assert (await admin.policies())[source] == [held]
        await admin.delete_policies("app")
        assert (await admin.policies())[source] == []


async def test_values_that_brokers_do_not_know_are_refused_by_name() -> None:
    async with super_admin() as (admin, _):
        refused: list[tuple[str, Callable[[], Awaitable[object]]]] = [
            ("a user needs a name and a password", lambda: admin.create_user("app", "")),
            ("'Admin': must be Normal or Super", lambda: admin.create_user("app", "x", user_type="Admin")),
            ("nothing to change", lambda: admin.update_user("app")),
            ("'asleep': must be enable or disable", lambda: admin.update_user("app", status="asleep")),
            ("a policy needs a resource", lambda: admin.set_policy("app", [], ["Sub"])),
            ("'Maybe': must be Allow or Deny", lambda: admin.set_policy("a", "*", "Sub", decision="Maybe")),
            ("the name of the user is missing", lambda: admin.delete_policies("")),
            ("an account needs an access key", lambda: admin.set_account("")),
            ("unknown cluster 'other'", lambda: admin.users(cluster="other")),
        ]
        for text, call in refused:
            with pytest.raises(BadRequest, match=text):
                await call()
        with pytest.raises(RequestRejected):
            await admin.update_user("nobody", status="enable")


async def test_accounts_of_rule_files_are_managed_also_from_plain_threads(tmp_path: Path) -> None:
    folder = tmp_path / "conf"
    folder.mkdir()
    rules = "accounts:\n- accessKey: operator\n  secretKey: operator-secret\n  admin: true\n"
    (folder / "plain_acl.yml").write_text(rules)
    (folder / "tools.yml").write_text("accessKey: operator\nsecretKey: operator-secret\n")
    settings = {"aclEnable": "true", "aclConfigDir": str(folder)}

    def manage(servers: str) -> None:
        with BlockingAdmin(servers, options=signed("operator", "operator-secret")) as admin:
            topics = ["Orders=SUB", "Bills=PUB|SUB"]
            admin.set_account("billing", secret_key="billing-secret", topic_permissions=topics)
            ((_, held),) = admin.accounts().items()
            accounts = {one.access_key: one.topic_permissions for one in held.accounts}
            assert accounts["billing"] == tuple(topics)
            admin.delete_account("billing")
            ((_, held),) = admin.accounts().items()
            assert [one.access_key for one in held.accounts] == ["operator"]

    async with Cluster(settings=settings) as cluster:
        await asyncio.to_thread(manage, cluster.name_servers)
