"""The HTTP server: pages, refusals, and slow, oversized, malformed or numerous peers."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sim.memory import ManualClock, MemoryNetwork
from tandemmq.remoting.http import (
    HttpAnswer,
    HttpConnection,
    HttpServer,
)
from tandemmq.runtime.machine import LoopClock, TcpNetwork
from tandemmq.runtime.ports import Address
from waits import PATIENCE_S, until

BIG = b"x" * (4 << 20)
GET = b"GET /page HTTP/1.1\r\nHost: a\r\n\r\n"


def broken() -> HttpAnswer:
    raise RuntimeError("out of order")


PAGES: dict[str, Callable[[], HttpAnswer]] = {
    "/page": lambda: HttpAnswer(b"hello", "text/x"),
    "/big": lambda: HttpAnswer(BIG),
    "/sick": lambda: HttpAnswer(b"no\n", status=503),
    "/broken": broken,
}


class Sink(asyncio.Transport):
    """A transport that keeps the writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.is_closed
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.close()


def feed(*pieces: bytes) -> None:
    """Feeds the bytes: the server answers once and completely, or waits for more."""
    clock = ManualClock()
    server = HttpServer(PAGES, network=MemoryNetwork(clock), clock=clock)
    server.on_connected = lambda _: True  # type: ignore[method-assign]
    connection, sink = HttpConnection(server), Sink()
    connection.connection_made(sink)
    for piece in pieces:
        connection.data_received(piece)
    connection.connection_lost(None)
    assert sink.is_closed == bool(sink.written)
    head, _, body = sink.written.partition(b"\r\n\r\n")
    length = re.search(rb"Content-Length: (\d+)", head)
    assert not sink.written or (length is not None and int(length[1]) >= len(body))


REQUEST_PARTS = (
    *(b"GET", b"HEAD", b"CONNECT", b" ", b"/page", b"*", b"a:1", b" HTTP/1.1", b" HTTP/1.0", b" HTTP/2.0"),
    *(b"\r\n", b"\n", b"\0", b"Host: a", b"Connection: upgrade", b"Upgrade: h2c", b"Expect: 100-continue"),
    *(b"Content-Length: 5", b"Content-Length: -1", b"Transfer-Encoding: chunked", b"Transfer-Encoding: x"),
)


