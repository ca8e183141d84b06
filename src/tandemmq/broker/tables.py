"""The tables of one broker and their files: built, loaded, saved (spec store 18, spec semantics 16.5)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec

from tandemmq.broker.delay.timers import TIMER_TOPIC, TimerProgress
from tandemmq.broker.offsets.offset_table import DelayOffsetTable, OffsetTable
from tandemmq.broker.options import BrokerOptions
from tandemmq.broker.pop.order_table import OrderTable
from tandemmq.broker.replica.config_sync import ReplicaTables
from tandemmq.broker.table_file import Loaded, StoredTable, TableFile, TableSaver
from tandemmq.broker.topics.group_table import GroupTable, ModeTable
from tandemmq.broker.topics.quota import CreationQuota
from tandemmq.broker.topics.topic_table import SYSTEM_GROUPS_AT_START, TopicTable, system_topics
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig, TopicConfig
from tandemmq.protocol.topic_names import SCHEDULE_TOPIC
from tandemmq.runtime.ports import Clock, Disk
from tandemmq.store.message_store import MessageStore
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

SAVE_SOON_MS = 100
"""The save delay of topics and groups: they change rarely, so they are saved right after a burst of
changes.
"""

TIMER_SAVE_MS = 1_000
"""RocketMQ's timerFlushIntervalMs: after a kill, about this much of timer messages is delivered again."""

DISCOVERY_MS_MAX = 60_000
"""The longest delay with which a slave learns of a topic after its first messages; up to 10 s in RocketMQ."""

NAMED_TOPICS_MAX = 20
"""The highest number of restored topics named in the log."""


