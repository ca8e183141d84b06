"""POP_MESSAGE, PEEK_MESSAGE, NOTIFICATION, POLLING_INFO: admit the request, read and lease queue by queue,
then answer or hold it.

`PopAdmission` checks permissions, `PopAnswer` collects an answer, `PopHandlers` handles the requests.
A pop is answered once its check points are stored, with the same durability as a send. Ordered pops have no
check points: their messages stay in the queue until they are acknowledged. Source: spec semantics 14.1, 14.2,
14.6.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from tandemmq.broker.core import BrokerCore
from tandemmq.broker.guards import answer_failure, invalid, require_group, require_topic
from tandemmq.broker.pop.lease_log import LeaseLog, is_stored
from tandemmq.broker.pop.leases import Lease, LeaseKey, QueueKey
from tandemmq.broker.pop.order_table import OrderedPop
from tandemmq.broker.pop.reading import (
    Found,
    HeldPop,
    PopParams,
    PoppedBatch,
    PopPolls,
    PopReader,
    with_handle,
)
from tandemmq.broker.pull.filters import parse_filter
from tandemmq.broker.table_file import OnSaved
from tandemmq.errors import Busy, NotPermitted, RequestRejected, StoreError
from tandemmq.protocol import pop_receipts as receipts
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig, TopicConfig
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import encode_frame_head
from tandemmq.protocol.requests import consume
from tandemmq.remoting.channel import Channel
from tandemmq.runtime.ports import TimerHandle
from tandemmq.store import PutStatus

log = logging.getLogger(__name__)

COUNT_MAX: Final = 32
LATE_MS: Final = 500
INVISIBLE_MS_MAX: Final = 3 * 24 * 3_600_000
"""The longest invisible time: RocketMQ's timer accepts check points no farther ahead (timerMaxDelaySec)."""


class PopTarget(Protocol):
    """The header fields that POP, PEEK and NOTIFICATION have in common."""

    @property
    def consumer_group(self) -> str: ...

    @property
    def topic(self) -> str: ...

    @property
    def queue_id(self) -> int: ...


class AdmittedPop(NamedTuple):
    """The topic and the group of an admitted pop."""

    topic: TopicConfig
    group: SubscriptionGroupConfig


@dataclass(slots=True)
class PopAdmission:
    """Admits pops: the checks in the order of spec semantics 14.1."""

    core: BrokerCore

    def admit(self, channel: Channel, header: PopTarget, now_ms: int) -> AdmittedPop:
        """Checks the request. Returns its topic and group.

        Raises:  RequestRejected with the code that the spec names for the first check that fails.
        """
        options = self.core.options
        if not options.is_readable:
            raise NotPermitted(
                f"the broker {options.broker_name} is not readable"
                f" (brokerPermission {options.broker_permission})"
            )
        topic = require_topic(self.core.topics, header.topic)
        if not topic.is_readable:
            raise NotPermitted(f"the topic {topic.name} is not readable (permission {topic.permission})")
        if not consume.ANY_QUEUE <= header.queue_id < topic.read_queue_count:
            raise invalid(
                f"queueId {header.queue_id} is outside -1..{topic.read_queue_count - 1} of {topic.name}"
            )
        group = require_group(self.core.groups, header.consumer_group, now_ms, channel.peer[0])
        if not group.is_consume_enabled:
            raise NotPermitted(f"the group {group.name} may not consume (consumeEnable is false)")
        return AdmittedPop(topic, group)

    def queue_count(self, admitted: AdmittedPop) -> int:
        """Returns the topic's current number of read queues, which may have grown while the request was
        held.
        """
        now = self.core.topics.get(admitted.topic.name)
        return (now or admitted.topic).read_queue_count

    def require_master(self, is_ready: bool) -> None:
        """Raises Busy on a slave or while pops are not ready. A slave writes nothing, so it cannot lease
        (spec semantics 2.3: pops go to id 0).
        """
        if self.core.options.is_slave:
            raise Busy("[REJECTREQUEST] this broker is a slave and serves no pops or acks: use the master")
        if not is_ready:
            raise Busy("[REJECTREQUEST] pop is not ready on this broker: try again")


