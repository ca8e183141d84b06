"""The values of secret settings appear nowhere, and nothing is shown before log-in to a guarded cluster."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from tandemmq.console.pages import ALL
from tandemmq.console.sessions import hash_password
from tandemmq.console.view import Action
from tandemmq.errors import RequestRejected
from tandemmq.manage import settings
from tandemmq.manage.cluster import ClusterReading
from tandemmq.manage.tools import Tools
from tandemmq.testing import Cluster
from unit.console.console_client import Browser, open_browser

SECRET = "a very secret text"
GUARDED = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"root","password":"root-password"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"inner-password"}',
}
PATHS = [(one, re.sub(r"\{\w+\}", "x", one.path)) for one in ALL]


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with Cluster() as cluster, open_browser(cluster.name_servers) as opened:
        yield opened


async def broker_of(browser: Browser) -> str:
    session = await browser.frame.sessions.find("", is_click=True)
    assert session.viewer is not None
    reading = await session.viewer.sampler.ready(5)
    assert reading is not None
    return reading.brokers[0].address


@pytest.mark.parametrize("key", ["haSharedSecret", "metricsGrpcExporterHeader", "someAuthToken", "x= y"])
async def test_the_value_of_a_secret_setting_is_shown_nowhere(
    browser: Browser, key: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fields = {"broker": await broker_of(browser), "key": key, "value": SECRET}

    async def refused(*_: object) -> None:
        raise RequestRejected(1, f"cannot set {key}={SECRET}")

    async def failed(*_: object) -> None:
        raise KeyError(SECRET)

    async def done(_: Tools, addresses: list[str], __: str, value: str) -> list[str]:
        return [f"{addresses[0]}: {value} is not saved"]

    async def read(*_: object) -> dict[str, str]:
        return {key: SECRET}

    monkeypatch.setattr("tandemmq.console.pages.settings.read_settings_of", read)
    monkeypatch.setattr("tandemmq.console.pages.settings.check_change", lambda *_, **__: None)
    caplog.set_level(logging.DEBUG)
    texts = []
    for outcome in (refused, failed, done):
        monkeypatch.setattr("tandemmq.console.pages.settings.change_setting", outcome)
        texts.append((await browser.post("/settings/change", fields)).text)
        texts.append((await browser.get("/audit")).text)  # with the notice
    ask = f"/settings/change?broker={fields['broker']}&key={key}&value={SECRET}"
    asked = (await browser.get(ask)).text
    assert '<input id="value" name="value" type="password"' in asked
    assert 'method="get" action="/settings/change"' not in asked
    texts += [asked, (await browser.get("/settings?all=1")).text]
    values = [entry.values["value"] for entry in browser.frame.audit.entries]
    assert values == ["(hidden)"] * 3
    assert any("is not saved" in text for text in texts)
    # httpx logs the address of each request, as the browser of an operator would.
    logged = [record.getMessage() for record in caplog.records if record.name != "httpx"]
    assert not [text for text in (*texts, *logged, caplog.text) if SECRET in text and "httpx" not in text]
    assert SECRET not in str(browser.frame.audit.entries)


def test_secret_settings_are_recognized() -> None:
    secret = ("haSharedSecret", "sslKeyPassword", "metricsGrpcExporterHeader", "a b", "api-token", "")
    assert all(map(settings.is_secret_setting, secret))
    assert not any(map(settings.is_secret_setting, ("fileReservedTime", "brokerName", "a.b-c_d")))


@pytest.mark.parametrize("is_password_file", [False, True])
async def test_nothing_is_shown_before_log_in(tmp_path: Path, is_password_file: bool) -> None:
    folder, users = tmp_path / "pipelines", tmp_path / "users"
    folder.mkdir()
    users.write_text(f"olaf:operator:{hash_password('do')}\n")
    passwords = users if is_password_file else None
    async with (
        Cluster(settings={} if is_password_file else GUARDED) as cluster,
        open_browser(cluster.name_servers, pipelines=folder, password_file=passwords) as browser,
    ):
        for one, path in PATHS:
            answers = []
            if not isinstance(one, Action) or one.preview is not None:
                answers.append(await browser.get(path))
            if isinstance(one, Action):
                answers.append(await browser.post(path, {}))
            for answer in answers:
                assert answer.status_code == 303, path
                assert answer.headers["location"].startswith("/login?next="), path
        assert browser.frame.audit.entries == []
        for path in ("/login", "/nothing"):
            page = await browser.get(path)
            assert 'id="menu"' not in page.text
            assert cluster.master_address not in page.text
        assert (await browser.get("/static/console.css")).status_code == 200


async def test_a_visitor_of_a_guarded_cluster_stays_outside_while_its_brokers_are_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Cluster(settings=GUARDED) as cluster, open_browser(cluster.name_servers) as browser:
        assert (await browser.get("/audit")).status_code == 303
        session = await browser.frame.sessions.find("", is_click=True)
        assert session.viewer is not None
        sampler = session.viewer.sampler
        before = sampler.latest
        assert before is not None
        silent = [replace(one, error="no answer", is_denied=False) for one in before.brokers]

        async def read(*_: object) -> ClusterReading:
            return replace(before, brokers=tuple(silent))

        monkeypatch.setattr("tandemmq.console.sampler.read_cluster", read)
        await sampler.read()
        assert (await browser.get("/audit")).status_code == 303
