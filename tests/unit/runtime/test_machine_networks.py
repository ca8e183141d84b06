"""Real and in-memory connections behave alike to a protocol."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

import pytest

from sim.memory import ManualClock, MemoryNetwork
from tandemmq.runtime.machine import LoopClock, TcpNetwork
from tandemmq.runtime.ports import Network
from waits import PATIENCE_S


class Recorder(asyncio.Protocol):
    """A protocol that records its events; `changed` is set at each event."""

    def __init__(self) -> None:
        self.received = b""
        self.lost: list[Exception | None] = []
        self.pauses: list[str] = []
        self.changed = asyncio.Event()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.changed.set()

    def pause_writing(self) -> None:
        self.pauses.append("pause")

    def resume_writing(self) -> None:
        self.pauses.append("resume")
        self.changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


class Pair:
    """A connected pair; `server` is the accepted end."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.client = Recorder()
        self.server = Recorder()

    async def open(self) -> Pair:
        accepted = asyncio.Event()

        def accept() -> Recorder:
            accepted.set()
            return self.server

        self.listener = await self.network.listen("127.0.0.1", 0, accept)
        host, port = self.listener.address
        assert port > 0
        await self.network.connect(host, port, lambda: self.client, PATIENCE_S)
        await accepted.wait()
        return self

    async def close(self) -> None:
        await self.listener.close()
        for end in (self.client, self.server):
            end.transport.abort()
            await end.until(lambda end=end: bool(end.lost))  # type: ignore[misc]  # bound at once


@pytest.fixture(params=["tcp", "memory", "memory with manual clock"])
def network(request: pytest.FixtureRequest) -> Network:
    if request.param == "tcp":
        return TcpNetwork()
    return MemoryNetwork(LoopClock() if request.param == "memory" else ManualClock())


async def test_bytes_travel_both_ways_in_order(network: Network) -> None:
    pair = await Pair(network).open()
    pair.client.transport.write(b"one ")
    pair.client.transport.writelines([b"two ", memoryview(b"three")])
    await pair.server.until(lambda: pair.server.received == b"one two three")
    pair.server.transport.write(b"back")
    await pair.client.until(lambda: pair.client.received == b"back")
    assert pair.client.transport.get_extra_info("peername") == pair.listener.address
    assert pair.server.transport.get_extra_info("sockname") == pair.listener.address
    assert pair.client.transport.get_protocol() is pair.client
    await pair.close()


async def test_close_delivers_what_was_written(network: Network) -> None:
    pair = await Pair(network).open()
    pair.client.transport.write(b"last words")
    pair.client.transport.close()
    pair.client.transport.close()
    await pair.server.until(lambda: bool(pair.server.lost))
    await pair.client.until(lambda: bool(pair.client.lost))
    assert pair.server.received == b"last words"
    assert pair.server.lost == pair.client.lost == [None]
    await pair.close()


async def test_paused_reader_holds_up_its_writer(network: Network) -> None:
    pair = await Pair(network).open()
    pair.client.transport.set_write_buffer_limits(high=100_000, low=1000)
    pair.server.transport.pause_reading()
    sent = 0
    while not pair.client.pauses:
        pair.client.transport.write(bytes(1 << 20))
        sent += 1 << 20
        await asyncio.sleep(0)
        assert sent < 1 << 28
    assert pair.client.transport.get_write_buffer_size() > 100_000
    pair.server.transport.resume_reading()
    await pair.client.until(lambda: pair.client.pauses == ["pause", "resume"])
    await pair.server.until(lambda: len(pair.server.received) == sent)
    await pair.close()


async def test_connecting_to_a_closed_port_is_refused(network: Network) -> None:
    pair = await Pair(network).open()
    await pair.close()
    with pytest.raises(OSError):  # noqa: PT011  # the text is the system's
        await network.connect(*pair.listener.address, Recorder, PATIENCE_S)


async def test_port_in_use_is_an_error(network: Network) -> None:
    pair = await Pair(network).open()
    with pytest.raises(OSError, match="in use"):
        await network.listen(*pair.listener.address, Recorder)
    await pair.close()


async def test_listener_on_any_host_accepts_in_memory() -> None:
    network = MemoryNetwork(LoopClock(), host="10.0.0.9")
    server = Recorder()
    listener = await network.listen("0.0.0.0", 9876, lambda: server)
    client = Recorder()
    await network.connect("10.0.0.1", 9876, lambda: client, PATIENCE_S)
    assert server.transport.get_extra_info("peername")[0] == "10.0.0.9"
    client.transport.close()
    await server.until(lambda: server.lost == [None])
    await listener.close()


async def test_abort_is_seen_by_the_other_end_in_memory() -> None:
    pair = await Pair(MemoryNetwork(LoopClock())).open()
    pair.client.transport.write(b"never arrives")
    pair.client.transport.abort()
    await pair.server.until(lambda: bool(pair.server.lost))
    assert isinstance(pair.server.lost[0], ConnectionResetError)
    assert pair.server.received == b""
    await pair.close()


@pytest.mark.parametrize("turns", range(5))
def test_a_listener_that_closes_leaves_no_connection_without_an_owner(turns: int) -> None:
    """The listener closes just before, while and after a connection is accepted."""

    async def close_while_accepting() -> None:
        accepted: list[Recorder] = []

        def accept() -> Recorder:
            accepted.append(Recorder())
            return accepted[-1]

        listener = await TcpNetwork().listen("127.0.0.1", 0, accept)
        with socket.create_connection(listener.address, PATIENCE_S) as dialled:
            for _ in range(turns):
                await asyncio.sleep(0)
            await listener.close()
            for end in accepted:
                end.transport.abort()
                await end.until(lambda end=end: bool(end.lost))  # type: ignore[misc]  # bound at once
            with contextlib.suppress(ConnectionResetError):  # a connection that was not accepted is refused
                assert dialled.recv(1) == b""

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(close_while_accepting())
