"""kombu's own integration tests over our transport: `make frameworks` gets them with kombu's sources."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import kombu
import pytest

from tandemmq.integrations import kombu_transport
from tandemmq.testing import BlockingCluster

kombu_transport.register()

SOURCES = os.environ.get("TANDEMMQ_FRAMEWORK_SOURCES")
if not SOURCES:
    pytest.skip("`make frameworks` gets kombu's tests", allow_module_level=True)


def _load() -> ModuleType:
    path = Path(SOURCES or "") / "kombu" / "t" / "integration" / "common.py"
    spec = importlib.util.spec_from_file_location("kombu_common", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


common: Any = _load()


@pytest.fixture(scope="module")
def cluster() -> Iterator[BlockingCluster]:
    with BlockingCluster() as cluster:
        yield cluster


@pytest.fixture
def connection(cluster: BlockingCluster) -> Iterator[Any]:
    options = {"priorities": True, "queue_count": 10}
    with kombu.Connection(f"tandemmq://{cluster.name_servers}", transport_options=options) as connection:
        yield connection


@pytest.fixture
def invalid_connection() -> Iterator[Any]:
    with kombu.Connection("tandemmq://127.0.0.1:1") as connection:
        yield connection


@pytest.fixture
def failover_connection(cluster: BlockingCluster) -> Iterator[Any]:
    urls = ["tandemmq://127.0.0.1:1", f"tandemmq://{cluster.name_servers}"]
    with kombu.Connection(urls, connect_timeout=1) as connection:
        yield connection


class TestBasicFunctionality(common.BasicFunctionality):  # type: ignore[misc]
    pass


class TestExchangeTypes(common.BaseExchangeTypes):  # type: ignore[misc]
    pass


class TestPriority(common.BasePriority):  # type: ignore[misc]
    @pytest.fixture
    def connection(self, connection: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
        drain_one = connection.drain_events

        def drain_events(timeout: float) -> None:
            """Passes on all that comes, as with AMQP; kombu's virtual transports pass one message a call."""
            drain_one(timeout=timeout)
            with suppress(TimeoutError):
                while True:
                    drain_one(timeout=timeout)

        monkeypatch.setattr(connection, "drain_events", drain_events)
        return connection

    @pytest.mark.xfail(reason="a transient queue keeps the order of its messages", strict=True)
    def test_simple_buffer_publish_consume(self, connection: Any) -> None:
        super().test_simple_buffer_publish_consume(connection)


class TestMessage(common.BaseMessage):  # type: ignore[misc]
    pass


class TestTimeToLive(common.BaseTimeToLive):  # type: ignore[misc]
    pass


class TestEventLoop(common.BaseEventLoop):  # type: ignore[misc]
    pass


class TestFailover(common.BaseFailover):  # type: ignore[misc]
    pass
