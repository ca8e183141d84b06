"""Pop consumption as a whole. `PopService` builds the parts in the order of their dependencies; `Revive`
redelivers messages whose leases ended.
"""

from __future__ import annotations

import logging
from typing import Final

from tandemmq.broker.core import BrokerCore
from tandemmq.broker.durable import Duty, copy_record
from tandemmq.broker.pop.ack_handlers import AckHandlers
from tandemmq.broker.pop.handlers import PopAdmission, PopHandlers
from tandemmq.broker.pop.lease_log import LeaseLog
from tandemmq.broker.pop.leases import Lease, Leases
from tandemmq.broker.pop.reading import PopPolls, PopReader
from tandemmq.broker.topics.attributes import has_priorities
from tandemmq.errors import RequestRejected
from tandemmq.protocol import properties as names
from tandemmq.protocol.pop_receipts import pop_retry_v1, pop_retry_v2, popped_topic
from tandemmq.protocol.record import NewRecord, Record
from tandemmq.protocol.topic_names import is_retry_topic
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

TICK_S: Final = 1.0
BATCH_COUNT: Final = 64
COPIES_BYTES_MAX: Final = 131_072
ACK_IN_FLIGHT_MS: Final = 500
REFUSED_MS: Final = 10_000
FIRST_POP_TIME: Final = "1ST_POP_TIME"
POP_HANDLE: Final = "POP_CK"


class Revive(Duty):
    """Redelivers messages whose leases ended, in one task that runs on the master only.

    Invariants: one append both stores a message again and removes it from its lease, so a kill at any point
                neither repeats nor loses a message.
    Strategy: the task sleeps until the first lease ends, at most TICK_S. Messages go to the group's pop retry
              topic with a raised retry count. A message that has used up its retries becomes a dead letter.
    At a bound: the leases wait while the store rejects writes, and the task tries again.
    Source: spec semantics 14.4. RocketMQ never makes dead letters here and retries for ever (decision 008).
    """

    name = "revive"

    def __init__(self, core: BrokerCore, lease_log: LeaseLog) -> None:
        super().__init__(core.clock)
        self.core = core
        self.lease_log = lease_log
        self.revived_count = 0
        self.dead_count = 0
        self.topic = lease_log.records.topic
        lease_log.on_sooner = self._wake.set

    def start(self) -> None:
        """Reads the leases back if the log shows all of them already; otherwise the task does so as soon as
        it does.
        """
        super().start()
        self._recover_when_caught_up()

    def _recover_when_caught_up(self) -> None:
        if self.lease_log.is_caught_up:
            log.info(events.REVIVE_STARTED, extra={"lease_count": self.lease_log.recover()})
            self.core.tables.orders.acknowledge_before(self.lease_log.position)

    def stop(self) -> None:
        self.lease_log.is_ready = False
        super().stop()

    def settle(self, safe: int) -> None:
        if self._is_stopping:
            self.lease_log.settle()

    def on_dispatched(self, queue_id: int, queue_end: int) -> None:
        if not self.lease_log.is_ready or self.lease_log.on_dispatched(queue_id, queue_end):
            self._wake.set()

    async def run(self) -> None:
        while not self._is_stopping:
            self._wake.clear()
            if not self.lease_log.is_ready:
                self._recover_when_caught_up()
            if self.lease_log.is_ready:
                self.lease_log.read_foreign()
                await self._revive_ended()
                self.lease_log.roll()
                self.lease_log.settle()
            await self._wake.wait(self._sleep_s())

    def _sleep_s(self) -> float | None:
        if not self.lease_log.is_ready:
            return TICK_S
        ends_at_ms = self.lease_log.leases.next_end_ms()
        if ends_at_ms is None:
            return None if self.lease_log.is_settled else TICK_S
        return min(max(ends_at_ms - self.core.clock.now_ms(), 0) / 1000, TICK_S)

    async def _revive_ended(self) -> None:
        while not self._is_stopping:
            ended = self.lease_log.leases.list_ended(self.core.clock.now_ms(), BATCH_COUNT)
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
        self.lease_log.leases.put_back(lease, self.core.clock.now_ms() + REFUSED_MS)

    async def _revive(self, lease: Lease) -> None:
        """Redelivers every open message of the lease."""
        offsets = lease.open_offsets()
        if not offsets:  # acks of all messages are being written
            self.lease_log.leases.put_back(lease, self.core.clock.now_ms() + ACK_IN_FLIGHT_MS)
            return
        has_target = self._has_target(lease)
        while offsets:
            messages = self.lease_log.read_messages(lease, offsets[0]) if has_target else {}
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
            await self.lease_log.store_again(lease, indexes, copies)
            self.revived_count += len(copies)
            topic, group = popped_topic(lease.key.group, lease.key.topic), lease.key.group
            if copies:
                self.core.stats.redelivered.add(f"{topic}@{group}", len(copies), 0)
            offsets = lease.open_offsets()

    def _has_target(self, lease: Lease) -> bool:
        """Returns False if the topic or the group is gone; its messages are dropped (spec semantics 14.4)."""
        key = lease.key
        is_known = is_retry_topic(key.topic) or self.core.topics.get(key.topic) is not None
        return is_known and self.core.groups.get(key.group) is not None

    def _is_target_unknown(self, lease: Lease) -> bool:
        """Returns True while this broker may still learn of the topic or the group. That is: it is unknown
        here, no deletion of it is recorded, and messages remain that could be redelivered.
        """
        key = lease.key
        if self._has_target(lease):
            return False
        is_topic_known = is_retry_topic(key.topic) or self.core.topics.get(key.topic) is not None
        is_gone = (not is_topic_known and key.topic in self.core.store.deletions.ends) or (
            self.core.groups.get(key.group) is None and self.core.groups.is_deleted(key.group)
        )
        is_kept = lease.end_offset > self.core.store.queue_min(key.topic, key.queue_id)
        return not is_gone and is_kept and self.core.store.queue_max(key.topic, key.queue_id) > 0

    def _copy(self, message: Record, lease: Lease) -> NewRecord:
        properties = names.remove_property(message.raw_properties, POP_HANDLE.encode())
        properties = names.remove_property(properties, names.CRC32.encode())
        if names.find_property(properties, FIRST_POP_TIME.encode()) is None:
            with_time = names.append_property(properties, FIRST_POP_TIME, str(lease.key.pop_time_ms))
            # without room for the property, the message is redelivered without it
            if len(with_time) <= names.PROPERTIES_BYTES_MAX:
                properties = with_time
        topic, queue_id = self._target(message, lease)
        copy = copy_record(message, topic, queue_id, properties)
        copy.retry_count += not lease.is_suspended
        copy.prepared_offset, copy.wait_stored = 0, True
        return copy

    def _target(self, message: Record, lease: Lease) -> tuple[str, int]:
        """Returns the topic and queue of the copy. A retry of a message with a priority stays at its level,
        so it keeps the queue's number.
        """
        group, name, queue_id = lease.key.group, lease.key.topic, lease.key.queue_id
        config = self.core.groups.get(group)
        is_tried_out = config is not None and message.retry_count >= config.retry_count_max
        if is_tried_out and not lease.is_suspended:
            self.dead_count += 1
            self.core.stats.dead_letters.add(f"{popped_topic(group, name)}@{group}", 1, 0)
            return self.core.creator.create_dlq_topic(group).name, 0
        options = self.core.options
        if not is_retry_topic(name):
            if not (options.separate_retry_queues or has_priorities(self.core.topics.get(name))):
                queue_id = 0
            name = pop_retry_v2(group, name) if options.pop_retry_v2 else pop_retry_v1(group, name)
        self.core.creator.create_pop_retry_topic(name, group, queue_id + 1)
        return name, queue_id


