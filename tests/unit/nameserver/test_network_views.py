"""Routes by network, over an in-memory network with a host for each asker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sim.memory import ManualClock, MemoryDisk, MemoryNetwork
from tandemmq.errors import ConfigError
from tandemmq.nameserver.nameserver import NameServer
from tandemmq.nameserver.network_views import build_view
from tandemmq.nameserver.options import NameServerOptions
from tandemmq.nameserver.route_table import RoutedBroker
from tandemmq.protocol.bodies.codec import DataVersion, decode_body
from tandemmq.protocol.bodies.register import RegisterBrokerBody, body_crc32, encode_register_broker_body
from tandemmq.protocol.bodies.route import ClusterInfo, TopicRoute, decode_member_group
from tandemmq.protocol.bodies.tables import TopicConfig, TopicConfigTable
from tandemmq.protocol.codes import RequestCode as Code
from tandemmq.protocol.command import Command, Header
from tandemmq.protocol.requests import route as headers
from tandemmq.remoting.client import RemotingClient

MASTER, SLAVE, OTHER = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"
PUBLIC = "public=203.0.113.7:20911"
INSIDE, OUTSIDE = "10.0.9.9", "198.51.100.1"


class Site:
    """A name server, and a client for each host."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.network = MemoryNetwork(self.clock)
        self.disk = MemoryDisk()
        self.clients: dict[str, RemotingClient] = {}
        self.server: NameServer | None = None

    async def start(self, **options: Any) -> None:
        self.server = NameServer(
            NameServerOptions(
                listen_port=9876, kv_config_path=Path("/ns/kv"), config_store_path=Path("/ns/p"), **options
            ),
            network=self.network,
            disk=self.disk,
            clock=self.clock,
        )
        await self.server.start()

    async def stop(self) -> None:
        for client in self.clients.values():
            await client.close()
        if self.server is not None:
            await self.server.stop()

    async def call(
        self,
        code: int,
        header: Header | None = None,
        *,
        host: str = INSIDE,
        port: int = 9876,
        body: bytes = b"",
        fields: dict[str, str] | None = None,
    ) -> Command:
        client = self.clients.setdefault(
            host, RemotingClient(network=self.network.at(host), clock=self.clock)
        )
        command = Command.request(code, header, body=body, fields=fields)
        waiting = asyncio.ensure_future(client.request(f"10.9.9.9:{port}", command, 5.0))
        await self.clock.pass_time(0)
        return await waiting

    async def register(
        self,
        advertised: str | None,
        *,
        broker_id: int = 0,
        address: str = MASTER,
        name: str = "broker-a",
        topic: str = "T1",
        port: int = 9876,
    ) -> Command:
        table = TopicConfigTable(
            data_version=DataVersion(counter=1), topics={one: TopicConfig(name=one) for one in (topic, "T2")}
        )
        body = encode_register_broker_body(RegisterBrokerBody(filter_servers=(), topics=table))
        header = headers.RegisterBrokerRequest(
            broker_name=name,
            broker_address=address,
            cluster_name="C",
            ha_address=address,
            broker_id=broker_id,
            body_crc=body_crc32(body),
            advertised_addresses=advertised,
        )
        return await self.call(
            Code.REGISTER_BROKER, header, body=body, host=address.partition(":")[0], port=port
        )

    async def route(self, topic: str = "T1", **place: Any) -> dict[int, str]:
        answer = await self.call(Code.GET_ROUTEINFO_BY_TOPIC, headers.RouteRequest(topic=topic), **place)
        return decode_body(answer.body, TopicRoute).brokers[0].addresses


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site()
    yield made
    await made.stop()


async def test_each_listener_answers_the_addresses_of_its_network(site: Site) -> None:
    await site.start(network_listeners="public=19876;vpn=29876")
    await site.register(PUBLIC + ";vpn=b1.vpn.example:10911")
    await site.register("vpn=b2.vpn.example:10911", broker_id=1, address=SLAVE)
    assert await site.route() == {0: MASTER, 1: SLAVE}
    assert await site.route(port=19876) == {0: "203.0.113.7:20911", 1: SLAVE}
    assert await site.route(port=29876) == {0: "b1.vpn.example:10911", 1: "b2.vpn.example:10911"}


