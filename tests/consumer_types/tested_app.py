"""Tests of an application, with the fixtures that come with the package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tandemmq.client import BlockingConsumer, BlockingProducer, Message, ProducerOptions
from tandemmq.errors import TandemError
from tandemmq.testing import BlockingCluster, Cluster, ClusterFailed


@pytest.fixture(scope="session")
def tandemmq_options() -> Mapping[str, Any]:
    return {"slave": True, "settings": {"maxMessageSize": 65536}}


def test_sent_message_is_received(topic: str, producer: BlockingProducer, consumer: BlockingConsumer) -> None:
    assert producer.send(Message(topic=topic, body=b"order 1")).is_ok
    (message,) = consumer.poll(1, timeout_s=10)
    assert message.body == b"order 1"


def test_a_lost_master_refuses(tandemmq_cluster: BlockingCluster, topic: str) -> None:
    tandemmq_cluster.lose_master()
    hasty = ProducerOptions(timeout_s=0.3)
    with tandemmq_cluster.producer(options=hasty) as producer, pytest.raises(TandemError):
        producer.send(Message(topic=topic, body=b"order 2"))


async def test_on_asyncio() -> None:
    try:
        async with Cluster(slave=True) as cluster, cluster.producer() as producer:
            await producer.send(Message(topic="Orders", body=b"order 1"))
            await cluster.lose_master()
    except ClusterFailed as error:
        print(error)
