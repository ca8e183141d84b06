"""Producer, consumer and admin client for code without an event loop: thin facades over the asyncio ones.

    with BlockingProducer("orders", "127.0.0.1:9876") as producer:
        producer.send(Message(topic="Orders", body=b"..."))

All facades of a process share one background thread. A facade may be used from several threads, but a
consumer is iterated or polled by one at a time. Results, errors and the meaning of every option are those of
the asyncio clients.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from tandemmq.client.admin import Admin, QueueRange
from tandemmq.client.consumer.consumer import Consumer
from tandemmq.client.consumer.subscription import ALL
from tandemmq.client.loop_thread import LoopThread, acquire_thread, release_thread
from tandemmq.client.options import ClientOptions, ConsumerOptions, ProducerOptions
from tandemmq.client.producer.bulk import OnResult, Outcome, SendSummary, cut_messages
from tandemmq.client.producer.producer import Producer
from tandemmq.client.producer.results import SendResult
from tandemmq.errors import ClientError, TandemError
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.cluster import ClusterInfo
from tandemmq.protocol.bodies.route import TopicRoute
from tandemmq.protocol.bodies.topic import PERMISSION_DEFAULT
from tandemmq.protocol.message import Message, ReceivedMessage
from tandemmq.protocol.record import Record
from tandemmq.units import QueueOffset

ITERATION_POLL = 256
"""Messages that an iterating consumer fetches at a time from its thread."""
ACK_COUNT = 64
ACK_EVERY_S = 0.2
"""What an iteration has finished goes to the thread in groups: a call per message costs more than the
message.
"""


class _AsyncClient(Protocol):
    async def start(self) -> object: ...

    async def close(self) -> None: ...


C = TypeVar("C", bound=_AsyncClient)
T = TypeVar("T")


class _Facade(Generic[C]):
    """Owns one asyncio client, made, used and closed in the shared thread."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._thread: LoopThread | None = None
        self._client: C | None = None

    def start(self) -> Self:
        """Start the client. Raises BrokerUnreachable when no name server takes a connection."""
        if self._client is not None:
            raise ClientError("the client is started already")
        thread = acquire_thread()
        try:
            self._client = thread.call(self._make_started())
        except BaseException:
            release_thread(thread)
            raise
        self._thread = thread
        return self

    def close(self) -> None:
        """Close the client as its asyncio twin does; closing twice does nothing."""
        thread, client = self._thread, self._client
        self._thread = self._client = None
        if thread is None or client is None:
            return
        try:
            if thread.is_usable:
                thread.call(client.close())
        finally:
            release_thread(thread)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _make_started(self) -> C:
        client = self._make()
        try:
            await client.start()
        except BaseException:
            await client.close()
            raise
        return client

    @property
    def _running(self) -> C:
        if self._client is None:
            raise ClientError("the client is not started, or closed")
        return self._client

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._thread is not None
        return self._thread.call(work)


