"""The page of delayed messages, on a cluster in this process."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from html import unescape

import pytest

from managed_cluster import ManagedCluster, managed_cluster
from tandemmq.client import Message
from unit.console.console_client import Browser, open_browser
from waits import until


@pytest.fixture
async def managed() -> AsyncIterator[ManagedCluster]:
    async with managed_cluster(settings={"recallMessageEnable": "true"}) as subject:
        await subject.cluster.create_topic("Orders", queue_count=1)
        yield subject


async def text_of(browser: Browser, path: str, status: int = 200) -> str:
    answer = await browser.get(path)
    assert answer.status_code == status, answer.text
    return answer.text


async def test_waiting_messages_are_shown_and_cancelled(managed: ManagedCluster) -> None:
    async with managed.cluster.producer() as producer:
        sent = await producer.send(Message("Orders", b"later", delay_ms=1_800_000))
        await producer.send(Message("Orders", b"level", delay_level=17))
    async with open_browser(managed.cluster.name_servers) as browser:
        page = await text_of(browser, "/delayed")
        assert "level 17 at broker-a" in page
        assert "timer at broker-a" in page
        link = re.search(r'href="(/delayed/cancel\?handle=[^"]+)"', page)
        assert link is not None
        assert "cannot be undone" in await text_of(browser, unescape(link[1]))
        answer = await browser.post("/delayed/cancel", {"handle": sent.recall_handle or ""})
        assert answer.status_code == 303, answer.text

        async def is_gone() -> bool:
            return "timer at broker-a" not in await text_of(browser, "/delayed")

        await until(is_gone)
        await text_of(browser, "/delayed/cancel", 400)
        assert (await browser.post("/delayed/cancel", {"handle": "x"})).status_code == 400
