"""The clients for code without an event loop, producers, consumers and administration: thin facades over the
asyncio classes.

    with BlockingProducer("orders", "127.0.0.1:9876") as producer:
        producer.send(Message(topic="Orders", body=b"..."))

    with BlockingTransactionProducer("orders", "127.0.0.1:9876", check=was_booked) as producer:
        producer.send(Message(topic="Orders", body=b"..."), book)

    with BlockingConsumer("billing", "127.0.0.1:9876") as consumer:
        consumer.subscribe("Orders")
        for message in consumer:
            handle(message.body)

    with BlockingAdmin("127.0.0.1:9876") as admin:
        admin.create_topic("Orders", queue_count=8)

Producers and BlockingAdmin may be used from several threads; a BlockingConsumer is iterated or polled by one
thread at a time. Results, errors and the meaning of every option are those of the asyncio classes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Protocol, Self, TypeVar

from tandemmq.api.broker_admin import END_OF_TIME_MS
from tandemmq.client.admin import Admin, QueueRange
from tandemmq.client.blocking import AsyncClient, Facade, in_loop, in_worker, outcome_of
from tandemmq.client.consumer.consumer import Consumer, is_behind
from tandemmq.client.consumer.membership import queue_of
from tandemmq.client.consumer.pop import PopConsumer
from tandemmq.client.consumer.push import PushConsumer
from tandemmq.client.consumer.subscription import ALL
from tandemmq.client.consumer.workers import Handler
from tandemmq.client.options import (
    ClientOptions,
    ConsumerOptions,
    PopOptions,
    ProducerOptions,
    PushOptions,
    ServerNames,
    StartFrom,
)
from tandemmq.client.producer.producer import OnResult, Outcome, Producer, SendSummary, cut_messages
from tandemmq.client.producer.results import SendResult
from tandemmq.client.producer.transactions import TransactionProducer, TransactionResult, TransactionState
from tandemmq.errors import ClientError, TandemError
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.route import ClusterInfo, TopicRoute
from tandemmq.protocol.bodies.tables import PERMISSION_DEFAULT
from tandemmq.protocol.message import Message, PoppedMessage, ReceivedMessage
from tandemmq.protocol.record import Record
from tandemmq.units import QueueOffset


class BlockingProducer(Facade[Producer]):
    """See `Producer`."""

    def __init__(self, group: str, namesrv: ServerNames, *, options: ProducerOptions | None = None) -> None:
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
                stored = outcome_of(future)
            except TandemError as error:
                outcomes = [error] * len(chunk)
            else:
                outcomes = stored
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

    def request(self, message: Message, timeout_s: float = 3.0) -> ReceivedMessage:
        """The reply of whoever consumes the message."""
        return self._call(self._running.request(message, timeout_s))

    def reply(
        self, request: ReceivedMessage, body: bytes, *, properties: Mapping[str, str] | None = None
    ) -> None:
        """Answer a request that a consumer received."""
        self._call(self._running.reply(request, body, properties=properties))

    def recall(self, topic: str, recall_handle: str) -> str:
        """Take a timed message back before its time."""
        return self._call(self._running.recall(topic, recall_handle))

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that take messages of a topic now."""
        return self._call(self._running.queues(topic))

    def queue_for(self, topic: str, key: str) -> MessageQueue:
        """The queue for messages that must stay in order among themselves."""
        return self._call(self._running.queue_for(topic, key))

    def flush(self) -> None:
        """Returns when every send that was started has its result."""
        self._call(self._running.flush())


