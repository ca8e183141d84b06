"""Clients in other languages than Java against our name server and broker, and against Java's.

Each case is in the language's own folder, in a program that checks what it sees itself. Those of C++, Go and
Rust speak the remoting protocol; those of Node and Python the gRPC protocol, through RocketMQ's proxy.
"""

from __future__ import annotations

import ast
import secrets
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import Cluster, java_proxy
from language_peers import BUILD_SECONDS_MAX, command_of, require, run_client

from tandemmq.client import BlockingAdmin

pytestmark = [pytest.mark.interop, pytest.mark.timeout(BUILD_SECONDS_MAX + 240)]

REMOTING = [
    ("c++", "push"),
    ("c++", "orderly"),
    ("c++", "pull"),
    ("go", "pull"),
    ("go", "push"),
    ("go", "orderly"),
    ("go", "admin"),
    ("rust", "push"),
]
GRPC = [("node", "simple"), ("python", "simple"), ("python", "push")]


@pytest.fixture(scope="module", params=["ours", "java"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    found: Cluster = request.getfixturevalue("ours" if request.param == "ours" else "java_5")
    return found


@pytest.fixture(scope="module")
def proxy(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with java_proxy(cluster.name_server, tmp_path_factory.mktemp("proxy")) as address:
        yield address


def name_of(language: str, case: str) -> str:
    return f"{language.replace('c++', 'cpp')}-{case}-{secrets.token_hex(3)}"


@pytest.mark.parametrize(("language", "case"), REMOTING)
def test_client(language: str, case: str, cluster: Cluster, tmp_path: Path) -> None:
    peer = require(language)
    command_of(peer)
    broker, topic = cluster.brokers["broker-a"].address, name_of(language, case)
    if language == "rust":
        # It would choose one of eight queues of a topic that its first message makes with four.
        with BlockingAdmin(cluster.name_server) as admin:
            admin.ensure_topic(topic)
    print(run_client(peer, case, cluster.name_server, topic, broker, home=tmp_path / "home"))


@pytest.mark.parametrize(("language", "case"), GRPC)
def test_client_of_the_proxy(
    language: str, case: str, cluster: Cluster, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    peer = require(language)
    command_of(peer)
    proxy: str = request.getfixturevalue("proxy")
    topic = name_of(language, case)
    with BlockingAdmin(cluster.name_server) as admin:
        admin.ensure_topic(topic)
    print(run_client(peer, case, proxy, topic, home=tmp_path / "home"))


# A Python client of the remoting protocol that no package index has; these are its bytes.
ROUTE_QUESTION = (
    b'{"code":105,"language":3,"version":1,"opaque":7,"flag":0,"remark":null,"extFields":{"topic":"%b"},'
    b'"serializeTypeCurrentRPC":"JSON"}'
)


@pytest.mark.interop_case(row="python", column="our servers")
def test_a_python_client_that_evaluates_routes(ours: Cluster) -> None:
    """It reads the route as a Python value, and looks the master up by the number 0."""
    topic = name_of("python", "route")
    with BlockingAdmin(ours.name_server) as admin:
        admin.ensure_topic(topic)
    header = ROUTE_QUESTION % topic.encode()
    host, port = ours.name_server.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(struct.pack(">ii", 4 + len(header), len(header)) + header)
        answer = connection.makefile("rb")
        size, header_size = struct.unpack(">ii", answer.read(8))
        rest = answer.read(size - 4)
    body = ast.literal_eval(rest[header_size & 0xFFFFFF :].decode())
    assert body["brokerDatas"][0]["brokerAddrs"][0] == ours.brokers["broker-a"].address
