"""Notices between replicas that concern the master's place: 905, 906, 908 (spec replication 7, spec
nameserver 9).

A slave of ours takes its master's addresses from its name servers only. A request that says otherwise makes
it ask them at once, so nobody can send a slave to a master of their own by a request.
"""

from __future__ import annotations

from collections.abc import Callable

from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.replica import (
    ExchangeHaInfoRequest,
    ExchangeHaInfoResponse,
    ResetMasterFlushedOffsetRequest,
)
from tandemmq.protocol.requests.route import MinBrokerIdChange
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.dispatch import Handler


class HaHandlers:
    """`ask_soon` makes a slave look for its master; `own_addresses` is (for requests, for replication)."""

    def __init__(
        self,
        *,
        is_slave: bool,
        first_end: int,
        own_addresses: Callable[[], tuple[str, str]],
        ask_soon: Callable[[], None],
        master_epoch: int | None = None,
    ) -> None:
        """`first_end`: where the log ended when the broker started. `master_epoch`: of an elected broker."""
        self._fields = None if master_epoch is None else {"tmEpoch": str(master_epoch)}
        self._is_slave = is_slave
        self._first_end = first_end
        self._own_addresses = own_addresses
        self._ask_soon = ask_soon

    def routes(self) -> dict[int, Handler]:
        return {
            RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: self.handle_min_id_change,
            RequestCode.EXCHANGE_BROKER_HA_INFO: self.handle_exchange,
            RequestCode.RESET_MASTER_FLUSH_OFFSET: self.handle_reset,
        }

    def handle_min_id_change(self, channel: Channel, command: Command) -> Command:
        """NOTIFY_MIN_BROKER_ID_CHANGE (905), from a name server: the master came or went."""
        command.decode(MinBrokerIdChange)
        self._look()
        return command.reply()

    def handle_exchange(self, channel: Channel, command: Command) -> Command:
        """EXCHANGE_BROKER_HA_INFO (906): a master tells its addresses; a slave has none to tell."""
        header = command.decode(ExchangeHaInfoRequest)
        if header.master_ha_address is not None:
            self._look()
            return command.reply()
        if self._is_slave:
            return command.reply()
        address, ha_address = self._own_addresses()
        response = ExchangeHaInfoResponse(
            master_address=address, master_ha_address=ha_address, master_flushed_offset=self._first_end
        )
        return command.reply(header=response, fields=self._fields)

    def handle_reset(self, channel: Channel, command: Command) -> Command:
        """RESET_MASTER_FLUSH_OFFSET (908): nothing to reset. RocketMQ's slaves remember an offset to which
        their master had flushed; ours compare their log with the master's instead.
        """
        command.decode(ResetMasterFlushedOffsetRequest)
        return command.reply(remark="no effect: slaves compare their log with the master's")

    def _look(self) -> None:
        if self._is_slave:
            self._ask_soon()
