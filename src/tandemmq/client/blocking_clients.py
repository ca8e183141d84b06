"""Blocking producers, consumers and administration for code without an event loop: thin facades of the
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

Several threads may share a producer or a BlockingAdmin. Only one thread at a time may iterate or poll a
BlockingConsumer. Results, errors and options are those of the asyncio classes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Self, TypeVar, Unpack

from tandemmq.client.admin import Admin
from tandemmq.client.blocking import Facade, blocking, in_loop, in_worker, outcome_of
from tandemmq.client.consumer.consumer import Consumer, is_behind
from tandemmq.client.consumer.membership import GroupConsumer, queue_of
from tandemmq.client.consumer.pop import PopConsumer
from tandemmq.client.consumer.push import H, PushConsumer
from tandemmq.client.consumer.subscription import ALL, Tags
from tandemmq.client.consumer.workers import AnyHandler
from tandemmq.client.instance import Client
from tandemmq.client.options import (
    ClientOptions,
    ConsumerOptions,
    HandlerChanges,
    PopOptions,
    ProducerOptions,
    PushOptions,
    ServerNames,
    StartFrom,
)
from tandemmq.client.producer.producer import OnResult, Outcome, Producer, SendSummary, cut_messages
from tandemmq.client.producer.results import SendResult
from tandemmq.client.producer.transactions import TransactionProducer, TransactionResult, TransactionState
from tandemmq.client.stop_signals import SIGNAL_CHECK_S, on_stop_signal
from tandemmq.errors import ClientError, TandemError
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.message import Message, ReceivedMessage

K = TypeVar("K", bound=Client)


class ClientFacade(Facade[K]):
    """The operations of every blocking client."""

    @property
    def is_connected(self) -> bool:
        """True while a connection to a name server or to a broker is open."""
        client = self._client
        return client is not None and self._call(in_loop(lambda: client.is_connected))

    def ping(self) -> dict[str, float]:
        """Returns the round trip time, in seconds, of a name server and of each known master, by address.
        Raises as `Client.ping` does.
        """
        return self._call(self._running.ping())


class BlockingProducer(ClientFacade[Producer]):
    """The blocking facade of `Producer`."""

    def __init__(self, group: str, namesrv: ServerNames, *, options: ProducerOptions | None = None) -> None:
        super().__init__(lambda: Producer(group, namesrv, options=options))

    send = blocking(Producer.send)
    """Sends a message and returns its position in the topic."""
    send_batch = blocking(Producer.send_batch)
    """Sends the messages in one request, all or none. Returns one result per message."""
    send_oneway = blocking(Producer.send_oneway)
    """Sends without waiting for an answer; the message may be lost."""

    def send_many(
        self,
        messages: Iterable[Message],
        *,
        on_result: OnResult | None = None,
        stop_on_error: bool = True,
        batches_in_flight_max: int = 16,
    ) -> SendSummary:
        """Sends all messages in batches, several batches at a time.

        The calling thread iterates `messages` and calls `on_result(message, outcome)`, in the order of
        sending. `batches_in_flight_max` bounds how far it reads ahead. With `stop_on_error` the first failure
        stops the sending; the error is raised after the batches in flight have ended.
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

    request = blocking(Producer.request)
    """Sends a request and returns the consumer's reply."""
    reply = blocking(Producer.reply)
    """Answers a request that a consumer received."""
    recall = blocking(Producer.recall)
    """Recalls a timed message before its delivery time."""
    queues = blocking(Producer.queues)
    """Returns the queues of a topic that accept messages now."""
    queue_for = blocking(Producer.queue_for)
    """Returns the queue for messages with this key, so that they stay in order among themselves."""
    flush = blocking(Producer.flush)
    """Waits until every started send has its result."""

    @property
    def in_flight(self) -> int:
        """The number of messages without a result yet."""
        return self._call(in_loop(lambda: self._running.in_flight))

    @property
    def retried_count(self) -> int:
        """The number of requests that were sent again, or to another broker."""
        return self._call(in_loop(lambda: self._running.retried_count))


