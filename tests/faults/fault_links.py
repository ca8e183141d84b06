"""TCP links that can be cut, held and slowed while servers communicate over them.

A link listens on the advertised address of a server and forwards bytes to the address on which it really
listens. All links run in one thread with a loop of its own, so they continue while a test blocks.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tandemmq.runtime.machine import close_server
from waits import PATIENCE_S

T = TypeVar("T")

PIECE_BYTES = 16 * 1024

Pair = tuple[asyncio.StreamWriter, asyncio.StreamWriter]

NameDialler = Callable[[tuple[str, int]], str]
"""Returns the name of the process that dials from an address; "" if it does not matter."""


def _anybody(_source: tuple[str, int]) -> str:
    return ""


class Link:
    """One direction of dialling: `near` is dialled, `far` receives the bytes."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        near: tuple[str, int],
        far: tuple[str, int],
        name_dialler: NameDialler = _anybody,
    ) -> None:
        self._loop = loop
        self._near = near
        self._far = far
        self._name_dialler = name_dialler
        self._server: asyncio.Server | None = None
        self._pairs: set[Pair] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows_of: dict[str, asyncio.Event] = defaultdict(_set_event)
        self._is_cut = False
        self._bytes_per_s: float | None = None
        self.passed_bytes = 0

    # Called from the test's thread.

    def cut(self) -> None:
        """Breaks every connection and every new one, until `heal`."""
        self._do(self._cut())

    def hold(self) -> None:
        """Passes nothing on and breaks nothing, like a network that loses every packet; until `heal`."""
        self._do(self._hold())

    def hold_from(self, dialler: str) -> None:
        """Does the same for connections from this dialler."""
        self._do(self._hold_from(dialler))

    def refuse(self) -> None:
        """Stops listening, as if the process had ended; existing connections stay. Until `heal`."""
        self._do(self._refuse())

    def slow(self, bytes_per_s: float) -> None:
        """Limits the rate in each direction of each connection."""
        self._bytes_per_s = bytes_per_s

    def heal(self) -> None:
        """Removes all faults; held bytes arrive."""
        self._do(self._heal())

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    # Called in the links' thread.

    async def open(self) -> None:
        self._flows.set()
        self._server = await asyncio.start_server(self._on_accepted, *self._near)

    async def _refuse(self) -> None:
        if self._server is None:
            return
        server, self._server = self._server, None
        await close_server(server)
        await _take_turns()  # just accepted connections start, so that they can be ended

    async def _hold_from(self, dialler: str) -> None:
        self._flows_of[dialler].clear()

    async def close(self) -> None:
        await self._refuse()
        await self._cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await _take_turns()  # connections close one turn after they were aborted

    async def _cut(self) -> None:
        self._is_cut = True
        for pair in list(self._pairs):
            _abort(pair)

    async def _hold(self) -> None:
        self._flows.clear()

    async def _heal(self) -> None:
        self._is_cut = False
        self._bytes_per_s = None
        for flows in (self._flows, *self._flows_of.values()):
            flows.set()
        if self._server is None:
            await self.open()

    async def _on_accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        flows = self._flows_of[self._name_dialler(writer.get_extra_info("peername"))]
        await flows.wait()
        await self._flows.wait()
        if self._is_cut:
            return
        far_reader, far_writer = await asyncio.open_connection(*self._far)
        pair = (writer, far_writer)
        self._pairs.add(pair)
        try:
            if self._is_cut:
                return
            ways = [
                asyncio.ensure_future(self._pass(reader, far_writer, flows)),
                asyncio.ensure_future(self._pass(far_reader, writer, flows)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            self._pairs.discard(pair)
            _abort(pair)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flows: asyncio.Event
    ) -> None:
        while data := await reader.read(PIECE_BYTES):
            await flows.wait()
            await self._flows.wait()
            if self._bytes_per_s is not None:
                await asyncio.sleep(len(data) / self._bytes_per_s)
            writer.write(data)
            self.passed_bytes += len(data)
            await writer.drain()
        await writer.drain()


class Links:
    """The thread that serves all links of a cluster."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()
        self._links: list[Link] = []

    def add(self, near: tuple[str, int], far: tuple[str, int], name_dialler: NameDialler = _anybody) -> Link:
        """Opens a link and returns it."""
        link = Link(self._loop, near, far, name_dialler)
        asyncio.run_coroutine_threadsafe(link.open(), self._loop).result(PATIENCE_S)
        self._links.append(link)
        return link

    def close(self) -> None:
        for link in self._links:
            asyncio.run_coroutine_threadsafe(link.close(), self._loop).result(PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _take_turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


def _abort(pair: Pair) -> None:
    for writer in pair:
        writer.transport.abort()
