"""Messages for users: the ones they send, and the ones they receive.

Invariants: a `Message` that passed `check_message` can be stored by any broker with default limits.
Source:     spec semantics 1.4, 1.5; spec remoting 12.5.
"""

from __future__ import annotations

import binascii
import reprlib
from collections.abc import Awaitable, Mapping, Sequence
from operator import index
from typing import Any, Final, Protocol

import msgspec

from tandemmq.errors import ClientError, LocalProtocolError, MessageIllegal
from tandemmq.protocol import properties as names
from tandemmq.protocol.pop_receipts import parse_handle
from tandemmq.protocol.properties import encode_properties, is_reserved
from tandemmq.protocol.record import Record
from tandemmq.protocol.sys_flag import COMPRESSED, COMPRESSION_MASK
from tandemmq.protocol.topic_names import NOT_SENDABLE_TOPICS, TOPIC_CHARS_MAX, topic_fault
from tandemmq.units import MIB, EpochMs

MESSAGE_BYTES_MAX: Final = 4 * MIB
FLAG_BOUND: Final = 2**31
BODY_REPR_BYTES: Final = 64
FIELD_REPR_CHARS: Final = 1_000

_BYTES: Final = (bytes, bytearray, memoryview)
_FIELD_TYPES: Final[tuple[tuple[str, tuple[type, ...], str], ...]] = (
    ("topic", (str,), "str"),
    ("body", _BYTES, "bytes"),
    ("tags", (str,), "str"),
    ("keys", (str, Sequence), "str or a sequence of str"),
    ("properties", (Mapping,), "a mapping of str to str"),
    ("flag", (int,), "int"),
    ("delay_level", (int,), "int"),
    ("deliver_at_ms", (int, type(None)), "int or None"),
    ("delay_ms", (int, type(None)), "int or None"),
    ("priority", (int, type(None)), "int or None"),
)


class Message(msgspec.Struct):
    """A message to send.

    `keys`: the keys for later searches: one text with spaces between them, or several texts without spaces.
    `properties`: the user's own; names reserved by the system are refused. `delay_level` 0 delivers at once.
    `wait_stored` False: the answer does not wait for flush or replicas. `deliver_at_ms` (UTC, by the broker's
    clock) or `delay_ms`: the delivery time, accurate to about a second. Only one of the three delays can be
    set. `priority`: 0 and up, for a topic of `message.type` PRIORITY, from which pop consumers receive higher
    numbers first; it excludes delays and ordering by key. `value`: encoded as the body by a producer with a
    `serializer`, if the body is empty.
    """

    topic: str
    body: bytes = b""
    tags: str = ""
    keys: str | Sequence[str] = ()
    properties: Mapping[str, str] = {}
    flag: int = 0
    delay_level: int = 0
    wait_stored: bool = True
    deliver_at_ms: int | None = None
    delay_ms: int | None = None
    priority: int | None = None
    value: Any = None

    def __repr__(self) -> str:
        """Shows the fields that are set; a body over `BODY_REPR_BYTES`, and any other field over
        `FIELD_REPR_CHARS`, is truncated and followed by its size.
        """
        shown = [f"topic={self.topic!r}", f"body={_clipped(self.body)}"]
        for field in msgspec.structs.fields(self)[2:]:
            value = getattr(self, field.name)
            if field.name == "value":
                if value is not None:
                    shown.append(f"value={reprlib.repr(value)}")
            elif value != field.default and (value or field.name != "properties"):
                shown.append(f"{field.name}={_clipped(value)}")
        return f"Message({', '.join(shown)})"


def _clipped(value: object) -> str:
    if isinstance(value, _BYTES) and len(value) > BODY_REPR_BYTES:
        return f"{bytes(value[:BODY_REPR_BYTES])!r}... ({len(value)} bytes)"
    text = repr(value)
    if len(text) > FIELD_REPR_CHARS:
        return f"{text[:FIELD_REPR_CHARS]}... ({len(text)} characters)"
    return text


