"""A light gRPC load: replays prepared requests over one connection, with a fixed number of calls in flight.

It does little per call, so that it measures the proxy. Headers are compressed as the official Java and Go
clients do it: every field enters the dynamic table, and the request id and the time limit are new in every
call. An answer counts as a success if it contains the status OK. The proxy may send 2 GiB per connection, and
gets no window update.

Source: RFC 7541; RFC 9113; spec proxy 3.1.
"""

from __future__ import annotations

import socket
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Final, Self

from hpack.hpack import encode_integer

from tandemmq.bench.generator import LoadResult
from tandemmq.errors import BrokerUnreachable
from tandemmq.proxy.http2_frames import FRAME_BYTES_MAX, HEAD_BYTES, PREFACE
from tandemmq.proxy.rpc import SERVICE

OK_STATUS: Final = b"\x08\xa0\x9c\x01"
"""The code 20000 (OK) as the first field of a Status."""
CALL_S: Final = 20.0
_READ_BYTES: Final = 256 * 1024
_TABLE_BYTES: Final = 4_096
_ENTRY_BYTES: Final = 32
"""The overhead of a table entry (RFC 7541, 4.1)."""
_STATIC_ENTRIES: Final = 61
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 0x1, 0x4, 0x1
_POST_HTTP: Final = b"\x83\x86"
"""`:method POST` and `:scheme http` of the static table."""
_WINDOW_MAX: Final = 2**31 - 1
_INITIAL_WINDOW: Final = 65_535
_NO_PUSH: Final = b"\0\2\0\0\0\0"
_INITIAL_WINDOW_SIZE: Final = b"\0\4"


@lru_cache(maxsize=1_024)
def _integer(value: int, bits: int, flag: int) -> bytes:
    """Returns an integer of HPACK behind the flag bits."""
    encoded = encode_integer(value, bits)
    encoded[0] |= flag
    return bytes(encoded)


def _text(text: bytes) -> bytes:
    return _integer(len(text), 7, 0) + text


def _frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream_id.to_bytes(4, "big")
    return head + payload


class HeaderTable:
    """The dynamic table of one connection, as the sender of requests keeps it."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[bytes, bytes], int] = {}
        self._names: dict[bytes, int] = {}
        self._entries: deque[tuple[bytes, bytes]] = deque()
        self._bytes = 0
        self._inserted = 0

    def encode(self, fields: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Returns the header block of the fields, and adds the new ones to the table."""
        return b"".join([self._encode(field) for field in fields])

    def _encode(self, field: tuple[bytes, bytes]) -> bytes:
        number = self._numbers.get(field)
        if number is not None:
            return _integer(self._index(number), 7, 0x80)
        name, value = field
        number = self._names.get(name)
        head = b"\x40" + _text(name) if number is None else _integer(self._index(number), 6, 0x40)
        self._insert(field)
        return head + _text(value)

    def _index(self, number: int) -> int:
        return _STATIC_ENTRIES + self._inserted - number

    def _insert(self, field: tuple[bytes, bytes]) -> None:
        self._bytes += _ENTRY_BYTES + len(field[0]) + len(field[1])
        while self._bytes > _TABLE_BYTES:
            oldest = self._entries.popleft()
            self._bytes -= _ENTRY_BYTES + len(oldest[0]) + len(oldest[1])
            number = self._numbers.pop(oldest)
            if self._names[oldest[0]] == number:
                del self._names[oldest[0]]
        self._entries.append(field)
        self._numbers[field] = self._names[field[0]] = self._inserted
        self._inserted += 1


