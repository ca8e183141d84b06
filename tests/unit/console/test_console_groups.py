"""The pages of consumer groups, on a cluster in this process."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator

import pytest

from managed_cluster import ManagedCluster, managed_cluster
from tandemmq.errors import Busy
from tandemmq.manage.tools import Target
from unit.console.console_client import Browser, open_browser
from waits import until


@pytest.fixture
async def managed() -> AsyncIterator[ManagedCluster]:
    async with managed_cluster() as subject:
        await subject.cluster.create_topic("Orders", queue_count=1)
        await subject.send("Orders", 10)
        await subject.consume("Orders", "billing", 4)
        yield subject


async def text_of(browser: Browser, path: str, status: int = 200) -> str:
    answer = await browser.get(path)
    assert answer.status_code == status, answer.text
    return answer.text


async def test_groups_and_one_group_show_members_and_lag(managed: ManagedCluster) -> None:
    async with open_browser(managed.cluster.name_servers) as browser:
        assert "offline" in await text_of(browser, "/groups")
        async with managed.cluster.consumer("Orders", "billing"):

            async def is_online() -> bool:
                return "online" in (await text_of(browser, "/groups?q=bill")).replace("Members online", "")

            await until(is_online)
            page = await text_of(browser, "/groups/billing")
        assert "PYTHON" in page
        assert "Move the offsets" in await text_of(browser, "/groups/billing/offsets")
        await text_of(browser, "/groups/nobody", 404)
        assert "CID_ONSAPI_PULL" in await text_of(browser, "/groups?system=1")


async def test_offsets_are_not_copied_to_a_group_whose_members_are_online(managed: ManagedCluster) -> None:
    await managed.consume("Orders", "audit", 7)
    async with open_browser(managed.cluster.name_servers) as browser:
        async with managed.cluster.consumer("Orders", "billing"):

            async def is_refused() -> bool:
                answer = await browser.get("/groups/billing/clone?source=audit&topic=Orders")
                return answer.status_code == 409

            await until(is_refused)
            answer = await browser.post("/groups/billing/clone", {"source": "audit", "topic": "Orders"})
        assert (answer.status_code, "stop them first" in answer.text) == (409, True)
        assert "stop them first" in browser.frame.audit.entries[0].outcome


async def test_offsets_are_moved_after_a_preview(managed: ManagedCluster) -> None:
    async with open_browser(managed.cluster.name_servers) as browser:
        preview = await text_of(browser, "/groups/billing/reset?topic=Orders&to=end")
        assert "6 messages will be skipped and 0 will be consumed again" in preview
        preview = await text_of(
            browser, "/groups/billing/reset?topic=Orders&to=offset&queue=broker-a/0&offset=1"
        )
        assert "0 messages will be skipped and 3 will be consumed again" in preview
        answer = await browser.post("/groups/billing/reset", {"topic": "Orders", "to": "end"})
        assert answer.headers["location"] == "/groups/billing"
        assert "is moved in 1 queues of Orders" in await text_of(browser, "/groups/billing")
        await text_of(browser, "/groups/billing/reset?topic=Orders&to=time&time=2026-01-01T00:00:00")
        preview = await text_of(browser, "/groups/billing/reset?topic=Orders&to=time&time=2h")
        sent = re.search(r'name="time" value="(\d{13})"', preview)
        assert sent is not None
        assert abs(time.time() * 1000 - 7_200_000 - int(sent[1])) < 60_000
        early = await text_of(browser, "/groups/billing/reset?topic=Orders&to=time&time=1970-01-01T00:01")
        assert 'name="time" value="000060000"' in early
        beyond = "/groups/billing/reset?topic=Orders&to=offset&queue=broker-a/0&offset=11"
        assert "must be from 0 to 10" in await text_of(browser, beyond, 400)
        for query in (
            "to=time&time=soon",
            "to=offset&queue=0&offset=1",
            "to=offset&queue=broker-a/0",
            "to=",
            "",
        ):
            await text_of(browser, f"/groups/billing/reset?topic=Orders&{query}", 400)
        await text_of(browser, "/groups/billing/reset?topic=Missing&to=end", 404)


async def test_a_group_is_missing_only_when_all_brokers_answer(managed: ManagedCluster) -> None:
    await managed.register(Target("DefaultCluster", "broker-b", 0, "127.0.0.1:1"))
    async with open_browser(managed.cluster.name_servers) as browser:
        text = await text_of(browser, "/groups/nobody", 503)
        away = "broker-b (127.0.0.1:1) does not answer: "
        assert f"no broker that answers has the group nobody, but {away}" in text


async def test_a_broker_that_refuses_is_named(
    managed: ManagedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*args: object, **kwargs: object) -> None:
        raise Busy("too many requests")

    async with open_browser(managed.cluster.name_servers) as browser:
        offsets = await text_of(browser, "/groups/billing/offsets")
        assert '<select id="topic"' in offsets
        monkeypatch.setattr("tandemmq.manage.progress.broker_admin.query_consume_stats", refuse)
        for path in ("/groups", "/groups/billing", "/groups/billing/delete", "/groups/billing/offsets"):
            assert "does not tell members or progress: too many requests" in await text_of(browser, path)
        assert "too many requests" in await text_of(browser, "/topics/Orders")
        offsets = await text_of(browser, "/groups/billing/offsets")
        assert '<input id="topic" name="topic"' in offsets
        refused = await text_of(browser, "/groups/billing/clone?source=audit&topic=Orders", 409)
        assert "may be online" in refused


async def test_a_group_is_created_changed_copied_and_deleted(managed: ManagedCluster) -> None:
    async with open_browser(managed.cluster.name_servers) as browser:
        await text_of(browser, "/new-group")
        given = {"name": "audit", "cluster": "DefaultCluster", "retry_count_max": "3", "is_orderly": "yes"}
        assert (await browser.post("/new-group", given)).headers["location"] == "/groups/audit"
        assert (await browser.post("/new-group", given)).status_code == 409
        assert (await browser.post("/new-group", {**given, "name": "no good"})).status_code == 400
        assert "Most redeliveries (now 3)" in await text_of(browser, "/groups/audit/settings")
        await text_of(browser, "/groups/audit/change", 400)
        await text_of(browser, "/groups/audit/change?is_consume_enabled=no")
        answer = await browser.post("/groups/audit/change", {"is_consume_enabled": "no"})
        assert answer.status_code == 303
        assert "Consumption is not allowed" in await text_of(browser, "/groups/audit")
        await text_of(browser, "/groups/audit/clone?source=billing", 400)
        refused = await text_of(browser, "/groups/audit/clone?source=nobody&topic=Orders", 404)
        assert "group nobody has no offset in topic Orders" in refused
        unknown = await browser.post("/groups/nobody/reset", {"topic": "Orders", "to": "end"})
        assert unknown.status_code == 404
        missing = await browser.post("/groups/audit/clone", {"source": "nobody", "topic": "Orders"})
        assert missing.status_code == 404
        assert (await browser.post("/groups/audit/clone", {"source": "billing"})).status_code == 400
        await text_of(browser, "/groups/audit/clone?source=billing&topic=Orders")
        assert (
            await browser.post("/groups/audit/clone", {"source": "billing", "topic": "Orders"})
        ).is_redirect
        assert "Offsets in 1 queues are deleted" in await text_of(browser, "/groups/audit/delete")
        assert (await browser.post("/groups/audit/delete", {})).headers["location"] == "/groups"
        await text_of(browser, "/groups/audit", 404)
        assert (await browser.post("/groups/TOOLS_CONSUMER/delete", {})).status_code == 400


async def test_a_group_is_kept_while_a_registered_broker_is_silent(managed: ManagedCluster) -> None:
    async with open_browser(managed.cluster.name_servers) as browser:
        await managed.register(Target("DefaultCluster", "broker-b", 0, "127.0.0.1:1"), "Orders")
        for path, fields in (
            ("/groups/billing/delete", {}),
            ("/groups/billing/change", {"is_consume_enabled": "no"}),
            ("/new-group", {"name": "audit", "cluster": "DefaultCluster"}),
            ("/topics/Orders/delete", {}),
            ("/topics/Orders/change", {"permission": "4"}),
            ("/new-topic", {"name": "More", "cluster": "DefaultCluster"}),
        ):
            answer = await browser.post(path, fields)
            assert answer.status_code == 409, (path, answer.text)
            assert "nothing is changed: broker-b (127.0.0.1:1)" in answer.text
            assert "broker-b" in browser.frame.audit.entries[0].outcome
        answer = await browser.post("/groups/billing/clone", {"source": "billing", "topic": "Orders"})
        assert answer.status_code == 502
        assert "127.0.0.1:1" in answer.text
        assert "changed at" not in browser.frame.audit.entries[0].outcome
        assert "billing" in await text_of(browser, "/groups")
