"""Channel: one connection, on either side, and its requests that wait for answers (`OutstandingRequests`).

Incoming bytes go to the decoder, then each request to `on_request` and each response to its waiter, all in
the same call. Bytes of an unknown peer are handled piece by piece, in its turn (`shared_bounds`). Outgoing
frames gather in a list and leave in one write per loop turn. There is no task, lock, queue or log line per
message. The channel knows nothing of codes or handlers (`dispatch`), nor of other connections (`server`,
`client`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import cast

from tandemmq.errors import BrokerUnreachable, Busy, RemoteProtocolError, RequestTimeout, TandemError
from tandemmq.protocol.codes import FLAG_RESPONSE
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import Frame, FrameDecoder, decode_frames, encode_frame, encode_frame_head
from tandemmq.remoting.options import ChannelLimits
from tandemmq.remoting.shared_bounds import PIECE_BYTES, SharedBounds
from tandemmq.runtime.ports import Address, Clock, TimerHandle
from tandemmq.telemetry import events
from tandemmq.units import Buffer

log = logging.getLogger(__name__)

COPY_BYTES_MAX = 32_768
"""The size up to which a body is copied into its frame; a larger one is passed to the socket as it is."""

JOIN_BYTES_MAX = 131_072
SMALL_PIECE_BYTES = 4096
"""The limits for joining the output of one turn into one buffer: up to JOIN_BYTES_MAX, or while pieces are
small on average.
"""

FULL_READ_BYTES = 256_000
"""The size of a full read of uvloop; asyncio reads somewhat more."""
SWEEP_S_MIN = 0.05
"""The least interval of deadline checks in seconds, and so the most that an expiry may be late."""

OPAQUE_MAX = 2**31 - 1
BLOCK_COUNT_MIN = 3
"""The number of frames from which handling them as a block may be faster."""

OnReply = Callable[[Command | TandemError], None]
OnRequest = Callable[["Channel", Command], None]
OnBlock = Callable[["Channel", Sequence[Frame]], bool]
"""Handles all frames of one read together; returns False, and does nothing, if they must be handled one by
one.
"""
Signer = Callable[[Command], None]
"""A function that adds the sender's signature to an outgoing request."""


