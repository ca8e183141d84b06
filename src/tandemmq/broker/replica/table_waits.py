"""The master's half of the push of tables: holds TANDEM_AWAIT_TABLES until topics or groups change.

A slave that asks with the versions it holds is answered in the loop turn after the first change, so a burst
of changes costs one answer. It then fetches by the ordinary requests, so nothing of the tables travels here.
Invariants: an answer is sent once; a version that differs already is answered at once, so no change between
            two requests is missed.
"""

from __future__ import annotations

from typing import Final

from tandemmq.broker.replica.tables import ReplicaTables
from tandemmq.protocol.bodies.data_version import decode_data_version
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.replica import AwaitTablesRequest
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.dispatch import Handler
from tandemmq.runtime.ports import Clock, TimerHandle

WAIT_MS_MAX: Final = 60_000
WAITING_COUNT_MAX: Final = 256
"""At the bound a request is answered at once, so that slaves poll."""


class TableWaits:
    """The held requests of all slaves."""

    def __init__(self, tables: ReplicaTables, *, clock: Clock) -> None:
        self._tables = tables
        self._clock = clock
        self._held: dict[int, tuple[Channel, Command, TimerHandle]] = {}
        self._count = 0
        self._is_due = False
        tables.topics.on_change.append(lambda _names: self._on_change())
        tables.groups.on_change.append(self._on_change)

    def __len__(self) -> int:
        return len(self._held)

    def routes(self) -> dict[int, Handler]:
        return {RequestCode.TANDEM_AWAIT_TABLES: self.handle_await}

    def handle_await(self, channel: Channel, command: Command) -> Command | None:
        asked = command.decode(AwaitTablesRequest)
        is_current = (
            decode_data_version(asked.topics) == self._tables.topics.data_version
            and decode_data_version(asked.groups) == self._tables.groups.data_version
        )
        wait_ms = min(asked.wait_ms, WAIT_MS_MAX)
        if not is_current or wait_ms <= 0 or len(self._held) >= WAITING_COUNT_MAX:
            return command.reply()
        self._count += 1
        key = self._count
        timer = self._clock.call_later(wait_ms / 1000, self._answer, key)
        self._held[key] = channel, command, timer
        return None

    def close(self) -> None:
        """Answer all of them: the broker stops."""
        for key in list(self._held):
            self._answer(key)

    def _on_change(self) -> None:
        if self._held and not self._is_due:
            self._is_due = True
            self._clock.call_soon(self._answer_all)

    def _answer_all(self) -> None:
        self._is_due = False
        self.close()

    def _answer(self, key: int) -> None:
        channel, command, timer = self._held.pop(key)
        timer.cancel()
        if not channel.is_closed:
            channel.send(command.reply())