class GrpcLoad:
    """One connection to a proxy at `host:port`, used for one load after the other.

    Raises:  OSError when the proxy cannot be reached; BrokerUnreachable when it ends the connection.
    """

    def __init__(self, address: str, client_id: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=CALL_S)
        if self._socket.getsockname() == self._socket.getpeername():
            raise BrokerUnreachable(f"{address} is an unused port, which connected to itself")
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._table = HeaderTable()
        self._fields = [
            (b":authority", address.encode()),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"user-agent", b"grpc-java-netty/1.50.0"),
            (b"grpc-accept-encoding", b"gzip"),
            (b"x-mq-language", b"JAVA"),
            (b"x-mq-protocol", b"v2"),
            (b"x-mq-client-version", b"5.0.7"),
            (b"x-mq-client-id", client_id.encode()),
        ]
        self._buffered = bytearray()
        self._stream_id = -1
        self._window = _INITIAL_WINDOW
        self._bodies: dict[int, bytes] = {}
        opening = PREFACE + _frame(
            _SETTINGS, 0, 0, _NO_PUSH + _INITIAL_WINDOW_SIZE + _WINDOW_MAX.to_bytes(4, "big")
        )
        more = _WINDOW_MAX - _INITIAL_WINDOW
        self._outgoing = [opening, _frame(_WINDOW_UPDATE, 0, 0, more.to_bytes(4, "big"))]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def open_stream(self, rpc: str, message: bytes) -> None:
        """Begins a call with one message, and leaves it open. Its answers are dropped."""
        self._begin(rpc, message, 0)
        self._flush()

    def ask(self, rpc: str, message: bytes) -> bytes:
        """Returns the messages that answer one request, each behind its prefix."""
        answers: list[bytes] = []
        self.run(rpc, iter([message]), in_flight=1, seconds_max=0.0, on_answer=answers.append)
        return answers[0]

    def run(
        self,
        rpc: str,
        messages: Iterator[bytes],
        *,
        in_flight: int,
        seconds_max: float,
        on_answer: Callable[[bytes], None] = lambda _: None,
    ) -> LoadResult:
        """Makes a call for each message, until they or the time is over; returns the result. At least
        `in_flight` calls are made. `on_answer` is called with the body of each answer.
        """
        clock = time.perf_counter
        running: dict[int, float] = {}
        latencies: list[float] = []
        failed = 0
        is_over = False
        begun = clock()
        deadline = begun + seconds_max
        while True:
            now = clock()
            while not is_over and len(running) < in_flight and self._window >= _INITIAL_WINDOW // 2:
                message = next(messages, None)
                if message is None:
                    is_over = True
                    break
                running[self._begin(rpc, message, _END_STREAM)] = now
            is_over = is_over or now >= deadline
            self._flush()
            if not running and is_over:
                break
            for stream_id, body in self._read_ended():
                begun_call = running.pop(stream_id, None)
                if begun_call is not None:
                    latencies.append((clock() - begun_call) * 1e6)
                    failed += OK_STATUS not in body
                    on_answer(body)
        return LoadResult(
            count=len(latencies), seconds=clock() - begun, latencies_us=latencies, failed=failed
        )

    def _begin(self, rpc: str, message: bytes, flags: int) -> int:
        """Collects the frames of a call; returns its stream id."""
        self._stream_id += 2
        stream_id = self._stream_id
        fields = [
            (b":path", f"{SERVICE}{rpc}".encode()),
            *self._fields,
            (b"grpc-timeout", b"%du" % (CALL_S * 1e6 - stream_id % 1_000)),
            (
                b"x-mq-request-id",
                str(uuid.UUID(int=stream_id * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128)).encode(),
            ),
            (b"x-mq-date-time", time.strftime("%Y%m%dT%H%M%SZ").encode()),
        ]
        block = _POST_HTTP + self._table.encode(fields)
        data = b"\0" + len(message).to_bytes(4, "big") + message
        self._window -= len(data)
        self._outgoing.append(_frame(_HEADERS, _END_HEADERS, stream_id, block))
        while len(data) > FRAME_BYTES_MAX:
            self._outgoing.append(_frame(_DATA, 0, stream_id, data[:FRAME_BYTES_MAX]))
            data = data[FRAME_BYTES_MAX:]
        self._outgoing.append(_frame(_DATA, flags, stream_id, data))
        return stream_id

    def _flush(self) -> None:
        if self._outgoing:
            self._socket.sendall(b"".join(self._outgoing))
            self._outgoing.clear()

    def _read_ended(self) -> Iterator[tuple[int, bytes]]:
        """Reads once; yields the streams that ended, with the bodies of their answers."""
        received = self._socket.recv(_READ_BYTES)
        if not received:
            raise BrokerUnreachable("the proxy closed the connection")
        self._buffered += received
        buffered, at = bytes(self._buffered), 0
        while len(buffered) - at >= HEAD_BYTES:
            end = at + HEAD_BYTES + int.from_bytes(buffered[at : at + 3], "big")
            if end > len(buffered):
                break
            kind, flags = buffered[at + 3], buffered[at + 4]
            stream_id = int.from_bytes(buffered[at + 5 : at + HEAD_BYTES], "big")
            payload = buffered[at + HEAD_BYTES : end]
            at = end
            if kind == _DATA:
                self._bodies[stream_id] = self._bodies.get(stream_id, b"") + payload
            elif kind != _HEADERS and kind != _RST_STREAM:
                self._on_control(kind, flags, stream_id, payload)
                continue
            if flags & _END_STREAM or kind == _RST_STREAM:
                yield stream_id, self._bodies.pop(stream_id, b"")
        del self._buffered[:at]

    def _on_control(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == _WINDOW_UPDATE and not stream_id:
            self._window += int.from_bytes(payload, "big")
        elif kind in (_SETTINGS, _PING) and not flags & _ACK:
            self._outgoing.append(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
        elif kind == _GOAWAY:
            raise BrokerUnreachable(
                f"the proxy ends the connection: {payload[8:].decode('utf-8', 'replace')}"
            )


def messages_of(body: bytes) -> Iterator[bytes]:
    """Yields the messages of an answer."""
    at = 0
    while at < len(body):
        end = at + 5 + int.from_bytes(body[at + 1 : at + 5], "big")
        yield body[at + 5 : end]
        at = end
