"""The pages of topics, on a cluster in this process."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from urllib.parse import quote, unquote

import pytest

from tandemmq.client import Message
from tandemmq.testing import Cluster
from unit.console.console_client import Browser, open_browser


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster() as running:
        yield running


async def send(cluster: Cluster, topic: str, count: int) -> None:
    async with cluster.producer() as producer:
        for number in range(count):
            await producer.send(Message(topic=topic, body=b"%d" % number))


async def text_of(browser: Browser, path: str, status: int = 200) -> str:
    answer = await browser.get(path)
    assert answer.status_code == status, answer.text
    return answer.text


async def test_a_topic_is_created_shown_changed_and_deleted(cluster: Cluster) -> None:
    async with open_browser(cluster.name_servers) as browser:
        assert "No topic." in await text_of(browser, "/topics")
        assert "DefaultCluster" in await text_of(browser, "/new-topic")
        given = {
            "name": "Orders",
            "cluster": "DefaultCluster",
            "queues": "4",
            "permission": "6",
            "type": "FIFO",
        }
        answer = await browser.post("/new-topic", given)
        assert answer.headers["location"] == "/topics/Orders"
        await send(cluster, "Orders", 8)
        page = await text_of(browser, "/topics/Orders")
        assert "message.type=FIFO" in page
        assert "read and write" in page
        assert 'href="/topics/Orders"' in await text_of(browser, "/topics?q=ord")
        assert "Preview" in await text_of(browser, "/topics/Orders/settings")
        preview = await text_of(browser, "/topics/Orders/change?read_queues=1&write_queues=1")
        assert "Remove queues with unread messages" in preview
        shrink = {"read_queues": "1", "write_queues": "1"}
        refused = await browser.post("/topics/Orders/change", shrink)
        assert refused.status_code == 409
        assert "unreachable" in refused.text
        answer = await browser.post("/topics/Orders/change", {**shrink, "force": "yes"})
        assert answer.status_code == 303
        assert "messages are deleted" in await text_of(browser, "/topics/Orders/delete")
        answer = await browser.post("/topics/Orders/delete", {})
        assert answer.headers["location"] == "/topics"
        assert "Topic Orders is deleted." in await text_of(browser, "/topics")
        await text_of(browser, "/topics/Orders", 404)
        outcomes = [entry.outcome for entry in browser.frame.audit.entries]
    assert outcomes[0] == "done"
    assert any(outcome.startswith("failed: ") for outcome in outcomes)


@pytest.mark.parametrize(
    ("given", "shown"),
    [({}, "read and write"), ({"permission": ""}, "read and write"), ({"permission": "0"}, "none")],
)
async def test_a_new_topic_is_readable_and_writable_unless_the_form_says_otherwise(
    cluster: Cluster, given: dict[str, str], shown: str
) -> None:
    async with open_browser(cluster.name_servers) as browser:
        answer = await browser.post("/new-topic", {"name": "Orders", "cluster": "DefaultCluster", **given})
        assert answer.status_code == 303, answer.text
        assert f"<td>{shown}</td>" in await text_of(browser, "/topics/Orders")


@pytest.mark.parametrize(
    "given",
    [{"name": "bad name"}, {"name": "T", "queues": "0"}, {"name": "T", "queues": "many"}, {"name": ""}],
)
async def test_an_invalid_topic_is_refused_with_the_reason(cluster: Cluster, given: dict[str, str]) -> None:
    async with open_browser(cluster.name_servers) as browser:
        answer = await browser.post("/new-topic", {"cluster": "DefaultCluster", **given})
    assert answer.status_code == 400
    assert 'role="alert"' in answer.text


async def test_system_topics_are_listed_apart_and_stay(cluster: Cluster) -> None:
    async with open_browser(cluster.name_servers) as browser:
        assert "TBW102" not in await text_of(browser, "/topics")
        assert "TBW102" in await text_of(browser, "/topics?kind=system")
        assert "/delete" not in await text_of(browser, "/topics/TBW102")
        assert (await browser.post("/topics/TBW102/delete", {})).status_code == 400


async def test_a_viewer_sees_no_buttons(cluster: Cluster) -> None:
    await cluster.create_topic("Orders")
    async with open_browser(cluster.name_servers, read_only=True) as browser:
        assert "/new-topic" not in await text_of(browser, "/topics")
        assert "/topics/Orders/delete" not in await text_of(browser, "/topics/Orders")
        await text_of(browser, "/topics/Orders/delete", 403)


@pytest.mark.parametrize("name", ["orders%41", "%RETRY%g", "%DLQ%g"])
async def test_the_confirmed_topic_is_the_one_that_is_deleted(cluster: Cluster, name: str) -> None:
    decoded = unquote(name)
    for one in {name, decoded if decoded.isalnum() else "ordersA"}:
        await cluster.create_topic(one, queue_count=1)
    async with open_browser(cluster.name_servers) as browser:
        page = await text_of(browser, f"/topics/{quote(name, safe='')}/delete")
        action = re.search(r'action="([^"]*/delete)" class="buttons"', page)
        assert action is not None
        assert action[1] == f"/topics/{quote(name, safe='')}/delete"
        answer = await browser.post(action[1], {})
        assert answer.status_code == 303, answer.text
        await text_of(browser, "/topics/ordersA")
        await text_of(browser, f"/topics/{quote(name, safe='')}", 404)