async def test_answers_are_counted_while_something_names_their_network(site: Site) -> None:
    await site.start(network_listeners="public=19876", client_networks="vpn=198.51.100.0/24")
    await site.register(PUBLIC)
    await site.register(None, broker_id=1, address=SLAVE)
    await site.route()
    await site.route(port=19876)
    await site.route(host=OUTSIDE)
    assert site.server is not None
    networks = site.server._queries.networks

    def counts() -> dict[tuple[str, ...], object]:
        return {(sample.metric.name, *sample.labels): sample.value for sample in networks.read_metrics()}

    unmapped = {("tandemmq_nameserver_unmapped_brokers_total",): 3}
    of_public = {("tandemmq_nameserver_network_answers_total", "public"): 1}
    of_vpn = {("tandemmq_nameserver_network_answers_total", "vpn"): 1}
    assert counts() == {**of_public, **of_vpn, **unmapped}
    changed = await site.call(Code.UPDATE_NAMESRV_CONFIG, body=b"clientNetworks=")
    assert changed.code == 0, changed.remark
    await site.route()
    assert counts() == {**of_public, **unmapped}


async def test_ranges_decide_on_the_first_listener(site: Site) -> None:
    await site.start(client_networks="internal=10.0.0.0/8;public=0.0.0.0/0")
    await site.register(PUBLIC)
    assert await site.route(host=INSIDE) == {0: MASTER}
    assert await site.route(host=OUTSIDE) == {0: "203.0.113.7:20911"}


async def test_zone_of_a_client_is_its_network(site: Site) -> None:
    await site.start(client_networks="public=0.0.0.0/0")
    await site.register(PUBLIC + ";vpn=b1.vpn.example:10911")

    async def seen(zone: str) -> str:
        fields = {"topic": "T1", "__ZONE_NAME": zone}
        answer = await site.call(Code.GET_ROUTEINFO_BY_TOPIC, fields=fields)
        return decode_body(answer.body, TopicRoute).brokers[0].addresses[0]

    assert await seen("vpn") == "b1.vpn.example:10911"
    assert await seen("internal") == MASTER
    assert await seen("a-zone-of-another-use") == "203.0.113.7:20911"


async def test_brokers_are_internal_wherever_they_ask(site: Site) -> None:
    await site.start(network_listeners="public=19876", client_networks="public=0.0.0.0/0")
    await site.register(PUBLIC, port=19876)
    assert await site.route(host="10.0.0.1", port=19876) == {0: MASTER}
    # Another process on the broker's host, such as a proxy, asks the first listener.
    del site.clients["10.0.0.1"]
    assert await site.route(host="10.0.0.1") == {0: MASTER}
    assert await site.route(host="10.0.0.1", port=19876) == {0: "203.0.113.7:20911"}


async def test_other_codes_answer_registered_addresses(site: Site) -> None:
    await site.start(network_listeners="public=19876")
    await site.register(PUBLIC)
    answer = await site.register("public=203.0.113.8:20911", broker_id=1, address=SLAVE)
    assert answer.fields == {"masterAddr": MASTER, "haServerAddr": MASTER}
    header = headers.MemberGroupRequest(cluster_name="C", broker_name="broker-a")
    answer = await site.call(Code.GET_BROKER_MEMBER_GROUP, header, port=19876)
    assert decode_member_group(answer.body).addresses == {0: MASTER, 1: SLAVE}


async def test_cluster_info_names_the_network_and_brokers_outside_it(site: Site) -> None:
    await site.start(network_listeners="public=19876")
    await site.register(PUBLIC)
    await site.register(None, broker_id=1, address=SLAVE)
    answer = await site.call(Code.GET_BROKER_CLUSTER_INFO, port=19876)
    info = decode_body(answer.body, ClusterInfo)
    assert info.brokers["broker-a"].addresses == {0: "203.0.113.7:20911", 1: SLAVE}
    assert answer.fields == {"network": "public", "unmapped": "broker-a:1"}
    answer = await site.call(Code.GET_BROKER_CLUSTER_INFO)
    assert answer.fields == {}


async def test_drop_leaves_out_brokers_without_an_address(site: Site) -> None:
    await site.start(network_listeners="public=19876", network_fallback="drop")
    await site.register(PUBLIC)
    await site.register(None, broker_id=1, address=SLAVE)
    await site.register(None, address=OTHER, name="broker-b", topic="T3")
    assert await site.route(port=19876) == {0: "203.0.113.7:20911"}
    answer = await site.call(Code.GET_ROUTEINFO_BY_TOPIC, headers.RouteRequest(topic="T2"), port=19876)
    route = decode_body(answer.body, TopicRoute)
    assert [queues.broker_name for queues in route.queues] == ["broker-a"]
    answer = await site.call(Code.GET_BROKER_CLUSTER_INFO, port=19876)
    assert decode_body(answer.body, ClusterInfo).clusters == {"C": ("broker-a",)}
    answer = await site.call(Code.GET_ROUTEINFO_BY_TOPIC, headers.RouteRequest(topic="T3"), port=19876)
    assert answer.code == 17
    assert "network public" in (answer.remark or "")