class Channel(asyncio.Protocol):
    """One connection. `on_close` callbacks run once, when it is closed.

    `send` and `send_frame` to a closed channel are dropped, because the peer cannot receive anything.
    """

    __slots__ = (
        "_bytes_written",
        "_clock",
        "_close_timer",
        "_decoder",
        "_frame_bytes_held",
        "_is_flush_due",
        "_is_in_piece",
        "_is_lost",
        "_limits",
        "_on_block",
        "_on_connected",
        "_on_request",
        "_out",
        "_outstanding",
        "_shared",
        "_signer",
        "_slow_timer",
        "_sweep_at",
        "_sweep_timer",
        "_transport",
        "_unread",
        "close_reason",
        "is_closed",
        "is_known",
        "last_read_at",
        "last_written_at",
        "local",
        "on_close",
        "peer",
        "tasks_running",
    )

    def __init__(
        self,
        on_request: OnRequest,
        *,
        clock: Clock,
        limits: ChannelLimits,
        on_block: OnBlock | None = None,
        on_connected: Callable[[Channel], None] | None = None,
        signer: Signer | None = None,
        shared: SharedBounds | None = None,
        is_known: bool = True,
    ) -> None:
        """Creates the channel. `on_block` is asked first for every read of at least `BLOCK_COUNT_MIN` frames.

        Until the peer is known (`make_known`), it gets only the part of the `shared` bounds for unknown
        peers.
        """
        self.peer: Address = ("", 0)
        self.local: Address = ("", 0)
        self.is_closed = False
        self.close_reason = ""
        self.on_close: list[Callable[[Channel], None]] = []
        self.tasks_running = 0  # waiting handlers of this channel's requests; counted by `dispatch`
        self.last_read_at = self.last_written_at = clock.monotonic()
        self._on_request = on_request
        self._on_block = on_block
        self._on_connected = on_connected
        self._signer = signer
        self._clock = clock
        self._limits = limits
        self._decoder = FrameDecoder(limits.frame_bytes_max)
        self._shared = shared
        self._frame_bytes_held = 0
        self.is_known = is_known or shared is None
        self._unread: bytes | memoryview = b""  # bytes of an unknown peer that waits for its turn
        self._is_in_piece = False
        self._outstanding = OutstandingRequests(limits.requests_in_flight_max)
        self._transport: asyncio.Transport | None = None
        self._out: list[Buffer] = []
        self._is_flush_due = False
        self._is_lost = False
        self._bytes_written = 0
        self._sweep_at = 0.0
        self._sweep_timer: TimerHandle | None = None
        self._slow_timer: TimerHandle | None = None
        self._close_timer: TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Channel {self.peer[0]}:{self.peer[1]}{' closed' if self.is_closed else ''}>"

    @property
    def unfinished_frame(self) -> int:
        """The number of the frame that the peer has begun and not ended; 0 without one."""
        return self._decoder.unfinished_count if self._decoder.buffered_bytes else 0

    def make_known(self) -> None:
        """Marks the peer as known, after it has proved its identity."""
        if not self.is_known:
            self.is_known = True
            if self._shared is not None:
                self._shared.frames.make_known(self._frame_bytes_held)
                self._shared.unknown_channels.pop(self, None)

    # Sending.

    def send(self, command: Command) -> None:
        """Queues a response or a oneway request; a request gets its opaque here.

        Raises:  LocalProtocolError when it cannot be encoded.
        """
        if self.is_closed:
            return
        if not command.flag & FLAG_RESPONSE:
            command.opaque = self._outstanding.next_opaque()
            if self._signer is not None:
                self._signer(command)
        self._queue(command)

    def send_frame(self, *buffers: Buffer) -> None:
        """Queues the pieces of encoded frames. They must not change; slices of memory maps are allowed."""
        if self.is_closed:
            return
        self._out += buffers
        if not self._is_flush_due:
            self._flush_soon()

    def begin_block(self, code: int, opaques: Sequence[int]) -> None:
        """Records requests that are handled as a block, without `on_request`; does nothing here."""

    def send_answers(self, opaques: Sequence[int], frames: Buffer) -> None:
        """Queues the encoded answers to requests of a block, all of them with code 0."""
        self.send_frame(frames)

    def start_request(self, command: Command, on_reply: OnReply, timeout_s: float) -> int:
        """Sends a request; calls `on_reply` once with the response, RequestTimeout or BrokerUnreachable.

        `on_reply` is called while bytes are read and must not raise. The returned opaque identifies the
        request for `forget_request`.

        Raises:  BrokerUnreachable when the channel is closed; Busy at the bound of waiting requests;
                 LocalProtocolError when it cannot be encoded. Then `on_reply` is not called.
        """
        if self.is_closed:
            raise self._unreachable()
        if self._signer is not None:
            self._signer(command)
        deadline = self._clock.monotonic() + timeout_s
        opaque = command.opaque = self._outstanding.add(on_reply, deadline)
        try:
            self._queue(command)
        except BaseException:
            self._outstanding.take(opaque)
            raise
        if self._sweep_timer is None or deadline < self._sweep_at:
            self._schedule_sweep(deadline)
        return opaque

    def forget_request(self, opaque: int) -> None:
        """Drops a request; a later answer to it is ignored."""
        self._outstanding.take(opaque)

    async def request(self, command: Command, timeout_s: float) -> Command:
        """Sends a request and returns the response, whatever its code.

        Raises:  RequestTimeout, BrokerUnreachable, and what `start_request` raises.
        """
        answer: asyncio.Future[Command | TandemError] = asyncio.get_running_loop().create_future()
        opaque = self.start_request(command, lambda result: _resolve(answer, result), timeout_s)
        try:
            result = await answer
        finally:
            self._outstanding.take(opaque)
        if isinstance(result, TandemError):
            raise result
        return result

    @property
    def requests_in_flight(self) -> int:
        """The number of our requests that wait for an answer."""
        return len(self._outstanding)

    @property
    def was_closed_here(self) -> bool:
        """True after `close`; False after a loss of the connection, and after `abort`."""
        return self._close_timer is not None

    def close(self, reason: str = "") -> None:
        """Sends queued bytes, then closes; the connection is gone within `close_linger_s`."""
        if self.is_closed:
            return
        self._flush()
        self.is_closed = True
        self.close_reason = reason
        if self._transport is not None:
            self._transport.close()
            self._close_timer = self._clock.call_later(self._limits.close_linger_s, self._transport.abort)

    def abort(self, reason: str) -> None:
        """Closes at once; unsent bytes are lost."""
        if not self.is_closed:
            self.is_closed = True
            self.close_reason = reason
        self._out.clear()
        if self._transport is not None:
            self._transport.abort()

    # The methods called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        self.peer = _endpoint(transport, "peername")
        self.local = _endpoint(transport, "sockname")
        high = self._limits.write_buffer_high_bytes
        self._transport.set_write_buffer_limits(high=high, low=high // 4)
        if self._on_connected is not None:
            self._on_connected(self)

    def data_received(self, data: bytes) -> None:
        self.last_read_at = self._clock.monotonic()
        if self.is_closed:
            return
        if not (self.is_known or self._is_in_piece):
            self._receive_unknown(data)
            return
        try:
            frames = self._decoder.split(data)
            if self._on_block is not None and len(frames) >= BLOCK_COUNT_MIN and self._on_block(self, frames):
                frames = []
            commands = decode_frames(frames)
        except RemoteProtocolError as error:
            self._warn(events.CHANNEL_CLOSED_BY_BAD_FRAME, {"reason": str(error)})
            self.close(f"bad frame: {error}")
            return
        on_request = self._on_request
        for command in commands:
            if command.flag & FLAG_RESPONSE:
                on_reply = self._outstanding.take(command.opaque)
                if on_reply is not None:
                    on_reply(command)
            else:
                on_request(self, command)
        held = self._decoder.buffered_bytes + len(self._unread)
        if held != self._frame_bytes_held and not self._hold(held):
            return
        if len(data) >= FULL_READ_BYTES and self._transport is not None and not self.is_closed:
            # More bytes are waiting, and the event loop would read on, up to 32 times. Other connections come
            # first, and so does the work these requests wait for.
            self._transport.pause_reading()
            self._clock.call_soon(self._read_on)
        # The flush runs after the log's write and after the tasks woken by these commands, so their output
        # leaves in this turn of the loop, not in the next.
        if not self._is_flush_due:
            self._flush_soon()

    def eof_received(self) -> bool:
        self._flush()
        self.is_closed = True
        return False  # the transport sends the rest and closes itself

    def pause_writing(self) -> None:
        # The peer does not read our answers, so its further requests are not read either.
        if self._transport is not None:
            self._transport.pause_reading()
            self._watch_slow_reader(self._bytes_sent())

    def resume_writing(self) -> None:
        if self._slow_timer is not None:
            self._slow_timer.cancel()
            self._slow_timer = None
        self._read_on()

    def _read_on(self) -> None:
        # Otherwise `resume_writing` or the turn of an unknown peer resumes reading.
        is_due = self._slow_timer is None and not self._unread
        if self._transport is not None and not self.is_closed and is_due:
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = self.is_closed = True
        self.close_reason = self.close_reason or ("closed by the peer" if exc is None else str(exc))
        self._decoder.close()
        self._unread = b""
        self._hold(0)
        self._out.clear()
        for timer in (self._sweep_timer, self._slow_timer, self._close_timer):
            if timer is not None:
                timer.cancel()
        for on_reply in self._outstanding.take_all():
            on_reply(self._unreachable())
        callbacks, self.on_close = self.on_close, []
        for callback in callbacks:
            callback(self)

    # Internals.

    def _receive_unknown(self, data: bytes) -> None:
        """Handles bytes of an unknown peer as far as its turn reaches; keeps the rest, and pauses reading
        until then.
        """
        assert self._shared is not None, "unknown peers share bounds"
        if self._unread:  # TLS may deliver bytes that it had read before the pause
            self._unread = b"".join((self._unread, data))
            self._hold(self._decoder.buffered_bytes + len(self._unread))
            return
        self._unread = memoryview(data)
        while self._unread and self._shared.unknown.may_run():
            self._receive_piece()
        self._wait_for_turn()

    def _run_turn(self) -> None:
        if self.is_closed:
            self._unread = b""
            return
        self._receive_piece()
        self._wait_for_turn()

    def _receive_piece(self) -> None:
        """Handles the next bytes: one piece, or all that is left once the peer is known."""
        assert self._shared is not None
        size = len(self._unread) if self.is_known else PIECE_BYTES
        piece, self._unread = bytes(self._unread[:size]), self._unread[size:]
        begun_at = self._clock.monotonic()
        self._is_in_piece = True
        try:
            self.data_received(piece)
        finally:
            self._is_in_piece = False
        if self.is_closed:
            self._unread = b""
        if not self.is_known:
            self._shared.unknown.spend(self._clock.monotonic() - begun_at)

    def _wait_for_turn(self) -> None:
        if self.is_known and self._unread:
            self._receive_piece()
        if self._unread:
            assert self._shared is not None
            if self._transport is not None:
                self._transport.pause_reading()
            if self._hold(self._decoder.buffered_bytes + len(self._unread)):
                self._shared.unknown.wait(self._run_turn)
        else:
            self._read_on()

    def _warn(self, event: str, facts: dict[str, object]) -> None:
        """Logs the reason for closing the connection, unless the line limit is reached."""
        admitted = {} if self._shared is None else self._shared.lines.admit()
        if admitted is not None:
            log.warning(event, extra={"peer": self.peer, **facts, **admitted})

    def _hold(self, size: int) -> bool:
        """Accounts for the unfinished frame; returns False if no room is left, and the connection is
        closed.
        """
        grown, self._frame_bytes_held = size - self._frame_bytes_held, size
        if self._shared is None:
            return True
        frames = self._shared.frames
        if frames.add(grown, is_known=self.is_known) or grown <= 0:
            return True
        self._warn(
            events.CHANNEL_CLOSED_BY_FRAME_BUDGET, {"frame_bytes": size, "bytes_max": frames.bytes_max}
        )
        self.abort("unfinished frames exceed the memory bound")
        return False

    def _queue(self, command: Command) -> None:
        body = command.body
        if len(body) > COPY_BYTES_MAX:
            self.send_frame(encode_frame_head(command, len(body)), body)
            return
        self._out.append(encode_frame(command))
        if not self._is_flush_due:
            self._flush_soon()

    def _flush_soon(self) -> None:
        self._is_flush_due = True
        self._clock.call_soon(self._flush)

    def _flush(self) -> None:
        """Sends everything queued in one write."""
        self._is_flush_due = False
        out, transport = self._out, self._transport
        if not out or transport is None:
            return
        self._out = []
        if len(out) == 1:
            transport.write(out[0])
            self._bytes_written += len(out[0])
        else:
            total = sum(map(len, out))
            if total <= JOIN_BYTES_MAX or total <= len(out) * SMALL_PIECE_BYTES:
                transport.write(b"".join(out))
            else:
                transport.writelines(out)
            self._bytes_written += total
        self.last_written_at = self._clock.monotonic()
        if transport.get_write_buffer_size() > self._limits.write_buffer_bytes_max:
            self._close_slow_reader("too many bytes are unsent")

    def _bytes_sent(self) -> int:
        """Returns the number of bytes that the kernel has accepted since the beginning."""
        assert self._transport is not None
        return self._bytes_written - self._transport.get_write_buffer_size()

    def _watch_slow_reader(self, bytes_sent: int) -> None:
        self._slow_timer = self._clock.call_later(
            self._limits.slow_reader_close_s, self._check_slow_reader, bytes_sent
        )

    def _check_slow_reader(self, bytes_sent_before: int) -> None:
        bytes_sent = self._bytes_sent()
        if bytes_sent == bytes_sent_before:
            self._close_slow_reader("it takes no bytes")
        else:
            self._watch_slow_reader(bytes_sent)

    def _close_slow_reader(self, reason: str) -> None:
        assert self._transport is not None
        log.warning(
            events.CHANNEL_CLOSED_BY_SLOW_READER,
            extra={
                "peer": self.peer,
                "reason": reason,
                "unsent_bytes": self._transport.get_write_buffer_size(),
            },
        )
        self.abort(f"the peer does not read: {reason}")

    def _schedule_sweep(self, at: float) -> None:
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self._sweep_at = at
        delay_s = max(SWEEP_S_MIN, at - self._clock.monotonic())
        self._sweep_timer = self._clock.call_later(delay_s, self._sweep)

    def _sweep(self) -> None:
        """Ends expired requests; the next sweep is at the earliest remaining deadline."""
        self._sweep_timer = None
        for on_reply in self._outstanding.take_expired(self._clock.monotonic()):
            on_reply(RequestTimeout(f"no answer from {self.peer[0]}:{self.peer[1]} in time"))
        deadline = self._outstanding.next_deadline()
        if deadline is not None and not self._is_lost:
            self._schedule_sweep(deadline)

    def _unreachable(self) -> BrokerUnreachable:
        return BrokerUnreachable(
            f"the connection to {self.peer[0]}:{self.peer[1]} is closed: {self.close_reason or 'by us'}"
        )


class OutstandingRequests:
    """The requests that this side sent over one connection: opaque -> (callback, deadline).

    Opaques start at 1 and never are 0 (spec remoting 2). Deadlines are checked in sweeps, so a request costs
    no timer of its own.
    """

    __slots__ = ("_count_max", "_opaque", "_rows")

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._opaque = 0
        self._rows: dict[int, tuple[OnReply, float]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def next_opaque(self) -> int:
        """Returns an opaque that no waiting request uses."""
        opaque = self._opaque + 1 if self._opaque < OPAQUE_MAX else 1
        while opaque in self._rows:
            opaque += 1
        self._opaque = opaque
        return opaque

    def add(self, on_reply: OnReply, deadline: float) -> int:
        """Adds a waiting request and returns its opaque. Raises Busy at the bound."""
        if len(self._rows) >= self._count_max:
            raise Busy(f"{self._count_max} requests wait for an answer on this connection")
        opaque = self.next_opaque()
        self._rows[opaque] = (on_reply, deadline)
        return opaque

    def take(self, opaque: int) -> OnReply | None:
        """Removes a request and returns its callback; None without one."""
        row = self._rows.pop(opaque, None)
        return None if row is None else row[0]

    def take_expired(self, now: float) -> list[OnReply]:
        """Removes the requests whose deadline is not after `now`; returns their callbacks, oldest first."""
        expired = [opaque for opaque, row in self._rows.items() if row[1] <= now]
        return [self._rows.pop(opaque)[0] for opaque in expired]

    def take_all(self) -> list[OnReply]:
        """Removes all requests; returns their callbacks, oldest first."""
        rows = [row[0] for row in self._rows.values()]
        self._rows.clear()
        return rows

    def next_deadline(self) -> float | None:
        """Returns the earliest deadline; None without requests."""
        return min((row[1] for row in self._rows.values()), default=None)


def _resolve(answer: asyncio.Future[Command | TandemError], result: Command | TandemError) -> None:
    if not answer.done():
        answer.set_result(result)


def _endpoint(transport: asyncio.BaseTransport, name: str) -> Address:
    """Returns the endpoint; ("", 0) if the peer has gone already."""
    endpoint = transport.get_extra_info(name)
    return (str(endpoint[0]), int(endpoint[1])) if endpoint else ("", 0)
