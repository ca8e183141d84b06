"""Shipments for paid orders: a FastStream application that reads `Orders` and writes `Shipments`.

Run it with `faststream run fulfilment:app`; NAMESRV names the name servers.
"""

import os
from collections.abc import Awaitable, Callable
from typing import Any

from faststream import BaseMiddleware, FastStream
from faststream.exceptions import RejectMessage
from pydantic import BaseModel, PositiveInt, ValidationError

from tandemmq.integrations.faststream import RocketMQBroker, RocketMQResponse, RocketMQRouter

BOX = 6


class Order(BaseModel):
    number: int
    customer: str
    quantity: PositiveInt


class Shipment(BaseModel):
    order: int
    boxes: int


class RejectInvalid(BaseMiddleware):
    """An invalid order stays invalid: it goes to the dead letters, without retries."""

    async def consume_scope(self, call_next: Callable[[Any], Awaitable[Any]], msg: Any) -> Any:
        try:
            return await call_next(msg)
        except ValidationError as error:
            raise RejectMessage from error


router = RocketMQRouter(middlewares=[RejectInvalid])


@router.subscriber("Orders", group="fulfilment", tags="paid", max_workers=8)
@router.publisher("Shipments")
async def ship(order: Order) -> RocketMQResponse:
    """Shipments of one customer stay in order."""
    shipment = Shipment(order=order.number, boxes=boxes_for(order.quantity))
    return RocketMQResponse(shipment, key=str(order.number), ordering_key=order.customer)


@router.subscriber("Boxes")
async def count_boxes(quantity: PositiveInt) -> int:
    """Answers `await broker.request(quantity, "Boxes")`."""
    return boxes_for(quantity)


def boxes_for(quantity: int) -> int:
    return -(-quantity // BOX)


def make_broker(name_servers: str) -> RocketMQBroker:
    return RocketMQBroker(name_servers, routers=[router])


app = FastStream(make_broker(os.environ.get("NAMESRV", "127.0.0.1:9876")))
