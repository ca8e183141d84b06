"""/health/live and /health/ready of brokers, name servers and controllers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from broker_rig import Peer, running_broker, running_name_server
from controller_rig import Rig
from elected_rig import Elected
from test_broker_metrics import PROM

from sim.memory import MemoryDisk
from tandemmq.broker.broker import Broker
from tandemmq.nameserver import nameserver
from tandemmq.nameserver.nameserver import NameServer
from tandemmq.nameserver.options import NameServerOptions
from tandemmq.remoting.health import Condition
from tandemmq.runtime.machine import LoopClock, TcpNetwork
from tandemmq.runtime.ports import Address, Network
from tandemmq.store import BrokerRole
from tandemmq.telemetry.export_options import MetricsExporter
from waits import PATIENCE_S, until


async def fetch(network: Network, address: Address | None, path: str) -> tuple[int, dict[str, Any]]:
    """Returns the status and the content of a page."""
    assert address is not None
    reader = asyncio.StreamReader()
    async with asyncio.timeout(PATIENCE_S):
        transport = await network.connect(*address, lambda: asyncio.StreamReaderProtocol(reader), 5.0)
        transport.write(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        transport.close()
    assert "Content-Type: application/json" in head
    return int(head.split()[1]), json.loads(body)


async def faults(address: Address | None, network: Network | None = None) -> dict[str, str]:
    """Returns the reasons of the conditions that fail; the status agrees with them."""
    status, content = await fetch(network or TcpNetwork(), address, "/health/ready")
    found = {one["name"]: one["reason"] for one in content["conditions"] if not one["holds"]}
    assert (status, content["status"]) == ((503, "not ready") if found else (200, "ready")), content
    return found


async def faults_become(address: Address | None, **expected: str) -> None:
    """Waits until exactly these conditions fail, with these parts of their reasons."""

    async def are_so() -> bool:
        found = await faults(address)
        return found.keys() == expected.keys() and all(expected[name] in found[name] for name in found)

    await until(are_so, f"the failing conditions are {expected}")


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[Broker, Broker]]:
    """Runs a master that needs a slave in sync, and its slave."""
    async with AsyncExitStack() as stack:
        name_server = await stack.enter_async_context(running_name_server(tmp_path))
        settings = {**PROM, "name_servers": (name_server,), "broker_name": "pair"}
        sync = {"role": BrokerRole.SYNC_MASTER, "in_sync_replicas": 2}
        master = await stack.enter_async_context(running_broker(tmp_path / "m", store=sync, **settings))
        slave = await stack.enter_async_context(running_broker(tmp_path / "s", broker_id=1, **settings))
        yield master, slave


async def test_a_broker_lives_and_a_pair_is_ready_once_the_slave_follows(pair: tuple[Broker, Broker]) -> None:
    master, slave = pair
    assert await fetch(TcpNetwork(), master.metrics_address, "/health/live") == (200, {"status": "live"})
    await faults_become(master.metrics_address)
    await faults_become(slave.metrics_address)
    await slave.stop()
    await faults_become(master.metrics_address, replication="0 slaves are in sync, and 1 are needed")


async def test_a_slave_without_its_master_is_not_ready(pair: tuple[Broker, Broker]) -> None:
    master, slave = pair
    await faults_become(slave.metrics_address)
    await master.stop()
    await faults_become(slave.metrics_address, replication="is not copied")


async def test_a_slave_far_behind_is_not_ready(
    pair: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = pair
    await faults_become(slave.metrics_address)
    async with Peer(master) as peer:
        await peer.send_ok("T")
    store = slave.store
    assert store is not None
    await until(lambda: store.queue_max("T", 0) == 1, "the message is copied")
    await faults_become(slave.metrics_address)
    monkeypatch.setattr(store.dispatcher, "stored_at_ms", store.dispatcher.stored_at_ms - 60_000)
    await faults_become(slave.metrics_address, replication="60 s behind the master")


async def test_a_broker_that_no_name_server_knows_is_not_ready(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        name_server = await stack.enter_async_context(AsyncExitStack())
        address = await name_server.enter_async_context(running_name_server(tmp_path))
        broker = await stack.enter_async_context(
            running_broker(tmp_path / "b", name_servers=(address,), **PROM)
        )
        await faults_become(broker.metrics_address)
        await name_server.aclose()
        await faults_become(broker.metrics_address, registered=address)


async def test_a_broker_without_name_servers_is_ready_with_its_role(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **PROM) as broker:
        assert await faults(broker.metrics_address) == {}


@pytest.mark.parametrize("has_more", [False, True])
async def test_a_name_server_is_ready_with_the_routes_of_brokers(
    tmp_path: Path, has_more: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    unled = Condition("leader", "none is elected")
    options = NameServerOptions(
        listen_host="127.0.0.1",
        listen_port=0,
        kv_config_path=tmp_path / "kv.json",
        config_store_path=tmp_path / "ns.conf",
        metrics_exporter=MetricsExporter.PROM,
        metrics_port=0,
    )
    server = NameServer(
        options,
        network=TcpNetwork(),
        disk=MemoryDisk(),
        clock=LoopClock(),
    )
    if has_more:
        server.more_conditions = lambda: [unled]
    try:
        host, port = await server.start()
        expected = {"leader": "none is elected"} if has_more else {}
        young = {"routes": "no broker has registered in the first 30 s since the start"}
        assert await faults(server.metrics_address) == {**young, **expected}
        async with running_broker(tmp_path / "b", name_servers=(f"{host}:{port}",)):
            assert await faults(server.metrics_address) == expected
            for topic in server._table.topics():
                server._table.delete_topic(topic, None)
            assert "is registered" in (await faults(server.metrics_address))["routes"]
        await until(lambda: not server._table.cluster_info().brokers, "the broker has left")
        assert (await faults(server.metrics_address))["routes"] == young["routes"]
        monkeypatch.setattr(nameserver, "REGISTRATION_S", 0.0)
        assert await faults(server.metrics_address) == expected
    finally:
        await server.stop()
    assert b"metricsExporterType=PROM\n" in server._settings.handle_get(None, _Request()).body


class _Request:
    def reply(self, *, body: bytes) -> Any:
        self.body = body
        return self


async def test_a_controller_that_has_not_started_is_not_ready_and_has_its_metrics() -> None:
    rig = Rig()
    await rig.start()
    controller = rig.controllers["n0"]
    await rig.close()
    controller.raft._node = None  # as before the start; a name server in its process already serves the pages
    assert list(controller.read_conditions()) == [Condition("leader", "the controller has not started yet")]
    samples = [sample for piece in controller.read_metrics() for sample in piece]
    assert samples[0].value == 0, "role"


async def test_a_controller_is_ready_when_it_knows_a_leader() -> None:
    rig = Rig(3, metrics_exporter=MetricsExporter.PROM)
    ports = {name: 6550 + number for number, name in enumerate(rig.names)}
    try:
        for name in rig.names:
            rig.options["metrics_port"] = ports[name]
            await rig.start(name)
        await rig.leader()

        async def all_know_it() -> bool:
            return not any([await faults(("127.0.0.1", port), rig.network) for port in ports.values()])

        await until(all_know_it, "every controller knows the leader")
        await rig.stop("n1", "n2")

        async def lacks_it() -> bool:
            found = await faults(("127.0.0.1", ports["n0"]), rig.network)
            return found == {"leader": "the controllers n0, n1, n2 have elected no leader"}

        await until(lacks_it, "the last one knows none")
    finally:
        await rig.close()


async def test_an_elected_broker_has_a_role_while_it_leads_or_follows() -> None:
    rig = Rig()
    await rig.start()
    group = Elected(rig)
    try:
        first, second = await group.start_pair()
        assert [first._role_fault(), second._role_fault()] == ["", ""]
        await rig.stop()
        await group.stop(2)
        await until(lambda: "without a lease" in first._role_fault(), "the master is fenced")
        await first.retire()
        assert first._role_fault() == "the broker stops"
    finally:
        await group.stop()
        await rig.close()
