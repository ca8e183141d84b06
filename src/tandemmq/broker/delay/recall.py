"""RECALL_MESSAGE (370): cancels a timed message before its time (spec semantics 18.2).

The recall is itself a timed message that names its target; when their slot is due, neither is delivered. A
recall that arrives while the slot is being delivered may be too late. Every answer carries the region,
without which Java's clients do not trace recalls.
The handle is URL-safe Base64 of `v1 topic broker timestamp unique-key`. The timestamp is 1 ms after the
message's slot, so that it is rounded down to the same slot again (spec remoting 12.7, spec semantics 3.11 and
5.2).
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass

from tandemmq.broker.core import BrokerCore
from tandemmq.broker.delay.postpone import DelayRule
from tandemmq.broker.delay.timers import TIMER_DEL_UNIQKEY, TIMER_DELIVER_MS, cancel_name, slot_of
from tandemmq.broker.guards import require_topic
from tandemmq.errors import NotPermitted, RequestRejected
from tandemmq.protocol import properties as names
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.message_id import encode_host
from tandemmq.protocol.record import NewRecord, tag_hash_of
from tandemmq.protocol.requests.send import RecallRequest, RecallResponse
from tandemmq.remoting.channel import Channel
from tandemmq.store import PutStatus
from tandemmq.store.outcomes import NOT_STORED

_VERSION = "v1"
_DIGITS_MAX = 18
_CHARS_MAX = 1_024


@dataclass(frozen=True, slots=True)
class RecallHandle:
    """A decoded recall handle: the message, its broker and its time."""

    topic: str
    broker_name: str
    at_ms: int
    unique_key: str


def encode_recall_handle(topic: str, broker_name: str, at_ms: int, unique_key: str) -> str:
    """Returns the handle as text, with its padding, as in RocketMQ."""
    text = f"{_VERSION} {topic} {broker_name} {at_ms} {unique_key}"
    return urlsafe_b64encode(text.encode("utf-8", "replace")).decode("ascii")


def decode_recall_handle(text: str) -> RecallHandle | None:
    """Decodes a handle, with or without its padding. Returns None if it is invalid."""
    if not text.isascii() or len(text) > _CHARS_MAX:
        return None
    try:
        plain = urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except (binascii.Error, ValueError):
        return None
    parts = plain.split(" ")
    if len(parts) != 5 or parts[0] != _VERSION or not parts[4]:
        return None
    _, topic, broker_name, at_ms, unique_key = parts
    if not (at_ms.isascii() and at_ms.isdigit()) or len(at_ms) > _DIGITS_MAX:
        return None
    return RecallHandle(topic, broker_name, int(at_ms), unique_key)


RECALL_TAG = "_RECALL_TAG_"
RECALL_BODY = b"0"


@dataclass(slots=True)
class RecallHandlers:
    """Handles recalls."""

    core: BrokerCore
    delay: DelayRule

    def handle_recall(self, channel: Channel, command: Command) -> Command | None:
        """Handles RECALL_MESSAGE. The answer holds the message's id and is sent once the recall is stored."""
        region = self.core.options.region_id
        fields = {names.MSG_REGION: region}

        def answer(status: PutStatus) -> None:
            if command.is_oneway:
                return
            if status in NOT_STORED:
                remark = f"the recall was not stored: {status.value}"
                channel.send(command.reply(ResponseCode.SYSTEM_ERROR, remark=remark, fields=fields))
            else:
                channel.send(command.reply(0, RecallResponse(message_id=record.unique_key, region=region)))

        try:
            record = self._make_recall(channel, command.decode(RecallRequest))
            self.core.store.appender.append([record], answer)
        except RequestRejected as error:
            return command.reply(error.code, remark=error.remark, fields=fields)
        return None

    def _make_recall(self, channel: Channel, header: RecallRequest) -> NewRecord:
        """Builds the recall as a timer message, with the unique key of its target."""
        options = self.core.options
        if options.is_slave:
            raise RequestRejected(
                "this broker is a slave and recalls nothing: send to the master of this broker group",
                code=ResponseCode.SLAVE_NOT_AVAILABLE,
            )
        if not options.recall_enable or not self.delay.timers.is_enabled:
            raise NotPermitted("recalls are switched off on this broker (recallMessageEnable=false)")
        require_topic(self.core.topics, header.topic)
        handle = decode_recall_handle(header.recall_handle)
        if handle is None:
            raise _illegal("the recall handle cannot be read")
        if handle.topic != header.topic or handle.broker_name != options.broker_name:
            raise _illegal(
                f"the recall handle is for the topic {handle.topic} of the broker {handle.broker_name}"
            )
        group = header.producer_group or ""
        if "\x01" in group or "\x02" in group:
            raise _illegal("producerGroup contains a byte that separates properties")
        now_ms = self.core.clock.now_ms()
        if not now_ms < handle.at_ms < now_ms + self.delay.timers.delay_s_max * 1000:
            raise _illegal(f"the message's time {handle.at_ms} has passed or is too far ahead")
        properties = names.encode_properties(
            {
                names.TAGS: RECALL_TAG,
                names.UNIQ_KEY: handle.unique_key,
                TIMER_DEL_UNIQKEY: cancel_name(handle.topic, handle.unique_key),
                TIMER_DELIVER_MS: str(handle.at_ms),
                names.BORN_TIMESTAMP: str(now_ms),
                names.PGROUP: group,
            }
        )
        properties = names.append_property(properties, names.TRACE_CONTEXT, "")
        record = NewRecord(
            topic=handle.topic,
            queue_id=0,
            body=RECALL_BODY,
            properties=properties,
            born_at_ms=now_ms,
            born_host=encode_host(*channel.peer),
            tag_hash=tag_hash_of(properties),
            unique_key=handle.unique_key,
        )
        self.delay.postpone_until(record, slot_of(handle.at_ms))
        return record


def _illegal(remark: str) -> RequestRejected:
    return RequestRejected(remark, code=ResponseCode.ILLEGAL_OPERATION)
