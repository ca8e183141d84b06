"""Subscribers: each is a member of a consumer group, and hands its messages to the handlers.

Strategy: `max_workers` tasks take messages from one `Consumer`; each message is acknowledged by itself, in
any order. A failed message goes back to its broker, which delivers it again later, or to the dead letters.
At a bound: a consumer stops pulling from a queue with `cached_count_max` unacknowledged messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from faststream._internal.configs import SubscriberSpecificationConfig, SubscriberUsecaseConfig
from faststream._internal.endpoint.subscriber import SubscriberSpecification
from faststream._internal.endpoint.subscriber.mixins import TasksMixin
from faststream._internal.endpoint.utils import process_msg
from faststream.exceptions import SetupError
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import SubscriberSpec

from tandemmq.client.admin import Admin
from tandemmq.client.consumer.consumer import Consumer
from tandemmq.client.consumer.subscription import ALL, Tags
from tandemmq.client.options import ConsumerOptions, StartFrom
from tandemmq.errors import RemoteProtocolError, TandemError
from tandemmq.integrations.faststream.config import RocketMQBrokerConfig, TopicChannel, describe_channel
from tandemmq.integrations.faststream.message import MessageParser, Raw, RocketMQMessage
from tandemmq.integrations.faststream.publisher import ReplyPublisher
from tandemmq.protocol.bodies.client import MessageModel
from tandemmq.protocol.message import ReceivedMessage

if TYPE_CHECKING:
    from faststream._internal.endpoint.publisher import PublisherProto
    from faststream._internal.endpoint.subscriber.call_item import CallsCollection
    from faststream.message import StreamMessage

log = logging.getLogger(__name__)

PAUSE_S = 1.0
"""The pause before a failed message is sent back once more, while no broker accepts it."""
ORDERLY_PAUSE_S = 1.0
"""The pause of an ordered queue after a message failed, if the handler names none."""


@dataclass(kw_only=True)
class RocketMQSubscriberConfig(SubscriberUsecaseConfig):
    """The settings of a subscriber.

    group        the consumer group; empty: the broker's group, `-` and the topic
    tags, sql    the filter, which brokers evaluate
    batch        handlers get lists of at most `max_records` messages
    max_workers  handlers that run at the same time
    orderly      the messages of a queue are handled one after the other, and a failed one is tried again
                 before its queue continues
    start_from   the start in queues that the group has never read
    options      the other options of the consumer
    """

    _: KW_ONLY
    _outer_config: RocketMQBrokerConfig = field(default_factory=RocketMQBrokerConfig)
    topic: str
    group: str = ""
    tags: Tags = ALL
    sql: str | None = None
    batch: bool = False
    max_records: int = 32
    max_workers: int = 1
    orderly: bool | None = None
    start_from: StartFrom | None = None
    options: ConsumerOptions = field(default_factory=lambda: ConsumerOptions(start_from=StartFrom.FIRST))

    def __post_init__(self) -> None:
        for name in ("max_records", "max_workers"):
            if getattr(self, name) < 1:
                raise SetupError(f"{name} = {getattr(self, name)!r}: must be at least 1")
        if self.batch and self.consumer_options.orderly:
            raise SetupError("a batch of an orderly subscriber is not supported: use max_workers")

    @property
    def ack_policy(self) -> AckPolicy:
        """The policy of the subscriber, of its router or broker, or RocketMQ's: retry failed messages."""
        own, outer = self._ack_policy, self._outer_config.ack_policy
        return own or outer or AckPolicy.NACK_ON_ERROR

    @property
    def consumer_options(self) -> ConsumerOptions:
        """The options for `Consumer`."""
        changes: dict[str, Any] = {"orderly": self.orderly, "start_from": self.start_from}
        given = {name: value for name, value in changes.items() if value is not None}
        return replace(self.options, auto_ack=False, **given)


