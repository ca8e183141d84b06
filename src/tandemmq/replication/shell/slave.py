"""The slave's end of replication: dials the master, stores what arrives, reports what it holds.

Owns: the one connection, its timers, the dialling task. Rules are in `core/slave.py`; this file carries
      effects out
in order and knows how to dial, write and log.
Source: spec replication 4.5 to 4.7, 4.9.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import cast

from tandemmq.errors import (
    ConfigError,
    RemoteProtocolError,
    ReplicationError,
    RequestRejected,
    StoreError,
)
from tandemmq.remoting.address import parse_address
from tandemmq.replication.core.admission import NONCE_BYTES, SlaveHandshake
from tandemmq.replication.core.effects import (
    CheckTail,
    Damage,
    Dial,
    Disconnect,
    Halt,
    Send,
    SlaveEffect,
    Store,
)
from tandemmq.replication.core.frames import HEAD_BYTES, TANDEM_BODY_BYTES_MAX
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.replication.core.progress import StartRule
from tandemmq.replication.core.slave import NEVER_MS, SlaveSession
from tandemmq.replication.core.states import SlaveState
from tandemmq.replication.core.tail import TailOutcome, TailVerdict
from tandemmq.replication.shell.fault import FaultGuard, OnFatal
from tandemmq.runtime.chance import unpredictable_bytes
from tandemmq.runtime.ports import Buffer, Clock, Network, TimerHandle
from tandemmq.runtime.tasks import TaskScope
from tandemmq.store.message_store import MessageStore
from tandemmq.telemetry import events
from tandemmq.units import EpochMs

log = logging.getLogger(__name__)

CheckOf = Callable[[int], Awaitable[TailVerdict]]
"""Compares the own log below its end with the master's; never raises for what a peer can do."""

CHECK_TIMEOUT_S = 30.0
"""Above what checksums of a few MiB take on a slow disk; a master that answers no sooner is asked again."""

