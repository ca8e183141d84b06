"""Spans of sends at the broker, for messages whose sender's trace is sampled (extra `otel`).

A span reaches from the arrival of the request to its answer, with the waits for the disk and for slaves. It
is a child of the span in the message's `traceparent`. The message is unchanged, so that a consumer continues
the sender's trace.
Strategy:   the routes of sends get a wrapper if the settings ask for it, and cost nothing otherwise. With it,
            a request without a sampled context costs a microsecond.
At a bound: `QUEUE_MAX` spans wait for the collector; further ones are dropped. A batch has one span, by its
            first context. A collector that does not answer costs a line in the log per outage.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from tandemmq import __version__
from tandemmq.broker.options import BrokerOptions
from tandemmq.errors import ConfigError, RequestRejected, install_hint
from tandemmq.protocol.codes import RequestCode, ResponseCode, response_name
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.send import SendRequest, SendRequestV2
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.dispatch import Handler, Waiting
from tandemmq.remoting.options import render_address
from tandemmq.remoting.otel_resource import resource_of
from tandemmq.runtime.ports import Address
from tandemmq.telemetry import events
from tandemmq.telemetry.export_options import MetricsExporter, parse_pairs
from tandemmq.telemetry.log_lines import Outages
from tandemmq.units import Buffer

try:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.trace import (
        NonRecordingSpan,
        Span,
        SpanContext,
        SpanKind,
        StatusCode,
        TraceFlags,
        Tracer,
        set_span_in_context,
    )
except ImportError as error:
    raise ConfigError(f"tracesExporterType needs {error.name}: {install_hint('otel')}") from None

log = logging.getLogger(__name__)

QUEUE_MAX: Final = 2_048
_SENDS: Final = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
_CONTEXT: Final = re.compile(rb"traceparent\x0100-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def traced_routes(
    routes: Mapping[int, Handler], options: BrokerOptions, tracer: Tracer | None = None
) -> dict[int, Handler]:
    """Returns the handlers of sends, with a span for each sampled request. Raises ConfigError."""
    tracer = tracer or _new_tracer(
        options.traces_exporter,
        options.traces_target or options.otlp_target,
        options.otlp_headers,
        options.otlp_timeout_ms / 1000,
    )

    def traced(handler: Handler) -> Handler:
        def handle(channel: Channel, command: Command) -> Command | Waiting | None:
            found = _find_context(command)
            if found is None:
                return handler(channel, command)
            span = _begin(tracer, options, channel.peer, *found)
            try:
                answer = handler(cast(Channel, _AnsweringChannel(channel, span)), command)
            except BaseException as error:
                span.set_attribute("error.type", type(error).__qualname__)
                span.set_status(StatusCode.ERROR, str(error))
                span.end()
                raise
            if isinstance(answer, Command):
                _end(span, answer)
            elif command.is_oneway:
                span.end()
            return answer

        return handle

    return {int(code): traced(routes[code]) for code in _SENDS if code in routes}


def _find_context(command: Command) -> tuple[SpanContext, str] | None:
    """Returns the sampled context of a send, and its topic; None without one."""
    shape: type[SendRequest] | type[SendRequestV2] = SendRequestV2
    if command.code == RequestCode.SEND_MESSAGE:
        shape = SendRequest
    try:
        header = command.decode(shape)
    except RequestRejected:
        return None  # the handler refuses it
    text = command.body if header.is_batch else (header.properties or "").encode()
    found = _CONTEXT.search(text)
    if found is None or not int(found[3], 16) & TraceFlags.SAMPLED:
        return None
    flags = TraceFlags(TraceFlags.SAMPLED)
    context = SpanContext(int(found[1], 16), int(found[2], 16), is_remote=True, trace_flags=flags)
    return (context, header.topic) if context.is_valid else None


def _begin(tracer: Tracer, options: BrokerOptions, peer: Address, context: SpanContext, topic: str) -> Span:
    return tracer.start_span(
        f"store {topic}",
        context=set_span_in_context(NonRecordingSpan(context)),
        kind=SpanKind.SERVER,
        attributes={
            "messaging.system": "rocketmq",
            "messaging.operation.name": "store",
            "messaging.destination.name": topic,
            "network.peer.address": render_address(peer),
            "tandemmq.cluster": options.cluster_name,
            "tandemmq.broker": options.broker_name,
        },
    )


def _end(span: Span, answer: Command | None) -> None:
    """Ends the span of a send with this answer; None: the message is stored."""
    if answer is not None and answer.code != ResponseCode.SUCCESS:
        span.set_attribute("error.type", response_name(answer.code))
        span.set_status(StatusCode.ERROR, answer.remark)
    span.end()


class _AnsweringChannel:
    """The channel of one traced send: an answer through it ends the span."""

    __slots__ = ("_channel", "_span")

    def __init__(self, channel: Channel, span: Span) -> None:
        self._channel, self._span = channel, span

    def send(self, command: Command) -> None:
        _end(self._span, command)
        self._channel.send(command)

    def send_frame(self, *buffers: Buffer) -> None:
        _end(self._span, None)
        self._channel.send_frame(*buffers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)


class OneLineExporter(SpanExporter):
    """Passes spans on, and logs one line per outage, where the library writes one per attempt."""

    def __init__(self, inner: SpanExporter, target: str) -> None:
        self._inner, self._target = inner, target
        self._outages = Outages()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            outcome = self._inner.export(spans)
        except Exception:  # noqa: BLE001  # of the network or of the library, in its thread
            outcome = SpanExportResult.FAILURE
        if outcome is SpanExportResult.SUCCESS:
            self._outages.record_success(events.SPANS_EXPORT_FAILED, self._target)
        else:
            facts = {"target": self._target, "lost_count": len(spans)}
            self._outages.record_failure(log, events.SPANS_EXPORT_FAILED, self._target, facts)
        return outcome

    def shutdown(self) -> None:
        self._inner.shutdown()


@functools.cache
def _new_tracer(exporter: MetricsExporter, target: str, headers: str, timeout_s: float) -> Tracer:
    """Returns the tracer of this process for the settings: each role of an elected broker uses the same."""
    if not target:
        raise ConfigError(
            f"tracesExporterType={exporter.value} needs tracesExporterTarget or metricsGrpcExporterTarget"
        )
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
    target = target if "://" in target else f"https://{target}"
    given = parse_pairs(headers)
    inner: SpanExporter
    if exporter is MetricsExporter.OTLP_HTTP:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

        inner = HttpExporter(f"{target.rstrip('/')}/v1/traces", headers=given, timeout=timeout_s)
    else:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        lower = {name.lower(): value for name, value in given.items()}
        inner = GrpcExporter(target, headers=lower, timeout=timeout_s)
    provider = TracerProvider(resource=Resource(resource_of("broker")))
    provider.add_span_processor(
        BatchSpanProcessor(
            OneLineExporter(inner, target), max_queue_size=QUEUE_MAX, max_export_batch_size=256
        )
    )
    return provider.get_tracer("tandemmq.broker", __version__)