class BlockingTransactionProducer(ClientFacade[TransactionProducer]):
    """The blocking facade of `TransactionProducer`. `check` runs in worker threads, `work` in the calling
    thread.
    """

    def __init__(
        self,
        group: str,
        namesrv: ServerNames,
        *,
        check: Callable[[ReceivedMessage], TransactionState],
        options: ProducerOptions | None = None,
    ) -> None:
        asked = partial(in_worker, check)
        super().__init__(lambda: TransactionProducer(group, namesrv, check=asked, options=options))

    def send(
        self,
        message: Message,
        work: Callable[[Message], TransactionState],
        *,
        timeout_s: float | None = None,
    ) -> TransactionResult:
        """Stores the half message, runs `work(message)` in this thread and reports the outcome to the
        broker.
        """
        sent = self.send_half(message, timeout_s=timeout_s)
        if not sent.is_ok:
            self.end(sent, TransactionState.ROLLBACK)
            return TransactionResult(sent, TransactionState.ROLLBACK)
        try:
            state = work(message)
            if not isinstance(state, TransactionState):
                raise ClientError(f"expected a TransactionState, got {state!r}")
        except BaseException:
            self.end(sent, TransactionState.UNKNOWN)
            raise
        self.end(sent, state)
        return TransactionResult(sent, state)

    send_half = blocking(TransactionProducer.send_half)
    """Stores the half message only; `end` is the second step."""
    end = blocking(TransactionProducer.end)
    """Reports the outcome of the transaction to the broker."""


ITERATION_POLL = 256
"""The number of messages that an iterating consumer fetches from its thread at once."""
ACK_COUNT = 64
ACK_EVERY_S = 0.2
"""Acknowledged messages are passed to the thread in groups: a call per message would cost more than the
message.
"""


S = TypeVar("S", bound=GroupConsumer | PopConsumer)
M = TypeVar("M", bound=GroupConsumer)


class _BlockingSubscriber(ClientFacade[S]):
    """A consumer facade whose subscriptions may be made before or after the start."""

    def __init__(self, make: Callable[[], S]) -> None:
        self._subscriptions: dict[str, tuple[Tags, str | None]] = {}
        self._make_member = make
        super().__init__(self._make_subscribed)

    def subscribe(self, topic: str, tags: Tags = ALL, *, sql: str | None = None) -> None:
        """Subscribes to a topic: all messages, those with one of the tags in `TagA || TagB`, or those
        matching a SQL92 expression.
        """
        self._subscriptions[topic] = (tags, sql)
        if self._client is not None:
            self._call(in_loop(partial(self._client.subscribe, topic, tags, sql=sql)))

    def unsubscribe(self, topic: str) -> None:
        """Ends the subscription to a topic."""
        self._subscriptions.pop(topic, None)
        if self._client is not None:
            self._call(in_loop(self._client.unsubscribe, topic))

    def _make_subscribed(self) -> S:
        member = self._make_member()
        self._subscribe(member)
        return member

    def _subscribe(self, member: S) -> None:
        for topic, (tags, sql) in self._subscriptions.items():
            member.subscribe(topic, tags, sql=sql)


