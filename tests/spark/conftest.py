"""A Spark session and a small cluster of real processes, shared by the tests of this folder.

Both take seconds to start on two cores, so they live as long as the test session and each test uses topics
and directories of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from spark_cluster import Cluster, start_cluster

from tandemmq.errors import ConfigError
from tandemmq.spark.java import find_java
from tandemmq.spark.pipelines.sessions import register_formats
from tandemmq.spark.session import build_session


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Everything here needs Java; where there is none, the reason is the sentence that users get."""
    try:
        find_java()
        reason = ""
    except ConfigError as error:
        reason = str(error)
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        item.add_marker(pytest.mark.spark)
        item.add_marker(pytest.mark.timeout(300))
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from start_cluster(tmp_path_factory.mktemp("cluster"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    log = tmp_path_factory.mktemp("spark") / "spark.log"
    session = build_session("tests", "local[2]", log_file=log)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def lake_spark(spark: Any) -> Any:
    """The session with every format of ours registered, as the pipelines do it."""
    register_formats(spark)
    return spark
