"""Clusters that the tests of a session share, and the count that ends a run.

TANDEMMQ_REQUIRE_INTEROP=1 (`make interop`) means that Java and Maven have to be there and that a skipped case
is a failure; without it, the cases are skipped where a tool is missing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from ahead import Ahead
from clusters import Cluster, java_cluster, our_cluster
from java_peers import LINE_4, LINE_5, fetch_all, missing_tools
from tally import Tally

TALLY = pytest.StashKey[Tally]()
STATUS = pytest.StashKey[int]()
IS_REQUIRED = os.environ.get("TANDEMMQ_REQUIRE_INTEROP") == "1"
IS_CLIENT_RUN = os.environ.get("TANDEMMQ_CLIENT_BOTH") == "1"
"""`make client-both`: only our client's cases, which need no more of Java than its servers."""


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TALLY] = Tally()
    config.addinivalue_line("markers", "interop_case(row=, column=): where it is counted, see tally.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = missing_tools()
    if not missing or IS_REQUIRED:
        return
    reason = f"{', '.join(missing)} missing: install a JDK (11 or newer) and Maven"
    for item in items:
        if item.get_closest_marker("interop"):
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Java's jars are fetched before the first test: a repository out of reach ends the run at once."""
    items = [item for item in session.items if item.get_closest_marker("interop")]
    session.config.stash[TALLY].expect(items)
    if items and IS_REQUIRED and not session.config.option.collectonly:
        if missing_tools():
            pytest.exit(f"{', '.join(missing_tools())} missing: install a JDK and Maven", returncode=1)
        if IS_CLIENT_RUN:
            return
        try:
            fetch_all()
        except AssertionError as error:
            pytest.exit(f"Java's jars cannot be had:\n{error}", returncode=1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    item.config.stash[TALLY].add(report)  # type: ignore[arg-type]
    return report  # type: ignore[return-value]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.stash[TALLY].failed_count and IS_REQUIRED and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    session.config.stash[STATUS] = int(session.exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """The last words of a run that requires interoperation; nothing is printed behind them."""
    tally = config.stash[TALLY]
    if not IS_REQUIRED or not tally.places or config.option.collectonly:
        return
    is_good = config.stash.get(STATUS, 1) == 0 and any(tally.passed.values())
    if IS_CLIENT_RUN:
        print("", tally.client_line(is_good), sep="\n")
    else:
        print("", *tally.table(), tally.closing_line(is_good), sep="\n")


@pytest.fixture(autouse=True)
def _tools_are_there(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("interop"):
        assert not missing_tools(), f"missing: {missing_tools()}"


@pytest.fixture(scope="session")
def ahead() -> Iterator[Ahead]:
    programs = Ahead()
    yield programs
    programs.close()


# What the defaults of both makers leave off, and a case needs.
SETTINGS = {"recallMessageEnable": "true"}


@pytest.fixture(scope="session")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Our name server and one broker of ours."""
    with our_cluster(tmp_path_factory.mktemp("ours")) as cluster:
        cluster.start_ours("broker-a", {"metricsExporterType": "DISABLE", **SETTINGS})
        yield cluster


@pytest.fixture(scope="session")
def java_4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with java_cluster(LINE_4, tmp_path_factory.mktemp("java-4")) as cluster:
        cluster.start_java(LINE_4, "broker-a")
        yield cluster


@pytest.fixture(scope="session")
def java_5(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with java_cluster(LINE_5, tmp_path_factory.mktemp("java-5")) as cluster:
        cluster.start_java(LINE_5, "broker-a", SETTINGS)
        yield cluster
