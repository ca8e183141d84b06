"""The page of transactions, on a cluster in this process."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from html import unescape

import pytest

from managed_cluster import ManagedCluster, managed_cluster
from tandemmq.client import Message, TransactionProducer, TransactionState
from unit.console.console_client import Browser, open_browser


@pytest.fixture
async def managed() -> AsyncIterator[ManagedCluster]:
    settings = {"transactionTimeOut": 50, "transactionCheckInterval": 600_000}
    async with managed_cluster(settings=settings) as subject:
        await subject.cluster.create_topic("Orders", queue_count=1)
        yield subject


async def text_of(browser: Browser, path: str, status: int = 200) -> str:
    answer = await browser.get(path)
    assert answer.status_code == status, answer.text
    return answer.text


async def test_open_transactions_are_shown_and_checked_again(managed: ManagedCluster) -> None:
    payers = TransactionProducer(
        "payers", managed.cluster.name_servers, check=lambda _: TransactionState.UNKNOWN
    )
    async with payers as producer:
        await producer.send_half(Message("Orders", b"pay"))
        async with open_browser(managed.cluster.name_servers) as browser:
            page = await text_of(browser, "/transactions")
            assert "payers" in page
            link = re.search(r'href="(/transactions/check\?[^"]+)"', page)
            assert link is not None
            path = unescape(link[1])
            assert "consumers receive the message twice" in await text_of(browser, path)
            fields = dict(one.split("=") for one in path.partition("?")[2].split("&"))
            answer = await browser.post("/transactions/check", fields)
            assert answer.status_code == 303, answer.text
            assert "in its next round" in await text_of(browser, "/transactions")
            assert (await text_of(browser, "/transactions")).count("/transactions/check?") == 1
            missing = await browser.post("/transactions/check", {**fields, "broker": "nobody"})
            assert missing.status_code == 404
            refused = await browser.post(
                "/transactions/check", {**fields, "id": f"7F00000100002A9F{10**6:016X}"}
            )
            assert refused.status_code == 502
