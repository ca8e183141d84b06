"""The middleware for OpenTelemetry: spans of publishing and handling, and their metrics."""

from __future__ import annotations

from typing import Any, cast

from faststream.message import StreamMessage
from faststream.opentelemetry import TelemetrySettingsProvider
from faststream.opentelemetry.consts import MESSAGING_DESTINATION_PUBLISH_NAME
from faststream.opentelemetry.middleware import TelemetryMiddleware
from opentelemetry.metrics import Meter, MeterProvider
from opentelemetry.semconv.trace import SpanAttributes
from opentelemetry.trace import TracerProvider

from tandemmq.client import span_attributes
from tandemmq.integrations.faststream.message import Raw, RocketMQMessage
from tandemmq.integrations.faststream.response import RocketMQPublishCommand


class RocketMQSpanSettings(TelemetrySettingsProvider[Raw, RocketMQPublishCommand]):
    """The names and attributes of spans."""

    messaging_system = "rocketmq"

    def get_consume_attrs_from_message(self, msg: StreamMessage[Raw]) -> dict[str, Any]:
        """Returns the attributes of a message that is handled, or of a batch."""
        raw = cast("RocketMQMessage", msg).raw_messages
        found: dict[str, Any] = {
            SpanAttributes.MESSAGING_SYSTEM: self.messaging_system,
            SpanAttributes.MESSAGING_MESSAGE_CONVERSATION_ID: msg.correlation_id,
            SpanAttributes.MESSAGING_MESSAGE_PAYLOAD_SIZE_BYTES: sum(len(one.body) for one in raw),
            MESSAGING_DESTINATION_PUBLISH_NAME: raw[0].topic,
            **span_attributes.of_received(raw[0]),
        }
        if isinstance(msg.raw_message, tuple):
            found[SpanAttributes.MESSAGING_BATCH_MESSAGE_COUNT] = len(raw)
        return found

    def get_consume_destination_name(self, msg: StreamMessage[Raw]) -> str:
        """Returns the topic of a message that is handled."""
        return cast("RocketMQMessage", msg).raw_messages[0].topic

    def get_publish_attrs_from_cmd(self, cmd: RocketMQPublishCommand) -> dict[str, Any]:
        """Returns the attributes of a publishing."""
        found = {
            SpanAttributes.MESSAGING_SYSTEM: self.messaging_system,
            SpanAttributes.MESSAGING_DESTINATION_NAME: cmd.destination,
            SpanAttributes.MESSAGING_MESSAGE_CONVERSATION_ID: cmd.correlation_id,
            "messaging.rocketmq.message.tag": cmd.fields.get("tag"),
            "messaging.rocketmq.message.group": cmd.fields.get("ordering_key"),
        }
        return {name: value for name, value in found.items() if value}

    def get_publish_destination_name(self, cmd: RocketMQPublishCommand) -> str:
        """Returns the topic of a publishing."""
        return cmd.destination


class RocketMQTelemetryMiddleware(TelemetryMiddleware[RocketMQPublishCommand]):
    """Makes spans and metrics; pass it to the broker as one of its `middlewares`."""

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        meter: Meter | None = None,
        include_messages_counters: bool = True,
    ) -> None:
        super().__init__(
            settings_provider_factory=lambda _: RocketMQSpanSettings(),
            tracer_provider=tracer_provider,
            meter_provider=meter_provider,
            meter=meter,
            include_messages_counters=include_messages_counters,
        )