class _BlockingMember(_BlockingSubscriber[M]):
    """A consumer facade with assigned queues."""

    def pause(self, *queues: MessageQueue) -> None:
        """Stops reading these queues, or all queues."""
        self._call(in_loop(self._running.pause, *queues))

    def resume(self, *queues: MessageQueue) -> None:
        """Resumes reading these queues, or all queues."""
        self._call(in_loop(self._running.resume, *queues))

    def ack(self, *messages: ReceivedMessage) -> None:
        """Acknowledges these messages."""
        self._call(in_loop(self._running.ack_all, messages))

    retry_later = blocking(GroupConsumer.retry_later)
    """Sends a message back for a later delivery."""
    dead_letter = blocking(GroupConsumer.dead_letter)
    """Makes a message a dead letter of the group."""
    reply = blocking(GroupConsumer.reply)
    """Answers a message that was sent by `Producer.request`."""
    lag = blocking(GroupConsumer.lag)
    """Returns the lag of each queue that this consumer reads now, in messages and seconds."""

    @property
    def assigned(self) -> tuple[MessageQueue, ...]:
        """The queues that this consumer reads now, sorted."""
        return self._call(in_loop(lambda: self._running.assigned))

    @property
    def positions(self) -> dict[MessageQueue, int]:
        """The offset that a commit would write now, per queue."""
        return self._call(in_loop(lambda: self._running.positions))


class BlockingConsumer(_BlockingMember[Consumer]):
    """The blocking facade of `Consumer`.

    Iterating waits for the next message and never ends by itself. With `auto_ack` a message is acknowledged
    when the loop asks for the next one. If an exception leaves the loop, the last message stays
    unacknowledged.
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
        """Starts the consumer as `Facade.start` does."""
        self._is_closed = False
        return super().start()

    def assign(self, *queues: MessageQueue, tags: str = ALL) -> None:
        """Reads exactly these queues instead of a share of the subscribed topics."""
        self._call(in_loop(partial(self._running.assign, *queues, tags=tags)))

    queues = blocking(Consumer.queues)
    """Returns the queues of a topic that can be read now."""

    def seek(self, queue: MessageQueue, to: int | StartFrom, *, time_ms: int | None = None) -> int:
        """Moves a queue to an offset, to its first or its last message, or to a time; returns the offset."""
        self._flush_acks()
        offset = self._call(self._running.seek(queue, to, time_ms=time_ms))
        moved = self._running.instance.namespace.wrap_queue(queue)
        self._fetched = deque(one for one in self._fetched if queue_of(one) != moved)
        return offset

    poll = blocking(Consumer.poll)
    """Returns up to `count_max` messages; an empty list when none came within `timeout_s`."""

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return self

    def __next__(self) -> ReceivedMessage:
        """Waits for the next message; stops the iteration when another thread closes the consumer."""
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
        fetched = self._fetched  # a close in another thread replaces `self._fetched`
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
        """Commits the acknowledged messages and leaves the group."""
        self._flush_acks()
        self._is_closed = True
        self._last = None
        self._fetched = deque()
        super().close()

    def commit(self) -> bool:
        """Commits the acknowledged messages now; returns False when a broker could not store the commit."""
        self._flush_acks()
        return self._call(self._running.commit())

    @property
    def positions(self) -> dict[MessageQueue, int]:
        """The offset that a commit would write now, per queue."""
        self._flush_acks()
        return super().positions

    def suspend(self, message: ReceivedMessage, *, delay_s: float = 1.0) -> None:
        """Puts a message of an orderly consumer back: its queue pauses for `delay_s` and then resumes with
        this message.
        """
        if self._last is message:
            self._last = None
        self._flush_acks()
        self._fetched = deque(one for one in self._fetched if not is_behind(one, message))
        self._call(self._running.suspend(message, delay_s=delay_s))

    def _flush_acks(self) -> None:
        """Passes the messages that this thread has acknowledged to the consumer; called before any other
        request.
        """
        self._acked_at = self._monotonic()
        if self._finished and self._thread is not None and self._client is not None:
            self._thread.call_soon(self._client.ack_all, self._finished)
            self._finished = []


class BlockingPushConsumer(_BlockingMember[PushConsumer]):
    """The blocking facade of `PushConsumer`; plain handlers run in worker threads, where they may block."""

    def __init__(
        self,
        group: str,
        namesrv: ServerNames,
        handler: AnyHandler | None = None,
        *,
        options: PushOptions | None = None,
    ) -> None:
        self._handlers: dict[str, tuple[AnyHandler, HandlerChanges]] = {}
        super().__init__(lambda: PushConsumer(group, namesrv, handler, options=options))

    def subscriber(
        self, topic: str, tags: Tags = ALL, *, sql: str | None = None, **changes: Unpack[HandlerChanges]
    ) -> Callable[[H], H]:
        """Returns a decorator that subscribes to a topic and makes the function the topic's handler."""

        def add(handler: H) -> H:
            if self._client is not None:
                self._call(in_loop(partial(self._client.add_handler, topic, handler, **changes)))
            elif topic in self._handlers:
                raise ClientError(f"topic {topic!r} already has a handler: a consumer has one for each topic")
            self._handlers[topic] = handler, changes
            self.subscribe(topic, tags, sql=sql)
            return handler

        return add

    def run(self) -> None:
        """Handles messages until the process gets SIGTERM or SIGINT, or another thread closes the consumer;
        then closes it. Starts it before if that has not been done. Raises as `PushConsumer.run`.
        """
        is_stopped = False

        def stop() -> None:
            nonlocal is_stopped
            is_stopped = True
            client, thread = self._client, self._thread
            if client is not None and thread is not None:
                thread.wake(client.stop_soon)

        with on_stop_signal(stop):
            if self._client is None:
                self.start()
            try:
                if not is_stopped and self._thread is not None:
                    stopped = self._thread.submit(self._running.wait_stopped())
                    while not stopped.done():
                        wait([stopped], SIGNAL_CHECK_S)
                    outcome_of(stopped)
            finally:
                self.close()

    def _make_subscribed(self) -> PushConsumer:
        consumer = self._make_member()
        for topic, (handler, changes) in self._handlers.items():
            consumer.add_handler(topic, handler, **changes)
        self._subscribe(consumer)
        return consumer

    @property
    def unfinished_count(self) -> int:
        """The number of received messages that are not acknowledged yet."""
        return self._call(in_loop(lambda: self._running.unfinished_count))

    wait_closed = blocking(PushConsumer.wait_closed)
    """Waits until another thread has closed the consumer. Raises as `PushConsumer.wait_closed` does."""


