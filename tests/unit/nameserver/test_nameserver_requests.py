"""A name server through its protocol: every code, over an in-memory network with a clock that the test
controls.
"""

from __future__ import annotations

import ast
import asyncio
import errno
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sim.memory import ManualClock, MemoryDisk, MemoryNetwork
from tandemmq.errors import ConfigError
from tandemmq.nameserver import kv_config
from tandemmq.nameserver.nameserver import NameServer
from tandemmq.nameserver.options import NameServerOptions
from tandemmq.protocol.bodies.codec import (
    DataVersion,
    decode_body,
    decode_kv_table,
    encode_body,
)
from tandemmq.protocol.bodies.register import RegisterBrokerBody, body_crc32, encode_register_broker_body
from tandemmq.protocol.bodies.route import (
    QueueData,
    TopicRoute,
    decode_member_group,
    encode_topic_route,
)
from tandemmq.protocol.bodies.tables import TopicConfig, TopicConfigTable, decode_topic_list
from tandemmq.protocol.catalogue import CATALOGUE, ServingRole
from tandemmq.protocol.codes import RequestCode as Code
from tandemmq.protocol.command import Command, Header
from tandemmq.protocol.requests import route as headers
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.server import RemotingServer

KV_PATH = Path("/ns/kvConfig.json")
CONFIG_PATH = Path("/ns/namesrv.properties")
MASTER = "10.0.0.1:10911"
SLAVE = "10.0.0.2:10911"


