"""Producer: sends messages and returns the position of each stored message.

    async with Producer("orders", "127.0.0.1:9876") as producer:
        result = await producer.send(Message(topic="Orders", body=b"..."))

Thousands of sends may be in flight at once, bounded by count and by bytes; at a bound the next send waits,
and never fails because of it. `Producer` uses two larger parts: `Requests`, which wait for a reply of the
consumer (spec semantics 3.10), and `send_chunks`, which sends many messages at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Self, TypeVar

from tandemmq.api import broker_send
from tandemmq.api.broker_send import SendStatus
from tandemmq.client.call_values import to_timeout
from tandemmq.client.hooks import chained
from tandemmq.client.instance import Client, ClientInstance, InstanceUse
from tandemmq.client.options import ProducerOptions, ServerNames
from tandemmq.client.producer.outbox import Outbox
from tandemmq.client.producer.packer import must_travel_alone, room_of
from tandemmq.client.producer.request_reply import Requests, send_reply
from tandemmq.client.producer.results import SendResult, broker_of_handle
from tandemmq.client.producer.sender import queue_by_key
from tandemmq.client.route_cache import RouteView
from tandemmq.client.serializers import Serializer, with_body
from tandemmq.client.tracing import SendObserver, Tracer
from tandemmq.errors import ClientError, MessageIllegal, RequestTimeout, TandemError
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.hashes import java_hash
from tandemmq.protocol.message import Message, ReceivedMessage
from tandemmq.protocol.topic_names import check_group

T = TypeVar("T")
Outcome = SendResult | TandemError
OnResult = Callable[[Message, Outcome], object]
Results = asyncio.Future[list[SendResult]]


class Producer(Client):
    """One producer of a group. Use it from one event loop only."""

    def __init__(
        self,
        group: str,
        namesrv: ServerNames = "",
        *,
        options: ProducerOptions | None = None,
        instance: ClientInstance | None = None,
    ) -> None:
        """Creates the producer. With `instance` it shares that instance's connections, and `close` leaves the
        instance open.
        """
        self.options = options or ProducerOptions()
        self._use = InstanceUse(namesrv, self.options.client, instance)
        self._instance = self._use.instance
        self._namespace = self._instance.namespace
        self.group = self._namespace.wrap(group)
        """The group's name as brokers know it."""
        check_group(self.group)
        self._outbox = Outbox(self._instance, self.group, self.options, self._namespace)
        self._window = self._outbox.window
        self._requests = Requests(self._instance, self._outbox)
        self._middleware = tuple(self.options.middleware)
        trace = self.options.trace
        self._tracer = Tracer(self._instance, group, "PRODUCE", self.options.trace_topic) if trace else None
        metrics = self.options.metrics
        if metrics is not None:
            metrics.add_producer(self)
        on_send = None if metrics is None else metrics.on_send
        hooks = tuple(filter(None, (self.options.on_send, on_send)))
        if self._tracer is not None or hooks:
            self._outbox.on_begun = SendObserver(self._instance, group, hooks, self._tracer).watch

    async def start(self) -> Self:
        """Connects to a name server. Raises BrokerUnreachable when no name server accepts a connection."""
        await self._use.start()
        self._instance.add_producer(self.group)
        self._instance.on_failure.append(self._on_failure)
        self._outbox.open()
        if self._tracer is not None:
            self._tracer.start()
        return self

    async def close(self) -> None:
        """Waits for the sends in flight (at most the send timeout), then leaves."""
        if not self._outbox.is_open:
            return
        self._instance.check_loop()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.options.timeout_s):
                    await self.flush()
        finally:
            if self._outbox.is_open:  # no other task has closed it meanwhile
                await self._leave()

    async def _leave(self) -> None:
        self._outbox.close()
        self._instance.on_failure.remove(self._on_failure)
        try:
            if self._tracer is not None:
                await self._tracer.close()
        finally:
            await self._use.close_member(producer_group=self.group)

    # Sending

    async def send(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> SendResult:
        """Sends a message and returns its position; waits first while too much is in flight.

        Without `queue` the queues of the topic take turns, and a failed attempt is repeated at another
        broker. With `queue` it is repeated at the same queue after a pause. A repetition or a timeout may
        leave duplicates.

        Raises:  MessageIllegal (too large, bad names), NoRoute, BrokerUnreachable, RequestTimeout, or the
                 RequestRejected class of the broker's last answer.
        """
        if self._middleware:
            return (await self._send_through([message], queue, timeout_s))[0]
        if self._outbox.prepare is not None:
            message = self._outbox.prepare(message)
        room = room_of(message)
        if not self._window.try_take(room):
            await self._window.take(room)
        return await self._outbox.start(message, queue, timeout_s, room)

    async def start_send(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> asyncio.Future[SendResult]:
        """Sends as `send`, but returns as soon as the message is on its way; the future has the result. With
        middleware it returns when the result is there.
        """
        if self._middleware:
            (result,) = await self._send_through([message], queue, timeout_s)
            return _ended(result)
        if self._outbox.prepare is not None:
            message = self._outbox.prepare(message)
        room = room_of(message)
        if not self._window.try_take(room):
            await self._window.take(room)
        return self._outbox.start(message, queue, timeout_s, room)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> list[SendResult]:
        """Sends all messages in one request to one queue; all or none are stored. Returns one result per
        message.

        Raises:  MessageIllegal when the list is empty, mixes topics or wait policies, holds delayed messages
                 or messages with a priority, or is larger than one message may be; else as `send`.
        """
        return await (await self.start_batch(messages, queue=queue, timeout_s=timeout_s))

    async def start_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> asyncio.Future[list[SendResult]]:
        """Sends as `send_batch`, but returns as soon as the batch is on its way; the future has the results.

        A list of one message is sent as a plain message, so it may be delayed or large. With middleware the
        call returns when the results are there.
        """
        if self._middleware:
            return _ended(await self._send_through(messages, queue, timeout_s))
        return await self._outbox.start_batch(messages, queue, timeout_s)

    async def send_many(
        self,
        messages: Iterable[Message],
        *,
        on_result: OnResult | None = None,
        stop_on_error: bool = True,
        batches_in_flight_max: int = 16,
    ) -> SendSummary:
        """Sends all messages in batches, several batches at a time; calls `on_result(message, outcome)` for
        each message, in the order of sending.

        The fast way for hundreds of thousands of messages. Delayed and large messages, and those with a
        priority, are sent alone. With `stop_on_error` the first failure stops the sending; the error is
        raised after the batches in flight have ended.
        """
        return await send_chunks(
            cut_messages(messages, self.options),
            self.start_batch,
            on_result=on_result,
            stop_on_error=stop_on_error,
            in_flight_max=batches_in_flight_max,
        )

    async def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Sends without an answer: returns once the bytes are queued for the socket; the message may be
        lost.
        """
        view = await self._publish_view(message.topic)
        await self._outbox.send_oneway(message, queue, view)

    async def send_system(
        self,
        message: Message,
        system: Mapping[str, str],
        *,
        sys_flag: int = 0,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Sends as `send`, with properties that only the system may set; always in a separate request."""
        return await (await self._outbox.start_system(message, system, sys_flag, timeout_s))

    async def request(
        self,
        message: Message,
        timeout_s: float = 3.0,
        *,
        on_stored: Callable[[SendResult], object] | None = None,
    ) -> ReceivedMessage:
        """Sends a request and returns the consumer's reply (`Consumer.reply`, or RocketMQ's clients).
        `on_stored` is called once the request is stored.

        Raises:  RequestTimeout when no reply came in time; the errors of `send` when the request was not
                 stored.
        """
        view = await self._publish_view(message.topic)
        return await self._requests.ask(message, view, timeout_s, on_stored)

    async def reply(
        self,
        request: ReceivedMessage,
        body: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Answers a request that a consumer received; returns once the requester has received the reply.

        Raises:  MessageIllegal when the message is not a request; RequestRejected when the requester no
                 longer waits.
        """
        self._outbox.check_open()
        await send_reply(
            self._instance,
            self.group,
            request,
            body,
            properties=properties,
            timeout_s=self.options.timeout_s if timeout_s is None else timeout_s,
        )

    async def recall(self, topic: str, recall_handle: str) -> str:
        """Recalls a timed message before its delivery time; the handle is that of its SendResult.

        Returns the unique key of the message.
        Raises:  ClientError for an invalid handle, NoRoute; RequestRejected when it is too late, or recalls
                 are off (recallMessageEnable).
        """
        self._outbox.check_open()
        await self._publish_view(topic)
        remoting, wrapped = self._instance.remoting, self._namespace.wrap(topic)
        return await self._instance.call_master(
            wrapped,
            broker_of_handle(recall_handle),
            lambda address, remaining_s: broker_send.recall.within(
                remaining_s, remoting, address, wrapped, recall_handle
            ),
            timeout_s=self.options.timeout_s,
        )

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Returns the queues of a topic that accept messages now. Raises NoRoute."""
        found = (await self._publish_view(topic)).publish_queues
        return tuple(map(self._namespace.unwrap_queue, found))

    async def queue_for(self, topic: str, key: str) -> MessageQueue:
        """Returns the queue for messages with this key, so that they stay in order among themselves."""
        return queue_by_key(await self.queues(topic), java_hash(key))

    async def flush(self, timeout_s: float | None = None) -> None:
        """Waits until every started send has its result, at most `timeout_s`.

        Raises:  RequestTimeout when sends are still in flight then; they are not cancelled.
        """
        timeout_s = None if timeout_s is None else to_timeout(timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                await self._outbox.flush()
        except TimeoutError:
            raise RequestTimeout(
                f"{self.in_flight} sends are still in flight after {timeout_s:g} s"
            ) from None

    @property
    def in_flight(self) -> int:
        """The number of messages without a result yet; a batch of `send_batch` counts once."""
        return self._window.count

    @property
    def retried_count(self) -> int:
        """The number of requests that were sent again, or to another broker."""
        return self._outbox.sender.retried_count

    # Inside

    async def _send_through(
        self, messages: Sequence[Message], queue: MessageQueue | None, timeout_s: float | None
    ) -> list[SendResult]:
        """Sends the messages in one request through the middleware; returns one result per message.

        Raises:  what the send or the middleware raises; ClientError for another number of results.
        """

        async def send(messages: Sequence[Message]) -> list[SendResult]:
            return await (await self._outbox.start_batch(messages, queue, timeout_s))

        results = await chained(self._middleware, send)(messages)
        if not isinstance(results, list) or len(results) != len(messages):
            raise ClientError(
                f"middleware must return the results of `call_next`, one per message, not {results!r:.64}"
            )
        return results

    def _on_failure(self, error: BaseException) -> None:
        """Fails the messages that wait for a route or a connection: they would wait for ever."""
        self._outbox.sender.abandon(ClientError(f"the client has failed: {error!r}"))

    async def _publish_view(self, topic: str) -> RouteView:
        self._outbox.check_open()
        return await self._instance.routes.publishable(
            self._namespace.wrap(topic),
            template_topic=self.options.default_topic,
            template_queue_count=self.options.default_topic_queue_count,
        )


def _ended(result: T) -> asyncio.Future[T]:
    """Returns a future that has the result already."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    future.set_result(result)
    return future


# Many messages at once: they are cut into batches, which is pure, and several batches are in flight.
#
# The cutting keeps the order inside one topic, but batches use the queues in turn and may overtake each
# other.

ITEM_OVERHEAD_BYTES = 160
"""The bytes counted per message in addition to its body when a batch is cut: lengths, keys and usual
properties.
"""


@dataclass(slots=True)
class SendSummary:
    """The outcome of sending many messages."""

    counts: dict[SendStatus, int] = field(default_factory=dict)
    failed_count: int = 0
    first_error: TandemError | None = None

    @property
    def stored_count(self) -> int:
        """The number of messages with any of the four statuses: the master has stored them."""
        return sum(self.counts.values())

    @property
    def ok_count(self) -> int:
        """The number of messages stored with every guarantee of the broker."""
        return self.counts.get(SendStatus.SEND_OK, 0)

    def note(
        self, messages: Sequence[Message], outcomes: Sequence[Outcome], on_result: OnResult | None
    ) -> None:
        """Counts one batch and calls `on_result` for each message."""
        counts = self.counts
        for message, outcome in zip(messages, outcomes, strict=True):
            if isinstance(outcome, TandemError):
                self.failed_count += 1
                self.first_error = self.first_error or outcome
            else:
                counts[outcome.status] = counts.get(outcome.status, 0) + 1
            if on_result is not None:
                on_result(message, outcome)

    def must_stop(self, *, stop_on_error: bool) -> bool:
        """Returns True if a failure ends the sending."""
        return stop_on_error and self.first_error is not None

    def result(self, *, stop_on_error: bool) -> SendSummary:
        """Returns itself; with `stop_on_error` raises the first error."""
        if stop_on_error and self.first_error is not None:
            raise self.first_error
        return self


def cut_messages(messages: Iterable[Message], options: ProducerOptions) -> Iterator[list[Message]]:
    """Cuts many messages into the lists that are sent together, with values encoded: their sizes count."""
    if options.serializer is not None:
        messages = map(partial(_with_body_if_possible, serializer=options.serializer), messages)
    return chunk_messages(
        messages,
        count_max=options.batch_count_max,
        bytes_max=min(options.batch_bytes_max, options.message_bytes_max),
        travels_alone=partial(must_travel_alone, options=options),
    )


def _with_body_if_possible(message: Message, serializer: Serializer) -> Message:
    """Returns the message with its value as its body; the send refuses a value that cannot be encoded."""
    try:
        return with_body(message, serializer)
    except MessageIllegal:
        return message


def chunk_messages(
    messages: Iterable[Message],
    *,
    count_max: int,
    bytes_max: int,
    travels_alone: Callable[[Message], bool],
) -> Iterator[list[Message]]:
    """Yields lists of messages that can share a batch: same topic, same wait policy, within both bounds.

    Messages of other topics in between do not split a batch. A message that must be sent alone is yielded at
    once, as a list of one.
    """
    open_chunks: dict[tuple[str, bool], tuple[list[Message], int]] = {}
    for message in messages:
        if travels_alone(message):
            yield [message]
            continue
        key = (message.topic, message.wait_stored)
        size = len(message.body) + ITEM_OVERHEAD_BYTES
        chunk, chunk_bytes = open_chunks.get(key) or ([], 0)
        if chunk and chunk_bytes + size > bytes_max:
            yield chunk
            chunk, chunk_bytes = [], 0
        chunk.append(message)
        open_chunks[key] = (chunk, chunk_bytes + size)
        if len(chunk) >= count_max:
            del open_chunks[key]
            yield chunk
    for chunk, _ in open_chunks.values():
        yield chunk


async def send_chunks(
    chunks: Iterable[list[Message]],
    start: Callable[[list[Message]], Awaitable[Results]],
    *,
    on_result: OnResult | None,
    stop_on_error: bool,
    in_flight_max: int,
) -> SendSummary:
    """Sends all chunks by `start`, at most `in_flight_max` at a time; returns the summary.

    Raises:  with `stop_on_error` the first error, once the chunks in flight have their results.
    """
    summary = SendSummary()
    in_flight: deque[tuple[list[Message], Results]] = deque()

    async def settle_oldest() -> None:
        chunk, future = in_flight.popleft()
        outcomes: Sequence[Outcome]
        try:
            outcomes = await future
        except TandemError as error:
            outcomes = [error] * len(chunk)
        summary.note(chunk, outcomes, on_result)

    for chunk in chunks:
        while len(in_flight) >= in_flight_max:
            await settle_oldest()
        if summary.must_stop(stop_on_error=stop_on_error):
            break
        in_flight.append((chunk, await _start_chunk(chunk, start)))
    while in_flight:
        await settle_oldest()
    return summary.result(stop_on_error=stop_on_error)


async def _start_chunk(chunk: list[Message], start: Callable[[list[Message]], Awaitable[Results]]) -> Results:
    """Starts a chunk; returns errors of the messages through the future, too."""
    try:
        return await start(chunk)
    except TandemError as error:
        failed: Results = asyncio.get_running_loop().create_future()
        failed.set_exception(error)
        return failed
