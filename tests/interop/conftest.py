"""Clusters that the tests of a session share, and what happens when Java or Maven is missing."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from clusters import Cluster, java_cluster, our_cluster
from java_peers import LINE_4, LINE_5, missing_tools


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = missing_tools()
    if not missing or os.environ.get("TANDEMMQ_REQUIRE_INTEROP") == "1":
        return
    reason = f"{', '.join(missing)} missing: install a JDK (11 or newer) and Maven"
    for item in items:
        if item.get_closest_marker("interop"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _tools_are_there(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("interop"):
        assert not missing_tools(), f"missing: {missing_tools()}"


@pytest.fixture(scope="session")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Our name server and one broker of ours with default settings."""
    with our_cluster(tmp_path_factory.mktemp("ours")) as cluster:
        cluster.start_ours("broker-a", {"metricsExporterType": "DISABLE"})
        yield cluster


@pytest.fixture(scope="session")
def java_4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with java_cluster(LINE_4, tmp_path_factory.mktemp("java-4")) as cluster:
        cluster.start_java(LINE_4, "broker-a")
        yield cluster


@pytest.fixture(scope="session")
def java_5(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with java_cluster(LINE_5, tmp_path_factory.mktemp("java-5")) as cluster:
        cluster.start_java(LINE_5, "broker-a")
        yield cluster
