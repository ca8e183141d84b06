"""`GrpcServer`: the listening port of the gRPC proxy, its connections and their calls.

TLS and plaintext share the port: the first byte decides (`remoting.tls`).
At a bound: an excess connection is closed at once (`grpc_connection.refused`).
Source:     spec proxy 1.2, 7.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from tandemmq.proxy.grpc_connection import GrpcConnection, GrpcContext
from tandemmq.proxy.grpc_limits import Deadlines, GrpcLimits, SharedCalls
from tandemmq.proxy.limited_lines import LimitedLines
from tandemmq.proxy.meters import CallMeter
from tandemmq.proxy.proxy_preamble import PreambleReader
from tandemmq.proxy.rpc import Method
from tandemmq.remoting.tls import FirstByte, TlsAcceptor
from tandemmq.runtime.ports import Address, Clock, Listener, Network, TimerHandle
from tandemmq.runtime.tasks import OnFatal, TaskScope, TimedEvent
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

SWEEP_S: Final = 5.0
"""The time by which a time limit of a connection may be checked too late."""
CLOSE_LINGER_S: Final = 5.0
"""The time that connections have to send the rest when the server stops."""
ALPN: Final = ("h2",)
"""The protocols that the TLS of the server must offer (spec proxy 1.2)."""


class GrpcServer:
    """Serves `methods` on one port. A server starts once.

    `on_fatal` is called with a bug of the server itself; the owner must then stop the process. Failures of
    handlers never get there.
    """

    def __init__(
        self,
        network: Network,
        clock: Clock,
        *,
        methods: Iterable[Method],
        tls: TlsAcceptor | None = None,
        limits: GrpcLimits | None = None,
        on_fatal: OnFatal | None = None,
        balancers: Iterable[str] = (),
    ) -> None:
        """Creates the server. Connections from the addresses in `balancers` may begin with the PROXY
        protocol.
        """
        self.limits = limits or GrpcLimits()
        self.shared = SharedCalls(LimitedLines(clock), self.limits)
        self.refused_count = 0
        """The number of connections refused since the start because of the limit."""
        served = {method.path: method for method in methods}
        self.meter = CallMeter(served.values())
        self._network = network
        self._clock = clock
        self._tls = tls if tls is not None and tls.options.is_served else None
        self._tasks = TaskScope("grpc", None if on_fatal is None else lambda _, error: on_fatal(error))
        self._deadlines = Deadlines(clock)
        self._context = GrpcContext(
            clock=clock,
            limits=self.limits,
            shared=self.shared,
            deadlines=self._deadlines,
            tasks=self._tasks,
            methods=served,
            meter=self.meter,
            on_connected=self._on_connected,
            on_lost=self._on_lost,
        )
        self._balancers = frozenset(balancers)
        self._listener: Listener | None = None
        self._sweep_timer: TimerHandle | None = None
        self._undecided: dict[FirstByte | PreambleReader, None] = {}
        self._connections: dict[GrpcConnection, None] = {}
        self._connection_lost = TimedEvent(clock)

    @property
    def connection_count(self) -> int:
        """The number of open connections, with those whose protocol is not known yet."""
        return len(self._connections) + len(self._undecided)

    @property
    def address(self) -> Address:
        """The listening address. Only between `start`, and `drain` or `stop`."""
        assert self._listener is not None, "the server does not run"
        return self._listener.address

    async def start(self, host: str, port: int) -> Address:
        """Starts listening and returns the bound address; port 0 picks a free one. Raises OSError if binding
        fails.
        """
        assert self._listener is None, "the server runs already"
        self._listener = await self._network.listen(host, port, self._accept)
        self._sweep()
        log.info(events.GRPC_STARTED, extra={"address": self._listener.address})
        return self._listener.address

    async def drain(self, grace_s: float) -> None:
        """Closes the port and returns when all calls have ended, at the latest after `grace_s`. Clients are
        asked to call elsewhere; calls that they sent before they knew are served.
        """
        await self._close_listener()
        for connection in list(self._connections):
            connection.drain()
        await self._wait_for_connections(grace_s)

    async def stop(self) -> None:
        """Closes the port, answers running calls with UNAVAILABLE, ends their handlers, and closes every
        connection.
        """
        await self._close_listener()
        for undecided in list(self._undecided):
            undecided.abort()
        for connection in list(self._connections):
            connection.stop()
        await self._tasks.close()
        await self._wait_for_connections(CLOSE_LINGER_S)
        for connection in list(self._connections):
            connection.abort()
        self._deadlines.stop()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None

    async def _close_listener(self) -> None:
        if self._listener is not None:
            listener, self._listener = self._listener, None
            await listener.close()

    async def _wait_for_connections(self, time_s: float) -> None:
        """Returns when no connection is left, or after `time_s`."""
        ends_at_s = self._clock.monotonic() + time_s
        while self._connections:
            left_s = ends_at_s - self._clock.monotonic()
            if left_s <= 0:
                return
            self._connection_lost.clear()
            await self._connection_lost.wait(left_s)

    def _accept(self) -> asyncio.Protocol:
        if not self._balancers:
            return self._make_connection(None)
        reader = PreambleReader(
            self._balancers,
            self._make_connection,
            clock=self._clock,
            time_s=self.limits.preface_s,
            on_decided=self._on_preamble,
        )
        self._undecided[reader] = None
        return reader

    def _on_preamble(self, reader: PreambleReader, reason: str) -> None:
        self._undecided.pop(reader, None)
        if reason:
            facts = {"peer": reader.peer, "reason": reason}
            self.shared.lines.write(log, events.GRPC_PREAMBLE_REFUSED, facts)

    def _make_connection(self, source: Address | None) -> asyncio.Protocol:
        if self._tls is None:
            return GrpcConnection(self._context, source)
        return FirstByte(
            self._tls,
            lambda: GrpcConnection(self._context, source),
            on_made=self._on_undecided,
            on_decided=lambda connection: self._undecided.pop(connection, None),
            first_byte_s=self.limits.preface_s,
        )

    def _on_undecided(self, connection: FirstByte) -> None:
        if self._admit(connection.peer, self.connection_count):
            self._undecided[connection] = None
        else:
            connection.abort()

    def _on_connected(self, connection: GrpcConnection) -> bool:
        # One behind TLS was admitted before its handshake, and counts there until it is registered here.
        if not self._admit(connection.peer, len(self._connections)):
            return False
        self._connections[connection] = None
        return True

    def _admit(self, peer: Address, count: int) -> bool:
        if self._listener is None:
            return False
        if count < self.limits.connections_max:
            return True
        self.refused_count += 1
        facts = {"peer": peer, "connections_max": self.limits.connections_max}
        self.shared.lines.write(log, events.GRPC_CONNECTION_REFUSED, facts)
        return False

    def _on_lost(self, connection: GrpcConnection) -> None:
        if connection in self._connections:
            del self._connections[connection]
            self._connection_lost.set()

    def _sweep(self) -> None:
        self._sweep_timer = self._clock.call_later(SWEEP_S, self._sweep)
        now_s = self._clock.monotonic()
        for connection in list(self._connections):
            connection.sweep(now_s)
