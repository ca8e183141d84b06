"""One connection of the gRPC server (`GrpcConnection`): an `asyncio.Protocol` around the HTTP/2 of `h2`.

Strategy:   incoming bytes pass `Http2Reader`, then h2, whose events open, feed and end calls. `Http2Writer`
            sends their answers.
Invariants: a failure of one call ends that call only; one of the connection ends its calls only. While the
            socket is full nothing is read, so a peer that reads nothing cannot fill the memory with answers.
At a bound: see `GrpcLimits`; a peer that exceeds one gets GOAWAY with the error code, and is disconnected.
Source:     spec proxy 1.3, 2.10, 10.6.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Final, cast

from h2 import events as h2_events
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError as Http2Error

from tandemmq.errors import TandemError
from tandemmq.proxy.grpc_call import RESPONSE, GrpcStream, Request, read_headers, trailers
from tandemmq.proxy.grpc_limits import Deadlines, GrpcLimits, SharedCalls
from tandemmq.proxy.http2_frames import Http2Reader, Http2Refused
from tandemmq.proxy.http2_writer import STREAM_ID_MAX, Headers, Http2Writer, ServerHttp2
from tandemmq.proxy.meters import CallMeter
from tandemmq.proxy.rpc import GrpcFailure, GrpcStatus, Method, grpc_status_of
from tandemmq.proxy.statuses import Code, RpcRefused
from tandemmq.runtime.ports import Address, Clock, TimerHandle
from tandemmq.runtime.tasks import TaskScope
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

DRAIN_PING: Final = b"draining"
DRAIN_S: Final = 1.0
"""The time for the answer to DRAIN_PING; then the peer is taken to know that the connection ends."""
PEER_CLOSE_S: Final = 1.0
"""The time for the peer to close a drained connection."""
GRANT_PER_CALL: Final = 8
"""The control frames that a call allows its peer: a reset, window updates, pings of a bandwidth probe."""
METHOD_NOT_ALLOWED: Final[Headers] = [(b":status", b"405"), (b"allow", b"POST")]
UNSUPPORTED_MEDIA_TYPE: Final[Headers] = [(b":status", b"415")]


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcContext:
    """The parts of a server that its connections use.

    on_connected  registers a connection; returns False if it must be closed
    """

    clock: Clock
    limits: GrpcLimits
    shared: SharedCalls
    deadlines: Deadlines
    tasks: TaskScope
    methods: Mapping[str, Method]
    meter: CallMeter
    on_connected: Callable[[GrpcConnection], bool]
    on_lost: Callable[[GrpcConnection], None]


class GrpcConnection(asyncio.Protocol):
    """An accepted connection.

    idle_since_s  the time since when no call runs; None while one does
    """

    def __init__(self, context: GrpcContext, source: Address | None = None) -> None:
        """Creates the connection; `source` is the peer's address if a load balancer has reported it."""
        now_s = context.clock.monotonic()
        self.peer: Address = source or ("", 0)
        self.shared = context.shared
        self.streams: dict[int, GrpcStream] = {}
        self.idle_since_s: float | None = now_s
        self._context = context
        self._reader = Http2Reader(now_s)
        self._http2 = ServerHttp2(context.limits)
        self.writer = Http2Writer(self._http2, context.clock, self._reader.credit)
        self._transport: asyncio.Transport | None = None
        self._preface_timer: TimerHandle | None = None
        self._drain_timer: TimerHandle | None = None
        self._is_read_due = False
        self._is_reading = True
        self._is_draining = False
        self._is_drained = False
        self._is_over = False
        self._stalled_since_s: float | None = None
        """The time since when the peer accepts no byte, while the socket is full, or the connection is closed
        and may have unsent bytes.
        """
        self._stalled_bytes = 0
        self._reset_count = 0
        self._resets_since_s = 0.0
        self._handlers: dict[type[h2_events.Event], Callable[[Any], None]] = {
            h2_events.RequestReceived: self._on_request,
            h2_events.DataReceived: self._on_data,
            h2_events.StreamEnded: self._on_stream_ended,
            h2_events.StreamReset: self._on_stream_reset,
            h2_events.WindowUpdated: self._on_window_updated,
            h2_events.RemoteSettingsChanged: self._on_settings,
            h2_events.PingAckReceived: self._on_ping_answered,
        }

    # The methods called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        endpoint = transport.get_extra_info("peername")
        if endpoint and self.peer == ("", 0):
            self.peer = (str(endpoint[0]), int(endpoint[1]))
        if not self._context.on_connected(self):
            self.abort()
            return
        limits = self._context.limits
        self._transport.set_write_buffer_limits(high=limits.write_buffer_high_bytes)
        self._preface_timer = self._context.clock.call_later(limits.preface_s, self._on_no_preface)
        self.writer.attach(self._transport)

    def data_received(self, data: bytes) -> None:
        if not self._is_over:
            self._reader.add(data)
            if not self._is_read_due:
                self._read()

    def eof_received(self) -> bool:
        return False  # the transport closes itself

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._end_all("the connection is lost")
        self._context.on_lost(self)

    def pause_writing(self) -> None:
        self.writer.is_full = True
        self._stalled_since_s = self._context.clock.monotonic()
        self._set_reading()

    def resume_writing(self) -> None:
        self.writer.is_full = False
        if not self._is_over:
            self._stalled_since_s = None
            self.writer.pump()
            self._set_reading()

    # The methods called by the server.

    def drain(self) -> None:
        """Lets running calls end, and closes the connection behind the last one. The peer is asked to open
        no more calls; those that it sent before it knew are served.
        """
        if self._is_draining or self._is_over:
            return
        self._is_draining = True
        if not self._reader.has_preface:
            self._close("it drains")
            return
        self.writer.go_away(ErrorCodes.NO_ERROR, STREAM_ID_MAX)
        self.writer.ping(DRAIN_PING)
        self._drain_timer = self._context.clock.call_later(DRAIN_S, self._on_drain_known)

    def stop(self) -> None:
        """Answers all calls with UNAVAILABLE and closes the connection."""
        if self._is_over:
            if self._transport is not None:
                self._transport.close()
            return
        for stream in self.streams.values():
            self._finish(stream, GrpcStatus.UNAVAILABLE, "the proxy stops")
        if self._reader.has_preface:
            self.writer.go_away(ErrorCodes.NO_ERROR)
        self._close("the proxy stops")

    def abort(self) -> None:
        """Closes the connection at once; unsent bytes are lost."""
        self._end_all("the connection is closed")
        if self._transport is not None:
            self._transport.abort()

    def sweep(self, now_s: float) -> None:
        """Checks the time limits of the connection itself."""
        limits = self._context.limits
        if self._stalled_since_s is not None and self._transport is not None:
            unsent = self._transport.get_write_buffer_size()
            if unsent < self._stalled_bytes:
                self._stalled_since_s = now_s
            self._stalled_bytes = unsent
        if self._stalled_since_s is not None and now_s - self._stalled_since_s >= limits.slow_reader_s:
            if not self._is_over:
                self._log_closed(f"the peer reads nothing for {limits.slow_reader_s:g} s")
            self.abort()
        elif self.idle_since_s is not None and now_s - self.idle_since_s >= limits.idle_s:
            self.drain()

    # Incoming frames.

    def _read(self) -> None:
        self._is_read_due = False
        if self._is_over:
            return
        try:
            frames, has_more = self._reader.take(self._context.clock.monotonic())
            if frames:
                self._accept(frames)
        except Http2Refused as error:
            self._refuse(error.code, str(error))
            return
        except Http2Error as error:  # h2 has collected the GOAWAY
            self._log_closed(f"{type(error).__name__}: {error}")
            self._close("the peer violates HTTP/2")
            return
        except Exception as error:  # noqa: BLE001  # the edge: a connection must not stop the proxy
            self._log_bug(error)
            self._refuse(ErrorCodes.INTERNAL_ERROR, "an internal error")
            return
        if has_more:
            self._is_read_due = True
            self._context.clock.call_soon(self._read)
        self._set_reading()
        self._close_if_done()

    def _accept(self, frames: bytes) -> None:
        if self._preface_timer is not None:
            self._preface_timer.cancel()
            self._preface_timer = None
        for event in self._http2.receive_data(frames):
            handle = self._handlers.get(type(event))
            if handle is not None:
                handle(event)
        self.writer.flush_soon()  # the answers of h2 itself

    def _set_reading(self) -> None:
        is_wanted = not self.writer.is_full and not self._is_read_due
        if self._is_over or self._transport is None or self._transport.is_closing():
            return
        if is_wanted != self._is_reading:
            self._is_reading = is_wanted
            self._transport.resume_reading() if is_wanted else self._transport.pause_reading()

    def _on_request(self, event: h2_events.RequestReceived) -> None:
        stream_id, has_ended = event.stream_id, event.stream_ended is not None
        self._reader.credit.grant(GRANT_PER_CALL)
        if len(self.streams) >= self._context.limits.streams_max:
            self.writer.reset(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        request = read_headers(event.headers)
        refusal: Headers
        if request.method != b"POST":
            refusal = METHOD_NOT_ALLOWED
        elif not request.is_grpc:
            refusal = UNSUPPORTED_MEDIA_TYPE
        else:
            try:
                self._begin(stream_id, request)
            except GrpcFailure as error:
                refusal = RESPONSE + trailers(error.status, str(error))
            else:
                return
        self.writer.end_stream(stream_id, refusal, peer_has_ended=has_ended)

    def _begin(self, stream_id: int, request: Request) -> None:
        """Starts a call. Raises GrpcFailure."""
        context = self._context
        if self._is_drained:
            raise GrpcFailure(GrpcStatus.UNAVAILABLE, "this connection has ended; open another one")
        method = context.methods.get(request.path)
        if method is None:
            raise GrpcFailure(GrpcStatus.UNIMPLEMENTED, f"unknown method {request.path[:200]}")
        now_s = context.clock.monotonic()
        stream = GrpcStream(self, stream_id, method, request, now_s)
        self.streams[stream_id] = stream
        self.idle_since_s = None
        stream.hold_headers(request.size)
        if not context.shared.begin(is_held=method.is_held):
            stream.refuse(RpcRefused(Code.TOO_MANY_REQUESTS, "too many calls are in flight; try later"))
        context.deadlines.add(stream, min(stream.deadline_s, now_s + context.limits.request_s))
        stream.task = context.tasks.start("call", self._serve(stream))
        stream.task.add_done_callback(lambda _: self._on_served(stream))

    def _on_data(self, event: h2_events.DataReceived) -> None:
        stream = self.streams.get(event.stream_id)
        if stream is not None:
            stream.on_data(event.data, event.flow_controlled_length)
        elif event.flow_controlled_length:
            self.writer.open_window(event.stream_id, event.flow_controlled_length)

    def _on_stream_ended(self, event: h2_events.StreamEnded) -> None:
        stream = self.streams.get(event.stream_id)
        if stream is not None:
            stream.on_end()

    def _on_stream_reset(self, event: h2_events.StreamReset) -> None:
        stream = self.streams.get(event.stream_id)
        now_s = self._context.clock.monotonic()
        limits = self._context.limits
        if stream is None or now_s - stream.opened_at_s < limits.reset_young_s:
            if now_s - self._resets_since_s > limits.resets_period_s:
                self._reset_count, self._resets_since_s = 0, now_s
            self._reset_count += 1
            if self._reset_count > limits.resets_max:
                raise Http2Refused(ErrorCodes.ENHANCE_YOUR_CALM, "too many calls are reset at once")
        if stream is not None and stream.ending is None:
            self._end(stream, GrpcStatus.CANCELLED, "the client cancelled it")

    def _on_window_updated(self, event: h2_events.WindowUpdated) -> None:
        if not event.stream_id:
            self.writer.pump()
            return
        stream = self.streams.get(event.stream_id)
        if stream is not None:
            self.writer.on_window(stream)

    def _on_settings(self, _: h2_events.RemoteSettingsChanged) -> None:
        self.writer.pump()  # the initial window may have changed

    def _on_ping_answered(self, event: h2_events.PingAckReceived) -> None:
        if self._is_draining and event.ping_data == DRAIN_PING:
            self._on_drain_known()

    # Calls.

    async def _serve(self, stream: GrpcStream) -> None:
        """Runs the handler and answers with its outcome, unless the call has ended before."""
        try:
            await stream.method.serve(stream)
            status, text = GrpcStatus.OK, ""
        except asyncio.CancelledError:
            stream.task = None
            self._finish(stream, GrpcStatus.UNAVAILABLE, "the proxy cancelled the call")
            raise
        except Exception as error:  # noqa: BLE001  # the edge: a handler's bug must not stop the proxy
            status, text = self._status_of(stream, error)
        stream.task = None
        self._finish(stream, status, text)

    def _status_of(self, stream: GrpcStream, error: Exception) -> tuple[GrpcStatus, str]:
        """Returns the status that answers an error of a handler; unexpected ones are logged."""
        if isinstance(error, GrpcFailure):
            return error.status, str(error)
        if isinstance(error, RpcRefused):
            return grpc_status_of(error.code), str(error)
        is_expected = isinstance(error, TandemError)
        facts = {"rpc": stream.method.path, "peer": self.peer, "error": str(error)}
        bug = None if is_expected else error
        self.shared.lines.write(log, events.GRPC_CALL_FAILED, facts, level=logging.ERROR, error=bug)
        text = str(error) if is_expected else "an internal error: see the log of the proxy"
        return GrpcStatus.INTERNAL, text

    def _finish(self, stream: GrpcStream, status: GrpcStatus, text: str) -> None:
        """Ends a running call and sends its status."""
        if stream.ending is None:
            self._end(stream, status, text)
            found = trailers(status, text)
            headers = found if stream.is_started else RESPONSE + found
            self.writer.end_stream(stream.id, headers, peer_has_ended=stream.peer_has_ended)

    def _end(self, stream: GrpcStream, status: GrpcStatus, text: str) -> None:
        """Ends a running call without an answer."""
        context = self._context
        self.writer.forget(stream)
        context.deadlines.remove(stream)
        stream.end(status, text)
        lasted_s = context.clock.monotonic() - stream.opened_at_s
        context.meter.end(stream.method.path, status.value or stream.code, lasted_s)

    def _on_served(self, stream: GrpcStream) -> None:
        """Forgets a call whose handler is done."""
        self._context.shared.end(is_held=stream.method.is_held)
        del self.streams[stream.id]
        if not self.streams:
            self.idle_since_s = self._context.clock.monotonic()
            self._close_if_done()

    def on_due(self, stream: GrpcStream) -> None:
        now_s, request_s = self._context.clock.monotonic(), self._context.limits.request_s
        if now_s >= stream.deadline_s:
            self._finish(stream, GrpcStatus.DEADLINE_EXCEEDED, "the deadline of the call has passed")
        elif not stream.has_request and now_s >= stream.opened_at_s + request_s:
            self._finish(stream, GrpcStatus.DEADLINE_EXCEEDED, f"no request within {request_s:g} s")
        elif stream.deadline_s < inf:
            self._context.deadlines.add(stream, stream.deadline_s)

    # The end.

    def _on_no_preface(self) -> None:
        self._preface_timer = None
        self._refuse(ErrorCodes.PROTOCOL_ERROR, f"no preface within {self._context.limits.preface_s:g} s")

    def _on_drain_known(self) -> None:
        """Ends the connection for new calls: the peer knows that it drains."""
        if self._drain_timer is not None:
            self._drain_timer.cancel()
            self._drain_timer = None
        if not self._is_drained and not self._is_over:
            self._is_drained = True
            self.writer.go_away(ErrorCodes.NO_ERROR)
            self._close_if_done()

    def _close_if_done(self) -> None:
        if not self._is_over and not self.streams and (self._is_drained or self._reader.goes_away):
            self._await_close()

    def _await_close(self) -> None:
        """Sends the collected frames, and lets the peer close the connection. A socket that is closed while a
        window update or a ping comes in is reset, and the peer would lose the answers that it has not read.
        """
        self.writer.flush()
        self._end_all("it is drained")
        self._stalled_since_s = self._context.clock.monotonic()
        if self._transport is not None:
            if not self._is_reading:
                self._is_reading = True
                self._transport.resume_reading()
            self._drain_timer = self._context.clock.call_later(PEER_CLOSE_S, self._transport.close)

    def _refuse(self, code: ErrorCodes, text: str) -> None:
        """Disconnects a peer that exceeds a bound."""
        self._log_closed(text)
        self.writer.go_away(code)
        self._close(text)

    def _close(self, text: str) -> None:
        """Sends the collected frames and closes the connection."""
        if not self._is_over:
            self.writer.close()
            self._end_all(text)
            self._stalled_since_s = self._context.clock.monotonic()

    def _end_all(self, text: str) -> None:
        """Ends the connection and its calls."""
        self._is_over = True
        self.writer.abandon()
        for timer in (self._preface_timer, self._drain_timer):
            if timer is not None:
                timer.cancel()
        for stream in self.streams.values():
            if stream.ending is None:
                self._end(stream, GrpcStatus.CANCELLED, text)

    def _log_bug(self, error: Exception) -> None:
        lines, facts = self.shared.lines, {"peer": self.peer}
        lines.write(log, events.GRPC_CONNECTION_FAILED, facts, level=logging.ERROR, error=error)

    def _log_closed(self, reason: str) -> None:
        self.shared.lines.write(log, events.GRPC_CONNECTION_CLOSED, {"peer": self.peer, "reason": reason})
