"""Slaves that were here and are not connected now: how far they were, and why they are gone.

Without it a master forgets a slave with its connection: the copy that needs a person is the one that nobody
sees. Known by host, like the slaves themselves (spec replication 4.1): a host whose slave follows again is
forgotten with all that was noted of it.
At the bounds: the oldest is forgotten; one that stayed away for DEPARTED_MS_MAX counts as taken out of
service.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tandemmq.replication.core.progress import StartRule, TransferStart
from tandemmq.replication.core.states import MasterState
from tandemmq.runtime.ports import Address
from tandemmq.units import ReplicaId

DEPARTED_COUNT_MAX: Final = 64
DEPARTED_MS_MAX: Final = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class DepartedSlave:
    """The last that is known of a connection that has ended, and why it ended."""

    address: Address
    replica: ReplicaId | None
    acknowledged: int
    start: TransferStart
    is_tandem: bool
    left_at_ms: int
    reason: str

    def state(self, log_start: int) -> MasterState:
        """AHEAD or TOO_OLD when it would be refused if it came back as it was, else CLOSED."""
        if self.start.rule is StartRule.SLAVE_AHEAD:
            return MasterState.AHEAD
        if 0 < self.acknowledged < log_start:
            return MasterState.TOO_OLD
        return MasterState.CLOSED


class DepartedSlaves:
    """Host and ReplicaId -> DepartedSlave. Times are monotonic milliseconds."""

    __slots__ = ("_slaves",)

    def __init__(self) -> None:
        self._slaves: dict[tuple[str, ReplicaId | None], DepartedSlave] = {}

    def note(self, slave: DepartedSlave) -> None:
        """A connection has ended that had told where its copy ends."""
        key = (slave.address[0], slave.replica)
        self._slaves.pop(key, None)
        self._slaves[key] = slave
        if len(self._slaves) > DEPARTED_COUNT_MAX:
            del self._slaves[next(iter(self._slaves))]

    def forget(self, host: str) -> None:
        """A slave on this host follows."""
        for key in [key for key in self._slaves if key[0] == host]:
            del self._slaves[key]

    def list(self, now_ms: int) -> tuple[DepartedSlave, ...]:
        """Oldest first."""
        for key, slave in list(self._slaves.items()):
            if now_ms - slave.left_at_ms > DEPARTED_MS_MAX:
                del self._slaves[key]
        return tuple(self._slaves.values())
