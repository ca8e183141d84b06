"""The sending side of an HTTP/2 connection: `ServerHttp2`, the state that `h2` keeps, and `Http2Writer`.

Strategy:   frames are collected in h2 and written once per turn of the loop. Bytes that exceed a window of
            the peer, or the socket, stay in their stream (`OutgoingStream.unsent`) and are sent by `pump`,
            the oldest stream first.
Source:     spec proxy 1.3, 7, 10.6; RFC 9113, 5.2 and 6.8.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final, Protocol

from h2.config import H2Configuration
from h2.connection import ConnectionInputs, H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import NoSuchStreamError
from h2.exceptions import ProtocolError as Http2Error
from h2.settings import SettingCodes, Settings
from h2.stream import StreamInputs
from hyperframe.frame import GoAwayFrame

from tandemmq.proxy.grpc_limits import GrpcLimits
from tandemmq.proxy.header_decoder import RequestDecoder
from tandemmq.proxy.header_encoder import StaticEncoder
from tandemmq.proxy.http2_frames import FrameCredit
from tandemmq.runtime.ports import Clock
from tandemmq.units import KIB

PIECE_BYTES: Final = 64 * KIB
"""The most bytes of one DATA frame, if the peer accepts such large ones."""
FLUSH_BYTES: Final = 256 * KIB
"""The collected bytes that are written without waiting for the end of the loop's turn."""
STREAM_ID_MAX: Final = 2**31 - 1
INITIAL_WINDOW: Final = 65_535
GRANT_BYTES: Final = 1_024
GRANT: Final = 2
"""The control frames that a DATA frame of GRANT_BYTES or more allows the peer: its window updates. Smaller
ones allow none, or a peer with a window of one byte could have a stream cut into as many frames.
"""

_HEADERS, _END_STREAM, _END_HEADERS = 0x1, 0x1, 0x4

Headers = list[tuple[bytes, bytes]]

_CONFIG: Final = H2Configuration(
    client_side=False,
    header_encoding=None,
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
    validate_inbound_headers=False,
    normalize_inbound_headers=False,
)
"""Headers stay as they are: the ones that matter are checked when they are read, and ours are valid."""


class ServerHttp2(H2Connection):
    """The HTTP/2 of one accepted connection. The number of streams is limited by `GrpcConnection`: h2 would
    close the connection, and counts all streams whenever one is opened.
    """

    MAX_CLOSED_STREAMS = 1_024

    def __init__(self, limits: GrpcLimits) -> None:
        super().__init__(_CONFIG)
        self._sweep_at = 64
        self.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: limits.streams_max,
                SettingCodes.MAX_HEADER_LIST_SIZE: limits.header_bytes_max,
                SettingCodes.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
            },
        )
        self.encoder = StaticEncoder()
        self.decoder = RequestDecoder()
        self.decoder.max_header_list_size = limits.header_bytes_max
        self.initiate_connection()
        if limits.connection_window_bytes > INITIAL_WINDOW:
            self.increment_flow_control_window(limits.connection_window_bytes - INITIAL_WINDOW)

    @property
    def open_inbound_streams(self) -> int:
        """Zero. Forgets closed streams when they are as many as the open ones."""
        if len(self.streams) >= self._sweep_at:
            self._sweep_at = 64 + 2 * super().open_inbound_streams
        return 0

    def send_response(self, stream_id: int, headers: Headers, *, end_stream: bool) -> None:
        """Does the same as `send_headers` for the headers of a response or its trailers, which fit one frame,
        in a third of the time: h2 also prepares for requests, pushes, priorities and long headers.

        Raises:  ProtocolError of h2 for a stream that has ended, or was reset.
        """
        self.state_machine.process_input(ConnectionInputs.SEND_HEADERS)
        stream = self.streams.get(stream_id)
        if stream is None:
            raise NoSuchStreamError(stream_id)
        stream.state_machine.process_input(StreamInputs.SEND_HEADERS)
        flags = _END_HEADERS
        if end_stream:
            stream.state_machine.process_input(StreamInputs.SEND_END_STREAM)
            flags |= _END_STREAM
        block = self.encoder.encode(headers)
        assert len(block) <= self.max_outbound_frame_size, "the texts of errors are shorter"
        self._data_to_send += b"%b%c%c%b%b" % (
            len(block).to_bytes(3),
            _HEADERS,
            flags,
            stream_id.to_bytes(4),
            block,
        )


class OutgoingStream(Protocol):
    """A stream as the writer sees it. `unsent` are bytes of one message that are not sent yet."""

    id: int
    unsent: memoryview

    def on_sent(self) -> None:
        """Called when `unsent` was sent by the writer itself, outside of `transmit`."""


