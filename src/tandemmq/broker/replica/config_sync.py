"""The slave's side of the config sync: copies the master's tables periodically.

Strategy:   the first round starts as soon as a master is known, further ones every second, because a topic
            created a second before a master dies must not be lost. A long round is followed by a longer
            pause, so that large tables cost at most a tenth of the time. A failed item does not stop the next
            one. A failed round has usually waited for a master that is gone, and the next one starts soon.
Invariants: tables match the log: they are copied only from the master whose log this slave copies, in the run
            of it in which the logs were compared, and never from another slave. All items of a round are
            fetched first. The master then confirms that it is still the same run, and all items are applied
            together.
            - A table is replaced at once, and only if it differs; its version is then the master's.
            - Progress beyond the end of this slave's copy of the queue is not applied. Progress of a topic
              whose deletion is discovered during a round is not applied either: the master may have reported
              it before the deletion.
Source:     spec replication 6 (D3: the period is visible only as freshness).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from tandemmq.api.replica import (
    FetchedTable,
    HeldTable,
    fetch_consumer_offsets,
    fetch_delay_offsets,
    fetch_groups,
    fetch_request_modes,
    fetch_timer_check,
    fetch_topics,
    read_log_checksum,
)
from tandemmq.broker.assignment import ModeTable
from tandemmq.broker.delay.timers import TIMER_TOPIC, TimerProgress, decode_timer_answer
from tandemmq.broker.offsets.offset_table import DelayOffsetTable, OffsetTable
from tandemmq.broker.topics.group_table import GroupTable
from tandemmq.broker.topics.topic_table import TopicTable
from tandemmq.errors import TandemError
from tandemmq.protocol.bodies.codec import DataVersion
from tandemmq.protocol.topic_names import SCHEDULE_TOPIC
from tandemmq.remoting.client import RemotingClient
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.runtime.ports import Clock
from tandemmq.telemetry import events

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTables:
    """The broker's own tables (spec replication 6.2): read on a master, replaced on a slave."""

    topics: TopicTable
    groups: GroupTable
    consumer_offsets: OffsetTable
    delay_offsets: DelayOffsetTable
    request_modes: ModeTable
    timer_progress: TimerProgress | None = None
    """The progress of timers; None while timers are disabled."""


T = TypeVar("T")

PAUSE_PER_WORK: Final = 10
PAUSE_S_MAX: Final = 10.0
"""The longest pause, which is RocketMQ's period: a round may also have been slow because of the network."""


@dataclass(frozen=True, slots=True)
class _Told:
    """The state that the master reported after everything was fetched. `is_empty`: its log is empty."""

    is_empty: bool


TakeDeletions = Callable[[Mapping[str, int]], Awaitable[list[str]]]

