"""The annotations of arguments that FastStream injects into handlers.

async def bill(order: Order, message: RocketMQMessage, broker: RocketMQBroker) -> None: ...
"""

from __future__ import annotations

from typing import Annotated

from faststream._internal.context import Context
from faststream.annotations import ContextRepo, Logger
from faststream.params import NoCast

from tandemmq.client.instance import ClientInstance
from tandemmq.integrations.faststream import broker, message

RocketMQBroker = Annotated[broker.RocketMQBroker, Context("broker")]
RocketMQMessage = Annotated[message.RocketMQMessage, Context("message")]
Client = Annotated[ClientInstance, Context("broker._connection")]

__all__ = ["Client", "ContextRepo", "Logger", "NoCast", "RocketMQBroker", "RocketMQMessage"]
