"""TANDEM_TELL_SLAVE_STATE: a slave tells its master its name, and why it has halted; the master shows it.

Strategy:   the slave tells it once per connection before the first report, at once when it halts, and every
            PERIOD_S, because a master that was started again has forgotten.
            Negotiated by trying: a master that does not support the request, or does not allow it to this
            slave's account, is not asked again while it keeps its address; nothing else changes towards it.
Invariants: a failure changes nothing of the copy; the next period tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tandemmq.api.replica import tell_slave_state
from tandemmq.errors import BadRequest, ConfigError, RequestRejected, TandemError
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.replica import TellSlaveStateRequest
from tandemmq.remoting.address import parse_address, render_address
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.dispatch import Handler
from tandemmq.replication.core.notice import (
    DETAIL_CHARS_MAX,
    NAME_CHARS_MAX,
    REASON_CHARS_MAX,
    SlaveName,
    SlaveNotice,
    ToldHalt,
)
from tandemmq.replication.core.states import SlaveState
from tandemmq.replication.shell import ReplicationMaster, ReplicationSlaveStatus
from tandemmq.runtime.ports import Address, Clock

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


ADDRESS_COUNT_MAX: Final = 64
"""The slave that told longest ago is forgotten."""


class ToldStates:
    """Reads the request; what is kept of it, and for how long, is the master's affair."""

    def __init__(self, master: ReplicationMaster) -> None:
        self._master = master
        self._addresses: dict[SlaveName, str] = {}

    def routes(self) -> dict[int, Handler]:
        return {RequestCode.TANDEM_TELL_SLAVE_STATE: self.handle_tell}

    def handle_tell(self, _channel: Channel, command: Command) -> Command:
        told = command.decode(TellSlaveStateRequest)
        notice = read_notice(told)
        self._master.on_notice(notice)
        # Nobody may send us elsewhere: only the host counts whose replication connection was let in.
        if told.address is not None and self._master.has_connection(notice.ha_address):
            host = _read_address(told.address)[0]
            if host == notice.ha_address[0]:
                self._addresses.pop(notice.name, None)
                self._addresses[notice.name] = told.address
                if len(self._addresses) > ADDRESS_COUNT_MAX:
                    del self._addresses[next(iter(self._addresses))]
        return command.reply()

    @property
    def addresses(self) -> list[str]:
        """Where slaves that connected told that they can be asked."""
        return list(self._addresses.values())


def read_notice(told: TellSlaveStateRequest) -> SlaveNotice:
    """The notice in it.

    Raises:  BadRequest naming the field that is wrong.
    """
    if not 1 <= len(told.broker_name) <= NAME_CHARS_MAX:
        raise BadRequest(
            f"brokerName has {len(told.broker_name)} characters; allowed are 1..{NAME_CHARS_MAX}"
        )
    if told.broker_id < 0 or told.log_end < 0:
        raise BadRequest(f"brokerId {told.broker_id} and maxOffset {told.log_end} must not be negative")
    return SlaveNotice(
        name=SlaveName(told.broker_name, told.broker_id),
        ha_address=_read_address(told.ha_address),
        log_end=told.log_end,
        is_copying=told.is_copying,
        halt=_read_halt(told),
    )


def _read_address(text: str) -> Address:
    try:
        return parse_address(text)
    except ConfigError as error:
        raise BadRequest(f"haAddress: {error}") from None


def _read_halt(told: TellSlaveStateRequest) -> ToldHalt | None:
    if told.halt_reason is None:
        return None
    detail = told.halt_detail or ""
    if len(told.halt_reason) > REASON_CHARS_MAX or len(detail) > DETAIL_CHARS_MAX:
        raise BadRequest(
            f"haltReason has {len(told.halt_reason)} characters, haltDetail {len(detail)}; "
            f"allowed are {REASON_CHARS_MAX} and {DETAIL_CHARS_MAX}"
        )
    return ToldHalt(reason=told.halt_reason, log_offset=told.halt_offset or 0, detail=detail)