@dataclass(kw_only=True)
class RocketMQSubscriberSpecificationConfig(SubscriberSpecificationConfig):
    """The settings of a subscriber's part of the AsyncAPI document."""

    topic: str


class RocketMQSubscriberSpecification(
    TopicChannel, SubscriberSpecification[RocketMQBrokerConfig, RocketMQSubscriberSpecificationConfig]
):
    """Describes a subscriber in the AsyncAPI document."""

    @property
    def channel_labels(self) -> list[str]:
        """The label of the channel."""
        return [self.topic]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """Returns the description by the name of the channel."""
        payload = resolve_payloads(self.get_payloads())
        return describe_channel(self, SubscriberSpec, self.description, payload)


async def create_missing(consumer: Consumer, topic: str) -> None:
    """Creates the topic if it does not exist: a consumer may find a topic that appears later 30 s late."""
    instance = consumer.instance
    try:
        if not await consumer.queues(topic):
            await Admin(instance=instance).create_topic(instance.namespace.wrap(topic), exist_ok=True)
            await instance.routes.refresh(instance.namespace.wrap(topic))
    except TandemError as error:
        log.warning("topic %s cannot be created: %s; it is read when it appears", topic, error)


class ConsumerAcknowledger:
    """Acknowledges the messages of a consumer; does nothing while there is none."""

    def __init__(self, options: ConsumerOptions) -> None:
        self.consumer: Consumer | None = None
        self._is_orderly = options.orderly
        self._is_broadcasting = options.model is MessageModel.BROADCASTING

    async def ack(self, messages: Iterable[ReceivedMessage]) -> None:
        """Acknowledges the messages; the consumer commits them soon."""
        if self.consumer is not None:
            self.consumer.ack_all(messages)

    async def nack(self, messages: Iterable[ReceivedMessage], delay_s: float | None) -> None:
        """Sends the messages back, or puts them back into their ordered queue."""
        for message in messages:
            if self.consumer is not None and self._is_orderly:
                await self.consumer.suspend(message, delay_s=ORDERLY_PAUSE_S if delay_s is None else delay_s)
            else:
                await self._send_back(message, lambda one: one.retry_later, delay_s=delay_s)

    async def reject(self, messages: Iterable[ReceivedMessage], reason: str) -> None:
        """Sends the messages to the dead letters."""
        for message in messages:
            if reason:
                await self._send_back(message, lambda one: one.dead_letter, reason=reason)
            else:  # the broker itself moves the message: its body does not travel once more
                await self._send_back(message, lambda one: one.retry_later, delay_level=-1)

    async def _send_back(
        self, message: ReceivedMessage, choose: Callable[[Consumer], Callable[..., Any]], **options: Any
    ) -> None:
        """Sends the message back, again until a broker accepts it or the consumer is closed.

        A message that is neither acknowledged nor sent back is delivered again only after its consumer's end.
        """
        while (consumer := self.consumer) is not None:
            if self._is_broadcasting:
                log.warning("message %s failed; a broadcasting group has no retries", message.message_id)
                return consumer.ack_all((message,))
            try:
                await choose(consumer)(message, **options)
                return None
            except TandemError as error:
                if not (error.retriable or error.refresh_route):
                    raise
                log.warning("message %s cannot be sent back now: %s", message.message_id, error)
            await asyncio.sleep(PAUSE_S)