class Harness:
    """A name server, and one client for each connection that a test needs."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.network = MemoryNetwork(self.clock)
        self.disk = MemoryDisk()
        self.fatal: list[BaseException] = []
        self.clients: dict[str, RemotingClient] = {}

    async def start(self, **options: Any) -> Harness:
        self.server = NameServer(
            NameServerOptions(
                listen_port=9876, kv_config_path=KV_PATH, config_store_path=CONFIG_PATH, **options
            ),
            network=self.network,
            disk=self.disk,
            clock=self.clock,
            on_fatal=self.fatal.append,
        )
        assert await self.server.start() == ("0.0.0.0", 9876)
        return self

    async def stop(self) -> None:
        for client in self.clients.values():
            await client.close()
        await self.server.stop()
        assert self.fatal == []

    def client(self, name: str) -> RemotingClient:
        if name not in self.clients:
            self.clients[name] = RemotingClient(network=self.network, clock=self.clock)
        return self.clients[name]

    async def call(
        self,
        code: int,
        header: Header | None = None,
        *,
        body: bytes = b"",
        by: str = "admin",
        version: int | None = None,
        fields: dict[str, str] | None = None,
    ) -> Command:
        command = Command.request(code, header, body=body, fields=fields)
        if version is not None:
            command.version = version
        waiting = asyncio.ensure_future(self.client(by).request("10.9.9.9:9876", command, 5.0))
        await self.clock.pass_time(0)
        return await waiting

    async def register(
        self,
        broker_id: int = 0,
        address: str = MASTER,
        *,
        names: tuple[str, ...] = ("T1", "T2"),
        counter: int = 1,
        by: str | None = None,
        crc: int | None = None,
        compressed: bool = False,
        **changes: Any,
    ) -> Command:
        table = TopicConfigTable(
            data_version=DataVersion(counter=counter),
            topics={name: TopicConfig(name=name, read_queue_count=4, write_queue_count=4) for name in names},
        )
        body = encode_register_broker_body(
            RegisterBrokerBody(filter_servers=(), topics=table), is_compressed=compressed
        )
        parts: dict[str, Any] = {
            "broker_name": "broker-a",
            "broker_address": address,
            "cluster_name": "C",
            "ha_address": address.replace("10911", "10912"),
            "broker_id": broker_id,
            "body_crc": body_crc32(body) if crc is None else crc,
        }
        header = headers.RegisterBrokerRequest(**{**parts, **changes})
        return await self.call(Code.REGISTER_BROKER, header, body=body, by=by or address)

    async def route(self, topic: str = "T1", **parts: Any) -> Command:
        return await self.call(Code.GET_ROUTEINFO_BY_TOPIC, headers.RouteRequest(topic=topic, **parts))

    async def addresses(self) -> dict[int, str]:
        return decode_body((await self.route()).body, TopicRoute).brokers[0].addresses


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    made = await Harness().start()
    yield made
    await made.stop()


async def test_1_registration_and_what_a_slave_learns(harness: Harness) -> None:
    answer = await harness.register()
    assert (answer.code, dict(answer.fields), answer.body) == (0, {}, b"")
    answer = await harness.register(1, SLAVE)
    assert dict(answer.fields) == {"masterAddr": MASTER, "haServerAddr": "10.0.0.1:10912"}
    assert await harness.addresses() == {0: MASTER, 1: SLAVE}


async def test_3_lonely_topic_is_refused(harness: Harness) -> None:
    answer = await harness.register(names=("T1",))
    assert answer.code == 1
    await harness.register()
    assert (await harness.register(names=("T3",), counter=2)).code == 0
    assert (await harness.route("T3")).code == 0


async def test_4_wrong_crc_changes_nothing(harness: Harness) -> None:
    assert (await harness.register(crc=12345)).code == 1
    assert (await harness.route()).code == 17
    assert (await harness.register(crc=0)).code == 0


@pytest.mark.parametrize("says_so", [True, False])
async def test_compressed_body_is_known_by_its_first_byte(harness: Harness, says_so: bool) -> None:
    assert (await harness.register(compressed=True, is_compressed=says_so)).code == 0
    assert (await harness.route()).code == 0


async def test_spec_vector_of_a_registration(harness: Harness) -> None:
    body = (
        b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":1,"stateVersion":0,'
        b'"timestamp":1700000000000},"topicConfigTable":{"TBW102":{"attributes":{},"order":false,"perm":7,'
        b'"readQueueNums":8,"topicFilterType":"SINGLE_TAG","topicName":"TBW102","topicSysFlag":0,'
        b'"writeQueueNums":8},"T1":{"attributes":{},"order":false,"perm":6,"readQueueNums":4,'
        b'"topicFilterType":"SINGLE_TAG","topicName":"T1","topicSysFlag":0,"writeQueueNums":4}}}}'
    )
    fields = {
        "brokerName": "broker-a",
        "brokerAddr": MASTER,
        "clusterName": "C",
        "haServerAddr": "10.0.0.1:10912",
        "brokerId": "0",
        "compressed": "false",
        "bodyCrc32": "1869451055",
        "enableActingMaster": "false",
    }
    assert (await harness.call(Code.REGISTER_BROKER, body=body, fields=fields)).code == 0
    assert decode_topic_list((await harness.call(206)).body) == ("TBW102", "T1")


async def test_unreadable_registration_is_code_1_and_the_connection_lives(harness: Harness) -> None:
    header = headers.RegisterBrokerRequest(
        broker_name="b", broker_address=MASTER, cluster_name="C", ha_address="h:1", broker_id=0
    )
    assert (await harness.call(Code.REGISTER_BROKER, header, body=b"{{{nonsense", by="x")).code == 1
    assert (await harness.call(Code.REGISTER_BROKER, by="x")).code == 1  # fields are missing
    assert (await harness.call(Code.REGISTER_BROKER, header, by="x")).code == 0  # no body: no topics


async def test_5_permissions_wiped_and_added(harness: Harness) -> None:
    await harness.register()
    wiped = await harness.call(205, headers.WipeWritePermissionRequest(broker_name="broker-a"))
    assert dict(wiped.fields) == {"wipeTopicCount": "2"}
    assert decode_body((await harness.route()).body, TopicRoute).queues[0].permission == 4
    await harness.register()
    assert decode_body((await harness.route()).body, TopicRoute).queues[0].permission == 4
    added = await harness.call(327, headers.AddWritePermissionRequest(broker_name="broker-a"))
    assert dict(added.fields) == {"addTopicCount": "2"}
    assert decode_body((await harness.route()).body, TopicRoute).queues[0].permission == 6
    unknown = await harness.call(205, headers.WipeWritePermissionRequest(broker_name="nobody"))
    assert (unknown.code, dict(unknown.fields)) == (0, {"wipeTopicCount": "0"})


async def test_4_a_broker_leaves_only_under_its_present_id(harness: Harness) -> None:
    await harness.register()
    for broker_id, left in ((1, {0: MASTER}), (0, None)):
        header = headers.UnregisterBrokerRequest(
            broker_name="broker-a", broker_address=MASTER, cluster_name="C", broker_id=broker_id
        )
        assert (await harness.call(Code.UNREGISTER_BROKER, header)).code == 0
        if left is not None:
            assert await harness.addresses() == left
    assert (await harness.route()).code == 17


async def test_6_closed_connections_unregister(harness: Harness) -> None:
    await harness.register()
    await harness.register(1, SLAVE)
    await harness.client(MASTER).close()
    await harness.clock.pass_time(0)
    assert await harness.addresses() == {1: SLAVE}
    await harness.client(SLAVE).close()
    await harness.clock.pass_time(0)
    gone = await harness.route()
    assert (gone.code, bytes(gone.body)) == (17, b"")
    assert gone.remark
    assert json.loads(bytes((await harness.call(106)).body)) == {
        "brokerAddrTable": {},
        "clusterAddrTable": {},
    }


async def test_7_silence_expires_and_closes_the_connection(harness: Harness) -> None:
    await harness.register(heartbeat_timeout_ms=20_000)
    connection = harness.client(MASTER)
    await harness.clock.pass_time(19)
    assert (await harness.route()).code == 0
    await harness.clock.pass_time(7)
    assert (await harness.route()).code == 17
    assert connection.open_channel("10.9.9.9:9876") is None


@pytest.mark.parametrize("sign", ["heartbeat", "version", "registration"])
async def test_signs_of_life(harness: Harness, sign: str) -> None:
    await harness.register(heartbeat_timeout_ms=20_000)
    for _ in range(4):
        await harness.clock.pass_time(15)
        if sign == "heartbeat":
            beat = headers.BrokerHeartbeatRequest(
                cluster_name="C", broker_address=MASTER, broker_name="broker-a"
            )
            assert (await harness.call(904, beat, by=MASTER)).code == 0
        elif sign == "version":
            await harness.call(322, _version_request(), body=b"{}", by=MASTER)
        else:
            await harness.register(heartbeat_timeout_ms=20_000)
    assert (await harness.route()).code == 0


def _version_request(address: str = MASTER) -> headers.QueryDataVersionRequest:
    return headers.QueryDataVersionRequest(
        broker_name="broker-a", broker_address=address, cluster_name="C", broker_id=0
    )


async def test_7_old_connection_closing_after_a_new_registration(harness: Harness) -> None:
    await harness.register(by="old")
    await harness.register(by="new")
    await harness.client("old").close()
    await harness.clock.pass_time(0)
    assert await harness.addresses() == {0: MASTER}


async def test_unregistration(harness: Harness) -> None:
    await harness.register()
    header = headers.UnregisterBrokerRequest(
        broker_name="broker-a", broker_address=MASTER, cluster_name="C", broker_id=0
    )
    assert (await harness.call(104, header)).code == 0
    assert (await harness.route()).code == 17
    assert (await harness.call(104, header)).code == 0


async def test_data_version_question(harness: Harness) -> None:
    ours = encode_body(DataVersion(counter=1))
    unknown = await harness.call(322, _version_request(), body=ours)
    assert (dict(unknown.fields), bytes(unknown.body)) == ({"changed": "true"}, b"")
    await harness.register()
    same = await harness.call(322, _version_request(), body=ours)
    assert (dict(same.fields), decode_body(same.body, DataVersion)) == (
        {"changed": "false"},
        DataVersion(counter=1),
    )
    other = await harness.call(322, _version_request(), body=encode_body(DataVersion(counter=2)))
    assert dict(other.fields) == {"changed": "true"}


@pytest.mark.parametrize(
    ("version", "accepts", "is_strict"),
    [
        (1, None, False),
        (317, None, False),
        (400, False, False),
        (317, True, True),
        (401, None, True),
        (479, None, True),
    ],
)
async def test_8_route_text_is_in_the_dialect_of_the_client(
    harness: Harness, version: int, accepts: bool | None, is_strict: bool
) -> None:
    await harness.register(is_acting_master_enabled=False)
    header = headers.RouteRequest(topic="T1", accepts_standard_json=accepts)
    answer = await harness.call(105, header, version=version)
    text = bytes(answer.body).decode()
    broker: dict[str, Any] = {"brokerAddrs": {0: MASTER}, "brokerName": "broker-a", "cluster": "C"}
    if is_strict:
        broker |= {"brokerAddrs": {"0": MASTER}, "enableActingMaster": False}
    assert (json.loads if is_strict else ast.literal_eval)(text) == {
        "brokerDatas": [broker],
        "filterServerTable": {},
        "queueDatas": [
            {"brokerName": "broker-a", "perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 4}
        ],
    }
    assert " " not in text


async def test_cluster_info_member_group_and_lists(harness: Harness) -> None:
    await harness.register()
    broker = {"brokerAddrs": {0: MASTER}, "brokerName": "broker-a", "cluster": "C"}
    strict = {**broker, "brokerAddrs": {"0": MASTER}, "enableActingMaster": False}
    clusters = {"C": ["broker-a"]}
    assert json.loads(bytes((await harness.call(106)).body)) == {
        "brokerAddrTable": {"broker-a": strict},
        "clusterAddrTable": clusters,
    }
    assert ast.literal_eval(bytes((await harness.call(106, version=317)).body).decode()) == {
        "brokerAddrTable": {"broker-a": broker},
        "clusterAddrTable": clusters,
    }
    group = await harness.call(901, headers.MemberGroupRequest(cluster_name="C", broker_name="broker-a"))
    assert decode_member_group(group.body).addresses == {0: MASTER}
    missing = await harness.call(901, headers.MemberGroupRequest(cluster_name="C", broker_name="x"))
    assert json.loads(bytes(missing.body)) == {
        "brokerMemberGroup": {"brokerAddrs": {}, "brokerName": "x", "cluster": "C"}
    }
    assert decode_topic_list((await harness.call(206)).body) == ("T1", "T2")
    in_cluster = await harness.call(224, headers.TopicsByClusterRequest(cluster="C"))
    assert decode_topic_list(in_cluster.body) == ("T1", "T2")
    assert json.loads(bytes((await harness.call(304)).body)) == {
        "brokerAddr": MASTER,
        "topicList": ["C", "broker-a"],
    }
    for code in (311, 312, 313):
        assert decode_topic_list((await harness.call(code)).body) == ()


async def test_topics_are_listed_by_their_unit_flags(harness: Harness) -> None:
    await harness.register()
    for topic, flags in {"Unit": 1, "Subscribed": 2, "Both": 3}.items():
        queue = QueueData(
            broker_name="broker-a",
            permission=6,
            read_queue_count=1,
            topic_sys_flag=flags,
            write_queue_count=1,
        )
        body = encode_topic_route(TopicRoute(queues=(queue,)))
        assert (await harness.call(217, headers.RegisterTopicRequest(topic=topic), body=body)).code == 0
    lists = [decode_topic_list((await harness.call(code)).body) for code in (311, 312, 313)]
    assert lists == [("Unit", "Both"), ("Subscribed", "Both"), ("Subscribed",)]


async def test_lists_can_be_switched_off() -> None:
    harness = await Harness().start(all_topic_list_enable=False, topic_list_enable=False)
    cluster = headers.TopicsByClusterRequest(cluster="C")
    answers = [await harness.call(code, cluster) for code in (206, 224, 311, 312, 313, 304)]
    assert [answer.code for answer in answers] == [1, 1, 1, 1, 1, 0]
    await harness.stop()


async def test_topic_registered_and_deleted_alone(harness: Harness) -> None:
    await harness.register()
    queue = QueueData(broker_name="broker-a", permission=6, read_queue_count=1, write_queue_count=1)
    body = encode_topic_route(TopicRoute(queues=(queue,)))
    assert (await harness.call(217, headers.RegisterTopicRequest(topic="Solo"), body=body)).code == 0
    assert (await harness.route("Solo")).code == 0
    delete = headers.DeleteTopicInNameServerRequest(topic="Solo", cluster_name="C")
    assert (await harness.call(216, delete)).code == 0
    assert (await harness.route("Solo")).code == 17


async def test_routes_wait_for_service_when_asked() -> None:
    harness = await Harness().start(wait_for_service=True)
    await harness.register()
    assert (await harness.route()).code == 1
    await harness.clock.pass_time(45)
    assert (await harness.route()).code == 0
    await harness.stop()


async def test_zone_filter(harness: Harness) -> None:
    await harness.register(zone_name="z1")
    other = await harness.route(is_zone_mode=True, zone_name="z2")
    assert (other.code, decode_body(other.body, TopicRoute)) == (0, TopicRoute())
    same = await harness.route(is_zone_mode=True, zone_name="Z1")
    assert len(decode_body(same.body, TopicRoute).brokers) == 1


async def test_served_codes_are_those_of_the_catalogue(harness: Harness) -> None:
    for code in [*Code, 1001, 1012, 30000]:
        is_ours = code in CATALOGUE and CATALOGUE[code].served_by is ServingRole.NAME_SERVER
        assert ((await harness.call(code)).code != 3) == is_ours, code


# KV configuration


async def put(harness: Harness, namespace: str, key: str, value: str) -> Command:
    return await harness.call(100, headers.PutKvRequest(namespace=namespace, key=key, value=value))


async def test_kv_round_trip_and_file(harness: Harness) -> None:
    assert (await put(harness, "N", "k", "v \N{SNOWMAN}")).code == 0
    got = await harness.call(101, headers.GetKvRequest(namespace="N", key="k"))
    assert dict(got.fields) == {"value": "v \N{SNOWMAN}"}
    assert json.loads(harness.disk.read_bytes(KV_PATH)) == {"configTable": {"N": {"k": "v \N{SNOWMAN}"}}}
    assert (await harness.call(102, headers.DeleteKvRequest(namespace="N", key="k"))).code == 0
    assert (await harness.call(101, headers.GetKvRequest(namespace="N", key="k"))).code == 22
    # The namespace stays.
    listed = await harness.call(219, headers.KvListRequest(namespace="N"))
    assert (listed.code, decode_kv_table(listed.body)) == (0, {})
    assert (await harness.call(219, headers.KvListRequest(namespace="M"))).code == 22
    assert (await harness.call(102, headers.DeleteKvRequest(namespace="M", key="k"))).code == 0
    assert (await harness.call(100, fields={"namespace": "N"})).code == 1


async def test_kv_file_does_not_grow_beyond_its_bound(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await put(harness, "N", "k", "v" * 100)).code == 0
    assert (await put(harness, "N", "j", "v" * 100)).code == 0
    monkeypatch.setattr(kv_config, "FILE_BYTES_MAX", 150)
    refused = await put(harness, "N", "another", "v")
    assert (refused.code, refused.remark) == (1, "the KV configuration would have more than 150 bytes")
    assert (await put(harness, "N", "k", "less")).code == 0
    assert (await harness.call(102, headers.DeleteKvRequest(namespace="N", key="j"))).code == 0
    assert (await put(harness, "N", "another", "v")).code == 0


async def test_kv_survives_a_restart_and_falls_back_to_its_backup() -> None:
    harness = await Harness().start()
    await put(harness, "N", "k", "1")
    await put(harness, "N", "k", "2")
    await harness.stop()
    harness.clients.clear()
    harness.disk.write_atomically(KV_PATH, b"not json")
    await harness.start()
    got = await harness.call(101, headers.GetKvRequest(namespace="N", key="k"))
    assert dict(got.fields) == {"value": "1"}
    await harness.stop()


async def test_kv_file_that_cannot_be_read_at_all_stops_the_start() -> None:
    harness = Harness()
    harness.disk.write_atomically(KV_PATH, b"[]")
    with pytest.raises(ConfigError, match=r"kvConfig\.json: the JSON text is not an object"):
        await harness.start()


async def test_kv_change_that_cannot_be_written_changes_nothing(harness: Harness) -> None:
    class Full:
        def on_create(self, path: Path, size: int) -> None: ...

        def on_write(self, path: Path, offset: int, size: int) -> int:
            raise OSError(errno.ENOSPC, "no room")

        def on_sync(self, path: Path) -> None: ...

    harness.disk.fault = Full()
    assert (await put(harness, "N", "k", "v")).code == 1
    assert (await harness.call(219, headers.KvListRequest(namespace="N"))).code == 22


async def test_changes_at_the_same_time_are_all_kept(harness: Harness) -> None:
    keys = [f"k{number}" for number in range(20)]
    waiting = [asyncio.ensure_future(put(harness, "N", key, "v")) for key in keys]
    await harness.clock.pass_time(0)
    assert [(await answer).code for answer in waiting] == [0] * 20
    assert list(json.loads(harness.disk.read_bytes(KV_PATH))["configTable"]["N"]) == keys


async def test_ordered_topics_reach_brokers_and_on_demand_clients() -> None:
    harness = await Harness().start(order_message_enable=True)
    await put(harness, "ORDER_TOPIC_CONFIG", "T1", "broker-a:4")
    answer = await harness.register()
    assert decode_kv_table(answer.body) == {"T1": "broker-a:4"}
    assert decode_body((await harness.route()).body, TopicRoute).order_topic_conf == "broker-a:4"
    assert decode_body((await harness.route("T2")).body, TopicRoute).order_topic_conf is None
    assert (await harness.call(318, body=b"returnOrderTopicConfigToBroker=false")).code == 0
    assert bytes((await harness.register()).body) == b""
    await harness.stop()


async def test_9_name_servers_share_nothing(harness: Harness) -> None:
    await put(harness, "N", "k", "v")
    other = await Harness().start()
    assert (await other.call(101, headers.GetKvRequest(namespace="N", key="k"))).code == 22
    await other.stop()


# Settings


async def test_settings_are_listed_sorted_and_change(harness: Harness) -> None:
    text = bytes((await harness.call(319)).body).decode()
    lines = text.splitlines()
    assert lines == sorted(lines)
    assert {"listenPort=9876", "enableTopicList=true", f"kvConfigPath={KV_PATH}"} <= set(lines)
    update = b"# a comment\nenableTopicList = false\nscanNotActiveBrokerInterval=1000\nunknownKey=1\n"
    assert (await harness.call(318, body=update)).code == 0
    assert (await harness.call(311)).code == 1
    changed = bytes((await harness.call(319)).body)
    assert b"scanNotActiveBrokerInterval=1000\n" in changed
    kept = harness.disk.read_bytes(CONFIG_PATH)
    assert kept == b"enableTopicList=false\nscanNotActiveBrokerInterval=1000\n"
    assert (await harness.call(318)).code == 0


@pytest.mark.parametrize(
    ("update", "code"),
    [
        (b"enableTopicList=false\nkvConfigPath=/etc/passwd", 16),
        (b"rocketmqHome=/tmp", 16),
        (b"configBlackList=", 16),
        (b"enableTopicList=maybe", 1),
        (b"listenPort=9877", 16),
        (b"bindAddress=10.0.0.1", 16),
        (b"waitSecondsForService=many", 1),
        (b"scanNotActiveBrokerInterval=0", 1),
        (b"enableTopicList=\\u12", 1),
    ],
)
async def test_update_that_is_refused_changes_nothing(harness: Harness, update: bytes, code: int) -> None:
    answer = await harness.call(318, body=update)
    assert (answer.code, bool(answer.remark)) == (code, True)
    assert (await harness.call(311)).code == 0
    assert not harness.disk.exists(CONFIG_PATH)


async def test_a_settings_file_that_cannot_be_written_stops_no_change(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, data: bytes, *, keep_backup: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(harness.disk, "write_atomically", refuse)
    answer = await harness.call(318, body=b"enableTopicList=false")
    assert (answer.code, "until the next start" in (answer.remark or "")) == (0, True)
    assert (await harness.call(311)).code == 1
    monkeypatch.undo()
    assert (await harness.call(318, body=b"scanNotActiveBrokerInterval=1000")).remark is None
    kept = harness.disk.read_bytes(CONFIG_PATH)
    assert kept == b"enableTopicList=false\nscanNotActiveBrokerInterval=1000\n"


async def test_own_black_list() -> None:
    harness = await Harness().start(config_black_list="enableTopicList; needWaitForService")
    assert (await harness.call(318, body=b"needWaitForService=true")).code == 16
    assert (await harness.call(318, body=b"enableAllTopicList=false")).code == 0
    await harness.stop()


async def test_other_lines_of_the_settings_file_stay(harness: Harness) -> None:
    harness.disk.write_atomically(CONFIG_PATH, b"# mine\nlistenPort=9876\nenableTopicList = \\\n true\n")
    assert (await harness.call(318, body=b"enableTopicList=false\norderMessageEnable=true")).code == 0
    kept = harness.disk.read_bytes(CONFIG_PATH)
    assert kept == b"# mine\nlistenPort=9876\nenableTopicList=false\norderMessageEnable=true\n"


# Notifications of a new smallest broker


class Listener:
    """A broker's port that receives notifications."""

    def __init__(self, harness: Harness) -> None:
        self.notices: list[dict[str, str]] = []
        self._server = RemotingServer(
            {Code.NOTIFY_MIN_BROKER_ID_CHANGE: self._take}, network=harness.network, clock=harness.clock
        )

    def _take(self, channel: Channel, command: Command) -> Command:
        self.notices.append(dict(command.fields))
        return command.reply()

    async def start(self, address: str) -> Listener:
        host, port = address.split(":")
        await self._server.start(host, int(port))
        return self

    async def stop(self) -> None:
        await self._server.stop()


