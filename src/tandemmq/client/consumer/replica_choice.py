"""Which replica of a broker a pull goes to; pure (spec replication 8.4).

Unless the options say otherwise, the broker's last answer names the replica it wants us to read from; a
replica that could not be reached a moment ago is passed over, so that reading goes on at the slave while the
master is away and the route still names it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tandemmq.client.options import ReadFrom
from tandemmq.units import MASTER_ID


@dataclass(frozen=True, slots=True)
class ReadReplica:
    """One address of a broker name."""

    broker_id: int
    address: str

    @property
    def is_slave(self) -> bool:
        return self.broker_id != MASTER_ID


def choose_replica(
    addresses: Mapping[int, str], suggested_id: int, unreachable: Collection[str] = ()
) -> ReadReplica | None:
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
            return ReadReplica(broker_id, candidates[broker_id])
    lowest = min(candidates)
    return ReadReplica(lowest, candidates[lowest])


AVOID_SLAVE_S = 5.0
"""How long a slave that is too far behind, or refuses to be read, is left alone."""


class ReadPolicy:
    """One queue's choice over time: which replica the next pull goes to.

    MASTER        the master and nobody else, also while it is away
    SUGGESTED     whom the last answer names, as RocketMQ's clients do
    PREFER_SLAVE  a slave, while it is not more than `lag_count_max` messages behind its master when we have
                  read all that it has; queues spread over several slaves

    Times are monotonic seconds.
    """

    __slots__ = ("_avoid_until", "_is_doubtful", "_lag_count_max", "_read_from", "_spread", "_suggested_id")

    def __init__(self, read_from: ReadFrom, *, lag_count_max: int, spread: int = 0) -> None:
        self._read_from = read_from
        self._lag_count_max = lag_count_max
        self._spread = spread
        self._suggested_id = MASTER_ID
        self._avoid_until = float("-inf")
        self._is_doubtful = False

    def choose(
        self, addresses: Mapping[int, str], unreachable: Collection[str], now: float
    ) -> ReadReplica | None:
        """Whom to ask now; None when nobody may be asked."""
        if self._read_from is ReadFrom.MASTER:
            addresses = {key: address for key, address in addresses.items() if key == MASTER_ID}
        if self._read_from is not ReadFrom.PREFER_SLAVE:
            return choose_replica(addresses, self._suggested_id, unreachable)
        slaves = sorted(
            key for key, address in addresses.items() if key != MASTER_ID and address not in unreachable
        )
        if not slaves or now < self._avoid_until or self._is_doubtful:
            return choose_replica(addresses, MASTER_ID, unreachable)
        broker_id = slaves[self._spread % len(slaves)]
        return ReadReplica(broker_id, addresses[broker_id])

    def note_answer(self, suggested_id: int) -> None:
        """A pull was answered, whatever it found."""
        if self._read_from is ReadFrom.SUGGESTED:
            self._suggested_id = suggested_id

    def must_compare(self, replica: ReadReplica, *, is_at_end: bool) -> bool:
        """Whether the master's end is to be asked for: only when the slave has nothing more for us, because
        until then its lag costs nothing.
        """
        return self._read_from is ReadFrom.PREFER_SLAVE and replica.is_slave and is_at_end

    def note_ends(self, master_end: int, slave_end: int, now: float) -> bool:
        """The ends of the queue; True when the master is read for a while."""
        if master_end - slave_end <= self._lag_count_max:
            return False
        self._avoid_until = now + AVOID_SLAVE_S
        return True

    def note_doubt(self, now: float) -> None:
        """A slave cannot tell whether what we read before is in its log, or has not got what comes next: the
        master is asked, however late we come, and for a while.
        """
        self._is_doubtful = True
        if self._read_from is ReadFrom.PREFER_SLAVE:
            self._avoid_until = now + AVOID_SLAVE_S
        self._suggested_id = MASTER_ID

    def note_proof(self) -> None:
        """Somebody has answered who can tell, and has what comes next."""
        self._is_doubtful = False

    def note_refusal(self, replica: ReadReplica, now: float) -> bool:
        """The replica refuses to be read; True when another is read for a while."""
        if self._read_from is not ReadFrom.PREFER_SLAVE or not replica.is_slave:
            return False
        self._avoid_until = now + AVOID_SLAVE_S
        return True
