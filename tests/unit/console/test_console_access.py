"""The pages of users, policies and accounts, on clusters with access control in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from markupsafe import escape

from tandemmq.testing import Cluster
from unit.console.console_client import Browser, open_browser

USERS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"root","password":"root-password"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"inner-password"}',
}


@pytest.fixture
async def root() -> AsyncIterator[Browser]:
    """Yields the browser of the super user."""
    async with Cluster(settings=USERS) as cluster, open_browser(cluster.name_servers) as browser:
        assert (await browser.log_in("root", "root-password")).status_code == 303
        yield browser


async def text_of(browser: Browser, path: str, status: int = 200) -> str:
    answer = await browser.get(path)
    assert answer.status_code == status, answer.text
    return answer.text


async def change(browser: Browser, path: str, fields: dict[str, str]) -> str:
    """Sends a form that must succeed; returns the page to which it leads."""
    answer = await browser.post(path, fields)
    assert answer.status_code == 303, answer.text
    return await text_of(browser, answer.headers["location"])


async def test_users_and_policies_are_managed(root: Browser) -> None:
    assert "root" in await text_of(root, "/access")
    assert 'type="password"' in await text_of(root, "/new-user")
    page = await change(root, "/new-user", {"name": "app", "password": "app-secret", "type": "Normal"})
    assert "User app is created." in page
    assert "app-secret" not in page
    user = "/access/users/app"
    asked = f"{user}/grant?resource=Topic:orders*&decision=Allow&action-Sub=yes"
    assert "Allow Sub on Topic:orders*" in await text_of(root, asked)
    policy = {"resource": "Topic:orders*", "decision": "Allow", "actions": "Sub", "addresses": ""}
    assert "Topic:orders*" in await change(root, f"{user}/grant", policy)
    assert "It replaces Allow Sub" in await text_of(root, asked)
    check = await text_of(root, "/access/check?kind=Topic&name=orders-1")
    assert "allow Sub on Topic:orders*" in check
    assert "super user" in check
    await text_of(root, f"{user}/change?status=disable")
    assert "disabled" in await change(root, f"{user}/change", {"status": "disable"})
    await change(root, f"{user}/password", {"password": "new-secret"})
    await text_of(root, f"{user}/revoke?resource=Topic:orders*")
    assert "No policy." in await change(root, f"{user}/revoke", {"resource": "Topic:orders*"})
    await text_of(root, f"{user}/delete")
    assert "User app is deleted." in await change(root, f"{user}/delete", {})
    await text_of(root, user, 404)
    recorded = [value for entry in root.frame.audit.entries for value in entry.values.values()]
    assert "(hidden)" in recorded
    assert not {"app-secret", "new-secret"} & set(recorded)


async def test_a_change_is_not_done_while_a_registered_broker_is_silent(root: Browser) -> None:
    await change(root, "/new-user", {"name": "app", "password": "app-secret", "type": "Normal"})
    (sampler,) = {
        session.viewer.sampler for session in root.frame.sessions._sessions.values() if session.viewer
    }
    assert sampler.latest is not None
    (broker,) = sampler.latest.brokers
    silent = replace(
        broker, target=replace(broker.target, broker_id=1, address="127.0.0.1:1"), error="silent"
    )
    sampler.latest = replace(sampler.latest, brokers=(broker, silent))
    answer = await root.post("/access/users/app/delete", {})
    assert answer.status_code != 303
    assert "127.0.0.1:1" in answer.text
    assert "changed at broker-a" in answer.text


async def test_invalid_users_and_policies_are_refused_with_the_reason(root: Browser) -> None:
    for path, fields in (
        ("/new-user", {"name": "app"}),
        ("/access/users/root/change", {"status": "asleep"}),
        ("/access/users/root/grant", {"resource": "Topic:T", "decision": "Allow", "actions": "Fly"}),
        ("/access/users/root/grant", {"resource": "Nothing:T", "decision": "Allow", "actions": "Sub"}),
        ("/access/users/root/password", {}),
        ("/access/users/root/revoke", {}),
    ):
        answer = await root.post(path, fields)
        assert answer.status_code in (400, 502), path  # 502: a broker refused it
    refused = await root.post("/access/users/nobody/change", {"status": "enable"})
    assert refused.status_code == 502


async def test_accounts_of_rule_files_are_managed(tmp_path: Path) -> None:
    folder = tmp_path / "conf"
    folder.mkdir()
    rules = "accounts:\n- accessKey: operator\n  secretKey: operator-secret\n  admin: true\n"
    (folder / "plain_acl.yml").write_text(rules)
    (folder / "tools.yml").write_text("accessKey: operator\nsecretKey: operator-secret\n")
    settings = {"aclEnable": "true", "aclConfigDir": str(folder)}
    async with Cluster(settings=settings) as cluster, open_browser(cluster.name_servers) as browser:
        assert (await browser.log_in("operator", "operator-secret")).status_code == 303
        page = await text_of(browser, "/access")
        assert "operator" in page
        assert "operator-secret" not in page
        await text_of(browser, "/new-account")
        given = {"key": "billing-app", "secret": "billing-secret", "admin": "no", "topics": "orders=SUB"}
        assert "orders=SUB" in await change(browser, "/new-account", given)
        check = await text_of(browser, "/access/check?kind=Topic&name=orders")
        assert "own rule: Sub" in check
        await text_of(browser, "/access/accounts/billing-app/delete")
        assert "billing-app" in await change(browser, "/access/accounts/billing-app/delete", {})
        assert "orders=SUB" not in await text_of(browser, "/access")


@pytest.mark.parametrize("name", ["x/delete", "a b", "50%", "a%2Fb", "q?x=1#y", "über"])
async def test_users_of_any_name_are_managed(root: Browser, name: str) -> None:
    await change(root, "/new-user", {"name": "x", "password": "other-secret"})
    page = await change(root, "/new-user", {"name": name, "password": "app-secret"})
    assert f"User {escape(name)} is created." in page
    user = f"/access/users/{quote(name, safe='')}"
    for text in (page, await text_of(root, user)):
        assert f"<h1>{escape(name)}</h1>" in text
        assert f'action="{user}/password"' in text
        assert f'name="next" value="{user}"' in text
    assert f'href="{user}"' in await text_of(root, "/access")
    policy = {"resource": "Topic:orders*", "decision": "Allow", "actions": "Sub", "addresses": ""}
    assert "Topic:orders*" in await change(root, f"{user}/grant", policy)
    assert "No policy." in await change(root, f"{user}/revoke", {"resource": "Topic:orders*"})
    assert f"Delete user {escape(name)} " in await text_of(root, f"{user}/delete")
    await change(root, f"{user}/delete", {})
    assert root.frame.audit.entries[0].values["user"] == name
    await text_of(root, user, 404)
    await text_of(root, "/access/users/x")


@pytest.mark.parametrize("name", [".", "..", "a\tb"])
async def test_a_name_that_no_link_can_have_is_refused(root: Browser, name: str) -> None:
    answer = await root.post("/new-user", {"name": name, "password": "app-secret"})
    assert (answer.status_code, "must be printable" in answer.text) == (400, True)
    answer = await root.post("/new-account", {"key": name, "secret": "app-secret"})
    assert (answer.status_code, "must be printable" in answer.text) == (400, True)