@pytest.mark.parametrize("is_on", [True, False])
async def test_brokers_are_told_that_their_smallest_came_or_went(is_on: bool) -> None:
    harness = await Harness().start(notify_min_id_change=is_on)
    slave = await Listener(harness).start(SLAVE)
    await harness.register(1, SLAVE, is_acting_master_enabled=True)
    await harness.register(0, MASTER, is_acting_master_enabled=True)
    await harness.clock.pass_time(1)
    came = {
        "minBrokerId": "0",
        "brokerName": "broker-a",
        "minBrokerAddr": MASTER,
        "haBrokerAddr": "10.0.0.1:10912",
    }
    assert slave.notices == ([came] if is_on else [])
    await harness.client(MASTER).close()
    await harness.clock.pass_time(1)
    went = {
        "minBrokerId": "1",
        "brokerName": "broker-a",
        "minBrokerAddr": SLAVE,
        "offlineBrokerAddr": MASTER,
        "haBrokerAddr": "10.0.0.2:10912",
    }
    assert slave.notices == ([came, went] if is_on else [])
    await slave.stop()
    await harness.stop()


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="listen_port: -1 is outside"):
        NameServerOptions(listen_port=-1)
    with pytest.raises(ConfigError, match="scan_period_ms: 0 is outside"):
        NameServerOptions(scan_period_ms=0)
