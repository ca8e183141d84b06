"""Fixtures for tests with asyncio: `tandemmq_async_producer` and `tandemmq_async_consumer`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tandemmq.client import Consumer, Producer
    from tandemmq.testing import BlockingCluster

    async_fixture = pytest.fixture
else:
    try:
        from pytest_asyncio import fixture as async_fixture
    except ImportError:  # another plugin runs the coroutines
        async_fixture = pytest.fixture


@async_fixture
async def tandemmq_async_producer(tandemmq_cluster: BlockingCluster) -> AsyncIterator[Producer]:
    """Yields a started producer for asyncio."""
    from tandemmq.client import Producer
    from tandemmq.testing.cluster import producer_options

    async with Producer(
        "test-producer", tandemmq_cluster.name_servers, options=producer_options()
    ) as producer:
        yield producer


@async_fixture
async def tandemmq_async_consumer(
    tandemmq_cluster: BlockingCluster, tandemmq_topic: str
) -> AsyncIterator[Consumer]:
    """Yields a started consumer for asyncio of the topic, alone in its group, that begins with the first
    message.
    """
    from tandemmq.client import Consumer
    from tandemmq.testing.cluster import consumer_options

    group = f"group-{tandemmq_topic}"
    consumer = Consumer(group, tandemmq_cluster.name_servers, options=consumer_options())
    consumer.subscribe(tandemmq_topic)
    async with consumer:
        yield consumer