class Tables:
    """Topics, groups and offsets, each with its file under `config/`."""

    def __init__(
        self,
        options: BrokerOptions,
        directory: Path,
        *,
        disk: Disk,
        clock: Clock,
        unsaved: Mapping[Path, bytes] | None = None,
        is_guarded: bool = False,
    ) -> None:
        """Creates the tables. `is_guarded`: access control governs creation, so it is not counted by
        address.
        """
        self._options = options
        self.directory = directory
        self._disk = disk
        self._clock = clock
        self.saver = TableSaver(disk=disk, clock=clock, unsaved=unsaved)
        self.quota = CreationQuota(0 if is_guarded else options.created_per_address_max, clock)
        self.topics = TopicTable(count_max=options.topic_count_max)
        self.groups = GroupTable(
            auto_create=options.auto_create_group,
            create_system_groups=options.create_system_groups,
            count_max=options.group_count_max,
            is_replica=options.is_slave,
            quota=self.quota,
        )
        self.offsets = OffsetTable(
            version_step=options.consumer_offset_version_step, key_count_max=options.offset_key_count_max
        )
        self.delay_offsets = DelayOffsetTable(version_step=options.delay_offset_version_step)
        self.timer_progress = TimerProgress()
        self.request_modes = ModeTable()
        self.orders = OrderTable()
        self._files: dict[TableFile, StoredTable] = {}
        self.topic_file = self.add("topics.json", self.topics, SAVE_SOON_MS)
        self.group_file = self.add("subscriptionGroup.json", self.groups, SAVE_SOON_MS)
        self.offset_file = self.add("consumerOffset.json", self.offsets, options.consumer_offset_flush_ms)
        self._delay_file = self.add("delayOffset.json", self.delay_offsets, options.delay_offset_flush_ms)
        self._timer_file = self.add("timercheck", self.timer_progress, TIMER_SAVE_MS)
        self.mode_file = self.add("messageRequestMode.json", self.request_modes, SAVE_SOON_MS)
        self.order_file = self.add("consumerOrderInfo.json", self.orders, options.order_info_flush_ms)
        self._kept_always = (self.topic_file, self.group_file, self.offset_file, self._delay_file)
        self._lacks_topics = False
        self._not_found: dict[TableFile, Loaded] = {}

    def load(self, *, delay_level_count: int) -> None:
        """Reads the files, then adds the topics and groups that exist from the first start.

        Raises:  ConfigError for a file with content that cannot be read.
        """
        self._disk.make_dirs(self.directory)
        for file, table in self._files.items():
            loaded = self.saver.load(file, table.load)
            if file is self.topic_file:
                self._lacks_topics = loaded is not Loaded.FILE
            if loaded is not Loaded.FILE and file in self._kept_always:
                self._not_found[file] = loaded
            table.on_change.append(partial(self.saver.mark, file))
        for file in self._not_found:
            # Every broker has these files from its first start, so a missing one was lost later.
            self.saver.mark(file)
            self.saver.save_then(file, _ignore)
        if not self._options.is_slave:
            now_ms = self._clock.now_ms()
            self.topics.add_missing(system_topics(self._options, delay_level_count=delay_level_count), now_ms)
            self.groups.add_missing(
                (SubscriptionGroupConfig(name=name) for name in SYSTEM_GROUPS_AT_START), now_ms
            )

    def follow(self, store: MessageStore) -> None:
        """Attaches the tables to this log. Saved progress from before a topic's deletion is dropped: the
        topic may have been created again, and no group has consumed its first messages.

        If the log has messages but a file that every broker has is missing, the file was lost.
        """
        self.offsets.deleted_topics = lambda: store.deletions.ends
        self.offsets.log_end = lambda: store.accepted_log_offset
        if store.accepted_log_offset:
            for file, loaded in self._not_found.items():
                if loaded is Loaded.NOTHING:
                    log.warning(events.TABLE_LOST, extra={"path": str(file.path)})
            if self.offset_file in self._not_found:
                self.offsets.forget_progress(config.name for config in self.groups.configs)
        self._log_lowered(self.offset_file, self.offsets.forget_deleted())

    def begin_run(self, store: MessageStore) -> None:
        """Prepares the tables of a master for its log. No progress may be beyond the end of its queue,
        because the next messages there were consumed by no group. That happens when a log lost its end, or a
        slave's log was shorter.

        A topic in the log that is missing because topics.json was lost is restored. So is a topic whose
        messages a slave copied before it learned of the topic, if the master was lost in between.
        """
        store.queues.begin_run()
        self._restore_topics(store)
        self.clamp(store)

    def _restore_topics(self, store: MessageStore) -> None:
        """Restores topics from the queues if topics.json was lost or is older than the log. Otherwise
        acknowledged messages would be in the log but unreadable.

        A known topic keeps its settings, and all of its queues become readable. A deleted topic has no
        queues, so it is not restored. If topics.json is intact, only queues count that have just begun:
        others may belong to topics that a RocketMQ master deleted, which is reported to no slave.
        """
        counts: dict[str, int] = {}
        for topic, queue_id in store.queue_keys():
            if store.queue_max(topic, queue_id) <= store.queue_min(topic, queue_id):
                continue
            config = self.topics.get(topic)
            if config is not None and queue_id < config.read_queue_count:
                continue
            if self._lacks_topics or _is_new_queue(store, topic, queue_id):
                counts[topic] = max(counts.get(topic, 0), queue_id + 1)
        restored = []
        for topic, count in counts.items():
            config = self.topics.get(topic)
            if config is None:
                config = TopicConfig(name=topic, read_queue_count=count, write_queue_count=count)
            elif config.read_queue_count < count:
                config = msgspec.structs.replace(config, read_queue_count=count)
            else:
                continue
            restored.append(config)
        for config in restored:
            self.topics.put(config, self._clock.now_ms())
        if restored:
            log.warning(
                events.TOPIC_RESTORED,
                extra={
                    "count": len(restored),
                    "topics": [config.name for config in restored[:NAMED_TOPICS_MAX]],
                },
            )

    def clamp(self, store: MessageStore) -> None:
        """Lowers progress beyond the current ends of the queues: it belongs to records that were
        truncated.
        """
        now_ms = self._clock.now_ms()
        queue_end = store.queue_next
        self.offsets.cut_dropped(store.accepted_log_offset)
        for file, count in (
            (self.offset_file, self.offsets.clamp(queue_end, now_ms)),
            (
                self._delay_file,
                self.delay_offsets.clamp(lambda level: queue_end(SCHEDULE_TOPIC, level - 1), now_ms),
            ),
            (self._timer_file, self.timer_progress.clamp(queue_end(TIMER_TOPIC, 0), now_ms)),
            (self.order_file, self.orders.drop_beyond(queue_end)),
        ):
            self._log_lowered(file, count)

    def begin_term(self, epoch: int) -> None:
        """Raises the tables' versions to the term of an elected master: they are newer than in any earlier
        term, and name servers recognise the master by that.
        """
        now_ms = self._clock.now_ms()
        for file, table in (
            (self.topic_file, self.topics),
            (self.group_file, self.groups),
            (self.offset_file, self.offsets),
            (self._delay_file, self.delay_offsets),
        ):
            table.data_version = table.data_version.of_term(epoch, now_ms)
            self.saver.mark(file)

    def _log_lowered(self, file: TableFile, count: int) -> None:
        if count:
            log.warning(events.PROGRESS_CLAMPED, extra={"file": file.path.name, "count": count})

    @property
    def replicated(self) -> ReplicaTables:
        """The tables that a slave copies from its master."""
        return ReplicaTables(
            topics=self.topics,
            groups=self.groups,
            consumer_offsets=self.offsets,
            delay_offsets=self.delay_offsets,
            request_modes=self.request_modes,
            timer_progress=self.timer_progress if self._options.timer_wheel_enable else None,
        )

    def add(self, name: str, table: StoredTable, delay_ms: int) -> TableFile:
        """Adds a table that `load` reads and the saver writes."""
        file = self.saver.add(self.directory / name, table.encode, delay_ms=delay_ms)
        self._files[file] = table
        return file


def _is_new_queue(store: MessageStore, topic: str, queue_id: int) -> bool:
    if store.queue_min(topic, queue_id) or topic in store.deletions.ends:
        return False
    age_ms = store.dispatcher.stored_at_ms - store.reader.earliest_stored_at(topic, queue_id)
    return age_ms <= DISCOVERY_MS_MAX


def _ignore(_error: OSError | None) -> None:
    """Ignores the error: the saver logs a failed write and retries it."""
