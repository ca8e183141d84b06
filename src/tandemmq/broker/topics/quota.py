"""A bound on the topics and groups that one address creates by using them.

The tables of topics and groups have bounds of their own, and each entry costs memory, files and room in every
registration. Without a bound per address, one unknown client could fill both tables within a minute.
Invariants: an address creates at most `count_max` entries at once, and from then on `count_max` per hour.
            Not counted: requests from this machine, entries that tools create explicitly, and everything
            while access control is on, because then rights govern creation.
At a bound: NotPermitted, naming the address, the bound and the ways out. Beyond ADDRESSES_MAX addresses the
            least recently used one is forgotten. IPv6 addresses count by their /64 networks.
"""

from __future__ import annotations

from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Final

from tandemmq.errors import NotPermitted
from tandemmq.runtime.ports import Clock

PERIOD_S: Final = 3_600.0
ADDRESSES_MAX: Final = 8_192


class CreationQuota:
    """The number of entries that each address may still create by use."""

    def __init__(self, count_max: int, clock: Clock) -> None:
        """Creates the quota; with `count_max` 0 there is no bound."""
        self._count_max = count_max
        self._clock = clock
        # by network: creations left, and the time of that count
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, host: str, name: str) -> None:
        """Counts one more creation by `host`.

        Raises:  NotPermitted when `host` has created too many; nothing is counted then.
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
                f"{network} has created {self._count_max} topics and groups by use, the limit for an"
                f" hour: create {name[:160]!r} expressly (updateTopic, updateSubGroup), or raise"
                " autoCreatePerAddressMax of the broker"
            )
        if len(self._left) >= ADDRESSES_MAX:
            del self._left[next(iter(self._left))]
        self._left[network] = left - 1, now_s


def _network_of(host: str) -> str | None:
    """Returns the address or IPv6 network that is counted, or None for this machine."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host or None
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is None:
            return None if address.is_loopback else str(IPv6Network((int(address) >> 64 << 64, 64)))
        address = address.ipv4_mapped
    return None if address.is_loopback else str(address)
