"""Clients in a network of their own: there brokers have other names and ports, which operators change.

Invariants: a host of that network reaches brokers at their advertised addresses only, all other hosts at
            their registered addresses only; anything else is a finding (`Fabric.on_wrong_address`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.dice import Dice

if TYPE_CHECKING:
    from sim.cluster.network import Fabric

NETWORK = "outside"
NAME_SERVER_PORT = 9876
LISTENER_PORT = 9877
"""The port at which a name server answers with addresses of the network."""
RANGE = "10.1.0.0/16"
"""The addresses of the network's hosts."""
FIRST_ALIAS_PORT = 30_000
DRAWN_PERCENT = 33
WAYS = ("listener", "range")
"""The ways in which name servers recognize the clients: by the listener, or by their addresses."""
MOVED_PERCENT = 50


class Outside:
    """The network of one seed, with random numbers of its own: other seeds keep their histories."""

    def __init__(self, dice: Dice, fabric: Fabric) -> None:
        self.dice = dice
        self._fabric = fabric
        self.way = dice.pick(WAYS)
        self.client_percent = dice.pick((40, 100))
        """The probability that a client is in the network."""
        self.moves = dice.happens(MOVED_PERCENT)
        """True if operators change advertised addresses."""
        self._alias_count = 0

    @property
    def listeners(self) -> str:
        """The name servers' networkListeners."""
        return f"{NETWORK}={LISTENER_PORT}" if self.way == "listener" else ""

    @property
    def ranges(self) -> str:
        """The name servers' clientNetworks."""
        return f"{NETWORK}={RANGE}" if self.way == "range" else ""

    def draws_client(self) -> bool:
        """Returns True if the next client is in the network."""
        return self.dice.happens(self.client_percent)

    def name_servers(self, namesrv: str) -> str:
        """Returns the name servers that the network's clients ask."""
        if self.way == "range":
            return namesrv
        return namesrv.replace(f":{NAME_SERVER_PORT}", f":{LISTENER_PORT}")

    def add_alias(self, ip: str, port: int) -> tuple[str, int]:
        """Returns a new address of a broker in the network. Its registered one cannot be reached there."""
        self._alias_count += 1
        alias = (f"b{self._alias_count}.example", FIRST_ALIAS_PORT + self._alias_count)
        self._fabric.aliases[alias] = (ip, port)
        self._fabric.hidden[ip] = None
        return alias

    def remove_alias(self, alias: tuple[str, int]) -> None:
        """Removes an address; connections that exist stay."""
        self._fabric.aliases.pop(alias, None)


def render_alias(alias: tuple[str, int]) -> str:
    """Returns the value of advertisedAddresses."""
    return f"{NETWORK}={alias[0]}:{alias[1]}"


def draw_outside(dice: Dice, fabric: Fabric) -> Outside | None:
    """Draws the network of a third of the seeds; None for the others."""
    return Outside(dice, fabric) if dice.happens(DRAWN_PERCENT) else None
