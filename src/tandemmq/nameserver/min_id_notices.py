"""NOTIFY_MIN_BROKER_ID_CHANGE (905): brokers of a name learn that its smallest one came or went.

Only with notifyMinBrokerIdChanged. Nobody answers; a broker that cannot be reached finds out by its next
registration. At a bound: a change while `TASKS_MAX` others are being told is told to nobody.
Source: spec nameserver 9.
"""

from __future__ import annotations

import logging
from typing import Final

from tandemmq.errors import TandemError
from tandemmq.nameserver.route_table import RouteTable, Smallest
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.route import MinBrokerIdChange
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.tasks import TaskScope
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

TASKS_MAX: Final = 256


class MinIdNotices:
    """Tells the brokers over connections of the name server's own."""

    def __init__(self, table: RouteTable, *, client: RemotingClient, scope: TaskScope) -> None:
        self._table = table
        self._client = client
        self._scope = scope

    def after_registration(self, name: str, before: Smallest | None) -> None:
        """A smaller id than all others registered: the others are told, or itself when it is alone."""
        now = self._table.smallest(name)
        if now is None or before is None or now.broker_id >= before.broker_id:
            return
        others = [address for address in self._table.addresses(name) if address != now.address]
        self._tell(name, others or [now.address], offline_address=None)

    def after_leaving(self, name: str, before: Smallest | None) -> None:
        """The smallest one left: all that stay are told, when they know acting masters."""
        now = self._table.smallest(name)
        if before is None or now is None or now.address == before.address:
            return
        if self._table.knows_acting_master(name):
            self._tell(name, self._table.addresses(name), offline_address=before.address)

    def _tell(self, name: str, addresses: list[str], *, offline_address: str | None) -> None:
        now = self._table.smallest(name)
        if now is None or len(self._scope) >= TASKS_MAX:
            return
        header = MinBrokerIdChange(
            min_broker_id=now.broker_id,
            broker_name=name,
            min_broker_address=now.address,
            offline_address=offline_address,
            ha_address=now.ha_address,
        )
        self._scope.start(f"tell-{name}", self._send(addresses, header))

    async def _send(self, addresses: list[str], header: MinBrokerIdChange) -> None:
        for address in addresses:
            command = Command.request(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, header, oneway=True)
            try:
                await self._client.send_oneway(address, command)
            except TandemError as error:
                log.info(events.BROKER_NOT_TOLD, extra={"address": address, "reason": str(error)})
