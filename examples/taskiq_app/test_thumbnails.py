"""Tests of a Taskiq application, with a worker in this process. They need TandemMQ with the extra taskiq, and
pytest.
"""

import asyncio
from contextlib import asynccontextmanager

import pytest
import thumbnails
from taskiq import InMemoryBroker
from taskiq.api import run_receiver_task

from tandemmq.integrations.taskiq_broker import TandemBroker


@pytest.fixture(scope="session")
def tandemmq_options():
    return {"elected": True}


@asynccontextmanager
async def running(cluster):
    """The broker of the application, at the cluster of the test, and a worker."""
    # A task that was on its way from a master that died is delivered again after `invisible_s`.
    broker = TandemBroker(cluster.name_servers, topic="thumbnails", invisible_s=5.0).with_results_by_reply()
    thumbnails.scale.broker = broker
    broker.local_task_registry[thumbnails.scale.task_name] = thumbnails.scale
    await broker.startup()
    worker = asyncio.create_task(run_receiver_task(broker))
    try:
        yield
    finally:
        worker.cancel()
        await asyncio.wait([worker])
        await broker.shutdown()


def test_the_function_alone():
    async def scenario():
        thumbnails.scale.broker = InMemoryBroker()
        assert await thumbnails.scale(400, 100) == (200, 50)

    asyncio.run(scenario())


def test_sizes_and_errors(tandemmq_cluster):
    async def scenario():
        async with running(tandemmq_cluster):
            assert await thumbnails.scale_all([(400, 100), (10, 20)]) == [(200, 50), (100, 200)]
            with pytest.raises(ValueError, match="must be 1 x 1"):
                await thumbnails.scale_all([(0, 5)])

    asyncio.run(scenario())


def test_results_come_though_the_master_dies(tandemmq_cluster):
    async def scenario():
        async with running(tandemmq_cluster):
            asked = asyncio.create_task(thumbnails.scale_all([(400, 100)] * 20, timeout_s=60))
            await asyncio.to_thread(tandemmq_cluster.lose_master)
            assert await asked == [(200, 50)] * 20

    asyncio.run(scenario())
