"""Which replica of a broker a pull goes to; pure (spec replication 8.4).

The broker's last answer names the replica it wants us to read from; a replica that could not be reached a
moment ago is passed over, so that reading goes on at the slave while the master is away and the route still
names it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

MASTER_ID = 0


@dataclass(frozen=True, slots=True)
class Replica:
    """One address of a broker name."""

    broker_id: int
    address: str

    @property
    def is_slave(self) -> bool:
        return self.broker_id != MASTER_ID


def choose_replica(
    addresses: Mapping[int, str], suggested_id: int, unreachable: Collection[str] = ()
) -> Replica | None:
    """The suggested replica, else the one after it (for slaves), else the lowest id; reachable ones first.

    When all are unreachable the same order without that filter: somebody has to be tried. None without any
    address.
    """
    if not addresses:
        return None
    reachable = {key: address for key, address in addresses.items() if address not in unreachable}
    candidates = reachable or addresses
    wanted = [suggested_id] if suggested_id == MASTER_ID else [suggested_id, suggested_id + 1]
    for broker_id in wanted:
        if broker_id in candidates:
            return Replica(broker_id, candidates[broker_id])
    lowest = min(candidates)
    return Replica(lowest, candidates[lowest])
