"""The choice of a broker's replica for a pull; pure (spec replication 8.4).

Unless the options say otherwise, the broker's last answer names the replica to read from. A replica that was
unreachable a moment ago is skipped, so that reading continues at the slave while the master is away and the
route still names it.
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
    """Returns the suggested replica, else the one after it (for slaves), else the lowest id; reachable ones
    first.

    If all are unreachable, the same order applies to all of them, because one must be tried. Returns None
    without any address.
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
"""The time in seconds for which a slave is avoided after it lagged too far behind, or refused a read."""


class ReadPolicy:
    """The choice of one queue's replica for each pull.

    MASTER        only the master, also while it is away
    SUGGESTED     the replica that the last answer names, as RocketMQ's clients do
    PREFER_SLAVE  a slave, unless it is more than `lag_count_max` messages behind its master when this client
                  has read all that it has; queues are spread over several slaves

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
        """Returns the replica to ask now; None when none may be asked."""
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

    def on_answer(self, suggested_id: int) -> None:
        """Records the replica that the answer to a pull suggested."""
        if self._read_from is ReadFrom.SUGGESTED:
            self._suggested_id = suggested_id

    def must_compare(self, replica: ReadReplica, *, is_at_end: bool) -> bool:
        """Returns True if the master's end must be queried: only when the slave has no more messages for this
        reader, because until then its lag costs nothing.
        """
        return self._read_from is ReadFrom.PREFER_SLAVE and replica.is_slave and is_at_end

    def judge_ends(self, master_end: int, slave_end: int, now: float) -> bool:
        """Compares the ends of the queue; returns True when the master is to be read for a while."""
        if master_end - slave_end <= self._lag_count_max:
            return False
        self._avoid_until = now + AVOID_SLAVE_S
        return True

    def on_unverified(self, now: float) -> None:
        """Sends the reader to the master for a while: a slave cannot tell if its log has the last record
        read, or lacks the next messages.
        """
        self._is_doubtful = True
        if self._read_from is ReadFrom.PREFER_SLAVE:
            self._avoid_until = now + AVOID_SLAVE_S
        self._suggested_id = MASTER_ID

    def on_verified(self) -> None:
        """Records an answer from a replica that could verify the last record read and has the next
        messages.
        """
        self._is_doubtful = False

    def on_rejected(self, replica: ReadReplica, now: float) -> bool:
        """Records that the replica refused a read; returns True when another is to be read for a while."""
        if self._read_from is not ReadFrom.PREFER_SLAVE or not replica.is_slave:
            return False
        self._avoid_until = now + AVOID_SLAVE_S
        return True
