"""Java clients and tools with access control and TLS against our brokers.

The program `Secure` sends and consumes signed, plain and over TLS, and looks at how it is refused; mqadmin of
both lines changes accounts, users and policies.
"""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from clusters import Cluster, our_cluster
from java_peers import LINE_4, LINE_5, LINES, Conversation, Line, make_home, programs, run_java, run_program

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

STARTUP = "org.apache.rocketmq.tools.command.MQAdminStartup"
KEY, SECRET = "java-user", "java-secret"
ADMIN, ADMIN_SECRET = "java-admin", "admin-secret"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pki")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=broker",
    ]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


def tls(certificate: tuple[Path, Path], mode: str) -> dict[str, object]:
    return {
        "tls.server.mode": mode,
        "tls.server.certPath": certificate[0],
        "tls.server.keyPath": certificate[1],
    }


@pytest.fixture(scope="module")
def accounts(
    certificate: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Cluster, Path]]:
    """A broker with plain_acl.yml that also speaks TLS, and the file."""
    directory = tmp_path_factory.mktemp("plain-acl")
    rules = directory / "conf" / "plain_acl.yml"
    rules.parent.mkdir()
    allowed = [f"secure-{line[0]}-{transport}=PUB|SUB" for line in LINES for transport in ("plain", "tls")]
    groups = [f"secure-{line[0]}-{transport}-group=SUB" for line in LINES for transport in ("plain", "tls")]
    user = {"accessKey": KEY, "secretKey": SECRET, "topicPerms": allowed, "groupPerms": groups}
    admin = {"accessKey": ADMIN, "secretKey": ADMIN_SECRET, "admin": True}
    rules.write_text(yaml.safe_dump({"accounts": [user, admin]}))
    settings = {"aclEnable": "true", "aclConfigDir": rules.parent, **tls(certificate, "permissive")}
    with our_cluster(directory, tls(certificate, "permissive")) as cluster:
        cluster.start_ours("broker-a", settings)
        yield cluster, rules


@pytest.fixture(scope="module")
def enforcing(certificate: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("enforcing")
    with our_cluster(directory, tls(certificate, "permissive")) as cluster:
        cluster.start_ours("broker-a", tls(certificate, "enforcing"))
        yield cluster


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker with users and policies, the first of them a super user."""
    with our_cluster(tmp_path_factory.mktemp("users")) as cluster:
        settings = {
            "authenticationEnabled": "true",
            "authorizationEnabled": "true",
            "initAuthenticationUser": f'{{"username":"{ADMIN}","password":"{ADMIN_SECRET}"}}',
        }
        cluster.start_ours("broker-a", settings)
        yield cluster


def make_tools_home(home: Path) -> Path:
    """A home whose tools.yml is the administrator's."""
    make_home(home)
    (home / "conf" / "tools.yml").write_text(f"accessKey: {ADMIN}\nsecretKey: {ADMIN_SECRET}\n")
    return home


def mqadmin(line: Line, home: Path, *words: str) -> str:
    output = run_java(programs(line), STARTUP, *words, home=home).stdout
    assert "at org." not in output, output
    return output


@pytest.mark.parametrize("transport", ["plain", "tls"])
@pytest.mark.parametrize("line", LINES)
def test_signed_clients_of_4x_rules(
    accounts: tuple[Cluster, Path], line: str, transport: str, tmp_path: Path
) -> None:
    flags = ["-Drocketmq.serialize.type=ROCKETMQ"] if transport == "tls" else []
    name_server = accounts[0].name_server
    topic = f"secure-{line[0]}-{transport}"
    run_program(LINES[line], "Secure", name_server, topic, KEY, SECRET, transport, home=tmp_path, flags=flags)


@pytest.mark.parametrize("line", LINES)
def test_clients_of_a_broker_that_enforces_tls(
    enforcing: Cluster, certificate: tuple[Path, Path], line: str, tmp_path: Path
) -> None:
    flags = ["-Dtls.test.mode.enable=false", "-Dtls.client.authServer=true"]
    flags.append(f"-Dtls.client.trustCertPath={certificate[0]}")
    topic = f"enforced-{line[0]}"
    run_program(
        LINES[line], "Secure", enforcing.name_server, topic, "-", "-", "tls", home=tmp_path, flags=flags
    )


def test_mqadmin_of_4_9_changes_accounts(accounts: tuple[Cluster, Path], tmp_path: Path) -> None:
    cluster, rules = accounts
    home, address = make_tools_home(tmp_path / "home"), cluster.brokers["broker-a"].address
    name = ["-n", cluster.name_server]
    topic, key = f"made-{secrets.token_hex(3)}", "made-by-tool"
    assert "success" in mqadmin(LINE_4, home, "updateTopic", "-b", address, "-t", topic, *name)
    changed = ["-a", key, "-s", "made-secret", "-t", f"{topic}=PUB|SUB", "-g", f"{topic}-group=SUB"]
    assert "success" in mqadmin(LINE_4, home, "updateAclConfig", "-b", address, *changed, *name)
    stored = {entry["accessKey"]: entry for entry in yaml.safe_load(rules.read_text())["accounts"]}
    assert stored[key]["topicPerms"] == [f"{topic}=PUB|SUB"]
    version = mqadmin(LINE_4, home, "clusterAclConfigVersion", "-b", address, *name)
    assert "plain_acl.yml" in version
    run_program(LINE_4, "Secure", cluster.name_server, topic, key, "made-secret", "plain", home=tmp_path)
    assert "success" in mqadmin(LINE_4, home, "deleteAccessConfig", "-b", address, "-a", key, *name)
    assert key not in rules.read_text()


def test_mqadmin_of_5_makes_users_and_policies(users: Cluster, tmp_path: Path) -> None:
    home, address = make_tools_home(tmp_path / "home"), users.brokers["broker-a"].address
    topic, name = f"users-{secrets.token_hex(3)}", ["-n", users.name_server]
    shell = Conversation(programs(LINE_5), "AdminShell", home=home)

    def run(*words: str) -> str:
        shell.say("\t".join([*words, "-b", address, *name]))
        output = "\n".join(shell.read_until("-- end of command")[:-1])
        assert "at org." not in output, output
        return output

    try:
        run("updateTopic", "-t", topic)
        run("createUser", "-u", KEY, "-p", SECRET, "-t", "Normal")
        assert KEY in run("listUser")
        run("createAcl", "-s", f"User:{KEY}", "-r", f"Topic:{topic}", "-a", "Pub,Sub", "-d", "Allow")
        run("createAcl", "-s", f"User:{KEY}", "-r", f"Group:{topic}*", "-a", "Sub", "-d", "Allow")
        shown = run("getAcl", "-s", f"User:{KEY}")
        assert f"Topic:{topic}" in shown
        assert "Allow" in shown
        for line in LINES:
            run_program(LINES[line], "Secure", users.name_server, topic, KEY, SECRET, "plain", home=tmp_path)
            topic_group = f"{topic}-group"
            run("deleteSubGroup", "-g", topic_group)
        run("updateAcl", "-s", f"User:{KEY}", "-r", f"Topic:{topic}", "-a", "Pub", "-d", "Deny")
        assert "Deny" in run("listAcl", "-s", f"User:{KEY}")
        run("updateUser", "-u", KEY, "-s", "disable")
        assert "disable" in run("getUser", "-u", KEY)
        run("deleteAcl", "-s", f"User:{KEY}", "-r", f"Topic:{topic}")
        run("deleteUser", "-u", KEY)
        assert KEY not in run("listUser")
    finally:
        shell.close()