def is_delayed(message: Message) -> bool:
    """Returns True if the message is to be delivered later."""
    return bool(message.delay_level) or message.deliver_at_ms is not None or message.delay_ms is not None


def wire_properties(message: Message, unique_key: str) -> dict[str, str]:
    """Returns all properties that travel with the message, the user's first."""
    pairs = dict(message.properties)
    if message.keys:
        keys = message.keys
        pairs[names.KEYS] = keys if isinstance(keys, str) else " ".join(keys)
    if message.tags:
        pairs[names.TAGS] = message.tags
    if message.delay_level:
        pairs[names.DELAY] = str(message.delay_level)
    if message.deliver_at_ms is not None:
        pairs[names.TIMER_DELIVER_MS] = str(message.deliver_at_ms)
    if message.delay_ms is not None:
        pairs[names.TIMER_DELAY_MS] = str(message.delay_ms)
    if message.priority is not None:
        pairs[names.PRIORITY] = str(message.priority)
    pairs[names.UNIQ_KEY] = unique_key
    pairs[names.WAIT] = "true" if message.wait_stored else "false"
    return pairs


def encode_wire_properties(message: Message, unique_key: str) -> bytes:
    """Returns the wire form of `wire_properties`.

    Raises:  MessageIllegal if they are more than a record can hold, or a name or value has no wire form.
    """
    try:
        raw = encode_properties(wire_properties(message, unique_key), "strict")
    except LocalProtocolError as error:
        raise MessageIllegal(str(error)) from None
    except UnicodeEncodeError as error:
        half = error.object[error.start : error.end]
        raise MessageIllegal(f"tags, keys and properties must be text, without {half!r}") from None
    names.check_properties_size(raw)
    return raw


def check_message(message: Message, *, bytes_max: int = MESSAGE_BYTES_MAX) -> None:
    """Checks a message. Raises MessageIllegal if no broker would store it (spec semantics 1.5), or for a
    wrong type.
    """
    try:
        fault = topic_fault(message.topic)
        if fault:
            raise MessageIllegal(fault)
        if len(message.topic) > TOPIC_CHARS_MAX:
            raise MessageIllegal(
                f"the topic has {len(message.topic)} characters, at most {TOPIC_CHARS_MAX} fit"
            )
        if message.topic in NOT_SENDABLE_TOPICS:
            raise MessageIllegal(f"the topic {message.topic} is the broker's own and takes no messages")
        body = message.body
        if type(body) is not bytes and not isinstance(body, _BYTES):
            raise MessageIllegal(_type_fault(message))
        if not body:
            raise MessageIllegal(
                "the body is empty"
                if message.value is None
                else "the message has a value instead of a body, but the producer has no serializer"
            )
        if message.tags.__class__ is not str and not isinstance(message.tags, str):
            raise MessageIllegal(_type_fault(message))
        if len(body) > bytes_max:
            raise MessageIllegal(f"the body has {len(body)} bytes, at most {bytes_max} are allowed")
        if message.flag and not -FLAG_BOUND <= index(message.flag) < FLAG_BOUND:
            raise MessageIllegal(f"the flag {message.flag} must fit into 32 bits, with a sign")
        if message.delay_level or message.deliver_at_ms is not None or message.delay_ms is not None:
            _check_delays(message)
        if message.priority is not None:
            _check_priority(message, message.priority)
        keys = message.keys
        for key in keys.split(" ") if isinstance(keys, str) and keys else keys:
            if not key or " " in key:
                raise MessageIllegal(f"the key {key!r} must be non-empty and without spaces")
        for name, value in message.properties.items():
            if is_reserved(name):
                raise MessageIllegal(f"the property name {name!r} is reserved")
            if not name.strip() or not value.strip():
                raise MessageIllegal(f"the property {name!r} must have a name and a value that are not blank")
    except (AttributeError, TypeError):
        raise MessageIllegal(_type_fault(message)) from None


