"""Pop consumption as a whole. `PopService` builds the parts in the order of their dependencies; `Revive`
redelivers messages whose leases ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from tandemmq.broker.durable import TimedEvent
from tandemmq.broker.offsets.offset_table import OffsetTable
from tandemmq.broker.options import BrokerOptions
from tandemmq.broker.pop.ack_handlers import AckHandlers
from tandemmq.broker.pop.handlers import PopAdmission, PopHandlers
from tandemmq.broker.pop.lease_log import LeaseLog
from tandemmq.broker.pop.leases import Lease, LeaseRecords, Leases
from tandemmq.broker.pop.order_table import OrderTable
from tandemmq.broker.pop.reading import PopPolls, PopReader
from tandemmq.broker.stats import BrokerStats
from tandemmq.broker.table_file import TableFile, TableSaver
from tandemmq.broker.topics.auto_create import TopicCreator
from tandemmq.broker.topics.group_table import GroupTable
from tandemmq.broker.topics.topic_table import TopicTable
from tandemmq.errors import RequestRejected
from tandemmq.protocol.bodies.tables import TopicConfig
from tandemmq.protocol.pop_receipts import pop_retry_v1, pop_retry_v2
from tandemmq.protocol.properties import (
    CRC32,
    PROPERTIES_BYTES_MAX,
    append_property,
    find_property,
    remove_property,
)
from tandemmq.protocol.record import NewRecord, Record, tag_hash_of
from tandemmq.protocol.topic_names import is_retry_topic
from tandemmq.runtime.ports import Clock, Random
from tandemmq.runtime.tasks import TaskScope
from tandemmq.store import MessageStore
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

TICK_S: Final = 1.0
BATCH_COUNT: Final = 64
COPIES_BYTES_MAX: Final = 131_072
ACK_IN_FLIGHT_MS: Final = 500
REFUSED_MS: Final = 10_000
STOP_S_MAX: Final = 5.0
REVIVE_QUEUES_MAX: Final = 512
FIRST_POP_TIME: Final = "1ST_POP_TIME"
POP_HANDLE: Final = "POP_CK"


class Revive:
    """Redelivers messages whose leases ended, in one task that runs on the master only. `start` and `stop`
    follow the broker's role; both may be called again.

    Invariants: one append both stores a message again and removes it from its lease, so a kill at any point
                neither repeats nor loses a message.
    Strategy: the task sleeps until the first lease ends, at most TICK_S. Messages go to the group's pop retry
              topic with a raised retry count. A message that has used up its retries becomes a dead letter.
    At a bound: the leases wait while the store rejects writes, and the task tries again.
    Source: spec semantics 14.4. RocketMQ never makes dead letters here and retries for ever (decision 008).
    """

    def __init__(
        self,
        lease_log: LeaseLog,
        *,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        creator: TopicCreator,
        uses_v2: bool,
        clock: Clock,
    ) -> None:
        self._log = lease_log
        self._store = store
        self._topics = topics
        self._groups = groups
        self._creator = creator
        self._uses_v2 = uses_v2
        self._clock = clock
        self._wake = TimedEvent(clock)
        self._scope: TaskScope | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False
        self.revived_count = 0
        self.dead_count = 0
        self._revive_queues = frozenset(
            (lease_log.records.topic, queue_id) for queue_id in range(REVIVE_QUEUES_MAX)
        )
        lease_log.on_sooner = self._wake.set
        store.dispatcher.on_dispatch(self._on_dispatch)

    def start(self, on_fatal: Callable[[BaseException], None] | None) -> None:
        """Starts the task: it reads the leases back as soon as the log shows all of them, then redelivers
        ended ones. Does nothing if already running.
        """
        if self._task is not None:
            return
        self._is_stopping = False
        self._recover_when_caught_up()
        self._scope = TaskScope("pop", None if on_fatal is None else lambda _name, error: on_fatal(error))
        self._task = self._scope.start("revive", self._run())

    def _recover_when_caught_up(self) -> None:
        if self._log.is_caught_up:
            log.info(events.REVIVE_STARTED, extra={"lease_count": self._log.recover()})

    async def stop(self) -> None:
        """Stops redelivery and waits for the task to end. Call `settle` afterwards, once the store is
        closed.
        """
        if self._scope is None or self._task is None:
            return
        self._is_stopping = True
        self._log.is_ready = False
        self._wake.set()
        await asyncio.wait([self._task], timeout=STOP_S_MAX)
        await self._scope.close()
        self._scope = self._task = None

    def settle(self) -> None:
        """Commits everything that is on disk, which is everything once the store is closed."""
        if self._is_stopping:
            self._log.settle()

    def _on_dispatch(self, newest: Mapping[tuple[str, int], int]) -> None:
        if self._revive_queues.isdisjoint(newest):
            return
        if not self._log.is_ready:
            self._wake.set()
            return
        for key in self._revive_queues & newest.keys():
            if self._log.on_dispatched(key[1], newest[key]):
                self._wake.set()

    async def _run(self) -> None:
        while not self._is_stopping:
            self._wake.clear()
            if not self._log.is_ready:
                self._recover_when_caught_up()
            if self._log.is_ready:
                self._log.read_foreign()
                await self._revive_ended()
                self._log.roll()
                self._log.settle()
            await self._wake.wait(self._sleep_s())

    def _sleep_s(self) -> float | None:
        if not self._log.is_ready:
            return TICK_S
        ends_at_ms = self._log.leases.next_end_ms()
        if ends_at_ms is None:
            return None if self._log.is_settled else TICK_S
        return min(max(ends_at_ms - self._clock.now_ms(), 0) / 1000, TICK_S)

    async def _revive_ended(self) -> None:
        while not self._is_stopping:
            ended = self._log.leases.list_ended(self._clock.now_ms(), BATCH_COUNT)
            if not ended:
                return
            for lease in ended:
                if self._is_target_unknown(lease):
                    self._postpone(lease, "this broker does not know its topic or its group")
                    continue
                try:
                    await self._revive(lease)
                except RequestRejected as error:  # the limit of topics is reached
                    self._postpone(lease, error.remark)

    def _postpone(self, lease: Lease, reason: str) -> None:
        facts = {"topic": lease.key.topic, "group": lease.key.group, "reason": reason}
        log.warning(events.REVIVE_POSTPONED, extra=facts)
        self._log.leases.put_back(lease, self._clock.now_ms() + REFUSED_MS)

    async def _revive(self, lease: Lease) -> None:
        """Redelivers every open message of the lease."""
        offsets = lease.open_offsets()
        if not offsets:  # acks of all messages are being written
            self._log.leases.put_back(lease, self._clock.now_ms() + ACK_IN_FLIGHT_MS)
            return
        has_target = self._has_target(lease)
        while offsets:
            messages = self._log.read_messages(lease, offsets[0]) if has_target else {}
            indexes: list[int] = []
            copies: list[NewRecord] = []
            size = 0
            for offset in offsets:
                message = messages.get(offset)
                # If nothing was read, only the first message is known to be gone.
                is_beyond = has_target and (not messages or offset > max(messages))
                if indexes and (is_beyond or size > COPIES_BYTES_MAX):
                    break
                index = lease.index(offset)
                assert index is not None
                indexes.append(index)
                if message is not None:  # otherwise retention deleted the message
                    copies.append(self._copy(message, lease))
                    size += message.size
            await self._log.store_again(lease, indexes, copies)
            self.revived_count += len(copies)
            offsets = lease.open_offsets()

    def _has_target(self, lease: Lease) -> bool:
        """Returns False if the topic or the group is gone; its messages are dropped (spec semantics 14.4)."""
        key = lease.key
        is_known = is_retry_topic(key.topic) or self._topics.get(key.topic) is not None
        return is_known and self._groups.get(key.group) is not None

    def _is_target_unknown(self, lease: Lease) -> bool:
        """Returns True while this broker may still learn of the topic or the group. That is: it is unknown
        here, no deletion of it is recorded, and messages remain that could be redelivered.
        """
        key = lease.key
        if self._has_target(lease):
            return False
        is_topic_known = is_retry_topic(key.topic) or self._topics.get(key.topic) is not None
        is_gone = (not is_topic_known and key.topic in self._store.deleted_topics) or (
            self._groups.get(key.group) is None and self._groups.is_deleted(key.group)
        )
        is_kept = lease.end_offset > self._store.queue_min(key.topic, key.queue_id)
        return not is_gone and is_kept and self._store.queue_max(key.topic, key.queue_id) > 0

    def _copy(self, message: Record, lease: Lease) -> NewRecord:
        properties = remove_property(message.raw_properties, POP_HANDLE.encode())
        properties = remove_property(properties, CRC32.encode())
        if find_property(properties, FIRST_POP_TIME.encode()) is None:
            with_time = append_property(properties, FIRST_POP_TIME, str(lease.key.pop_time_ms))
            # without room for the property, the message is redelivered without it
            if len(with_time) <= PROPERTIES_BYTES_MAX:
                properties = with_time
        target = self._target(message, lease)
        return NewRecord(
            topic=target.name,
            queue_id=0,
            body=message.body,
            properties=properties,
            born_at_ms=message.born_at_ms,
            born_host=message.born_host,
            tag_hash=tag_hash_of(properties),
            flag=message.flag,
            sys_flag=message.sys_flag,
            retry_count=message.retry_count + (not lease.is_suspended),
            keys=message.keys,
            unique_key=message.unique_key,
            is_internal=True,
        )

    def _target(self, message: Record, lease: Lease) -> TopicConfig:
        group = lease.key.group
        config = self._groups.get(group)
        is_tried_out = config is not None and message.retry_count >= config.retry_count_max
        if is_tried_out and not lease.is_suspended:
            self.dead_count += 1
            return self._creator.create_dlq_topic(group)
        name = lease.key.topic
        if not is_retry_topic(name):
            name = pop_retry_v2(group, name) if self._uses_v2 else pop_retry_v1(group, name)
        return self._creator.create_pop_retry_topic(name, group)


class PopService:
    """The handlers, the held requests, and the task that redelivers messages."""

    def __init__(
        self,
        options: BrokerOptions,
        *,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        orders: OrderTable,
        creator: TopicCreator,
        saver: TableSaver,
        group_file: TableFile,
        stats: BrokerStats,
        clock: Clock,
        chance: Random,
    ) -> None:
        self.leases = Leases(options.pop_lease_count_max)
        self.polls = PopPolls(
            clock=clock,
            count_max=options.pop_poll_count_max,
            count_per_group_max=options.pop_poll_count_per_group_max,
            attempts_of=orders.attempts_of,
        )
        self.leases.on_room = self.polls.touch_all
        lease_log = LeaseLog(
            store,
            self.leases,
            offsets,
            records=LeaseRecords(cluster=options.cluster_name, broker_name=options.broker_name),
            queue_count=options.revive_queue_count,
            clock=clock,
        )
        self.revive = Revive(
            lease_log,
            store=store,
            topics=topics,
            groups=groups,
            creator=creator,
            uses_v2=options.pop_retry_v2,
            clock=clock,
        )
        admission = PopAdmission(options, topics=topics, groups=groups)
        reader = PopReader(
            options,
            store=store,
            offsets=offsets,
            lease_log=lease_log,
            orders=orders,
            chance=chance,
            now_ms=clock.now_ms,
        )
        self.pops = PopHandlers(
            options,
            admission=admission,
            reader=reader,
            lease_log=lease_log,
            orders=orders,
            polls=self.polls,
            saver=saver,
            group_file=group_file,
            stats=stats,
            clock=clock,
        )
        self.acks = AckHandlers(
            admission=admission,
            lease_log=lease_log,
            orders=orders,
            polls=self.polls,
            store=store,
            topics=topics,
            wake_at=self.pops.wake_at,
            stats=stats,
            clock=clock,
        )
        store.dispatcher.on_dispatch(self.polls.on_dispatch)
        self._orders = orders
        self._lease_log = lease_log
        offsets.on_topic_dropped.append(self._on_topic_dropped)
        offsets.on_group_dropped.append(self._on_group_dropped)
        offsets.on_reset.append(self._on_reset)

    def _on_topic_dropped(self, topic: str) -> None:
        self._lease_log.forget_topic(topic)
        self._orders.drop_topic(topic)

    def _on_group_dropped(self, group: str) -> None:
        self._lease_log.forget_group(group)
        self._orders.drop_group(group)

    def _on_reset(self, group: str, topic: str, queue_id: int) -> None:
        """Clears the group's ordered pops of the queue. They no longer block the queue, and their acks, which
        would undo the reset, have no effect. Waiting pops continue at the new offset.
        """
        self._orders.clear((topic, group, queue_id))
        self.polls.touch((topic, group), queue_id)
