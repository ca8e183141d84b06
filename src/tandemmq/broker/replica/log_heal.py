"""Heals what a start or a scrub found damaged in the own log, from the other copies of the group.

Strategy:   a slave asks its master, before it has the ends of both logs compared, because damage would look
            like another history there; a master asks the slaves that a name server lists or that told it.
            A RocketMQ broker cannot be asked for bytes. A broker that cannot help now is asked again later.
Knows not:  what fits: the store looks at each record before it writes.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from tandemmq.api.replica import read_log
from tandemmq.broker.replica.log_checksum import READ_BYTES_MAX
from tandemmq.errors import RemoteProtocolError, StoreError, TandemError
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.ports import Clock
from tandemmq.store.message_store import MessageStore
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

RETRY_S: Final = 5.0


class LogHeal:
    """`run` is its task; it returns when nothing is damaged. `sources`: addresses of other copies."""

    def __init__(
        self,
        store: MessageStore,
        *,
        client: RemotingClient,
        clock: Clock,
        sources: Callable[[], Awaitable[Iterable[str]]],
    ) -> None:
        self._store = store
        self._client = client
        self._clock = clock
        self._sources = sources
        self._told: str | None = None

    async def run(self) -> None:
        """Raises:  StoreError when the store can no longer be trusted."""
        while self._store.damaged_ranges:
            await self.try_now()
            if self._store.damaged_ranges:
                await self._clock.sleep(RETRY_S)

    async def try_now(self) -> None:
        """Heal what can be healed. Raises StoreError when the store can no longer be trusted."""
        reasons = []
        for address in await self._sources() if self._store.damaged_ranges else ():
            try:
                await self._heal_from(address)
            except StoreError as error:
                if error.fatal:
                    raise
                reasons.append(f"{address}: {error}")
            except TandemError as error:
                reasons.append(f"{address}: {error}")
        reason = "; ".join(reasons)
        if reason and reason != self._told:
            log.warning(events.LOG_HEAL_REFUSED, extra={"reason": reason})
        self._told = reason

    async def _heal_from(self, address: str) -> None:
        async def fetch(log_offset: int, size: int) -> bytes:
            data = b""
            while left := size - len(data):
                at = log_offset + len(data)
                part = await read_log(self._client, address, at, min(left, READ_BYTES_MAX))
                if not part.data:
                    raise RemoteProtocolError(f"it has no bytes to tell from {at} on")
                data += part.data
            return data

        if self._store.damaged_ranges:
            await self._store.heal(fetch)
