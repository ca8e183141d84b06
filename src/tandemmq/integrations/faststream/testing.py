"""The test broker: published messages reach the handlers at once, in the process and without a cluster.

Filters, groups, headers and bodies are as at a cluster. Delays, retries and order are not: a message is
delivered once, and the error of its handler is raised to the publisher. `tandemmq.testing` runs a real
cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, cast
from unittest.mock import MagicMock

import anyio
from faststream._internal.testing.broker import EnterType, TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound

from tandemmq.client.consumer.subscription import make_subscription
from tandemmq.integrations.faststream.broker import RocketMQBroker
from tandemmq.integrations.faststream.producer import REQUEST_S, RocketMQProducer
from tandemmq.integrations.faststream.publisher import TopicPublisher
from tandemmq.integrations.faststream.response import RocketMQPublishCommand
from tandemmq.integrations.faststream.subscriber import RocketMQSubscriber
from tandemmq.protocol.message import Message, ReceivedMessage, check_message, encode_wire_properties
from tandemmq.protocol.record import Record
from tandemmq.protocol.sql92 import compile_filter

HOST = b"\x7f\x00\x00\x01\x00\x00\x00\x00"


class TestRocketMQBroker(TestBroker[RocketMQBroker, EnterType], broker=RocketMQBroker):  # type: ignore[call-arg]
    """Replaces the cluster of one or more brokers inside `async with`."""

    def create_publisher_fake_subscriber(
        self, broker: RocketMQBroker, publisher: TopicPublisher
    ) -> tuple[RocketMQSubscriber, bool]:
        """Returns the subscriber that gets the messages of a publisher; one without handlers is made if there
        is none.
        """
        for subscriber in _subscribers(self.brokers):
            if subscriber.topic == publisher.topic:
                return subscriber, True
        made = broker.subscriber(publisher.topic, group=f"test-{publisher.topic}", persistent=False)
        return made, False

    @contextmanager
    def _patch_producer(self, broker: RocketMQBroker) -> Iterator[None]:
        with change_producer(broker.config.broker_config, InMemoryProducer(broker, self.brokers)):
            yield

    async def _fake_connect(self, broker: RocketMQBroker, *args: Any, **kwargs: Any) -> Any:
        return MagicMock()


class InMemoryProducer(RocketMQProducer):
    """Hands messages to the subscribers of their topic."""

    is_in_memory = True

    def __init__(self, broker: RocketMQBroker, brokers: Sequence[RocketMQBroker]) -> None:
        super().__init__(broker._parser, broker._decoder)
        self._brokers = brokers
        self._numbers = count()
        self.connect(None, broker.config.fd_config._serializer, broker.config.broker_codec)

    async def publish(self, cmd: RocketMQPublishCommand) -> None:
        """Hands the message to one subscriber of each group that its filter matches."""
        if cmd.request is None:
            await self.publish_batch(cmd)

    async def publish_batch(self, cmd: RocketMQPublishCommand) -> Any:
        """Hands the messages over; a batch subscriber gets them together."""
        received = [self._received(message) for message in await self.encode(cmd)]
        for subscriber in self._of_groups(cmd.destination):
            matching = tuple(one for one in received if _matches(subscriber, one))
            if matching:
                for raw in (matching,) if subscriber.config.batch else matching:
                    await subscriber.process_message(raw)

    async def request(self, cmd: RocketMQPublishCommand) -> ReceivedMessage:
        """Returns the answer of the handler. Raises SubscriberNotFound; TimeoutError after the timeout."""
        (message,) = await self.encode(cmd)
        received = self._received(message)
        for subscriber in self._of_groups(cmd.destination):
            if _matches(subscriber, received):
                with anyio.fail_after(REQUEST_S if cmd.timeout_s is None else cmd.timeout_s):
                    result = await subscriber.process_message(
                        (received,) if subscriber.config.batch else received
                    )
                answer = RocketMQPublishCommand.from_cmd(result.as_publish_command())
                answer.destination = cmd.destination
                (message,) = await self.encode(answer)
                return self._received(message)
        raise SubscriberNotFound(f"no subscriber of topic {cmd.destination!r} has a filter that matches")

    def _of_groups(self, topic: str) -> Iterable[RocketMQSubscriber]:
        found = {one.group: one for one in _subscribers(self._brokers) if one.topic == topic}
        return list(found.values())

    def _received(self, message: Message) -> ReceivedMessage:
        """Returns a message as a consumer would receive it.

        Raises:  MessageIllegal if no broker would store it.
        """
        check_message(message)
        number = next(self._numbers)
        record = Record(
            topic=message.topic,
            queue_id=0,
            queue_offset=number,
            log_offset=number,
            size=len(message.body),
            body=message.body,
            body_crc=0,
            flag=message.flag,
            sys_flag=0,
            born_at_ms=0,
            born_host=HOST,
            stored_at_ms=0,
            store_host=HOST,
            retry_count=0,
            prepared_offset=0,
            raw_properties=encode_wire_properties(message, f"{number:032X}"),
        )
        return ReceivedMessage(record, broker_name="test")


def _subscribers(brokers: Iterable[RocketMQBroker]) -> Iterator[RocketMQSubscriber]:
    for broker in brokers:
        yield from cast("list[RocketMQSubscriber]", broker.subscribers)


def _matches(subscriber: RocketMQSubscriber, message: ReceivedMessage) -> bool:
    """Returns True if a broker would deliver the message to the subscriber."""
    config = subscriber.config
    subscription = make_subscription(subscriber.topic, config.tags, config.sql, 0)
    if subscription.sql is not None:
        return compile_filter(subscription.sql).matches_properties(message.record.raw_properties)
    return subscription.matches(message.tags)
