"""The conditions under which a broker is ready (/health/ready).

A master is ready if it accepts sends and has the in-sync slaves that its settings demand, a slave if it
follows its master closely. Both must be registered at a name server and know their role.
At a bound: a slave counts as close within `READY_LAG_S_MAX`. The distance is the age of the newest copied
            message at its arrival, and the clocks of master and slave must agree. It needs no traffic: a
            slave to which only heartbeats come has copied everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tandemmq.broker.autoswitch.term import ElectedReplica
from tandemmq.broker.registration import Registration
from tandemmq.broker.replica.role import ReplicaRole
from tandemmq.remoting.health import Condition
from tandemmq.replication.core.progress import SlaveState, StartRule
from tandemmq.replication.shell.slave import ReplicationSlaveStatus
from tandemmq.store.message_store import MessageStore

READY_LAG_S_MAX: Final = 10.0
IDLE_MS_MIN: Final = 1_000
"""The time after the last bytes of the log from which a heartbeat shows that there are no further ones."""


@dataclass(frozen=True, slots=True)
class BrokerHealth:
    """The parts of a broker that decide. `role_fault`: returns the reason why its role is not known or not
    begun; empty otherwise.
    """

    store: MessageStore
    replica: ReplicaRole | ElectedReplica
    registration: Registration
    is_slave: bool
    is_stopping: Callable[[], bool]
    role_fault: Callable[[], str]

    def read(self) -> Iterator[Condition]:
        """Yields the present conditions."""
        facts = self.store.facts()
        yield Condition("running", "the broker stops or changes its role" if self.is_stopping() else "")
        yield Condition("role", self.role_fault() or self.store.unverified_reason)
        yield Condition("registered", self.registration.fault)
        is_refusal = facts.is_failed or not self.is_slave
        yield Condition("store", (facts.refusal or "") if is_refusal else "")
        yield Condition("replication", self._slave_fault() if self.is_slave else self._master_fault())

    def _master_fault(self) -> str:
        """Returns the reason why too few slaves are in sync; the set of an elected master is in the store's
        refusal.
        """
        status, needed = self.replica.master_status(), 0
        if isinstance(self.replica, ReplicaRole):
            needed = self.store.options.slave_ack_count(self.store.assigned_role)
        found = 0 if status is None else status.in_sync_count
        return (
            f"{found} slaves are in sync, and {needed} are needed (inSyncReplicas)" if found < needed else ""
        )

    def _slave_fault(self) -> str:
        status = self.replica.slave_status()
        if status is None:
            return "no master is known"
        if status.halt is not None:
            return f"halted: {status.halt.reason.value}: {status.halt.detail}"
        if status.state is not SlaveState.TRANSFERRING:
            return f"the log of the master {status.master_address or '(unknown)'} is not copied"
        if isinstance(self.replica, ElectedReplica) and not self.replica.is_caught_up:
            return "the log is shorter than the master's was when the connection began"
        lag_s = (status.copied_at - self.store.dispatcher.stored_at_ms) / 1000 if status.copied_at else 0.0
        if lag_s > READY_LAG_S_MAX and not _has_everything(status):
            return f"{lag_s:.0f} s behind the master, and at most {READY_LAG_S_MAX:.0f} s are allowed"
        return "" if self.replica.synced_at is not None else "topics, groups and offsets are not copied yet"


def _has_everything(status: ReplicationSlaveStatus) -> bool:
    """Returns True if the master has nothing further to send. A master that refuses the log of this slave
    sends only heartbeats, too.
    """
    is_refused = status.start_rule in (StartRule.SLAVE_TOO_OLD, StartRule.SLAVE_AHEAD)
    return not is_refused and status.last_read_at - status.copied_at >= IDLE_MS_MIN