@given(st.lists(st.one_of(st.sampled_from(REQUEST_PARTS), st.binary(min_size=1, max_size=40)), max_size=12))
@example([b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n"])
@example([b"GET /page HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n", b"12345"])
@example([b"GET /page HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"])
@example([b"GET /page HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: x\r\n\r\n"])
def test_any_bytes_are_answered_once_or_waited_for(pieces: list[bytes]) -> None:
    feed(*pieces)
    if pieces:
        feed(b"".join(pieces))


# Over sockets.


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    server = HttpServer(PAGES, network=TcpNetwork(), clock=LoopClock(), connections_max=2)
    yield server
    await server.stop()
    await until_count(server, 0)


async def until_count(server: HttpServer, count: int) -> None:
    await until(lambda: server.connection_count == count, f"{count} connections")


async def exchange(address: Address, *pieces: bytes) -> bytes:
    """Returns everything the server sends until it closes; the pieces are sent one by one."""
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection(*address)
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            return await reader.read()
        finally:
            writer.close()


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


async def test_page_is_served(server: HttpServer) -> None:
    address = await server.start("127.0.0.1", 0)
    head, _, body = (await exchange(address, GET)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/x\r\n")
    assert body == b"hello"


async def test_request_may_come_byte_by_byte(server: HttpServer) -> None:
    address = await server.start("127.0.0.1", 0)
    answer = await exchange(address, *(GET[at : at + 1] for at in range(len(GET))))
    assert status_of(answer) == 200


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /page?name[]=a&b=%20 HTTP/1.1", 200),
        (b"GET /page HTTP/1.0", 200),
        (b"GET /none HTTP/1.1", 404),
        (b"GET http://a/ HTTP/1.1", 404),
        (b"OPTIONS * HTTP/1.1", 405),
        (b"POST /page HTTP/1.1", 405),
        (b"GET /broken HTTP/1.1", 500),
        (b"GET /sick HTTP/1.1", 503),
        (b"GET", 400),
        (b"GET /page", 400),
        (b"GET  /page HTTP/1.1", 400),
        (b"GET /page HTTP/1.1 ", 400),
        (b"GET /\x00 HTTP/1.1", 400),
        (b"GET /page HTTP/1.1\r\nno colon", 400),
        (b"GET /page HTTP/1.1\r\nA : b", 400),
        (b"GET /page HTTP/1.1\r\n folded: a", 400),
        (b"GET /page HTTP/1.1\r\nA: b\x00", 400),
    ],
)
async def test_requests_are_answered(server: HttpServer, request_line: bytes, status: int) -> None:
    address = await server.start("127.0.0.1", 0)
    assert status_of(await exchange(address, request_line + b"\r\nHost: a\r\n\r\n")) == status


async def test_a_request_without_a_host_is_refused_with_the_reason(server: HttpServer) -> None:
    address = await server.start("127.0.0.1", 0)
    answer = await exchange(address, b"GET /page HTTP/1.1\r\n\r\n")
    assert status_of(answer) == 400
    assert b"not an HTTP/1.1 request: Missing mandatory Host: header" in answer


async def test_head_gives_the_head_alone(server: HttpServer) -> None:
    address = await server.start("127.0.0.1", 0)
    head, _, body = (await exchange(address, b"HEAD /page HTTP/1.1\r\nHost: a\r\n\r\n")).partition(
        b"\r\n\r\n"
    )
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Length: 5" in head
    assert body == b""


async def test_a_refused_method_names_those_that_are_served(server: HttpServer) -> None:
    address = await server.start("127.0.0.1", 0)
    answer = await exchange(address, b"POST /page HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}")
    assert b"\r\nAllow: GET, HEAD\r\n" in answer


async def test_broken_page_leaves_the_others_alone(server: HttpServer) -> None:
    address = await server.start("127.0.0.1", 0)
    answer = await exchange(address, b"GET /broken HTTP/1.0\r\n\r\n")
    assert answer.endswith(b"see the log\n")
    assert b"out of order" not in answer
    assert status_of(await exchange(address, GET)) == 200


@pytest.mark.parametrize("first", [b"\x16\x03\x01\x02\x00\x01", b"\x00", b"\r\n\r\n"])
async def test_invalid_http_request_is_answered_with_400_at_once(server: HttpServer, first: bytes) -> None:
    address = await server.start("127.0.0.1", 0)
    assert status_of(await exchange(address, first)) == 400


async def test_only_one_request_feed(server: HttpServer) -> None:
    address = await server.start("127.0.0.1", 0)
    assert (await exchange(address, GET + GET)).count(b"HTTP/1.1 200") == 1


async def test_large_page_arrives_whole(server: HttpServer) -> None:
    address = await server.start("127.0.0.1", 0)
    answer = await exchange(address, b"GET /big HTTP/1.0\r\n\r\n")
    assert answer.endswith(b"\r\n\r\n" + BIG)


async def test_huge_head_is_refused(server: HttpServer) -> None:
    address = await server.start("127.0.0.1", 0)
    head = b"GET /page HTTP/1.1\r\nA: "
    assert status_of(await exchange(address, head + b"a" * (8193 - len(head)))) == 431


async def test_connection_too_many_is_closed(server: HttpServer) -> None:
    address = await server.start("127.0.0.1", 0)
    idle = [await asyncio.open_connection(*address) for _ in range(2)]
    await until_count(server, 2)
    reader, writer = await asyncio.open_connection(*address)
    try:
        assert await reader.read() == b""
    except ConnectionError:
        pass
    writer.close()
    for _, idle_writer in idle:
        idle_writer.close()
    await until_count(server, 0)
    assert status_of(await exchange(address, GET)) == 200


async def test_peer_that_goes_away_leaves_nothing(server: HttpServer) -> None:
    address = await server.start("127.0.0.1", 0)
    for piece in (b"", b"GET /page HT"):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(piece)
        writer.write_eof()
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""
        writer.close()
    await until_count(server, 0)


async def test_stopping_cuts_off_whoever_is_connected(server: HttpServer) -> None:
    address = await server.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"GET /pa")
    await until_count(server, 1)
    async with asyncio.timeout(PATIENCE_S):
        await server.stop()
        try:
            assert await reader.read() == b""
        except ConnectionError:
            pass
    writer.close()
    with pytest.raises(OSError):  # noqa: PT011  # the errno differs
        await asyncio.open_connection(*address)


# Over time.


async def slow_peer(server: HttpServer, network: MemoryNetwork, clock: ManualClock) -> asyncio.Transport:
    address = await server.start("127.0.0.1", 0)
    transport = await network.connect(*address, asyncio.Protocol, 1.0)
    await clock.pass_time(0)
    return transport


async def test_slow_loris_is_cut_off() -> None:
    clock = ManualClock()
    network = MemoryNetwork(clock)
    server = HttpServer(PAGES, network=network, clock=clock)
    transport = await slow_peer(server, network, clock)
    for byte in b"GET /page":
        assert server.connection_count == 1
        transport.write(bytes((byte,)))
        await clock.pass_time(1.0)
    await clock.pass_time(1.1)
    assert server.connection_count == 0
    await server.stop()


async def test_reader_of_nothing_is_cut_off() -> None:
    """A real socket: bytes that the kernel does not accept stay in our buffer until the time is over."""
    server = HttpServer(PAGES, network=TcpNetwork(), clock=LoopClock(), connection_s_max=0.3)
    address = await server.start("127.0.0.1", 0)
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.setblocking(False)
        await asyncio.get_running_loop().sock_connect(peer, address)
        await asyncio.get_running_loop().sock_sendall(peer, b"GET /big HTTP/1.0\r\n\r\n")
        await until_count(server, 1)
        await until_count(server, 0)
    await server.stop()