def _type_fault(message: Message) -> str:
    """Returns the error text for the field of a wrong type."""
    for name, types, wanted in _FIELD_TYPES:
        value = getattr(message, name)
        if not isinstance(value, types):
            return f"{name} must be {wanted}, not {type(value).__name__}"
    return "keys, and the names and values of properties, must be str"


def _check_delays(message: Message) -> None:
    given = [
        value
        for value in (message.delay_level or None, message.deliver_at_ms, message.delay_ms)
        if value is not None
    ]
    if len(given) > 1:
        raise MessageIllegal("only one of delay_level, deliver_at_ms and delay_ms can be given")
    if given and index(given[0]) < 0:
        raise MessageIllegal(f"the delay {given[0]} must not be negative")


def _check_priority(message: Message, priority: int) -> None:
    if not 0 <= index(priority) <= names.PRIORITY_MAX:
        raise MessageIllegal(f"the priority {priority} must be from 0 to {names.PRIORITY_MAX}")
    if is_delayed(message) or names.SHARDING_KEY in message.properties:
        raise MessageIllegal("a message with a priority must not be delayed or have a sharding key")


class MessageSettler(Protocol):
    """The consumer that delivered a message, for the message's own methods."""

    def ack(self, message: Any) -> Awaitable[None]: ...

    def retry_later(self, message: Any, delay_s: float | None) -> Awaitable[None]: ...

    def dead_letter(self, message: Any, reason: str) -> Awaitable[None]: ...

    def reply(self, message: Any, body: bytes, properties: Mapping[str, str] | None) -> Awaitable[None]: ...


