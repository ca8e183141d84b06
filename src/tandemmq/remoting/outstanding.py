"""Requests that wait for their answer, by opaque, each with a deadline; pure.

One table serves all requests that this side sent over one connection. Deadlines are looked at in sweeps, so a
request costs no timer of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from tandemmq.errors import Busy, TandemError
from tandemmq.protocol.command import Command

OnReply = Callable[[Command | TandemError], None]

OPAQUE_MAX = 2**31 - 1


class OutstandingRequests:
    """opaque -> (what to call, until when). Opaques start at 1 and never are 0 (spec remoting 2)."""

    __slots__ = ("_count_max", "_opaque", "_rows")

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._opaque = 0
        self._rows: dict[int, tuple[OnReply, float]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def next_opaque(self) -> int:
        """An opaque that no waiting request has."""
        opaque = self._opaque + 1 if self._opaque < OPAQUE_MAX else 1
        while opaque in self._rows:
            opaque += 1
        self._opaque = opaque
        return opaque

    def add(self, on_reply: OnReply, deadline: float) -> int:
        """The opaque of a new waiting request. Raises Busy at the bound."""
        if len(self._rows) >= self._count_max:
            raise Busy(f"{self._count_max} requests wait for an answer on this connection")
        opaque = self.next_opaque()
        self._rows[opaque] = (on_reply, deadline)
        return opaque

    def take(self, opaque: int) -> OnReply | None:
        """What to call with the answer; None when nobody waits for it."""
        row = self._rows.pop(opaque, None)
        return None if row is None else row[0]

    def take_expired(self, now: float) -> list[OnReply]:
        """Those whose deadline is not after `now`, oldest first."""
        expired = [opaque for opaque, row in self._rows.items() if row[1] <= now]
        return [self._rows.pop(opaque)[0] for opaque in expired]

    def take_all(self) -> list[OnReply]:
        """Everything that waits, oldest first."""
        rows = [row[0] for row in self._rows.values()]
        self._rows.clear()
        return rows

    def next_deadline(self) -> float | None:
        """The earliest deadline; None when nothing waits."""
        return min((row[1] for row in self._rows.values()), default=None)
