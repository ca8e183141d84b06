"""A controller's /metrics, on its own port and on that of a name server in its process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from controller_rig import CLUSTER, GROUP, Rig
from prometheus_client.parser import text_string_to_metric_families

from sim.memory import MemoryDisk
from tandemmq.nameserver.nameserver import NameServer
from tandemmq.nameserver.options import NameServerOptions
from tandemmq.remoting import metrics_port
from tandemmq.runtime.ports import Address
from tandemmq.telemetry import events
from tandemmq.telemetry.controller_metrics import CONTROLLER_TABLE
from tandemmq.telemetry.export_options import MetricsExporter
from tandemmq.telemetry.metrics import MetricKind
from waits import PATIENCE_S, until

OWN = ("127.0.0.1:9870", "g", "n0")
Samples = dict[tuple[str, ...], float]


@pytest.fixture(autouse=True)
def _every_scrape_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_port, "RENDER_S_MIN", 0.0)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig(metrics_exporter=MetricsExporter.PROM, metrics_port=6550)
    await made.start()
    await made.leader()
    yield made
    await made.close()


async def scrape(rig: Rig, address: Address | None) -> Samples:
    """Returns (name, label values without those of the controller...) -> value."""
    assert address is not None
    reader = asyncio.StreamReader()
    async with asyncio.timeout(PATIENCE_S):
        transport = await rig.network.connect(*address, lambda: asyncio.StreamReaderProtocol(reader), 5.0)
        transport.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        text = (await reader.read()).decode().partition("\r\n\r\n")[2]
        transport.close()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sample.labels.values())
            if not sample.name.startswith(("tandemmq_", "process_", "python_")):
                assert labels[:3] == OWN, sample
                labels = labels[3:]
            found[sample.name, *labels] = sample.value
    return found


async def test_an_election_is_counted_with_its_requests_and_changes(rig: Rig) -> None:
    address = rig.controllers["n0"].metrics_address
    first, second = await rig.broker(1), await rig.broker(2)
    before = await scrape(rig, address)
    assert (before["role",], before["active_broker_num", CLUSTER, GROUP]) == (3, 2)
    assert not any(key[0] == "election_total" for key in before)

    assert (await first.elect()).code == 0
    await first.beat()
    await second.elect()
    after = await scrape(rig, address)
    assert after["election_total", CLUSTER, GROUP, "new_master_elected"] == 1
    assert after["election_total", CLUSTER, GROUP, "keep_current_master"] == 1
    assert after["request_total", "CONTROLLER_ELECT_MASTER", "success"] == 2
    assert after["request_total", "CONTROLLER_REGISTER_BROKER", "success"] == 2
    assert after["request_latency_microseconds_count", "CONTROLLER_ELECT_MASTER"] == 2
    confirmed = after["dledger_op_total", "append", "success"]
    assert confirmed >= before["dledger_op_total", "append", "success"] + 2
    assert after["dledger_op_latency_microseconds_count", "append"] == confirmed
    assert 0 < after["dledger_op_latency_microseconds_sum", "append"] < PATIENCE_S * 1e6
    disk, directory = rig.disks["n0"], Path("/controller")
    size = sum(disk.size(directory / name) for name in ("vote", "log", "snapshot"))
    assert after["dledger_disk_usage_bytes",] == size
    names = {
        f"{metric.name}_count" if metric.kind is MetricKind.HISTOGRAM else metric.name
        for metric in CONTROLLER_TABLE
    }
    assert names <= {key[0] for key in after}


async def test_a_name_server_in_the_same_process_has_the_metrics_of_the_controller(rig: Rig) -> None:
    server = NameServer(
        NameServerOptions(
            listen_host="127.0.0.1",
            listen_port=9876,
            kv_config_path=Path("/ns/kv"),
            config_store_path=Path("/ns/p"),
            metrics_exporter=MetricsExporter.PROM,
            metrics_port=6551,
        ),
        network=rig.network,
        disk=MemoryDisk(),
        clock=rig.clock,
    )
    server.more_metrics = rig.controllers["n0"].read_metrics
    await server.start()
    try:
        await rig.broker(1)
        found = await scrape(rig, server.metrics_address)
        assert (found["role",], found["active_broker_num", CLUSTER, GROUP]) == (3, 1)
        assert found["tandemmq_nameserver_unmapped_brokers_total",] == 0
        assert found["tandemmq_nameserver_ready",] == 0, "its first broker has not registered yet"
    finally:
        await server.stop()


async def test_a_controller_alone_of_three_is_no_leader() -> None:
    three = Rig(3, metrics_exporter=MetricsExporter.PROM)
    try:
        three.options["metrics_port"] = 6550
        await three.start("n0")

        async def is_no_leader() -> bool:
            return (await scrape(three, ("127.0.0.1", 6550)))["role",] in (1, 2)

        await until(is_no_leader, "the controller has a role")
    finally:
        await three.close()


async def test_controllers_and_name_servers_push_their_metrics(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("opentelemetry.proto")
    caplog.set_level(logging.INFO, "tandemmq")
    options: dict[str, Any] = {"metrics_exporter": MetricsExporter.LOG, "log_interval_ms": 20}
    pushing = Rig(**options, metrics_port=6550)
    server = NameServer(
        NameServerOptions(
            listen_host="127.0.0.1",
            listen_port=9876,
            kv_config_path=Path("/ns/kv"),
            config_store_path=Path("/ns/p"),
            metrics_port=6551,
            **options,
        ),
        network=pushing.network,
        disk=MemoryDisk(),
        clock=pushing.clock,
    )

    def pushed(kind: str, metric: str) -> bool:
        texts = [vars(one)["otlp"] for one in caplog.records if one.msg == events.METRICS_READ]
        return any(f'"tandemmq-{kind}"' in text and f'"{metric}"' in text for text in texts)

    try:
        await pushing.start()
        await server.start()
        await until(lambda: pushed("controller", "dledger_op_total"))
        await until(lambda: pushed("name-server", "tandemmq_nameserver_unmapped_brokers_total"))
        server.more_metrics = pushing.controllers["n0"].read_metrics
        await until(lambda: pushed("name-server", "dledger_op_total"))
    finally:
        await server.stop()
        await pushing.close()
