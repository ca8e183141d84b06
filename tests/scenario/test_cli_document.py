"""The first commands of the README and those of docs/cli.md run as written, from top to bottom; the files of
packaging/ name existing commands and settings.
"""

from __future__ import annotations

import html
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from tandemmq.config.load import MachineFacts, load_broker, load_name_server, load_proxy, read_settings
from tandemmq.console.command import console
from tandemmq.telemetry.export_options import MetricsExporter
from waits import PATIENCE_S

ROOT = Path(__file__).parents[2]
HEALTH = {"readinessProbe": "/health/ready", "livenessProbe": "/health/live"}
HOME = Path("/home/somebody")
MACHINE = MachineFacts(
    host_name="host",
    address="192.0.2.9",
    memory_bytes=1 << 30,
    home=HOME,
    rocketmq_home=HOME,
    name_servers="",
)
PLAIN_LINE = re.compile(r"^    (tandemmq (?:admin|topics|reply|request) .*)$", re.MULTILINE)
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
NAMED = (
    "up",
    "status",
    "down",
    "produce",
    "consume",
    "tail",
    "browse",
    "dlq resend",
    "contexts set",
    "topics create",
    "topics alter",
    "groups describe",
    "groups reset",
    "lag",
    "doctor",
)


@pytest.mark.process
def test_the_commands_of_the_document_run(tmp_path: Path) -> None:
    source = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    first_screen = BLOCK.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert first_screen is not None
    # The `pip` lines are skipped, and another test runs the Spark line.
    begin = [line for line in first_screen[1].splitlines() if not line.startswith(("pip ", "python -c "))]
    *blocks, last = BLOCK.findall(source)
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "client").glob("*.md"))
    script = "\n".join([*begin, *blocks, *PLAIN_LINE.findall(pages)])
    create, reply, request = PLAIN_LINE.findall(source)
    assert "tandemmq down" in last
    assert [name for name in NAMED if f"tandemmq {name}" not in script + last] == []
    tool = tmp_path / "bin" / "tandemmq"
    tool.parent.mkdir()
    # Only the ports differ from the document: RocketMQ's own may be in use here.
    tool.write_text(
        '#!/bin/sh\n[ "$1" = up ] && set -- "$@" --port-base auto\n'
        f'exec {shlex.quote(sys.executable)} -m tandemmq "$@"\n'
    )
    tool.chmod(0o755)
    clean = {name: text for name, text in os.environ.items() if "NAMESRV" not in name}
    path = f"{tool.parent}:{clean['PATH']}"
    own = {"TANDEMMQ_STORE": str(tmp_path / "store"), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    environment = {**clean, "PATH": path, **own}

    def run(text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-eux", "-c", text],
            capture_output=True,
            text=True,
            timeout=8 * PATIENCE_S,  # some 90 commands, each a process
            env=environment,
            cwd=tmp_path,
            check=False,
        )

    try:
        done = run(f"{script}\n{create}")
        answered = run(f"{reply} & until {request} >answer; do kill -0 $!; done; kill $!; wait; cat answer")
    finally:
        run(last)
    assert answered.stdout.endswith("HOW MANY?\n"), answered.stdout + answered.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 messages sent to greetings" in done.stdout
    assert "1000 messages sent to Orders" in done.stdout
    picture = (ROOT / "docs" / "images" / "terminal.svg").read_text(encoding="utf-8")
    for line in begin:
        words = html.escape(line.partition("  #")[0].strip(), quote=False).replace("'", "&#x27;")
        assert words.replace(" ", "&#160;") in picture, f"record the terminal picture again: {line}"
    assert len((tmp_path / "rest.jsonl").read_text().splitlines()) == 992
    assert "0 problems" in done.stdout


def kubernetes(kind: str, file: str = "kubernetes.yaml") -> dict[str, dict[str, Any]]:
    """Returns the objects of that kind in the manifest, by name."""
    text = (ROOT / "packaging" / file).read_text(encoding="utf-8")
    found = [one for one in yaml.safe_load_all(text) if one["kind"] == kind]
    return {one["metadata"]["name"]: one for one in found}


def pod_of(stateful_set: dict[str, Any], index: int) -> tuple[dict[str, Any], list[str]]:
    """Returns the container of one pod, and its arguments as Kubernetes expands them."""
    (container,) = stateful_set["spec"]["template"]["spec"]["containers"]
    known = {
        "metadata.labels['apps.kubernetes.io/pod-index']": str(index),
        "status.podIP": f"192.0.2.{index}",
    }
    values = {
        one["name"]: one.get("value") or known[one["valueFrom"]["fieldRef"]["fieldPath"]]
        for one in container.get("env", ())
    }
    return container, [
        re.sub(r"\$\((\w+)\)", lambda name: values[name[1]], word) for word in container["args"]
    ]


def packaged_commands() -> Iterator[tuple[str, list[str]]]:
    """Yields the place of each command, and its words after `tandemmq`."""
    for name, one in (kubernetes("StatefulSet") | kubernetes("Deployment")).items():
        yield f"kubernetes.yaml {name}", pod_of(one, index=2)[1]
    for name, one in kubernetes("Deployment", "kubernetes-console.yaml").items():
        yield f"kubernetes-console.yaml {name}", pod_of(one, index=0)[1]
    for name, service in compose_services().items():
        yield f"compose.yaml {name}", service["command"]
    for unit in sorted((ROOT / "packaging").glob("*.service")):
        (line,) = re.findall(r"^ExecStart=(.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE)
        yield unit.name, shlex.split(line)[1:]
    (words,) = re.findall(r"^CMD (\[.*\])$", (ROOT / "packaging" / "Dockerfile").read_text(), re.MULTILINE)
    yield "Dockerfile", json.loads(words)


def compose_services() -> dict[str, dict[str, Any]]:
    """Returns the servers of ours in the Compose file, with the defaults of its variables."""
    text = (ROOT / "packaging" / "compose.yaml").read_text(encoding="utf-8")
    compose = yaml.safe_load(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text))
    return {
        name: service
        for name, service in compose["services"].items()
        if service["image"] == "tandemmq" and "entrypoint" not in service
    }


def probes_of(container: dict[str, Any]) -> dict[str, str]:
    """Returns the pages that Kubernetes asks at the port of the metrics, by the name of the probe."""
    pages = {name: container[name]["httpGet"] for name in HEALTH}
    assert {page["port"] for page in pages.values()} == {"metrics"}
    return {name: page["path"] for name, page in pages.items()}


def settings_of(words: list[str]) -> list[str]:
    return [words[number + 1] for number, word in enumerate(words) if word == "--set"]


@pytest.mark.parametrize(("place", "words"), [pytest.param(*one, id=one[0]) for one in packaged_commands()])
def test_packaged_commands_start_servers(place: str, words: list[str]) -> None:
    name, *rest = words
    settings = settings_of(words)
    if name == "broker":
        loaded = load_broker(read_settings(None, settings), MACHINE, None)
        assert loaded.notes == ()
    elif name == "namesrv":
        load_name_server(read_settings(None, settings), None)
    elif name == "proxy":
        assert load_proxy(read_settings(None, settings), MACHINE).inert == ()
    elif name == "console":
        app = typer.Typer()
        app.command()(console)
        done = CliRunner().invoke(app, [*rest, "--hash-password"], input="secret\nsecret\n")
        assert done.exit_code == 0, done.output
    elif name == "controller":
        assert rest == ["-c", "/etc/tandemmq/controller.properties"], place
    else:
        assert words == ["--help"], place


def test_the_kubernetes_manifest_is_of_one_piece() -> None:
    sets, services = kubernetes("StatefulSet"), kubernetes("Service")
    budgets, deployments = kubernetes("PodDisruptionBudget"), kubernetes("Deployment")
    assert sets.keys() | deployments.keys() == services.keys() == budgets.keys()
    names, group = sets["tandemmq-namesrv"], sets["tandemmq-broker-a"]
    for name, one in sets.items():
        spec, labels = one["spec"], one["spec"]["template"]["metadata"]["labels"]
        container, words = pod_of(one, index=0)
        assert spec["serviceName"] == name
        for selector in (
            spec["selector"]["matchLabels"],
            services[name]["spec"]["selector"],
            budgets[name]["spec"]["selector"]["matchLabels"],
        ):
            assert selector.items() <= labels.items()
        assert spec["template"]["spec"]["securityContext"]["runAsUser"] == 10001  # as in the Dockerfile
        (claim,) = spec["volumeClaimTemplates"]
        mount, temporary = container["volumeMounts"]
        assert temporary["mountPath"] == "/tmp"
        assert (claim["metadata"]["name"], mount["mountPath"]) == (mount["name"], "/data")
        paths = [text.partition("=")[2] for text in settings_of(words) if "Path" in text.partition("=")[0]]
        assert paths
        assert all(path.startswith("/data/") for path in paths), "a container's own files go with it"
        listed = {port["name"]: port["port"] for port in services[name]["spec"]["ports"]}
        assert listed == {port["name"]: port["containerPort"] for port in container["ports"]}
        probes = [probe for key, probe in container.items() if key.endswith("Probe")]
        assert {
            probe[kind]["port"] for probe in probes for kind in probe.keys() & {"tcpSocket", "httpGet"}
        } <= (listed.keys())

    hosts = [f"tandemmq-namesrv-{index}.tandemmq-namesrv" for index in range(names["spec"]["replicas"])]
    peers = {f"n{index}": f"{host}:9878" for index, host in enumerate(hosts)}
    for index in range(len(hosts)):
        container, words = pod_of(names, index)
        told = load_name_server(read_settings(None, settings_of(words)), None)
        assert told.controller is not None
        assert told.controller.self_id == f"n{index}"
        assert told.controller.peer_addresses == peers
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert ports == {
            "namesrv": told.options.listen_port,
            "outside": 19876,
            "controller": 9878,
            "metrics": told.options.metrics_port,
        }
        assert told.options.metrics_exporter is MetricsExporter.PROM
        assert probes_of(container) == HEALTH
        assert told.inert == ()

    proxies = deployments["tandemmq-proxy"]
    labels = proxies["spec"]["template"]["metadata"]["labels"]
    for selector in (
        proxies["spec"]["selector"]["matchLabels"],
        services["tandemmq-proxy"]["spec"]["selector"],
        budgets["tandemmq-proxy"]["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    container, words = pod_of(proxies, index=0)
    proxy = load_proxy(read_settings(None, settings_of(words)), MACHINE).options
    assert proxy.name_servers.split(";") == [f"{host}:9876" for host in hosts]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"grpc": proxy.listen_port, "metrics": proxy.metrics_port}
    assert proxy.metrics_exporter is MetricsExporter.PROM
    assert probes_of(container) == HEALTH
    assert services["tandemmq-proxy"]["spec"]["ports"] == [{"name": "grpc", "port": proxy.listen_port}]
    assert proxies["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > proxy.drain_s

    container, words = pod_of(group, index=0)
    loaded = load_broker(read_settings(None, settings_of(words)), MACHINE, None)
    assert loaded.broker.advertised_host == "192.0.2.0"
    assert loaded.broker.name_servers == tuple(f"{host}:9876" for host in hosts)
    assert (loaded.election.is_enabled, loaded.election.controllers) == (True, tuple(peers.values()))
    assert loaded.store.total_replicas == group["spec"]["replicas"]
    assert loaded.election.copy_count_min < group["spec"]["replicas"], "one may be away"
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == {
        "broker": loaded.broker.listen_port,
        "fast": loaded.broker.listen_port - 2,
        "replication": loaded.broker.ha_listen_port or loaded.broker.listen_port + 1,
        "metrics": loaded.broker.metrics_port,
    }
    assert loaded.broker.metrics_exporter is MetricsExporter.PROM
    assert probes_of(container) == HEALTH


def advertised(words: list[str]) -> str:
    """Returns the `outside` address that a packaged broker announces."""
    loaded = load_broker(read_settings(None, settings_of(words)), MACHINE, None)
    network, _, address = loaded.broker.advertised_addresses.partition("=")
    assert network == "outside"
    return address


def test_clients_outside_kubernetes_reach_each_pod_at_the_address_that_it_announces() -> None:
    services = kubernetes("Service", "kubernetes-outside.yaml")
    group = kubernetes("StatefulSet")["tandemmq-broker-a"]
    (names,) = services["tandemmq-namesrv-outside"]["spec"]["ports"]
    (listener,) = [
        text
        for text in settings_of(pod_of(kubernetes("StatefulSet")["tandemmq-namesrv"], 0)[1])
        if text.startswith("networkListeners=")
    ]
    assert listener == f"networkListeners=outside={names['port']}"
    for index in range(group["spec"]["replicas"]):
        spec = services[f"tandemmq-broker-a-{index}-outside"]["spec"]
        assert spec["selector"] == {"statefulset.kubernetes.io/pod-name": f"tandemmq-broker-a-{index}"}
        (port,) = spec["ports"]
        assert port["port"] == 10911
        assert advertised(pod_of(group, index)[1]) == f"localhost:{port['nodePort']}"
    taken = [port["nodePort"] for service in services.values() for port in service["spec"]["ports"]]
    assert len(taken) == len(set(taken)) == group["spec"]["replicas"] + 2


def test_clients_outside_the_compose_network_reach_what_is_announced() -> None:
    services = compose_services()
    assert services["namesrv"]["ports"] == ["9876:19876"]
    assert "networkListeners=outside=19876" in settings_of(services["namesrv"]["command"])
    for name in ("broker-a-1", "broker-a-2"):
        (mapping,) = services[name]["ports"]
        published, _, inside = mapping.partition(":")
        assert inside == "10911"
        assert advertised(services[name]["command"]) == f"127.0.0.1:{published}"
    scraped = {
        service["networks"]["cluster"]["ipv4_address"]
        for service in services.values()
        if "metricsExporterType=PROM" in settings_of(service["command"])
    }
    text = (ROOT / "packaging" / "compose.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"([\d.]+):5557", text)) == scraped