_TakeOver = Callable[[_Told], None]
"""Applies one fetched item."""


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
        followed: Callable[[], str | None],
        queue_end: Callable[[str, int], int],
        apply_deletions: TakeDeletions | None = None,
        keeps_newer: bool = False,
    ) -> None:
        """`followed`: returns the run id of the master whose log is copied now, "" if it does not report one,
        None while nothing is copied. `queue_end`: returns the end of this slave's copy of a queue.
        `apply_deletions`: drops the queues of topics that the master has deleted, and returns those that were
        not known to be. `keeps_newer`: a table is never replaced by one from an earlier term of an elected
        master.
        """
        self._keeps_newer = keeps_newer
        self._tables = tables
        self._client = client
        self._clock = clock
        self._options = options
        self._own_address = own_address
        self._followed = followed
        self._queue_end = queue_end
        self._take_deletions = apply_deletions
        self._deleted: Mapping[str, int] = {}
        self._begun_anew: set[str] = set()
        """Topics whose progress was discarded since the round began."""
        self._master: str | None = None
        self._is_changed = asyncio.Event()
        self._failing: set[str] = set()
        # True once the master is known to answer a request for an unchanged table with an empty answer.
        self._can_skip_topics = self._can_skip_groups = False
        self._copy_count = 0
        self.held: tuple[DataVersion, DataVersion] | None = None
        """The versions of topics and groups, including deletions, of the last complete round; None if no
        round has completed since a copy began.
        """
        self.begun_count = 0
        """The number of rounds since the start."""
        self.whole_number = 0
        """The number of the last round in which every item arrived."""
        self.synced_at: float | None = None
        """The time at which the last complete round ended, by the monotonic clock."""

    @property
    def master(self) -> str | None:
        return self._master

    def set_master(self, address: str | None) -> None:
        """Sets the master's remoting address; None pauses. A new master is asked at once."""
        if address == self._own_address():
            address = None
        if address != self._master:
            self._master = address
            self.held = None
            self._can_skip_topics = self._can_skip_groups = False
            self._is_changed.set()

    def begin_copy(self) -> None:
        """Handles the start of a new copy of the log: everything is requested again, at once."""
        self._can_skip_topics = self._can_skip_groups = False
        self.held = None
        self._copy_count += 1
        self.wake()

    def forget_progress(self, topic: str) -> None:
        """Handles a topic that was created again, as the log shows: its known offsets, including those of a
        round in progress, are of the deleted one. The next round, which starts at once, brings the new ones.
        """
        self._begun_anew.add(topic)
        self._tables.consumer_offsets.drop_topic(topic)
        self.wake()

    def wake(self) -> None:
        """Starts the next round at once."""
        self._is_changed.set()

    async def run(self) -> None:
        """Runs round after round. Never returns."""
        while True:
            self._is_changed.clear()
            begun_at = self._clock.monotonic()
            is_whole = self._master is not None and await self.sync_once(self._master)
            await self._pause(self._clock.monotonic() - begun_at if is_whole else 0.0)

    async def sync_once(self, master: str) -> bool:
        """Runs one round; returns True if every item arrived and was applied."""
        life, copy = self._followed(), self._copy_count
        if life is None:
            return False
        self._begun_anew.clear()
        self.begun_count += 1
        number = self.begun_count
        # Topics and groups before the offsets: a slave that has a deletion then also has its effect on
        # offsets. Concurrent requests cost one round trip.
        fetched = await self._fetch_all(master, topics=self._fetch_topics, groups=self._fetch_groups)
        fetched += await self._fetch_all(
            master,
            consumer_offsets=self._fetch_consumer_offsets,
            delay_offsets=self._fetch_delay_offsets,
            request_modes=self._fetch_request_modes,
            timer_check=self._fetch_timer_check,
        )
        told = await self._ask_again(master, life)
        if told is None or (self._keeps_newer and master != self._master):
            return False
        for take_over in fetched:
            take_over(told)
        if copy != self._copy_count:  # the requests referred to the previous copy
            self._can_skip_topics = self._can_skip_groups = False
        await self._drop_deleted(master)
        if self._failing:
            return False
        if copy == self._copy_count:
            self.held = self._tables.topics.data_version, self._tables.groups.data_version
        self.whole_number = number
        self.synced_at = self._clock.monotonic()
        return True

    async def _fetch_all(
        self, master: str, **fetches: Callable[[str], Awaitable[_TakeOver]]
    ) -> list[_TakeOver]:
        """Fetches items concurrently and returns those that arrived."""
        results = await asyncio.gather(*(fetch(master) for fetch in fetches.values()), return_exceptions=True)
        fetched = []
        for name, result in zip(fetches, results, strict=True):
            if isinstance(result, TandemError):
                self._note_failure(name, master, result)
            elif isinstance(result, BaseException):
                raise result
            else:
                self._note_success(name, master)
                fetched.append(result)
        return fetched

    async def _ask_again(self, master: str, life: str) -> _Told | None:
        """Asks the master for its state after everything was fetched. Returns None if the answers may be from
        another run, or from a master that is no longer followed, or that is a slave now: its tables may still
        be empty.
        """
        if not life:
            return _Told(is_empty=False) if self._followed() == life else None
        try:
            ends = await read_log_checksum(self._client, master, 0, 0)
        except TandemError:
            return None  # the items of the next round report it
        is_followed = ends.life == life == self._followed() and not ends.is_slave
        return _Told(is_empty=ends.max_offset == 0) if is_followed else None

    async def _drop_deleted(self, master: str) -> None:
        """Drops the queues and offsets of topics that the master has deleted, including those created again
        since: the next round brings the offsets of the new ones.
        """
        deleted, self._deleted = self._deleted, {}
        if not deleted or self._take_deletions is None:
            return
        try:
            news = await self._take_deletions(deleted)
        except (OSError, TandemError) as error:
            self._note_failure("deleted_topics", master, error)
            return
        self._note_success("deleted_topics", master)
        for topic in news:
            self._tables.consumer_offsets.drop_topic(topic)
        if news:
            self._is_changed.set()

    async def _fetch_topics(self, master: str) -> _TakeOver:
        table = self._tables.topics
        held = HeldTable(
            data_version=table.data_version, entry_count=len(table), can_skip=self._can_skip_topics
        )
        fetched = await fetch_topics(self._client, master, held)

        def take_over(told: _Told) -> None:
            self._can_skip_topics = fetched.can_skip
            self._deleted = {} if told.is_empty else fetched.deleted
            kept = _to_keep(table.snapshot().topics, fetched, told)
            if kept is not None and not self._is_older(kept[1], table.data_version):
                table.replace_all(*kept)

        return take_over

    async def _fetch_groups(self, master: str) -> _TakeOver:
        table = self._tables.groups
        held = HeldTable(
            data_version=table.data_version, entry_count=len(table), can_skip=self._can_skip_groups
        )
        fetched = await fetch_groups(self._client, master, held)

        def take_over(told: _Told) -> None:
            self._can_skip_groups = fetched.can_skip
            kept = _to_keep(table.snapshot().groups, fetched, told)
            if kept is not None and not self._is_older(kept[1], table.data_version):
                table.replace_all(*kept)
            if not told.is_empty:
                table.note_deleted(fetched.deleted)

        return take_over

    async def _fetch_consumer_offsets(self, master: str) -> _TakeOver:
        table = self._tables.consumer_offsets
        timeout_s = self._options.config_sync_timeout_ms / 1000
        fetched = await fetch_consumer_offsets(self._client, master, timeout_s=timeout_s)

        def take_over(_told: _Told) -> None:
            if fetched.data_version is not None and self._is_older(fetched.data_version, table.data_version):
                return
            table.take_dropped(fetched.dropped or {})
            held = table.snapshot()
            changed = {}
            for key, queues in fetched.offsets.items():
                old = held.offsets.get(key, {})
                topic = key.partition("@")[0]
                if (old == queues and key in held.offsets) or topic in self._begun_anew:
                    continue
                new = {
                    queue: self._not_ahead(topic, queue, told, old.get(queue, 0))
                    for queue, told in queues.items()
                }
                if new != old or key not in held.offsets:
                    changed[key] = new
            is_changed = changed or fetched.forgotten != held.forgotten
            if is_changed or fetched.data_version != held.data_version:
                table.replace_from_master(changed, fetched.data_version, forgotten=fetched.forgotten or ())

        return take_over

    async def _fetch_delay_offsets(self, master: str) -> _TakeOver:
        table = self._tables.delay_offsets
        timeout_s = self._options.config_sync_timeout_ms / 1000
        fetched = await fetch_delay_offsets(self._client, master, timeout_s=timeout_s)

        def take_over(_told: _Told) -> None:
            held = table.snapshot()
            if self._is_older(fetched.data_version, held.data_version):
                return
            offsets = {
                level: self._not_ahead(SCHEDULE_TOPIC, level - 1, told, held.offsets.get(level, 0))
                for level, told in fetched.offsets.items()
            }
            if offsets != held.offsets or fetched.data_version != held.data_version:
                table.replace_all(offsets, fetched.data_version)

        return take_over

    async def _fetch_request_modes(self, master: str) -> _TakeOver:
        timeout_s = self._options.config_sync_timeout_ms / 1000
        fetched = await fetch_request_modes(self._client, master, timeout_s=timeout_s)
        table = self._tables.request_modes

        def take_over(_told: _Told) -> None:
            if fetched is not None and fetched != table.snapshot():
                table.replace_all(fetched.modes)

        return take_over

    async def _fetch_timer_check(self, master: str) -> _TakeOver:
        progress = self._tables.timer_progress
        if progress is None:
            return lambda _told: None
        timeout_s = self._options.config_sync_timeout_ms / 1000
        body = await fetch_timer_check(self._client, master, timeout_s=timeout_s)
        check = None if body is None else decode_timer_answer(body)

        def take_over(_told: _Told) -> None:
            if check is not None:
                held = progress.check.read_offset
                read_offset = self._not_ahead(TIMER_TOPIC, 0, check.read_offset, held)
                progress.replace(replace(check, read_offset=read_offset), self._clock.now_ms())

        return take_over

    def _is_older(self, told: DataVersion, held: DataVersion | None) -> bool:
        """Returns True if the table is from a master that was replaced since: ours is from its successor."""
        return self._keeps_newer and held is not None and told.state_version < held.state_version

    def _not_ahead(self, topic: str, queue_id: int, told: int, held: int) -> int:
        """Returns the master's offset, or the end of this copy of the queue if that is lower: if promoted
        now, this broker assigns the offsets beyond its end to other messages. An offset that is already held
        is not lowered, unless the master lowers it.
        """
        return min(told, max(held, self._queue_end(topic, queue_id)))

    async def _pause(self, worked_s: float) -> None:
        delay_s = max(
            self._options.config_sync_interval_ms / 1000, min(PAUSE_PER_WORK * worked_s, PAUSE_S_MAX)
        )
        timer = self._clock.call_later(delay_s, self._is_changed.set)
        try:
            await self._is_changed.wait()
        finally:
            timer.cancel()

    def _note_failure(self, item: str, master: str, error: Exception) -> None:
        """Logs one line per outage and item, not one per round."""
        if item not in self._failing:
            self._failing.add(item)
            facts = {"item": item, "master": master, "reason": str(error)}
            log.warning(events.CONFIG_SYNC_FAILED, extra=facts)

    def _note_success(self, item: str, master: str) -> None:
        if item in self._failing:
            self._failing.discard(item)
            log.info(events.CONFIG_SYNC_RESUMED, extra={"item": item, "master": master})


def _to_keep(
    held: Mapping[str, T], fetched: FetchedTable[T], told: _Told
) -> tuple[dict[str, T], DataVersion] | None:
    """Returns the new table and its version; None if the current one need not change.

    A master with an empty log may have lost its disk before anything was copied. Nothing is then removed, and
    the table has no version until the log holds something.
    """
    if fetched.is_unchanged:
        return None
    if not told.is_empty or held.keys() <= fetched.entries.keys():
        return fetched.entries, fetched.data_version
    merged = {**held, **fetched.entries}
    return None if merged == held else (merged, DataVersion())
