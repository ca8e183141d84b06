"""OpenTelemetry: the properties of a message carry the sender's trace context to the handler.

    Producer("shop", namesrv, options=ProducerOptions(before_send=otel.inject))
    PushConsumer("billing", namesrv, otel.traced(handle))

`otel_instrumentor` does both for every client of a process, and records spans and metrics of all operations.
The application's propagators define the properties: by default `traceparent`, `tracestate` and `baggage`,
which the instrumentation of RocketMQ's Java clients also writes and reads.
Source:  W3C Trace Context; OpenTelemetry's conventions for spans and metrics of messaging.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import msgspec

from tandemmq import __version__
from tandemmq.client import span_attributes as conventions
from tandemmq.client.consumer.workers import AnyHandler, ConsumeResult, is_async_handler
from tandemmq.client.span_attributes import Attributes
from tandemmq.errors import install_hint
from tandemmq.protocol.message import Message, PoppedMessage, ReceivedMessage
from tandemmq.runtime.machine import LoopClock

try:
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, SpanKind, StatusCode
except ImportError:
    raise ImportError(f"tandemmq.client.otel needs the extra otel: {install_hint('otel')}") from None

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

H = TypeVar("H", bound=AnyHandler)

SCOPE: Final = "tandemmq"
CLOCK: Final = LoopClock()
SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
LINKS_MAX: Final = 128
"""The most links of one span, as in the SDK."""
TRACED: Final = "_tandemmq_is_traced"
"""The attribute of a handler that already opens a span for each message."""
_OF_METRICS: Final = (
    *(conventions.SYSTEM, conventions.OPERATION, conventions.TOPIC, conventions.GROUP),
    *(conventions.ERROR_TYPE, conventions.SERVER_ADDRESS, conventions.SERVER_PORT),
)
"""The attributes of metrics: those of spans that have few values."""


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
    with ClientTelemetry().processing(message) as span:
        yield span


def traced(handler: H) -> H:
    """Wraps the handler of a push consumer so that each call runs inside `processing`."""
    return ClientTelemetry().traced(handler)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFacts:
    """The facts about a client that its spans have; empty ones are left out."""

    client_id: str = ""
    group: str = ""
    namespace: str = ""
    model: str = ""

    def attributes(self) -> Attributes:
        found: dict[str, str] = {
            conventions.CLIENT_ID: self.client_id,
            conventions.GROUP: self.group,
            conventions.NAMESPACE: self.namespace,
            conventions.MODEL: self.model,
        }
        return {name: value for name, value in found.items() if value}


UNKNOWN: Final = ClientFacts()


class Operation:
    """One operation: its span, and the metrics at its end."""

    def __init__(
        self, telemetry: ClientTelemetry, span: Span, attributes: Attributes, began_s: float
    ) -> None:
        self.span = span
        self._telemetry = telemetry
        self._attributes = attributes
        self._began_s = began_s

    def add(self, attributes: Attributes) -> None:
        """Adds attributes that are known only at the end."""
        self._attributes |= attributes
        self.span.set_attributes(conventions.translate(attributes))

    def end(self, error: BaseException | str | None = None, *, sent: int = 0, consumed: int = 0) -> None:
        """Ends the span and counts the messages; `error`: an exception, or the type of a failure without
        one.
        """
        if error is not None:
            kind = error if isinstance(error, str) else type(error).__qualname__
            self.add({conventions.ERROR_TYPE: kind})
            self.span.set_status(StatusCode.ERROR, None if isinstance(error, str) else str(error))
            if isinstance(error, BaseException):
                self.span.record_exception(error)
        self.span.end()
        self._telemetry.record(self._attributes, self._began_s, sent=sent, consumed=consumed)


class ClientTelemetry:
    """The tracer and the instruments; None: the providers of the process."""

    def __init__(
        self, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
    ) -> None:
        self._tracer = trace.get_tracer(SCOPE, __version__, tracer_provider)
        meter = metrics.get_meter(SCOPE, __version__, meter_provider)
        self._duration = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of messaging operations initiated by a producer or consumer client",
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        self._process = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of processing operation",
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages that a producer tried to send"
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages",
            "{message}",
            "Messages delivered to the application",
        )

    def begin(
        self,
        name: str,
        kind: str,
        topics: Sequence[str],
        *,
        span_kind: SpanKind = SpanKind.CLIENT,
        attributes: Attributes | None = None,
        carriers: Sequence[Mapping[str, str]] = (),
        began: tuple[int, float] | None = None,
        parent: Context | None = None,
    ) -> Operation:
        """Begins an operation. `carriers`: the properties of messages, whose contexts the span links to;
        `began`: the time of an earlier start; `parent`: the context of a span that is not the current one.
        """
        began_ns, began_s = began or (None, moment()[1])
        own = {**conventions.of_operation(name, kind, topics), **(attributes or {})}
        topic = own.get(conventions.TOPIC)
        span = self._tracer.start_span(
            f"{name} {topic}" if topic else name,
            context=parent,
            kind=span_kind,
            attributes=conventions.translate(own),
            links=_links_of(carriers),
            start_time=began_ns,
        )
        return Operation(self, span, own, began_s)

    def begin_send(
        self, messages: Sequence[Message], member: ClientFacts, *, is_half: bool = False
    ) -> tuple[Operation, list[Message]]:
        """Begins the send of one request; returns the messages with its context.

        Messages that carry a context keep it, and the span links to it.
        """
        attributes = member.attributes()
        if len(messages) == 1:
            attributes |= conventions.of_message(messages[0], is_half=is_half)
        else:
            attributes[conventions.BATCH_COUNT] = len(messages)
        carriers = [message.properties for message in messages if _context_of(message.properties).is_valid]
        operation = self.begin(
            "send",
            "send",
            [message.topic for message in messages],
            span_kind=SpanKind.CLIENT if len(carriers) == len(messages) else SpanKind.PRODUCER,
            attributes=attributes,
            carriers=carriers,
        )
        with trace.use_span(operation.span):
            return operation, [inject(message) for message in messages]

    @contextmanager
    def processing(self, message: ReceivedMessage, member: ClientFacts = UNKNOWN) -> Iterator[Span]:
        """Opens the span of the processing of a message, as a child of the span that sent it."""
        operation = self._begin_processing(message, member)
        with _inside(operation, 1):
            yield operation.span
        operation.end(consumed=1)

    def _begin_processing(self, message: ReceivedMessage, member: ClientFacts) -> Operation:
        return self.begin(
            "process",
            "process",
            [message.topic],
            span_kind=SpanKind.CONSUMER,
            attributes={**member.attributes(), **conventions.of_received(message)},
            parent=propagate.extract(message.properties),
        )

    def _begin_batch(self, messages: Sequence[ReceivedMessage], member: ClientFacts) -> Operation:
        """Begins the processing of several messages, with links to the spans that sent them."""
        return self.begin(
            "process",
            "process",
            [message.topic for message in messages],
            span_kind=SpanKind.CONSUMER,
            attributes={**member.attributes(), conventions.BATCH_COUNT: len(messages)},
            carriers=[message.properties for message in messages],
        )

    def _begin_call(
        self, argument: ReceivedMessage | list[ReceivedMessage], member: ClientFacts
    ) -> tuple[Operation, int]:
        """Begins one call of a handler; returns its operation and the number of its messages."""
        if isinstance(argument, list):
            return self._begin_batch(argument, member), len(argument)
        return self._begin_processing(argument, member), 1

    def traced(self, handler: H, member: Callable[[], ClientFacts] = lambda: UNKNOWN) -> H:
        """Wraps a handler so that each call runs inside a span of the processing, and so does the awaitable
        that it returns; one that is wrapped already stays.
        """
        if getattr(handler, TRACED, False):
            return handler
        wrapped: Callable[[Any], object]
        if is_async_handler(handler):
            call = cast(Callable[[Any], Awaitable[object]], handler)

            async def handle_async(message: Any) -> object:
                operation, count = self._begin_call(message, member())
                return await _finish(operation, count, call(message))

            wrapped = handle_async
        else:

            def handle(message: Any) -> object:
                operation, count = self._begin_call(message, member())
                with _inside(operation, count):
                    result = handler(message)
                if inspect.isawaitable(result):
                    return _finish(operation, count, result)
                operation.end(_failure_of(result), consumed=count)
                return result

            wrapped = handle
        functools.update_wrapper(wrapped, handler)
        setattr(wrapped, TRACED, True)
        return cast(H, wrapped)

    def record(self, attributes: Attributes, began_s: float, *, sent: int, consumed: int) -> None:
        """Records an operation that has ended."""
        took_s = moment()[1] - began_s
        few = conventions.translate({name: attributes[name] for name in _OF_METRICS if name in attributes})
        is_process = attributes[conventions.OPERATION_TYPE] == "process"
        (self._process if is_process else self._duration).record(took_s, few)
        if sent:
            self._sent.add(sent, few)
        if consumed:
            self._consumed.add(consumed, few)


@contextmanager
def _inside(operation: Operation, consumed: int) -> Iterator[None]:
    """Makes the operation's span the current one; an error ends the operation."""
    try:
        with trace.use_span(operation.span, record_exception=False, set_status_on_exception=False):
            yield
    except BaseException as error:
        operation.end(error, consumed=consumed)
        raise


async def _finish(operation: Operation, consumed: int, running: Awaitable[object]) -> object:
    """Awaits the rest of the processing, and ends the operation."""
    with _inside(operation, consumed):
        result = await running
    operation.end(_failure_of(result), consumed=consumed)
    return result


def _failure_of(result: object) -> str | None:
    """Returns the type of the failure if the handler asks for a retry."""
    return ConsumeResult.RETRY.value if result is ConsumeResult.RETRY else None


def moment() -> tuple[int, float]:
    """Returns the present time in nanoseconds since 1970, and in seconds of a clock that never jumps."""
    return CLOCK.now_ms() * 1_000_000, CLOCK.monotonic()


def _context_of(properties: Mapping[str, str]) -> trace.SpanContext:
    return trace.get_current_span(propagate.extract(properties, Context())).get_span_context()


def _links_of(carriers: Sequence[Mapping[str, str]]) -> list[Link]:
    found = (_context_of(properties) for properties in carriers[:LINKS_MAX])
    return [Link(context) for context in found if context.is_valid]
