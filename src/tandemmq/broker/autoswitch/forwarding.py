"""Forwarding: sends that reach a broker while its group's office changes hands, and for a while after it.

Clients of RocketMQ look up routes every 30 s only. Who was master passes on what they send until each of them
has looked, and answers what the new master answered.
Strategy:   while it is not known who takes sends they are parked; then they go to the new master in the order
            in which they came, each once, over one connection. If this broker is the master after all, it
            serves what is parked itself.
Invariants: a send is parked before anything was done for it, so one that is refused was never stored. One
            that was sent on and got no answer has an unknown outcome: its client's connection is closed, as
            by a broker that died. A broker passes on only to the master of the term that it follows in, so
            that a request can be passed on twice only if the office changed hands in between.
Bounds:     parked sends by number, bytes and time; forwarding ends by itself some time after the office.
Source:     spec controller 10.11.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
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
"""What stores a message, and concerns nobody's connection."""

PARKED_S_MAX: Final = 2.0
"""Less than the 3 s that a Java client waits: it may try again."""
PARKED_MAX: Final = 10_000
PARKED_BYTES_MAX: Final = 64 << 20
ANSWER_S_MAX: Final = 10.0
_SIGNED_BY: Final = frozenset((ACCESS_KEY, SECURITY_TOKEN, SIGNATURE))

Serve = Callable[[Channel, Command], None]


class Forwarding:
    """Closed at first. `hold`, then `send_to` or `release`, and again; it ends by itself."""

    def __init__(
        self, *, name: str, linger_s: float, client: RemotingClient, clock: Clock, scope: TaskScope
    ) -> None:
        """`name`: of the broker, for the log. `linger_s`: how long clients may know the old master only;
        those of RocketMQ look up a route every 30 s."""
        self._name = name
        self._linger_s = linger_s
        self._client = client
        self._clock = clock
        self._scope = scope
        self._parked: deque[tuple[float, Channel, Command]] = deque()
        self._parked_bytes = 0
        self._target: str | None = None
        self._is_connecting = False
        self._timer: TimerHandle | None = None
        self._end_timer: TimerHandle | None = None
        self._is_lingering = False
        self._users: set[Channel] = set()
        self.is_open = False
        """Whether sends are taken here; else this broker serves or refuses them itself."""
        self.count = 0
        """Requests that were passed on since it was opened."""

    def is_used_by(self, channel: Channel) -> bool:
        """Whether this client has sent here since it was opened."""
        return channel in self._users

    def hold(self) -> None:
        """It is open: what comes is parked until it is known who takes it."""
        if not self.is_open:
            self.is_open, self.count = True, 0
            self._end_timer = self._clock.call_later(PARKED_S_MAX, self.end)
        self._target = None

    def linger(self) -> None:
        """The office has ended here: it is open for that long from now, or as long as sends may wait."""
        self.hold()
        if self._end_timer is not None:
            self._end_timer.cancel()
        self._end_timer = self._clock.call_later(max(PARKED_S_MAX, self._linger_s), self.end)
        self._is_lingering = True

    def send_to(self, address: str) -> None:
        """The master is there, and in office."""
        if self.is_open:
            self._target = address
            self._flush()

    def release(self, serve: Serve) -> None:
        """This broker is the master: it serves what is parked, and is closed."""
        parked = list(self._parked)
        self._close()
        for _, channel, command in parked:
            serve(channel, command)

    def end(self) -> None:
        """It is closed; what is parked is refused."""
        if self._is_lingering:
            facts = {"broker": self._name, "count": self.count, "refused": len(self._parked)}
            log.info(events.BROKER_FORWARDING_ENDED, extra=facts)
        self._refuse_before(float("inf"), "no master of the group takes messages")
        self._close()

    def accept(self, channel: Channel, command: Command) -> None:
        """Only while it is open: the answer comes when the master's does.

        Raises:  Busy at the bounds: nothing was done.
        """
        if channel not in self._users:
            self._users.add(channel)
            channel.on_close.append(self._users.discard)
        if self._target is not None and not self._parked and self._pass_on(channel, command):
            return
        size = len(command.body)
        if len(self._parked) >= PARKED_MAX or self._parked_bytes + size > PARKED_BYTES_MAX:
            raise Busy(f"{len(self._parked)} sends wait for the next master of the group")
        self._parked.append((self._clock.monotonic() + PARKED_S_MAX, channel, command))
        self._parked_bytes += size
        if self._timer is None:
            self._timer = self._clock.call_later(PARKED_S_MAX, self._expire)
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

    # What is parked.

    def _expire(self) -> None:
        self._timer = None
        self._refuse_before(self._clock.monotonic(), f"no other master took it within {PARKED_S_MAX:g} s")
        if self._parked:
            rest_s = self._parked[0][0] - self._clock.monotonic()
            self._timer = self._clock.call_later(max(0.0, rest_s), self._expire)

    def _refuse_before(self, now_s: float, reason: str) -> None:
        while self._parked and self._parked[0][0] <= now_s:
            channel, command = self._take()
            if not command.is_oneway:
                channel.send(command.reply(ServiceNotAvailable.code, remark=reason))

    def _take(self) -> tuple[Channel, Command]:
        _, channel, command = self._parked.popleft()
        self._parked_bytes -= len(command.body)
        return channel, command

    def _flush(self) -> None:
        while self._parked and self._target is not None:
            _, channel, command = self._parked[0]
            if not channel.is_closed and not self._pass_on(channel, command):
                self._connect()
                return
            self._take()

    # The way to the master.

    def _connect(self) -> None:
        """What is parked goes on when the connection stands."""
        target = self._target
        if target is not None and not self._is_connecting and self._client.open_channel(target) is None:
            self._is_connecting = True
            self._scope.start("forwarding", self._dial(target))

    async def _dial(self, target: str) -> None:
        try:
            await self._client.channel(target, PARKED_S_MAX)
        except ClientError:
            return  # what is parked is refused in time, and the next send dials again
        finally:
            self._is_connecting = False
        self._flush()

    def _pass_on(self, channel: Channel, command: Command) -> bool:
        """Whether it is on its way. It is as the client sent it; where brokers sign, who signs is this one,
        which has looked at the client's signature."""
        assert self._target is not None
        way = self._client.open_channel(self._target)
        if way is None:
            return False
        fields = command.fields
        if self._client.is_signing:
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
                return False  # too many are under way: it goes on when one of them is answered
        self.count += 1
        return True

    def _answer(self, channel: Channel, command: Command, result: Command | TandemError) -> None:
        """The master's answer, as it is."""
        if isinstance(result, TandemError):
            channel.abort(f"what came of a send that was passed on is not known: {result}")
        else:
            channel.send(
                command.reply(result.code, remark=result.remark, body=result.body, fields=result.fields)
            )
        if self._parked:
            self._flush()
