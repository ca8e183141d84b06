"""A bound on what one address makes by use: topics by sending to them, groups by using them.

The tables of topics and groups have bounds of their own, and each entry costs memory, files and a place in
every registration. Without a bound by address one stranger fills both tables within a minute.

Invariants: an address makes at most `count_max` entries at once, and from then on `count_max` in an hour.
Not counted: requests from this machine, what tools create expressly, and everything while access control is
            on, where rights say who may create what.
At a bound: NotPermitted, naming the address, the bound and the ways out. Of ADDRESSES_MAX addresses the one
            that made something longest ago is forgotten. IPv6 addresses count by their /64 networks.
"""

from __future__ import annotations

from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Final

from tandemmq.errors import NotPermitted
from tandemmq.runtime.ports import Clock

PERIOD_S: Final = 3_600.0
ADDRESSES_MAX: Final = 8_192


class CreationQuota:
    """What each address may still make by use."""

    def __init__(self, count_max: int, clock: Clock) -> None:
        """`count_max` 0: no bound."""
        self._count_max = count_max
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}  # by network: how many, and at which time

    def take(self, host: str, name: str) -> None:
        """Count one more creation by `host`.

        Raises:  NotPermitted when it has made too many; nothing is counted then.
        """
        if not self._count_max:
            return
        network = _network_of(host)
        if network is None:
            return
        now_s = self._clock.monotonic()
        left, at_s = self._left.pop(network, (float(self._count_max), now_s))
        left = min(self._count_max, left + (now_s - at_s) * self._count_max / PERIOD_S)
        if left < 1:
            self._left[network] = left, now_s
            raise NotPermitted(
                f"{network} has made {self._count_max} topics and groups by use, which is its bound for an"
                f" hour: create {name[:160]!r} expressly (updateTopic, updateSubGroup), or raise"
                " autoCreatePerAddressMax of the broker"
            )
        if len(self._left) >= ADDRESSES_MAX:
            del self._left[next(iter(self._left))]
        self._left[network] = left - 1, now_s


def _network_of(host: str) -> str | None:
    """The address, or the network in whose name it is counted; None for this machine."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host or None
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is None:
            return None if address.is_loopback else str(IPv6Network((int(address) >> 64 << 64, 64)))
        address = address.ipv4_mapped
    return None if address.is_loopback else str(address)
