"""`KombuSession`: the client of one kombu connection. It sends to topics, and reads queues into a list of
deliveries, from which the connection takes them.

Threads:    kombu is blocking and calls from any thread. Everything here except `ArrivedMessages` runs in the
            event loop of the process' client thread (`client/blocking.py`).
At a bound: a durable queue is popped only while its channel may get messages (`Credit`). A transient queue
            keeps its last `TRANSIENT_MAX` messages.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from tandemmq.client.admin import Admin
from tandemmq.client.consumer.consumer import Consumer
from tandemmq.client.consumer.membership import queue_of
from tandemmq.client.consumer.pop import COUNT_MAX, PopConsumer, longer_pause_s
from tandemmq.client.options import ClientOptions, ConsumerOptions, PopOptions, ProducerOptions, StartFrom
from tandemmq.client.producer.producer import Producer
from tandemmq.errors import (
    BrokerUnreachable,
    GroupNotFound,
    RequestRejected,
    TandemError,
    TopicExists,
    TopicNotFound,
)
from tandemmq.integrations.exchanges import Binding, Names, tag_of, tags_of
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.message import Message, PoppedMessage, ReceivedMessage
from tandemmq.protocol.pop_receipts import FLAG_NORMAL, parse_handle
from tandemmq.runtime.tasks import TaskScope

log = logging.getLogger(__name__)

ROUTING_KEY: Final = "ROUTING_KEY_"
"""The property with the routing key. Names of system properties end otherwise."""
TRANSIENT_MAX: Final = 10_000
POLL_S: Final = 0.01
PAUSE_S: Final = 1.0
"""The pause after a failed read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KombuOptions:
    """The options of a connection.

    visibility_s  the time after which a message that was neither acknowledged nor rejected is delivered again
    queue_count   the queues of each topic that is created; with several, messages overtake each other
    priorities    create topics whose messages have priorities
    """

    client: ClientOptions = field(default_factory=ClientOptions)
    names: Names = field(default_factory=Names)
    visibility_s: float = 3600.0
    queue_count: int = 1
    priorities: bool = False
    timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message that has arrived for a queue. `popped` None: the queue is transient, nothing is
    acknowledged.
    """

    queue: str
    body: bytes
    born_at_ms: int
    is_redelivered: bool = False
    popped: PoppedMessage | None = None

    @classmethod
    def of_popped(cls, queue: str, message: PoppedMessage) -> Delivery:
        """Returns the delivery of a message that a durable queue's group has popped."""
        # Messages that were given back, also uncounted, come from the retry topic; only the handle says so.
        is_redelivered = parse_handle(message.handle).flag != FLAG_NORMAL
        return cls(queue, message.body, message.born_at_ms, is_redelivered, message)


class ArrivedMessages:
    """The deliveries of one connection, for the thread that drains it. `wake_fd` is readable while there are
    some.
    """

    def __init__(self) -> None:
        self._waiting: deque[Delivery] = deque()
        self._condition = threading.Condition()
        self._awake, self._waker = socket.socketpair()  # the pair of every system; Windows polls no pipes
        self._awake.setblocking(False)
        self.wake_fd = self._awake.fileno()
        self._is_closed = False

    def put(self, delivery: Delivery) -> None:
        """Adds a delivery."""
        with self._condition:
            if not self._waiting and not self._is_closed:
                self._waker.send(b"!")
            self._waiting.append(delivery)
            self._condition.notify()

    def take(self, timeout_s: float | None) -> Delivery | None:
        """Returns the oldest delivery; None if there is none within the time, which is unlimited for None."""
        with self._condition:
            self._condition.wait_for(lambda: self._waiting or self._is_closed, timeout_s)
            if self._is_closed:
                raise BrokerUnreachable("the connection is closed")
            delivery = self._waiting.popleft() if self._waiting else None
            if not self._waiting:
                self._sleep()
            return delivery

    def withdraw(self, queue: str) -> list[Delivery]:
        """Takes out and returns the deliveries of a queue."""
        with self._condition:
            found = [one for one in self._waiting if one.queue == queue]
            self._waiting = deque(one for one in self._waiting if one.queue != queue)
            if not self._waiting and not self._is_closed:
                self._sleep()
            return found

    def _sleep(self) -> None:
        """Takes the byte that makes the descriptor readable."""
        with suppress(BlockingIOError):
            self._awake.recv(1)

    def close(self) -> None:
        """Closes the descriptor."""
        with self._condition:
            if not self._is_closed:
                self._is_closed = True
                self._awake.close()
                self._waker.close()
                self._condition.notify_all()


