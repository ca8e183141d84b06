"""Name servers on real sockets and a real disk, used through the typed calls of brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tandemmq.api import nameserver as api
from tandemmq.errors import BrokerUnreachable
from tandemmq.nameserver.nameserver import NameServer
from tandemmq.nameserver.options import NameServerOptions
from tandemmq.protocol.bodies.codec import DataVersion
from tandemmq.protocol.bodies.register import RegisterBrokerBody
from tandemmq.protocol.bodies.tables import TopicConfig, TopicConfigTable
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.options import render_address
from tandemmq.runtime.descriptors import CONNECTIONS_MAX
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock, TcpNetwork
from waits import until

MASTER = api.BrokerIdentity(
    cluster_name="C", broker_name="a", broker_id=0, broker_address="10.0.0.1:1", ha_address="10.0.0.1:2"
)
SLAVE = api.BrokerIdentity(
    cluster_name="C", broker_name="a", broker_id=1, broker_address="10.0.0.2:1", ha_address="10.0.0.2:2"
)


def body(*names: str) -> RegisterBrokerBody:
    table = TopicConfigTable(
        data_version=DataVersion(counter=len(names)), topics={name: TopicConfig(name=name) for name in names}
    )
    return RegisterBrokerBody(filter_servers=(), topics=table)


class Site:
    """The name servers of one test, each in its own directory, and their clients."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: list[NameServer] = []
        self.clients: list[RemotingClient] = []

    async def start(
        self, name: str, port: int = 0, connections_max: int = CONNECTIONS_MAX
    ) -> tuple[NameServer, str]:
        home = self._directory / name
        server = NameServer(
            NameServerOptions(
                listen_host="127.0.0.1",
                listen_port=port,
                kv_config_path=home / "kvConfig.json",
                config_store_path=home / "namesrv.properties",
            ),
            network=TcpNetwork(),
            disk=RealDisk(),
            clock=LoopClock(),
            connections_max=connections_max,
        )
        self._running.append(server)
        return server, render_address(await server.start())

    def client(self) -> RemotingClient:
        self.clients.append(RemotingClient(network=TcpNetwork(), clock=LoopClock()))
        return self.clients[-1]

    async def stop(self) -> None:
        for client in self.clients:
            await client.close()
        for server in self._running:
            await server.stop()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path)
    yield made
    await made.stop()


async def test_master_and_slave_come_and_go(site: Site) -> None:
    _, address = await site.start("n1")
    master, slave, admin = site.client(), site.client(), site.client()
    registered = await api.register_broker(master, address, MASTER, body("T1", "T2"))
    assert registered == api.Registered()
    registered = await api.register_broker(slave, address, SLAVE, body("T1", "T2"))
    assert registered == api.Registered(master_address="10.0.0.1:1", master_ha_address="10.0.0.1:2")

    async def replicas() -> dict[int, str]:
        route = await api.query_route(admin, address, "T1")
        return {} if route is None else route.brokers[0].addresses

    assert await replicas() == {0: "10.0.0.1:1", 1: "10.0.0.2:1"}
    await master.close()

    async def is_slave_alone() -> bool:
        return await replicas() == {1: "10.0.0.2:1"}

    await until(is_slave_alone, "the master is forgotten")
    await api.unregister_broker(slave, address, SLAVE)
    assert await replicas() == {}
    assert (await api.query_cluster_info(admin, address)).brokers == {}


async def test_restarted_name_server_keeps_kv_and_relearns_routes(site: Site) -> None:
    server, address = await site.start("n1")
    client = site.client()
    await api.register_broker(client, address, MASTER, body("T1", "T2"))
    await api.put_kv(client, address, "ORDER_TOPIC_CONFIG", "T1", "a:4")
    port = server.address[1]
    await server.stop()
    with pytest.raises(BrokerUnreachable):
        await api.query_topics(client, address)
    await site.start("n1", port)
    assert await api.query_topics(client, address) == []
    registered = await api.register_broker(client, address, MASTER, body("T1", "T2"))
    assert registered.order_topics == {"T1": "a:4"}
    assert await api.query_topics(client, address) == ["T1", "T2"]


async def test_name_servers_share_nothing(site: Site) -> None:
    _, first = await site.start("n1")
    _, second = await site.start("n2")
    client = site.client()
    await api.register_broker(client, first, MASTER, body("T1", "T2"))
    await api.put_kv(client, first, "N", "k", "v")
    assert await api.query_topics(client, second) == []
    assert await api.get_kv(client, second, "N", "k") is None
    assert await api.get_kv(client, first, "N", "k") == "v"


async def test_a_connection_above_the_bound_is_closed(site: Site) -> None:
    _, address = await site.start("n1", connections_max=1)
    assert await api.query_topics(site.client(), address) == []
    with pytest.raises(BrokerUnreachable):
        await api.query_topics(site.client(), address)
