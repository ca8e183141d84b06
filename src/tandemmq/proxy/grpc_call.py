"""One call on an HTTP/2 stream (`GrpcStream`), and the parts of a call that are text: the request's headers
(`Request`), its time limit, and the trailers with the status.

Invariants: a message is cut from the received bytes when the handler asks for it, so many small ones use no
            more memory than their bytes. Received bytes count in `SharedCalls` until the handler asks for the
            message behind theirs, or the call ends. The peer's window opens for the bytes of a message when
            the handler gets it, and at once for those of an unfinished message at the front. So a stream
            holds one message and one window at most.
Source:     spec proxy 1.3, 3.1, 3.5, 10.6.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import InitVar, dataclass, field
from math import inf
from typing import Final, NamedTuple, Protocol

from tandemmq.proxy.grpc_limits import SharedCalls
from tandemmq.proxy.http2_writer import Headers, Http2Writer
from tandemmq.proxy.limited_lines import LimitedLines
from tandemmq.proxy.rpc import GrpcFailure, GrpcStatus, Method
from tandemmq.proxy.statuses import Code, RpcRefused
from tandemmq.runtime.ports import Address

PREFIX_BYTES: Final = 5
STATUS_TEXT_MAX: Final = 1_024

RESPONSE: Final[Headers] = [(b":status", b"200"), (b"content-type", b"application/grpc")]
OK_TRAILERS: Final[Headers] = [(b"grpc-status", b"0")]

_UNIT_S: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_TIMEOUT: Final = re.compile(r"([0-9]{1,18})([HMSmun])")
_GRPC: Final = b"application/grpc"
_NOTHING: Final = memoryview(b"")
_PLAIN: Final = b"\0"
"""The flag of a message that is not compressed."""


class Request(NamedTuple):
    """The headers of a request."""

    method: bytes
    path: str
    content_type: bytes
    metadata: Mapping[str, str]
    size: int

    @property
    def is_grpc(self) -> bool:
        rest = self.content_type.removeprefix(_GRPC)
        return self.content_type.startswith(_GRPC) and rest[:1] in (b"", b"+", b";")


def read_headers(headers: Iterable[tuple[bytes, bytes]]) -> Request:
    """Returns the request of a header list. Binary metadata (`-bin`) is dropped."""
    method, path, content_type = b"", "", b""
    metadata: dict[str, str] = {}
    size = 0
    for name, value in headers:
        size += len(name) + len(value)
        if name[:1] == b":":
            if name == b":method":
                method = value
            elif name == b":path":
                path = value.decode("utf-8", "replace")
            continue
        if name == b"content-type":
            content_type = value
        elif name[-4:] == b"-bin":
            continue
        metadata[name.decode("utf-8", "replace").lower()] = value.decode("utf-8", "replace")
    return Request(method, path, content_type, metadata, size)


def parse_timeout(text: str) -> float:
    """Returns the seconds of a `grpc-timeout`. Raises GrpcFailure."""
    match = _TIMEOUT.fullmatch(text)
    if match is None:
        raise GrpcFailure(
            GrpcStatus.INVALID_ARGUMENT, f"grpc-timeout {text[:40]!r}: expected digits and one of H M S m u n"
        )
    return int(match[1]) * _UNIT_S[match[2]]


def trailers(status: GrpcStatus, text: str) -> Headers:
    """Returns the trailers with a status; the text is cut and percent-encoded."""
    if status is GrpcStatus.OK:
        return OK_TRAILERS
    found = [(b"grpc-status", b"%d" % status)]
    if text:
        encoded = text[:STATUS_TEXT_MAX].encode("utf-8", "replace")
        found.append((b"grpc-message", b"".join(map(_percent, encoded))))
    return found


def _percent(byte: int) -> bytes:
    return bytes((byte,)) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte


class StreamOwner(Protocol):
    """The connection of a stream."""

    @property
    def peer(self) -> Address: ...

    @property
    def shared(self) -> SharedCalls: ...

    @property
    def writer(self) -> Http2Writer: ...

    def on_due(self, stream: GrpcStream) -> None:
        """Checks the time limits of the stream."""


@dataclass(eq=False, repr=False, slots=True)
class GrpcStream:
    """A `GrpcCall` of a connection. After the end of the call `send` and `receive` raise GrpcFailure.

    ending        None while the call runs; then its status and text, which the peer got if the stream still
                  existed
    _front_bytes  the size of the first message of `_buffer`, with its prefix; 0 before the prefix is complete
    """

    _owner: StreamOwner
    id: int
    method: Method
    request: InitVar[Request]
    opened_at_s: float
    metadata: Mapping[str, str] = field(init=False)
    peer: Address = field(init=False)
    deadline_s: float = inf
    code: int = 0
    ending: tuple[GrpcStatus, str] | None = None
    task: asyncio.Task[None] | None = None
    tick: int = 0
    is_started: bool = False
    has_request: bool = False
    peer_has_ended: bool = False
    unsent: memoryview = _NOTHING
    _failure: Exception | None = None
    _buffer: bytes | bytearray = b""
    _front_bytes: int = 0
    _reserved: int = 0
    _served_bytes: int = 0
    _unacknowledged: int = 0
    _changed: asyncio.Future[None] | None = None
    _senders: list[asyncio.Future[None]] = field(default_factory=list)

    def __post_init__(self, request: Request) -> None:
        """Raises GrpcFailure for an invalid `grpc-timeout`."""
        self.metadata, self.peer = request.metadata, self._owner.peer
        timeout = request.metadata.get("grpc-timeout")
        if timeout is not None:
            self.deadline_s = self.opened_at_s + parse_timeout(timeout)

    # The methods called by the handler.

    async def start(self) -> None:
        self._check_running()
        if not self.is_started:
            self.is_started = True
            self._owner.writer.send_headers(self.id, RESPONSE)

    async def send(self, *messages: bytes) -> None:
        await self.start()
        while self.unsent:  # the message of another task
            await self._wait_sent()
        parts = [part for one in messages for part in (_PLAIN, len(one).to_bytes(4), one)]
        self.unsent = memoryview(b"".join(parts))
        if not self._owner.writer.transmit(self):
            await self._wait_sent()

    async def _wait_sent(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._senders.append(waiter)
        await waiter
        self._check_running()

    async def receive(self) -> bytes | None:
        self._release(self._served_bytes)
        self._served_bytes = 0
        while True:
            self._check_running()
            if self._is_complete:
                return self._pop_message()
            if self._failure is not None:
                raise self._failure
            if self.peer_has_ended:
                if self._buffer:
                    raise GrpcFailure(GrpcStatus.INTERNAL, "the request ends within a message")
                return None
            self._changed = asyncio.get_running_loop().create_future()
            await self._changed

    def _check_running(self) -> None:
        if self.ending is not None:
            raise GrpcFailure(GrpcStatus.CANCELLED, f"the call has ended: {self.ending[1]}")

    # The methods called by the connection.

    def hold_headers(self, size: int) -> None:
        """Counts the headers as bytes of the request, until the end of the call."""
        self._reserve(size)

    def on_data(self, data: bytes, window_size: int) -> None:
        """Accepts the payload of a DATA frame, which used `window_size` bytes of the peer's window."""
        self._unacknowledged += window_size
        if self.ending is not None or self._failure is not None:
            self._acknowledge(window_size)
            return
        if not self._reserve(len(data)):
            return
        if not self._buffer:
            self._buffer = data
        else:
            if isinstance(self._buffer, bytes):
                self._buffer = bytearray(self._buffer)
            self._buffer += data
        self._read_prefix()
        if self._is_complete:
            self.has_request = True
            self._wake()
        else:
            self._acknowledge(self._unacknowledged)

    def on_end(self) -> None:
        """Accepts the end of the peer's side."""
        self.peer_has_ended = True
        self._wake()

    def on_sent(self) -> None:
        """Lets `send` return: its bytes are sent."""
        senders, self._senders = self._senders, []
        for waiter in senders:
            if not waiter.done():
                waiter.set_result(None)

    def on_due(self) -> None:
        self._owner.on_due(self)

    def refuse(self, failure: Exception) -> None:
        """Discards all requests, and raises `failure` in the handler when it asks for the next one."""
        self._failure = failure
        self._discard()
        self._release(self._reserved - self._served_bytes)
        self._acknowledge(self._unacknowledged)
        self._wake()

    def end(self, status: GrpcStatus, text: str) -> None:
        """Marks the call as ended, and cancels its handler unless it is done."""
        self.ending = status, text
        self.on_sent()
        self._wake()
        self.unsent = _NOTHING
        self._discard()
        self._served_bytes = 0
        self._release(self._reserved)
        self._acknowledge(self._unacknowledged)
        if self.task is not None:
            self.task.cancel()

    # Internals.

    @property
    def lines(self) -> LimitedLines:
        return self._owner.shared.lines

    @property
    def _is_complete(self) -> bool:
        return 0 < self._front_bytes <= len(self._buffer)

    def _pop_message(self) -> bytes:
        size, buffer = self._front_bytes, self._buffer
        message = bytes(memoryview(buffer)[PREFIX_BYTES:size])
        if len(buffer) > size:
            self._buffer = buffer = buffer if isinstance(buffer, bytearray) else bytearray(buffer)
            del buffer[:size]  # takes no copy of the rest
        else:
            self._buffer = b""
        self._front_bytes = 0
        self._served_bytes = size
        self._read_prefix()
        self._acknowledge(size if self._is_complete else self._unacknowledged)
        return message

    def _read_prefix(self) -> None:
        """Sets `_front_bytes`, or refuses the request."""
        if not self._front_bytes and len(self._buffer) >= PREFIX_BYTES:
            size = int.from_bytes(self._buffer[1:PREFIX_BYTES])
            failure = self._check_prefix(self._buffer[0], size)
            if failure is None:
                self._front_bytes = PREFIX_BYTES + size
            else:
                self.refuse(failure)

    def _discard(self) -> None:
        self._buffer = b""
        self._front_bytes = 0

    def _check_prefix(self, flag: int, size: int) -> GrpcFailure | None:
        limit = self._owner.shared.limits.message_bytes_max
        if size > limit:
            return GrpcFailure(
                GrpcStatus.RESOURCE_EXHAUSTED, f"a message of {size} bytes; at most {limit} are accepted"
            )
        if flag:
            return GrpcFailure(
                GrpcStatus.UNIMPLEMENTED, "compressed messages are not supported; send grpc-encoding identity"
            )
        return None

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def _reserve(self, size: int) -> bool:
        """Counts bytes of the request; returns False, after refusing it, if they exceed the bound."""
        if self._owner.shared.reserve(size):
            self._reserved += size
            return True
        limit = self._owner.shared.limits.request_bytes_max
        self.refuse(RpcRefused(Code.TOO_MANY_REQUESTS, f"over {limit} bytes of requests wait; try later"))
        return False

    def _release(self, size: int) -> None:
        if size:
            self._reserved -= size
            self._owner.shared.release(size)

    def _acknowledge(self, size: int) -> None:
        size = min(size, self._unacknowledged)  # padding, and bytes of an unfinished message, came before
        if size:
            self._unacknowledged -= size
            self._owner.writer.open_window(self.id, size)
