"""One send request on its way: a message or a batch, and those who wait for its result; pure apart from the
futures.

A shipment is made once and may be tried at several brokers; what it carries never changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from tandemmq.api.broker_send import SendAnswer
from tandemmq.client.options import ProducerOptions
from tandemmq.client.producer.results import SendResult, split_answer
from tandemmq.errors import MessageIllegal
from tandemmq.protocol.batch import encode_batch_item
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.compression import compress_zlib
from tandemmq.protocol.message import Message, check_message, encode_wire_properties
from tandemmq.protocol.requests.send import SendRequestV2
from tandemmq.protocol.topic_names import is_retry_topic

Waiter = asyncio.Future[Any]
"""Of a SendResult for one message, of a list of them for an explicit batch."""


class Shipment:
    """What is sent, to where, until when, and for whom."""

    __slots__ = (
        "attempts",
        "avoid",
        "batch_waiter",
        "body",
        "born_at_ms",
        "deadline_s",
        "flag",
        "is_batch",
        "is_pinned",
        "on_settled",
        "properties",
        "queue",
        "size_bytes",
        "sys_flag",
        "topic",
        "unique_keys",
        "waiters",
    )

    def __init__(self, topic: str, *, queue: MessageQueue | None, deadline_s: float, born_at_ms: int) -> None:
        self.topic = topic
        self.queue = queue
        self.is_pinned = queue is not None
        self.deadline_s = deadline_s
        self.born_at_ms = born_at_ms
        self.body = b""
        self.properties = ""
        self.flag = 0
        self.sys_flag = 0
        self.is_batch = False
        self.size_bytes = 0
        self.unique_keys: list[str] = []
        self.waiters: list[Waiter] = []
        self.batch_waiter: Waiter | None = None
        self.attempts = 0
        self.avoid = ""
        self.on_settled: Callable[[], None] | None = None

    @property
    def count(self) -> int:
        """Messages in it."""
        return len(self.unique_keys)

    def header(self, group: str, options: ProducerOptions) -> SendRequestV2:
        """The request's header for the queue that was chosen."""
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
        """Give every waiter its result."""
        queue = self.queue
        assert queue is not None
        if queue.queue_id != answer.queue_id:
            queue = MessageQueue(topic=queue.topic, broker_name=queue.broker_name, queue_id=answer.queue_id)
        if self.is_batch:
            results = split_answer(answer, queue, self.unique_keys)
            if self.batch_waiter is not None:
                _resolve(self.batch_waiter, results)
            for waiter, result in zip(self.waiters, results, strict=False):
                _resolve(waiter, result)
        else:
            result = SendResult(
                answer.status, answer.message_id, self.unique_keys[0], queue, answer.queue_offset
            )
            if self.batch_waiter is not None:
                _resolve(self.batch_waiter, [result])
            if self.waiters:
                _resolve(self.waiters[0], result)
        if self.on_settled is not None:
            self.on_settled()

    def fail(self, error: Exception) -> None:
        """Give every waiter the error."""
        waiters = self.waiters if self.batch_waiter is None else [self.batch_waiter, *self.waiters]
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)
        if self.on_settled is not None:
            self.on_settled()


def _resolve(waiter: Waiter, result: SendResult | list[SendResult]) -> None:
    if not waiter.done():
        waiter.set_result(result)


def load_single(shipment: Shipment, message: Message, unique_key: str, options: ProducerOptions) -> None:
    """Put one message in, compressed when it is large and gets smaller by that.

    Raises:  MessageIllegal when no broker would store it.
    """
    check_message(message, bytes_max=options.message_bytes_max)
    body = message.body
    shipment.properties = encode_wire_properties(message, unique_key).decode()
    shipment.flag = message.flag
    shipment.unique_keys.append(unique_key)
    shipment.size_bytes = len(body) + len(shipment.properties)
    if options.compress_from_bytes and len(body) >= options.compress_from_bytes:
        packed, sys_flag = compress_zlib(body, 0)
        if len(packed) < len(body):
            body, shipment.sys_flag = packed, sys_flag
    shipment.body = body


def encode_item(message: Message, unique_key: str, options: ProducerOptions) -> bytes:
    """One message as part of a batch body; never compressed.

    Raises:  MessageIllegal when no broker would store it or it must not be in a batch.
    """
    check_message(message, bytes_max=options.message_bytes_max)
    if message.delay_level or is_retry_topic(message.topic):
        raise MessageIllegal("a batch takes no delayed messages and none for retry topics")
    return encode_batch_item(message.flag, message.body, encode_wire_properties(message, unique_key))


def load_batch(
    shipment: Shipment, items: Sequence[bytes], unique_keys: list[str], *, wait_stored: bool, bytes_max: int
) -> None:
    """Put encoded messages in.

    Raises:  MessageIllegal when together they are larger than a broker takes.
    """
    body = b"".join(items)
    if len(body) > bytes_max:
        raise MessageIllegal(
            f"the batch has {len(body)} bytes, at most {bytes_max} are allowed: send it in parts"
        )
    shipment.body = body
    shipment.is_batch = True
    shipment.unique_keys = unique_keys
    shipment.size_bytes = len(body)
    # Brokers take the wait policy of a batch from here; the messages carry their own copy too (spec remoting
    # 12.6).
    shipment.properties = "" if wait_stored else "WAIT\x01false\x02"
