"""The pages of messages and traces, on a cluster in this process."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from html import unescape

import pytest

from managed_cluster import ManagedCluster, managed_cluster
from tandemmq.client import Message, ProducerOptions, SendResult
from tandemmq.client.options import ClientOptions
from tandemmq.console.pages.messages import PREVIEW_BYTES_MAX, make_row
from tandemmq.manage.message_scan import scan_messages
from tandemmq.manage.tools import open_tools
from unit.console.console_client import Browser, open_browser
from waits import until

EVIL = "<script>alert(1)</script>"


@pytest.fixture
async def managed() -> AsyncIterator[ManagedCluster]:
    async with managed_cluster() as subject:
        await subject.cluster.create_topic("Orders", queue_count=1)
        yield subject


async def send(managed: ManagedCluster, *messages: Message, trace: bool = False) -> list[SendResult]:
    options = ProducerOptions(client=ClientOptions(), trace=trace)
    async with managed.cluster.producer(options=options) as producer:
        return [await producer.send(one) for one in messages]


async def text_of(browser: Browser, path: str, status: int = 200) -> str:
    answer = await browser.get(path)
    assert answer.status_code == status, answer.text
    return answer.text


async def test_messages_are_found_by_topic_key_id_and_property(managed: ManagedCluster) -> None:
    sent = await send(
        managed,
        *(
            Message("Orders", b"body %d" % n, keys=[f"k{n}"], tags="t", properties={"p": str(n)})
            for n in range(60)
        ),
    )
    async with open_browser(managed.cluster.name_servers) as browser:
        assert "Give a topic" in await text_of(browser, "/messages")
        first = await text_of(browser, "/messages?topic=Orders")
        assert "body 59" in first
        assert "body 3<" not in first
        link = re.search(r'href="(/messages\?resume=[^"]+)"', first)
        assert link is not None
        assert "body 3<" in await text_of(browser, unescape(link[1]))
        oldest = await text_of(browser, "/messages?topic=Orders&order=oldest&tag=t")
        assert "body 0<" in oldest
        assert "body 59" not in oldest
        page = await text_of(browser, "/messages?topic=Orders&property=p&value=7&from=1h&to=2100-01-01T00:00")
        assert "1 found" in page
        assert "body 7<" in page

        async def is_indexed() -> bool:
            return "body 7<" in await text_of(browser, "/messages?topic=Orders&key=k7")

        await until(is_indexed)
        assert "body 7<" in await text_of(browser, "/messages?topic=Orders&key=k7&by=scan")
        for query in (f"id={sent[7].message_id}", f"topic=Orders&id={sent[7].unique_key}"):
            answer = await browser.get(f"/messages?{query}")
            assert answer.headers["location"] == "/messages/Orders/broker-a/0/7"
        assert "0 found" in await text_of(browser, f"/messages?id=7F000001{'0' * 24}")
        for query in ("id=x", "topic=Orders&from=soon", "topic=Orders&from=1m&to=1h", "topic=Orders&queue=x"):
            await text_of(browser, f"/messages?{query}", 400)
        await text_of(browser, "/messages?topic=Missing", 404)


async def test_one_message_shows_its_facts_in_every_form(managed: ManagedCluster) -> None:
    await send(
        managed,
        Message("Orders", b'{"a": "%s"}' % EVIL.encode(), keys=["k"], properties={"own": EVIL}),
        Message("Orders", b"\x08\x96\x01", tags="t"),
    )
    async with open_browser(managed.cluster.name_servers) as browser:
        page = await text_of(browser, "/messages/Orders/broker-a/0/0")
        assert EVIL not in page
        assert "&lt;script&gt;" in page
        assert "No group consumes" in page
        assert "No traced client" in page
        assert "00000000  7b 22 61" in await text_of(browser, "/messages/Orders/broker-a/0/0?form=hex")
        assert "1: 150" in await text_of(browser, "/messages/Orders/broker-a/0/1?form=protobuf")
        avro = "/messages/Orders/broker-a/0/1?form=avro&avro=%22bytes%22"
        assert "not shown as avro" in await text_of(browser, avro)
        body = await browser.get("/messages/Orders/broker-a/0/1/body")
        assert body.content == b"\x08\x96\x01"
        assert body.headers["content-disposition"].startswith("attachment")
        await text_of(browser, "/messages/Orders/broker-a/0/9", 404)
        await text_of(browser, "/messages/Orders/broker-a/0/0?form=pdf", 400)
        await text_of(browser, "/messages/Orders/broker-a/0/0?descriptors=!", 400)


async def test_the_trace_names_the_sender(managed: ManagedCluster) -> None:
    (sent,) = await send(managed, Message("Orders", b"x"), trace=True)
    async with open_browser(managed.cluster.name_servers) as browser:

        async def is_traced() -> bool:
            return "test-producer" in await text_of(browser, f"/traces?key={sent.unique_key}")

        await until(is_traced)
        assert "test-producer" in await text_of(browser, "/messages/Orders/broker-a/0/0")
        assert "No traced client" in await text_of(browser, "/traces?key=unknown")
        assert "Clients that trace" in await text_of(browser, "/traces")


async def test_a_list_does_not_inflate_large_bodies(managed: ManagedCluster) -> None:
    await send(managed, Message("Orders", b"x" * 100_000), Message("Orders", b"small" * 2_000))
    async with open_tools(managed.cluster.name_servers) as tools:
        found = (await scan_messages(tools, "Orders", content_bytes_max=PREVIEW_BYTES_MAX)).messages
    small, large = found
    assert make_row(small).preview.startswith("smallsmall")
    assert len(large.body) == len(large.record.body) < PREVIEW_BYTES_MAX
    assert make_row(large).preview.startswith("(compressed: ")
    assert large.record.content == b"x" * 100_000
