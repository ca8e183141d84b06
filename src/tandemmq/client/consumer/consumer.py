"""Consumer: shares the queues of its topics with its group and hands out messages, each at least once.

    async with Consumer("billing", "127.0.0.1:9876") as consumer:
        consumer.subscribe("Orders", "paid || refunded")
        async for message in consumer:
            handle(message.body)

When is a message finished? With `auto_ack` (the default) a message is finished when the application asks for
the next one, and what a `poll` returned is finished at the next `poll`; leaving the loop by an exception
leaves the last message unfinished. Without `auto_ack` it is finished by `ack`, in any order. Offsets are
committed up to the lowest unfinished message: every 5 s, when queues change hands, and at close. After a
crash, and when queues change hands, messages may come again.

With `orderly` the next message of a queue comes when the one before is finished, and no other member works on
the queue meanwhile; what fails is put back with `suspend`, and its queue waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tandemmq.api import broker_send
from tandemmq.client.consumer.assignment import Assignment
from tandemmq.client.consumer.broker_requests import BrokerRequests
from tandemmq.client.consumer.filter_check import check_filters
from tandemmq.client.consumer.hand_back import hand_back
from tandemmq.client.consumer.inbox import Delivery, Inbox
from tandemmq.client.consumer.offsets import BrokerOffsets, LocalOffsets, OffsetStore
from tandemmq.client.consumer.queue_reader import ReaderSeams
from tandemmq.client.consumer.subscription import ALL, parse_sql, parse_subscription
from tandemmq.client.faulty_peers import FaultyPeers
from tandemmq.client.instance import ClientInstance
from tandemmq.client.options import ConsumerOptions, MessageModel
from tandemmq.client.producer.replies import send_reply
from tandemmq.errors import BadRequest, ClientError, TandemError
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.heartbeat import ConsumeFromWhere, ConsumerData, ConsumeType
from tandemmq.protocol.command import Command
from tandemmq.protocol.message import ReceivedMessage
from tandemmq.protocol.topic_names import check_group, check_topic, retry_topic
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.ports import Disk
from tandemmq.runtime.tasks import TaskScope

LOCAL_OFFSETS_DIR = "~/.rocketmq_offsets"
YIELD_EVERY = 256
"""Messages that an iteration hands out before it lets the loop turn: heartbeats and pulls must go on."""


class Consumer:
    """One member of a consumer group; used from one event loop."""

    def __init__(
        self,
        group: str,
        namesrv: str = "",
        *,
        options: ConsumerOptions | None = None,
        instance: ClientInstance | None = None,
        disk: Disk | None = None,
    ) -> None:
        """`instance`: share the connections of another client, which then is not closed by this consumer."""
        check_group(group)
        self.group = group
        self.options = options or ConsumerOptions()
        self._owns_instance = instance is None
        self._instance = instance or ClientInstance(namesrv, self.options.client)
        self._disk = disk
        self._tasks = TaskScope(f"consumer-{group}", self._on_failure)
        self._inbox = Inbox(self.options.cached_bytes_max)
        self._faulty = FaultyPeers()
        self._seams = ReaderSeams(
            instance=self._instance,
            group=group,
            options=self.options,
            inbox=self._inbox,
            faulty=self._faulty,
        )
        self._assignment = Assignment(self._seams, self._make_offsets, self._tasks)
        self._requests = BrokerRequests(
            self._assignment,
            name_servers=";".join(self._instance.name_servers.addresses),
            started_at_ms=self._instance.clock.now_ms(),
            is_orderly=self.options.orderly,
        )
        self._handed_out: list[Delivery] = []
        self._since_yield = 0
        self._failure: BaseException | None = None
        self._is_started = False
        self._end_route_watch: Callable[[], None] | None = None

    # Life

    def subscribe(self, topic: str, tags: str = ALL, *, sql: str | None = None) -> None:
        """Take part in a topic: all messages, those with one of the tags in `TagA || TagB`, or those that a
        SQL92 expression over their properties takes (`sql="price > 100 AND region = 'EU'"`).

        May be called before the start, later to add a topic, and again to change its tags. A topic that does
        not exist yet is taken up when it appears.

        Raises:  BadRequest for a name that no broker would take, an expression without a tag or one that is
                 no SQL92, or both kinds.
        """
        check_topic(topic)
        version = self._instance.clock.now_ms()
        if sql is None:
            subscription = parse_subscription(topic, tags, version)
        elif tags != ALL:
            raise BadRequest(f"topic {topic!r}: give tags or sql, not both; TAGS is a property for sql")
        else:
            subscription = parse_sql(topic, sql, version)
        self._assignment.subscribe(subscription)
        self._instance.beat_soon()

    def unsubscribe(self, topic: str) -> None:
        """Stop taking part in a topic; its queues go to the other members."""
        self._assignment.unsubscribe(topic)
        self._instance.beat_soon()

    async def start(self) -> Self:
        """Join the group and take over its queues as far as they can be reached now.

        Raises:  BrokerUnreachable when no name server takes a connection; RequestRejected when a broker
                 does not serve a SQL92 subscription. Then the consumer is closed again.
        """
        if self._owns_instance:
            await self._instance.start()
        if self.options.model is MessageModel.CLUSTERING:
            version = self._instance.clock.now_ms()
            self._assignment.subscribe(parse_subscription(retry_topic(self.group), ALL, version))
        self._instance.add_consumer(self)
        self._end_route_watch = self._instance.routes.watch(lambda _: self._assignment.rebalance_soon())
        self._instance.on_failure.append(self._on_client_failure)
        self._is_started = True
        try:
            await self._join()
        except BaseException:
            await self.close()
            raise
        return self

    async def _join(self) -> None:
        await self._assignment.load_routes()
        await check_filters(self._instance, self.group, self._assignment.subscriptions)
        await self._instance.beat()
        await self._assignment.rebalance()
        self._tasks.start("rebalance", self._assignment.run())
        self._tasks.start("commit", self._assignment.run_commits())
        if self.options.orderly:
            self._tasks.start("locks", self._assignment.run_locks())

    async def close(self) -> None:
        """Stop reading, commit, leave the group. What was handed out and is not finished comes again."""
        if not self._is_started:
            return
        self._is_started = False
        if self._end_route_watch is not None:
            self._end_route_watch()
        self._inbox.close()
        # First the tasks: a rebalance under way must not take a queue over after the last commit.
        await self._tasks.close()
        await self._assignment.close()
        await self._instance.leave(consumer_group=self.group)
        self._instance.on_failure.remove(self._on_client_failure)
        if self._owns_instance:
            await self._instance.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Reading

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """The next message, whenever it comes; ends when the consumer is closed."""
        self._finish_handed_out()
        self._since_yield += 1
        if self._since_yield >= YIELD_EVERY:
            self._since_yield = 0
            await self._instance.clock.sleep(0)
        while True:
            self._check_alive()
            delivery = self._inbox.take()
            if delivery is not None:
                break
            if self._inbox.is_closed:
                raise StopAsyncIteration
            self._since_yield = 0
            await self._inbox.wait()
        if self.options.auto_ack:
            self._handed_out.append(delivery)
        return delivery.message

    async def poll(self, count_max: int = 256, timeout_s: float = 1.0) -> list[ReceivedMessage]:
        """Up to `count_max` messages; waits for the first one at most `timeout_s`, then gives what is there.

        Empty when none came in time, or the consumer is closed.
        """
        self._finish_handed_out()
        # Also when messages are there: a caller that only polls must let the pulls go on.
        await self._instance.clock.sleep(0)
        self._check_alive()
        if not len(self._inbox) and timeout_s > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._inbox.wait()
        deliveries = self._take(count_max)
        if self.options.auto_ack:
            self._handed_out = deliveries
        return [delivery.message for delivery in deliveries]

    async def fetch(self, count_max: int) -> list[ReceivedMessage]:
        """At least one message, whenever it comes, and what else is there; only `ack` finishes them.

        Empty when the consumer is closed.
        """
        self._finish_handed_out()
        await self._inbox.wait()
        return [delivery.message for delivery in self._take(count_max)]

    def ack(self, *messages: ReceivedMessage) -> None:
        """These messages are finished and will not come again once the next commit is done.

        A message whose queue has gone to another member is passed over: that member gets it again.
        """
        self.ack_all(messages)

    def ack_all(self, messages: Iterable[ReceivedMessage]) -> None:
        """As `ack`."""
        readers = self._assignment.readers
        for message in messages:
            reader = readers.get(queue_of(message))
            if reader is not None:
                reader.finish(message)

    async def commit(self) -> bool:
        """Commit now what is finished; False when a broker could not take it (the next commit makes up for
        it).
        """
        return await self._assignment.commit()

    async def retry_later(self, message: ReceivedMessage, *, delay_level: int = 0) -> None:
        """Hand a message back: the broker delivers it again after a delay, and the message here is finished.

        `delay_level` 0 lets the broker choose: 10 s at first, longer each time; after the group's limit (16)
        the message goes to the dead letters of the group. A negative level sends it there at once.

        When the broker has something else at the message's place in its log by now, the message itself is
        sent to the group's retry topic.

        Raises:  the error of the call; the message is then not finished.
        """
        await hand_back(
            self._instance,
            self.group,
            message,
            delay_level=delay_level,
            retry_count_max=self.options.retry_count_max,
        )
        self.ack(message)

    async def suspend(self, message: ReceivedMessage, *, delay_s: float = 1.0) -> None:
        """Put a message of an orderly consumer back: its queue rests for the delay and then begins with it
        again. What was handed out behind it of the same queue is put back too.

        `message.retry_count` counts. After `orderly_retry_count_max` times the message goes to the dead
        letters of the group instead and its queue goes on; when it cannot be sent there it is put back. A
        message whose queue has gone to another member is passed over.

        Raises:  ClientError when the consumer is not orderly.
        """
        if not self.options.orderly:
            raise ClientError("only an orderly consumer suspends; others hand a message back by retry_later")
        self._handed_out = [one for one in self._handed_out if not is_behind(one.message, message)]
        count_max = self.options.orderly_retry_count_max
        if 0 <= count_max <= message.retry_count:
            with suppress(TandemError):
                await self.retry_later(message, delay_level=-1)
                return
        reader = self._assignment.readers.get(queue_of(message))
        if reader is not None and reader.gate is not None:
            reader.gate.put_back(message.queue_offset, delay_s)

    async def reply(
        self,
        request: ReceivedMessage,
        body: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        timeout_s: float = broker_send.SEND_TIMEOUT_S,
    ) -> None:
        """Answer a message that was sent by `Producer.request`; returns when the requester has the reply.

        Raises:  MessageIllegal when the message is not a request; RequestRejected when nobody waits for it.
        """
        await send_reply(
            self._instance, self.group, request, body, properties=properties, timeout_s=timeout_s
        )

    @property
    def assigned(self) -> tuple[MessageQueue, ...]:
        """The queues that this consumer reads now, sorted."""
        return tuple(sorted(self._assignment.readers))

    @property
    def positions(self) -> dict[MessageQueue, int]:
        """Per queue the offset that a commit would write now."""
        return {queue: reader.committed_offset for queue, reader in self._assignment.readers.items()}

    # What the instance asks

    def describe(self) -> ConsumerData:
        """This consumer in a heartbeat."""
        return ConsumerData(
            group=self.group,
            consume_type=ConsumeType.PASSIVELY,
            message_model=self.options.model,
            consume_from_where=ConsumeFromWhere(self.options.start_from.value),
            subscriptions=tuple(subscription.describe() for subscription in self._assignment.subscriptions),
        )

    def handle_broker_request(self, command: Command) -> Command | None:
        """An answer to what a broker asked of the group."""
        return self._requests.handle(command)

    # Inside

    def _take(self, count_max: int) -> list[Delivery]:
        self._check_alive()
        deliveries: list[Delivery] = []
        while len(deliveries) < count_max:
            delivery = self._inbox.take()
            if delivery is None:
                break
            deliveries.append(delivery)
        return deliveries

    def _finish_handed_out(self) -> None:
        if self._handed_out:
            for delivery in self._handed_out:
                delivery.source.finish(delivery.message)
            self._handed_out = []

    def _make_offsets(self) -> OffsetStore:
        """Once the client id is known."""
        if self.options.model is MessageModel.CLUSTERING:
            return BrokerOffsets(
                self._instance,
                self.group,
                self._faulty,
                zero_when_none_stored=self.options.zero_when_none_stored,
            )
        directory = Path(self.options.offsets_dir or LOCAL_OFFSETS_DIR).expanduser()
        return LocalOffsets(self._disk or RealDisk(), directory, self._instance.client_id, self.group)

    def _check_alive(self) -> None:
        self._instance.check_alive()
        if self._failure is not None:
            raise ClientError(f"the consumer has failed: {self._failure!r}") from self._failure
        if not self._is_started and not self._inbox.is_closed:
            raise ClientError("the consumer is not started")

    def _on_client_failure(self, error: BaseException) -> None:
        self._on_failure("client", error)

    def _on_failure(self, name: str, error: BaseException) -> None:
        self._failure = error
        self._inbox.close()


def is_behind(message: ReceivedMessage, first: ReceivedMessage) -> bool:
    """Whether `message` is `first` or lies behind it in the same queue."""
    return queue_of(message) == queue_of(first) and message.queue_offset >= first.queue_offset


def queue_of(message: ReceivedMessage) -> MessageQueue:
    """The queue that a message was read from; for a retried one a queue of the retry topic."""
    return MessageQueue(
        topic=message.record.topic, broker_name=message.broker_name, queue_id=message.queue_id
    )
