"""The official clients of the gRPC protocol in five languages, through our proxy and through RocketMQ's.

`ours` is our proxy before our broker, `mixed` our proxy before RocketMQ's broker, and `control` RocketMQ's
proxy and broker: a case that fails there too says nothing about us.
"""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from ahead import Ahead
from clusters import Cluster, java_cluster, java_proxy, our_cluster
from grpc_peers import CASES, SETTINGS, Servers, cases_of, our_proxy
from java_peers import LINE_5
from language_peers import BUILD_SECONDS_MAX, GRPC_LANGUAGES, command_of, run_client

pytestmark = [pytest.mark.grpc, pytest.mark.timeout(BUILD_SECONDS_MAX + 240)]

UNSUPPORTED = {("ours", "priority")}
"""Our broker has no priority topics."""


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate that clients can verify, and its key."""
    folder = tmp_path_factory.mktemp("grpc-pki")
    cert, key = folder / "cert.pem", folder / "key.pem"
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=proxy -addext subjectAltName=IP:127.0.0.1"
    command = ["openssl", *words.split(), "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


@pytest.fixture(scope="session")
def java_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with java_cluster(LINE_5, tmp_path_factory.mktemp("grpc-java")) as cluster:
        cluster.start_java(LINE_5, "broker-a", SETTINGS)
        yield cluster


@pytest.fixture(scope="session")
def our_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with our_cluster(tmp_path_factory.mktemp("grpc-ours")) as cluster:
        cluster.start_ours("broker-a", {"metricsExporterType": "DISABLE", **SETTINGS})
        yield cluster


@pytest.fixture(scope="module")
def servers(
    request: pytest.FixtureRequest, certificate: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp(f"grpc-{request.param}")
    cluster: Cluster = request.getfixturevalue("our_servers" if request.param == "ours" else "java_servers")
    cert, key = certificate
    files = {"tlsTestModeEnable": False, "tlsCertPath": str(cert), "tlsKeyPath": str(key)}
    environment = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(cert)}
    if request.param == "control":
        with java_proxy(cluster.name_server, folder, files) as proxy:
            yield Servers(cluster, proxy, environment)
    else:
        with our_proxy(cluster.name_server, folder, files) as proxy:
            yield Servers(cluster, proxy, {**environment, "PEER_PROXY": "ours"})


def runs() -> list[tuple[str, str, str]]:
    return [
        (made, language, case)
        for made in ("ours", "mixed", "control")
        for language in GRPC_LANGUAGES
        for case in cases_of(language)
        if (made, case) not in UNSUPPORTED
    ]


@pytest.mark.parametrize(("servers", "language", "case"), runs(), indirect=["servers"])
def test_case(
    servers: Servers,
    language: str,
    case: str,
    request: pytest.FixtureRequest,
    ahead: Ahead,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    peer = GRPC_LANGUAGES[language]
    command_of(peer)
    homes = tmp_path_factory.mktemp("grpc-homes")

    def run(name: str) -> str:
        topic = f"grpc-{language}-{name}-{secrets.token_hex(3)}"
        servers.prepare(CASES[name], topic, language)
        words = (name, servers.proxy, topic)
        return run_client(peer, *words, home=homes / name, environment=servers.environment)

    print(ahead.output(request, "case", run))
