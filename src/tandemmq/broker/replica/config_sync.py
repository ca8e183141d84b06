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
from dataclasses import KW_ONLY, dataclass, replace
from typing import Final, Protocol, TypeVar

from tandemmq.api import replica as api
from tandemmq.broker.delay.timers import TIMER_TOPIC, TimerProgress, decode_timer_answer
from tandemmq.broker.offsets.offset_table import DelayOffsetTable, OffsetTable
from tandemmq.broker.topics.group_table import GroupTable, ModeTable
from tandemmq.broker.topics.topic_table import TopicTable
from tandemmq.errors import TandemError
from tandemmq.protocol.bodies.codec import DataVersion
from tandemmq.protocol.topic_names import SCHEDULE_TOPIC
from tandemmq.remoting.client import RemotingClient
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.runtime.ports import Clock
from tandemmq.runtime.tasks import TimedEvent
from tandemmq.store.topic_deletions import TopicDeletions
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
class _MasterState:
    """The state that the master reported after everything was fetched. `is_empty`: its log is empty."""

    is_empty: bool


_Apply = Callable[[_MasterState], None]
"""Applies one fetched item."""


class CopiedQueues(Protocol):
    """The queues of this slave's copy of the log."""

    deletions: TopicDeletions

    def queue_max(self, topic: str, queue_id: int) -> int:
        """Returns the end of the queue."""


