"""A client of HTTP/2 for tests: frames as `h2` makes them, and frames that it never would."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
from hyperframe.frame import Frame, GoAwayFrame

from tandemmq.runtime.ports import Address, Network
from waits import until

Headers = Sequence[tuple[str, str]]


def call_headers(path: str, *extra: tuple[str, str], method: str = "POST") -> Headers:
    """Returns the headers of a call; `extra` replaces those of the same name."""
    plain = {
        ":method": method,
        ":scheme": "http",
        ":authority": "localhost",
        ":path": path,
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return [*{**plain, **dict(extra)}.items()]


def framed(message: bytes, flag: int = 0) -> bytes:
    """Returns a gRPC message with its prefix."""
    return bytes((flag,)) + len(message).to_bytes(4) + message


class Http2Client(asyncio.Protocol):
    """A connection. `headers`, `data`, `ended` and `resets` hold the answers by stream."""

    def __init__(self, window: int = 1 << 20) -> None:
        config = h2.config.H2Configuration(header_encoding="utf-8")
        self.http2 = h2.connection.H2Connection(config)
        values = {h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window}
        self.http2.local_settings = h2.settings.Settings(client=True, initial_values=values)
        self.headers: dict[int, list[dict[str, str]]] = {}
        self.data: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self.resets: dict[int, int] = {}
        self.pings: list[bytes] = []
        self.goaways: list[tuple[int, int]] = []
        """Error codes and last streams. h2 ends the connection at one, so it never sees them."""
        self.is_lost = False
        self.transport: Any = None
        self.acknowledges = True
        self.is_started = False
        self._raw = b""

    @staticmethod
    async def connect(
        network: Network, address: Address, *, window: int = 1 << 20, starts: bool = True
    ) -> Http2Client:
        """Connects; without `starts` no preface is sent."""
        client = Http2Client(window)
        await network.connect(*address, lambda: client, 5.0)
        if starts:
            client.begin()
        return client

    def begin(self) -> None:
        """Sends the preface."""
        self.is_started = True
        self.http2.initiate_connection()
        self.flush()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True

    def data_received(self, data: bytes) -> None:
        self._raw += data
        while len(self._raw) >= 9:
            frame, size = Frame.parse_frame_header(memoryview(self._raw[:9]))
            if len(self._raw) < 9 + size:
                return
            whole, self._raw = self._raw[: 9 + size], self._raw[9 + size :]
            if isinstance(frame, GoAwayFrame):
                frame.parse_body(memoryview(whole[9:]))
                self.goaways.append((frame.error_code, frame.last_stream_id))
                continue
            if self.is_started:
                for event in self.http2.receive_data(whole):
                    self._on_event(event)
                self.flush()

    def _on_event(self, event: Any) -> None:
        if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
            self.headers.setdefault(event.stream_id, []).append(dict(event.headers))
        elif isinstance(event, h2.events.DataReceived):
            self.data[event.stream_id] = self.data.get(event.stream_id, b"") + event.data
            if self.acknowledges:
                self.http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            self.ended.add(event.stream_id)
        elif isinstance(event, h2.events.StreamReset):
            self.resets[event.stream_id] = int(event.error_code)
        elif isinstance(event, h2.events.PingAckReceived):
            self.pings.append(event.ping_data)

    def flush(self) -> None:
        self.write(self.http2.data_to_send())

    def write(self, data: bytes) -> None:
        """Sends any bytes."""
        if data:
            self.transport.write(data)

    def open(self, path: str, *extra: tuple[str, str], ends: bool = False, method: str = "POST") -> int:
        """Sends the headers of a call and returns its stream."""
        stream_id = self.http2.get_next_available_stream_id()
        self.http2.send_headers(stream_id, call_headers(path, *extra, method=method), end_stream=ends)
        self.flush()
        return stream_id

    def call(self, path: str, *messages: bytes, headers: Headers = (), ends: bool = True) -> int:
        """Sends a call with its messages, as far as the windows allow, and returns its stream."""
        stream_id = self.open(path, *headers, ends=ends and not messages)
        body = b"".join(map(framed, messages))
        for at in range(0, len(body), 16_384):
            is_last = at + 16_384 >= len(body)
            self.http2.send_data(stream_id, body[at : at + 16_384], end_stream=ends and is_last)
        self.flush()
        return stream_id

    async def ends(self, stream_id: int) -> tuple[int, str]:
        """Waits for the end of a call; returns its gRPC status and text."""
        await until(lambda: stream_id in self.ended or self.is_lost)
        assert stream_id in self.ended, "the connection was lost"
        trailers = self.headers[stream_id][-1]
        return int(trailers["grpc-status"]), trailers.get("grpc-message", "")

    async def loses(self) -> tuple[int, int]:
        """Waits for the end of the connection; returns the error code and last stream of its GOAWAY."""
        await until(lambda: self.is_lost)
        return self.goaways[-1]