class ReceivedMessage:
    """A stored message as received by a consumer, with its body decompressed.

    `body_fault`: empty, or the reason why `body` holds the stored bytes: they do not match their sender's
    flag, or the extra for their compression is not installed. `record` holds everything that the broker
    stored, hosts and offsets included.

    `ack`, `retry_later`, `dead_letter` and `reply` do what the methods of the consumer do that delivered it.
    In the consumer's event loop they are awaited; in any other thread they block until it is done.
    """

    __slots__ = ("body", "body_fault", "broker_name", "record", "settler", "topic", "value")

    settler: MessageSettler
    """The consumer that delivered it; not set for messages of other sources."""
    value: Any
    """The decoded body; only set by a consumer with a `serializer`."""

    def __init__(self, record: Record, *, topic: str | None = None, broker_name: str = "") -> None:
        """Creates the message. `topic`: the subscribed topic, for a record in a retry topic."""
        self.record = record
        self.topic = record.topic if topic is None else topic
        self.broker_name = broker_name
        if record.sys_flag & COMPRESSED:
            self.body, self.body_fault = record.decode_content()
        else:
            self.body, self.body_fault = record.body, ""

    def ack(self) -> Awaitable[None]:
        """Acknowledges the message."""
        return self._settler().ack(self)

    def retry_later(self, *, delay_s: float | None = None) -> Awaitable[None]:
        """Gives the message back: it is delivered again, to any member of the group, after the delay.

        Without `delay_s` the broker of a `Consumer` or `PushConsumer` chooses it, longer each time, and a pop
        consumer gets the message again at once.
        """
        return self._settler().retry_later(self, delay_s)

    def dead_letter(self, *, reason: str) -> Awaitable[None]:
        """Makes the message a dead letter of the group; `reason` is its property `dead_letter_reason`."""
        return self._settler().dead_letter(self, reason)

    def reply(self, body: bytes, *, properties: Mapping[str, str] | None = None) -> Awaitable[None]:
        """Answers a message that was sent by `Producer.request`."""
        return self._settler().reply(self, body, properties)

    def _settler(self) -> MessageSettler:
        try:
            return self.settler
        except AttributeError:
            raise ClientError("no consumer has delivered this message") from None

    @property
    def body_sys_flag(self) -> int:
        """The sysFlag for sending `body` again: its compression, if `body` holds the stored bytes."""
        return self.record.sys_flag & (COMPRESSED | COMPRESSION_MASK) if self.body_fault else 0

    @property
    def message_id(self) -> str:
        """The producer's id, or the broker's if the producer set none (spec remoting 12.2)."""
        return self.record.unique_key or self.record.message_id

    @property
    def tags(self) -> str:
        """The tags; empty without tags."""
        return self.record.tags

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys; empty without keys."""
        return names.split_keys(self.record.keys)

    @property
    def properties(self) -> dict[str, str]:
        """The user's properties and the system's."""
        return self.record.properties

    @property
    def priority(self) -> int | None:
        """The priority; None without one."""
        return names.parse_priority(self.record.properties.get(names.PRIORITY))

    @property
    def queue_id(self) -> int:
        """The queue of the message at its broker."""
        return self.record.queue_id

    @property
    def queue_offset(self) -> int:
        """The message's offset in its queue."""
        return self.record.queue_offset

    @property
    def born_at_ms(self) -> EpochMs:
        """The time of sending, by the producer's clock."""
        return EpochMs(self.record.born_at_ms)

    @property
    def stored_at_ms(self) -> EpochMs:
        """The time of storing, by the broker's clock."""
        return EpochMs(self.record.stored_at_ms)

    @property
    def retry_count(self) -> int:
        """The number of times a consumer has returned it."""
        return self.record.retry_count

    def as_object(self) -> dict[str, Any]:
        """Returns the message for programs, in values of JSON.

        A body that is not UTF-8 is in `body_base64` and not in `body`. `broker` is present if it is known,
        `body_fault` if the body could not be decompressed.
        """
        found: dict[str, Any] = {
            "topic": self.topic,
            "broker": self.broker_name,
            "queue": self.queue_id,
            "offset": self.queue_offset,
            "message_id": self.message_id,
            "tags": self.tags,
            "keys": list(self.keys),
            "properties": self.properties,
            "born_at": self.born_at_ms,
            "stored_at": self.stored_at_ms,
            "retries": self.retry_count,
        }
        if not self.broker_name:
            del found["broker"]
        if self.body_fault:
            found["body_fault"] = self.body_fault
        body = bytes(self.body)
        try:
            found["body"] = body.decode()
        except UnicodeDecodeError:
            found["body_base64"] = binascii.b2a_base64(body, newline=False).decode()
        return found

    def note_retry(self) -> None:
        """Counts one more delivery by the consumer itself."""
        self.record = msgspec.structs.replace(self.record, retry_count=self.record.retry_count + 1)

    def __repr__(self) -> str:
        return (
            f"ReceivedMessage({self.message_id}, topic={self.topic!r}, queue_id={self.queue_id},"
            f" queue_offset={self.queue_offset}, body={len(self.body)} bytes"
            f"{', ' + self.body_fault if self.body_fault else ''})"
        )


class PoppedMessage(ReceivedMessage):
    """A message received by a pop consumer, reserved until `invisible_until_ms`. `handle` acknowledges it."""

    __slots__ = ("handle",)

    def __init__(self, record: Record, *, topic: str, broker_name: str, handle: str) -> None:
        super().__init__(record, topic=topic, broker_name=broker_name)
        self.handle = handle

    @property
    def invisible_until_ms(self) -> EpochMs:
        """The time from which others of the group may get it, by the broker's clock."""
        handle = parse_handle(self.handle)
        return EpochMs(handle.pop_time_ms + handle.invisible_ms)


def require_received(message: object, kind: type[ReceivedMessage] = ReceivedMessage) -> None:
    """Raises MessageIllegal for an object that is not a received message of this kind."""
    if not isinstance(message, kind):
        raise MessageIllegal(f"expected a {kind.__name__}, got {message!r:.64}")
