"""What consumers ask for and do not get: refused heartbeats, pulls, pops and notifications.

A consumer that is refused stays silent, and the broker looks healthy. So each kind of refusal is one line in
the log per client and reason, all are counted, and tools are shown the newest of a group.
At a bound: `REFUSALS_KEPT_MAX` kinds are remembered; of more the one that came longest ago is forgotten, and
            is told again when it comes again.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from tandemmq.errors import RemoteProtocolError, RequestRejected
from tandemmq.protocol.bodies.client import Refusal
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.remoting.address import render_address
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.dispatch import Handler
from tandemmq.runtime.ports import Clock
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

REFUSALS_KEPT_MAX: Final = 1_024
REASON_LENGTH_MAX: Final = 512
_GROUP_FIELD: Final = "consumerGroup"


class _Kind(NamedTuple):
    request: str
    group: str
    client: str
    code: int


class Refusals:
    """`counts`: all of them, by request and response code."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[_Kind, Refusal] = {}
        self.counts: dict[tuple[str, int], int] = {}

    def watch(self, request: str, handler: Handler) -> Handler:
        """The handler, whose refusals are noted; `request` is its name."""

        def watched(channel: Channel, command: Command) -> object:
            try:
                result = handler(channel, command)
            except RequestRejected as error:
                self.note(request, _group_of(command), render_address(channel.peer), error.code, error.remark)
                raise
            if result.__class__ is Command and result.code == ResponseCode.NO_PERMISSION:
                remark = result.remark or ""
                self.note(request, _group_of(command), render_address(channel.peer), result.code, remark)
            return result

        return watched  # type: ignore[return-value]  # it returns what the handler does

    def note(self, request: str, group: str, client: str, code: int, reason: str) -> None:
        """A request was refused, or a part of it passed over."""
        self.counts[request, code] = self.counts.get((request, code), 0) + 1
        kind = _Kind(request, group[:256], client[:256], code)
        before = self._kept.pop(kind, None)
        if before is None:
            if len(self._kept) >= REFUSALS_KEPT_MAX:
                del self._kept[next(iter(self._kept))]
            facts = {"request": request, "group": kind.group, "client": kind.client, "code": code}
            log.warning(events.CONSUMER_REFUSED, extra={**facts, "reason": reason[:REASON_LENGTH_MAX]})
        self._kept[kind] = Refusal(
            client=kind.client,
            code=code,
            count=1 if before is None else before.count + 1,
            last_at_ms=self._clock.now_ms(),
            reason=reason[:REASON_LENGTH_MAX],
            request=request,
        )

    @property
    def count(self) -> int:
        """All since the start."""
        return sum(self.counts.values())

    def of_group(self, group: str) -> tuple[Refusal, ...]:
        """What is remembered of a group, the newest last."""
        return tuple(refusal for kind, refusal in self._kept.items() if kind.group == group)


def _group_of(command: Command) -> str:
    try:
        return command.fields.get(_GROUP_FIELD, "")
    except RemoteProtocolError:  # that is why it is refused
        return ""