class BlockingTransactionProducer(Facade[TransactionProducer]):
    """See `TransactionProducer`. `check` runs in threads of its own, `work` in the calling thread."""

    def __init__(
        self,
        group: str,
        namesrv: ServerNames,
        *,
        check: Callable[[ReceivedMessage], TransactionState],
        options: ProducerOptions | None = None,
    ) -> None:
        async def check_in_thread(message: ReceivedMessage) -> TransactionState:
            return await in_worker(check, message)

        super().__init__(lambda: TransactionProducer(group, namesrv, check=check_in_thread, options=options))

    def send(
        self,
        message: Message,
        work: Callable[[Message], TransactionState],
        *,
        timeout_s: float | None = None,
    ) -> TransactionResult:
        """Store the half message, run `work(message)` here, tell the broker."""
        sent = self.send_half(message, timeout_s=timeout_s)
        if not sent.is_ok:
            self.end(sent, TransactionState.ROLLBACK)
            return TransactionResult(sent, TransactionState.ROLLBACK)
        try:
            state = work(message)
            if not isinstance(state, TransactionState):
                raise ClientError(f"a TransactionState is needed, not {state!r}")
        except BaseException:
            self.end(sent, TransactionState.UNKNOWN)
            raise
        self.end(sent, state)
        return TransactionResult(sent, state)

    def send_half(self, message: Message, *, timeout_s: float | None = None) -> SendResult:
        """Only the first step; `end` is the second."""
        return self._call(self._running.send_half(message, timeout_s=timeout_s))

    def end(self, sent: SendResult, state: TransactionState) -> None:
        """Tell the broker how the transaction ended."""
        self._call(self._running.end(sent, state))


ITERATION_POLL = 256
"""Messages that an iterating consumer fetches at a time from its thread."""
ACK_COUNT = 64
ACK_EVERY_S = 0.2
"""What an iteration has finished goes to the thread in groups: a call per message costs more than the
message.
"""


class Subscriber(AsyncClient, Protocol):
    """What every kind of consumer can be told."""

    def subscribe(self, topic: str, tags: str = ALL, *, sql: str | None = None) -> None: ...

    def unsubscribe(self, topic: str) -> None: ...


class AsyncGroupMember(Subscriber, Protocol):
    """What the two kinds can be told that share the queues of their topics."""

    def pause(self, *queues: MessageQueue) -> None: ...

    def resume(self, *queues: MessageQueue) -> None: ...

    async def reply(
        self, request: ReceivedMessage, body: bytes, *, properties: Mapping[str, str] | None = None
    ) -> None: ...

    @property
    def assigned(self) -> tuple[MessageQueue, ...]: ...


S = TypeVar("S", bound=Subscriber)
M = TypeVar("M", bound=AsyncGroupMember)


class _BlockingSubscriber(Facade[S]):
    """Subscribe before the start or later."""

    def __init__(self, make: Callable[[], S]) -> None:
        self._subscriptions: dict[str, tuple[str, str | None]] = {}
        self._make_member = make
        super().__init__(self._make_subscribed)

    def subscribe(self, topic: str, tags: str = ALL, *, sql: str | None = None) -> None:
        """All messages of a topic, those with one of the tags in `TagA || TagB`, or those that a SQL92
        expression takes.
        """
        self._subscriptions[topic] = (tags, sql)
        if self._client is not None:
            self._call(in_loop(partial(self._client.subscribe, topic, tags, sql=sql)))

    def unsubscribe(self, topic: str) -> None:
        """Stop taking part in a topic."""
        self._subscriptions.pop(topic, None)
        if self._client is not None:
            self._call(in_loop(self._client.unsubscribe, topic))

    def _make_subscribed(self) -> S:
        member = self._make_member()
        for topic, (tags, sql) in self._subscriptions.items():
            member.subscribe(topic, tags, sql=sql)
        return member


class _BlockingMember(_BlockingSubscriber[M]):
    """Has queues of its own."""

    def pause(self, *queues: MessageQueue) -> None:
        """Read no more of these queues, or of all."""
        self._call(in_loop(self._running.pause, *queues))

    def resume(self, *queues: MessageQueue) -> None:
        """Read on."""
        self._call(in_loop(self._running.resume, *queues))

    def reply(
        self, request: ReceivedMessage, body: bytes, *, properties: Mapping[str, str] | None = None
    ) -> None:
        """Answer a message that was sent by `Producer.request`."""
        self._call(self._running.reply(request, body, properties=properties))

    @property
    def assigned(self) -> tuple[MessageQueue, ...]:
        """The queues that this consumer reads now, sorted."""
        return self._call(in_loop(lambda: self._running.assigned))