REPORT_BUFFER_BYTES_MAX = 64 * 1024
"""Reports that the master did not read; above it the connection counts as broken."""
RECEIVE_BYTES_MAX = HEAD_BYTES + TANDEM_BODY_BYTES_MAX
"""One frame, which is looked at together. What a look costs besides its records weighs half as much with
2 MiB as with 1 MiB; more brings little, and the loop is the longer taken."""
ROOM_BYTES = 64 * 1024
"""In front of what is read: the beginning of a record whose end comes next, unless it is longer."""
BUSY_BYTES_MIN = RECEIVE_BYTES_MAX // 2
"""After a read of so much others get the loop before the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSlaveStatus:
    """`halt` says why a person must act; times are wall clock, 0 before the first read or write.

    `tail`: what the last comparison with the master's log found, None where none is made. `start_rule`: how
    the copy of this connection began, `log_start` where the copy begins.
    """

    state: SlaveState
    master_address: str | None
    log_end: int
    log_start: int
    reported: int
    start_rule: StartRule | None
    tail: TailVerdict | None
    halt: Halt | None
    last_read_at: EpochMs
    last_written_at: EpochMs
    bytes_per_second: int


class ReplicationSlave:
    """Keeps the log of `store` a copy of a master's log."""

    def __init__(
        self,
        store: MessageStore,
        options: ReplicationOptions,
        *,
        network: Network,
        clock: Clock,
        on_fatal: OnFatal | None = None,
        check_tail: CheckOf | None = None,
    ) -> None:
        self._store = store
        self._options = options
        self._network = network
        self._clock = clock
        self._guard = FaultGuard(on_fatal)
        self._check_tail = check_tail
        self._session = SlaveSession(
            options=options,
            segment_bytes=store.options.commit_log_file_bytes,
            checks_tail=check_tail is not None,
        )
        self._tasks = TaskScope(
            "replication.slave", None if on_fatal is None else lambda _name, error: on_fatal(error)
        )
        self._dialling: tuple[asyncio.Task[None], MasterConnection] | None = None
        self._checking: asyncio.Task[None] | None = None
        self._connection: MasterConnection | None = None
        self._timer: TimerHandle | None = None
        self._timer_due_ms = NEVER_MS
        self._is_started = False
        self._failure_count = 0
        self._last_read_at = self._last_written_at = EpochMs(0)
        self._wanted_address: str | None = None
        self.on_lost: Callable[[], None] | None = None
        """Called when a working connection has ended, or the master could not be reached at all."""

    def set_master(self, address: str | None) -> None:
        """Where the master listens for slaves ("host:port"); a working connection is kept when it changes."""
        self._wanted_address = address
        if self._is_started:
            self._perform(self._session.on_assigned(address))

    async def start(self) -> None:
        """Dials as soon as an address is known, and for ever after."""
        self._is_started = True
        self.set_master(self._wanted_address)

    async def stop(self) -> None:
        """Returns when the connection and every task have ended."""
        if self._is_started:
            self._perform(self._session.on_stopped())
        self._is_started = False
        self._cancel_timer()
        await self._tasks.close()

    def status(self) -> ReplicationSlaveStatus:
        session = self._session
        return ReplicationSlaveStatus(
            state=session.state,
            master_address=session.address,
            log_end=self._store.appended.value,
            log_start=self._store.min_log_offset,
            reported=session.reported,
            start_rule=session.start_rule,
            tail=session.tail,
            halt=session.halt,
            last_read_at=self._last_read_at,
            last_written_at=self._last_written_at,
            bytes_per_second=session.rate.per_second(self._now_ms()),
        )

    def check_again(self) -> None:
        """The master can be asked now: a copy that follows unchecked starts over with a comparison."""
        tail = self._session.tail
        if tail is None or tail.outcome is not TailOutcome.NOT_COMPARED or self._connection is None:
            return
        self._connection.close()
        self._guard.run(self._lose, "the end of the log is compared first")

    # What the connection tells.

    def on_connected(self, connection: MasterConnection) -> None:
        self._guard.run(self._begin, connection)

    def on_data(self, data: Buffer, room: int) -> None:
        self._guard.run(self._receive, data, room)

    @property
    def frame_left(self) -> int:
        """How many bytes are best read at most."""
        return self._session.frame_left

    def call_soon(self, fn: Callable[[], None]) -> None:
        """Run `fn` in the next turn of the loop."""
        self._clock.call_soon(fn)

    def on_broken(self, reason: str) -> None:
        self._guard.run(self._lose, reason)

    def _begin(self, connection: MasterConnection) -> None:
        assert self._connection is None
        self._dialling = None
        self._connection = connection
        self._failure_count = 0
        log_end = self._store.appended.value
        facts = {"master": self._session.address, "log_end": log_end}
        log.info(events.MASTER_CONNECTED, extra=facts)
        self._perform(self._session.on_connected(log_end, self._now_ms()))

    def _receive(self, data: Buffer, room: int) -> None:
        self._last_read_at = self._clock.now_ms()
        self._perform(self._session.on_data(data, self._now_ms(), room))

    def _lose(self, reason: str) -> None:
        self._connection = None
        self._end_check()
        log.warning(events.MASTER_LOST, extra={"master": self._session.address, "reason": reason})
        self._perform(self._session.on_failed(reason, self._now_ms()))
        self._tell_lost()

    # Effects, in list order.

    def _perform(self, effects: list[SlaveEffect]) -> None:
        for effect in effects:
            match effect:
                case Store():
                    reason = self._store_run(effect)
                    if reason:
                        # The report behind this store must not leave.
                        self._perform(self._session.on_failed(reason, self._now_ms()))
                        return
                case Send(data):
                    if self._connection is not None:
                        self._connection.write(data)
                        self._last_written_at = self._clock.now_ms()
                case Dial(address):
                    connection = MasterConnection(self, self._new_handshake())
                    task = self._tasks.start("dial", self._dial(address, connection))
                    self._dialling = task, connection
                case CheckTail(log_end):
                    self._checking = self._tasks.start("check_tail", self._check(log_end))
                case Disconnect(reason):
                    self._disconnect(reason)
                case Damage():
                    facts = {
                        "log_offset": effect.log_offset,
                        "reason": effect.reason,
                        "is_final": effect.is_final,
                    }
                    log.error(events.REPLICA_DAMAGE_REFUSED, extra=facts)
                case Halt():
                    facts = {
                        "reason": effect.reason.value,
                        "log_offset": effect.log_offset,
                        "detail": effect.detail,
                        "master": self._session.address,
                    }
                    log.error(events.REPLICA_HALTED, extra=facts)
        self._arm()

    def _store_run(self, run: Store) -> str:
        """Empty, or why the store refused."""
        try:
            self._store.append_raw(run.log_offset, run.data, run.columns)
        except (StoreError, ReplicationError, RequestRejected, OSError) as error:
            if isinstance(error, StoreError) and error.fatal:
                raise
            return f"{type(error).__name__}: {error}"
        return ""

    async def _check(self, log_end: int) -> None:
        assert self._check_tail is not None
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                verdict = await self._check_tail(log_end)
        except TimeoutError:
            detail = f"the ends of the logs were not compared within {CHECK_TIMEOUT_S:.0f} s"
            verdict = TailVerdict(outcome=TailOutcome.FAILED, log_offset=log_end, detail=detail)
        self._checking = None  # this task: it ends by itself
        self._note_verdict(verdict)
        self._perform(self._session.on_checked(verdict, self._now_ms()))

    def _note_verdict(self, verdict: TailVerdict) -> None:
        before = self._session.tail
        if before is not None and before.outcome is verdict.outcome:
            return  # one line per change, not one per attempt
        facts = {
            "master": self._session.address,
            "outcome": verdict.outcome.name,
            "log_offset": verdict.log_offset,
            "detail": verdict.detail,
        }
        is_good = verdict.outcome is TailOutcome.SAME
        log.log(logging.INFO if is_good else logging.WARNING, events.REPLICA_TAIL_CHECKED, extra=facts)

    def _end_check(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
            self._checking = None

    def _disconnect(self, reason: str) -> None:
        self._end_check()
        if self._dialling is not None:
            task, connection = self._dialling
            # Also when its socket is up already: it must not speak for us any more.
            connection.close()
            task.cancel()
            self._dialling = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            log.warning(events.MASTER_LOST, extra={"master": self._session.address, "reason": reason})
            self._tell_lost()

    def _tell_lost(self) -> None:
        # Without an address the owner has taken it away.
        if self.on_lost is not None and self._is_started and self._session.address is not None:
            self.on_lost()

    async def _dial(self, address: str, connection: MasterConnection) -> None:
        try:
            host, port = parse_address(address)
            timeout_s = self._options.connect_timeout_ms / 1000
            await self._network.connect(host, port, lambda: connection, timeout_s)
            async with asyncio.timeout(timeout_s):
                await connection.is_ready.wait()
        except (OSError, ConfigError) as error:
            # A TimeoutError is an OSError: the master answered nothing to the secret.
            self._dialling = None  # this task: it ends by itself
            connection.close()
            self._note_failure(address, str(error) or type(error).__name__)
            self._perform(self._session.on_failed(str(error), self._now_ms()))

    def _new_handshake(self) -> SlaveHandshake | None:
        secret = self._options.shared_secret
        return SlaveHandshake(secret, unpredictable_bytes(NONCE_BYTES)) if secret else None

    def _note_failure(self, address: str, reason: str) -> None:
        """One line per outage, not one per attempt."""
        self._failure_count += 1
        if self._failure_count == 1:
            log.warning(events.MASTER_UNREACHABLE, extra={"master": address, "reason": reason})
            self._tell_lost()

    def _arm(self) -> None:
        due_ms = self._session.next_tick_ms()
        if due_ms >= self._timer_due_ms and self._timer is not None:
            return  # an early ring does no harm and re-arms
        self._cancel_timer()
        self._timer_due_ms = due_ms
        if due_ms < NEVER_MS and self._is_started:
            delay_s = max(due_ms - self._now_ms(), 0) / 1000
            self._timer = self._clock.call_later(delay_s, self._guard.run, self._tick)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer, self._timer_due_ms = None, NEVER_MS
        self._perform(self._session.on_tick(self._now_ms()))

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)