def is_late(born_at_ms: int, poll_ms: int, now_ms: int) -> bool:
    """Returns True if the client has already abandoned the request."""
    return now_ms - born_at_ms - poll_ms > LATE_MS


def check_count(count: int) -> None:
    """Raises BadRequest unless one check point can hold `count` messages."""
    if not 1 <= count <= COUNT_MAX:
        raise invalid(f"maxMsgNums {count} is outside 1..{COUNT_MAX}")


def check_invisible(invisible_ms: int) -> None:
    """Raises BadRequest for an invisible time that a check point cannot express."""
    if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
        raise invalid(f"invisibleTime {invisible_ms} is outside 0..{INVISIBLE_MS_MAX} ms")


@dataclass(slots=True)
class PopAnswer:
    """The answer under construction: the lists of its header, and its messages.

    `tells_retry_topic`: messages of a retry topic are sent as stored (popResponseReturnActualRetryTopic).
    Otherwise they carry the requested topic and their handle.
    """

    pop_time_ms: int
    revive_queue_id: int
    broker_name: str
    tells_retry_topic: bool
    is_renewable: bool | None = None
    starts: list[str] = field(default_factory=list)
    offsets: list[str] = field(default_factory=list)
    orders: list[str] = field(default_factory=list)
    records: list[memoryview | bytes] = field(default_factory=list)

    def add(self, batches: PoppedBatch, params: PopParams) -> None:
        """Adds the messages of one queue."""
        source = batches.source
        self.starts.append(receipts.start_item(source.flag, source.queue_id, batches.start_offset))
        self.offsets.append(receipts.offsets_item(source.flag, source.queue_id, batches.offsets))
        if source.flag == receipts.FLAG_NORMAL or self.tells_retry_topic:
            self.records += batches.records
            return
        for record, offset in zip(batches.records, batches.offsets, strict=True):
            handle = receipts.Handle(
                batches.start_offset,
                self.pop_time_ms,
                params.invisible_ms,
                self.revive_queue_id,
                source.flag,
                self.broker_name,
                source.queue_id,
                offset,
            )
            self.records.append(with_handle(record, params.topic, handle))

    def header(self, params: PopParams, found: Found) -> consume.PopResponse:
        """Returns the header of the answer; `found` holds the number of messages left."""
        return consume.PopResponse(
            pop_time_ms=self.pop_time_ms,
            invisible_ms=params.invisible_ms,
            revive_queue_id=self.revive_queue_id,
            rest_count=found.rest,
            start_offset_info=receipts.join_items(self.starts),
            message_offset_info=receipts.join_items(self.offsets),
            order_count_info=receipts.join_items(self.orders) if params.is_ordered else None,
            is_renewable=self.is_renewable,
        )


@dataclass(slots=True)
class PendingPop:
    """A pop or notification in progress. `is_cut`: its last scan stopped before it had covered every
    queue.
    """

    channel: Channel
    command: Command
    params: PopParams
    admitted: AdmittedPop
    is_cut: bool = False


