"""A gRPC client of a simulated process: connections, unary calls, and streams that may be read slowly or
cancelled.

Knows not: what the calls mean.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from hyperframe.frame import DataFrame, Frame, GoAwayFrame

from tandemmq.proxy.rpc import SERVICE
from tandemmq.runtime.ports import Address, Clock, Network

FRAME_HEAD_BYTES = 9
PREFIX_BYTES = 5
CONNECT_S = 3.0


class CallFailed(Exception):
    """A call ended without its answer: the connection was lost, its time is over, or its status is not OK."""


class GrpcCall:
    """One call. `late` holds messages that arrived after `cancel`."""

    def __init__(self, connection: GrpcConnection, stream_id: int) -> None:
        self.late: deque[bytes] = deque()
        self.is_cancelled = False
        self._connection = connection
        self._id = stream_id
        self._messages: deque[bytes] = deque()
        self._rest = b""
        self._ending: str | None = None
        """None while the call runs; then its gRPC status, or why there is none."""
        self._changed = asyncio.Event()

    async def next(self, timeout_s: float) -> bytes | None:
        """Returns the next message, None after the last one. Raises TimeoutError, CallFailed."""
        async with asyncio.timeout(timeout_s):
            while not self._messages and self._ending is None:
                self._changed.clear()
                await self._changed.wait()
        if self._messages:
            return self._messages.popleft()
        if self._ending != "0":
            raise CallFailed(f"the call ended with {self._ending}")
        return None

    def send(self, request: Any, *, is_last: bool = False) -> None:
        """Sends a request of a stream. Raises CallFailed if the call has ended."""
        if self._ending is not None:
            raise CallFailed(f"the call ended with {self._ending}")
        message = request.SerializeToString()
        self._connection.send(self._id, b"\0" + len(message).to_bytes(4) + message, is_last=is_last)

    def cancel(self) -> None:
        """Cancels the call, unless it has ended."""
        if self._ending is None:
            self.is_cancelled = True
            self.end("a cancellation")
            self._connection.reset(self._id)

    # The methods called by the connection.

    def on_data(self, data: bytes) -> None:
        self._rest += data
        while len(self._rest) >= PREFIX_BYTES:
            end = PREFIX_BYTES + int.from_bytes(self._rest[1:PREFIX_BYTES])
            if len(self._rest) < end:
                break
            target = self.late if self.is_cancelled else self._messages
            target.append(self._rest[PREFIX_BYTES:end])
            self._rest = self._rest[end:]
        self._changed.set()

    def end(self, ending: str) -> None:
        if self._ending is None:
            self._ending = ending
            self._changed.set()


class GrpcConnection(asyncio.Protocol):
    """A connection to one proxy.

    window_bytes  how much of a stream the proxy may send before it is read
    read_s        the time after which received bytes count as read
    """

    def __init__(self, clock: Clock, window_bytes: int, read_s: float) -> None:
        self.http2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.http2.local_settings = h2.settings.Settings(
            client=True, initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window_bytes}
        )
        self.is_usable = True
        """True while the connection accepts new calls."""
        self._clock = clock
        self._read_s = read_s
        self._calls: dict[int, GrpcCall] = {}
        self._transport: Any = None
        self._raw = b""

    @staticmethod
    async def open(
        network: Network, clock: Clock, address: Address, *, window_bytes: int = 65_535, read_s: float = 0.0
    ) -> GrpcConnection:
        """Connects. Raises OSError, TimeoutError."""
        connection = GrpcConnection(clock, window_bytes, read_s)
        await network.connect(*address, lambda: connection, CONNECT_S)
        connection.http2.initiate_connection()
        connection._flush()
        return connection

    def begin(self, name: str, *, client_id: str, timeout_s: float | None = None) -> GrpcCall:
        """Begins a call without a request. Raises CallFailed if the connection takes no more calls."""
        if not self.is_usable:
            raise CallFailed("the connection takes no more calls")
        stream_id = self.http2.get_next_available_stream_id()
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", "proxy"),
            (":path", SERVICE + name),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("x-mq-client-id", client_id),
            ("x-mq-language", "JAVA"),
            ("x-mq-client-version", "5.1.0"),
        ]
        if timeout_s is not None:
            headers.append(("grpc-timeout", f"{round(timeout_s * 1000)}m"))
        call = self._calls[stream_id] = GrpcCall(self, stream_id)
        self.http2.send_headers(stream_id, headers)
        self._flush()
        return call

    def call(self, name: str, request: Any, *, client_id: str, timeout_s: float) -> GrpcCall:
        """Begins a call with one request. Raises CallFailed if the connection takes no more calls."""
        call = self.begin(name, client_id=client_id, timeout_s=timeout_s)
        call.send(request, is_last=True)
        return call

    async def ask(self, name: str, request: Any, shape: Any, *, client_id: str, timeout_s: float) -> Any:
        """Returns the answer of a unary call. Raises CallFailed, TimeoutError."""
        call = self.call(name, request, client_id=client_id, timeout_s=timeout_s)
        try:
            answer = await call.next(timeout_s + 1.0)
        finally:
            call.cancel()
        if answer is None:
            raise CallFailed("the call ended without an answer")
        return shape.FromString(answer)

    def send(self, stream_id: int, data: bytes, *, is_last: bool) -> None:
        """Sends a message of a call. Raises CallFailed if its stream has ended."""
        try:
            self.http2.send_data(stream_id, data, end_stream=is_last)
        except ProtocolError as error:
            raise CallFailed(f"the stream takes no message: {error!r}") from None
        self._flush()

    def reset(self, stream_id: int) -> None:
        """Cancels a call."""
        try:
            self.http2.reset_stream(stream_id, ErrorCodes.CANCEL)
        except ProtocolError:
            return  # it has ended
        self._flush()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # The protocol.

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_usable = False
        self._transport = None
        for call in self._calls.values():
            call.end("a lost connection")

    def data_received(self, data: bytes) -> None:
        # h2 serves no call after a GOAWAY, but the proxy serves those that it has: h2 does not see it.
        self._raw += data
        while len(self._raw) >= FRAME_HEAD_BYTES:
            frame, size = Frame.parse_frame_header(memoryview(self._raw[:FRAME_HEAD_BYTES]))
            end = FRAME_HEAD_BYTES + size
            if len(self._raw) < end:
                return
            whole, self._raw = self._raw[:end], self._raw[end:]
            if isinstance(frame, GoAwayFrame):
                self.is_usable = False
                continue
            call = self._calls.get(frame.stream_id)
            if call is not None and call.is_cancelled and isinstance(frame, DataFrame):
                frame.parse_body(memoryview(whole[FRAME_HEAD_BYTES:]))
                call.on_data(frame.data)
            for event in self.http2.receive_data(whole):
                self._on_event(event)
            self._flush()

    def _on_event(self, event: Any) -> None:
        call = self._calls.get(getattr(event, "stream_id", 0))
        if call is None:
            return
        if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
            headers: dict[Any, Any] = dict(event.headers)
            status = headers.get("grpc-status")
            if status is not None:
                call.end(status)
        elif isinstance(event, h2.events.DataReceived):
            call.on_data(event.data)
            if self._read_s:
                self._clock.call_later(
                    self._read_s, self._read, event.flow_controlled_length, event.stream_id
                )
            else:
                self._read(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamReset):
            call.end("a reset")

    def _read(self, size: int, stream_id: int) -> None:
        if size and self._transport is not None:
            self.http2.acknowledge_received_data(size, stream_id)
            self._flush()

    def _flush(self) -> None:
        data = self.http2.data_to_send()
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
