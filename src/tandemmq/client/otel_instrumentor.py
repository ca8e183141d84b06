"""`TandemMQInstrumentor`: spans and metrics of every client of a process, without a change to its code.

    opentelemetry-instrument python app.py

or `TandemMQInstrumentor().instrument()`. It wraps the methods through which all clients go, also the blocking
ones, which call them in the client's loop with the caller's context.

| operation | span | kind |
|---|---|---|
| send: a message, a batch, one-way, a half message | `send TOPIC` | PRODUCER; CLIENT if all have contexts |
| messages that `Consumer` and `PopConsumer` return | `receive TOPIC` | CLIENT |
| call of a push consumer's handler | `process TOPIC` | CONSUMER |
| acknowledgements and their like | `ack TOPIC`, `nack`, `commit`, ... | CLIENT |
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor
from opentelemetry.instrumentation.utils import unwrap
from wrapt import wrap_function_wrapper

from tandemmq.client import span_attributes as conventions
from tandemmq.client.consumer.consumer import Consumer
from tandemmq.client.consumer.membership import GroupConsumer
from tandemmq.client.consumer.pop import PopConsumer
from tandemmq.client.consumer.push import PushConsumer
from tandemmq.client.instance import ClientInstance
from tandemmq.client.otel import ClientFacts, ClientTelemetry, Operation, moment
from tandemmq.client.producer.outbox import Outbox
from tandemmq.client.producer.results import SendResult
from tandemmq.client.producer.transactions import TransactionProducer, TransactionState
from tandemmq.protocol import properties as names
from tandemmq.protocol.message import Message, ReceivedMessage

Wrapper = Callable[..., Any]

INNER_GROUP: Final = "_INNER_TRACE_PRODUCER"
"""The begin of the groups of RocketMQ's message trace, whose sends are not the application's."""

_is_settling: ContextVar[bool] = ContextVar("_is_settling", default=False)
"""True inside a settlement, which may consist of others."""


class TandemMQInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # the library has no types
    """The instrumentation of the client library."""

    def instrumentation_dependencies(self) -> Collection[str]:
        return ("tandemmq >= 0.1.0",)

    def _instrument(self, **kwargs: Any) -> None:
        telemetry = ClientTelemetry(kwargs.get("tracer_provider"), kwargs.get("meter_provider"))
        for target, name, wrapper in _wrappers(telemetry):
            wrap_function_wrapper(target, name, wrapper)

    def _uninstrument(self, **kwargs: Any) -> None:
        for target, name, _ in _wrappers(ClientTelemetry()):
            unwrap(target, name)


def _wrappers(telemetry: ClientTelemetry) -> list[tuple[type, str, Wrapper]]:
    sends, reads = _SendWrappers(telemetry), _ReadWrappers(telemetry)
    return [
        (Outbox, "start", sends.start),
        (Outbox, "start_batch", sends.start_batch),
        (Outbox, "send_oneway", sends.send_oneway),
        (TransactionProducer, "end", sends.end_transaction),
        (Consumer, "poll", reads.receive),
        (Consumer, "fetch", reads.receive),
        (Consumer, "__anext__", reads.receive_one),
        (PopConsumer, "receive", reads.receive),
        (PushConsumer, "__init__", reads.make_push_consumer),
        (PushConsumer, "add_handler", reads.add_handler),
        (Consumer, "commit", reads.settle),
        (GroupConsumer, "retry_later", reads.settle),
        (GroupConsumer, "dead_letter", reads.settle),
        (PopConsumer, "ack", reads.settle),
        (PopConsumer, "nack", reads.settle),
        (PopConsumer, "dead_letter", reads.settle),
        (PopConsumer, "change_invisible", reads.settle),
    ]


class _SendWrappers:
    """The wrappers of a producer's methods."""

    def __init__(self, telemetry: ClientTelemetry) -> None:
        self._telemetry = telemetry

    def start(self, wrapped: Wrapper, outbox: Outbox, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        message, *rest = args
        if _is_inner(outbox):
            return wrapped(*args, **kwargs)
        is_half = names.TRAN_MSG in kwargs.get("system", {})
        with self._sending(outbox, [message], is_half=is_half) as (operation, (message,)):
            outcome = wrapped(message, *rest, **kwargs)
        self._end_later(operation, outbox, outcome, 1)
        return outcome

    async def start_batch(
        self, wrapped: Wrapper, outbox: Outbox, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        messages, *rest = args
        if not messages:
            return await wrapped(*args, **kwargs)
        with self._sending(outbox, messages) as (operation, messages):
            outcome = await wrapped(messages, *rest, **kwargs)
        self._end_later(operation, outbox, outcome, len(messages))
        return outcome

    async def send_oneway(
        self, wrapped: Wrapper, outbox: Outbox, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        message, *rest = args
        with self._sending(outbox, [message]) as (operation, (message,)):
            await wrapped(message, *rest, **kwargs)
        if operation is not None:
            operation.end(sent=1)

    async def end_transaction(
        self, wrapped: Wrapper, producer: TransactionProducer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        sent, state = _two(args, kwargs)
        operation = self._telemetry.begin(
            state.name.lower(),
            "settle",
            [sent.queue.topic],
            attributes={
                **_member_of(producer.instance).attributes(),
                conventions.MESSAGE_ID: sent.message_id,
            },
        )
        return await _ended(operation, wrapped(*args, **kwargs))

    @contextmanager
    def _sending(
        self, outbox: Outbox, messages: Sequence[Message], *, is_half: bool = False
    ) -> Iterator[tuple[Operation | None, Sequence[Message]]]:
        """Begins the operation of a send, and yields it with the messages to send; an error ends it.

        Yields no operation for messages that cannot be recorded: the library refuses them itself, and
        releases the room that the caller has taken.
        """
        operation = None
        with suppress(Exception):  # of any kind: the values have wrong types
            member = _member_of(outbox.instance)
            operation, messages = self._telemetry.begin_send(messages, member, is_half=is_half)
        try:
            yield operation, messages
        except BaseException as error:
            if operation is not None:
                operation.end(error, sent=len(messages))
            raise

    def _end_later(
        self, operation: Operation | None, outbox: Outbox, outcome: asyncio.Future[Any], count: int
    ) -> None:
        if operation is None:
            return

        def end(outcome: asyncio.Future[Any]) -> None:
            if outcome.cancelled():
                operation.end("cancelled", sent=count)
                return
            error = outcome.exception()
            if error is None:
                found = outcome.result()
                result: SendResult = found[0] if isinstance(found, list) else found
                operation.add(_of_result(outbox.instance, result, is_batch=isinstance(found, list)))
            operation.end(error, sent=count)

        outcome.add_done_callback(end)


def _two(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[SendResult, TransactionState]:
    sent = args[0] if args else kwargs["sent"]
    return sent, args[1] if len(args) > 1 else kwargs["state"]


def _of_result(instance: ClientInstance, result: SendResult, *, is_batch: bool) -> conventions.Attributes:
    topic = instance.namespace.wrap(result.queue.topic)
    address = instance.routes.master_address(topic, result.queue.broker_name)
    found: conventions.Attributes = {conventions.PARTITION: str(result.queue.queue_id)}
    if not is_batch:
        found[conventions.MESSAGE_ID] = result.unique_key
    return found | conventions.of_server(address)


class _ReadWrappers:
    """The wrappers of consumers' methods."""

    def __init__(self, telemetry: ClientTelemetry) -> None:
        self._telemetry = telemetry

    async def receive(
        self, wrapped: Wrapper, consumer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Records a span for a call that returns messages; polls without any would be noise."""
        began = moment()
        try:
            found = await wrapped(*args, **kwargs)
        except Exception as error:
            self._begin("receive", "receive", consumer, (), began).end(error)
            raise
        if found:
            self._begin("receive", "receive", consumer, found, began).end(consumed=len(found))
        return found

    async def receive_one(
        self, wrapped: Wrapper, consumer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Records only the arrival: an iteration waits for as long as there is no message."""
        message = await wrapped(*args, **kwargs)
        self._begin("receive", "receive", consumer, (message,), moment()).end(consumed=1)
        return message

    async def settle(
        self, wrapped: Wrapper, consumer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if _is_settling.get():
            return await wrapped(*args, **kwargs)
        given = (*args, *kwargs.values())
        messages = [one for one in given if isinstance(one, ReceivedMessage)]
        operation = self._begin(wrapped.__name__, "settle", consumer, messages, moment())
        token = _is_settling.set(True)
        try:
            return await _ended(operation, wrapped(*args, **kwargs))
        finally:
            _is_settling.reset(token)

    def make_push_consumer(
        self, wrapped: Wrapper, consumer: PushConsumer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._with_traced_handler(2, wrapped, consumer, args, kwargs)

    def add_handler(
        self, wrapped: Wrapper, consumer: PushConsumer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._with_traced_handler(1, wrapped, consumer, args, kwargs)

    def _with_traced_handler(
        self, at: int, wrapped: Wrapper, consumer: PushConsumer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Calls the wrapped method with a traced handler, which is its argument number `at`."""

        def traced(handler: Any) -> Any:
            if not callable(handler):
                return handler  # which the consumer refuses
            return self._telemetry.traced(handler, lambda: _consumer_member(consumer))

        if len(args) > at:
            args = (*args[:at], traced(args[at]), *args[at + 1 :])
        elif "handler" in kwargs:
            kwargs = {**kwargs, "handler": traced(kwargs["handler"])}
        wrapped(*args, **kwargs)

    def _begin(
        self,
        name: str,
        kind: str,
        consumer: Any,
        messages: Sequence[ReceivedMessage],
        began: tuple[int, float],
    ) -> Operation:
        attributes = _consumer_member(consumer).attributes()
        if len(messages) == 1:
            attributes |= conventions.of_received(messages[0])
        elif messages:
            attributes[conventions.BATCH_COUNT] = len(messages)
        return self._telemetry.begin(
            name,
            kind,
            [message.topic for message in messages],
            attributes=attributes,
            carriers=[message.properties for message in messages],
            began=began,
        )


async def _ended(operation: Operation, work: Awaitable[Any]) -> Any:
    """Returns the result of the work, and ends its operation."""
    try:
        result = await work
    except BaseException as error:
        operation.end(error)
        raise
    operation.end("not stored" if result is False else None)
    return result


def _is_inner(outbox: Outbox) -> bool:
    return outbox.group.startswith(INNER_GROUP)


def _member_of(instance: ClientInstance) -> ClientFacts:
    return ClientFacts(client_id=instance.client_id, namespace=instance.namespace.name)


def _consumer_member(consumer: Any) -> ClientFacts:
    instance = consumer.instance
    model = getattr(consumer.options, "model", None)
    return ClientFacts(
        client_id=instance.client_id,
        group=instance.namespace.unwrap(consumer.group),
        namespace=instance.namespace.name,
        model="" if model is None else model.value.lower(),
    )
