"""The middleware for Prometheus: FastStream's metrics of published and handled messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from faststream._internal.constants import EMPTY
from faststream.message import StreamMessage
from faststream.prometheus import ConsumeAttrs, MetricsSettingsProvider
from faststream.prometheus.middleware import PrometheusMiddleware
from prometheus_client import CollectorRegistry

from tandemmq.integrations.faststream.message import Raw, RocketMQMessage
from tandemmq.integrations.faststream.response import RocketMQPublishCommand


class RocketMQMetricsSettings(MetricsSettingsProvider[Raw, RocketMQPublishCommand]):
    """The labels of the metrics."""

    messaging_system = "rocketmq"

    def get_consume_attrs_from_message(self, msg: StreamMessage[Raw]) -> ConsumeAttrs:
        """Returns topic, size and number of the messages that are handled."""
        raw = cast("RocketMQMessage", msg).raw_messages
        return {
            "destination_name": raw[0].topic,
            "message_size": sum(len(one.body) for one in raw),
            "messages_count": len(raw),
        }

    def get_publish_destination_name_from_cmd(self, cmd: RocketMQPublishCommand) -> str:
        """Returns the topic of a publishing."""
        return cmd.destination


class RocketMQPrometheusMiddleware(PrometheusMiddleware[Raw, RocketMQPublishCommand]):
    """Counts and times messages; pass it to the broker as one of its `middlewares`."""

    def __init__(
        self,
        *,
        registry: CollectorRegistry,
        app_name: str = EMPTY,
        metrics_prefix: str = "faststream",
        received_messages_size_buckets: Sequence[float] | None = None,
        custom_labels: Mapping[str, str | Callable[[Any], str]] | None = None,
    ) -> None:
        super().__init__(
            settings_provider_factory=lambda _: RocketMQMetricsSettings(),
            registry=registry,
            app_name=app_name,
            metrics_prefix=metrics_prefix,
            received_messages_size_buckets=received_messages_size_buckets,
            custom_labels=None if custom_labels is None else dict(custom_labels),
        )