async def test_an_address_belongs_to_one_broker(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    await site.start(network_listeners="public=19876")
    await site.register(PUBLIC)
    answer = await site.register(PUBLIC, broker_id=1, address=SLAVE)
    assert answer.fields["refusedAddresses"] == PUBLIC
    assert await site.route(port=19876) == {0: "203.0.113.7:20911", 1: SLAVE}
    assert await site.route(port=19876) == {0: "203.0.113.7:20911", 1: SLAVE}
    problems = [record for record in caplog.records if record.message == "broker.not_in_network"]
    assert [record.__dict__["reason"] for record in problems] == ["another broker has its address"]
    # The address is free when its holder has another one.
    await site.register("public=203.0.113.9:20911")
    answer = await site.register(PUBLIC, broker_id=1, address=SLAVE)
    assert "refusedAddresses" not in answer.fields
    assert await site.route(port=19876) == {0: "203.0.113.9:20911", 1: "203.0.113.7:20911"}


def test_a_registered_address_that_is_answered_belongs_to_its_broker() -> None:
    members = [
        RoutedBroker(cluster="C", broker_name="a", broker_id=0, address=MASTER, advertised={"public": SLAVE}),
        RoutedBroker(cluster="C", broker_name="a", broker_id=1, address=SLAVE, advertised={}),
    ]
    kept = build_view(members, "public", {}, keeps_registered=True)
    assert kept.addresses == {("C", SLAVE): SLAVE, ("C", MASTER): MASTER}
    assert [address for _, address in kept.refused] == [SLAVE]
    dropped = build_view(members, "public", {}, keeps_registered=False)
    assert dropped.addresses == {("C", MASTER): SLAVE}


async def test_operators_give_the_addresses_of_java_brokers(site: Site) -> None:
    await site.start(network_listeners="public=19876")
    await site.register(None)
    put = headers.PutKvRequest("ADVERTISED_ADDRESSES", "broker-a.0.public", "203.0.113.9:10911")
    assert (await site.call(Code.PUT_KV_CONFIG, put)).code == 0
    assert await site.route(port=19876) == {0: "203.0.113.9:10911"}
    await site.register(PUBLIC)
    assert await site.route(port=19876) == {0: "203.0.113.7:20911"}
    for key, value in (("broker-a.public", "h:1"), ("broker-a.0.public", "h"), ("broker-a.x.public", "h:1")):
        answer = await site.call(Code.PUT_KV_CONFIG, headers.PutKvRequest("ADVERTISED_ADDRESSES", key, value))
        assert answer.code == 1
        assert key in (answer.remark or "")


async def test_a_malformed_registration_registers_without_addresses(site: Site) -> None:
    await site.start(network_listeners="public=19876")
    assert (await site.register("nonsense")).code == 0
    assert await site.route(port=19876) == {0: MASTER}


async def test_ranges_change_while_the_server_runs(site: Site) -> None:
    await site.start(client_networks="internal=0.0.0.0/0")
    await site.register(PUBLIC)
    assert await site.route(host=OUTSIDE) == {0: MASTER}
    change = b"clientNetworks=public=0.0.0.0/0\n"
    assert (await site.call(Code.UPDATE_NAMESRV_CONFIG, body=change)).code == 0
    assert await site.route(host=OUTSIDE) == {0: "203.0.113.7:20911"}
    answer = await site.call(Code.UPDATE_NAMESRV_CONFIG, body=b"clientNetworks=public\n")
    assert answer.code == 1
    assert "clientNetworks" in (answer.remark or "")
    answer = await site.call(Code.UPDATE_NAMESRV_CONFIG, body=b"networkListeners=public=1\n")
    assert answer.code == 16


@pytest.mark.parametrize("text", ["", "Drop"])
async def test_a_refused_fallback_names_the_allowed_ones(site: Site, text: str) -> None:
    await site.start()
    answer = await site.call(Code.UPDATE_NAMESRV_CONFIG, body=f"networkFallback={text}\n".encode())
    assert answer.code == 1
    assert answer.remark == f"networkFallback must be registered or drop, not {text!r}"


@pytest.mark.parametrize(
    "options",
    [
        {"network_listeners": "19876"},
        {"network_listeners": "public=70000"},
        {"client_networks": "public=10.0.0.0/99"},
        {"network_fallback": "none"},
    ],
)
def test_options_are_checked(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"networkListeners|clientNetworks|networkFallback"):
        NameServerOptions(**options)  # type: ignore[arg-type]
