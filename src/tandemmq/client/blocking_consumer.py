"""BlockingConsumer, BlockingPushConsumer, BlockingPopConsumer: for code without an event loop; thin facades
over the classes without `Blocking`.

    with BlockingConsumer("billing", "127.0.0.1:9876") as consumer:
        consumer.subscribe("Orders")
        for message in consumer:
            handle(message.body)

A BlockingConsumer is to be iterated or polled by one thread at a time. Errors and the meaning of every option
are those of the asyncio classes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Protocol, TypeVar

from tandemmq.client.blocking import AsyncClient, Facade, in_loop
from tandemmq.client.consumer.consumer import Consumer, is_behind
from tandemmq.client.consumer.membership import queue_of
from tandemmq.client.consumer.pop import PopConsumer
from tandemmq.client.consumer.push import PushConsumer
from tandemmq.client.consumer.subscription import ALL
from tandemmq.client.consumer.workers import Handler
from tandemmq.client.options import ConsumerOptions, PopOptions, PushOptions, StartFrom
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.message import PoppedMessage, ReceivedMessage

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


class GroupMember(Subscriber, Protocol):
    """What the two kinds can be told that share the queues of their topics."""

    def pause(self, *queues: MessageQueue) -> None: ...

    def resume(self, *queues: MessageQueue) -> None: ...

    async def reply(
        self, request: ReceivedMessage, body: bytes, *, properties: Mapping[str, str] | None = None
    ) -> None: ...

    @property
    def assigned(self) -> tuple[MessageQueue, ...]: ...


S = TypeVar("S", bound=Subscriber)
M = TypeVar("M", bound=GroupMember)


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

    def __init__(self, group: str, namesrv: str, *, options: ConsumerOptions | None = None) -> None:
        self._is_auto_ack = options is None or options.auto_ack
        self._fetched: deque[ReceivedMessage] = deque()
        self._last: ReceivedMessage | None = None
        self._finished: list[ReceivedMessage] = []
        self._acked_at = 0.0
        super().__init__(lambda: Consumer(group, namesrv, options=options))

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
        self._fetched = deque(one for one in self._fetched if queue_of(one) != queue)
        return offset

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
        elif len(self._finished) >= ACK_COUNT or self._monotonic() - self._acked_at >= ACK_EVERY_S:
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
        self, group: str, namesrv: str, handler: Handler, *, options: PushOptions | None = None
    ) -> None:
        super().__init__(lambda: PushConsumer(group, namesrv, handler, options=options))

    def wait_closed(self) -> None:
        """Returns when another thread has closed the consumer. Raises as `PushConsumer.wait_closed`."""
        self._call(self._running.wait_closed())


class BlockingPopConsumer(_BlockingSubscriber[PopConsumer]):
    """See `PopConsumer`; may be used by several threads."""

    def __init__(self, group: str, namesrv: str, *, options: PopOptions | None = None) -> None:
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
