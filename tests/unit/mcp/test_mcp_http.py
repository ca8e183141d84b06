"""The HTTP server: requests without the token, with a foreign Host or Origin, and unsafe options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer
from starlette.testclient import TestClient

from tandemmq.errors import ConfigError
from tandemmq.mcp.http import PATH, TOKEN_VARIABLE, McpHttpOptions, build_app, read_token

TOKEN = "a-token-of-thirty-two-characters"
PORT = 8089
HOST = f"127.0.0.1:{PORT}"
LIST_TOOLS = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
GOOD = {
    "Authorization": f"Bearer {TOKEN}",
    "Host": HOST,
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": "2025-11-25",
}


async def hello() -> dict[str, str]:
    """Says hello."""
    return {"hello": "world"}


def ask(**headers: str) -> Any:
    server: MCPServer[Any] = MCPServer("tandemmq", log_level="ERROR")
    server.add_tool(hello)
    options = McpHttpOptions("127.0.0.1:0", TOKEN, names=("mq.example.org",))
    wanted = {name: text for name, text in {**GOOD, **headers}.items() if text}
    with TestClient(build_app(server, options, PORT), base_url=f"http://{HOST}") as client:
        return client.post(PATH, json=LIST_TOOLS, headers=wanted)


def test_a_request_with_the_token_is_served() -> None:
    answer = ask()
    assert answer.status_code == 200, answer.text
    assert [tool["name"] for tool in answer.json()["result"]["tools"]] == ["hello"]


@pytest.mark.parametrize("given", ["", TOKEN, "Bearer ", f"Bearer {TOKEN}x", f"bearer {TOKEN}", "Basic eDp5"])
def test_a_request_without_the_token_is_refused(given: str) -> None:
    answer = ask(Authorization=given)
    assert (answer.status_code, answer.headers["www-authenticate"][:6]) == (401, "Bearer")
    assert "hello" not in answer.text


@pytest.mark.parametrize("host", [HOST, f"localhost:{PORT}", "mq.example.org", f"mq.example.org:{PORT}"])
def test_a_host_name_of_the_server_is_accepted(host: str) -> None:
    assert ask(Host=host).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1:1", f"127.0.0.1.evil.example:{PORT}"]
)
def test_a_foreign_host_name_is_refused(host: str) -> None:
    assert ask(Host=host).status_code == 421


@pytest.mark.parametrize(
    ("origin", "status"), [(f"http://{HOST}", 200), ("http://evil.example", 403), ("null", 403)]
)
def test_pages_of_other_origins_are_refused(origin: str, status: int) -> None:
    assert ask(Origin=origin).status_code == status


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"token": "short"}, "at least 20 characters"),
        ({"token": ""}, TOKEN_VARIABLE),
        ({"listen": "0.0.0.0:0"}, "reachable from other machines"),
        ({"listen": "[::]:0"}, "reachable from other machines"),
        ({"certificate": Path("a.pem")}, "must be given together"),
    ],
)
def test_unsafe_options_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        McpHttpOptions(**{"listen": "127.0.0.1:0", "token": TOKEN, **values})


def test_the_token_is_read_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, f" {TOKEN}\n")
    assert read_token(None) == TOKEN
    file = tmp_path / "token"
    file.write_text("of the file\n")
    assert read_token(file) == "of the file"
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_token(tmp_path / "none")
