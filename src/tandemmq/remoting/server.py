"""RemotingServer: a listening port, its connections, and their routes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

from tandemmq.errors import Busy
from tandemmq.protocol.command import Command
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.dispatch import Guard, Handler, RequestDispatcher
from tandemmq.remoting.idle import IdleSweep
from tandemmq.remoting.options import ServerOptions
from tandemmq.remoting.rpc_times import MeasuredChannel, RpcTimes
from tandemmq.remoting.shared_bounds import SharedBounds
from tandemmq.remoting.tls import FirstByte, TlsAcceptor
from tandemmq.runtime.ports import Address, Clock, Listener, Network
from tandemmq.runtime.tasks import OnFatal, TaskScope
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

HELD_MAX = 10_000
HELD_BYTES_MAX = 64 << 20


class _Held(dict[int, Handler]):
    """The routes of a paused server: every request waits, in order, up to HELD_MAX and HELD_BYTES_MAX."""

    def __init__(self, earlier: _Held | None) -> None:
        super().__init__()
        self.requests: list[tuple[Channel, Command]] = [] if earlier is None else earlier.requests
        self._bytes: int = 0 if earlier is None else earlier._bytes

    def get(self, _code: int, _default: object = None) -> Handler:
        return self._hold

    def _hold(self, channel: Channel, command: Command) -> None:
        """Queues a request. Raises Busy."""
        self._bytes += len(command.body)
        if len(self.requests) >= HELD_MAX or self._bytes > HELD_BYTES_MAX:
            raise Busy("the broker takes another role, and too many requests wait for it")
        self.requests.append((channel, command))


class RemotingServer:
    """Serves `routes` on one port. `channels` are the open connections, oldest first.

    `on_fatal` is called when a handler fails an assertion or raises a fatal error; the owner must then stop
    the process. Without it the error goes to the event loop and closes that connection.
    """

    def __init__(
        self,
        routes: Mapping[int, Handler],
        *,
        network: Network,
        clock: Clock,
        options: ServerOptions | None = None,
        on_fatal: OnFatal | None = None,
        guard: Guard | None = None,
        tls: TlsAcceptor | None = None,
        shared: SharedBounds | None = None,
    ) -> None:
        """Creates the server.

        With a `tls` that is served, connections may, or must, speak TLS. Servers of one process use the same
        `shared` bounds. A `guard` marks the channels of authenticated peers as known.
        """
        self.options = options or ServerOptions()
        self._shared = shared or SharedBounds(clock)
        self._has_guard = guard is not None
        self.times: RpcTimes | None = None
        """Set before `start` to measure every request."""
        self._network = network
        self._clock = clock
        self._on_fatal = on_fatal
        self._scope = self._make_scope()
        self._held: _Held | None = None
        self._dispatcher = RequestDispatcher(
            routes,
            self._scope,
            tasks_max=self.options.limits.tasks_max,
            on_fatal=on_fatal,
            guard=guard,
        )
        self._tls = tls if tls is not None and tls.options.is_served else None
        self._listener: Listener | None = None
        self._undecided: dict[FirstByte, None] = {}
        self._channels: dict[Channel, None] = {}
        self.refused_count = 0
        """The number of connections refused since the start because of the limit."""
        self._none_left = asyncio.Event()
        self._idle = IdleSweep(clock, self._channels, self.options.idle_close_s)

    @property
    def channels(self) -> list[Channel]:
        return list(self._channels)

    @property
    def address(self) -> Address:
        """The listening address. Only between `start` and `stop`."""
        assert self._listener is not None, "the server does not run"
        return self._listener.address

    async def start(self, host: str, port: int) -> Address:
        """Starts listening and returns the bound address; port 0 picks a free one. Raises OSError if binding
        fails.
        """
        assert self._listener is None, "the server runs already"
        self._listener = await self._network.listen(host, port, self._accept)
        self._idle.start()
        log.info(events.REMOTING_STARTED, extra={"address": self._listener.address})
        return self._listener.address

    async def stop(self) -> None:
        """Closes the port, ends running handlers, sends queued replies and closes every connection."""
        if self._listener is not None:
            await self._listener.close()
            self._listener = None
        self._idle.stop()
        await self._scope.close()
        for connection in list(self._undecided):
            connection.abort()
        for channel in self.channels:
            channel.close("the server stops")
        if self._channels:
            await self._none_left.wait()  # each is gone within close_linger_s

    async def pause(self, keeps: Callable[[Channel], bool]) -> None:
        """Ends running handlers and keeps the port open; new requests wait for `resume`.

        Connections for which `keeps` returns False are closed, and those of ended handlers, because they get
        no answer.
        """
        self._held = _Held(self._held)
        scope, self._scope = self._scope, self._make_scope()
        self._dispatcher.switch(self._held, self._scope)
        for channel in self.channels:
            if channel.tasks_running or not keeps(channel):
                channel.abort("the broker takes another role")
        await scope.close()

    def resume(
        self, routes: Mapping[int, Handler], *, guard: Guard | None = None, tls: TlsAcceptor | None = None
    ) -> None:
        """Serves again from the next turn of the loop on, waiting requests first."""
        assert self._held is not None
        self._has_guard = guard is not None
        self._tls = tls if tls is not None and tls.options.is_served else None
        self._clock.call_soon(self._resume, self._held, routes, guard)

    def _resume(self, held: _Held, routes: Mapping[int, Handler], guard: Guard | None) -> None:
        if self._held is not held:
            return  # it was paused again
        self._held = None
        self._dispatcher.switch(routes, self._scope, guard=guard)
        for channel, command in held.requests:
            self.serve(channel, command)

    def serve(self, channel: Channel, command: Command) -> None:
        """Handles a request that has waited, unless its peer has disconnected."""
        if not channel.is_closed:
            self._dispatcher.dispatch(channel, command)

    def _make_scope(self) -> TaskScope:
        on_fatal = self._on_fatal
        return TaskScope("server", None if on_fatal is None else lambda _, error: on_fatal(error))

    def _accept(self) -> asyncio.Protocol:
        if self._tls is None:
            return self._make_channel()
        return FirstByte(
            self._tls, self._make_channel, on_made=self._on_undecided, on_decided=self._forget_undecided
        )

    def _make_channel(self) -> Channel:
        dispatcher, times = self._dispatcher, self.times
        kind: Callable[..., Channel] = Channel if times is None else partial(MeasuredChannel, times=times)
        return kind(
            dispatcher.dispatch,
            on_block=dispatcher.dispatch_block,
            clock=self._clock,
            limits=self.options.limits,
            on_connected=self._on_connected,
            shared=self._shared,
            is_known=not self._has_guard,
        )

    def _on_connected(self, channel: Channel) -> None:
        if not self._admit(channel.peer):
            channel.abort("too many connections")
            return
        self._channels[channel] = None
        if not channel.is_known:
            self._shared.unknown_channels[channel] = None
        self._none_left.clear()
        channel.on_close.append(self._forget)

    def _on_undecided(self, connection: FirstByte) -> None:
        if self._admit(connection.peer):
            self._undecided[connection] = None
        else:
            connection.abort()

    def _admit(self, peer: Address) -> bool:
        """Counts one more connection; returns False if it exceeds the limit.

        At the limit it replaces the oldest connection of an unknown peer.
        """
        shared = self._shared
        has_room = shared.connection_count < shared.connections_max
        unknown_peer = None if has_room else next(iter(shared.unknown_channels), None)
        if unknown_peer is not None:
            del shared.unknown_channels[unknown_peer]
            unknown_peer.abort("replaced by a new connection: the peer has not identified itself")
        is_admitted = self._listener is not None and (has_room or unknown_peer is not None)
        shared.connection_count += is_admitted
        if is_admitted and has_room:
            return True
        self.refused_count += 1
        admitted = shared.lines.admit()
        if admitted is not None:
            log.warning(
                events.CHANNEL_REFUSED,
                extra={"peer": peer, "connections_max": shared.connections_max, **admitted},
            )
        return is_admitted

    def _forget_undecided(self, connection: FirstByte) -> None:
        if connection in self._undecided:
            del self._undecided[connection]
            self._shared.connection_count -= 1

    def _forget(self, channel: Channel) -> None:
        if channel in self._channels:
            del self._channels[channel]
            self._shared.unknown_channels.pop(channel, None)
            self._shared.connection_count -= 1
        if not self._channels:
            self._none_left.set()
