"""A Spark session and a small cluster of real processes, shared by the tests of this folder.

Both take seconds to start on two cores, so they last for the whole test session, and each test uses its own
topics and directories.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from spark_cluster import Cluster, start_cluster
from typer.testing import CliRunner

import tandemmq.spark.pipelines.runner
from tandemmq.errors import ConfigError
from tandemmq.spark.command import app
from tandemmq.spark.java import find_java
from tandemmq.spark.session import build_session

SECONDS_MAX = 900
"""The timeout of one test on a slow and busy machine; most tests take ten seconds, none a minute."""


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Skips the tests of this folder if Java is missing, with the error that users get as the reason."""
    try:
        find_java()
        reason = ""
    except ConfigError as error:
        reason = str(error)
    folder = f"{Path(__file__).parent}{os.sep}"
    for item in items:
        if not str(item.path).startswith(folder):
            continue
        item.add_marker(pytest.mark.spark)
        item.add_marker(pytest.mark.timeout(SECONDS_MAX))
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from start_cluster(tmp_path_factory.mktemp("cluster"))


@pytest.fixture(scope="session")
def spark_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the file with the standard error of Java and of the Python processes that Spark starts."""
    return tmp_path_factory.mktemp("spark") / "spark.log"


@pytest.fixture(scope="session")
def spark(spark_log: Path) -> Iterator[Any]:
    session = build_session("tests", "local[2]", shuffle_partitions=2, log_file=spark_log)
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _quick_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restricts Java to its quick compiler, because the better one never pays off in the seconds of a
    test.
    """
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Yields a cluster whose processes a test may kill."""
    yield from start_cluster(tmp_path)


@pytest.fixture
def run_command(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Returns a function that runs `tandemmq pipeline ...` in the existing session and returns its output."""
    monkeypatch.setattr(tandemmq.spark.pipelines.runner, "build_session", lambda *args, **more: spark)
    monkeypatch.setattr(type(spark), "stop", lambda self: None)

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, (arguments, result.output)
        return result.output

    return run


@pytest.fixture
def run_pipeline(run_command: Callable[..., str]) -> Callable[..., list[dict[str, Any]]]:
    """Returns a function that runs a pipeline like `run_command`, and returns its events."""

    def run(*arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in run_command(*arguments, "--progress", "json").splitlines()]

    return run
