"""The official clients of the gRPC protocol in five languages, through our proxy and through RocketMQ's.

`ours` is our proxy before our broker, `mixed` our proxy before RocketMQ's broker, and `control` RocketMQ's
proxy and broker: a case that fails there too says nothing about us.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from ahead import Ahead
from clusters import Cluster, java_cluster, java_proxy, our_cluster
from grpc_peers import CASES, SETTINGS, Servers, cases_of, our_proxy, own_certificate
from java_peers import LINE_5
from language_peers import BUILD_SECONDS_MAX, GRPC_LANGUAGES, command_of, run_client

from tandemmq.api import broker_admin
from tandemmq.client import BlockingAdmin, BlockingProducer, Message, ProducerOptions
from tandemmq.protocol.bodies.tables import AclInfo, EntryInfo, PolicyInfo, UserInfo
from tandemmq.protocol.signature import Credentials

pytestmark = [pytest.mark.grpc, pytest.mark.timeout(BUILD_SECONDS_MAX + 240)]

JAVA_SETTINGS = {"waitTimeMillsInSendQueue": 20_000, **SETTINGS}
"""By default it refuses a send that waits 200 ms for a thread, as may happen on a busy machine."""
OURS = {"PEER_PROXY": "ours"}
"""Tells a program that Java's proxy differs here from ours."""
ADMIN = Credentials("grpc-admin", "admin-secret")
USER = Credentials("grpc-user", "user-secret")


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
def our_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with our_cluster(tmp_path_factory.mktemp("grpc-ours")) as cluster:
        cluster.start_ours("broker-a", {"metricsExporterType": "DISABLE", **SETTINGS})
        yield cluster


@pytest.fixture(scope="module", params=["ours", "mixed", "control"])
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp(f"grpc-{request.param}")
    if request.param == "ours":
        cluster: Cluster = request.getfixturevalue("our_servers")
        # Clients of one program connect to different workers.
        with our_proxy(cluster.name_server, folder, {"proxyWorkers": 2}) as proxy:
            yield Servers(
                cluster, proxy, {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(own_certificate(folder)), **OURS}
            )
        return
    cert, key = request.getfixturevalue("certificate")
    files = {"tlsTestModeEnable": "false", "tlsCertPath": str(cert), "tlsKeyPath": str(key)}
    environment = {
        "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(cert),
        **(OURS if request.param == "mixed" else {}),
    }
    make = our_proxy if request.param == "mixed" else java_proxy
    # A cluster for each: transactions leave a broker with a busy processor, and the next proxy gives it 3 s.
    with java_cluster(LINE_5, folder / "servers") as cluster:
        cluster.start_java(LINE_5, "broker-a", JAVA_SETTINGS)
        warm_up(cluster)
        with make(cluster.name_server, folder, files) as proxy:
            yield Servers(cluster, proxy, environment)


def warm_up(cluster: Cluster) -> None:
    """Sends a message: the first one takes a Java broker seconds, and a client would send its first twice."""
    with BlockingAdmin(cluster.name_server) as admin:
        admin.create_topic("warm-up")
    options = ProducerOptions(timeout_s=60)
    with BlockingProducer("warm-up", cluster.name_server, options=options) as producer:
        assert producer.send(Message(topic="warm-up", body=b"first")).is_ok


RUNS = [(language, case) for language in GRPC_LANGUAGES for case in cases_of(language)]


@pytest.mark.parametrize(("language", "case"), RUNS)
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


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Our proxy and broker with access control; the user may use the topics and groups of these tests."""
    folder = tmp_path_factory.mktemp("grpc-guarded")
    access = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "innerClientAuthenticationCredentials": json.dumps(
            {"accessKey": ADMIN.access_key, "secretKey": ADMIN.secret_key}
        ),
    }
    first = json.dumps({"username": ADMIN.access_key, "password": ADMIN.secret_key})
    with our_cluster(folder) as cluster:
        settings = {"metricsExporterType": "DISABLE", "initAuthenticationUser": first, **SETTINGS, **access}
        cluster.start_ours("broker-a", settings)
        with our_proxy(cluster.name_server, folder / "proxy", access) as proxy:
            keys = {"PEER_ACCESS_KEY": USER.access_key, "PEER_SECRET_KEY": USER.secret_key}
            servers = Servers(cluster, proxy, {**OURS, **keys}, ADMIN)
            user = UserInfo(username=USER.access_key, password=USER.secret_key)
            asyncio.run(servers.ask(broker_admin.create_user, user))
            entries = (
                EntryInfo(resource="Topic:grpc-*", actions=("Pub", "Sub"), decision="Allow"),
                EntryInfo(resource="Group:grpc-*", actions=("Sub",), decision="Allow"),
            )
            acl = AclInfo(subject=f"User:{USER.access_key}", policies=(PolicyInfo(entries=entries),))
            asyncio.run(servers.ask(broker_admin.create_acl, acl))
            servers.prepare(CASES["normal"], "forbidden", "python")
            yield servers


@pytest.mark.parametrize("language", GRPC_LANGUAGES)
def test_acl(guarded: Servers, language: str, tmp_path: Path) -> None:
    peer = GRPC_LANGUAGES[language]
    command_of(peer)
    topic = f"grpc-{language}-acl-{secrets.token_hex(3)}"
    guarded.prepare(CASES["normal"], topic, language)
    print(run_client(peer, "acl", guarded.proxy, topic, home=tmp_path, environment=guarded.environment))
