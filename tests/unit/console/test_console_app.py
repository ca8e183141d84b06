"""The checks before each page and action: host names, log-in, CSRF tokens, read-only mode, errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tandemmq.console.view import Action, Answer, Page, View
from tandemmq.errors import RequestTimeout
from tandemmq.testing import Cluster
from unit.console.console_client import open_browser


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster() as running:
        yield running


async def show_nothing(view: View) -> Answer:
    return view.page("error.html", reason="<script>alert(1)</script>", code=200)


async def change(view: View) -> Answer:
    return view.redirect("/", f"changed {view.form['name']}")


CHANGE = Action("/change", "Change", change, secrets=("secret",))


async def test_overview_shows_the_brokers(cluster: Cluster) -> None:
    async with open_browser(cluster.name_servers) as browser:
        answer = await browser.get("/")
    assert answer.status_code == 200
    assert "broker-a" in answer.text
    assert "of 1 answer" in answer.text
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["server-timing"].startswith("page;dur=")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie


async def test_foreign_host_name_is_refused(cluster: Cluster) -> None:
    async with open_browser(cluster.name_servers) as browser:
        for foreign in (
            "evil.example:8088",
            "evil-localhost:8088",
            "evil.localhost",
            "localhost.evil.example",
        ):
            assert (await browser.get("/", Host=foreign)).status_code == 421
        assert (await browser.get("/", Host="localhost:8088")).status_code == 200
        assert (await browser.get("/", Host="[::1]:8088")).status_code == 200


async def test_action_needs_the_token_of_its_session(cluster: Cluster) -> None:
    async with open_browser(cluster.name_servers, [CHANGE]) as browser:
        assert (await browser.client.post("/change", data={"name": "x"})).status_code == 403
        assert (await browser.client.post("/change", data={"name": "x", "csrf": "0" * 64})).status_code == 403
        for origin in (
            "http://evil.example",
            "null",
            "http://[::1",
            "",
            "http://127.0.0.1:8088.evil.example",
        ):
            foreign = await browser.post("/change", {"name": "x"}, Origin=origin)
            assert foreign.status_code == 403
        assert browser.frame.audit.entries == []
        answer = await browser.post("/change", {"name": "<b>x</b>", "secret": "s3cret"})
        assert answer.status_code == 303
        assert "changed &lt;b&gt;x&lt;/b&gt;" in (await browser.get("/")).text
        entry = browser.frame.audit.entries[0]
    assert (entry.outcome, entry.values["secret"]) == ("done", "(hidden)")


async def test_a_form_cannot_replace_the_path_in_the_audit_list(cluster: Cluster) -> None:
    place = Action("/change/{place}", "Change", change)
    async with open_browser(cluster.name_servers, [place]) as browser:
        await browser.post("/change/real", {"name": "x", "place": "forged"})
        assert browser.frame.audit.entries[0].values["place"] == "real"


async def test_the_audit_list_has_every_value_of_a_name(cluster: Cluster) -> None:
    async with open_browser(cluster.name_servers, [CHANGE]) as browser:
        token = await browser.csrf()
        body = f"csrf={token}&name={'x' * 600}&secret=s3cret&secret=other&name=real"
        kind = {"content-type": "application/x-www-form-urlencoded"}
        assert (await browser.client.post("/change", content=body, headers=kind)).status_code == 303
        values = browser.frame.audit.entries[0].values
    assert values["name"].startswith("real, xxx")
    assert values["secret"] == "(hidden)"


async def test_a_form_with_too_many_or_too_long_names_is_refused(cluster: Cluster) -> None:
    many = {f"field-{number}": "" for number in range(101)}
    async with open_browser(cluster.name_servers, [CHANGE]) as browser:
        for fields in (many, {"x" * 101: ""}):
            answer = await browser.post("/change", {"name": "x", **fields})
            assert (answer.status_code, "at most 100 names" in answer.text) == (400, True)
        assert browser.frame.audit.entries == []


async def test_read_only_console_refuses_actions(cluster: Cluster) -> None:
    async with open_browser(cluster.name_servers, [CHANGE], read_only=True) as browser:
        answer = await browser.post("/change", {"name": "x"})
    assert answer.status_code == 403
    assert "read-only" in answer.text


async def test_a_time_out_of_a_request_is_shown_with_its_own_text(cluster: Cluster) -> None:
    async def show_slow(_: View) -> Answer:
        raise RequestTimeout("127.0.0.1:10911: no answer within 7 s")

    async with open_browser(cluster.name_servers, [Page("/slow", "Slow", show_slow)]) as browser:
        answer = await browser.get("/slow")
    assert answer.status_code == 504
    assert "127.0.0.1:10911: no answer within 7 s" in answer.text


async def test_a_change_without_an_answer_may_have_been_made(cluster: Cluster) -> None:
    async def change(_: View) -> Answer:
        raise RequestTimeout("127.0.0.1:10911: no answer within 7 s")

    async with open_browser(cluster.name_servers, [Action("/slow", "Slow", change)]) as browser:
        answer = await browser.post("/slow", {})
        assert answer.status_code == 504
        assert "<h1>No answer</h1>" in answer.text
        text = "127.0.0.1:10911: no answer within 7 s: the change may have been made, or may still be made"
        assert text in answer.text
        assert text in browser.frame.audit.entries[0].outcome


async def test_text_of_the_cluster_is_escaped(cluster: Cluster) -> None:
    async with open_browser(cluster.name_servers, [Page("/x", "<i>", show_nothing)]) as browser:
        text = (await browser.get("/x")).text
    assert "<script>alert" not in text
    assert "<i>" not in text


async def test_a_page_names_the_brokers_whose_data_may_be_missing(cluster: Cluster) -> None:
    async with open_browser(cluster.name_servers) as browser:
        assert "No answer lately" not in (await browser.get("/topics")).text
        session = await browser.frame.sessions.find("", is_click=True)
        assert session.viewer is not None
        sampler = session.viewer.sampler
        assert sampler.latest is not None
        [broker] = sampler.latest.brokers
        sampler.latest = replace(sampler.latest, brokers=(replace(broker, error="gone"),))
        assert f"No answer lately from {broker.address}" in (await browser.get("/topics")).text


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/brokers/groups/broker-a/handover", {"to": "9" * 5_000}),
        (
            "/groups/g/reset",
            {"topic": "T", "to": "offset", "offset": "1", "queue": "broker-a/" + "9" * 5_000},
        ),
    ],
)
async def test_a_number_of_many_digits_is_refused(
    cluster: Cluster, path: str, fields: dict[str, str]
) -> None:
    async with open_browser(cluster.name_servers) as browser:
        answer = await browser.post(path, fields)
    assert answer.status_code == 400
    assert "must be a number" in answer.text


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"])
async def test_other_methods_change_and_show_nothing(cluster: Cluster, method: str) -> None:
    async with open_browser(cluster.name_servers, [CHANGE]) as browser:
        for path in ("/change", "/login", "/static/../app.py", "/static/..%2fapp.py", "/static/%2e%2e"):
            answer = await browser.client.request(method, path)
            assert answer.status_code in (404, 405) or (method, path) == ("HEAD", "/login")
            assert "x-frame-options" in answer.headers
        assert browser.frame.audit.entries == []
