"""The slave's side of the config sync: copies the master's tables, again and again.

Strategy:   the first round as soon as a master is known, then every second, because a topic made a second
            before a master dies matters; a round that takes long is followed by a longer pause, so that
            large tables cost at most a tenth of the time. An item that fails does not stop the next one; a
            round that failed has mostly waited for a master that is gone, and the next one comes soon.
Invariants: a table is replaced at once and only when it differs; its version is then the master's.
Source:     spec replication 6 (D3: the period is visible only as freshness).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from tandemmq.api.replica import (
    HeldTable,
    fetch_consumer_offsets,
    fetch_delay_offsets,
    fetch_groups,
    fetch_request_modes,
    fetch_timer_check,
    fetch_topics,
)
from tandemmq.broker.delay.timer_check import decode_timer_answer
from tandemmq.broker.replica.tables import ReplicaTables
from tandemmq.errors import TandemError
from tandemmq.remoting.client import RemotingClient
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.runtime.ports import Clock
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

PAUSE_PER_WORK: Final = 10
PAUSE_S_MAX: Final = 10.0
"""RocketMQ's period: a round may also have taken long because the network held it up."""


class ConfigSync:
    """One slave's copy of the tables; `run` is its task."""

    def __init__(
        self,
        tables: ReplicaTables,
        *,
        client: RemotingClient,
        clock: Clock,
        options: ReplicationOptions,
        own_address: Callable[[], str],
    ) -> None:
        self._tables = tables
        self._client = client
        self._clock = clock
        self._options = options
        self._own_address = own_address
        self._master: str | None = None
        self._is_changed = asyncio.Event()
        self._failing: set[str] = set()
        # Whether the master is known to answer an unchanged table with nothing.
        self._can_skip_topics = self._can_skip_groups = False
        self.round_count = 0
        """Rounds in which every item arrived."""
        self.synced_at: float | None = None
        """When the last of them ended, by the monotonic clock."""

    @property
    def master(self) -> str | None:
        return self._master

    def set_master(self, address: str | None) -> None:
        """The master's remoting address; None pauses. A new one is asked at once."""
        if address == self._own_address():
            address = None
        if address != self._master:
            self._master = address
            self._can_skip_topics = self._can_skip_groups = False
            self._is_changed.set()

    def wake(self) -> None:
        """The next round comes at once."""
        self._is_changed.set()

    async def run(self) -> None:
        """Never returns."""
        while True:
            self._is_changed.clear()
            begun_at = self._clock.monotonic()
            is_whole = self._master is not None and await self.sync_once(self._master)
            await self._pause(self._clock.monotonic() - begun_at if is_whole else 0.0)

    async def sync_once(self, master: str) -> bool:
        """One round; True when every item arrived."""
        items: tuple[tuple[str, Callable[[str], Awaitable[None]]], ...] = (
            ("topics", self._sync_topics),
            ("consumer_offsets", self._sync_consumer_offsets),
            ("delay_offsets", self._sync_delay_offsets),
            ("groups", self._sync_groups),
            ("request_modes", self._sync_request_modes),
            ("timer_check", self._sync_timer_check),
        )
        for name, sync in items:
            try:
                await sync(master)
            except TandemError as error:
                self._note_failure(name, master, error)
            else:
                self._note_success(name, master)
        if self._failing:
            return False
        self.round_count += 1
        self.synced_at = self._clock.monotonic()
        return True

    async def _sync_topics(self, master: str) -> None:
        table = self._tables.topics
        held = HeldTable(
            data_version=table.data_version, entry_count=len(table), can_skip=self._can_skip_topics
        )
        fetched = await fetch_topics(self._client, master, held)
        self._can_skip_topics = fetched.can_skip
        if not fetched.is_unchanged:
            table.replace_all(fetched.entries, fetched.data_version)

    async def _sync_groups(self, master: str) -> None:
        table = self._tables.groups
        held = HeldTable(
            data_version=table.data_version, entry_count=len(table), can_skip=self._can_skip_groups
        )
        fetched = await fetch_groups(self._client, master, held)
        self._can_skip_groups = fetched.can_skip
        if not fetched.is_unchanged:
            table.replace_all(fetched.entries, fetched.data_version)

    async def _sync_consumer_offsets(self, master: str) -> None:
        fetched = await fetch_consumer_offsets(
            self._client, master, timeout_s=self._options.config_sync_timeout_ms / 1000
        )
        held = self._tables.consumer_offsets.snapshot()
        changed = {key: queues for key, queues in fetched.offsets.items() if held.offsets.get(key) != queues}
        if changed or fetched.data_version != held.data_version:
            self._tables.consumer_offsets.replace_from_master(changed, fetched.data_version)

    async def _sync_delay_offsets(self, master: str) -> None:
        fetched = await fetch_delay_offsets(
            self._client, master, timeout_s=self._options.config_sync_timeout_ms / 1000
        )
        held = self._tables.delay_offsets.snapshot()
        if fetched != held:
            self._tables.delay_offsets.replace_all(fetched.offsets, fetched.data_version)

    async def _sync_request_modes(self, master: str) -> None:
        timeout_s = self._options.config_sync_timeout_ms / 1000
        fetched = await fetch_request_modes(self._client, master, timeout_s=timeout_s)
        table = self._tables.request_modes
        if fetched is not None and fetched != table.snapshot():
            table.replace_all(fetched.modes)

    async def _sync_timer_check(self, master: str) -> None:
        progress = self._tables.timer_progress
        if progress is None:
            return
        timeout_s = self._options.config_sync_timeout_ms / 1000
        body = await fetch_timer_check(self._client, master, timeout_s=timeout_s)
        if body is not None:
            progress.replace(decode_timer_answer(body), self._clock.now_ms())

    async def _pause(self, worked_s: float) -> None:
        delay_s = max(
            self._options.config_sync_interval_ms / 1000, min(PAUSE_PER_WORK * worked_s, PAUSE_S_MAX)
        )
        timer = self._clock.call_later(delay_s, self._is_changed.set)
        try:
            await self._is_changed.wait()
        finally:
            timer.cancel()

    def _note_failure(self, item: str, master: str, error: TandemError) -> None:
        """One line per outage and item, not one per round."""
        if item not in self._failing:
            self._failing.add(item)
            facts = {"item": item, "master": master, "reason": str(error)}
            log.warning(events.CONFIG_SYNC_FAILED, extra=facts)

    def _note_success(self, item: str, master: str) -> None:
        if item in self._failing:
            self._failing.discard(item)
            log.info(events.CONFIG_SYNC_RESUMED, extra={"item": item, "master": master})
