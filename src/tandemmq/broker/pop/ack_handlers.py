"""ACK_MESSAGE, BATCH_ACK_MESSAGE, CHANGE_MESSAGE_INVISIBLETIME (spec semantics 14.3).

An ack is answered once it is stored with the same durability as a send: after SUCCESS the message is not
delivered again. An ack of an ended lease is also answered SUCCESS, as in RocketMQ, although the message is
being redelivered; a strict one gets NO_MESSAGE. A renewal (ours) keeps the handles of a lease valid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tandemmq.broker.core import BrokerCore
from tandemmq.broker.guards import read_body, require_topic
from tandemmq.broker.pop.ack_block import group_acks, render_stored
from tandemmq.broker.pop.handlers import PopAdmission, check_invisible
from tandemmq.broker.pop.lease_log import LeaseLog
from tandemmq.broker.pop.leases import Lease, LeaseKey, QueueKey
from tandemmq.broker.pop.reading import PopPolls
from tandemmq.errors import BadRequest, Busy, RemoteProtocolError, RequestRejected
from tandemmq.protocol.bodies.progress import BatchAck, BatchAckEntry, decode_bits
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import Frame
from tandemmq.protocol.pop_receipts import ORDERED_REVIVE_QUEUE, Handle, parse_handle, real_topic
from tandemmq.protocol.requests.consume import AckRequest, ChangeInvisibleRequest, ChangeInvisibleResponse
from tandemmq.protocol.topic_names import is_retry_topic
from tandemmq.remoting.channel import Channel
from tandemmq.store import PutStatus

BATCH_ENTRIES_MAX: Final = 4_096
BATCH_BITS_BYTES_MAX: Final = 8_192

_UNSAFE: Final = (
    PutStatus.SERVICE_NOT_AVAILABLE,
    PutStatus.UNKNOWN_ERROR,
    PutStatus.FLUSH_DISK_TIMEOUT,
)


@dataclass(slots=True)
class AckHandlers:
    """Handles acks of popped messages and changes of their invisible time."""

    core: BrokerCore
    admission: PopAdmission
    lease_log: LeaseLog
    polls: PopPolls
    wake_at: Callable[[QueueKey, int], None]
    acked_count: int = field(default=0, init=False)
    changed_count: int = field(default=0, init=False)

    def handle_ack(self, channel: Channel, command: Command) -> Command | None:
        """Handles ACK_MESSAGE (200051)."""
        header = command.decode(AckRequest)
        self.admission.require_master(self.lease_log.is_ready)
        handle = parse_handle(header.extra_info)
        key = (header.topic, header.consumer_group, header.queue_id)
        self._check_place(key, header.offset, is_end_allowed=True)
        if handle.is_ordered:
            return self._ack_in_order(channel, command, key, header, handle.pop_time_ms)
        lease = self._lease(key, handle.start_offset, handle.pop_time_ms)
        index = None if lease is None else lease.index(header.offset)
        if lease is None or index is None or lease.is_moved(index):
            named = LeaseKey(*key, handle.start_offset, handle.pop_time_ms)
            if header.is_strict and not self.lease_log.leases.is_acknowledged(named, header.offset):
                raise _not_held(header.offset)
            if header.is_strict and lease is None and named in self.lease_log.leases:
                raise Busy("[REJECTREQUEST] the lease has ended and is being revived: try again")
            return command.reply()
        # A repetition is stored, too: the first ack may not be stored yet.
        self._count_acks(key, 1)
        self.lease_log.ack(lease, (index,), _answer(channel, command))
        return None

    def take_acks(self, channel: Channel, frames: Sequence[Frame]) -> bool:
        """Handles the acks of one read as `handle_ack` would each of them, to the byte. Returns False, and
        does nothing, unless all of them acknowledge messages that are held under leases.
        """
        groups = group_acks(frames)
        if groups is None:
            return False
        leases: dict[Lease, list[int]] = {}
        try:
            self.admission.require_master(self.lease_log.is_ready)
            for key, handle, _, offsets in groups:
                for offset in (min(offsets), max(offsets)):
                    self._check_place(key, offset, is_end_allowed=True)
                lease = self._lease(key, handle.start_offset, handle.pop_time_ms)
                if handle.is_ordered or lease is None or lease in leases or lease.moved_bits:
                    return False
                leases[lease] = [index for index in map(lease.index, offsets) if index is not None]
                if len(leases[lease]) < len(offsets):
                    return False
        except RequestRejected:
            return False
        for (lease, indexes), acks in zip(leases.items(), groups, strict=True):
            channel.begin_block(RequestCode.ACK_MESSAGE, acks.opaques)
            self._count_acks(acks.key, len(indexes))
            self.lease_log.ack(lease, indexes, _answer_each(channel, acks.opaques))
        return True

    def handle_batch_ack(self, channel: Channel, command: Command) -> Command | None:
        """Handles BATCH_ACK_MESSAGE (200151); the answer is sent once every ack of the batch is stored."""
        self.admission.require_master(self.lease_log.is_ready)
        if not command.body:
            raise RequestRejected("the batch of acks is empty", code=ResponseCode.NO_MESSAGE)
        batch = read_body(BatchAck, command.body)
        if len(batch.entries) > BATCH_ENTRIES_MAX:
            raise BadRequest(f"{len(batch.entries)} entries in a batch of acks, at most {BATCH_ENTRIES_MAX}")
        pending = _Pending(channel, command)
        for entry in batch.entries:
            self._ack_entry(entry, pending)
        pending.close()
        return None

    def handle_change(self, channel: Channel, command: Command) -> Command | None:
        """Handles CHANGE_MESSAGE_INVISIBLETIME (200053)."""
        header = command.decode(ChangeInvisibleRequest)
        self.admission.require_master(self.lease_log.is_ready)
        check_invisible(header.invisible_ms)
        handle = parse_handle(header.extra_info)
        key = (header.topic, header.consumer_group, header.queue_id)
        self._check_place(key, header.offset, is_end_allowed=False)
        if handle.is_ordered:
            return self._change_in_order(command, key, header, handle)
        if header.is_renewal:
            self._renew(channel, command, self._lease(key, handle.start_offset, handle.pop_time_ms))
            return None
        lease = self._lease(key, handle.start_offset, handle.pop_time_ms)
        index = None if lease is None else lease.index(header.offset)
        if lease is None or index is None or not lease.is_open(index):
            raise _not_held(header.offset)
        self._replace(channel, command, lease, index, header)
        return None

    def _renew(self, channel: Channel, command: Command, lease: Lease | None) -> None:
        """Moves the end of a lease, for all messages that are still open under it."""
        header = command.decode(ChangeInvisibleRequest)
        if lease is None or lease.is_finished:
            raise _not_held(header.offset)
        key = lease.key
        invisible_ms = self.core.clock.now_ms() + header.invisible_ms - key.pop_time_ms
        response = ChangeInvisibleResponse(
            pop_time_ms=key.pop_time_ms,
            invisible_ms=invisible_ms,
            revive_queue_id=lease.revive_queue_id,
        )
        self.changed_count += 1
        self.lease_log.renew(lease, invisible_ms, _answer(channel, command, response))

    def _replace(
        self, channel: Channel, command: Command, lease: Lease, index: int, header: ChangeInvisibleRequest
    ) -> None:
        key, offset, invisible_ms = lease.key, lease.offsets[index], header.invisible_ms
        place = (key.topic, key.group, key.queue_id, offset)
        new = Lease(
            LeaseKey(*place, self.lease_log.free_time([place], self.core.clock.now_ms())),
            [offset],
            invisible_ms=invisible_ms,
            revive_queue_id=lease.revive_queue_id,
            end_offset=offset + 1,
            is_suspended=header.is_suspended,
        )
        response = ChangeInvisibleResponse(
            pop_time_ms=new.key.pop_time_ms,
            invisible_ms=invisible_ms,
            revive_queue_id=new.revive_queue_id,
        )
        self.changed_count += 1
        self.core.stats.count_checkpoint(key.topic, key.group)
        self.core.stats.count_acks(key.topic, key.group, 1)
        self.lease_log.replace(lease, index, new, _answer(channel, command, response))

    def _ack_entry(self, entry: BatchAckEntry, pending: _Pending) -> None:
        topic = real_topic(entry.retry_flag, entry.group, entry.topic)
        key = (topic, entry.group, entry.queue_id)
        try:
            numbers = decode_bits(entry.bits, BATCH_BITS_BYTES_MAX)
        except RemoteProtocolError:
            return
        if entry.revive_queue_id == ORDERED_REVIVE_QUEUE:
            for number in numbers:
                self._advance(key, entry.start_offset + number, entry.pop_time_ms, pending)
            return
        lease = self._lease(key, entry.start_offset, entry.pop_time_ms)
        if lease is None:
            return
        indexes = []
        for number in numbers:
            index = lease.index(entry.start_offset + number)
            if index is not None and not lease.is_moved(index):
                indexes.append(index)
        if indexes:
            self._count_acks(key, len(indexes))
            self.lease_log.ack(lease, indexes, pending.add())

    def _advance(self, key: QueueKey, offset: int, pop_time_ms: int, pending: _Pending) -> None:
        try:
            next_offset = self.core.tables.orders.acknowledge(key, offset, pop_time_ms)
        except ValueError:
            return
        if next_offset is not None and next_offset > (self.lease_log.position(key) or 0):
            self.lease_log.put_position(key, next_offset, pending.add())
        self._free(key)

    def _ack_in_order(
        self, channel: Channel, command: Command, key: QueueKey, header: AckRequest, pop_time_ms: int
    ) -> Command | None:
        offset = header.offset
        try:
            next_offset = self.core.tables.orders.acknowledge(key, offset, pop_time_ms)
        except ValueError:
            raise RequestRejected(
                f"offset {offset} was not popped in order at that time", code=ResponseCode.MESSAGE_ILLEGAL
            ) from None
        position = self.lease_log.position(key)
        if header.is_strict and position is not None and offset < position:
            # Only a repetition, but the position that the first ack moved may not be stored yet.
            self.lease_log.put_position(key, position, _answer(channel, command))
            self._free(key)
            return None
        if header.is_strict and next_offset is None:
            raise _not_held(offset)
        self._count_acks(key, 1)
        if next_offset is None or (position is not None and next_offset <= position):
            self._free(key)
            return command.reply()
        self.lease_log.put_position(key, next_offset, _answer(channel, command))
        self._free(key)
        return None

    def _change_in_order(
        self, command: Command, key: QueueKey, header: ChangeInvisibleRequest, handle: Handle
    ) -> Command:
        visible_at_ms = self.core.clock.now_ms() + header.invisible_ms
        orders, popped_at_ms = self.core.tables.orders, handle.pop_time_ms
        is_held = (
            orders.renew(key, popped_at_ms, visible_at_ms)
            if header.is_renewal
            else orders.set_visible_at(
                key, header.offset, popped_at_ms, visible_at_ms, is_postponed=header.is_suspended
            )
        )
        if header.is_strict and not is_held:
            raise _not_held(header.offset)
        self.changed_count += 1
        if is_held:
            self.wake_at(key, visible_at_ms)
        response = ChangeInvisibleResponse(
            pop_time_ms=handle.pop_time_ms,
            invisible_ms=visible_at_ms - handle.pop_time_ms,
            revive_queue_id=ORDERED_REVIVE_QUEUE,
        )
        return command.reply(ResponseCode.SUCCESS, response)

    def _count_acks(self, key: QueueKey, count: int) -> None:
        self.acked_count += count
        self.core.stats.count_acks(key[0], key[1], count)

    def _free(self, key: QueueKey) -> None:
        """Wakes the pops that wait for the queue if it is free now."""
        if self.core.tables.orders.blocked_until_ms(key, None, self.core.clock.now_ms()) is None:
            self.polls.touch(key[:2], key[2])

    def _lease(self, key: QueueKey, start_offset: int, pop_time_ms: int) -> Lease | None:
        """Returns the lease that a handle names, or None if the lease has ended."""
        lease = self.lease_log.leases.get(LeaseKey(*key, start_offset, pop_time_ms))
        return None if lease is None or lease.is_reviving else lease

    def _check_place(self, key: QueueKey, offset: int, *, is_end_allowed: bool) -> None:
        topic, _, queue_id = key
        if not is_retry_topic(topic):  # a kill may lose the growth of a retry topic
            count = require_topic(self.core.topics, topic).read_queue_count
            if not 0 <= queue_id < count:
                raise RequestRejected(
                    f"queueId {queue_id} is outside 0..{count - 1} of the topic {topic}",
                    code=ResponseCode.MESSAGE_ILLEGAL,
                )
        low, high = self.core.store.queue_min(topic, queue_id), self.core.store.queue_max(topic, queue_id)
        if not low <= offset < high + is_end_allowed:
            raise RequestRejected(
                f"offset {offset} of queue {queue_id} of {topic} is outside {low}..{high}",
                code=ResponseCode.NO_MESSAGE,
            )


class _Pending:
    """A batch of acks being stored. Its single answer is sent after the last ack, and is an error if any ack
    failed.
    """

    def __init__(self, channel: Channel, command: Command) -> None:
        self._answer = _answer(channel, command)
        self._count = 1
        self._worst = PutStatus.PUT_OK

    def add(self) -> Callable[[PutStatus], None]:
        self._count += 1
        return self._done

    def close(self) -> None:
        """Marks the batch as complete: no more acks are added."""
        self._done(PutStatus.PUT_OK)

    def _done(self, status: PutStatus) -> None:
        if status in _UNSAFE:
            self._worst = status
        self._count -= 1
        if not self._count:
            self._answer(self._worst)


def _not_held(offset: int) -> RequestRejected:
    return RequestRejected(
        f"the message at offset {offset} is no longer held under this handle: it was"
        " acknowledged or changed, or its invisible time has passed",
        code=ResponseCode.NO_MESSAGE,
    )


def _answer(
    channel: Channel, command: Command, response: ChangeInvisibleResponse | None = None
) -> Callable[[PutStatus], None]:
    """Returns a callback that answers the client with the outcome."""

    def answer(status: PutStatus) -> None:
        if command.is_oneway or channel.is_closed:
            return
        if status in _UNSAFE:
            remark = f"it was not stored safely: {status.value}"
            channel.send(command.reply(ResponseCode.SYSTEM_ERROR, remark=remark))
        else:
            channel.send(command.reply(ResponseCode.SUCCESS, response))

    return answer


def _answer_each(channel: Channel, opaques: Sequence[int]) -> Callable[[PutStatus], None]:
    """Returns a callback that answers each ack of a block as `_answer` would."""

    def answer(status: PutStatus) -> None:
        if status not in _UNSAFE:
            channel.send_answers(opaques, render_stored(opaques))
            return
        for opaque in opaques:
            _answer(channel, Command(RequestCode.ACK_MESSAGE, opaque))(status)

    return answer