class BlockingConsumer(_BlockingMember[Consumer]):
    """See `Consumer`.

    Iterating never ends by itself: it waits for the next message. With `auto_ack` a message is finished when
    the loop asks for the next one; leaving the loop by an exception leaves the last message unfinished.
    """

    def __init__(self, group: str, namesrv: ServerNames, *, options: ConsumerOptions | None = None) -> None:
        self._is_auto_ack = options is None or options.auto_ack
        self._fetched: deque[ReceivedMessage] = deque()
        self._last: ReceivedMessage | None = None
        self._finished: list[ReceivedMessage] = []
        self._acked_at = 0.0
        self._is_closed = False
        super().__init__(lambda: Consumer(group, namesrv, options=options))

    def start(self) -> Self:
        """As `Facade.start`."""
        self._is_closed = False
        return super().start()

    def assign(self, *queues: MessageQueue, tags: str = ALL) -> None:
        """Read exactly these queues instead of a share of subscribed topics."""
        self._call(in_loop(partial(self._running.assign, *queues, tags=tags)))

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues of a topic that can be read now."""
        return self._call(self._running.queues(topic))

    def seek(self, queue: MessageQueue, to: int | StartFrom, *, time_ms: int | None = None) -> int:
        """Go on in a queue from an offset, from its first or its last message, or from a time; the offset."""
        self._flush_acks()
        offset = self._call(self._running.seek(queue, to, time_ms=time_ms))
        moved = self._running.instance.namespace.wrap_queue(queue)
        self._fetched = deque(one for one in self._fetched if queue_of(one) != moved)
        return offset

    def poll(self, count_max: int = 256, timeout_s: float = 1.0) -> list[ReceivedMessage]:
        """Up to `count_max` messages; empty when none came within `timeout_s`."""
        return self._call(self._running.poll(count_max, timeout_s))

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return self

    def __next__(self) -> ReceivedMessage:
        """The next message, whenever it comes; ends when the consumer is closed by another thread."""
        try:
            return self._next()
        except ClientError:
            if self._is_closed:
                raise StopIteration from None
            raise

    def _next(self) -> ReceivedMessage:
        if self._last is not None:
            self._finished.append(self._last)
            self._last = None
        fetched = self._fetched  # which a close of another thread replaces
        if not fetched:
            self._flush_acks()
            fetched.extend(self._call(self._running.fetch(ITERATION_POLL)))
            if not fetched:
                raise StopIteration
        elif len(self._finished) >= ACK_COUNT or self._monotonic() - self._acked_at >= ACK_EVERY_S:
            self._flush_acks()
        message = fetched.popleft()
        if self._is_auto_ack:
            self._last = message
        return message

    def close(self) -> None:
        """Commit what is finished and leave the group."""
        self._flush_acks()
        self._is_closed = True
        self._last = None
        self._fetched = deque()
        super().close()

    def ack(self, *messages: ReceivedMessage) -> None:
        """These messages are finished."""
        self._call(in_loop(self._running.ack_all, messages))

    def commit(self) -> bool:
        """Commit now what is finished; False when a broker could not take it."""
        self._flush_acks()
        return self._call(self._running.commit())

    def retry_later(self, message: ReceivedMessage, *, delay_level: int = 0) -> None:
        """Hand a message back for a later delivery."""
        self._call(self._running.retry_later(message, delay_level=delay_level))

    def suspend(self, message: ReceivedMessage, *, delay_s: float = 1.0) -> None:
        """Put a message of an orderly consumer back: its queue rests and begins with it again."""
        if self._last is message:
            self._last = None
        self._flush_acks()
        self._fetched = deque(one for one in self._fetched if not is_behind(one, message))
        self._call(self._running.suspend(message, delay_s=delay_s))

    def _flush_acks(self) -> None:
        """Tell the consumer what this thread has finished; before anything else that it is asked."""
        self._acked_at = self._monotonic()
        if self._finished and self._thread is not None and self._client is not None:
            self._thread.call_soon(self._client.ack_all, self._finished)
            self._finished = []


class BlockingPushConsumer(_BlockingMember[PushConsumer]):
    """See `PushConsumer`; a plain handler runs in threads of its own, where it may block."""

    def __init__(
        self,
        group: str,
        namesrv: ServerNames,
        handler: Handler,
        *,
        options: PushOptions | None = None,
    ) -> None:
        super().__init__(lambda: PushConsumer(group, namesrv, handler, options=options))

    def wait_closed(self) -> None:
        """Returns when another thread has closed the consumer. Raises as `PushConsumer.wait_closed`."""
        self._call(self._running.wait_closed())


class BlockingPopConsumer(_BlockingSubscriber[PopConsumer]):
    """See `PopConsumer`; may be used by several threads."""

    def __init__(self, group: str, namesrv: ServerNames, *, options: PopOptions | None = None) -> None:
        super().__init__(lambda: PopConsumer(group, namesrv, options=options))

    def receive(
        self, count_max: int = 32, *, invisible_s: float | None = None, timeout_s: float = 15.0
    ) -> list[PoppedMessage]:
        """Up to `count_max` messages; empty when none came within `timeout_s`."""
        return self._call(self._running.receive(count_max, invisible_s=invisible_s, timeout_s=timeout_s))

    def ack(self, *messages: PoppedMessage) -> None:
        """These messages are done with."""
        self._call(self._running.ack(*messages))

    def change_invisible(self, message: PoppedMessage, invisible_s: float) -> None:
        """Keep the message for so long from now on."""
        self._call(self._running.change_invisible(message, invisible_s))


class BlockingAdmin(Facade[Admin]):
    """See `Admin`."""

    def __init__(self, namesrv: ServerNames, *, options: ClientOptions | None = None) -> None:
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
        exist_ok: bool = False,
    ) -> bool:
        """Create the topic on every master of the cluster that lacks it; True when there was one."""
        making = self._running.create_topic(
            topic,
            queue_count=queue_count,
            permission=permission,
            cluster=cluster,
            attributes=attributes,
            exist_ok=exist_ok,
        )
        return self._call(making)

    def ensure_topic(
        self,
        topic: str,
        *,
        queue_count: int = 4,
        permission: int = PERMISSION_DEFAULT,
        cluster: str | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> bool:
        """Have the topic with at least so many queues; True when anything was done."""
        making = self._running.ensure_topic(
            topic, queue_count=queue_count, permission=permission, cluster=cluster, attributes=attributes
        )
        return self._call(making)

    def update_topic(
        self,
        topic: str,
        *,
        queue_count: int | None = None,
        permission: int | None = None,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
        force: bool = False,
    ) -> None:
        """Change what is named of a topic; read queues with unread messages stay."""
        changing = self._running.update_topic(
            topic,
            queue_count=queue_count,
            permission=permission,
            attributes=attributes,
            cluster=cluster,
            force=force,
        )
        self._call(changing)

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete the topic on every broker of the cluster."""
        self._call(self._running.delete_topic(topic, cluster=cluster))

    def topic_offsets(self, topic: str) -> dict[MessageQueue, QueueRange]:
        """What each queue of the topic holds."""
        return self._call(self._running.topic_offsets(topic))

    def offsets_at(self, topic: str, time_ms: int) -> dict[MessageQueue, QueueOffset]:
        """Per queue the first message stored at or after a time."""
        return self._call(self._running.offsets_at(topic, time_ms))

    def message_count(self, topic: str) -> int:
        """How many messages the topic holds now."""
        return self._call(self._running.message_count(topic))

    def committed_offsets(self, group: str, topic: str) -> dict[MessageQueue, QueueOffset | None]:
        """Per queue where the group goes on."""
        return self._call(self._running.committed_offsets(group, topic))

    def lag(self, group: str, topic: str) -> int:
        """How many messages of the topic the group has not finished."""
        return self._call(self._running.lag(group, topic))

    def set_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Store where a group that is not running goes on in one queue."""
        self._call(self._running.set_offset(group, queue, offset))

    def reset_offsets(self, group: str, topic: str, time_ms: int) -> dict[MessageQueue, int]:
        """Let a group go on from a time."""
        return self._call(self._running.reset_offsets(group, topic, time_ms))

    def find_by_key(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = 32,
        begin_at_ms: int = 0,
        end_at_ms: int = END_OF_TIME_MS,
    ) -> list[Record]:
        """Messages that carry the key and were stored between these times."""
        found = self._running.find_by_key(
            topic, key, count_max=count_max, begin_at_ms=begin_at_ms, end_at_ms=end_at_ms
        )
        return self._call(found)

    def find_by_unique_key(self, topic: str, unique_key: str) -> list[Record]:
        """The message with the producer's id; several when a send was repeated."""
        return self._call(self._running.find_by_unique_key(topic, unique_key))

    def find_by_id(self, message_id: str) -> Record | None:
        """The message of a broker's message id."""
        return self._call(self._running.find_by_id(message_id))
