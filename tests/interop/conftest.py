"""Clusters that the tests of a session share, and the count that ends a run.

TANDEMMQ_REQUIRE_INTEROP=1 (`make interop`) means that Java and Maven have to be there and that a skipped case
is a failure; without it, the cases are skipped where a tool is missing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from ahead import Ahead
from client_place import Place
from clusters import Cluster, JavaBroker, java_cluster, our_cluster
from java_peers import GRPC, LINE_4, LINE_5, fetch_all, jars, missing_tools
from language_peers import GRPC_LANGUAGES, absent_tools
from tally import Tally, grpc_place_of, place_of

from tandemmq.client import Admin

TALLY = pytest.StashKey[Tally]()
STATUS = pytest.StashKey[int]()
IS_REQUIRED = os.environ.get("TANDEMMQ_REQUIRE_INTEROP") == "1"
IS_CLIENT_RUN = os.environ.get("TANDEMMQ_CLIENT_BOTH") == "1"
"""`make client-both`: only our client's cases, which need no more of Java than its servers."""
KINDS = ("interop", "grpc")
"""The markers of what needs Java; a run has one of them."""


INSTALL = {
    "interop": "install a JDK (11 or newer) and Maven",
    "grpc": "install Go, Node.js with npm, Rust, a JDK (11 or newer) and Maven",
}


def kind_of(item: pytest.Item) -> str | None:
    return next((kind for kind in KINDS if item.get_closest_marker(kind)), None)


def tools_of(kind: str) -> list[str]:
    """The programs that a run of the kind lacks."""
    if kind == "interop":
        return missing_tools()
    absent = {tool for language in GRPC_LANGUAGES.values() for tool in absent_tools(language)}
    return sorted({*absent, *missing_tools()})


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TALLY] = Tally()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if IS_REQUIRED:
        return
    for item in items:
        if (kind := kind_of(item)) and (missing := tools_of(kind)):
            item.add_marker(pytest.mark.skip(reason=f"{', '.join(missing)} missing: {INSTALL[kind]}"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Java's jars are fetched before the first test: a repository out of reach ends the run at once."""
    kinds = {item: kind for item in session.items if (kind := kind_of(item))}
    for item, kind in kinds.items():
        session.config.stash[TALLY].expect([item], grpc_place_of if kind == "grpc" else place_of)
    if not IS_REQUIRED or session.config.option.collectonly:
        return
    for kind in sorted(set(kinds.values())):
        if missing := tools_of(kind):
            pytest.exit(f"{', '.join(missing)} missing: {INSTALL[kind]}", returncode=1)
        if IS_CLIENT_RUN:
            return
        try:
            fetch_all() if kind == "interop" else fetch_servers()
        except AssertionError as error:
            pytest.exit(f"Java's jars cannot be had:\n{error}", returncode=1)


def fetch_servers() -> None:
    """Fetches the servers that the clients of the gRPC protocol need beside ours."""
    for line in (LINE_5, GRPC):
        jars(line.servers)


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
    elif tally.is_grpc:
        print("", *tally.grpc_table(), tally.grpc_line(is_good), sep="\n")
    else:
        print("", *tally.table(), tally.closing_line(is_good), sep="\n")


@pytest.fixture(autouse=True)
def _tools_are_there(request: pytest.FixtureRequest) -> None:
    if kind := kind_of(request.node):
        assert not tools_of(kind), f"missing: {tools_of(kind)}"


@pytest.fixture(scope="session")
def ahead() -> Iterator[Ahead]:
    programs = Ahead()
    yield programs
    programs.close()


# What the defaults of both makers leave off, and a case needs.
FILTERS = {"enablePropertyFilter": "true"}
SETTINGS = {"recallMessageEnable": "true", **FILTERS}


@pytest.fixture(scope="session")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Our name server and one broker of ours."""
    with our_cluster(tmp_path_factory.mktemp("ours")) as cluster:
        cluster.start_ours("broker-a", {"metricsExporterType": "DISABLE", **SETTINGS})
        yield cluster


@pytest.fixture(scope="session")
def java_4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with java_cluster(LINE_4, tmp_path_factory.mktemp("java-4")) as cluster:
        cluster.start_java(LINE_4, "broker-a", FILTERS)
        yield cluster


@pytest.fixture(scope="session")
def java_5(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with java_cluster(LINE_5, tmp_path_factory.mktemp("java-5")) as cluster:
        cluster.start_java(LINE_5, "broker-a", SETTINGS)
        yield cluster


# The cases of our Python client


@pytest.fixture(params=["ours", "java_4", "java_5"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


@pytest.fixture
def rests_after_transactions(cluster: Cluster) -> Iterator[None]:
    yield
    for broker in cluster.brokers.values():
        if isinstance(broker, JavaBroker):
            broker.restart()


@pytest.fixture
async def place(cluster: Cluster) -> Place:
    place = Place(cluster.name_server)
    async with Admin(place.namesrv) as admin:
        await admin.create_topic(place.topic, queue_count=2)
    return place
