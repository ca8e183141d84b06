"""Shipments, and the packer that makes them from messages: it checks and encodes messages, assigns their ids,
compresses bodies, and joins batches.

A shipment is one send request in progress: a message or a batch, and the futures of its callers. It is made
once and may be tried at several brokers; its content never changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from tandemmq.api.broker_send import SendAnswer
from tandemmq.client.call_values import to_timeout
from tandemmq.client.instance import ClientInstance
from tandemmq.client.namespace import Namespace
from tandemmq.client.options import ProducerOptions
from tandemmq.client.producer.results import SendResult, split_answer
from tandemmq.errors import MessageIllegal
from tandemmq.protocol.batch import encode_batch_item
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.codes import VERSION_TIMERS
from tandemmq.protocol.compression import SYS_FLAGS, compressor
from tandemmq.protocol.message import Message, check_message, encode_wire_properties, is_delayed
from tandemmq.protocol.properties import check_properties_size, encode_properties
from tandemmq.protocol.requests.send import SendRequestV2
from tandemmq.protocol.topic_names import is_retry_topic, topic_fault

Waiter = asyncio.Future[Any]
"""A future of a caller: for a SendResult of one message, or for the list of results of a whole batch."""


@dataclass(slots=True, eq=False)
class Shipment:
    """A send request: its content, queue, deadline and waiters, and the room that it occupies in the window.

    `waiters` has one future per message; `list_waiter` is one future for the list of all results. Either may
    be absent.
    """

    topic: str
    body: bytes
    properties: str
    unique_keys: Sequence[str]
    _: KW_ONLY
    shown_topic: str
    """The topic's name as the sender uses it."""
    queue: MessageQueue | None
    """The only queue to try; None for any queue of the topic, until one is chosen."""
    deadline_s: float
    born_at_ms: int
    is_pinned: bool = field(init=False)
    flag: int = 0
    sys_flag: int = 0
    is_batch: bool = False
    waiters: Sequence[Waiter] = ()
    list_waiter: Waiter | None = None
    room_bytes: int = 0
    room_count: int = 0
    version_min: int = 0
    """The version of the oldest broker that understands the message; 0: of any broker."""
    attempts: int = 0
    avoid: str = ""

    def __post_init__(self) -> None:
        self.is_pinned = self.queue is not None

    def header(self, group: str, options: ProducerOptions) -> SendRequestV2:
        """Returns the request's header for the chosen queue."""
        assert self.queue is not None
        return SendRequestV2(
            producer_group=group,
            topic=self.topic,
            default_topic=options.default_topic,
            default_topic_queue_count=options.default_topic_queue_count,
            queue_id=self.queue.queue_id,
            sys_flag=self.sys_flag,
            born_at_ms=self.born_at_ms,
            flag=self.flag,
            properties=self.properties,
            is_batch=self.is_batch,
            broker_name=self.queue.broker_name,
        )

    def succeed(self, answer: SendAnswer) -> None:
        """Sets the result of every waiter."""
        queue = self.queue
        assert queue is not None
        if queue.queue_id != answer.queue_id or queue.topic != self.shown_topic:
            # A topic that the broker has just created may have fewer queues than requested.
            queue = MessageQueue(self.shown_topic, queue.broker_name, answer.queue_id)
        if self.is_batch:
            results = split_answer(answer, queue, self.unique_keys)
        else:
            key = self.unique_keys[0]
            results = [
                SendResult(
                    answer.status,
                    answer.message_id,
                    key,
                    queue,
                    answer.queue_offset,
                    answer.recall_handle,
                    answer.region,
                    answer.is_traced,
                )
            ]
        for waiter, result in zip(self.waiters, results, strict=False):
            if not waiter.done():
                waiter.set_result(result)
        if self.list_waiter is not None and not self.list_waiter.done():
            self.list_waiter.set_result(results)

    def fail(self, error: Exception) -> None:
        """Sets the error of every waiter."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(error)
        if self.list_waiter is not None and not self.list_waiter.done():
            self.list_waiter.set_exception(error)


MESSAGE_OVERHEAD_BYTES = 256
"""The bytes counted per message in addition to its body: properties, header and the client's own objects."""


def room_of(message: Message) -> int:
    """Returns the bytes that a message occupies in the window. Raises MessageIllegal for an object that is
    not a message.
    """
    try:
        return len(message.body) + MESSAGE_OVERHEAD_BYTES
    except (AttributeError, TypeError):
        if not isinstance(message, Message):
            raise MessageIllegal(f"expected a Message, got {message!r:.64}") from None
        check_message(message)
        raise


def must_travel_alone(message: Message, options: ProducerOptions) -> bool:
    """Returns True for a message that cannot or should not be in a batch: delayed, with a priority, for a
    retry topic, worth compressing, or large.
    """
    size = room_of(message) - MESSAGE_OVERHEAD_BYTES
    threshold = options.compress_from_bytes
    return bool(
        is_delayed(message)
        or message.priority is not None
        or (threshold and size >= threshold)
        or size >= options.batch_bytes_max
        or not isinstance(message.topic, str)  # it will be rejected for this
        or is_retry_topic(message.topic)
    )


