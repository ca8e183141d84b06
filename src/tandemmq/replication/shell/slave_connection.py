"""One slave's socket on the master: feeds a MasterSession and carries out its effects. `SlaveServer` is the
listener that both kinds of master share.

Strategy: many frames in one write, per slave and loop turn, until the socket pushes back; then nothing until
          it has drained. Small writes are joined; large ones are passed to the socket as views of the mapped
          log. A slow slave may thus keep the disk space of a deleted file in use until it is dropped for its
          silence.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import cast

from tandemmq.errors import RemoteProtocolError, StoreError
from tandemmq.remoting.options import is_loopback, render_address
from tandemmq.replication.core.effects import (
    Acknowledged,
    Disconnect,
    FellBehind,
    MasterEffect,
    Send,
    TransferStarted,
)
from tandemmq.replication.core.frames import (
    NONCE_BYTES,
    TANDEM_BODY_BYTES_MAX,
    AllowedHosts,
    MasterHandshake,
)
from tandemmq.replication.core.master import MasterSession
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.replication.core.progress import LogRange, MasterState, SlaveName, StartRule, TransferStart
from tandemmq.replication.core.replicas import Connection
from tandemmq.replication.shell.master_status import SlaveStatus
from tandemmq.runtime.machine import unpredictable_bytes
from tandemmq.runtime.ports import Address, Clock, Listener, Network, TimerHandle
from tandemmq.runtime.tasks import FaultGuard, OnFatal
from tandemmq.store.message_store import MessageStore
from tandemmq.telemetry import events
from tandemmq.units import ReplicaId

log = logging.getLogger(__name__)

JOINED_BYTES_MAX = 64 * 1024
TURN_BYTES_MAX = TANDEM_BODY_BYTES_MAX
"""The most bytes sent to one slave per loop turn; a fast socket would otherwise block the loop until all is
sent.
"""


def warn_of_open_port(options: ReplicationOptions, address: Address) -> None:
    """Logs a warning at the start if the port is open: any host that reaches it gets the log and can pretend
    to be a slave.

    Its acknowledgements then count for sends that wait for a slave.
    """
    is_limited = bool(options.shared_secret or options.allowed_slaves)
    if not is_limited and not is_loopback(address[0]):
        log.warning(events.REPLICATION_OPEN, extra={"address": address})


class SlavePump:
    """Makes the connections of a master send confirmed bytes: in the loop turn that wrote them if sends wait
    for slaves, otherwise in the next turn, after the answers to clients.
    """

    def __init__(
        self, connections: list[SlaveConnection], *, store: MessageStore, clock: Clock, guard: FaultGuard
    ) -> None:
        self._connections = connections
        self._store = store
        self._clock = clock
        self._guard = guard
        self._is_due = False

    def wake(self) -> None:
        """Handles new bytes to send."""
        if not self._connections:
            return
        if self._store.replies.awaits_acks:
            self._guard.run(self._send)
        elif not self._is_due:
            self._is_due = True
            self._clock.call_soon(self._guard.run, self._send_due)

    def _send_due(self) -> None:
        assert self._is_due
        self._is_due = False
        self._send()

    def _send(self) -> None:
        for connection in list(self._connections):
            try:
                connection.pump()
            except AssertionError:
                raise
            except Exception as error:
                # This may run inside the store's write; one failing slave must not affect it or other slaves.
                log.error(events.SLAVE_PUSH_FAILED, exc_info=error)
                connection.close(f"sending failed: {error!r}")


class SlaveConnection(asyncio.Protocol):
    """The connection of one slave, from accept to close. `record` is its entry in the replica directory."""

    __slots__ = (
        "_clock",
        "_guard",
        "_handshake",
        "_hub",
        "_is_paused",
        "_is_resume_due",
        "_options",
        "_timer",
        "_transport",
        "close_reason",
        "name",
        "peer",
        "record",
        "session",
    )

    session: MasterSession
    record: Connection

    def __init__(
        self, hub: SlaveServer, *, options: ReplicationOptions, clock: Clock, guard: FaultGuard
    ) -> None:
        self._hub = hub
        self._guard = guard
        self._options = options
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._timer: TimerHandle | None = None
        self._handshake: MasterHandshake | None = None
        self._is_paused = False
        self._is_resume_due = False  # its share of this turn is used; it is pumped again in the next
        self.close_reason = ""
        self.name: SlaveName | None = None
        """The name that the slave reported in a separate request; None if it reported none."""
        self.peer: Address = ("", 0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert self._transport is None, "a connection is made once"
        self._transport = cast(asyncio.Transport, transport)
        host, port = self._transport.get_extra_info("peername")[:2]
        self.peer = (str(host), int(port))
        self.session = self._hub.new_session(self.peer[0], self._now_ms())
        self.record = Connection(self.peer[0])
        if not self._hub.on_accepted(self):
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=self._options.write_buffer_bytes_max)
        self._handshake = self._hub.new_handshake()
        if self._handshake is not None:
            self._write(self._handshake.greeting())
        self._arm()

    def status(self, log_end: int, *, replica: ReplicaId | None, is_in_sync: bool) -> SlaveStatus:
        """Returns the status of this slave for a master whose log ends at `log_end`."""
        session = self.session
        return SlaveStatus(
            address=self.peer,
            name=self.name,
            replica=replica,
            state=session.state,
            start=session.start,
            acknowledged=session.acknowledged,
            next_offset=session.next_offset,
            lag_bytes=log_end - session.acknowledged,
            is_in_sync=is_in_sync,
            is_tandem=session.is_tandem,
            bytes_per_second=session.rate.per_second(self._now_ms()),
        )

    def data_received(self, data: bytes) -> None:
        self._guard.run(self._on_data, data)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._guard.run(self.pump)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.session.on_closed()
        assert self.session.is_closed, self.session.state
        self.close_reason = self.close_reason or ("the slave closed" if exc is None else str(exc))
        facts = {"slave": f"{self.peer[0]}:{self.peer[1]}", "reason": self.close_reason}
        log.info(events.SLAVE_DISCONNECTED, extra=facts)
        self._hub.on_lost(self)

    def pump(self) -> None:
        """Sends bytes that the log holds beyond what was sent, within the limits of this turn and the
        socket.
        """
        if self._is_resume_due or not self._can_write():
            return
        session, now_ms = self.session, self._now_ms()
        log_range = self._hub.log_range()
        turn_bytes = 0
        while size := session.sendable_bytes(log_range, now_ms, bytes_max=TURN_BYTES_MAX):
            if turn_bytes >= TURN_BYTES_MAX:
                self._is_resume_due = True
                self._clock.call_soon(self._guard.run, self._resume)
                break
            try:
                view = self._hub.log_view(session.next_offset, size)
            except (StoreError, OSError) as error:
                # The slave reconnects; by then its offset may be readable, or found too old.
                self.close(f"the log cannot be read at {session.next_offset}: {error}")
                return
            if not len(view):
                break
            assert len(view) <= size, (len(view), size)
            self._write_all(session.frames(view, now_ms), len(view))
            turn_bytes += len(view)
            if not self._can_write():
                break
        assert turn_bytes < 2 * TURN_BYTES_MAX, turn_bytes
        assert self.record.sent <= session.next_offset, (self.record.sent, session.next_offset)
        self.record.sent = session.next_offset
        if self._options.flow_control and turn_bytes:
            self._arm()

    def _resume(self) -> None:
        self._is_resume_due = False
        self.pump()

    def send_head(self) -> None:
        """Sends a head without a body, unless earlier frames still wait for the socket."""
        if self._can_write():
            self._perform([self.session.heartbeat(self._now_ms())])

    def close(self, reason: str) -> None:
        """Closes at once; bytes that the socket has not accepted are dropped."""
        assert reason, "a closed connection has a reason"
        self.close_reason = self.close_reason or reason
        if self._transport is not None:
            self._transport.abort()

    def _on_data(self, data: bytes) -> None:
        if self._handshake is not None:
            data = self._receive_handshake(self._handshake, data)
        if not data:
            return
        if not self.session.is_closed:
            self._perform(self.session.on_data(data, self._hub.log_range(), self._now_ms()))
            if self.session.state is MasterState.SUBSCRIBING:
                self._arm()

    def _receive_handshake(self, handshake: MasterHandshake, data: bytes) -> bytes:
        """Returns the part of `data` that belongs to the stream; nothing before the slave has proven the
        secret.
        """
        assert self.session.start is None, "nothing is read before the proof"
        try:
            outcome = handshake.feed(data)
        except RemoteProtocolError as error:
            log.warning(events.SLAVE_REFUSED, extra={"slave": self.peer[0], "reason": str(error)})
            self.close(str(error))
            return b""
        if outcome is None:
            return b""
        proof, rest = outcome
        self._handshake = None
        self._write(proof)
        return rest

    def _can_write(self) -> bool:
        return self._transport is not None and not self._is_paused

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _write_all(self, pieces: list[bytes | memoryview], size_bytes: int) -> None:
        if self._transport is None:
            return
        if size_bytes <= JOINED_BYTES_MAX:
            self._transport.write(b"".join(pieces))
        else:
            self._transport.writelines(pieces)

    def _perform(self, effects: list[MasterEffect]) -> None:
        for effect in effects:
            match effect:
                case Acknowledged(log_offset):
                    self._hub.on_acknowledged(self, log_offset)
                case Send(data):
                    self._write(data)
                case TransferStarted(start):
                    self._hub.on_started(self, start)
                    assert self.record.sent == 0, self.record.sent
                    if start.rule in _COPYING:
                        self.record.sent = start.log_offset
                        self._hub.on_subscribed(self)
                    elif start.rule is StartRule.SLAVE_AHEAD:
                        self._hub.on_ahead(self)
                    self._log_start()
                    self._arm()
                    self._clock.call_soon(self._guard.run, self.pump)
                case FellBehind(log_offset, log_start):
                    self._hub.on_fell_behind(self)
                    self._log_too_old(log_offset, log_start)
                case Disconnect(reason):
                    self.close_reason = reason
                    self._end()

    def _end(self) -> None:
        """Closes gracefully if the write buffer is empty, so that a TandemMQ slave still receives the head
        with the reason. Otherwise aborts: a slave that reads nothing must not keep the connection open until
        its kernel gives up, which takes a quarter of an hour.
        """
        assert self.session.is_closed, self.session.state
        if self._transport is None:
            return
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()

    def _arm(self) -> None:
        """Arms the one timer of the connection; it may ring early, never late."""
        assert self._transport is not None, "the timer of a connection that is gone would stay"
        if self._timer is not None:
            self._timer.cancel()
        now_ms = self._now_ms()
        delay_ms = max(self.session.next_tick_ms(now_ms) - now_ms, 1)
        self._timer = self._clock.call_later(delay_ms / 1000, self._guard.run, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._transport is None or self.session.is_closed:
            return
        can_write = not self._is_paused and not self._transport.get_write_buffer_size()
        self._perform(self.session.on_tick(self._hub.log_range(), self._now_ms(), can_write=can_write))
        if not self.session.is_closed:
            self.pump()
            self._arm()
        self._hub.check_in_sync()

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    def _log_start(self) -> None:
        start = self.session.start
        assert start is not None
        facts = {
            "slave": f"{self.peer[0]}:{self.peer[1]}",
            "reported_offset": start.reported,
            "start_offset": start.log_offset,
            "rule": start.rule.name,
            "log_end": start.master_end,
        }
        if start.rule is StartRule.SLAVE_AHEAD:
            log.error(events.SLAVE_AHEAD, extra=facts)
        elif start.rule is StartRule.SLAVE_TOO_OLD:
            self._log_too_old(start.reported, self._hub.log_range().start)
        else:
            log.info(events.SLAVE_SUBSCRIBED, extra=facts)

    def _log_too_old(self, log_offset: int, log_start: int) -> None:
        facts = {"slave": f"{self.peer[0]}:{self.peer[1]}", "next_offset": log_offset, "log_start": log_start}
        log.error(events.SLAVE_TOO_OLD, extra=facts)


_COPYING = (StartRule.RESUMED, StartRule.LAST_FILE, StartRule.FIRST_FILE)


class SlaveServer(ABC):
    """Listens for slaves and serves them the confirmed log. A subclass decides which sessions they get, and
    what their acknowledgements mean.
    """

    def __init__(
        self,
        store: MessageStore,
        options: ReplicationOptions,
        *,
        network: Network,
        clock: Clock,
        on_fatal: OnFatal | None = None,
    ) -> None:
        self._store = store
        self._options = options
        self._network = network
        self._clock = clock
        self._guard = FaultGuard(on_fatal)
        self._allowed = AllowedHosts(options.allowed_slaves)
        self._connections: list[SlaveConnection] = []
        self._pump = SlavePump(self._connections, store=store, clock=clock, guard=self._guard)
        self._listener: Listener | None = None
        self._unfollow: Callable[[], None] | None = None
        self._is_stopped = False

    async def start(self, host: str, port: int) -> Address:
        """Starts listening and returns the address that slaves dial. Port 0 picks a free one."""
        assert self._listener is None, "it listens once"
        assert not self._is_stopped, "what was stopped does not listen again"
        self._unfollow = self._store.confirmed.follow(self._on_confirmed)
        self._listener = await self._network.listen(
            host,
            port,
            lambda: SlaveConnection(self, options=self._options, clock=self._clock, guard=self._guard),
        )
        host, port = self._listener.address
        segment_bytes = self._store.options.commit_log_file_bytes
        facts = {"address": render_address((host, port)), "commit_log_file_bytes": segment_bytes}
        log.info(events.REPLICATION_STARTED, extra=facts)
        warn_of_open_port(self._options, (host, port))
        return host, port

    async def _stop_listening(self) -> None:
        """Stops accepting slaves; the connections stay."""
        self._is_stopped = True
        if self._unfollow is not None:
            self._unfollow()
            self._unfollow = None
        if self._listener is not None:
            await self._listener.close()
            self._listener = None

    def log_range(self) -> LogRange:
        """Returns the range of bytes that a slave can receive."""
        begin = self._store.min_log_offset
        return LogRange(begin, max(begin, self._store.confirmed.value))

    def log_view(self, log_offset: int, bytes_max: int) -> memoryview:
        return self._store.log.valid_view(log_offset, bytes_max)

    def new_handshake(self) -> MasterHandshake | None:
        """Returns None if no secret is configured."""
        secret = self._options.shared_secret
        return MasterHandshake(secret, unpredictable_bytes(NONCE_BYTES)) if secret else None

    # Callbacks of the connections.

    @abstractmethod
    def new_session(self, host: str, now_ms: int) -> MasterSession: ...

    @abstractmethod
    def on_accepted(self, connection: SlaveConnection) -> bool:
        """Registers a connection; False if it must be closed at once."""

    @abstractmethod
    def on_started(self, connection: SlaveConnection, start: TransferStart) -> None:
        """Handles the first report of a slave, including one that cannot be served."""

    @abstractmethod
    def on_subscribed(self, connection: SlaveConnection) -> None:
        """Handles a slave that will receive the log."""

    @abstractmethod
    def on_ahead(self, connection: SlaveConnection) -> None:
        """Handles a slave that holds more than this master; it must be recognised when it reconnects."""

    @abstractmethod
    def on_acknowledged(self, connection: SlaveConnection, log_offset: int) -> None: ...

    @abstractmethod
    def on_fell_behind(self, connection: SlaveConnection) -> None:
        """Handles a slave that can receive nothing more; it no longer counts."""

    @abstractmethod
    def on_lost(self, connection: SlaveConnection) -> None: ...

    def check_in_sync(self) -> None:  # noqa: B027 (a set of an elected group has a timer of its own)
        """Handles the passage of time: the set of slaves in sync may have changed."""

    def _on_confirmed(self, _end: int) -> None:
        self._pump.wake()

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)
