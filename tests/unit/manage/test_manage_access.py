"""Users, accounts and their rights, against brokers with access control in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tandemmq.api import broker_admin
from tandemmq.broker.access.needs import GROUP, TOPIC
from tandemmq.manage.access import BrokerAccess, ClusterAccess, judge, read_access
from tandemmq.manage.tools import Target, Tools, find_targets, open_tools
from tandemmq.protocol.bodies.tables import (
    AccountInfo,
    AccountsInfo,
    AclInfo,
    EntryInfo,
    PolicyInfo,
    UserInfo,
)
from tandemmq.protocol.signature import Credentials
from tandemmq.testing import Cluster

TARGET = Target("C", "broker-a", 0, "127.0.0.1:1")
ROOT = Credentials("root", "root-password")


def acl(user: str, *entries: tuple[str, str, str]) -> AclInfo:
    lines = tuple(
        EntryInfo(resource=resource, actions=tuple(actions.split(",")), decision=decision)
        for resource, actions, decision in entries
    )
    return AclInfo(subject=f"User:{user}", policies=(PolicyInfo(entries=lines),))


def rights(access: BrokerAccess, kind: str, name: str, host: str = "") -> dict[str, str]:
    """Returns the rights of each user as a text, such as `read write`."""
    return {
        one.name: " ".join(label for label, held in one.rights.items() if held)
        for one in judge(ClusterAccess({TARGET: access}), kind, name, host)
    }


def test_users_have_the_rights_that_their_policies_give() -> None:
    access = BrokerAccess(
        {},
        users=(
            UserInfo(username="app", user_type="Normal", status="enable"),
            UserInfo(username="root", user_type="Super", status="enable"),
            UserInfo(username="gone", user_type="Super", status="disable"),
        ),
        acls=(acl("app", ("Topic:orders*", "Sub", "Allow"), ("Topic:orders-secret", "Sub", "Deny")),),
    )
    assert rights(access, TOPIC, "orders-1") == {
        "app": "read",
        "root": "read write change delete",
        "gone": "",
    }
    assert rights(access, TOPIC, "orders-secret")["app"] == ""
    assert rights(access, GROUP, "orders-1")["app"] == ""
    (app, *_) = judge(ClusterAccess({TARGET: access}), TOPIC, "orders-1")
    assert app.reason == "allow Sub on Topic:orders*"
    (app, *_) = judge(ClusterAccess({TARGET: access}), TOPIC, "other")
    assert app.reason == "no policy matches"


def test_a_policy_for_some_addresses_needs_one() -> None:
    lines = (EntryInfo(resource="Topic:*", actions=("Pub",), decision="Allow", source_ips=("10.0.0.0/8",)),)
    policy = AclInfo(subject="User:app", policies=(PolicyInfo(entries=lines),))
    access = BrokerAccess({}, users=(UserInfo(username="app", status="enable"),), acls=(policy,))
    assert rights(access, TOPIC, "T", "10.1.2.3") == {"app": "write"}
    assert rights(access, TOPIC, "T", "192.168.1.1") == rights(access, TOPIC, "T") == {"app": ""}


def test_accounts_of_rule_files_are_judged() -> None:
    accounts = (
        AccountInfo(
            access_key="rocketmq", default_topic_permission="SUB", topic_permissions=("T=PUB|SUB", "no=DENY")
        ),
        AccountInfo(access_key="operator", is_admin=True),
    )
    access = BrokerAccess({}, accounts=AccountsInfo(accounts=accounts))
    assert rights(access, TOPIC, "T")["rocketmq"] == "read write"
    assert rights(access, TOPIC, "other")["rocketmq"] == "read"
    assert rights(access, TOPIC, "no")["rocketmq"] == ""
    assert rights(access, GROUP, "G")["operator"] == "read write change delete"


def test_an_unreadable_policy_is_reported() -> None:
    access = BrokerAccess(
        {}, users=(UserInfo(username="app"),), acls=(acl("app", ("Topic:T", "Fly", "Allow")),)
    )
    (verdict,) = judge(ClusterAccess({TARGET: access}), TOPIC, "T")
    assert "unreadable policy" in verdict.reason


@pytest.fixture
async def tools(tmp_path: Path) -> AsyncIterator[Tools]:
    """Yields connections of the super user to a broker with access control."""
    settings = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": '{"username":"root","password":"root-password"}',
        "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"inner-password"}',
    }
    async with Cluster(settings=settings) as cluster, open_tools(cluster.name_servers, ROOT) as opened:
        yield opened


def test_accounts_are_offered_unless_brokers_lack_them() -> None:
    lacks, has = BrokerAccess({}), BrokerAccess({}, accounts=AccountsInfo())
    denied = BrokerAccess({}, error="no permission")
    places = [Target("C", "broker-a", number, f"127.0.0.1:{number}") for number in range(2)]
    for held, is_offered in (
        ((), True),
        ((lacks,), False),
        ((lacks, has), True),
        ((denied,), True),
        ((denied, lacks), False),
    ):
        assert ClusterAccess(dict(zip(places, held, strict=False))).may_have_accounts is is_offered


async def test_rules_are_read_without_secrets(tools: Tools) -> None:
    targets = await find_targets(tools)
    address = targets[0].address
    await broker_admin.create_user(tools.remoting, address, UserInfo(username="app", password="app-secret"))
    await broker_admin.create_acl(tools.remoting, address, acl("app", ("Topic:T", "Sub", "Allow")))
    access = await read_access(tools, targets)
    (broker,) = access.brokers.values()
    assert broker.is_on
    assert broker.modes["authenticationEnabled"] == "true"
    assert {user.username: user.password for user in broker.users} == {"app": None, "root": None}
    assert [one.subject for one in broker.acls] == ["User:app"]


async def test_a_user_without_rights_gets_the_reason(tools: Tools) -> None:
    targets = await find_targets(tools)
    app = UserInfo(username="app", password="app-secret")
    await broker_admin.create_user(tools.remoting, targets[0].address, app)
    async with open_tools(
        ";".join(tools.cluster_admin.name_servers), Credentials("app", "app-secret")
    ) as poor:
        access = await read_access(poor, targets)
    (broker,) = access.brokers.values()
    assert broker.error
    assert broker.users == ()
