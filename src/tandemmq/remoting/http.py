"""HttpServer: answers GET and HEAD requests for a few pages, for scrapers and health checks.

`h11` parses and writes HTTP/1.1. This file adds a server of pages: one request per connection, no body is
read, the answer closes the connection.
At a bound: a head that has not ended after HEAD_BYTES_MAX is answered 431. A connection above CONNECTIONS_MAX
            is closed at once. One that is not done within CONNECTION_S_MAX is cut off, whether it sends its
            request or reads its answer slowly.
Strategy:   a page that takes long is an iterator. Each of its steps runs in another turn of the loop; the
            last one is the answer.
Knows not:  the content of the pages. A page that raises is answered 500; everything else continues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from typing import Final, NamedTuple, cast

import h11

from tandemmq.runtime.ports import Address, Clock, Listener, Network, TimerHandle
from tandemmq.telemetry import events
from tandemmq.units import KIB

log = logging.getLogger(__name__)

PLAIN_TEXT: Final = "text/plain; charset=utf-8"
CONNECTIONS_MAX: Final = 32
HEAD_BYTES_MAX: Final = 8 * KIB
CONNECTION_S_MAX: Final = 10.0
_METHODS: Final = ("GET", "HEAD")


class HttpAnswer(NamedTuple):
    """The content of a page."""

    body: bytes
    content_type: str = PLAIN_TEXT
    status: int = 200


PageSteps = Iterator[HttpAnswer | None]
"""The steps of a page; None until the answer is there."""

Page = Callable[[], HttpAnswer | PageSteps]


class HttpServer:
    """Serves `pages` by path on one port."""

    def __init__(
        self,
        pages: Mapping[str, Page],
        *,
        network: Network,
        clock: Clock,
        connections_max: int = CONNECTIONS_MAX,
        connection_s_max: float = CONNECTION_S_MAX,
    ) -> None:
        self.clock = clock
        self.connection_s_max = connection_s_max
        self._connections_max = connections_max
        self._pages = pages
        self._network = network
        self._listener: Listener | None = None
        self._connections: dict[HttpConnection, None] = {}

    @property
    def connection_count(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    async def start(self, host: str, port: int) -> Address:
        """Starts listening and returns the bound address; port 0 picks a free one. Raises OSError if binding
        fails.
        """
        self._listener = await self._network.listen(host, port, lambda: HttpConnection(self))
        return self._listener.address

    async def stop(self) -> None:
        """Closes the port and cuts off every connection."""
        if self._listener is not None:
            await self._listener.close()
            self._listener = None
        for connection in list(self._connections):
            connection.cut_off()

    # The methods called by connections.

    def on_connected(self, connection: HttpConnection) -> bool:
        """Registers a connection; returns False if it exceeds the limit."""
        if self._listener is None or len(self._connections) >= self._connections_max:
            return False
        self._connections[connection] = None
        return True

    def on_lost(self, connection: HttpConnection) -> None:
        self._connections.pop(connection, None)

    def answer(self, request: h11.Request) -> PageSteps:
        """Returns the steps to the answer of one request; the query is dropped."""
        if request.method.decode("ascii") not in _METHODS:
            return iter([_refusal(405, "only GET and HEAD are served")])
        path = request.target.partition(b"?")[0].decode("ascii")
        page = self._pages.get(path)
        if page is None:
            return iter([_refusal(404, f"pages: {' '.join(self._pages)}")])
        return _steps(path, page)


class HttpConnection(asyncio.Protocol):
    """One connection: one request, one answer, then it is closed."""

    __slots__ = ("_http", "_server", "_timer", "_transport")

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._http: h11.Connection | None = h11.Connection(
            h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX
        )  # None once it was answered
        self._transport: asyncio.Transport | None = None
        self._timer: TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        if not self._server.on_connected(self):
            self._transport.abort()
            return
        self._timer = self._server.clock.call_later(self._server.connection_s_max, self.cut_off)

    def data_received(self, data: bytes) -> None:
        http = self._http
        if http is None:
            return  # a body, or another request: the connection is closing
        try:
            http.receive_data(data)
            event = http.next_event()
        except h11.RemoteProtocolError as error:
            self._end(http, _refusal(error.error_status_hint, f"not an HTTP/1.1 request: {error}"))
            return
        if isinstance(event, h11.Request):
            self._http = None
            end = partial(self._end, http, has_body=event.method != b"HEAD")
            self._advance(self._server.answer(event), end)

    def eof_received(self) -> bool:
        return False  # the transport sends the rest and closes itself

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._transport = None
        self._server.on_lost(self)

    def cut_off(self) -> None:
        """Closes at once; unsent bytes are lost."""
        if self._transport is not None:
            self._transport.abort()

    def _advance(self, steps: PageSteps, end: Callable[[HttpAnswer], None]) -> None:
        """Runs one step of a page, and the others in later turns of the loop while the peer is there."""
        if self._transport is None:
            return
        answer = next(steps)
        if answer is None:
            self._server.clock.call_soon(self._advance, steps, end)
        else:
            end(answer)

    def _end(self, http: h11.Connection, answer: HttpAnswer, *, has_body: bool = True) -> None:
        assert self._transport is not None
        self._http = None
        headers = [
            ("Content-Type", answer.content_type),
            ("Content-Length", str(len(answer.body))),
            ("Cache-Control", "no-store"),
            ("Connection", "close"),
        ]
        if answer.status == HTTPStatus.METHOD_NOT_ALLOWED:
            headers.append(("Allow", ", ".join(_METHODS)))
        reason = HTTPStatus(answer.status).phrase
        head = h11.Response(status_code=answer.status, headers=headers, reason=reason)
        body = [h11.Data(data=answer.body)] if has_body else []
        for event in (head, *body, h11.EndOfMessage()):
            self._transport.write(http.send(event) or b"")
        self._transport.close()


def _steps(path: str, page: Page) -> PageSteps:
    try:
        found = page()
        if isinstance(found, HttpAnswer):
            yield found
        else:
            yield from found
    except Exception as error:  # the edge: a broken page must not stop a broker
        log.error(events.HTTP_PAGE_FAILED, extra={"path": path}, exc_info=error)
        yield _refusal(500, "the page cannot be rendered: see the log")


def _refusal(status: int, reason: str) -> HttpAnswer:
    return HttpAnswer(f"{reason}\n".encode(), status=status)
