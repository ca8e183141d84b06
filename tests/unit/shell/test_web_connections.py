"""An HTTP server and strangers that open connections and send nothing, or too slowly."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tandemmq.errors import ConfigError
from tandemmq.shell import web_connections
from tandemmq.shell.web_server import WebServer, listen
from waits import until

REQUESTS_MAX = 8
LONG = b"x" * (16 << 20)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is missing")
    folder = tmp_path_factory.mktemp("web")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-days", "2", "-subj", "/CN=web", "-addext", "subjectAltName=IP:127.0.0.1", "-nodes"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """Returns what arrives before the server closes the connection."""
    try:
        return await asyncio.wait_for(reader.read(), 20)
    except ConnectionResetError:
        return b""


class Site:
    """A running server."""

    def __init__(self, server: WebServer, port: int, certificate: tuple[Path, Path] | None) -> None:
        self.server = server
        self.port = port
        self.may_end = asyncio.Event()
        self.running = 0
        self.writers: list[asyncio.StreamWriter] = []
        self._trust = ssl.create_default_context(cafile=certificate[0]) if certificate else None
        self._base = f"{'https' if certificate else 'http'}://127.0.0.1:{port}"

    async def get(self, path: str) -> httpx.Response:
        trust: ssl.SSLContext | bool = True if self._trust is None else self._trust
        async with httpx.AsyncClient(base_url=self._base, verify=trust, timeout=20) as client:
            return await client.get(path)

    async def stranger(self, sent: bytes = b"") -> asyncio.StreamReader:
        """Opens a connection that only sends these bytes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        writer.write(sent)
        return reader

    @property
    def open_count(self) -> int:
        return len(self.server._table._peers)


@asynccontextmanager
async def serving(certificate: tuple[Path, Path] | None = None) -> AsyncIterator[Site]:
    sites: list[Site] = []

    async def quick(_: Request) -> Response:
        return PlainTextResponse("quick")

    async def slow(_: Request) -> Response:
        sites[0].running += 1
        await sites[0].may_end.wait()
        return PlainTextResponse("slow")

    async def form(request: Request) -> Response:
        return PlainTextResponse(str(len(await request.body())))

    async def scheme(request: Request) -> Response:
        return PlainTextResponse(request.url.scheme)

    async def long(_: Request) -> Response:
        return Response(LONG)

    routes = [Route(f"/{one.__name__}", one) for one in (quick, slow, scheme, long)]
    app = Starlette(routes=[*routes, Route("/form", form, methods=["POST"])])
    cert, key = certificate or (None, None)
    server = WebServer(app, "ready", requests_max=REQUESTS_MAX, tls_cert=cert, tls_key=key)
    with listen("127.0.0.1:0") as listener:
        sites.append(Site(server, listener.getsockname()[1], certificate))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        await until(lambda: server.started)
        try:
            yield sites[0]
        finally:
            for writer in sites[0].writers:
                writer.close()
            server.end()
            await asyncio.wait_for(task, 10)


@pytest.mark.parametrize(
    "sent", [b"", b"GET /quick HTT", b"POST /form HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n"]
)
async def test_silent_strangers_do_not_lock_out_others(sent: bytes) -> None:
    async with serving() as site:
        strangers = [await site.stranger(sent) for _ in range(3 * REQUESTS_MAX)]
        assert (await site.get("/quick")).text == "quick"
        assert site.open_count < REQUESTS_MAX
        assert await rest_of(strangers[0]) == b""


async def test_strangers_without_a_handshake_do_not_lock_out_others(certificate: tuple[Path, Path]) -> None:
    async with serving(certificate) as site:
        strangers = [await site.stranger() for _ in range(3 * REQUESTS_MAX)]
        assert (await site.get("/quick")).text == "quick"
        assert (await site.get("/scheme")).text == "https"
        assert site.open_count < REQUESTS_MAX
        assert await rest_of(strangers[0]) == b""
        plain = await site.stranger(b"GET /quick HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b"quick" not in await rest_of(plain)


async def test_running_requests_are_not_displaced() -> None:
    async with serving() as site:
        slow = [asyncio.create_task(site.get("/slow")) for _ in range(REQUESTS_MAX - 2)]
        await until(lambda: site.running == len(slow))
        for _ in range(3 * REQUESTS_MAX):
            await site.stranger()
        assert (await site.get("/quick")).text == "quick"
        site.may_end.set()
        assert [(await one).text for one in slow] == ["slow"] * len(slow)


async def test_slow_requests_and_unread_answers_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_connections, "WAIT_S_MAX", 0.2)
    async with serving() as site:
        slow = asyncio.create_task(site.get("/slow"))
        await until(lambda: site.running == 1)
        await site.stranger(b"GET /long HTTP/1.1\r\nHost: a\r\n\r\n")
        assert await rest_of(await site.stranger(b"GET /qu")) == b""
        await until(lambda: site.open_count == 1)
        site.may_end.set()
        assert (await slow).text == "slow"


async def test_invalid_requests_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    upgrade = b"GET /quick HTTP/1.1\r\nHost: a\r\nConnection: close, Upgrade\r\nUpgrade: websocket\r\n\r\n"
    async with serving() as site:
        assert b"400 Bad Request" in await rest_of(await site.stranger(b"no HTTP\r\n\r\n"))
        assert b"quick" in await rest_of(await site.stranger(upgrade))
    assert caplog.text == ""


def test_an_unusable_certificate_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cert.pem"
    path.write_text("no certificate")
    with pytest.raises(ConfigError, match=r"cert\.pem"):
        WebServer(Starlette(), "ready", requests_max=8, tls_cert=path, tls_key=path)
