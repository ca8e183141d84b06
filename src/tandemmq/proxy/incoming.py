"""A message as clients of the gRPC protocol send it, checked and turned into what brokers store.

`read_messages` reads the messages of one request. The kind follows from the properties and not from the
type that the client names; only the type TRANSACTION is taken from it.

At a bound: every limit has its own status code; nothing of a request is sent when one of its messages is
            beyond a limit. A limit of 0 for the group, the delivery time or the recovery time switches that
            check off, as in Java; for the body, it is what a message may have at most.
Source:     spec proxy 5.2, 5.3, 5.4, 5.11; spec semantics 1.4.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from tandemmq.errors import MessageIllegal, RemoteProtocolError
from tandemmq.protocol import properties as names
from tandemmq.protocol.compression import CONTENT_BYTES_MAX
from tandemmq.protocol.properties import check_properties_size, encode_properties
from tandemmq.protocol.sys_flag import TRANSACTION_PREPARED
from tandemmq.proxy.body_codec import BodyTooLarge, inflate
from tandemmq.proxy.callers import topic_name
from tandemmq.proxy.kinds import MessageKind, is_system_name, kind_of
from tandemmq.proxy.options import ProxyOptions
from tandemmq.proxy.rpc import Caller, Message
from tandemmq.proxy.schema import enum_number
from tandemmq.proxy.statuses import Code, RpcRefused, check_bound
from tandemmq.proxy.values import TIME_MS_MAX, milliseconds

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_GZIP: Final = enum_number("Encoding", "GZIP")
_TRANSACTION: Final = enum_number("MessageType", "TRANSACTION")
_TEXT_CHARS: Final = 64
"""The characters of a refused value that its error shows."""
MESSAGES_MAX: Final = 1024
"""The most messages of one request."""


class IncomingMessage(NamedTuple):
    """A checked message. `properties` are in wire form; `group` is the message group, empty without one."""

    kind: MessageKind
    message_id: str
    body: bytes
    properties: bytes
    sys_flag: int
    born_at_ms: int
    retry_count: int
    group: str


def read_messages(
    request: Message, *, caller: Caller, options: ProxyOptions, now_ms: int
) -> tuple[str, list[IncomingMessage]]:
    """Returns the topic and the checked messages of a SendMessageRequest, in order; at least one.

    Raises:  RpcRefused with the code of the first check that fails.
    """
    messages = request.messages
    if not messages:
        raise RpcRefused(Code.MESSAGE_CORRUPTED, "the request has no message")
    check_bound(Code.BAD_REQUEST, "the request", len(messages), MESSAGES_MAX, "messages")
    first = messages[0].topic.name
    for message in messages:
        if message.topic.name != first:
            raise RpcRefused(
                Code.MESSAGE_CORRUPTED,
                f"all messages of a request must have one topic, not {_shown(first)} and"
                f" {_shown(message.topic.name)}",
            )
    topic = topic_name(messages[0].topic)
    reader = _RequestReader(topic, caller, options, now_ms)
    return topic, [reader.read(message) for message in messages]


@dataclass(slots=True)
class _RequestReader:
    """The reader of the messages of one request."""

    topic: str
    caller: Caller
    options: ProxyOptions
    now_ms: int
    content_bytes: int = 0

    def read(self, message: Message) -> IncomingMessage:
        """Returns one message. The checks are those of spec proxy 5.3, in its order."""
        system = message.system_properties
        body = self._read_body(message.body, system.body_encoding)
        properties = self._read_user_properties(message)
        _check_message_id(system.message_id, self.options)
        self._check_group(system.message_group)
        if system.lite_topic:
            raise RpcRefused(Code.UNSUPPORTED, "lite topics are not supported: send without lite_topic")
        properties[names.UNIQ_KEY] = system.message_id
        properties[names.PGROUP] = self.topic
        if system.message_group:
            properties[names.SHARDING_KEY] = system.message_group
        self._read_times(system, properties)
        self._read_priority(system, properties)
        born_at_ms = self._read_origin(system, properties)
        retry_count = max(0, system.delivery_attempt)
        if retry_count:
            properties[names.RECONSUME_TIME] = str(retry_count)
        raw = encode_properties(properties)
        try:
            check_properties_size(raw)
        except MessageIllegal as error:
            raise RpcRefused(Code.MESSAGE_PROPERTIES_TOO_LARGE, error.remark) from None
        self.content_bytes += len(raw)
        return IncomingMessage(
            kind_of(properties),
            system.message_id,
            body,
            raw,
            TRANSACTION_PREPARED if system.message_type == _TRANSACTION else 0,
            born_at_ms,
            retry_count,
            system.message_group,
        )

    def _read_body(self, body: bytes, encoding: int) -> bytes:
        """Returns the plain body, so small that the messages of the request so far may be one batch."""
        bytes_max = self.options.body_bytes_max or CONTENT_BYTES_MAX
        if len(body) > bytes_max:
            raise _body_too_large(f"the body has {len(body)} bytes", bytes_max)
        room = max(0, bytes_max - self.content_bytes)
        if encoding == _GZIP and body:
            try:
                body = inflate(body, room)
            except BodyTooLarge:
                raise _body_too_large("the body is compressed and has more bytes", bytes_max) from None
            except RemoteProtocolError as error:
                raise RpcRefused(Code.MESSAGE_CORRUPTED, f"body_encoding is GZIP, but {error}") from None
        if not body and self.options.refuses_empty_bodies:
            raise RpcRefused(Code.MESSAGE_BODY_EMPTY, "the body is empty, at least 1 byte is needed")
        self.content_bytes += len(body)
        if self.content_bytes > bytes_max:
            raise _body_too_large("the messages of the request have more bytes together", bytes_max)
        return body

    def _read_user_properties(self, message: Message) -> dict[str, str]:
        """Returns the user's properties with the tag and the keys."""
        options, system = self.options, message.system_properties
        too_large = Code.MESSAGE_PROPERTIES_TOO_LARGE
        properties = dict(sorted(message.user_properties.items()))
        bound = options.property_count_max
        check_bound(too_large, "the message", len(properties), bound, "user properties")
        for key, value in properties.items():
            _check_property(key, value)
        size = sum(len(key.encode()) + len(value.encode()) for key, value in properties.items())
        if system.tag:
            _check_word(system.tag, "tag", Code.ILLEGAL_MESSAGE_TAG)
            if "|" in system.tag:
                raise RpcRefused(
                    Code.ILLEGAL_MESSAGE_TAG, f"the tag {_shown(system.tag)} must not contain '|'"
                )
            properties[names.TAGS] = system.tag
            size += len(system.tag.encode())
        keys = [key for key in system.keys if key]
        if keys:
            for key in keys:
                _check_word(key, "key", Code.ILLEGAL_MESSAGE_KEY)
            properties[names.KEYS] = " ".join(keys)
            size += sum(len(key.encode()) for key in keys)
        unit = "bytes of user properties, tag and keys"
        check_bound(too_large, "the message", size, options.property_bytes_max, unit)
        return properties

    def _check_group(self, group: str) -> None:
        if not group:
            return
        _check_word(group, "message group", Code.ILLEGAL_MESSAGE_GROUP)
        bound = self.options.message_group_bytes_max
        if 0 < bound <= len(group.encode()):
            raise RpcRefused(
                Code.ILLEGAL_MESSAGE_GROUP,
                f"the message group {_shown(group)} has {len(group.encode())} bytes, fewer than {bound} are"
                " allowed",
            )

    def _read_times(self, system: Message, properties: dict[str, str]) -> None:
        """Adds the delivery time, and the properties of a transaction."""
        is_transaction = system.message_type == _TRANSACTION
        if system.HasField("delivery_timestamp"):
            if is_transaction:
                raise RpcRefused(
                    Code.BAD_REQUEST, "a transactional message must not have a delivery_timestamp"
                )
            self._read_delivery_time(milliseconds(system.delivery_timestamp), properties)
        if not is_transaction:
            return
        properties[names.TRAN_MSG] = "true"
        if system.HasField("orphaned_transaction_recovery_duration"):
            span_s = system.orphaned_transaction_recovery_duration.seconds
            bound_s = self.options.recovery_s_max
            if span_s < 0 or 0 < bound_s < span_s:
                raise RpcRefused(
                    Code.BAD_REQUEST,
                    f"orphaned_transaction_recovery_duration is {span_s} s, 0 to {bound_s} s are allowed",
                )
            if span_s:
                properties[names.CHECK_IMMUNITY_TIME] = str(span_s)

    def _read_delivery_time(self, at_ms: int, properties: dict[str, str]) -> None:
        options = self.options
        ahead_ms = at_ms - self.now_ms
        if 0 < options.delay_ms_max < ahead_ms or at_ms > TIME_MS_MAX:
            raise RpcRefused(
                Code.ILLEGAL_DELIVERY_TIME,
                f"the delivery time is {ahead_ms} ms ahead, at most {options.delay_ms_max} ms are allowed",
            )
        properties[names.TIMER_DELIVER_MS] = str(max(0, at_ms))
        if options.uses_delay_levels:
            level = sum(delay_ms < ahead_ms for delay_ms in options.delay_levels_ms) + 1
            properties[names.DELAY] = str(min(level, len(options.delay_levels_ms)))

    def _read_priority(self, system: Message, properties: dict[str, str]) -> None:
        if system.HasField("priority"):
            if system.priority < 0:
                raise RpcRefused(
                    Code.BAD_REQUEST, f"the priority {system.priority} is negative, 0 is the lowest"
                )
            properties[names.PRIORITY] = str(system.priority)

    def _read_origin(self, system: Message, properties: dict[str, str]) -> int:
        """Adds the sender's host, time and trace context; returns the time."""
        for name, value in (("trace_context", system.trace_context), ("born_host", system.born_host)):
            if _CONTROL.search(value) or len(value.encode()) > self.options.property_bytes_max:
                raise RpcRefused(
                    Code.BAD_REQUEST,
                    f"{name} {_shown(value)} must have no control characters and at most"
                    f" {self.options.property_bytes_max} bytes",
                )
        if system.trace_context:
            properties[names.TRACE_CONTEXT] = system.trace_context
        properties[names.BORN_HOST] = system.born_host or self.caller.peer[0]
        born_at_ms = self.now_ms
        if system.HasField("born_timestamp"):
            born_at_ms = min(max(milliseconds(system.born_timestamp), 0), TIME_MS_MAX)
        properties[names.BORN_TIMESTAMP] = str(born_at_ms)
        return born_at_ms


def _check_property(key: str, value: str) -> None:
    fault = ""
    if not key:
        fault = "its name is empty"
    elif is_system_name(key):
        fault = "the name is reserved for the system"
    elif _CONTROL.search(key) or _CONTROL.search(value):
        fault = "its name and its value must have no control characters"
    if fault:
        raise RpcRefused(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"user property {_shown(key)}: {fault}")


def _check_word(text: str, name: str, code: Code) -> None:
    if not text.strip() or _CONTROL.search(text):
        raise RpcRefused(code, f"the {name} {_shown(text)} must not be blank or have control characters")


def _check_message_id(message_id: str, options: ProxyOptions) -> None:
    _check_word(message_id, "message id", Code.ILLEGAL_MESSAGE_ID)
    size, name = len(message_id.encode()), f"the message id {_shown(message_id)}"
    check_bound(Code.ILLEGAL_MESSAGE_ID, name, size, options.property_bytes_max, "bytes")


def _body_too_large(found: str, bytes_max: int) -> RpcRefused:
    return RpcRefused(Code.MESSAGE_BODY_TOO_LARGE, f"{found}, at most {bytes_max} are allowed")


def _shown(text: str) -> str:
    return repr(text[:_TEXT_CHARS])