class Credit:
    """The number of messages that a channel may still get, which the readers of its queues share. `free`
    returns it for now; `changed` is set when it may have grown.
    """

    def __init__(self, free: Callable[[], int]) -> None:
        self.free = free
        self.changed = asyncio.Event()
        self.reserved = 0
        """Messages that reads have asked for, or that wait in `ArrivedMessages`."""
        self.reader_count = 0
        self._turn = asyncio.Lock()

    async def reserve(self, count_max: int) -> int:
        """Waits for the turn and until something is free, reserves up to `count_max` and a reader's share of
        it, and returns the number.
        """
        async with self._turn:  # first come, first served
            while (room := self.free() - self.reserved) <= 0:
                self.changed.clear()
                await self.changed.wait()
            count = min(count_max, room, max(1, self.free() // max(1, self.reader_count)))
            self.reserved += count
            return count

    def release(self, count: int) -> None:
        """Returns what was reserved and is not needed."""
        self.reserved -= count
        self.changed.set()


class KombuSession:
    """The client of one connection. Call everything in the loop of the client thread."""

    def __init__(self, name_servers: str, options: KombuOptions) -> None:
        self.options = options
        self.arrivals = ArrivedMessages()
        self._producer = Producer(
            f"{options.names.prefix}-producer",
            name_servers,
            options=ProducerOptions(client=options.client, timeout_s=options.timeout_s),
        )
        self._instance = self._producer.instance
        self._admin = Admin(instance=self._instance)
        self._tasks = TaskScope("kombu", self._on_failure)
        self._readers: dict[str, tuple[asyncio.Task[None], Credit]] = {}
        self._known_topics: set[str] = set()
        self.transient: dict[str, _TransientQueue] = {}
        """The queues that end with the connection, by name."""
        self._transient_reader: Consumer | None = None
        self._next_offsets: dict[MessageQueue, int] = {}
        """The queues that are read for transient queues, and the next message to take from each."""
        self._consumers: dict[str, PopConsumer] = {}

    async def start(self) -> None:
        """Connects. Raises BrokerUnreachable when no name server accepts a connection."""
        await self._producer.start()

    async def close(self) -> None:
        """Ends every read and the connections."""
        try:
            await self._tasks.close()
            for consumer in self._consumers.values():
                await consumer.close()
            if self._transient_reader is not None:
                await self._transient_reader.close()
        finally:
            await self._producer.close()
            self.arrivals.close()

    # Sending

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        routing_key: str,
        delay_ms: int | None = None,
        priority: int | None = None,
    ) -> None:
        """Sends a message to a topic, which is created if it does not exist."""
        await self.ensure_topic(topic)
        tags, properties = tag_of(routing_key), {ROUTING_KEY: routing_key} if routing_key else {}
        message = Message(topic, body, tags=tags, properties=properties, delay_ms=delay_ms, priority=priority)
        await self._producer.send(message)

    async def has_topic(self, topic: str) -> bool:
        """Returns True if the topic exists."""
        if topic in self._known_topics:
            return True
        try:
            await self._admin.topic_route(topic)
        except TopicNotFound:
            return False
        self._known_topics.add(topic)
        return True

    async def ensure_topic(self, topic: str) -> None:
        """Creates the topic if it does not exist."""
        if await self.has_topic(topic):
            return
        kind = {"+message.type": "PRIORITY"} if self.options.priorities else None
        try:
            await self._admin.create_topic(topic, queue_count=self.options.queue_count, attributes=kind)
        except TopicExists:
            pass  # another process was faster
        self._known_topics.add(topic)

    # Queues

    async def bind(self, queue: str, exchange: str, bindings: Collection[Binding]) -> None:
        """Makes the queue get what is sent to the exchange from now on; a durable queue from the end of the
        exchange at its first binding. `bindings` are all of the queue.
        """
        names = self.options.names
        topic = names.exchange_topic(exchange)
        if queue in self.transient:
            self.transient[queue].bindings = list(bindings)
            await self._follow(topic)
            return
        await self.ensure_topic(topic)
        await self._begin_at_end(names.group(queue), topic)
        consumer = self._consumers.get(queue)
        if consumer is not None:
            consumer.subscribe(topic, tags_of(one for one in bindings if one.exchange == exchange))

    async def _begin_at_end(self, group: str, topic: str) -> None:
        # The ends come first: what is sent after another process has bound the queue is not skipped.
        ends = await self._admin.topic_offsets(topic)
        committed = await self._admin.committed_offsets(group, topic)
        for place, one in ends.items():
            if committed.get(place) is None:
                await self._admin.set_offset(group, place, one.max_offset)

    async def read(self, queue: str, bindings: Collection[Binding], credit: Credit) -> None:
        """Reads a queue until `stop_reading`; its messages arrive in `arrivals`."""
        if queue in self.transient:
            self.transient[queue].flow()
            return
        await self.stop_reading(queue)
        consumer = await self._consumer(queue, bindings)
        reader = self._tasks.start(f"read-{queue}", self._read(queue, consumer, bindings, credit))
        self._readers[queue] = reader, credit
        credit.reader_count += 1

    async def take_one(self, queue: str, bindings: Collection[Binding]) -> Delivery | None:
        """Returns one message of a queue; None if there is none now."""
        if queue in self.transient:
            kept = self.transient[queue].kept
            return kept.popleft() if kept else None
        consumer = await self._consumer(queue, bindings)
        while found := await consumer.receive(1, timeout_s=0.0):
            for message in found:
                if self._is_wanted(message, queue, bindings):
                    return Delivery.of_popped(queue, message)
                await consumer.ack(message)
        return None

    async def _consumer(self, queue: str, bindings: Collection[Binding]) -> PopConsumer:
        consumer = self._consumers.get(queue)
        if consumer is not None:
            return consumer
        names = self.options.names
        options = PopOptions(
            client=self.options.client, start_from=StartFrom.FIRST, invisible_s=self.options.visibility_s
        )
        consumer = PopConsumer(names.group(queue), options=options, instance=self._instance)
        await self.ensure_topic(names.queue_topic(queue))
        consumer.subscribe(names.queue_topic(queue))
        for exchange in sorted({one.exchange for one in bindings}):
            tags = tags_of(one for one in bindings if one.exchange == exchange)
            consumer.subscribe(names.exchange_topic(exchange), tags)
        self._consumers[queue] = await consumer.start()
        return consumer

    async def _read(
        self, queue: str, consumer: PopConsumer, bindings: Collection[Binding], credit: Credit
    ) -> None:
        pause_s = 0.0
        while True:
            unwanted: list[PoppedMessage] = []
            try:
                found = await self._receive(consumer, credit)
                if found:
                    pause_s = 0.0
                else:
                    await asyncio.sleep(pause_s)
                    pause_s = longer_pause_s(pause_s) if await consumer.wait_for_message() else 0.0
            except TandemError as error:
                log.warning("queue %s cannot be read now: %s", queue, error)
                await asyncio.sleep(PAUSE_S)
                continue
            for message in found:
                if self._is_wanted(message, queue, bindings):
                    self.arrivals.put(Delivery.of_popped(queue, message))
                else:
                    credit.release(1)
                    unwanted.append(message)
            if unwanted:
                try:
                    await consumer.ack(*unwanted)
                except TandemError as error:  # delivered again after the visibility timeout
                    log.warning("queue %s: messages of other keys stay: %s", queue, error)

    async def _receive(self, consumer: PopConsumer, credit: Credit) -> list[PoppedMessage]:
        """Returns the available messages. An idle queue reserves nothing while it waits: the channel's other
        queues need it.
        """
        count = await credit.reserve(COUNT_MAX)
        found: list[PoppedMessage] = []
        try:
            found = await consumer.receive(count, timeout_s=0.0)
        finally:
            credit.release(count - len(found))
        return found

    def _is_wanted(self, message: PoppedMessage, queue: str, bindings: Collection[Binding]) -> bool:
        names = self.options.names
        if message.topic == names.queue_topic(queue):
            return True
        key = message.properties.get(ROUTING_KEY, "")
        mine = [one for one in bindings if names.exchange_topic(one.exchange) == message.topic]
        return any(one.matches(key) for one in mine)

    async def stop_reading(self, queue: str) -> None:
        """Ends the read of a queue. Its messages that wait in `arrivals` are delivered again at once; a
        transient queue keeps them.
        """
        if queue in self.transient:
            self.transient[queue].stop()
            return
        reader, credit = self._readers.pop(queue, (None, None))
        if reader is not None:
            reader.cancel()
            await asyncio.wait((reader,))
        left = [one.popped for one in self.arrivals.withdraw(queue) if one.popped is not None]
        if credit is not None:
            credit.reader_count -= 1
            credit.release(len(left))
        try:
            await self.give_back(queue, *left)
        except TandemError as error:  # delivered again after the visibility timeout
            log.warning("queue %s: unread messages were not given back: %s", queue, error)

    async def acknowledge(self, queue: str, message: PoppedMessage) -> None:
        """Acknowledges a message of a durable queue."""
        await self._settle(queue, self._consumers[queue].ack(message))

    async def give_back(self, queue: str, *messages: PoppedMessage) -> None:
        """Lets messages of a durable queue be delivered again at once."""
        if messages:
            await self._settle(queue, self._consumers[queue].nack(*messages, counts=False))

    async def _settle(self, queue: str, work: Awaitable[None]) -> None:
        try:
            await work
        except RequestRejected as error:
            if error.code != ResponseCode.NO_MESSAGE:
                raise
            # An error would end the worker.
            log.warning("queue %s: delivered again, as its visibility timeout has passed: %s", queue, error)

    async def count(self, queue: str, bindings: Collection[Binding]) -> int:
        """Returns the number of messages that are not acknowledged, or kept for a transient queue."""
        if queue in self.transient:
            return len(self.transient[queue].kept)
        total = 0
        for topic in self._topics_of(queue, bindings):
            try:
                total += await self._admin.lag(self.options.names.group(queue), topic)
            except GroupNotFound:
                total += await self._admin.message_count(topic)
            except TopicNotFound:
                pass
        return total

    async def purge(self, queue: str, bindings: Collection[Binding]) -> int:
        """Skips the messages of a queue; returns their number."""
        count = await self.count(queue, bindings)
        if queue in self.transient:
            self.transient[queue].kept.clear()
            return count
        group = self.options.names.group(queue)
        for topic in self._topics_of(queue, bindings):
            if not await self.has_topic(topic):
                continue
            try:
                await self._admin.reset_offsets(group, topic, -1)
            except GroupNotFound:  # the queue was never read
                await self._begin_at_end(group, topic)
        return count

    async def delete(self, queue: str) -> None:
        """Deletes a queue; of a durable one the topic and the group."""
        if self.transient.pop(queue, None) is not None:
            self.arrivals.withdraw(queue)
            return
        await self.stop_reading(queue)
        consumer = self._consumers.pop(queue, None)
        if consumer is not None:
            await consumer.close()
        names = self.options.names
        topic = names.queue_topic(queue)
        if await self.has_topic(topic):
            await self._admin.delete_topic(topic)
        self._known_topics.discard(topic)
        await self._admin.delete_group(names.group(queue))

    def _topics_of(self, queue: str, bindings: Collection[Binding]) -> list[str]:
        names = self.options.names
        return [names.queue_topic(queue), *sorted({names.exchange_topic(one.exchange) for one in bindings})]

    # Transient queues

    async def open_transient(self, queue: str) -> None:
        """Begins to keep the messages for a transient queue that are sent from now on."""
        if queue not in self.transient:
            self.transient[queue] = _TransientQueue(queue, self.arrivals)
            await self._follow(self.options.names.exchange_topic(""))

    async def _follow(self, topic: str) -> None:
        """Reads a topic from its end on, for all transient queues."""
        await self.ensure_topic(topic)
        reader = self._transient_reader
        if reader is None:
            options = ConsumerOptions(client=self.options.client, start_from=StartFrom.LAST, auto_ack=True)
            reader = Consumer(self.options.names.transient_group, options=options, instance=self._instance)
            self._transient_reader = reader
            await reader.start()
            self._tasks.start("transient", self._read_transient(reader))
        ends = {place: one.max_offset for place, one in (await self._admin.topic_offsets(topic)).items()}
        new = ends.keys() - self._next_offsets.keys()
        if not new:
            return
        self._next_offsets |= {place: ends[place] for place in new}
        reader.assign(*self._next_offsets)
        while not new <= set(reader.assigned):  # noqa: ASYNC110  # the assignment has no event
            await asyncio.sleep(POLL_S)
        for place in new:
            # The group's offset is that of whichever connection committed last.
            await reader.seek(place, self._next_offsets[place])

    async def _read_transient(self, reader: Consumer) -> None:
        while True:
            try:
                found = await reader.poll() if self._next_offsets else []
            except TandemError as error:
                log.warning("transient queues cannot be read now: %s", error)
                found = []
            if not found:
                await asyncio.sleep(POLL_S)
            for message in found:
                place = queue_of(message)
                if message.queue_offset >= self._next_offsets.get(place, 0):
                    self._next_offsets[place] = message.queue_offset + 1
                    self._deal(message)

    def _deal(self, message: ReceivedMessage) -> None:
        key, names = message.properties.get(ROUTING_KEY, ""), self.options.names
        is_default = message.topic == names.exchange_topic("")
        for queue in list(self.transient.values()):
            mine = (one for one in queue.bindings if names.exchange_topic(one.exchange) == message.topic)
            if (is_default and key == queue.name) or any(one.matches(key) for one in mine):
                queue.put(Delivery(queue.name, message.body, message.born_at_ms))

    def _on_failure(self, name: str, error: BaseException) -> None:
        log.error("the connection has failed: %s", name, exc_info=error)


class _TransientQueue:
    """The messages of one transient queue: passed on while it is read, else kept."""

    def __init__(self, name: str, arrivals: ArrivedMessages) -> None:
        self.name = name
        self.bindings: list[Binding] = []
        self.kept: deque[Delivery] = deque(maxlen=TRANSIENT_MAX)
        self._arrivals = arrivals
        self._is_read = False

    def put(self, delivery: Delivery) -> None:
        if self._is_read:
            self._arrivals.put(delivery)
        else:
            self.kept.append(delivery)

    def flow(self) -> None:
        self._is_read = True
        while self.kept:
            self._arrivals.put(self.kept.popleft())

    def stop(self) -> None:
        self._is_read = False
        self.kept.extendleft(reversed(self._arrivals.withdraw(self.name)))
