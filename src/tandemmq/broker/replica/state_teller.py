"""The slave's half of TANDEM_TELL_SLAVE_STATE: tells its master its name, and why it has halted.

Strategy:   once per connection before the first report, at once when it halts, and every PERIOD_S, because a
            master that was started again has forgotten.
            Negotiated by trying: a master that does not support the request, or does not allow it to this
            slave's account, is not asked again while it keeps its address; nothing else changes towards it.
Invariants: a failure changes nothing of the copy; the next period tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tandemmq.api.replica import tell_slave_state
from tandemmq.errors import RequestRejected, TandemError
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.requests.replica import TellSlaveStateRequest
from tandemmq.remoting.address import render_address
from tandemmq.remoting.client import RemotingClient
from tandemmq.replication.core.notice import DETAIL_CHARS_MAX, SlaveName
from tandemmq.replication.core.states import SlaveState
from tandemmq.replication.shell import ReplicationSlaveStatus
from tandemmq.runtime.ports import Clock

PERIOD_S: Final = 5.0
_LASTING: Final = frozenset({ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.NO_PERMISSION})
"""Answers that the next attempt would get again."""


class StateTeller:
    """`run` is its task; `master` gives the remoting address to tell, or None."""

    def __init__(
        self,
        name: SlaveName,
        *,
        status: Callable[[], ReplicationSlaveStatus],
        master: Callable[[], str | None],
        own_address: Callable[[], str],
        client: RemotingClient,
        clock: Clock,
    ) -> None:
        self._name = name
        self._status = status
        self._master = master
        self._own_address = own_address
        self._client = client
        self._clock = clock
        self._is_due = asyncio.Event()
        self._mute: str | None = None
        """A master that wants to be told nothing."""

    def wake(self) -> None:
        """The next telling comes at once."""
        self._is_due.set()

    async def run(self) -> None:
        """Never returns."""
        while True:
            self._is_due.clear()
            status = self._status()
            if status.halt is not None or status.state is SlaveState.TRANSFERRING:
                await self.tell()
            await self._pause()

    async def tell(self) -> None:
        """Returns when the master knows the state of now, or cannot be told."""
        master = self._master()
        if master != self._mute:
            self._mute = None
        if master is None or self._mute is not None:
            return
        try:
            await tell_slave_state(self._client, master, self._describe(self._status()))
        except RequestRejected as error:
            if error.code in _LASTING:
                self._mute = master
        except TandemError:
            pass  # whoever copies the tables tells of it

    def _describe(self, status: ReplicationSlaveStatus) -> TellSlaveStateRequest:
        halt = status.halt
        detail = None if halt is None else f"{halt.reason.value}: {halt.detail}"[:DETAIL_CHARS_MAX]
        return TellSlaveStateRequest(
            broker_name=self._name.broker_name,
            broker_id=self._name.broker_id,
            ha_address=render_address(status.local_address),
            log_end=status.log_end,
            is_copying=status.state is SlaveState.TRANSFERRING,
            halt_reason=None if halt is None else halt.reason.name,
            halt_offset=None if halt is None else halt.log_offset,
            halt_detail=detail,
            address=self._own_address(),
        )

    async def _pause(self) -> None:
        timer = self._clock.call_later(PERIOD_S, self._is_due.set)
        try:
            await self._is_due.wait()
        finally:
            timer.cancel()
