"""CONSUMER_SEND_MSG_BACK: a message that could not be consumed is stored again, as a retry or a dead letter.

Source: spec semantics 7.1, spec remoting 9.6.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandemmq.broker.core import BrokerCore
from tandemmq.broker.delay.postpone import DelayRule, make_room_in_dead_letter
from tandemmq.broker.delay.timers import DELIVERY_TIME_NAMES
from tandemmq.broker.durable import copy_record
from tandemmq.broker.guards import require_group
from tandemmq.broker.query import load_record
from tandemmq.errors import Busy, NotPermitted, RequestRejected
from tandemmq.protocol import properties as names
from tandemmq.protocol.bodies.tables import TopicConfig
from tandemmq.protocol.codes import VERSION_MAX_RETRY_HONOURED, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.record import NewRecord, Record
from tandemmq.protocol.requests.send import SendBackRequest
from tandemmq.protocol.sys_flag import without_transaction
from tandemmq.remoting.channel import Channel
from tandemmq.store.outcomes import PutStatus

FIRST_DELAY_LEVEL = 3


@dataclass(slots=True)
class SendBackHandlers:
    """Stores failed messages again in their group's retry or dead letter topic."""

    core: BrokerCore
    delay: DelayRule

    def handle_send_back(self, channel: Channel, command: Command) -> Command | None:
        """Handles CONSUMER_SEND_MSG_BACK (36)."""
        header = command.decode(SendBackRequest)
        options = self.core.options
        now_ms = self.core.clock.now_ms()
        if options.is_slave:
            raise Busy("[REJECTREQUEST] this broker is a slave: send the message back to the master")
        group = require_group(self.core.groups, header.group, now_ms, channel.peer[0])
        if not options.is_writeable:
            raise NotPermitted(f"the broker {options.broker_name} is not writeable")
        if group.retry_queue_count <= 0:
            return command.reply()
        target = self.core.creator.create_retry_topic(
            group.name,
            peer=channel.peer[0],
            queue_count=group.retry_queue_count,
            is_unit=header.is_unit_mode,
        )
        if not target.is_writable:
            raise NotPermitted(f"the topic {target.name} is not writeable (permission {target.permission})")
        message = load_record(self.core.store, header.log_offset)
        if message is None:
            raise RequestRejected(
                f"no message is stored at log offset {header.log_offset}", code=ResponseCode.SYSTEM_ERROR
            )
        _check_identity(message, header)
        retry_count_max = group.retry_count_max
        if header.retry_count_max is not None and command.version >= VERSION_MAX_RETRY_HONOURED:
            retry_count_max = header.retry_count_max
        record = None
        if message.retry_count < retry_count_max and header.delay_level >= 0:
            delay_level = header.delay_level or FIRST_DELAY_LEVEL + message.retry_count
            record = self._make_retry(message, target, min(delay_level, self.delay.level_max), now_ms)
        self._append(channel, command, record or self._make_dead_letter(message, group.name))
        topic = message.properties.get(names.RETRY_TOPIC, message.topic)
        if record is None:
            self.core.stats.dead_letters.add(f"{topic}@{group.name}", 1, 0)
        self.core.stats.sent_back.add(f"{topic}@{group.name}", 1, len(message.body))
        return None

    def _make_retry(
        self, message: Record, target: TopicConfig, delay_level: int, now_ms: int
    ) -> NewRecord | None:
        """Returns the retry, or None if the properties have no room for those a retry needs."""
        record = self._copy(message, target, delay_level)
        return record if self.delay.postpone_retry(record, delay_level, now_ms) else None

    def _make_dead_letter(self, message: Record, group: str) -> NewRecord:
        record = self._copy(message, self.core.creator.create_dlq_topic(group), 0)
        record.properties = make_room_in_dead_letter(record.properties)
        return record

    def _copy(self, message: Record, target: TopicConfig, delay_level: int) -> NewRecord:
        pairs = dict(message.properties)
        pairs.setdefault(names.RETRY_TOPIC, message.topic)
        pairs.setdefault(names.ORIGIN_MESSAGE_ID, message.message_id)
        pairs[names.WAIT] = "false"
        for name in (names.TRAN_MSG, *DELIVERY_TIME_NAMES):
            pairs.pop(name, None)
        if delay_level > 0:
            for name in (names.REAL_TOPIC, names.REAL_QID):
                pairs.pop(name, None)
        # A dead letter is sent at level 0, and still names the topic and queue in which it last waited.
        pairs[names.DELAY] = str(delay_level)
        queue_id = self.core.chance.below(max(1, target.write_queue_count))
        copy = copy_record(message, target.name, queue_id, encode_properties(pairs))
        copy.sys_flag, copy.prepared_offset = without_transaction(message.sys_flag), 0
        copy.retry_count += 1
        # Ignores the WAIT property: the consumer discards the original on this answer, so the copy must be as
        # durable (RocketMQ answers at once, and a power cut loses the message).
        copy.wait_stored = True
        return copy

    def _append(self, channel: Channel, command: Command, record: NewRecord) -> None:
        def answer(status: PutStatus) -> None:
            if command.is_oneway:
                return
            if status is PutStatus.PUT_OK:
                channel.send(command.reply())
            else:
                remark = f"the message was not stored again: {status.value}"
                channel.send(command.reply(ResponseCode.SYSTEM_ERROR, remark=remark))

        self.core.store.appender.append([record], answer)


def _check_identity(message: Record, header: SendBackRequest) -> None:
    """Checks that the record at the log offset is the message that the consumer means, and not a later one.

    The consumer names the message by its unique key, or by the broker's message id if it has none. Only if
    the client sends no id is the topic compared; the client knows the topic without its namespace and, for a
    retry, the original one.

    Raises:  RequestRejected; clients then send the message itself to the retry topic.
    """
    claimed_id, claimed_topic = header.original_message_id, header.original_topic
    if claimed_id:
        known = (message.unique_key, message.message_id, message.properties.get(names.ORIGIN_MESSAGE_ID))
        if claimed_id in known:
            return
    elif not claimed_topic:
        return
    else:
        topics = (message.topic, message.properties.get(names.RETRY_TOPIC, ""))
        if any(topic == claimed_topic or topic.endswith(f"%{claimed_topic}") for topic in topics):
            return
    raise RequestRejected(
        f"another message is stored at log offset {header.log_offset}, not"
        f" {(claimed_id or '')[:160]!r} of {(claimed_topic or '')[:160]!r}",
        code=ResponseCode.SYSTEM_ERROR,
    )
