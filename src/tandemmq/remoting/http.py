"""HttpServer: answers GET requests for a few pages, for scrapers and health checks.

Just enough of HTTP/1.1 (RFC 9112) for that: one request per connection, no body is read, the answer closes.
At a bound: a head longer than `head_bytes_max` is answered 431, a connection too many is closed at once, and
            one that is not done within `connection_s_max` is cut off, whether it sends its request slowly or
            does not take its answer. What cannot be a request is cut off at its first bytes.
Knows not:  what the pages say. A page that raises is answered 500; nothing else stops.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

from tandemmq.errors import ConfigError
from tandemmq.runtime.ports import Address, Clock, Listener, Network, TimerHandle
from tandemmq.telemetry import events
from tandemmq.units import KIB

log = logging.getLogger(__name__)

PLAIN_TEXT: Final = "text/plain; charset=utf-8"
_HEAD_END: Final = b"\r\n\r\n"
_REQUEST_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) (/[\x21-\x7e]*) HTTP/1\.[0-9]")
_HEADER_LINE: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*")
_METHOD_BYTES_MAX: Final = 32
_FIRST_BYTES: Final = re.compile(rb"[A-Z]{1,32}(?: .*)?", re.DOTALL)
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class HttpAnswer(NamedTuple):
    """A page's content."""

    body: bytes
    content_type: str = PLAIN_TEXT
    status: int = 200


Page = Callable[[], HttpAnswer]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """Bounds of an HTTP server."""

    connections_max: int = 32
    head_bytes_max: int = 8 * KIB
    connection_s_max: float = 10.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be positive, not {getattr(self, name)}")


def parse_request(head: bytes) -> tuple[str, str]:
    """Method and path of a request head without its empty line; the query is dropped.

    Raises:  ValueError for what is no HTTP/1 request.
    """
    request_line, *headers = head.split(b"\r\n")
    matched = _REQUEST_LINE.fullmatch(request_line)
    if matched is None or not all(map(_HEADER_LINE.fullmatch, headers)):
        raise ValueError
    path = matched[2].partition(b"?")[0]
    return matched[1].decode("ascii"), path.decode("ascii")


def render_answer(answer: HttpAnswer) -> bytes:
    """The whole response."""
    status, body = answer.status, answer.body
    allow = "Allow: GET\r\n" if status == 405 else ""
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(body)}\r\n"
        f"Cache-Control: no-store\r\n{allow}Connection: close\r\n\r\n"
    )
    return head.encode("ascii") + body


class HttpServer:
    """Serves `pages` by path on one port."""

    def __init__(
        self,
        pages: Mapping[str, Page],
        *,
        network: Network,
        clock: Clock,
        options: HttpOptions | None = None,
    ) -> None:
        self.options = options or HttpOptions()
        self.clock = clock
        self._pages = pages
        self._network = network
        self._listener: Listener | None = None
        self._connections: dict[HttpConnection, None] = {}

    @property
    def connection_count(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    async def start(self, host: str, port: int) -> Address:
        """The bound address; port 0 picks a free one. Raises OSError when it cannot be bound."""
        self._listener = await self._network.listen(host, port, lambda: HttpConnection(self))
        return self._listener.address

    async def stop(self) -> None:
        """Closes the port and cuts off every connection."""
        if self._listener is not None:
            await self._listener.close()
            self._listener = None
        for connection in list(self._connections):
            connection.cut_off()

    # What connections ask and tell.

    def on_connected(self, connection: HttpConnection) -> bool:
        """False when the connection is one too many."""
        if self._listener is None or len(self._connections) >= self.options.connections_max:
            return False
        self._connections[connection] = None
        return True

    def on_lost(self, connection: HttpConnection) -> None:
        self._connections.pop(connection, None)

    def answer(self, head: bytes) -> HttpAnswer:
        """The answer to one request."""
        try:
            method, path = parse_request(head)
        except ValueError:
            return _refusal(400, "this is no HTTP/1.1 request")
        if method != "GET":
            return _refusal(405, "only GET is served")
        page = self._pages.get(path)
        if page is None:
            return _refusal(404, f"pages: {' '.join(self._pages)}")
        try:
            return page()
        except Exception as error:  # the edge: a broken page must not stop a broker
            log.error(events.HTTP_PAGE_FAILED, extra={"path": path}, exc_info=error)
            return _refusal(500, "the page cannot be made: see the log")


class HttpConnection(asyncio.Protocol):
    """One connection: one request, one answer, the end."""

    __slots__ = ("_received", "_server", "_timer", "_transport")

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._received: bytearray | None = bytearray()  # None once it was answered
        self._transport: asyncio.Transport | None = None
        self._timer: TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        if not self._server.on_connected(self):
            self._transport.abort()
            return
        self._timer = self._server.clock.call_later(self._server.options.connection_s_max, self.cut_off)

    def data_received(self, data: bytes) -> None:
        received = self._received
        if received is None:
            return  # a body, or another request: the connection is closing
        searched = max(0, len(received) - len(_HEAD_END) + 1)
        received += data
        end = received.find(_HEAD_END, searched, self._server.options.head_bytes_max)
        if end >= 0:
            self._end(self._server.answer(bytes(received[:end])))
        elif len(received) >= self._server.options.head_bytes_max:
            self._end(_refusal(431, "the request's head is too long"))
        elif _FIRST_BYTES.fullmatch(received, 0, _METHOD_BYTES_MAX + 1) is None:
            self._end(_refusal(400, "this is no HTTP/1.1 request"))

    def eof_received(self) -> bool:
        return False  # the transport sends what is left and closes itself

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._transport = None
        self._server.on_lost(self)

    def cut_off(self) -> None:
        """Closes at once; what was not sent is lost."""
        if self._transport is not None:
            self._transport.abort()

    def _end(self, answer: HttpAnswer) -> None:
        assert self._transport is not None
        self._received = None
        self._transport.write(render_answer(answer))
        self._transport.close()


def _refusal(status: int, reason: str) -> HttpAnswer:
    return HttpAnswer(f"{reason}\n".encode(), status=status)
