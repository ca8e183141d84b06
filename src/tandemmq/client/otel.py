"""OpenTelemetry: the properties of a message carry the sender's trace context to the handler.

    Producer("shop", namesrv, options=ProducerOptions(before_send=otel.inject))
    PushConsumer("billing", namesrv, otel.traced(handle))

The application's propagators define the properties: by default `traceparent`, `tracestate` and `baggage`,
which the instrumentation of RocketMQ's Java clients also writes and reads.
Source:  W3C Trace Context; OpenTelemetry's conventions for spans of messaging.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import msgspec

from tandemmq.client.consumer.workers import Handler, is_async_handler
from tandemmq.errors import install_hint
from tandemmq.protocol.message import Message, PoppedMessage, ReceivedMessage

try:
    from opentelemetry import propagate, trace
except ImportError:
    raise ImportError(f"tandemmq.client.otel needs the extra otel: {install_hint('otel')}") from None

if TYPE_CHECKING:
    from opentelemetry.trace import Span


def inject(message: Message) -> Message:
    """Returns the message with the caller's trace context; existing properties of the message are kept."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    if not carrier:
        return message
    return msgspec.structs.replace(message, properties={**carrier, **message.properties})


@contextmanager
def processing(message: ReceivedMessage | PoppedMessage) -> Iterator[Span]:
    """Opens a span for the processing of a message, as a child of the span that sent it; an error is
    recorded.
    """
    attributes: dict[str, str] = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": message.topic,
        "messaging.destination.partition.id": str(message.queue_id),
        "messaging.message.id": message.message_id,
    }
    if message.tags:
        attributes["messaging.rocketmq.message.tag"] = message.tags
    tracer = trace.get_tracer("tandemmq")
    with tracer.start_as_current_span(
        f"process {message.topic}",
        context=propagate.extract(message.properties),
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes,
    ) as span:
        yield span


def traced(handler: Handler) -> Handler:
    """Wraps the handler of a push consumer so that each call runs inside `processing`."""
    if is_async_handler(handler):
        call = cast(Callable[[ReceivedMessage], Awaitable[object]], handler)

        @functools.wraps(handler)
        async def handle_async(message: ReceivedMessage) -> object:
            with processing(message):
                return await call(message)

        return handle_async

    @functools.wraps(handler)
    def handle(message: ReceivedMessage) -> object:
        with processing(message):
            return handler(message)

    return handle