class MasterConnection(asyncio.BufferedProtocol):
    """The socket to the master; silent once it was given up.

    `is_ready`: the owner was told of it, after the master has proven the secret if there is one.
    Strategy: one buffer that is used again. It takes at most the rest of a frame, so that the bytes of the
              log come to lie behind each other. A slave that copies much finds it full each time; it then
              lets others have the loop before it reads on.
    """

    __slots__ = ("_buffer", "_handshake", "_owner", "_transport", "is_ready")

    def __init__(self, owner: ReplicationSlave, handshake: SlaveHandshake | None = None) -> None:
        self._owner: ReplicationSlave | None = owner
        self._handshake = handshake
        self.is_ready = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(bytearray(ROOM_BYTES + RECEIVE_BYTES_MAX))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._owner is None:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=REPORT_BUFFER_BYTES_MAX)
        if self._handshake is None:
            self._join(self._owner)

    def get_buffer(self, sizehint: int) -> memoryview:
        size = RECEIVE_BYTES_MAX if self._owner is None else min(self._owner.frame_left, RECEIVE_BYTES_MAX)
        return self._buffer[ROOM_BYTES : ROOM_BYTES + size]

    def buffer_updated(self, nbytes: int) -> None:
        data: Buffer = self._buffer[: ROOM_BYTES + nbytes]
        room = ROOM_BYTES
        if self._handshake is not None:
            data, room = self._shake_hands(self._handshake, bytes(data[ROOM_BYTES:])), 0
        owner = self._owner
        if owner is None or len(data) == room:
            return
        owner.on_data(data, room)
        if nbytes >= BUSY_BYTES_MIN and self._transport is not None:
            self._transport.pause_reading()
            owner.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self._give_up("the master does not read reports")

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._give_up("the master closed the connection" if exc is None else str(exc))

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Close without telling the owner."""
        self._owner = None
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def _join(self, owner: ReplicationSlave) -> None:
        self.is_ready.set()
        owner.on_connected(self)

    def _shake_hands(self, handshake: SlaveHandshake, data: bytes) -> bytes:
        """What of `data` belongs to the stream."""
        if self._owner is None:
            return b""
        try:
            answer, rest = handshake.feed(data)
        except RemoteProtocolError as error:
            self._give_up(str(error))
            return b""
        if answer:
            self.write(answer)
        if rest is None:
            return b""
        self._handshake = None
        self._join(self._owner)
        return rest

    def _give_up(self, reason: str) -> None:
        owner, self._owner = self._owner, None
        if self._transport is not None:
            self._transport.abort()
        if owner is not None:
            owner.on_broken(reason)
