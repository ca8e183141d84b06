"""Fixtures for tests of applications: `tandemmq_cluster`, `topic`, `producer` and `consumer`.

They are installed with the package: pytest finds them by its entry point. Cluster code is imported only when
a test requests a fixture. Faults that a test caused are repaired before the next test begins.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tandemmq.client import BlockingConsumer, BlockingProducer
    from tandemmq.testing import BlockingCluster

_numbers = itertools.count(1)
TOPIC_NAME_CHARS_MAX = 100
"""Leaves room for the prefixes of retry topics below RocketMQ's 127."""


@pytest.fixture(scope="session")
def tandemmq_options() -> Mapping[str, Any]:
    """Returns the arguments of `tandemmq.testing.Cluster`; define your own fixture of this name to change
    them.
    """
    return {}


@pytest.fixture(scope="session")
def tandemmq_cluster(tandemmq_options: Mapping[str, Any]) -> Iterator[BlockingCluster]:
    """Yields a cluster of a name server and a broker for all tests of this run, with injectable faults."""
    from tandemmq.testing import BlockingCluster

    with BlockingCluster(**tandemmq_options) as cluster:
        yield cluster


@pytest.fixture
def topic(request: pytest.FixtureRequest, tandemmq_cluster: BlockingCluster) -> str:
    """Returns a new topic with four queues, named after the test."""
    label = re.sub(r"[^\w%|-]+", "_", request.node.name, flags=re.ASCII)[:TOPIC_NAME_CHARS_MAX]
    name = f"{label}-{next(_numbers)}"
    tandemmq_cluster.create_topic(name)
    return name


@pytest.fixture
def producer(tandemmq_cluster: BlockingCluster) -> Iterator[BlockingProducer]:
    """Yields a started producer."""
    with tandemmq_cluster.producer() as producer:
        yield producer


@pytest.fixture
def consumer(tandemmq_cluster: BlockingCluster, topic: str) -> Iterator[BlockingConsumer]:
    """Yields a started consumer of `topic`, alone in its group, that begins with the first message."""
    with tandemmq_cluster.consumer(topic, f"group-{topic}") as consumer:
        yield consumer


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    cluster = getattr(item, "funcargs", {}).get("tandemmq_cluster")
    if cluster is not None:
        cluster.heal()