@dataclass(eq=False)
class ConfigSync:
    """One slave's copy of the tables; `run` is its task.

    `followed`: returns the run id of the master whose log is copied now, "" if it does not report one,
    None while nothing is copied. `keeps_newer`: a table is never replaced by one from an earlier term of
    an elected master.
    """

    tables: ReplicaTables
    queues: CopiedQueues
    _: KW_ONLY
    client: RemotingClient
    clock: Clock
    options: ReplicationOptions
    own_address: Callable[[], str]
    followed: Callable[[], str | None]
    keeps_newer: bool = False

    def __post_init__(self) -> None:
        self._deleted: Mapping[str, int] = {}
        self._recreated_topics: set[str] = set()
        """Topics whose progress was discarded since the round began."""
        self._master: str | None = None
        self._is_changed = TimedEvent(self.clock)
        self._failing: set[str] = set()
        # True once the master is known to answer a request for an unchanged table with an empty answer.
        self._can_skip_topics = self._can_skip_groups = False
        self._copy_count = 0
        self.held: tuple[DataVersion, DataVersion] | None = None
        """The versions of topics and groups, including deletions, of the last complete round; None if no
        round has completed since a copy began.
        """
        self.round_count = 0
        """The number of rounds since the start."""
        self.complete_round = 0
        """The number of the last round in which every item arrived."""
        self.synced_at: float | None = None
        """The time at which the last complete round ended, by the monotonic clock."""

    @property
    def master(self) -> str | None:
        return self._master

    def set_master(self, address: str | None) -> None:
        """Sets the master's remoting address; None pauses. A new master is asked at once."""
        if address == self.own_address():
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
        self._recreated_topics.add(topic)
        self.tables.consumer_offsets.drop_topic(topic)
        self.wake()

    def wake(self) -> None:
        """Starts the next round at once."""
        self._is_changed.set()

    async def run(self) -> None:
        """Runs round after round. Never returns."""
        while True:
            self._is_changed.clear()
            started_at = self.clock.monotonic()
            is_complete = self._master is not None and await self.sync_once(self._master)
            worked_s = self.clock.monotonic() - started_at if is_complete else 0.0
            pause_s = min(PAUSE_PER_WORK * worked_s, PAUSE_S_MAX)
            await self._is_changed.wait(max(self.options.config_sync_interval_ms / 1000, pause_s))

    async def sync_once(self, master: str) -> bool:
        """Runs one round; returns True if every item arrived and was applied."""
        run_id, copy = self.followed(), self._copy_count
        if run_id is None:
            return False
        self._recreated_topics.clear()
        self.round_count += 1
        number = self.round_count
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
        state = await self._confirm_master(master, run_id)
        if state is None or (self.keeps_newer and master != self._master):
            return False
        for apply in fetched:
            apply(state)
        if copy != self._copy_count:  # the requests referred to the previous copy
            self._can_skip_topics = self._can_skip_groups = False
        await self._drop_deleted(master)
        if self._failing:
            return False
        if copy == self._copy_count:
            self.held = self.tables.topics.data_version, self.tables.groups.data_version
        self.complete_round = number
        self.synced_at = self.clock.monotonic()
        return True

    async def _fetch_all(self, master: str, **fetches: Callable[[str], Awaitable[_Apply]]) -> list[_Apply]:
        """Fetches items concurrently and returns those that arrived."""
        results = await asyncio.gather(*(fetch(master) for fetch in fetches.values()), return_exceptions=True)
        fetched = []
        for name, result in zip(fetches, results, strict=True):
            if isinstance(result, TandemError):
                self._report_failure(name, master, result)
            elif isinstance(result, BaseException):
                raise result
            else:
                self._report_success(name, master)
                fetched.append(result)
        return fetched

    async def _confirm_master(self, master: str, run_id: str) -> _MasterState | None:
        """Asks the master for its state after everything was fetched. Returns None if the answers may be from
        another run, or from a master that is no longer followed, or that is a slave now: its tables may still
        be empty.
        """
        if not run_id:
            return _MasterState(is_empty=False) if self.followed() == run_id else None
        try:
            ends = await api.read_log_checksum(self.client, master, 0, 0)
        except TandemError:
            return None  # the items of the next round report it
        is_followed = ends.run_id == run_id == self.followed() and not ends.is_slave
        return _MasterState(is_empty=ends.max_offset == 0) if is_followed else None

    async def _drop_deleted(self, master: str) -> None:
        """Drops the queues and offsets of topics that the master has deleted, including those created again
        since: the next round brings the offsets of the new ones.
        """
        deleted, self._deleted = self._deleted, {}
        if not deleted:
            return
        try:
            newly_deleted = await self.queues.deletions.apply(deleted)
        except (OSError, TandemError) as error:
            self._report_failure("deleted_topics", master, error)
            return
        self._report_success("deleted_topics", master)
        for topic in newly_deleted:
            self.tables.consumer_offsets.drop_topic(topic)
        if newly_deleted:
            self._is_changed.set()

    async def _fetch_topics(self, master: str) -> _Apply:
        table = self.tables.topics
        held = api.HeldTable(
            data_version=table.data_version, entry_count=len(table), can_skip=self._can_skip_topics
        )
        fetched = await api.fetch_topics(self.client, master, held)

        def apply(state: _MasterState) -> None:
            self._can_skip_topics = fetched.can_skip
            self._deleted = {} if state.is_empty else fetched.deleted
            kept = _merged_table(table.snapshot().topics, fetched, state)
            if kept is not None and not self._is_older(kept[1], table.data_version):
                table.replace_all(*kept)

        return apply

    async def _fetch_groups(self, master: str) -> _Apply:
        table = self.tables.groups
        held = api.HeldTable(
            data_version=table.data_version, entry_count=len(table), can_skip=self._can_skip_groups
        )
        fetched = await api.fetch_groups(self.client, master, held)

        def apply(state: _MasterState) -> None:
            self._can_skip_groups = fetched.can_skip
            kept = _merged_table(table.snapshot().groups, fetched, state)
            if kept is not None and not self._is_older(kept[1], table.data_version):
                table.replace_all(*kept)
            if not state.is_empty:
                table.record_deleted(fetched.deleted)

        return apply

    async def _fetch_consumer_offsets(self, master: str) -> _Apply:
        table = self.tables.consumer_offsets
        timeout_s = self.options.config_sync_timeout_ms / 1000
        fetched = await api.fetch_consumer_offsets.within(timeout_s, self.client, master)

        def apply(_state: _MasterState) -> None:
            if fetched.data_version is not None and self._is_older(fetched.data_version, table.data_version):
                return
            table.apply_dropped(fetched.dropped or {})
            held = table.snapshot()
            changed = {}
            for key, queues in fetched.offsets.items():
                old = held.offsets.get(key, {})
                topic = key.partition("@")[0]
                if (old == queues and key in held.offsets) or topic in self._recreated_topics:
                    continue
                new = {
                    queue: self._within_copy(topic, queue, offset, old.get(queue, 0))
                    for queue, offset in queues.items()
                }
                if new != old or key not in held.offsets:
                    changed[key] = new
            is_changed = changed or fetched.forgotten != held.forgotten
            if is_changed or fetched.data_version != held.data_version:
                table.replace_from_master(changed, fetched.data_version, forgotten=fetched.forgotten or ())

        return apply

    async def _fetch_delay_offsets(self, master: str) -> _Apply:
        table = self.tables.delay_offsets
        timeout_s = self.options.config_sync_timeout_ms / 1000
        fetched = await api.fetch_delay_offsets.within(timeout_s, self.client, master)

        def apply(_state: _MasterState) -> None:
            held = table.snapshot()
            if self._is_older(fetched.data_version, held.data_version):
                return
            offsets = {
                level: self._within_copy(SCHEDULE_TOPIC, level - 1, offset, held.offsets.get(level, 0))
                for level, offset in fetched.offsets.items()
            }
            if offsets != held.offsets or fetched.data_version != held.data_version:
                table.replace_all(offsets, fetched.data_version)

        return apply

    async def _fetch_request_modes(self, master: str) -> _Apply:
        timeout_s = self.options.config_sync_timeout_ms / 1000
        fetched = await api.fetch_request_modes(self.client, master, timeout_s=timeout_s)
        table = self.tables.request_modes

        def apply(_state: _MasterState) -> None:
            if fetched is not None and fetched != table.snapshot():
                table.replace_all(fetched.modes)

        return apply

    async def _fetch_timer_check(self, master: str) -> _Apply:
        progress = self.tables.timer_progress
        if progress is None:
            return lambda _state: None
        timeout_s = self.options.config_sync_timeout_ms / 1000
        body = await api.fetch_timer_check(self.client, master, timeout_s=timeout_s)
        check = None if body is None else decode_timer_answer(body)

        def apply(_state: _MasterState) -> None:
            if check is not None:
                held = progress.check.read_offset
                read_offset = self._within_copy(TIMER_TOPIC, 0, check.read_offset, held)
                progress.replace(replace(check, read_offset=read_offset), self.clock.now_ms())

        return apply

    def _is_older(self, fetched: DataVersion, held: DataVersion | None) -> bool:
        """Returns True if the table is from a master that was replaced since: ours is from its successor."""
        return self.keeps_newer and held is not None and fetched.state_version < held.state_version

    def _within_copy(self, topic: str, queue_id: int, offset: int, held: int) -> int:
        """Returns the master's offset, or the end of this copy of the queue if that is lower: if promoted
        now, this broker assigns the offsets beyond its end to other messages. An offset that is already held
        is not lowered, unless the master lowers it.
        """
        return min(offset, max(held, self.queues.queue_max(topic, queue_id)))

    def _report_failure(self, item: str, master: str, error: Exception) -> None:
        """Logs one line per outage and item, not one per round."""
        if item not in self._failing:
            self._failing.add(item)
            facts = {"item": item, "master": master, "reason": str(error)}
            log.warning(events.CONFIG_SYNC_FAILED, extra=facts)

    def _report_success(self, item: str, master: str) -> None:
        if item in self._failing:
            self._failing.discard(item)
            log.info(events.CONFIG_SYNC_RESUMED, extra={"item": item, "master": master})


def _merged_table(
    held: Mapping[str, T], fetched: api.FetchedTable[T], state: _MasterState
) -> tuple[dict[str, T], DataVersion] | None:
    """Returns the new table and its version; None if the current one need not change.

    A master with an empty log may have lost its disk before anything was copied. Nothing is then removed, and
    the table has no version until the log holds something.
    """
    if fetched.is_unchanged:
        return None
    if not state.is_empty or held.keys() <= fetched.entries.keys():
        return fetched.entries, fetched.data_version
    merged = {**held, **fetched.entries}
    return None if merged == held else (merged, DataVersion())