class Packer:
    """Packs the messages of one producer."""

    def __init__(self, instance: ClientInstance, options: ProducerOptions, namespace: Namespace) -> None:
        self._instance = instance
        self._namespace = namespace
        self._clock = instance.clock
        self._options = options
        self._compress = compressor(options.compression)

    def deadline_s(self, timeout_s: float | None) -> float:
        """Returns the deadline of a send that starts now, by the monotonic clock."""
        return self._clock.monotonic() + (
            self._options.timeout_s if timeout_s is None else to_timeout(timeout_s)
        )

    def pack_one(
        self,
        message: Message,
        *,
        queue: MessageQueue | None,
        deadline_s: float,
        unique_key: str = "",
        system: Mapping[str, str] = {},
        system_flag: int = 0,
    ) -> Shipment:
        """Packs one message, compressed if it is large and the result is smaller.

        `system` and `system_flag` are properties that only the system may set, and bits of the message's
        sysFlag.

        Raises:  MessageIllegal when no broker would store it.
        """
        options = self._options
        check_message(message, bytes_max=options.message_bytes_max)
        if message.priority is not None and queue is not None:
            raise MessageIllegal("a message with a priority must not name a queue: the broker chooses it")
        now_ms = self._clock.now_ms()
        key = unique_key or self._instance.unique_keys.next(now_ms)
        body = message.body
        sys_flag = 0
        if options.compress_from_bytes and len(body) >= options.compress_from_bytes:
            packed = self._compress(body)
            if len(packed) < len(body):
                body, sys_flag = packed, SYS_FLAGS[options.compression]
        properties = self._encode_properties(message, key)
        if system:
            properties += encode_properties(system)
            check_properties_size(properties)
        shipment = Shipment(
            self._wrap(message.topic),
            body,
            properties.decode(),
            (key,),
            shown_topic=message.topic,
            queue=queue,
            deadline_s=deadline_s,
            born_at_ms=now_ms,
        )
        shipment.flag = message.flag
        shipment.sys_flag = sys_flag | system_flag
        if message.delay_ms is not None or message.deliver_at_ms is not None or message.priority is not None:
            shipment.version_min = VERSION_TIMERS
        return shipment

    def pack_item(self, message: Message) -> tuple[bytes, str]:
        """Packs one message as part of a batch body; returns the bytes and the unique key. Items are never
        compressed.

        Raises:  MessageIllegal when no broker would store it, or not in a batch.
        """
        check_message(message, bytes_max=self._options.message_bytes_max)
        self._wrap(message.topic)
        if is_delayed(message) or is_retry_topic(message.topic):
            raise MessageIllegal("a batch must not contain delayed messages or messages for retry topics")
        if message.priority is not None:  # brokers choose the queue by the priority, except of batches
            raise MessageIllegal("a batch must not contain messages with a priority: send them one by one")
        key = self._instance.unique_keys.next(self._clock.now_ms())
        return encode_batch_item(message.flag, message.body, self._encode_properties(message, key)), key

    def join(
        self,
        topic: str,
        items: Sequence[bytes],
        unique_keys: Sequence[str],
        *,
        wait_stored: bool,
        queue: MessageQueue | None,
        deadline_s: float,
    ) -> Shipment:
        """Joins packed items into a batch.

        Raises:  MessageIllegal when together they are larger than a broker accepts.
        """
        body = b"".join(items)
        bytes_max = self._options.message_bytes_max
        if len(body) > bytes_max:
            raise MessageIllegal(
                f"the batch has {len(body)} bytes, at most {bytes_max} are allowed: split it"
            )
        shipment = Shipment(
            self._wrap(topic),
            body,
            # Brokers read the wait policy of a batch from its header; the messages carry a copy (spec
            # remoting 12.6).
            "" if wait_stored else "WAIT\x01false\x02",
            unique_keys,
            shown_topic=topic,
            queue=queue,
            deadline_s=deadline_s,
            born_at_ms=self._clock.now_ms(),
        )
        shipment.is_batch = True
        return shipment

    def _wrap(self, topic: str) -> str:
        """Returns the topic as brokers know it. Raises MessageIllegal when that is too long for them."""
        wrapped = self._namespace.wrap(topic)
        if len(wrapped) > len(topic) and topic_fault(wrapped):
            raise MessageIllegal(topic_fault(wrapped))
        return wrapped

    def _encode_properties(self, message: Message, unique_key: str) -> bytes:
        """Encodes the properties as `encode_wire_properties` does, and adds the namespace."""
        raw = encode_wire_properties(message, unique_key)
        if self._namespace.mark:
            raw += self._namespace.mark
            check_properties_size(raw)
        return raw

    def pack_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None, deadline_s: float
    ) -> Shipment:
        """Packs several messages into one request.

        Raises:  MessageIllegal when the list is empty, a message is illegal, or they differ in topic or wait
                 policy.
        """
        if not messages:
            raise MessageIllegal("the batch is empty")
        topic, wait_stored = messages[0].topic, messages[0].wait_stored
        items: list[bytes] = []
        unique_keys: list[str] = []
        for message in messages:
            if message.topic != topic or message.wait_stored is not wait_stored:
                raise MessageIllegal(
                    "all messages of a batch must have the same topic and the same wait_stored"
                )
            item, unique_key = self.pack_item(message)
            items.append(item)
            unique_keys.append(unique_key)
        return self.join(
            topic, items, unique_keys, wait_stored=wait_stored, queue=queue, deadline_s=deadline_s
        )
