"""The recipe of docs/client/testcontainers.md: its commands run without a container, at free ports. A
forwarded port stands for the mapped one.
"""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tandemmq.client import Message, Producer
from tandemmq.launcher import Server, stopping

DOCUMENT = Path(__file__).parents[2] / "docs" / "client" / "testcontainers.md"
TEXT = DOCUMENT.read_text(encoding="utf-8")
NAMES, BROKER = re.findall(r"^    (?:exec )?tandemmq (.*?)(?: &)?$", TEXT, re.MULTILINE)
LISTENER = "--set networkListeners=outside=19876 "


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


@asynccontextmanager
async def forwarded(target: str) -> AsyncIterator[tuple[int, list[str]]]:
    """Yields a port whose connections go to the target, and the list that grows by one for each."""
    seen: list[str] = []
    tasks: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(target)
        host, _, port = target.rpartition(":")
        inner_reader, inner_writer = await asyncio.open_connection(host, int(port))
        for pair in ((reader, inner_writer), (inner_reader, writer)):
            tasks.add(asyncio.create_task(copy(*pair)))

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], seen
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_recipes_start_the_servers_of_the_text() -> None:
    joined = re.sub(r"[\"'] *\+?\n[ \t]*\+? *[\"']", "", TEXT)
    starts = re.findall(r"[\"']tandemmq (namesrv .*?) & exec tandemmq (broker .*?)[\"']", joined)
    assert len(starts) == 4
    # The client of Node.js needs no listener.
    assert {names for names, _ in starts} == {NAMES, NAMES.replace(LISTENER, "")}
    assert {broker for _, broker in starts} == {BROKER}
    assert TEXT.count("advertisedAddresses") == 3


@pytest.mark.process
async def test_client_outside_sends_through_the_mapped_port(tmp_path: Path) -> None:
    names, outside = free_port(), free_port()
    replaced = {
        "/data": str(tmp_path),
        "outside=19876": f"outside={outside}",
        "127.0.0.1:9876": f"127.0.0.1:{names}",
    }

    def server(text: str, **settings: object) -> Server:
        for old, new in replaced.items():
            text = text.replace(old, new)
        pairs = {"bindAddress": "127.0.0.1", **settings}
        extra = [word for key, value in pairs.items() for word in ("--set", f"{key}={value}")]
        return Server(text.split()[0], [*text.split(), *extra], tmp_path / "server.log")

    servers = [
        server(NAMES, listenPort=names),
        server(BROKER, listenPort=0, grpcServerPort=free_port(), mappedFileSizeCommitLog=1 << 20),
    ]
    with stopping(servers):
        for one in servers:
            await asyncio.to_thread(one.start)
        inside = servers[1].address
        async with forwarded(inside) as (mapped, connections):
            change = ["-b", inside, "-k", "advertisedAddresses", "-v", f"outside=127.0.0.1:{mapped}"]
            command = [sys.executable, "-m", "tandemmq", "admin", "updateBrokerConfig", *change]
            await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
            async with Producer("shop", f"127.0.0.1:{outside}") as producer:
                sent = await producer.send(Message(topic="Orders", body=b"order 1"))
            assert sent.is_ok
            assert connections
