"""The pages of dead letters, on a cluster in this process."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest

from dead_letter_rig import make_letters
from managed_cluster import ManagedCluster, managed_cluster
from tandemmq.manage.dead_letters import ORIGIN, read_dead_letter_count
from tandemmq.manage.message_scan import scan_messages
from tandemmq.manage.tools import open_tools
from unit.console.console_client import Browser, open_browser
from waits import until

GROUP = "/dead-letters/readers"
RESEND = f"{GROUP}/resend"


@pytest.fixture
async def managed() -> AsyncIterator[ManagedCluster]:
    async with managed_cluster() as subject:
        await make_letters(subject.cluster, 3)
        async with open_tools(subject.cluster.name_servers) as tools:

            async def are_there() -> bool:
                return (await read_dead_letter_count(tools, "readers")).kept == 3

            await until(are_there)
        yield subject


async def text_of(browser: Browser, path: str, status: int = 200) -> str:
    answer = await browser.get(path)
    assert answer.status_code == status, answer.text
    return answer.text


async def bodies_of(managed: ManagedCluster, topic: str) -> list[bytes]:
    async with open_tools(managed.cluster.name_servers) as tools:
        return [one.body for one in (await scan_messages(tools, topic, newest_first=False)).messages]


async def test_letters_are_listed_and_sent_again_after_a_preview(managed: ManagedCluster) -> None:
    async with open_browser(managed.cluster.name_servers) as browser:
        assert 'href="/dead-letters/readers"' in await text_of(browser, "/dead-letters")
        page = await text_of(browser, "/dead-letters/readers")
        assert 'value="broker-a/0/1"' in page
        await text_of(browser, "/dead-letters/nobody", 404)
        preview = await text_of(browser, f"{GROUP}/resend?to=topic&topic=again&letter=broker-a/0/1")
        assert "Send 1 dead letters of readers to again?" in preview
        assert "repeating it sends them twice" in preview
        await managed.cluster.create_topic("again", queue_count=1)
        answer = await browser.post(RESEND, {"letters": "broker-a/0/1", "to": "again"})
        assert answer.status_code == 303, answer.text
        assert "1 dead letters are sent" in await text_of(browser, "/dead-letters/readers")
        assert await bodies_of(managed, "again") == [b"1"]
        preview = await text_of(browser, f"{GROUP}/resend?to=topic&topic=again")
        assert "3 of 3 letters were not sent by an earlier run" in preview
        await browser.post(RESEND, {"letters": "", "to": "again"})
        await browser.post(RESEND, {"letters": "", "to": "again"})
        assert await bodies_of(managed, "again") == [b"1", b"0", b"1", b"2"]
        missing = await browser.post(RESEND, {"letters": "broker-a/0/0", "to": "none"})
        assert missing.status_code == 502
        assert "0 dead letters were sent before, 1 are left" in missing.text
        for query in ("to=topic", "letter=x", "&".join(["letter=broker-a/0/1"] * 101)):
            await text_of(browser, f"{GROUP}/resend?{query}", 400)
        await text_of(browser, f"{GROUP}/resend?letter=broker-a/0/9", 404)


async def test_a_double_click_sends_the_letters_once(managed: ManagedCluster) -> None:
    await managed.cluster.create_topic("again", queue_count=1)
    async with open_browser(managed.cluster.name_servers) as browser:
        fields = {"letters": "", "to": "again", "csrf": await browser.csrf()}
        answers = await asyncio.gather(*(browser.client.post(RESEND, data=fields) for _ in range(2)))
        assert sorted(one.status_code for one in answers) == [303, 409]
        assert browser.frame.resending == set()
    assert await bodies_of(managed, "again") == [b"0", b"1", b"2"]


async def test_a_form_sends_a_changed_letter_once(managed: ManagedCluster) -> None:
    await managed.cluster.create_topic("again", queue_count=1)
    path = "/dead-letters/readers/letter/broker-a/0/2"
    chosen = f"{GROUP}/resend?letter=broker-a/0/1&to=topic&topic=again"
    async with open_browser(managed.cluster.name_servers) as browser:

        async def form_of(page: str) -> str:
            found = re.search(r'name="form" value="([0-9a-f]{16})"', await text_of(browser, page))
            assert found is not None
            return found[1]

        fields = {"to": "topic", "topic": "again", "form": await form_of(path), "csrf": await browser.csrf()}
        sends = (browser.client.post(f"{path}/send", data=fields) for _ in range(2))
        assert sorted(one.status_code for one in await asyncio.gather(*sends)) == [303, 409]
        reloaded = await browser.client.post(f"{path}/send", data=fields)
        assert reloaded.status_code == 409
        assert "this form was sent already" in reloaded.text
        assert await bodies_of(managed, "again") == [b"2"]
        fields["form"] = await form_of(path)
        assert (await browser.client.post(f"{path}/send", data=fields)).status_code == 303
        fields = {"letters": "broker-a/0/1", "to": "again", "form": await form_of(chosen)}
        answers = [(await browser.post(RESEND, fields)).status_code for _ in range(2)]
        assert answers == [303, 409]
        assert browser.frame.resending == set()
    assert await bodies_of(managed, "again") == [b"2", b"2", b"1"]


async def test_one_letter_is_changed_and_sent_to_its_origin(managed: ManagedCluster) -> None:
    path = "/dead-letters/readers/letter/broker-a/0/2"
    async with open_browser(managed.cluster.name_servers) as browser:
        page = await text_of(browser, path)
        assert "orders: 0 times" in page
        fields = {"body": "mended\r\ntwice", "tags": "t", "keys": "", "name": "c", "value": "d", "to": ORIGIN}
        answer = await browser.post(f"{path}/send", fields)
        assert answer.status_code == 303, answer.text
        assert browser.frame.audit.entries[0].values["body"] == "(hidden)"
        assert (await bodies_of(managed, "orders"))[-1] == b"mended\ntwice"

        async def is_counted() -> bool:
            return "orders: 1 times" in await text_of(browser, path)

        await until(is_counted)
        refused = await browser.post(f"{path}/send", {**fields, "name": "UNIQ_KEY"})
        assert refused.status_code == 502
        assert "reserved" in refused.text
        await text_of(browser, "/dead-letters/readers/letter/broker-a/0/9", 404)


async def test_letters_are_exported(managed: ManagedCluster) -> None:
    async with open_browser(managed.cluster.name_servers) as browser:
        answer = await browser.get("/dead-letters/readers/export")
        assert [json.loads(line)["body"] for line in answer.text.splitlines()] == ["0", "1", "2"]
        assert "dead-letters-readers.jsonl" in answer.headers["content-disposition"]


async def test_a_read_only_console_has_no_form(managed: ManagedCluster) -> None:
    async with open_browser(managed.cluster.name_servers, read_only=True) as browser:
        assert "checkbox" not in await text_of(browser, "/dead-letters/readers")
        assert "<textarea" not in await text_of(browser, "/dead-letters/readers/letter/broker-a/0/1")
        await text_of(browser, f"{GROUP}/resend?to={quote(ORIGIN)}", 403)
