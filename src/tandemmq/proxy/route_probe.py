"""`RouteProbe`: asks the name servers periodically whether there are brokers, for /health/ready.

A proxy asks for routes only when clients need them, so without traffic it would not notice that no name
server answers.
"""

from __future__ import annotations

from typing import Final

from tandemmq.api.nameserver import query_cluster_info
from tandemmq.client.route_cache import NameServers
from tandemmq.errors import TandemError
from tandemmq.remoting.health import Condition
from tandemmq.runtime.ports import Clock

PERIOD_S: Final = 5.0
ANSWER_S: Final = 2.0


class RouteProbe:
    """The newest answer of the name servers. `run` is a task of the proxy."""

    def __init__(self, name_servers: NameServers, *, clock: Clock) -> None:
        self._name_servers = name_servers
        self._clock = clock
        self.condition = Condition("routes", "no name server has answered yet")

    async def run(self) -> None:
        """Asks every `PERIOD_S`. Never returns."""
        while True:
            self.condition = Condition("routes", await self._find_fault())
            await self._clock.sleep(PERIOD_S)

    async def _find_fault(self) -> str:
        try:
            found = await self._name_servers.ask(
                lambda client, address: query_cluster_info.within(ANSWER_S, client, address),
                knows=lambda info: bool(info.brokers),
            )
        except TandemError as error:
            return str(error)
        return (
            "" if found.brokers else f"no broker is registered at {', '.join(self._name_servers.addresses)}"
        )
