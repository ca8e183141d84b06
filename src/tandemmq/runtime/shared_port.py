"""One listening port for several processes: the parent accepts connections and passes them to its workers in
turn (`SharedPort`); a worker gets them as if it had accepted them (`WorkerNetwork`).

Connections that last for hours must be spread evenly. Processes that accept from one socket do not do that:
the one that waits first gets nearly all. With SO_REUSEPORT the kernel spreads them by chance, resets those
that it has queued for a process that ends, and lets an unrelated process share the port unnoticed.

Invariants: a worker that is asked to end gets its last connections first; connections that the kernel has
            accepted by then are among them.
Strategy:   a pair of Unix sockets for each worker. The parent sends CONNECTION with a descriptor, and END;
            the worker sends CLOSED when it takes no more connections. The end of the pair is the end of the
            other process.
At a bound: a worker that does not read gets no connections once its pair is full; a connection that no worker
            takes is closed (`shared_port.refused`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from tandemmq.runtime.machine import BACKLOG, TcpNetwork
from tandemmq.runtime.ports import Address, Listener, ProtocolFactory
from tandemmq.runtime.tasks import TaskScope
from tandemmq.telemetry import events
from tandemmq.telemetry.log_lines import Outages

log = logging.getLogger(__name__)

CONNECTION: Final = b"c"
END: Final = b"e"
CLOSED: Final = b"x"
ACCEPT_PAUSE_S: Final = 1.0
"""The pause after an error of accepting, such as no free descriptors."""
ACCEPTS_MAX: Final = 64
"""The connections that are accepted in one turn of the loop."""


class SharedPort:
    """The parent's side: the listening socket, and the workers that get its connections."""

    def __init__(self, host: str, port: int) -> None:
        """Binds the port, which refuses connections until `listen`; port 0 picks a free one.

        Raises:  OSError when it cannot be bound.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family)
        try:
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            self._socket.bind((host, port))
        except OSError:
            self._socket.close()
            raise
        found = self._socket.getsockname()
        self.address: Address = (str(found[0]), int(found[1]))
        self._workers: deque[socket.socket] = deque()
        self._is_listening = False
        self._outages = Outages()

    def listen(self) -> None:
        """Starts listening. Raises OSError if another program has taken the port."""
        self._socket.listen(BACKLOG)
        self._is_listening = True
        self._accept_more()

    def add(self, pair: socket.socket) -> None:
        """Adds a worker, by the parent's end of its pair, which does not block."""
        self._workers.append(pair)

    def remove(self, pair: socket.socket) -> None:
        """Removes a worker, if it is known."""
        if pair in self._workers:
            self._workers.remove(pair)

    def close(self) -> None:
        """Passes the connections that the kernel has accepted, and closes the port."""
        if self._is_listening:
            self._is_listening = False
            asyncio.get_running_loop().remove_reader(self._socket)
            with suppress(OSError):
                while self._pass_next():
                    pass
        self._socket.close()

    def _accept_more(self) -> None:
        if self._is_listening:
            asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            for _ in range(ACCEPTS_MAX):
                if not self._pass_next():
                    break
        except OSError as error:
            facts = {"address": self.address, "error": error.strerror}
            self._outages.record_failure(log, events.SHARED_PORT_FAILED, "", facts)
            loop.remove_reader(self._socket)
            loop.call_later(ACCEPT_PAUSE_S, self._accept_more)
        else:
            self._outages.record_success(events.SHARED_PORT_FAILED, "")

    def _pass_next(self) -> bool:
        """Passes one connection to a worker. Returns False if none waits. Raises OSError."""
        try:
            connection, peer = self._socket.accept()
        except BlockingIOError:
            return False
        except ConnectionAbortedError:
            return True
        with connection:
            for _ in range(len(self._workers)):
                pair = self._workers[0]
                self._workers.rotate(-1)
                if _takes_connections(pair):
                    try:
                        socket.send_fds(pair, [CONNECTION], [connection.fileno()])
                    except OSError:
                        continue  # it has ended, or does not read
                    self._outages.record_success(events.SHARED_PORT_REFUSED, "")
                    return True
        self._outages.record_failure(log, events.SHARED_PORT_REFUSED, "", {"peer": peer[:2]})
        return True


def _takes_connections(pair: socket.socket) -> bool:
    """Returns False if a worker has sent CLOSED or has ended."""
    try:
        pair.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def ask_to_end(pair: socket.socket) -> bool:
    """Asks a worker to end after the connections that were passed to it. Returns False if it does not
    read.
    """
    try:
        return pair.send(END) == 1
    except OSError:
        return False


class WorkerNetwork:
    """The network of a worker: at the address of the shared port, `listen` accepts the parent's
    connections.
    """

    def __init__(self, pair: socket.socket, address: Address, on_end: Callable[[bool], object]) -> None:
        """Creates the network. `on_end` is called when the parent asks the worker to end, and with True when
        the parent has ended.
        """
        self._network = TcpNetwork()
        self._pair = pair
        self._address = address
        self._on_end = on_end
        self._factory: ProtocolFactory | None = None
        self._is_asked = False
        self._tasks = TaskScope("shared port")
        self._connecting: set[asyncio.Task[None]] = set()

    async def listen(self, host: str, port: int, protocol_factory: ProtocolFactory) -> Listener:
        if (host, port) != self._address:
            return await self._network.listen(host, port, protocol_factory)
        self._factory = protocol_factory
        self._pair.setblocking(False)
        asyncio.get_running_loop().add_reader(self._pair, self._read)
        return _PassedConnections(self._address, self._close)

    async def connect(
        self, host: str, port: int, protocol_factory: ProtocolFactory, timeout_s: float
    ) -> asyncio.Transport:
        return await self._network.connect(host, port, protocol_factory, timeout_s)

    def _read(self) -> None:
        try:
            # One byte at a time: a byte belongs to one descriptor.
            data, descriptors, _, _ = socket.recv_fds(self._pair, 1, 1)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        for descriptor in descriptors:
            connection = socket.socket(fileno=descriptor)
            connection.setblocking(False)
            connecting = self._tasks.start("connect", self._connect(connection))
            self._connecting.add(connecting)
            connecting.add_done_callback(self._connecting.discard)
        if data == CONNECTION and not descriptors:
            log.warning(events.SHARED_PORT_FAILED, extra={"error": "no descriptor is left"})
        elif not data:
            asyncio.get_running_loop().remove_reader(self._pair)
            self._tasks.start("end", self._end(True))
        elif data == END:
            self._is_asked = True
            self._tasks.start("end", self._end(False))

    async def _connect(self, connection: socket.socket) -> None:
        if self._factory is None:
            connection.close()
            return
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._factory, connection)
        except OSError:
            connection.close()  # the peer has gone

    async def _end(self, is_orphan: bool) -> None:
        """Calls `on_end` once the connections that came before are made."""
        if self._connecting:
            await asyncio.wait(list(self._connecting))
        self._on_end(is_orphan)

    def _close(self) -> None:
        self._factory = None
        if not self._is_asked:
            # A parent that has asked would not read it, and its end would be an error here.
            with suppress(OSError):  # it has ended
                self._pair.send(CLOSED)


class _PassedConnections:
    """The `Listener` of a worker."""

    def __init__(self, address: Address, close: Callable[[], object]) -> None:
        self.address = address
        self._close = close

    async def close(self) -> None:
        self._close()
