"""A cluster with IPv6 addresses only, over the loopback: servers, and every kind of client of ours."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_rig import running_broker

from tandemmq.api import broker_admin
from tandemmq.broker.broker import Broker
from tandemmq.client import Admin, BlockingProducer, Consumer, ConsumerOptions, Message, Producer, StartFrom
from tandemmq.nameserver.nameserver import NameServer
from tandemmq.nameserver.options import NameServerOptions
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.options import render_address
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock, TcpNetwork
from tandemmq.spark.wire import BlockingNameServers, WireConnection
from waits import until


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


pytestmark = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback address")
PLACE = {"listen_host": "::1", "advertised_host": "::1"}


@pytest.fixture
async def name_server(tmp_path: Path) -> AsyncIterator[str]:
    options = NameServerOptions(
        listen_host="::1", listen_port=0, kv_config_path=tmp_path / "kv", config_store_path=tmp_path / "ns"
    )
    server = NameServer(options, network=TcpNetwork(), disk=RealDisk(), clock=LoopClock())
    try:
        yield render_address(await server.start())
    finally:
        await server.stop()


@pytest.fixture
async def master(tmp_path: Path, name_server: str) -> AsyncIterator[Broker]:
    async with running_broker(tmp_path / "master", name_servers=(name_server,), **PLACE) as broker:
        yield broker


async def test_clients_send_read_and_find_by_id(name_server: str, master: Broker) -> None:
    assert name_server.startswith("[::1]:")
    async with Producer("p", name_server) as producer:
        sent = await producer.send(Message(topic="TBW102", body=b"six"))
    assert len(sent.message_id) == 56
    async with Admin(name_server) as admin:
        found = await admin.find_by_id(sent.message_id)
    assert found is not None
    assert found.store_address == ("::1", master.address[1])
    consumer = Consumer("c", name_server, options=ConsumerOptions(start_from=StartFrom.FIRST))
    consumer.subscribe("TBW102")
    async with consumer:
        got = []
        while not got:
            got = await consumer.poll()
    assert [(message.body, message.record.born_address[0]) for message in got] == [(b"six", "::1")]

    def block() -> None:
        with BlockingProducer("b", name_server) as blocking:
            blocking.send(Message(topic="TBW102", body=b"blocking"))
        route = BlockingNameServers([name_server], 5.0).find_route("TBW102")
        assert route is not None
        connection = WireConnection(route.masters[0])
        try:
            assert connection.request(Command.request(RequestCode.GET_BROKER_RUNTIME_INFO), 5.0).code == 0
        finally:
            connection.close()

    await asyncio.to_thread(block)


async def test_slave_finds_its_master_and_copies(name_server: str, master: Broker, tmp_path: Path) -> None:
    async with running_broker(tmp_path / "slave", name_servers=(name_server,), broker_id=1, **PLACE) as slave:
        async with Producer("p", name_server) as producer:
            await producer.send(Message(topic="TBW102", body=b"copied"))
        assert master.store is not None
        assert slave.store is not None
        end = master.store.appended.value
        await until(lambda: slave.store is not None and slave.store.appended.value == end)
        client = RemotingClient(network=TcpNetwork(), clock=LoopClock())
        try:
            info = await broker_admin.query_runtime_info(client, render_address(slave.address))
        finally:
            await client.close()
        assert info["brokerRole"] == "SLAVE"


async def test_the_address_of_all_serves_both_families(tmp_path: Path) -> None:
    async with running_broker(tmp_path, listen_host="::", advertised_host="::1") as broker:
        client = RemotingClient(network=TcpNetwork(), clock=LoopClock())
        try:
            for host in ("127.0.0.1", "::1"):
                address = render_address((host, broker.address[1]))
                assert (await broker_admin.query_runtime_info(client, address))["brokerRole"]
        finally:
            await client.close()