@dataclass(slots=True)
class PopHandlers:
    """Handles pops, peeks, notifications and polling queries."""

    core: BrokerCore
    admission: PopAdmission
    reader: PopReader
    lease_log: LeaseLog
    polls: PopPolls
    popped_count: int = field(default=0, init=False)
    _wake_times: dict[QueueKey, tuple[int, TimerHandle]] = field(default_factory=dict, init=False)

    def handle_rollback(self, channel: Channel, command: Command) -> Command:
        """Handles POP_ROLLBACK (200056). Always succeeds: leases are already in the revive topic.

        RocketMQ moves leases from RocksDB to the revive topic here; TandemMQ stores them nowhere else (ADR
        008).
        """
        return command.reply()

    def handle_pop(self, channel: Channel, command: Command) -> Command | None:
        """Handles POP_MESSAGE (200050)."""
        header = command.decode(consume.PopRequest)
        now_ms = self.core.clock.now_ms()
        born_at_ms = header.born_at_ms or now_ms
        if is_late(born_at_ms, header.poll_ms, now_ms):
            return self._nothing(command, ResponseCode.POLLING_TIMEOUT, "the poll time was over on arrival")
        self.admission.require_master(self.lease_log.is_ready)
        check_count(header.count_max)
        check_invisible(header.invisible_ms)
        admitted = self.admission.admit(channel, header, now_ms)
        params = self._params(header, header.count_max)
        params.invisible_ms, params.init_mode = header.invisible_ms, header.init_mode
        params.is_renewable, params.poll_id = header.is_renewable or None, header.poll_id or ""
        pending = PendingPop(channel, command, params, admitted)
        if self._try(pending):
            return None
        until_ms = born_at_ms + header.poll_ms if header.poll_ms > 0 else now_ms
        return self._hold(pending, until_ms, self._on_wake)

    def handle_peek(self, channel: Channel, command: Command) -> Command | None:
        """Handles PEEK_MESSAGE (200052), on a slave as well."""
        header = command.decode(consume.PeekRequest)
        check_count(header.count_max)
        admitted = self.admission.admit(channel, header, self.core.clock.now_ms())
        params = PopParams(header.topic, header.consumer_group, header.queue_id, header.count_max)
        found = self.reader.peek(params, admitted.topic.read_queue_count)
        if not found.count:
            return self._nothing(command, ResponseCode.PULL_NOT_FOUND, "no message is available")
        answer = self._new_answer(self.core.clock.now_ms(), 0)
        for batches in found.batches:
            answer.add(batches, params)
        self._send(channel, command, answer.header(params, found), answer.records)
        return None

    def handle_notification(self, channel: Channel, command: Command) -> Command | None:
        """Handles NOTIFICATION (200054). A late one is answered as well, but not held."""
        header = command.decode(consume.NotificationRequest)
        now_ms = self.core.clock.now_ms()
        admitted = self.admission.admit(channel, header, now_ms)
        params = self._params(header, 1)
        pending = PendingPop(channel, command, params, admitted)
        if self.reader.has_message(params, admitted.topic.read_queue_count, now_ms):
            return command.reply(ResponseCode.SUCCESS, consume.NotificationResponse(has_message=True))
        self._wake_when_free(pending, now_ms)
        until_ms = (header.born_at_ms or now_ms) + header.poll_ms
        answer = self._hold(pending, until_ms, self._on_wake_notification)
        if answer is None:
            return None
        is_full = answer.code == ResponseCode.POLLING_FULL
        return command.reply(ResponseCode.SUCCESS, consume.NotificationResponse(is_polling_full=is_full))

    def handle_polling_info(self, channel: Channel, command: Command) -> Command:
        """Handles POLLING_INFO (200055)."""
        header = command.decode(consume.PollingInfoRequest)
        self.admission.admit(channel, header, self.core.clock.now_ms())
        ended = self.polls.take(channel, header.ended_poll_id) if header.ended_poll_id else None
        if ended is not None:
            pending: PendingPop = ended.request
            remark = "the client ended the poll"
            channel.send(self._nothing(pending.command, ResponseCode.POLLING_TIMEOUT, remark))
        count = self.polls.count((header.topic, header.consumer_group), header.queue_id)
        return command.reply(ResponseCode.SUCCESS, consume.PollingInfoResponse(count=count))

    def _params(self, header: consume.PopRequest | consume.NotificationRequest, count_max: int) -> PopParams:
        return PopParams(
            header.topic,
            header.consumer_group,
            header.queue_id,
            count_max,
            message_filter=parse_filter(
                header.topic,
                header.expression_type,
                header.expression,
                is_sql_enabled=self.core.options.property_filter_enable,
            ),
            is_ordered=bool(header.is_ordered),
            attempt_id=header.attempt_id or "",
        )

    # Popping.

    def _try(self, pending: PendingPop) -> bool:
        """Tries to serve the pop. Returns True if messages were found; the answer is sent once their leases
        are stored.

        Raises:  RequestRejected when the check points cannot be stored.
        """
        params = pending.params
        if not params.is_ordered and not self.lease_log.leases.has_room:
            self.lease_log.leases.await_room()
            return False
        now_ms = self.core.clock.now_ms()
        found = self.reader.read(params, self.admission.queue_count(pending.admitted), now_ms)
        pending.is_cut = found.is_cut
        if not found.count:
            self._wake_when_free(pending, now_ms)
            return False
        if params.is_ordered:
            self._pop_in_order(pending, found, now_ms)
        else:
            self._pop(pending, found, now_ms)
        return True

    def _pop(self, pending: PendingPop, found: Found, now_ms: int) -> None:
        params = pending.params
        keys = [(t.source.topic, params.group, t.source.queue_id, t.start_offset) for t in found.batches]
        answer = self._new_answer(
            self.lease_log.free_time(keys, now_ms), self.lease_log.revive_queue_of(params.group)
        )
        answer.is_renewable = params.is_renewable
        leases = []
        for key, batches in zip(keys, found.batches, strict=True):
            leases.append(
                Lease(
                    LeaseKey(*key, answer.pop_time_ms),
                    batches.offsets,
                    invisible_ms=params.invisible_ms,
                    revive_queue_id=answer.revive_queue_id,
                    end_offset=batches.end_offset,
                )
            )
            answer.add(batches, params)

        def on_stored(status: PutStatus) -> None:
            self._when_saved(lambda _error: self._finish(pending, found, answer, status))

        self.lease_log.open(leases, on_stored)

    def _when_saved(self, done: OnSaved) -> None:
        """Calls `done` once the groups are on disk. If the group were lost in a kill, no consumer would ever
        get the messages it popped.
        """
        file = self.core.tables.group_file
        if file.is_changed or file.lock.locked():
            self.core.tables.saver.save_then(file, done)
        else:
            done(None)

    def _pop_in_order(self, pending: PendingPop, found: Found, now_ms: int) -> None:
        params, orders = pending.params, self.core.tables.orders
        keys = [(got.source.topic, params.group, got.source.queue_id) for got in found.batches]
        pop_time_ms = orders.free_time(keys, now_ms)
        answer = self._new_answer(pop_time_ms, receipts.ORDERED_REVIVE_QUEUE)
        answer.is_renewable = params.is_renewable
        for key, batches in zip(keys, found.batches, strict=True):
            pop = OrderedPop(
                batches.offsets,
                pop_time_ms=pop_time_ms,
                # The clock may have been set back: the lease begins now.
                invisible_ms=now_ms + params.invisible_ms - pop_time_ms,
                attempt_id=params.attempt_id,
                seen_at_ms=now_ms,
            )
            orders.put(key, pop)
            answer.add(batches, params)
            flag, queue_id = batches.source.flag, batches.source.queue_id
            answer.orders += receipts.order_items(flag, queue_id, batches.offsets, pop.counts)
        self._finish(pending, found, answer, PutStatus.PUT_OK)

    def _new_answer(self, pop_time_ms: int, revive_queue_id: int) -> PopAnswer:
        return PopAnswer(
            pop_time_ms,
            revive_queue_id,
            self.core.options.broker_name,
            tells_retry_topic=self.core.options.pop_returns_retry_topic,
        )

    def _finish(self, pending: PendingPop, found: Found, answer: PopAnswer, status: PutStatus) -> None:
        channel, command = pending.channel, pending.command
        if not is_stored(status):
            channel.send(
                command.reply(ResponseCode.SYSTEM_ERROR, remark=f"the pop was not stored: {status.value}")
            )
            # the messages are available again
            self.polls.touch((pending.params.topic, pending.params.group), consume.ANY_QUEUE)
            return
        self.popped_count += found.count
        stats = self.core.stats
        stats.got_count += found.count
        for batches in found.batches:
            topic = batches.source.topic
            stats.topics_out.add(topic, len(batches.offsets))
            size = sum(map(len, batches.records))
            stats.groups_out.add(f"{topic}@{pending.params.group}", len(batches.offsets), size)
            if not pending.params.is_ordered:
                stats.count_checkpoint(topic, pending.params.group)
        self._send(channel, command, answer.header(pending.params, found), answer.records)
        if found.rest > 0:
            self.polls.touch((pending.params.topic, pending.params.group), consume.ANY_QUEUE)

    def _send(
        self,
        channel: Channel,
        command: Command,
        header: consume.PopResponse,
        records: Sequence[memoryview | bytes],
    ) -> None:
        size = sum(map(len, records))
        self.core.stats.got_bytes += size
        reply = command.reply(ResponseCode.SUCCESS, header, remark="FOUND")
        channel.send_frame(encode_frame_head(reply, size), *records)

    def _nothing(self, command: Command, code: ResponseCode, remark: str) -> Command:
        self.core.stats.count_pull_ending(code)
        return command.reply(code, consume.PopResponse(), remark=remark)

    # Waiting.

    def wake_at(self, key: QueueKey, at_ms: int) -> None:
        """Schedules another scan for the pops that wait for the queue at `at_ms`, when the queue becomes
        free.
        """
        planned = self._wake_times.get(key)
        if planned is not None:
            if planned[0] <= at_ms:
                return
            planned[1].cancel()
        delay_s = max(0, at_ms - self.core.clock.now_ms()) / 1000
        self._wake_times[key] = at_ms, self.core.clock.call_later(delay_s, self._wake_now, key)

    def _wake_when_free(self, pending: PendingPop, now_ms: int) -> None:
        count = self.admission.queue_count(pending.admitted)
        for key, until_ms in self.reader.blocked(pending.params, count, now_ms):
            self.wake_at(key, until_ms)

    def _wake_now(self, key: QueueKey) -> None:
        del self._wake_times[key]
        self.polls.touch(key[:2], key[2])

    def _hold(
        self, pending: PendingPop, until_ms: int, on_wake: Callable[[HeldPop, bool], bool]
    ) -> Command | None:
        """Holds the request. Returns None while it is held, or an answer if it cannot be."""
        now_ms = self.core.clock.now_ms()
        hold_ms = min(until_ms - now_ms, self.core.options.long_poll_ms_max)
        if hold_ms <= 0:
            return self._nothing(pending.command, ResponseCode.POLLING_TIMEOUT, "no message is available")
        params = pending.params
        held = HeldPop(
            channel=pending.channel,
            key=(params.topic, params.group),
            queue_id=params.queue_id,
            deadline_s=self.core.clock.monotonic() + hold_ms / 1000,
            request=pending,
            on_wake=on_wake,
            kind=(on_wake, params.is_ordered, params.message_filter),
            attempt_id=params.attempt_id if params.is_ordered else "",
            poll_id=params.poll_id,
        )
        retries = [topic for topic, _ in self.reader.retry_topics(params.group, params.topic)]
        if self.polls.hold(held, retries):
            self._read_on(pending)
            return None
        return self._nothing(
            pending.command, ResponseCode.POLLING_FULL, "too many pops are waiting: try again later"
        )

    def _read_on(self, pending: PendingPop) -> None:
        """Schedules the rest of an unfinished scan for the next turn of the loop."""
        if pending.is_cut:
            self.polls.touch((pending.params.topic, pending.params.group), pending.params.queue_id)

    def _on_wake(self, held: HeldPop, is_over: bool) -> bool:
        """Tries a held pop again. Returns False if it keeps waiting."""
        pending: PendingPop = held.request
        if pending.channel.is_closed:
            return True
        try:
            # While the broker stops nothing new is leased: the answer might not arrive.
            if not self.polls.is_closed and self._try(pending):
                return True
        except (RequestRejected, StoreError, OSError) as error:
            answer_failure(self.core.stats, pending.channel, pending.command, pending.params.topic, error)
            return True
        if is_over:
            pending.channel.send(
                self._nothing(
                    pending.command, ResponseCode.POLLING_TIMEOUT, "no message arrived within the poll time"
                )
            )
        else:
            self._read_on(pending)
        return is_over

    def _on_wake_notification(self, held: HeldPop, is_over: bool) -> bool:
        """Tries a held notification again. Returns False if it keeps waiting."""
        pending: PendingPop = held.request
        if pending.channel.is_closed:
            return True
        count = self.admission.queue_count(pending.admitted)
        now_ms = self.core.clock.now_ms()
        has_message = self.reader.has_message(pending.params, count, now_ms)
        if has_message or is_over:
            response = consume.NotificationResponse(has_message=has_message)
            pending.channel.send(pending.command.reply(ResponseCode.SUCCESS, response))
            return True
        self._wake_when_free(pending, now_ms)
        return False