@dataclass(eq=False, repr=False, slots=True)
class Http2Writer:
    """The frames that one connection sends; none before `attach`, nor after `close` or `abandon`.

    is_full  True while the socket takes nothing more
    """

    http2: ServerHttp2
    _clock: Clock
    _credit: FrameCredit
    is_full: bool = False
    _transport: asyncio.Transport | None = None
    _blocked: dict[OutgoingStream, None] = field(default_factory=dict)
    _unflushed: int = 0
    _is_flush_due: bool = False

    def attach(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.flush_soon()

    def close(self) -> None:
        """Writes the collected frames and closes the connection; no more frames are sent."""
        self.flush()
        transport, self._transport = self._transport, None
        self._blocked.clear()
        if transport is not None:
            transport.close()

    def abandon(self) -> None:
        """Sends no more frames."""
        self._transport = None
        self._blocked.clear()

    # Headers and control frames.

    def send_headers(self, stream_id: int, headers: Headers) -> None:
        """Begins the answer of a stream."""
        self._send_headers(stream_id, headers, end_stream=False)

    def end_stream(self, stream_id: int, headers: Headers, *, peer_has_ended: bool) -> None:
        """Ends a stream with these headers, whether the peer has ended its side or not."""
        self._send_headers(stream_id, headers, end_stream=True)
        if not peer_has_ended:
            self.reset(stream_id, ErrorCodes.NO_ERROR)

    def reset(self, stream_id: int, code: ErrorCodes) -> None:
        try:
            self.http2.reset_stream(stream_id, code)
        except Http2Error:
            pass  # the stream was reset by a frame whose event comes next, or the connection has ended
        self.flush_soon()

    def open_window(self, stream_id: int, size: int) -> None:
        """Lets the peer send `size` more bytes."""
        if self._transport is not None:
            self.http2.acknowledge_received_data(size, stream_id)
            self.flush_soon()

    def ping(self, data: bytes) -> None:
        self.http2.ping(data)
        self.flush_soon()

    def go_away(self, code: ErrorCodes, last_stream_id: int | None = None) -> None:
        """Writes a GOAWAY, by default with the last stream that the peer has opened. h2 does not know of it:
        after one, it would send nothing more.
        """
        if last_stream_id is None:
            last_stream_id = self.http2.highest_inbound_stream_id
        self.flush()
        self._write(GoAwayFrame(0, last_stream_id=last_stream_id, error_code=code).serialize())

    # Messages.

    def transmit(self, stream: OutgoingStream) -> bool:
        """Sends the unsent bytes of a stream; returns False if some must wait for the peer."""
        if self._send_data(stream):
            self._blocked.pop(stream, None)
            return True
        self._blocked[stream] = None
        return False

    def pump(self) -> None:
        """Sends bytes of waiting streams: the window of the connection is larger, or the socket has room."""
        for stream in list(self._blocked):
            if self.is_full or self.http2.outbound_flow_control_window <= 0:
                break
            self._resume(stream)

    def on_window(self, stream: OutgoingStream) -> None:
        """Sends bytes of one stream: its window is larger."""
        if stream in self._blocked:
            self._resume(stream)

    def forget(self, stream: OutgoingStream) -> None:
        """Sends no more bytes of a stream."""
        self._blocked.pop(stream, None)

    # Writing.

    def flush_soon(self) -> None:
        """Writes the collected frames in the next turn of the loop."""
        if not self._is_flush_due:
            self._is_flush_due = True
            self._clock.call_soon(self._flush_due)

    def flush(self) -> None:
        self._unflushed = 0
        if self._transport is not None:
            self._write(self.http2.data_to_send())

    def _write(self, data: bytes) -> None:
        # uvloop raises when the peer has reset the connection, and `connection_lost` comes later.
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _flush_due(self) -> None:
        self._is_flush_due = False
        self.flush()

    def _resume(self, stream: OutgoingStream) -> None:
        if self.transmit(stream):
            stream.on_sent()

    def _send_data(self, stream: OutgoingStream) -> bool:
        http2 = self.http2
        try:
            while stream.unsent:
                window = http2.local_flow_control_window(stream.id)
                size = min(len(stream.unsent), window, http2.max_outbound_frame_size, PIECE_BYTES)
                if size <= 0 or self.is_full or self._transport is None:
                    return False
                http2.send_data(stream.id, stream.unsent[:size])
                stream.unsent = stream.unsent[size:]
                self._unflushed += size
                if size >= GRANT_BYTES:
                    self._credit.grant(GRANT)
                if self._unflushed >= FLUSH_BYTES:
                    self.flush()
        except Http2Error:
            return False  # the same as in `reset`
        self.flush_soon()
        return True

    def _send_headers(self, stream_id: int, headers: Headers, *, end_stream: bool) -> None:
        try:
            self.http2.send_response(stream_id, headers, end_stream=end_stream)
        except Http2Error:
            pass  # the same
        self.flush_soon()
