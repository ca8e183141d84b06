"""The connections of an HTTP server: bounded in number, and closed if their peer is silent or slow.

Uvicorn waits for the first request of a connection without limit, and refuses all requests once as many
connections are open as may run requests: a stranger with silent connections would lock out the operators.

Invariants: a connection whose request is running is never closed here.
Strategy: a connection waits for its peer while no complete request has arrived, or while its answer is not
          read. `sweep` closes those that have waited for WAIT_S_MAX.
At a bound: with `count_max` connections open, the one that has waited longest is closed for each new one; so
            silent strangers displace each other, while a request arrives at once and cannot be displaced.
            TLS handshakes count.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import Any, Final, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

from tandemmq.remoting.tls import TlsConnection
from tandemmq.runtime.ports import Clock

WAIT_S_MAX: Final = 30.0
"""The longest wait for the handshake and a complete request, for the next request, or for progress of an
answer that is not read.
"""


@dataclass(slots=True)
class _Peer:
    wire: asyncio.Transport
    since_s: float
    unread_bytes: int = 0


class ConnectionTable:
    """The open connections of one server."""

    def __init__(self, count_max: int, clock: Clock) -> None:
        self.clock = clock
        self._count_max = count_max
        self._peers: dict[WebConnection, _Peer] = {}

    def open(self, connection: WebConnection, wire: asyncio.Transport) -> None:
        """Adds a connection, which is known already if it has ended its TLS handshake."""
        if connection in self._peers:
            return
        while len(self._peers) >= self._count_max and (waiting := self._waiting()):
            self._close(min(waiting, key=lambda one: self._peers[one].since_s))
        self._peers[connection] = _Peer(wire, self.clock.monotonic())

    def touch(self, connection: WebConnection) -> None:
        """Notes progress of a connection: an answer has ended, or is read."""
        if peer := self._peers.get(connection):
            peer.since_s = self.clock.monotonic()

    def drop(self, connection: WebConnection) -> None:
        """Forgets a connection that is closed."""
        self._peers.pop(connection, None)

    def sweep(self) -> None:
        """Closes the connections that have waited too long for their peers."""
        now = self.clock.monotonic()
        for connection in self._waiting():
            peer = self._peers[connection]
            unread, peer.unread_bytes = peer.unread_bytes, peer.wire.get_write_buffer_size()
            if peer.unread_bytes < unread:
                peer.since_s = now
            elif now - peer.since_s >= WAIT_S_MAX:
                self._close(connection)

    def close_waiting(self) -> None:
        """Closes all connections that wait for their peers, so that a server can end at once."""
        for connection in self._waiting():
            self._close(connection)

    def _waiting(self) -> list[WebConnection]:
        return [one for one in self._peers if one.waits_for_peer]

    def _close(self, connection: WebConnection) -> None:
        # Until its end is reported, Uvicorn would count the connection and answer others with 503.
        connection.connections.discard(connection)
        self._peers.pop(connection).wire.abort()


class WebConnection(H11Protocol):
    """A connection of Uvicorn that is in the table."""

    def __init__(self, table: ConnectionTable, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._table = table

    @property
    def waits_for_peer(self) -> bool:
        """True while no request runs, or the peer does not read its answer."""
        cycle = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body or self.flow.write_paused

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        wire = cast(asyncio.Transport, transport)
        self._table.open(self, wire)
        super().connection_made(wire)
        if wire.get_extra_info("ssl_object") is not None:
            self.scheme = "https"

    def connection_lost(self, exc: Exception | None) -> None:
        self._table.drop(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        self._table.touch(self)
        super().pause_writing()

    def on_response_complete(self) -> None:
        self._table.touch(self)
        super().on_response_complete()


class WebTlsConnection(TlsConnection):
    """The TLS below a connection. It is in the table from its first byte on."""

    def __init__(self, table: ConnectionTable, context: ssl.SSLContext, above: WebConnection) -> None:
        super().__init__(context, lambda: above, clock=table.clock, on_outcome=lambda _: None)
        self._table = table
        self._above = above

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._table.open(self._above, cast(asyncio.Transport, transport))
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._table.drop(self._above)
        super().connection_lost(exc)
