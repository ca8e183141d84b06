"""One send request on its way: a message or a batch, and those who wait for its result.

A shipment is made once and may be tried at several brokers; what it carries never changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tandemmq.api.broker_send import SendAnswer
from tandemmq.client.options import ProducerOptions
from tandemmq.client.producer.results import SendResult, split_answer
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.requests.send import SendRequestV2

Waiter = asyncio.Future[Any]
"""Gets a SendResult for one message, or a list of them for a whole batch."""


class Shipment:
    """What is sent, to where, until when, for whom, and how much room it takes of what may be in flight.

    `waiters` has one future per message; `list_waiter` is one future for the list of all results. Either may
    be absent.
    """

    __slots__ = (
        "attempts",
        "avoid",
        "body",
        "born_at_ms",
        "deadline_s",
        "flag",
        "is_batch",
        "is_pinned",
        "list_waiter",
        "properties",
        "queue",
        "room_bytes",
        "room_count",
        "sys_flag",
        "topic",
        "unique_keys",
        "waiters",
    )

    def __init__(
        self,
        topic: str,
        body: bytes,
        properties: str,
        unique_keys: Sequence[str],
        *,
        queue: MessageQueue | None,
        deadline_s: float,
        born_at_ms: int,
    ) -> None:
        """`queue`: the only one to try; None for any of the topic."""
        self.topic = topic
        self.body = body
        self.properties = properties
        self.unique_keys = unique_keys
        self.queue = queue
        self.is_pinned = queue is not None
        self.deadline_s = deadline_s
        self.born_at_ms = born_at_ms
        self.flag = 0
        self.sys_flag = 0
        self.is_batch = False
        self.waiters: Sequence[Waiter] = ()
        self.list_waiter: Waiter | None = None
        self.room_bytes = 0
        self.room_count = 0
        self.attempts = 0
        self.avoid = ""

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
            # A topic that the broker has just created may have fewer queues than we asked for.
            queue = MessageQueue(queue.topic, queue.broker_name, answer.queue_id)
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
        """Give every waiter the error."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(error)
        if self.list_waiter is not None and not self.list_waiter.done():
            self.list_waiter.set_exception(error)