class BlockingPopConsumer(_BlockingSubscriber[PopConsumer]):
    """The blocking facade of `PopConsumer`; several threads may share it."""

    def __init__(self, group: str, namesrv: ServerNames, *, options: PopOptions | None = None) -> None:
        super().__init__(lambda: PopConsumer(group, namesrv, options=options))

    receive = blocking(PopConsumer.receive)
    """Returns up to `count_max` messages; an empty list when none came within `timeout_s`."""
    wait_for_message = blocking(PopConsumer.wait_for_message)
    """Waits until a broker announces a message, without receiving it; returns False after the timeout."""
    ack = blocking(PopConsumer.ack)
    """Acknowledges these messages."""
    nack = blocking(PopConsumer.nack)
    """Gives these messages back: they are delivered again `delay_s` from now."""
    retry_later = blocking(PopConsumer.retry_later)
    """Gives a message back: it is delivered again `delay_s` from now."""
    dead_letter = blocking(PopConsumer.dead_letter)
    """Makes a message a dead letter of the group."""
    reply = blocking(PopConsumer.reply)
    """Answers a message that was sent by `Producer.request`."""
    change_invisible = blocking(PopConsumer.change_invisible)
    """Keeps the message invisible to other consumers for `invisible_s` from now on."""


class BlockingAdmin(ClientFacade[Admin]):
    """The blocking facade of `Admin`."""

    def __init__(self, namesrv: ServerNames, *, options: ClientOptions | None = None) -> None:
        super().__init__(lambda: Admin(namesrv, options=options))

    cluster_info = blocking(Admin.cluster_info)
    """Returns all registered brokers."""
    topics = blocking(Admin.topics)
    """Returns the names of all topics."""
    topic_route = blocking(Admin.topic_route)
    """Returns the queues and brokers of a topic."""
    runtime_info = blocking(Admin.runtime_info)
    """Returns the statistics of one broker."""
    create_topic = blocking(Admin.create_topic)
    """Creates the topic on every master of the cluster that lacks it; returns True if a master
    lacked it.
    """
    ensure_topic = blocking(Admin.ensure_topic)
    """Ensures that the topic has at least `queue_count` queues; returns True if anything was changed."""
    update_topic = blocking(Admin.update_topic)
    """Changes the given settings of a topic; read queues with unread messages stay, unless `force` is
    set.
    """
    delete_topic = blocking(Admin.delete_topic)
    """Deletes the topic on every broker of the cluster."""
    topic_config = blocking(Admin.topic_config)
    """Returns the settings of a topic at each broker that has it."""
    topic_offsets = blocking(Admin.topic_offsets)
    """Returns the offset range of each queue of the topic."""
    offsets_at = blocking(Admin.offsets_at)
    """Returns, per queue, the offset of the first message stored at or after `time_ms`."""
    message_count = blocking(Admin.message_count)
    """Returns the number of messages in the topic."""
    committed_offsets = blocking(Admin.committed_offsets)
    """Returns the committed offset of the group, per queue."""
    lag = blocking(Admin.lag)
    """Returns the number of messages of the topic that the group has not consumed yet."""
    groups = blocking(Admin.groups)
    """Returns the names of all groups."""
    group_config = blocking(Admin.group_config)
    """Returns the settings of a group at each broker that has it."""
    describe_group = blocking(Admin.describe_group)
    """Returns the members, subscriptions and settings of a group."""
    create_group = blocking(Admin.create_group)
    """Creates the group on every master of the cluster that lacks it; returns True if a master lacked it."""
    update_group = blocking(Admin.update_group)
    """Changes the given settings of a group; other settings are kept."""
    delete_group = blocking(Admin.delete_group)
    """Deletes the group with its offsets on every master of the cluster."""
    set_offset = blocking(Admin.set_offset)
    """Stores the committed offset of one queue. The group must not be running."""
    set_offsets = blocking(Admin.set_offsets)
    """Moves a group to the given offsets; returns the new offset per queue."""
    skip_to_end = blocking(Admin.skip_to_end)
    """Moves a group to the end of each queue of the topic; returns the new offset per queue."""
    reset_offsets = blocking(Admin.reset_offsets)
    """Moves a group to a time; returns the new offset per queue."""
    find_by_key = blocking(Admin.find_by_key)
    """Returns messages that carry the key and were stored between these times."""
    find_by_unique_key = blocking(Admin.find_by_unique_key)
    """Returns the message with the producer's id; several messages when a send was repeated."""
    find_by_id = blocking(Admin.find_by_id)
    """Returns the message with a broker's message id."""
    users = blocking(Admin.users)
    """Returns the users of each broker, by address."""
    create_user = blocking(Admin.create_user)
    """Creates a user at every broker of the cluster."""
    update_user = blocking(Admin.update_user)
    """Changes the given fields of a user."""
    delete_user = blocking(Admin.delete_user)
    """Deletes a user and its policies."""
    copy_users = blocking(Admin.copy_users)
    """Copies users from one broker to another; returns their names."""
    policies = blocking(Admin.policies)
    """Returns the policies of each broker, by address."""
    set_policy = blocking(Admin.set_policy)
    """Allows or denies a user actions on resources."""
    delete_policies = blocking(Admin.delete_policies)
    """Deletes a user's policies for resources, or all of them."""
    copy_policies = blocking(Admin.copy_policies)
    """Copies policies from one broker to another; returns the subjects."""
    accounts = blocking(Admin.accounts)
    """Returns the accounts of each broker's rule files, by address."""
    set_account = blocking(Admin.set_account)
    """Creates an account, or changes the given fields of one."""
    delete_account = blocking(Admin.delete_account)
    """Deletes an account."""
