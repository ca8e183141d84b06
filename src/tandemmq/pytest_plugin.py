"""Fixtures for tests of applications: `tandemmq_cluster`, `tandemmq_topic`, producers and consumers.

They are installed with the package: pytest finds them by its entry point. `topic`, `producer` and `consumer`
are short names, which a test suite may define differently. Cluster code is imported only when a test requests
a fixture. Faults that a test caused are repaired before the next test begins.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tandemmq.client import BlockingConsumer, BlockingProducer, ReceivedMessage
    from tandemmq.testing import BlockingCluster

_numbers = itertools.count(1)
TOPIC_NAME_CHARS_MAX = 100
"""Leaves room for the prefixes of retry topics below RocketMQ's 127."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("tandemmq").addoption(
        "--tandemmq-url",
        metavar="HOST:PORT",
        help="the name servers of a running cluster, for all tests, instead of a cluster in this process",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Not earlier: an import of pytest-asyncio before pytest has loaded it causes a warning.
    from tandemmq import pytest_async_fixtures

    config.pluginmanager.register(pytest_async_fixtures, "tandemmq-async")


@pytest.fixture(scope="session")
def tandemmq_options() -> Mapping[str, Any]:
    """Returns the arguments of `tandemmq.testing.Cluster`; define your own fixture of this name to change
    them.
    """
    return {}


@pytest.fixture(scope="session")
def tandemmq_cluster(
    request: pytest.FixtureRequest, tandemmq_options: Mapping[str, Any]
) -> Iterator[BlockingCluster]:
    """Yields a cluster of a name server and a broker for all tests of this run, with injectable faults; with
    `--tandemmq-url` the running cluster, without faults.
    """
    from tandemmq.testing import BlockingCluster

    url = request.config.getoption("--tandemmq-url")
    with BlockingCluster.outside(url) if url else BlockingCluster(**tandemmq_options) as cluster:
        yield cluster


@pytest.fixture
def tandemmq_topic(request: pytest.FixtureRequest, tandemmq_cluster: BlockingCluster) -> Iterator[str]:
    """Yields a new topic with four queues, named after the test; a running cluster is left without it."""
    from tandemmq.runtime.machine import unpredictable_bytes

    url = request.config.getoption("--tandemmq-url")
    label = re.sub(r"[^\w%|-]+", "_", request.node.name, flags=re.ASCII)[:TOPIC_NAME_CHARS_MAX]
    name = f"{label}-{unpredictable_bytes(4).hex() if url else next(_numbers)}"
    tandemmq_cluster.create_topic(name)
    yield name
    if url:
        from tandemmq.client import BlockingAdmin

        with BlockingAdmin(url) as admin:
            admin.delete_topic(name)


@pytest.fixture
def tandemmq_producer(tandemmq_cluster: BlockingCluster) -> Iterator[BlockingProducer]:
    """Yields a started producer."""
    with tandemmq_cluster.producer() as producer:
        yield producer


@pytest.fixture
def tandemmq_consumer(tandemmq_cluster: BlockingCluster, tandemmq_topic: str) -> Iterator[BlockingConsumer]:
    """Yields a started consumer of the topic, alone in its group, that begins with the first message."""
    with tandemmq_cluster.consumer(tandemmq_topic, f"group-{tandemmq_topic}") as consumer:
        yield consumer


@pytest.fixture
def tandemmq_published(tandemmq_cluster: BlockingCluster) -> Callable[[str], list[ReceivedMessage]]:
    """Returns `published(topic)`: the messages that the topic has now."""
    return tandemmq_cluster.published


@pytest.fixture
def topic(tandemmq_topic: str) -> str:
    """Returns the topic of `tandemmq_topic`."""
    return tandemmq_topic


@pytest.fixture
def producer(tandemmq_producer: BlockingProducer) -> BlockingProducer:
    """Returns the producer of `tandemmq_producer`."""
    return tandemmq_producer


@pytest.fixture
def consumer(tandemmq_cluster: BlockingCluster, topic: str) -> Iterator[BlockingConsumer]:
    """Yields a consumer as `tandemmq_consumer` does, of `topic`."""
    with tandemmq_cluster.consumer(topic, f"group-{topic}") as consumer:
        yield consumer


@pytest.fixture
def published(
    tandemmq_published: Callable[[str], list[ReceivedMessage]],
) -> Callable[[str], list[ReceivedMessage]]:
    """Returns the function of `tandemmq_published`."""
    return tandemmq_published


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    cluster = getattr(item, "funcargs", {}).get("tandemmq_cluster")
    if cluster is not None:
        cluster.heal()