class RocketMQSubscriber(TopicChannel, TasksMixin):
    """A member of a group, which reads one topic."""

    _outer_config: RocketMQBrokerConfig

    def __init__(
        self,
        config: RocketMQSubscriberConfig,
        specification: RocketMQSubscriberSpecification,
        calls: CallsCollection[Raw],
    ) -> None:
        self._acknowledger = ConsumerAcknowledger(config.consumer_options)
        parser = MessageParser(self._acknowledger)
        if config.batch:
            config.parser, config.decoder = parser.parse_batch, parser.decode_batch
        else:
            config.parser, config.decoder = parser.parse_message, parser.decode_message
        super().__init__(config, specification, calls)
        self.config = config

    @property
    def group(self) -> str:
        """The consumer group."""
        return self.config.group or f"{self._outer_config.group}-{self.topic}"

    async def start(self) -> None:
        """Joins the group and begins to handle messages. Raises as `Consumer.start`."""
        await super().start()
        if not self._outer_config.producer.is_in_memory and self._acknowledger.consumer is None:
            await self._join()
        self._post_start()

    async def _join(self) -> None:
        options = self.config.consumer_options
        consumer = Consumer(self.group, options=options, instance=self._outer_config.connected)
        if self._outer_config.create_topics:
            await create_missing(consumer, self.topic)
        consumer.subscribe(self.topic, self.config.tags, sql=self.config.sql)
        self._acknowledger.consumer = await consumer.start()
        if self.calls:
            for _ in range(self.config.max_workers):
                self.add_task(self._handle_messages, (consumer,), restart_on_failure=False)

    async def stop(self) -> None:
        """Waits for running handlers, at most `graceful_timeout`, and leaves the group. Messages without an
        acknowledgement are delivered again.
        """
        task = asyncio.current_task()
        if task in self.tasks:
            self.tasks.remove(task)  # a handler that stops its subscriber is not cancelled: its loop ends
        await super().stop()
        consumer, self._acknowledger.consumer = self._acknowledger.consumer, None
        if consumer is not None:
            await consumer.close()

    async def get_one(self, *, timeout: float = 5.0) -> RocketMQMessage | None:
        """Returns the next message, or batch, of a subscriber without handlers; None when none came in time.
        The application acknowledges it.
        """
        found: Raw | None = None
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                found = await self._fetch(self._handlerless())
        if found is None:
            return None
        parsed: RocketMQMessage | None = await self._parse(found)
        return parsed

    async def __aiter__(self) -> AsyncIterator[RocketMQMessage]:
        """Yields messages as `get_one` returns them, until the subscriber is stopped."""
        consumer = self._handlerless()
        while (found := await self._fetch(consumer)) is not None:
            yield await self._parse(found)

    def _handlerless(self) -> Consumer:
        assert not self.calls, "a subscriber with handlers cannot be read: its handlers get the messages"
        if self._acknowledger.consumer is None:
            raise SetupError("the subscriber is not started: call `await subscriber.start()` first")
        return self._acknowledger.consumer

    async def _fetch(self, consumer: Consumer) -> Raw | None:
        """Waits for the next message or batch; returns None when the subscriber is stopped. A cancelled call
        loses no message.

        Raises:  ClientError when the client has failed.
        """
        while self._acknowledger.consumer is consumer:
            await asyncio.sleep(
                0
            )  # while messages are there, handlers that never wait must not starve the client
            try:
                found = await consumer.fetch(self.config.max_records if self.config.batch else 1)
            except RemoteProtocolError as error:
                log.warning("messages of topic %s cannot be read: %s", self.topic, error)
                continue
            if found:  # nothing: another worker was faster
                return tuple(found) if self.config.batch else found[0]
        return None

    async def _parse(self, found: Raw | None) -> Any:
        parser, decoder = self._get_parser_and_decoder()
        context = self._outer_config.context
        return await process_msg(
            msg=found,
            middlewares=(one(found, context=context) for one in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )

    async def _handle_messages(self, consumer: Consumer) -> None:
        while self.running and (found := await self._fetch(consumer)) is not None:
            await self.consume(found)

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Sequence[PublisherProto]:
        return (ReplyPublisher(self._outer_config.producer, cast("RocketMQMessage", message)),)

    def get_log_context(self, message: StreamMessage[Any] | None) -> dict[str, str]:
        """Returns the facts that log lines about a message show."""
        return {"topic": self.topic, "group": self.group, "message_id": getattr(message, "message_id", "")}
