"""Forwarding: handles sends that reach a broker during a change of master, and for a while after it.

RocketMQ clients refresh their routes only every 30 s. Until they have, the previous master forwards their
sends and returns the new master's answers.
Strategy:   while the new master is unknown, sends are parked. Then they go to the new master in the order of
            arrival, each once, over one connection. If this broker becomes the master after all, it serves
            the parked sends itself.
Invariants: a send is parked before it is processed, so a refused send was never stored. If a forwarded send
            gets no answer, its outcome is unknown: its client's connection is closed, as if the broker had
            died. A broker forwards only to the master of the term that it follows in, so a request can be
            forwarded twice only if the master changed in between.
Bounds:     parked sends by number, bytes and time; forwarding ends by itself some time after the change of
            master.
Source:     spec controller 10.11.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tandemmq.errors import Busy, ClientError, ServiceNotAvailable, TandemError
from tandemmq.protocol.codes import FLAG_ONEWAY
from tandemmq.protocol.codes import RequestCode as Code
from tandemmq.protocol.command import Command
from tandemmq.protocol.signature import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.ports import Clock, TimerHandle
from tandemmq.runtime.tasks import TaskScope
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

FORWARDED: Final = frozenset(
    (
        Code.SEND_MESSAGE,
        Code.SEND_MESSAGE_V2,
        Code.SEND_BATCH_MESSAGE,
        Code.CONSUMER_SEND_MSG_BACK,
        Code.END_TRANSACTION,
    )
)
"""Requests that store a message and do not depend on the connection."""

PARKED_S_MAX: Final = 2.0
"""Less than the 3 s that a Java client waits, so that it may retry."""
PARKED_MAX: Final = 10_000
PARKED_BYTES_MAX: Final = 64 << 20
ANSWER_S_MAX: Final = 10.0
DRAIN_POLL_S: Final = 0.005
_SIGNED_BY: Final = frozenset((ACCESS_KEY, SECURITY_TOKEN, SIGNATURE))

Serve = Callable[[Channel, Command], None]


@dataclass(slots=True, kw_only=True)
class Forwarding:
    """The sends that this broker parks, and forwards to the next master. Closed at first.

    Call `hold`, then `send_to` or `release`; each may be called repeatedly. Timers close the forwarding.
    `name`: the broker, for the log. `linger_s`: the time for which clients may only know the old master;
    RocketMQ clients refresh a route every 30 s.
    """

    name: str
    linger_s: float
    client: RemotingClient
    clock: Clock
    scope: TaskScope
    is_open: bool = False
    """True if sends are accepted here; otherwise this broker serves or refuses them itself."""
    count: int = 0
    """The number of requests forwarded since it was opened."""
    _parked: deque[tuple[float, Channel, Command]] = field(default_factory=deque, init=False)
    _parked_bytes: int = 0
    _target: str | None = None
    _is_connecting: bool = False
    _timer: TimerHandle | None = None
    _end_timer: TimerHandle | None = None
    _is_lingering: bool = False
    _users: set[Channel] = field(default_factory=set, init=False)
    _unanswered: int = 0

    def is_used_by(self, channel: Channel) -> bool:
        """Returns True if this client has sent here since it was opened."""
        return channel in self._users

    def hold(self) -> None:
        """Opens the forwarding: sends are parked until a master is known."""
        if not self.is_open:
            self.is_open, self.count = True, 0
            self._end_timer = self.clock.call_later(PARKED_S_MAX, self.end)
        self._target = None

    def park_again(self) -> None:
        """Parks sends again, because their target is no longer the master. Does nothing while closed."""
        self._target = None

    def linger(self) -> None:
        """Opens the forwarding of a former master for the linger time, but at least PARKED_S_MAX."""
        self.hold()
        if self._end_timer is not None:
            self._end_timer.cancel()
        self._end_timer = self.clock.call_later(max(PARKED_S_MAX, self.linger_s), self.end)
        self._is_lingering = True

    def send_to(self, address: str) -> None:
        """Starts forwarding to the master, which now accepts sends."""
        if self.is_open:
            self._target = address
            self._flush()

    def release(self, serve: Serve) -> None:
        """Closes the forwarding and serves the parked sends here, because this broker is the master."""
        parked = list(self._parked)
        self._close()
        for _, channel, command in parked:
            serve(channel, command)

    def end(self) -> None:
        """Closes the forwarding and refuses the parked sends."""
        if self._is_lingering:
            facts = {"broker": self.name, "count": self.count, "refused": len(self._parked)}
            log.info(events.BROKER_FORWARDING_ENDED, extra=facts)
        self._refuse_before(float("inf"), "no master of the group accepts messages")
        self._close()

    async def drain(self) -> None:
        """Waits until the master is known and has all parked sends, or PARKED_S_MAX; then closes it and waits
        until each forwarded send is answered or has timed out.
        """
        ends_at_s = self.clock.monotonic() + PARKED_S_MAX
        while self.is_open and (self._target is None or self._parked):
            if self.clock.monotonic() > ends_at_s:
                break
            await self.clock.sleep(DRAIN_POLL_S)
        self.end()
        while self._unanswered:
            await self.clock.sleep(DRAIN_POLL_S)

    def accept(self, channel: Channel, command: Command) -> None:
        """Accepts a send. Call only while it is open; the answer follows when the master answers.

        Raises:  Busy at the bounds: nothing was done.
        """
        if channel not in self._users:
            self._users.add(channel)
            channel.on_close.append(self._users.discard)
        if self._target is not None and not self._parked and self._forward(channel, command):
            return
        size = len(command.body)
        if len(self._parked) >= PARKED_MAX or self._parked_bytes + size > PARKED_BYTES_MAX:
            raise Busy(f"{len(self._parked)} sends wait for the next master of the group")
        self._parked.append((self.clock.monotonic() + PARKED_S_MAX, channel, command))
        self._parked_bytes += size
        if self._timer is None:
            self._timer = self.clock.call_later(PARKED_S_MAX, self._expire)
        self._connect()

    def _close(self) -> None:
        for timer in (self._timer, self._end_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._end_timer = self._target = None
        self._parked.clear()
        self._parked_bytes = 0
        self._users.clear()
        self.is_open = self._is_lingering = False

    # The parked sends.

    def _expire(self) -> None:
        self._timer = None
        self._refuse_before(self.clock.monotonic(), f"no other master accepted it within {PARKED_S_MAX:g} s")
        if self._parked:
            remaining_s = self._parked[0][0] - self.clock.monotonic()
            self._timer = self.clock.call_later(max(0.0, remaining_s), self._expire)

    def _refuse_before(self, now_s: float, reason: str) -> None:
        while self._parked and self._parked[0][0] <= now_s:
            channel, command = self._pop_parked()
            if not command.is_oneway:
                channel.send(command.reply(ServiceNotAvailable.code, remark=reason))

    def _pop_parked(self) -> tuple[Channel, Command]:
        _, channel, command = self._parked.popleft()
        self._parked_bytes -= len(command.body)
        return channel, command

    def _flush(self) -> None:
        while self._parked and self._target is not None:
            _, channel, command = self._parked[0]
            if not channel.is_closed and not self._forward(channel, command):
                self._connect()
                return
            self._pop_parked()

    # The connection to the master.

    def _connect(self) -> None:
        """Connects to the master; the parked sends follow once the connection is established."""
        target = self._target
        if target is not None and not self._is_connecting and self.client.open_channel(target) is None:
            self._is_connecting = True
            self.scope.start("forwarding", self._dial(target))

    async def _dial(self, target: str) -> None:
        try:
            await self.client.channel(target, PARKED_S_MAX)
        except ClientError:
            return  # the parked sends are refused in time, and the next send dials again
        finally:
            self._is_connecting = False
        self._flush()

    def _forward(self, channel: Channel, command: Command) -> bool:
        """Forwards a send; returns False if that is not possible now. The request is unchanged, except that
        this broker replaces the client's signature, which it has verified, if brokers sign.
        """
        assert self._target is not None
        way = self.client.open_channel(self._target)
        if way is None:
            return False
        fields = command.fields
        if self.client.is_signing:
            fields = {name: text for name, text in fields.items() if name not in _SIGNED_BY}
        copy = Command(
            code=command.code,
            flag=command.flag,
            language=command.language,
            version=command.version,
            remark=command.remark,
            serialize_type=command.serialize_type,
            body=command.body,
            extra_fields=fields,
        )
        if command.flag & FLAG_ONEWAY:
            way.send(copy)
        else:
            try:
                way.start_request(copy, partial(self._answer, channel, command), ANSWER_S_MAX)
            except TandemError:
                return False  # too many in flight: resumes when one is answered
            self._unanswered += 1
        self.count += 1
        return True

    def _answer(self, channel: Channel, command: Command, result: Command | TandemError) -> None:
        """Passes the master's answer on unchanged."""
        self._unanswered -= 1
        if isinstance(result, TandemError):
            channel.abort(f"the outcome of a forwarded send is unknown: {result}")
        else:
            channel.send(
                command.reply(result.code, remark=result.remark, body=result.body, fields=result.fields)
            )
        if self._parked:
            self._flush()
