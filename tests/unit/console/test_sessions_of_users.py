"""Log-in and log-out, wrong keys, the limit of attempts, password files and idle sessions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.api import broker_admin
from tandemmq.console.sessions import (
    AGE_S_MAX,
    IDLE_S_MAX,
    AttemptLimit,
    PasswordFile,
    Session,
    hash_password,
    verify_password,
)
from tandemmq.errors import ConfigError
from tandemmq.manage.tools import open_tools
from tandemmq.protocol.bodies.tables import UserInfo
from tandemmq.protocol.signature import Credentials
from tandemmq.testing import Cluster
from unit.console.console_client import open_browser

ADMIN = Credentials("admin", "a long secret 123")
INNER = '{"accessKey":"inner","secretKey":"inner secret 123"}'
GUARDED = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": f'{{"username":"{ADMIN.access_key}","password":"{ADMIN.secret_key}"}}',
    "innerClientAuthenticationCredentials": INNER,
}


class StoppedClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.at_s = 1000.0

    def monotonic(self) -> float:
        return self.at_s

    def now_ms(self) -> int:
        return int(self.at_s * 1000)


async def test_user_of_the_cluster_logs_in_and_out() -> None:
    async with Cluster(settings=GUARDED) as cluster, open_browser(cluster.name_servers) as browser:
        denied = await browser.get("/brokers")
        assert denied.headers["location"] == "/login?next=%2Fbrokers"
        wrong = await browser.log_in(ADMIN.access_key, "not the secret")
        assert wrong.status_code == 401
        assert "the access key or the secret is wrong" in wrong.text
        assert "not the secret" not in wrong.text
        assert (await browser.log_in("nobody", "at all")).status_code == 401
        before = browser.client.cookies["tandemmq-8088"]
        done = await browser.log_in(ADMIN.access_key, ADMIN.secret_key, next="/brokers")
        assert (done.status_code, done.headers["location"]) == (303, "/brokers")
        assert browser.client.cookies["tandemmq-8088"] != before
        page = await browser.get("/brokers/" + cluster.master_address)
        assert page.status_code == 200
        assert ADMIN.secret_key not in page.text
        assert (await browser.post("/logout", {})).status_code == 303
        assert (await browser.get("/brokers")).status_code == 303


async def test_user_without_rights_may_log_in_and_sees_what_is_refused() -> None:
    async with Cluster(settings=GUARDED) as cluster, open_browser(cluster.name_servers) as browser:
        async with open_tools("", ADMIN) as tools:
            spy = UserInfo(username="spy", password="spy secret", user_type="Normal")
            await broker_admin.create_user(tools.remoting, cluster.master_address, spy)
        assert (await browser.log_in("spy", "wrong")).status_code == 401
        assert (await browser.log_in("spy", "spy secret")).status_code == 303
        page = await browser.get("/")
        assert page.status_code == 200
        assert "may not" in page.text


async def test_keys_prove_nothing_to_a_cluster_without_access_control() -> None:
    async with Cluster() as cluster, open_browser(cluster.name_servers) as browser:
        answer = await browser.log_in("any", "thing")
    assert answer.status_code == 401
    assert "it has no access control" in answer.text


async def test_log_in_does_not_lead_elsewhere() -> None:
    async with Cluster(settings=GUARDED) as cluster, open_browser(cluster.name_servers) as browser:
        for target in ("https://evil.example/", "//evil.example", "/\\evil.example", "/\tx"):
            done = await browser.log_in(ADMIN.access_key, ADMIN.secret_key, next=target)
            assert done.headers["location"] == "/"


async def test_password_file_gives_roles(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text(f"# ours\neve:viewer:{hash_password('look')}\nolaf:operator:{hash_password('do')}\n")
    async with Cluster() as cluster, open_browser(cluster.name_servers, password_file=path) as browser:
        assert (await browser.get("/")).status_code == 303
        assert (await browser.log_in("eve", "wrong")).status_code == 401
        assert (await browser.log_in("eve", "look")).status_code == 303
        assert "Make read-only" not in (await browser.get("/brokers")).text
        refused = await browser.post("/brokers/groups/broker-a/permission", {"writable": "false"})
        assert refused.status_code == 403
        assert "your role is viewer" in refused.text
        assert (await browser.log_in("olaf", "do")).status_code == 303
        assert "Make read-only" in (await browser.get("/brokers")).text


def test_invalid_password_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "users"
    for text in ("eve:viewer:plain", "eve:root:scrypt$00$00", "eve", ""):
        path.write_text(text)
        with pytest.raises(ConfigError, match="--password-file"):
            PasswordFile(path)


def test_hash_is_salted() -> None:
    assert hash_password("a") != hash_password("a")
    assert verify_password("a", hash_password("a"))
    assert not verify_password("b", hash_password("a"))
    assert not verify_password("a", "scrypt$zz$zz")


async def test_idle_session_ends_though_its_page_refreshes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster(settings=GUARDED) as cluster, open_browser(cluster.name_servers) as browser:
        await browser.log_in(ADMIN.access_key, ADMIN.secret_key)
        sessions = browser.frame.sessions
        session = await sessions.find(browser.client.cookies["tandemmq-8088"], is_click=True)
        session.used_at -= IDLE_S_MAX - 5
        assert (await browser.client.get("/", headers={"X-Refresh": "1"})).status_code == 200
        session.used_at -= 10
        assert (await browser.get("/")).status_code == 303


def test_session_in_use_ends_after_twelve_hours() -> None:
    session = Session("id", "csrf", "eve", True, None, begun_at=0.0, used_at=AGE_S_MAX - 2)
    assert not session.is_expired(AGE_S_MAX - 1)
    assert session.is_expired(AGE_S_MAX)


async def test_expired_session_is_swept_with_its_secret() -> None:
    async with Cluster(settings=GUARDED) as cluster, open_browser(cluster.name_servers) as browser:
        await browser.log_in(ADMIN.access_key, ADMIN.secret_key)
        sessions = browser.frame.sessions
        session = await sessions.find(browser.client.cookies["tandemmq-8088"], is_click=True)
        await sessions.sweep()
        assert ADMIN in sessions._viewers
        session.used_at -= IDLE_S_MAX
        await sessions.sweep()
        assert ADMIN not in sessions._viewers


def test_attempts_are_limited_by_name_and_address() -> None:
    clock = StoppedClock()
    limit = AttemptLimit(clock)  # type: ignore[arg-type]
    for _ in range(AttemptLimit.PER_NAME):
        assert limit.wait_s("10.0.0.1", "eve") == 0
        limit.fail("10.0.0.1", "eve")
    assert limit.wait_s("10.0.0.1", "eve") == AttemptLimit.WINDOW_S
    assert limit.wait_s("10.0.0.1", "olaf") == 0
    for number in range(AttemptLimit.PER_ADDRESS):
        limit.fail("10.0.0.1", f"name {number}")
    assert limit.wait_s("10.0.0.1", "olaf") > 0
    assert limit.wait_s("10.0.0.2", "olaf") == 0
    for number in range(AttemptLimit.TOTAL):
        limit.fail(f"10.1.0.{number}", "eve")
    assert limit.wait_s("10.0.0.2", "olaf") > 0
    clock.at_s += AttemptLimit.WINDOW_S
    assert limit.wait_s("10.0.0.1", "eve") == 0


def test_successful_attempts_are_not_counted() -> None:
    clock = StoppedClock()
    limit = AttemptLimit(clock)  # type: ignore[arg-type]
    for number in range(AttemptLimit.PER_ADDRESS - 1):
        limit.fail("10.0.0.1", f"name {number}")
    for number in range(AttemptLimit.TOTAL):
        clock.at_s += 0.1
        assert limit.wait_s("10.0.0.1", f"user {number}") == 0
        limit.succeed("10.0.0.1", f"user {number}", limit.fail("10.0.0.1", f"user {number}"))
    assert limit.wait_s("10.0.0.1", "olaf") == 0
    limit.fail("10.0.0.1", "eve")
    assert limit.wait_s("10.0.0.1", "olaf") > 0


def test_one_machine_has_one_limit_for_all_its_addresses() -> None:
    limit = AttemptLimit(StoppedClock())  # type: ignore[arg-type]
    for number in range(AttemptLimit.PER_NAME):
        limit.fail(f"2001:db8::{number:x}", "eve")
        limit.fail("::ffff:10.0.0.1", "eve")
    assert limit.wait_s("2001:db8::ffff:0:1", "eve") > 0
    assert limit.wait_s("2001:db8:0:1::1", "eve") == 0
    assert limit.wait_s("10.0.0.1", "eve") > 0
    assert limit.wait_s("not an address", "eve") == 0


def test_strangers_do_not_lock_out_an_address_that_has_logged_in() -> None:
    limit = AttemptLimit(StoppedClock())  # type: ignore[arg-type]
    limit.succeed("10.0.0.1", "olaf", limit.fail("10.0.0.1", "olaf"))
    for number in range(AttemptLimit.TOTAL):
        limit.fail(f"10.1.0.{number}", "eve")
    assert limit.wait_s("10.0.0.2", "olaf") > 0
    assert limit.wait_s("10.0.0.1", "olaf") == 0


async def test_too_many_attempts_have_to_wait() -> None:
    async with Cluster() as cluster, open_browser(cluster.name_servers) as browser:
        for _ in range(AttemptLimit.PER_NAME):
            assert (await browser.log_in("eve", "x")).status_code == 401
        answer = await browser.log_in("eve", "x")
    assert answer.status_code == 429
    assert "try again in" in answer.text
