"""RemotingClient: one connection per address, opened on first use and reopened after a failure."""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
from collections.abc import Callable, Mapping

from tandemmq.errors import BrokerUnreachable, ConfigError, RequestTimeout
from tandemmq.protocol.command import Command
from tandemmq.remoting.channel import Channel, Signer
from tandemmq.remoting.dispatch import Handler, RequestDispatcher
from tandemmq.remoting.idle import IdleSweep
from tandemmq.remoting.options import ConnectionOptions, parse_address
from tandemmq.remoting.tls import TlsConnection
from tandemmq.runtime.ports import Clock, Network
from tandemmq.runtime.tasks import OnFatal, TaskScope


class RemotingClient:
    """Calls peers by their address `host:port`; requests pushed by peers are dispatched to `routes`."""

    def __init__(
        self,
        *,
        network: Network,
        clock: Clock,
        options: ConnectionOptions | None = None,
        routes: Mapping[int, Handler] | None = None,
        on_fatal: OnFatal | None = None,
        signer: Signer | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.options = options or ConnectionOptions()
        self._network = network
        self._signer = signer
        self._tls = tls
        self._clock = clock
        self._scope = TaskScope("client", None if on_fatal is None else lambda _, error: on_fatal(error))
        self._dispatcher = RequestDispatcher(
            routes or {}, self._scope, tasks_max=self.options.limits.tasks_max, on_fatal=on_fatal
        )
        self._channels: dict[str, Channel] = {}
        self._alive: dict[Channel, str] = {}
        self._connecting: dict[str, asyncio.Task[Channel | BrokerUnreachable]] = {}
        self._idle = IdleSweep(clock, self._alive, self.options.idle_close_s)
        self._none_left = asyncio.Event()
        self._is_closed = False
        self.on_open: Callable[[str], object] | None = None
        self.on_lost: Callable[[str], object] | None = None
        """The functions to call with the address of a connection that was opened, or lost without a `close`
        of this client.
        """

    @property
    def is_signing(self) -> bool:
        """True if requests are signed."""
        return self._signer is not None

    def open_channel(self, address: str) -> Channel | None:
        """Returns the open connection to `address`; None without one."""
        channel = self._channels.get(address)
        return None if channel is None or channel.is_closed else channel

    async def channel(self, address: str, timeout_s: float | None = None) -> Channel:
        """Returns the connection to `address`, opened if needed; concurrent callers share one attempt.

        Raises:  BrokerUnreachable when it cannot be opened within the connect timeout, or `timeout_s` if
                 shorter.
        """
        channel = self._channels.get(address)
        if channel is not None and not channel.is_closed:
            return channel
        if self._is_closed:
            raise BrokerUnreachable("the client is closed")
        attempt = self._connecting.get(address)
        if attempt is None:
            attempt = self._scope.start(f"connect-{address}", self._connect(address))
            self._connecting[address] = attempt
        await self._wait(attempt, timeout_s)
        if not attempt.done() or attempt.cancelled():
            raise BrokerUnreachable(f"no connection to {address} in time")
        result = attempt.result()
        if isinstance(result, BrokerUnreachable):
            raise result
        return result

    async def request(self, address: str, command: Command, timeout_s: float) -> Command:
        """Sends a request and returns the response, whatever its code; connecting counts towards `timeout_s`.

        Raises:  BrokerUnreachable, RequestTimeout, and what `Channel.start_request` raises.
        """
        deadline = self._clock.monotonic() + timeout_s
        channel = self.open_channel(address)
        if channel is None:
            channel = await self.channel(address, timeout_s)
        sent_at = self._clock.monotonic()
        try:
            return await channel.request(command, max(0.0, deadline - sent_at))
        except RequestTimeout:
            silent_s = self._clock.monotonic() - max(sent_at, channel.last_read_at)
            if silent_s >= self.options.silent_close_s:
                # The peer's machine is probably down; otherwise every request would time out for minutes.
                channel.abort(f"silent for {silent_s:.0f} s")
            raise

    async def send_oneway(self, address: str, command: Command) -> None:
        """Queues a request without answer; it may be lost without notice. Raises BrokerUnreachable."""
        (await self.channel(address)).send(command)

    async def close(self) -> None:
        """Ends running handlers and connection attempts, sends queued bytes, closes every connection."""
        self._is_closed = True
        self._idle.stop()
        try:
            await self._scope.close()
        finally:
            for channel in list(self._alive):
                channel.close("the client closes")
        if self._alive:
            await self._none_left.wait()  # each is gone within close_linger_s

    async def _connect(self, address: str) -> Channel | BrokerUnreachable:
        def make_channel() -> Channel:
            return Channel(
                self._dispatcher.dispatch,
                clock=self._clock,
                limits=self.options.limits,
                signer=self._signer,
            )

        try:
            host, port = parse_address(address)
            if self._tls is not None:
                channel = await self._connect_tls(self._tls, host, port, make_channel)
            else:
                timeout_s = self.options.connect_timeout_s
                transport = await self._network.connect(host, port, make_channel, timeout_s)
                channel = transport.get_protocol()
        except (OSError, ConfigError) as error:
            return BrokerUnreachable(f"cannot connect to {address}: {_reason(error)}")
        finally:
            self._connecting.pop(address, None)
        assert isinstance(channel, Channel)
        if channel.is_closed:
            return BrokerUnreachable(f"{address} closed the connection at once")
        self._add(address, channel)
        return channel

    async def _connect_tls(
        self, context: ssl.SSLContext, host: str, port: int, make_channel: Callable[[], Channel]
    ) -> asyncio.BaseProtocol | None:
        """Connects with TLS. Raises OSError if the peer speaks no TLS or fails verification."""
        outcome: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()

        def on_outcome(error: OSError | None) -> None:
            if not outcome.done():
                outcome.set_result(error)

        connection = TlsConnection(
            context,
            make_channel,
            clock=self._clock,
            on_outcome=on_outcome,
            server_name=host,
            handshake_s=self.options.connect_timeout_s,
        )
        try:
            await self._network.connect(host, port, lambda: connection, self.options.connect_timeout_s)
            error = await outcome
        except BaseException:
            connection.abort()
            raise
        if error is not None:
            raise error
        return connection.upper

    async def _wait(
        self, attempt: asyncio.Task[Channel | BrokerUnreachable], timeout_s: float | None
    ) -> None:
        """Waits until the attempt or the time is over; a caller that gives up does not end the shared
        attempt.
        """
        is_over = asyncio.Event()
        attempt.add_done_callback(lambda _: is_over.set())
        timer = None if timeout_s is None else self._clock.call_later(timeout_s, is_over.set)
        try:
            await is_over.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _add(self, address: str, channel: Channel) -> None:
        if not self._alive:
            self._idle.start()
            self._none_left.clear()
        self._channels[address] = channel
        self._alive[channel] = address
        channel.on_close.append(self._forget)
        if self.on_open is not None:
            self.on_open(address)

    def _forget(self, channel: Channel) -> None:
        address = self._alive.pop(channel)
        if self._channels.get(address) is channel:
            del self._channels[address]
            if self.on_lost is not None and not channel.was_closed_here:
                self.on_lost(address)
        if not self._alive:
            self._idle.stop()
            self._none_left.set()


def _reason(error: Exception) -> str:
    """Returns the error in words, without the number and the address that event loops add."""
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        if error.errno is not None and error.errno in errno.errorcode:
            return os.strerror(error.errno)
        if error.strerror:
            return error.strerror
    return str(error) or type(error).__name__
