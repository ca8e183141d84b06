"""Clients of the gRPC protocol, through RocketMQ's own proxy, on our name server and broker, and on Java's.

The proxy is a client of the broker as any other: it pops, acknowledges, ends transactions, recalls, asks for
topics and groups. Each case is a program in `java/grpc` that checks what it sees itself.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from ahead import Ahead
from clusters import Cluster, JavaBroker, java_proxy
from java_peers import GRPC, run_program

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300), pytest.mark.interop_case(row="java-grpc")]

CASES = ["Push", "Ordered", "Simple", "Delay", "Transaction"]


@pytest.fixture(scope="module", params=["ours", "java"])
def servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """The name server of a cluster, and the proxy before it."""
    cluster: Cluster = request.getfixturevalue("ours" if request.param == "ours" else "java_5")
    with java_proxy(cluster.name_server, tmp_path_factory.mktemp("proxy")) as proxy:
        yield cluster.name_server, proxy
    for broker in cluster.brokers.values():
        if isinstance(broker, JavaBroker):
            broker.restart()


@pytest.mark.parametrize("case", CASES)
def test_program(
    servers: tuple[str, str],
    case: str,
    request: pytest.FixtureRequest,
    ahead: Ahead,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    homes = tmp_path_factory.mktemp("grpc")

    def run(case: str) -> str:
        return run_program(GRPC, case, *servers, f"grpc-{case}-{secrets.token_hex(3)}", home=homes / case)

    print(ahead.output(request, "case", run))
