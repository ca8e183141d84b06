"""The part that every broker of a group of replicas has: a slave copies its master's tables, each broker
answers the requests of the others, and damage of the log is repaired from another copy.

`ReplicaRole` and `ElectedReplica` add the copy of the log: with a configured master, and with an elected one.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

from tandemmq.broker.core import BrokerCore
from tandemmq.broker.replica.config_sync import ConfigSync
from tandemmq.broker.replica.handlers import ReplicaHandlers
from tandemmq.broker.replica.log_checksum import LogChecksums, LogHeal
from tandemmq.broker.replica.table_watch import TableChangeServer, TableChangeSubscriber
from tandemmq.protocol.bodies.replica import HaStatus
from tandemmq.remoting.dispatch import Handler
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.replication.core.progress import LogRange
from tandemmq.runtime.tasks import TaskScope


class GroupReplica(ABC):
    """One broker of a group. A subclass says which copy of the log it follows.

    `is_master_known`: False on a slave whose name servers report no master. `is_disconnected`: True on a
    slave without a connection to its reported master. `forward_deletion`: asks an elected master to delete a
    topic.
    """

    is_master_known = True
    forward_deletion: Callable[[str], Awaitable[None]] | None = None

    def __init__(
        self,
        core: BrokerCore,
        options: ReplicationOptions,
        on_fatal: Callable[[BaseException], None],
        *,
        elected_id: int | None = None,
    ) -> None:
        """`elected_id`: the id of a broker of an elected group, None in any other group. Its master relies on
        the tables that it holds, and a table of an earlier term never replaces a newer one.
        """
        store, client, clock = core.store, core.client, core.clock
        tables = core.tables.replicated
        self._is_slave = core.options.is_slave
        self._store = store
        self._client = client
        self._clock = clock
        self._scope = TaskScope("replica", lambda _name, error: on_fatal(error))
        run_id = f"{clock.now_ms():x}-{core.chance.token_bytes(8).hex()}"
        self._checksums = LogChecksums(store, disk=core.disk, run_id=run_id)
        self.config_sync = ConfigSync(
            tables,
            store,
            client=client,
            clock=clock,
            options=options,
            own_address=core.own_address,
            followed=self._followed,
            keeps_newer=elected_id is not None,
        )
        self._table_change_server = TableChangeServer(tables, clock=clock)
        self._table_change_subscriber = TableChangeSubscriber(
            tables, self.config_sync, client=client, clock=clock, broker_id=elected_id
        )
        self._handlers = ReplicaHandlers(tables, self.status, lambda: store.deletions.done)
        self._log_heal = LogHeal(store, client=client, clock=clock, sources=self._copies)
        self._heal_task: asyncio.Task[None] | None = None
        store.queues.on_deleted = self.config_sync.forget_progress
        store.on_damaged = self._heal

    def routes(self) -> dict[int, Handler]:
        """Returns the routes for tables, state and checksums; also for the fast listener, where RocketMQ's
        slaves ask for topics.
        """
        return self._handlers.routes() | self._checksums.routes() | self._table_change_server.routes()

    def _start(self) -> None:
        """Repairs known damage, and on a slave starts to copy tables."""
        if self._store.damaged_ranges:
            self._heal()
        if self._is_slave:
            self._scope.start("config_sync", self.config_sync.run())
            self._scope.start("table_watch", self._table_change_subscriber.run())

    async def stop(self) -> None:
        """Stops everything; afterwards the store may be closed."""
        self._table_change_server.close()
        await self._scope.close()

    @property
    def is_disconnected(self) -> bool:
        return False

    def is_copied(self, broker_id: int, part: LogRange) -> bool:
        """Returns True if the slave of this id is known to hold these bytes of the log."""
        return False

    @property
    def synced_at(self) -> float | None:
        """The time at which the tables were last compared with the master's, by the monotonic clock."""
        return self.config_sync.synced_at

    def _heal(self) -> None:
        """Handles known damage: asks other copies until none is left."""
        if self._heal_task is None or self._heal_task.done():
            self._heal_task = self._scope.start("log_heal", self._heal_all())

    async def _heal_all(self) -> None:
        await self._log_heal.run()

    @abstractmethod
    def status(self) -> HaStatus:
        """Returns the state for GET_BROKER_HA_STATUS."""

    @abstractmethod
    def _followed(self) -> str | None:
        """Returns the id of the master's run whose log is copied now, "" if the master does not report one;
        None while nothing is copied.
        """

    @abstractmethod
    async def _copies(self) -> list[str]:
        """Returns the addresses of other copies of the log."""
