"""The console and the tools read the same: each page has its tool, or has none by intent."""

from __future__ import annotations

from pathlib import Path

from mcp.client import Client

from managed_cluster import managed_cluster
from tandemmq.console.pages import ALL
from tandemmq.console.view import Page
from tandemmq.mcp.server import build_server

TOOL_OF_PAGE = {
    "/": "cluster_overview",
    "/brokers": "list_replication",
    "/brokers/{address}": "describe_broker",
    "/topics": "list_topics",
    "/topics/{topic}": "describe_topic",
    "/topics/{topic}/settings": "describe_topic",
    "/groups": "list_groups",
    "/groups/{group}": "describe_group",
    "/groups/{group}/settings": "describe_group",
    "/messages": "find_messages",
    "/messages/{topic}/{broker}/{queue}/{offset}": "list_groups_of_message",
    "/traces": "trace_message",
    "/dead-letters": "list_groups",
    "/dead-letters/{group}": "list_dead_letters",
    "/dead-letters/{group}/letter/{broker}/{queue}/{offset}": "list_dead_letters",
    "/delayed": "list_waiting_messages",
    "/transactions": "list_transactions",
    "/access": "list_access",
    "/access/check": "check_access",
    "/access/users/{user}": "list_access",
    "/refusals": "list_rejected_requests",
    "/pipelines": "list_pipelines",
    "/pipelines/{pipeline}": "describe_pipeline",
    "/settings": "list_settings",
}
WITHOUT_TOOL = {
    "/new-topic": "an empty form",
    "/new-group": "an empty form",
    "/new-user": "an empty form",
    "/new-account": "an empty form",
    "/groups/{group}/offsets": "forms that move offsets, which describe_group lists",
    "/messages/{topic}/{broker}/{queue}/{offset}/body": "a file; find_messages has the body",
    "/dead-letters/{group}/export": "a file; list_dead_letters has the messages",
    "/audit": "the changes made in the console itself",
    "/services": "files of a directory that only the console is given",
}


async def test_each_page_of_the_console_has_a_tool(tmp_path: Path) -> None:
    pages = {one.path for one in ALL if isinstance(one, Page)}
    assert pages == TOOL_OF_PAGE.keys() | WITHOUT_TOOL.keys(), "name the page's tool, or why it has none"
    async with (
        managed_cluster() as managed,
        Client(build_server(managed.tools, pipelines=tmp_path)) as client,
    ):
        tools = {one.name for one in (await client.list_tools()).tools}
    assert set(TOOL_OF_PAGE.values()) <= tools


def test_the_document_lists_each_tool() -> None:
    text = (Path(__file__).parents[3] / "docs" / "mcp.md").read_text()
    assert [name for name in TOOL_OF_PAGE.values() if f"`{name}`" not in text] == []
