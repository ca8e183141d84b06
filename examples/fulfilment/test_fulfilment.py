"""Tests of a FastStream application: the handlers in the process, and the whole on a cluster. They need
TandemMQ with the extra faststream, and pytest.
"""

import asyncio

import pytest
from fulfilment import make_broker, router, ship

from tandemmq.client import BlockingAdmin
from tandemmq.integrations.faststream import TestRocketMQBroker

ORDER = {"number": 1, "customer": "c7", "quantity": 13}


@pytest.fixture(scope="session")
def tandemmq_options():
    return {"elected": True}


def test_paid_orders_are_shipped():
    async def scenario():
        async with TestRocketMQBroker(make_broker("127.0.0.1:9876")) as broker:
            (shipments,) = router.publishers
            await broker.publish(ORDER | {"number": 2}, "Orders", tag="open")
            await broker.publish(ORDER, "Orders", tag="paid")
            ship.mock.assert_called_once_with(ORDER)
            shipments.mock.assert_called_once_with({"order": 1, "boxes": 3})
            answer = await broker.request(7, "Boxes")
            assert await answer.decode() == 2

    asyncio.run(scenario())


def test_orders_are_shipped_though_the_master_dies(tandemmq_cluster):
    async def scenario():
        broker, shipped = make_broker(tandemmq_cluster.name_servers), asyncio.Queue()

        @broker.subscriber("Shipments", group="accounting")
        async def note(shipment: dict) -> None:
            await shipped.put(shipment["order"])

        async with broker:
            await broker.start()
            await broker.publish(ORDER, "Orders", tag="paid")
            await broker.publish(ORDER | {"quantity": -1}, "Orders", tag="paid")
            await asyncio.to_thread(tandemmq_cluster.lose_master)
            await broker.publish(ORDER | {"number": 2}, "Orders", tag="paid")
            async with asyncio.timeout(60):
                seen = set()
                while seen < {1, 2}:
                    seen.add(await shipped.get())

    asyncio.run(scenario())
    with BlockingAdmin(tandemmq_cluster.name_servers) as admin:
        assert admin.message_count("%DLQ%fulfilment") >= 1  # at least once, as every delivery
