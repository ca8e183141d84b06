"""The slave's attempts to reach its master: one at a time, with the secret if there is one.

Knows not: when to try; what is said on the connection.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from tandemmq.errors import ConfigError
from tandemmq.remoting.options import parse_address
from tandemmq.replication.core.admission import NONCE_BYTES, SlaveHandshake
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.replication.shell.master_connection import ConnectionOwner, MasterConnection
from tandemmq.runtime.machine import unpredictable_bytes
from tandemmq.runtime.ports import Network
from tandemmq.runtime.tasks import TaskScope
from tandemmq.telemetry import events

log = logging.getLogger(__name__)


class DiallerOwner(ConnectionOwner, Protocol):
    """Who wants a connection: gets it by `on_connected`."""

    def on_unreachable(self, reason: str, *, is_first: bool) -> None:
        """The attempt failed. `is_first`: the one before it, if any, did not."""


class Dialler:
    """`dial` ends in `on_connected` or `on_unreachable`, unless it is cancelled."""

    def __init__(
        self, owner: DiallerOwner, options: ReplicationOptions, *, network: Network, tasks: TaskScope
    ) -> None:
        self._owner = owner
        self._options = options
        self._network = network
        self._tasks = tasks
        self._attempt: tuple[asyncio.Task[None], MasterConnection] | None = None
        self._failure_count = 0

    def dial(self, address: str) -> None:
        """Begin an attempt; the one before it has ended."""
        connection = MasterConnection(self._owner, self._new_handshake())
        task = self._tasks.start("dial", self._run(address, connection))
        self._attempt = task, connection

    def note_connected(self) -> None:
        """The owner has the connection and closes it."""
        self._attempt = None
        self._failure_count = 0

    def cancel(self) -> None:
        """Give up a running attempt, also when its socket is up: it must not speak for us any more."""
        if self._attempt is not None:
            task, connection = self._attempt
            self._attempt = None
            connection.close()
            task.cancel()

    async def _run(self, address: str, connection: MasterConnection) -> None:
        try:
            host, port = parse_address(address)
            timeout_s = self._options.connect_timeout_ms / 1000
            await self._network.connect(host, port, lambda: connection, timeout_s)
            async with asyncio.timeout(timeout_s):
                await connection.is_ready.wait()
        except (OSError, ConfigError) as error:
            # A TimeoutError is an OSError: the master answered nothing to the secret.
            self._attempt = None  # this task: it ends by itself
            connection.close()
            self._note_failure(address, str(error) or type(error).__name__)

    def _note_failure(self, address: str, reason: str) -> None:
        """One line per outage, not one per attempt."""
        self._failure_count += 1
        is_first = self._failure_count == 1
        if is_first:
            log.warning(events.MASTER_UNREACHABLE, extra={"master": address, "reason": reason})
        self._owner.on_unreachable(reason, is_first=is_first)

    def _new_handshake(self) -> SlaveHandshake | None:
        secret = self._options.shared_secret
        return SlaveHandshake(secret, unpredictable_bytes(NONCE_BYTES)) if secret else None
