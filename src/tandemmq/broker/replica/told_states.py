"""The master's half of TANDEM_TELL_SLAVE_STATE: what slaves tell of themselves goes into its status."""

from __future__ import annotations

from typing import Final

from tandemmq.errors import BadRequest, ConfigError
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.replica import TellSlaveStateRequest
from tandemmq.remoting.address import parse_address
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.dispatch import Handler
from tandemmq.replication.core.notice import (
    DETAIL_CHARS_MAX,
    NAME_CHARS_MAX,
    REASON_CHARS_MAX,
    SlaveName,
    SlaveNotice,
    ToldHalt,
)
from tandemmq.replication.shell import ReplicationMaster
from tandemmq.runtime.ports import Address

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
