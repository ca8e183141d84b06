"""A listening port whose connections are passed to workers; here both sides are in one process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from tandemmq.runtime.ports import Listener
from tandemmq.runtime.shared_port import SharedPort, WorkerNetwork, ask_to_end
from waits import PATIENCE_S, until

HOST = "127.0.0.1"


class Echo(asyncio.Protocol):
    """Answers with the name of its worker."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.worker.made.append(self)
        self.peer = transport.get_extra_info("peername")
        self.no_delay = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        transport.write(self.worker.name)  # type: ignore[attr-defined]  # uvloop's is not a subclass
        transport.close()


@dataclass
class Worker:
    """A worker whose process is this one."""

    name: bytes
    ours: socket.socket
    network: WorkerNetwork
    listener: Listener | None = None
    made: list[Echo] = field(default_factory=list)
    made_at_end: list[tuple[int, bool]] = field(default_factory=list)


@contextlib.asynccontextmanager
async def running_port(*names: bytes, port: int = 0) -> AsyncIterator[tuple[SharedPort, list[Worker]]]:
    """A port with a worker for each name, before it listens."""
    shared = SharedPort(HOST, port)
    workers: list[Worker] = []
    pairs: list[socket.socket] = []
    for name in names:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        pairs += [ours, theirs]
        worker = Worker(
            name,
            ours,
            WorkerNetwork(theirs, shared.address, lambda is_orphan, at=len(workers): end(at, is_orphan)),
        )  # type: ignore[misc]
        workers.append(worker)

    def end(at: int, is_orphan: bool) -> None:
        workers[at].made_at_end.append((len(workers[at].made), is_orphan))

    loop = asyncio.get_running_loop()
    try:
        for worker in workers:
            worker.listener = await worker.network.listen(*shared.address, lambda one=worker: Echo(one))  # type: ignore[misc]
            assert worker.listener.address == shared.address
            shared.add(worker.ours)
        yield shared, workers
    finally:
        shared.close()
        for pair in pairs:
            with contextlib.suppress(ValueError):
                loop.remove_reader(pair)
            pair.close()


async def call(shared: SharedPort) -> bytes:
    """Returns the name of the worker that answers a new connection."""
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection(*shared.address)
        try:
            return await reader.read()
        finally:
            writer.close()


async def test_connections_go_to_the_workers_in_turn() -> None:
    async with running_port(b"one", b"two") as (shared, workers):
        shared.listen()
        answers = [await call(shared) for _ in range(6)]
        assert answers == [b"one", b"two"] * 3
        made = workers[0].made[0]
        assert made.peer[0] == HOST
        assert made.no_delay


async def test_the_port_refuses_until_it_listens_and_after_it_is_closed() -> None:
    async with running_port(b"one") as (shared, _):
        with pytest.raises(ConnectionRefusedError):
            await call(shared)
        shared.listen()
        assert await call(shared) == b"one"
        shared.close()
        with pytest.raises(ConnectionRefusedError):
            await call(shared)


async def test_a_worker_that_ended_or_takes_no_more_gets_no_connections() -> None:
    async with running_port(b"one", b"two", b"three") as (shared, workers):
        shared.listen()
        asyncio.get_running_loop().remove_reader(workers[0].network._pair)
        workers[0].network._pair.close()
        listener = workers[1].listener
        assert listener is not None
        await listener.close()
        assert [await call(shared) for _ in range(3)] == [b"three"] * 3
        shared.remove(workers[2].ours)
        with contextlib.suppress(ConnectionResetError):
            assert await call(shared) == b"", "no worker is left, so the connection is closed"


async def test_the_connections_before_the_end_are_made_before_it() -> None:
    async with running_port(b"one") as (shared, [worker]):
        shared.listen()
        clients = []
        for _ in range(5):  # the kernel accepts them, and the parent has not noticed
            client = socket.socket()
            client.connect(shared.address)
            clients.append(client)
        shared.close()
        assert ask_to_end(worker.ours)
        await until(lambda: worker.made_at_end, "the worker is asked to end")
        assert worker.made_at_end == [(5, False)]
        for client in clients:
            client.close()


async def test_a_worker_is_asked_to_end_and_notices_the_end_of_its_parent() -> None:
    async with running_port(b"one") as (_, [worker]):
        assert worker.listener is not None
        assert ask_to_end(worker.ours)
        await until(lambda: worker.made_at_end, "the worker is asked to end")
        await worker.listener.close()
        worker.ours.close()
        await until(lambda: len(worker.made_at_end) == 2, "the parent has ended")
        assert worker.made_at_end == [(0, False), (0, True)]
        assert not ask_to_end(worker.ours)


async def test_another_address_is_the_machines() -> None:
    async with running_port(b"one") as (shared, [worker]):
        other = await worker.network.listen(HOST, 0, lambda: Echo(worker))
        assert other.address != shared.address
        await other.close()


async def test_a_port_in_use_is_an_error() -> None:
    async with running_port(b"one") as (shared, _):
        shared.listen()
        with pytest.raises(OSError, match="in use"):
            SharedPort(*shared.address)
