"""A broker of FastStream.

    broker = RocketMQBroker("127.0.0.1:9876")

    @broker.subscriber("Orders", group="billing", tags="paid || refunded")
    @broker.publisher("Invoices")
    async def bill(order: Order) -> Invoice: ...

Each subscriber is a member of a consumer group. The middlewares for OpenTelemetry and Prometheus are in
modules of their own: `telemetry`, `metrics`.
"""

from __future__ import annotations

from tandemmq.errors import install_hint

try:
    import faststream as _faststream  # noqa: F401
except ImportError:
    raise ImportError(f"this package needs the extra faststream: {install_hint('faststream')}") from None

from tandemmq.integrations.faststream.annotations import RocketMQMessage
from tandemmq.integrations.faststream.broker import RocketMQBroker
from tandemmq.integrations.faststream.registrator import RocketMQPublisher, RocketMQRoute, RocketMQRouter
from tandemmq.integrations.faststream.response import RocketMQPublishCommand, RocketMQResponse
from tandemmq.integrations.faststream.testing import TestRocketMQBroker

__all__ = [
    "RocketMQBroker",
    "RocketMQMessage",
    "RocketMQPublishCommand",
    "RocketMQPublisher",
    "RocketMQResponse",
    "RocketMQRoute",
    "RocketMQRouter",
    "TestRocketMQBroker",
]