class BlockingProducer(_Facade[Producer]):
    """See `Producer`."""

    def __init__(self, group: str, namesrv: str, *, options: ProducerOptions | None = None) -> None:
        super().__init__(lambda: Producer(group, namesrv, options=options))

    def send(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> SendResult:
        """Where the message was stored."""
        return self._call(self._running.send(message, queue=queue, timeout_s=timeout_s))

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> list[SendResult]:
        """One result per message; one request, all or none."""
        return self._call(self._running.send_batch(messages, queue=queue, timeout_s=timeout_s))

    def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Send without an answer; the message may be lost."""
        self._call(self._running.send_oneway(message, queue=queue))

    def send_many(
        self,
        messages: Iterable[Message],
        *,
        on_result: OnResult | None = None,
        stop_on_error: bool = True,
        batches_in_flight_max: int = 16,
    ) -> SendSummary:
        """Send all messages in batches, many at a time.

        `messages` is iterated, and `on_result(message, outcome)` is called, in the calling thread and in the
        order of sending; reading ahead is bounded by the batches under way. With `stop_on_error` the first
        failure ends it: what is under way is waited for, then the error is raised.
        """
        producer, thread = self._running, self._thread
        assert thread is not None
        summary = SendSummary()
        pending: deque[tuple[list[Message], Future[list[SendResult]]]] = deque()

        def settle_oldest() -> None:
            chunk, future = pending.popleft()
            outcomes: Sequence[Outcome]
            try:
                outcomes = future.result()
            except TandemError as error:
                outcomes = [error] * len(chunk)
            summary.note(chunk, outcomes, on_result)

        for chunk in cut_messages(messages, producer.options):
            while len(pending) >= batches_in_flight_max:
                settle_oldest()
            if summary.must_stop(stop_on_error=stop_on_error):
                break
            pending.append((chunk, thread.submit(producer.send_batch(chunk))))
        while pending:
            settle_oldest()
        return summary.result(stop_on_error=stop_on_error)

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that take messages of a topic now."""
        return self._call(self._running.queues(topic))

    def queue_for(self, topic: str, key: str) -> MessageQueue:
        """The queue for messages that must stay in order among themselves."""
        return self._call(self._running.queue_for(topic, key))

    def flush(self) -> None:
        """Returns when every send that was started has its result."""
        self._call(self._running.flush())


class BlockingConsumer(_Facade[Consumer]):
    """See `Consumer`; subscribe before the start or later.

    Iterating never ends by itself: it waits for the next message. With `auto_ack` a message is finished when
    the loop asks for the next one; leaving the loop by an exception leaves the last message unfinished.
    """

    def __init__(self, group: str, namesrv: str, *, options: ConsumerOptions | None = None) -> None:
        self._subscriptions: dict[str, str] = {}
        self._is_auto_ack = options is None or options.auto_ack
        self._fetched: deque[ReceivedMessage] = deque()
        self._last: ReceivedMessage | None = None
        self._finished: list[ReceivedMessage] = []
        self._acked_at = 0.0
        super().__init__(lambda: self._make_consumer(group, namesrv, options))

    def subscribe(self, topic: str, tags: str = ALL) -> None:
        """All messages of a topic, or those with one of the tags in `TagA || TagB`."""
        self._subscriptions[topic] = tags
        if self._client is not None:
            self._call(_in_loop(self._client.subscribe, topic, tags))

    def unsubscribe(self, topic: str) -> None:
        """Stop taking part in a topic."""
        self._subscriptions.pop(topic, None)
        if self._client is not None:
            self._call(_in_loop(self._client.unsubscribe, topic))

    def poll(self, count_max: int = 256, timeout_s: float = 1.0) -> list[ReceivedMessage]:
        """Up to `count_max` messages; empty when none came within `timeout_s`."""
        return self._call(self._running.poll(count_max, timeout_s))

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return self

    def __next__(self) -> ReceivedMessage:
        """The next message, whenever it comes; ends when the consumer is closed by another thread."""
        if self._last is not None:
            self._finished.append(self._last)
            self._last = None
        if not self._fetched:
            self._flush_acks()
            self._fetched.extend(self._call(self._running.fetch(ITERATION_POLL)))
            if not self._fetched:
                raise StopIteration
        elif len(self._finished) >= ACK_COUNT or time.monotonic() - self._acked_at >= ACK_EVERY_S:
            self._flush_acks()
        message = self._fetched.popleft()
        if self._is_auto_ack:
            self._last = message
        return message

    def close(self) -> None:
        """Commit what is finished and leave the group."""
        self._flush_acks()
        self._last = None
        self._fetched.clear()
        super().close()

    def ack(self, *messages: ReceivedMessage) -> None:
        """These messages are finished."""
        self._call(_in_loop(self._running.ack_all, messages))

    def commit(self) -> bool:
        """Commit now what is finished; False when a broker could not take it."""
        self._flush_acks()
        return self._call(self._running.commit())

    def retry_later(self, message: ReceivedMessage, *, delay_level: int = 0) -> None:
        """Hand a message back for a later delivery."""
        self._call(self._running.retry_later(message, delay_level=delay_level))

    @property
    def assigned(self) -> tuple[MessageQueue, ...]:
        """The queues that this consumer reads now, sorted."""
        return self._call(_in_loop(lambda: self._running.assigned))

    def _flush_acks(self) -> None:
        """Tell the consumer what this thread has finished; before anything else that it is asked."""
        self._acked_at = time.monotonic()
        if self._finished and self._thread is not None and self._client is not None:
            self._thread.call_soon(self._client.ack_all, self._finished)
            self._finished = []

    def _make_consumer(self, group: str, namesrv: str, options: ConsumerOptions | None) -> Consumer:
        consumer = Consumer(group, namesrv, options=options)
        for topic, tags in self._subscriptions.items():
            consumer.subscribe(topic, tags)
        return consumer


class BlockingAdmin(_Facade[Admin]):
    """See `Admin`."""

    def __init__(self, namesrv: str, *, options: ClientOptions | None = None) -> None:
        super().__init__(lambda: Admin(namesrv, options=options))

    def cluster_info(self) -> ClusterInfo:
        """All registered brokers."""
        return self._call(self._running.cluster_info())

    def topics(self) -> list[str]:
        """The names of all topics."""
        return self._call(self._running.topics())

    def topic_route(self, topic: str) -> TopicRoute:
        """Queues and brokers of a topic."""
        return self._call(self._running.topic_route(topic))

    def runtime_info(self, address: str) -> dict[str, str]:
        """The figures of one broker."""
        return self._call(self._running.runtime_info(address))

    def create_topic(
        self,
        topic: str,
        *,
        queue_count: int = 4,
        permission: int = PERMISSION_DEFAULT,
        cluster: str | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        """Create the topic on every master of the cluster; returns when its route is known."""
        self._call(
            self._running.create_topic(
                topic, queue_count=queue_count, permission=permission, cluster=cluster, attributes=attributes
            )
        )

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete the topic on every broker of the cluster."""
        self._call(self._running.delete_topic(topic, cluster=cluster))

    def topic_offsets(self, topic: str) -> dict[MessageQueue, QueueRange]:
        """What each queue of the topic holds."""
        return self._call(self._running.topic_offsets(topic))

    def message_count(self, topic: str) -> int:
        """How many messages the topic holds now."""
        return self._call(self._running.message_count(topic))

    def committed_offsets(self, group: str, topic: str) -> dict[MessageQueue, QueueOffset | None]:
        """Per queue where the group goes on."""
        return self._call(self._running.committed_offsets(group, topic))

    def lag(self, group: str, topic: str) -> int:
        """How many messages of the topic the group has not finished."""
        return self._call(self._running.lag(group, topic))

    def reset_offsets(self, group: str, topic: str, time_ms: int) -> dict[MessageQueue, int]:
        """Let a group go on from a time."""
        return self._call(self._running.reset_offsets(group, topic, time_ms))

    def find_by_key(self, topic: str, key: str, *, count_max: int = 32) -> list[Record]:
        """Messages that carry the key."""
        return self._call(self._running.find_by_key(topic, key, count_max=count_max))

    def find_by_id(self, message_id: str) -> Record | None:
        """The message of a broker's message id."""
        return self._call(self._running.find_by_id(message_id))


async def _in_loop(function: Callable[..., T], *args: Any) -> T:
    """A plain call, made in the loop's thread."""
    return function(*args)