class PopService:
    """The handlers, the held requests, and the task that redelivers messages."""

    def __init__(self, core: BrokerCore) -> None:
        options, store, offsets = core.options, core.store, core.offsets
        self._tables, self._orders = core.tables, core.tables.orders
        self.leases = Leases(options.pop_lease_count_max)
        self.polls = PopPolls(
            clock=core.clock,
            count_max=options.pop_poll_count_max,
            count_per_group_max=options.pop_poll_count_per_group_max,
            attempts_of=self._orders.attempts_of,
        )
        self.leases.on_room = self.polls.touch_all
        self._lease_log = lease_log = LeaseLog(core, self.leases)
        self.revive = Revive(core, lease_log)
        admission = PopAdmission(core)
        self.pops = PopHandlers(core, admission, PopReader(core, lease_log), lease_log, self.polls)
        self.acks = AckHandlers(core, admission, lease_log, self.polls, self.pops.wake_at)
        store.dispatcher.on_dispatch(self.polls.on_dispatch)
        offsets.on_topic_dropped.append(self._on_topic_dropped)
        offsets.on_group_dropped.append(self._on_group_dropped)
        offsets.on_reset.append(self._on_reset)

    def _on_topic_dropped(self, topic: str) -> None:
        self._lease_log.forget_topic(topic)
        self._orders.drop_topic(topic)

    def _on_group_dropped(self, group: str) -> None:
        self._lease_log.forget_group(group)
        self._orders.drop_group(group)

    def _on_reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Clears the group's ordered pop of the queue, in the file as well. It no longer blocks the queue,
        and its acks, which would undo the reset, have no effect. Waiting pops continue at the new offset.

        Raises:  RequestRejected when the log cannot store the reset; a restart may undo the reset then.
        """
        self._orders.clear((topic, group, queue_id))
        if self._tables.order_file.is_changed:
            self._tables.saver.save_then(self._tables.order_file, lambda _error: None)
        self.polls.touch((topic, group), queue_id)
        self._lease_log.reset((topic, group, queue_id), offset)
