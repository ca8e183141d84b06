"""Rarer requests of operators' tools: statistics, entries, lists, offsets, settings, cleaning."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from broker_rig import TIMEOUT_S, Peer, consumer, pull_response, running_broker
from pop_rig import ack, change, pop_all

from tandemmq.broker.broker import Broker
from tandemmq.nameserver.nameserver import NameServer
from tandemmq.nameserver.options import NameServerOptions
from tandemmq.protocol.bodies.codec import MessageQueue, decode_body
from tandemmq.protocol.bodies.progress import ConsumerStatus, decode_consumer_status, encode_consumer_status
from tandemmq.protocol.bodies.tables import TopicConfig
from tandemmq.protocol.catalogue import CATALOGUE, ELECTED, RELAYED, ServingRole
from tandemmq.protocol.codes import RequestCode as Code
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.loose_json import parse
from tandemmq.protocol.requests import admin as headers
from tandemmq.protocol.requests.admin import DeleteTopicRequest, TopicConfigRequest
from tandemmq.protocol.requests.consume import QueryOffsetRequest, UpdateOffsetRequest
from tandemmq.protocol.requests.replica import (
    ExchangeHaInfoRequest,
    ExchangeHaInfoResponse,
    ResetMasterFlushedOffsetRequest,
)
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.options import render_address
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock, TcpNetwork
from tandemmq.units import Buffer
from waits import until

HOSTILE = (
    "../up",
    "..",
    ".",
    "a/b",
    "/etc/passwd",
    "a\\b",
    "nul\0byte",
    "",
    "x" * 300,
    "%RETRY%../../g",
    "%DLQ%../g",
)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running_broker(tmp_path / "store") as broker:
        yield broker


async def ask_json(peer: Peer, code: int, header: object = None, body: bytes = b"") -> Any:
    answer = await peer.ask(code, header, body=body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return parse(answer.body)


async def commit(peer: Peer, group: str, offset: int, topic: str = "T", queue_id: int = 0) -> None:
    header = UpdateOffsetRequest(
        consumer_group=group, topic=topic, queue_id=queue_id, committed_offset=offset
    )
    assert (await peer.ask(Code.UPDATE_CONSUMER_OFFSET, header)).code == ResponseCode.SUCCESS


async def committed(peer: Peer, group: str, topic: str = "T") -> int:
    answer = await peer.ask(
        Code.QUERY_CONSUMER_OFFSET, QueryOffsetRequest(consumer_group=group, topic=topic, queue_id=0)
    )
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return int(answer.fields["offset"])


async def test_routes_are_those_of_the_catalogue(broker: Broker, tmp_path: Path) -> None:
    of_broker = {code for code, entry in CATALOGUE.items() if entry.served_by is ServingRole.BROKER}
    assert broker.served_codes == (of_broker | RELAYED) - ELECTED
    options = NameServerOptions(kv_config_path=tmp_path / "kv.json", config_store_path=tmp_path / "ns.conf")
    server = NameServer(options, network=TcpNetwork(), disk=RealDisk(), clock=LoopClock())
    of_server = {code for code, entry in CATALOGUE.items() if entry.served_by is ServingRole.NAME_SERVER}
    assert server.served_codes == of_server


async def test_statistics_of_topics_and_groups(broker: Broker, peer: Peer) -> None:
    for _ in range(3):
        await peer.send_ok("T", b"x" * 100)
    await peer.heartbeat("c1", consumer("CG", "T"))
    assert (await peer.pull("T")).code == ResponseCode.SUCCESS
    items = broker.stats_items
    items.sample(100.0)
    await peer.send_ok("T")
    items.sample(110.0)

    async def ask(name: str, key: str) -> Any:
        header = headers.BrokerStatsRequest(stats_name=name, stats_key=key)
        return await ask_json(peer, Code.VIEW_BROKER_STATS_DATA, header)

    puts = await ask("TOPIC_PUT_NUMS", "T")
    assert (puts["statsMinute"]["sum"], puts["statsDay"]["sum"]) == (4, 4)
    assert puts["statsMinute"]["avgpt"] == 1.0
    assert (await ask("TOPIC_PUT_SIZE", "T"))["statsHour"]["sum"] > 300
    gets = await ask("GROUP_GET_NUMS", "T@CG")
    assert (gets["statsMinute"]["sum"], gets["statsMinute"]["avgpt"]) == (3, 3.0)
    assert (await ask("GROUP_GET_SIZE", "T@CG"))["statsMinute"]["sum"] > 300
    assert (await ask("BROKER_PUT_NUMS", "DefaultCluster"))["statsMinute"]["sum"] == 4
    queue = await ask("QUEUE_PUT_NUMS", "T@0")
    assert queue["statsMinute"]["sum"] == 4
    assert (await ask("QUEUE_PUT_SIZE", "T@0"))["statsMinute"]["sum"] > 300
    for name, key in (("BROKER_PUT_NUMS", "another cluster"), ("NOPE", "T")):
        header = headers.BrokerStatsRequest(stats_name=name, stats_key=key)
        unknown = await peer.ask(Code.VIEW_BROKER_STATS_DATA, header)
        assert unknown.code == ResponseCode.SYSTEM_ERROR
    assert "TOPIC_PUT_NUMS" in (unknown.remark or "")


async def test_statistics_of_pops_and_of_what_users_send(broker: Broker, peer: Peer) -> None:
    """Leases are also stored as messages, in a topic of the broker."""
    items = broker.stats_items
    items.sample(100.0)
    for _ in range(3):
        await peer.send_ok("T")
    first, second, _ = await pop_all(peer, "T", 3)
    assert await ack(peer, first) == ResponseCode.SUCCESS
    await change(peer, second, 60_000)
    items.sample(110.0)

    def count(name: str, key: str = "DefaultCluster") -> int:
        found = items.find(name, key)
        assert found is not None, name
        return found[0].figures(is_bytes=found[1]).minute.sum

    assert (count("GROUP_CK_NUMS", "T@CG"), count("BROKER_CK_NUMS")) == (2, 2)
    assert (count("GROUP_ACK_NUMS", "T@CG"), count("BROKER_ACK_NUMS")) == (2, 2)
    users = ("BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC", "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC")
    assert [count(name) for name in users] == [3, 3]
    await peer.ask(Code.DELETE_TOPIC_IN_BROKER, DeleteTopicRequest(topic="T"))
    items.forget(110.0)
    items.sample(120.0)
    assert items.find("QUEUE_PUT_NUMS", "T@0") is None
    assert [count(name) for name in users] == [3, 3]


async def test_progress_of_all_groups_and_time_spans(peer: Peer) -> None:
    for _ in range(4):
        await peer.send_ok("T")
    await commit(peer, "CG", 1)
    await commit(peer, "Other", 4)
    header = headers.BrokerConsumeStatsRequest(is_ordered=False)
    stats = await ask_json(peer, Code.GET_BROKER_CONSUME_STATS, header)
    assert {group for row in stats["consumeStatsList"] for group in row} == {"CG", "Other"}
    assert stats["totalDiff"] == 3
    assert stats["brokerAddr"] == peer.address
    ordered = headers.BrokerConsumeStatsRequest(is_ordered=True)
    assert (await ask_json(peer, Code.GET_BROKER_CONSUME_STATS, ordered))["consumeStatsList"] == []
    span_header = headers.ConsumeTimeSpanRequest(topic="T", group="CG")
    spans = (await ask_json(peer, Code.QUERY_CONSUME_TIME_SPAN, span_header))["consumeTimeSpanSet"]
    first = next(span for span in spans if span["messageQueue"]["queueId"] == 0)
    assert 0 < first["minTimeStamp"] <= first["consumeTimeStamp"] <= first["maxTimeStamp"]
    assert first["delayTime"] >= 0
    unknown = headers.ConsumeTimeSpanRequest(topic="None", group="CG")
    assert (await peer.ask(Code.QUERY_CONSUME_TIME_SPAN, unknown)).code == ResponseCode.TOPIC_NOT_EXIST


async def test_entries_of_a_queue_and_one_subscription(peer: Peer) -> None:
    for tag in ("a", "b", "a"):
        await peer.send_ok("T", properties={"TAGS": tag})
    await peer.heartbeat("c1", consumer("CG", "T", expression="a"))
    header = headers.ConsumeQueueRequest(
        topic="T", queue_id=0, queue_offset=1, count_max=10, consumer_group="CG"
    )
    view = await ask_json(peer, Code.QUERY_CONSUME_QUEUE, header)
    assert (view["minQueueIndex"], view["maxQueueIndex"]) == (0, 3)
    assert [entry["eval"] for entry in view["queueData"]] == [False, True]
    assert view["subscriptionData"]["subString"] == "a"
    nobody = headers.ConsumeQueueRequest(
        topic="T", queue_id=0, queue_offset=0, count_max=1, consumer_group="X"
    )
    assert "not online" in (await ask_json(peer, Code.QUERY_CONSUME_QUEUE, nobody))["filterData"]
    for bad in ({"queue_id": 99}, {"queue_offset": -1}, {"count_max": 0}):
        values: dict[str, Any] = {"topic": "T", "queue_id": 0, "queue_offset": 0, "count_max": 1, **bad}
        answer = await peer.ask(Code.QUERY_CONSUME_QUEUE, headers.ConsumeQueueRequest(**values))
        assert answer.code == ResponseCode.INVALID_PARAMETER
    one = headers.GroupSubscriptionRequest(group="CG", topic="T")
    found = await ask_json(peer, Code.QUERY_SUBSCRIPTION_BY_CONSUMER, one)
    assert (found["group"], found["subscriptionData"]["subString"]) == ("CG", "a")
    await peer.heartbeat("c1", consumer("Tags", "T", expression="b || a ||b"))
    online = await ask_json(
        peer, Code.GET_CONSUMER_CONNECTION_LIST, headers.ConsumerConnectionsRequest(consumer_group="Tags")
    )
    assert sorted(online["subscriptionTable"]["T"]["tagsSet"]) == ["a", "b"]
    other = headers.GroupSubscriptionRequest(group="CG", topic="None")
    assert (await ask_json(peer, Code.QUERY_SUBSCRIPTION_BY_CONSUMER, other)).get("subscriptionData") is None


async def test_lists_of_topics_and_groups(peer: Peer) -> None:
    topics = [
        {"topicName": "L1", "readQueueNums": 3, "writeQueueNums": 3, "attributes": {"+message.type": "FIFO"}},
        {"topicName": "L2", "readQueueNums": 1, "writeQueueNums": 1},
    ]
    body = json.dumps({"topicConfigList": topics}).encode()
    assert (await peer.ask(Code.UPDATE_AND_CREATE_TOPIC_LIST, body=body)).code == ResponseCode.SUCCESS
    shown = await peer.ask(Code.GET_TOPIC_CONFIG, TopicConfigRequest(topic="L1"))
    config = decode_body(shown.body, TopicConfig)
    assert (config.write_queue_count, config.attributes) == (3, {"message.type": "FIFO"})
    bad = json.dumps({"topicConfigList": [{"topicName": "L3"}, {"topicName": "../x"}]}).encode()
    assert (await peer.ask(Code.UPDATE_AND_CREATE_TOPIC_LIST, body=bad)).code == 29
    assert (await peer.ask(Code.GET_TOPIC_CONFIG, TopicConfigRequest(topic="L3"))).code == 17
    groups = json.dumps({"groupConfigList": [{"groupName": "G1"}, {"groupName": "G2"}]}).encode()
    assert (await peer.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=groups)).code == 0
    table = await ask_json(peer, Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert {"G1", "G2"} <= table["subscriptionGroupTable"].keys()
    empty = json.dumps({"groupConfigList": []}).encode()
    assert (await peer.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=empty)).code == 29


async def test_list_that_does_not_fit_makes_none_of_its_topics_and_groups(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, topic_count_max=40, group_count_max=40) as broker,
        Peer(broker) as peer,
    ):
        topics, groups = broker._tables.topics, broker._tables.groups
        left = [40 - len(topics), 40 - len(groups)]

        async def make(topic_count: int, group_count: int) -> list[int]:
            new_topics = [{"topicName": f"L{n}", "readQueueNums": 1} for n in range(topic_count)]
            new_groups = [{"groupName": f"G{n}"} for n in range(group_count)]
            bodies = {
                Code.UPDATE_AND_CREATE_TOPIC_LIST: {"topicConfigList": new_topics},
                Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: {"groupConfigList": new_groups},
            }
            return [
                (await peer.ask(code, body=json.dumps(body).encode())).code for code, body in bodies.items()
            ]

        assert await make(left[0] + 1, left[1] + 1) == [ResponseCode.SYSTEM_BUSY] * 2
        assert [40 - len(topics), 40 - len(groups)] == left
        assert await make(*left) == [ResponseCode.SUCCESS] * 2
        assert (len(topics), len(groups)) == (40, 40)
        assert await make(1, 1) == [ResponseCode.SUCCESS] * 2  # existing topics and groups need no room


async def test_group_is_forbidden_a_topic_also_after_a_restart(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        await peer.send_ok("T")
        await peer.heartbeat("c1", consumer("CG", "T"))
        shut = headers.GroupForbiddenRequest(group="CG", topic="T", is_readable=False)
        answer = await ask_json(peer, Code.UPDATE_AND_GET_GROUP_FORBIDDEN, shut)
        assert answer == {"group": "CG", "topic": "T", "readable": False}
        assert (await peer.pull("T", sys_flag=0)).code == ResponseCode.NO_PERMISSION
    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        await peer.heartbeat("c1", consumer("CG", "T"))
        asked = headers.GroupForbiddenRequest(group="CG", topic="T")
        assert (await ask_json(peer, Code.UPDATE_AND_GET_GROUP_FORBIDDEN, asked))["readable"] is False
        opened = headers.GroupForbiddenRequest(group="CG", topic="T", is_readable=True)
        assert (await ask_json(peer, Code.UPDATE_AND_GET_GROUP_FORBIDDEN, opened))["readable"] is True
        assert (await peer.pull("T", sys_flag=0)).code == ResponseCode.SUCCESS
        nobody = headers.GroupForbiddenRequest(group="Nobody", topic="T", is_readable=True)
        assert (await peer.ask(Code.UPDATE_AND_GET_GROUP_FORBIDDEN, nobody)).code == 26


async def test_offsets_are_copied_and_corrected(peer: Peer) -> None:
    for _ in range(5):
        await peer.send_ok("T")
    await commit(peer, "A", 4)
    await commit(peer, "B", 2)
    clone = headers.CloneGroupOffsetRequest(source_group="A", target_group="C")
    assert (await peer.ask(Code.CLONE_GROUP_OFFSET, clone)).code == ResponseCode.SUCCESS
    assert await committed(peer, "C") == 4
    corrected = headers.CorrectionOffsetRequest(compare_group="A", topic="T")
    assert await ask_json(peer, Code.QUERY_CORRECTION_OFFSET, corrected) == {"correctionOffsets": {"0": 2}}
    filtered = headers.CorrectionOffsetRequest(compare_group="A", topic="T", filter_groups="B,C")
    assert (await ask_json(peer, Code.QUERY_CORRECTION_OFFSET, filtered))["correctionOffsets"] == {"0": 4}


async def test_status_of_consumers_is_asked_of_them(broker: Broker) -> None:
    queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)

    def answer_status(channel: Channel, command: Command) -> Command:
        return command.reply(body=encode_consumer_status(ConsumerStatus(queues={queue: 7})))

    async with Peer(broker, {Code.GET_CONSUMER_STATUS_FROM_CLIENT: answer_status}) as client:
        await client.send_ok("T")
        await client.heartbeat("c1", consumer("CG", "T"))
        header = headers.ConsumerStatusRequest(topic="T", group="CG")
        answer = await client.ask(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert decode_consumer_status(answer.body).clients == {"c1": {queue: 7}}
        nobody = headers.ConsumerStatusRequest(topic="T", group="CG", client_id="c2")
        refused = await client.ask(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, nobody)
        assert (refused.code, "c2" in (refused.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


async def test_settings_change_at_once_and_are_kept_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("# mine\nbrokerName=broker-a\nautoCreateTopicEnable = true\n")
    path.chmod(0o600)
    async with running_broker(tmp_path / "store", config_path=path) as broker, Peer(broker) as peer:
        body = b"autoCreateTopicEnable=false\nfileReservedTime=48\n"
        answer = await peer.ask(Code.UPDATE_BROKER_CONFIG, body=body)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert (await peer.send("New")).code == ResponseCode.TOPIC_NOT_EXIST
        shown = bytes((await peer.ask(Code.GET_BROKER_CONFIG)).body)
        assert b"\nfileReservedTime=48\n" in shown
    text = "# mine\nbrokerName=broker-a\nautoCreateTopicEnable=false\nfileReservedTime=48\n"
    assert path.read_text() == text
    assert path.stat().st_mode & 0o777 == 0o600


async def test_a_file_that_cannot_be_written_stops_no_change_and_the_answer_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With systemd's ProtectSystem=strict the file is on a read-only mount."""
    path, disk = tmp_path / "broker.conf", RealDisk()
    path.write_text("# mine\n")
    write = disk.write_atomically

    def refuse(target: Path, data: Buffer, *, keep_backup: bool = False) -> None:
        if target == path:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        write(target, data, keep_backup=keep_backup)

    monkeypatch.setattr(disk, "write_atomically", refuse)
    async with (
        running_broker(tmp_path / "store", disk=disk, config_path=path) as broker,
        Peer(broker) as peer,
    ):
        answer = await peer.ask(Code.UPDATE_BROKER_CONFIG, body=b"autoCreateTopicEnable=false\n")
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert answer.remark == (
            "it holds until the next start: broker.conf cannot be written: Read-only file system"
        )
        assert "config.not_saved" in caplog.messages
        assert (await peer.send("New")).code == ResponseCode.TOPIC_NOT_EXIST
        assert path.read_text() == "# mine\n"
        monkeypatch.undo()
        answer = await peer.ask(Code.UPDATE_BROKER_CONFIG, body=b"fileReservedTime=48\n")
        assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
    assert path.read_text() == "# mine\nautoCreateTopicEnable=false\nfileReservedTime=48\n"


REFUSED = {
    b"brokerConfigPath=/tmp/x\n": ResponseCode.NO_PERMISSION,
    b"rocketmqHome=$(touch /tmp/x)\n": ResponseCode.NO_PERMISSION,
    b"filterServerNums=1\n": ResponseCode.NO_PERMISSION,
    b"storePathRootDir=/tmp/x\n": ResponseCode.NO_PERMISSION,
    b"namesrvAddr=10.0.0.1:9876\n": ResponseCode.NO_PERMISSION,
    b"fileReservedTime=24\nbrokerName=other\n": ResponseCode.NO_PERMISSION,
    b"fileReservedTime=soon\n": ResponseCode.INVALID_PARAMETER,
    b"brokerPermission=9\n": ResponseCode.INVALID_PARAMETER,
    b"deleteWhen=25\n": ResponseCode.INVALID_PARAMETER,
    b"a=\\u12\n": ResponseCode.SYSTEM_ERROR,
}


@pytest.mark.parametrize("body", REFUSED, ids=lambda body: body.decode().split("=")[0])
async def test_setting_that_must_not_change_is_refused_and_nothing_changes(peer: Peer, body: bytes) -> None:
    before = bytes((await peer.ask(Code.GET_BROKER_CONFIG)).body)
    answer = await peer.ask(Code.UPDATE_BROKER_CONFIG, body=body)
    assert (answer.code, bool(answer.remark)) == (REFUSED[body], True)
    assert bytes((await peer.ask(Code.GET_BROKER_CONFIG)).body) == before


async def test_permission_of_the_broker_takes_effect_on_topics_in_use(broker: Broker, peer: Peer) -> None:
    await peer.send_ok("T")
    assert (await peer.ask(Code.UPDATE_BROKER_CONFIG, body=b"brokerPermission=2\n")).code == 0
    await peer.heartbeat("c1", consumer("CG", "T"))
    assert (await peer.pull("T")).code == ResponseCode.NO_PERMISSION


async def test_cleaning_by_hand(broker: Broker, peer: Peer) -> None:
    await peer.send_ok("T")
    for code in (Code.CLEAN_EXPIRED_CONSUMEQUEUE, Code.DELETE_EXPIRED_COMMITLOG, Code.CLEAN_UNUSED_TOPIC):
        assert (await peer.ask(code)).code == ResponseCode.SUCCESS
    await peer.heartbeat("c1", consumer("CG", "T"))
    assert pull_response(await peer.pull("T")).max_offset == 1  # no file in use is deleted


async def test_queues_of_a_topic_that_is_gone_take_the_progress_of_groups_along(
    broker: Broker, peer: Peer
) -> None:
    """The recreated topic begins at 0: a group with offset 2 would skip its first messages."""
    for _ in range(2):
        await peer.send_ok("Gone")
    tables = broker._tables
    now_ms = 1_700_000_000_000
    tables.offsets.commit("CG", "Gone", 0, 2, now_ms)
    tables.topics.remove("Gone", now_ms)
    assert (await peer.ask(Code.CLEAN_UNUSED_TOPIC)).code == ResponseCode.SUCCESS
    await peer.send_ok("Gone")
    assert tables.offsets.committed_queues("CG", "Gone") == {}


async def test_master_tells_its_addresses(broker: Broker, peer: Peer) -> None:
    answer = await peer.ask(Code.EXCHANGE_BROKER_HA_INFO, ExchangeHaInfoRequest())
    response = answer.decode(ExchangeHaInfoResponse)
    assert response.master_address == render_address(broker.address)
    assert response.master_ha_address == render_address(broker.ha_address)
    told = ExchangeHaInfoRequest(master_ha_address="10.6.6.6:10912", master_address="10.6.6.6:10911")
    assert (await peer.ask(Code.EXCHANGE_BROKER_HA_INFO, told)).code == ResponseCode.SUCCESS
    reset = ResetMasterFlushedOffsetRequest(master_flushed_offset=0)
    assert (await peer.ask(Code.RESET_MASTER_FLUSH_OFFSET, reset)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("name", HOSTILE, ids=repr)
async def test_hostile_topic_touches_nothing_outside_the_store(tmp_path: Path, peer: Peer, name: str) -> None:
    """Sends each code that accepts a topic or a group, with the name in every text field."""
    (tmp_path / "up").mkdir()
    await peer.send_ok("T")
    made_late = [tmp_path / "store" / name for name in ("consumequeue", "index")]
    await until(lambda: all(path.is_dir() for path in made_late), "the store has all directories of its own")
    before = _outside_store(tmp_path)
    for code, entry in CATALOGUE.items():
        if entry.served_by is not ServingRole.BROKER or entry.request is None:
            continue
        fields = _fields(entry.request, name)
        if not {"topic", "b", "group", "groupName", "consumerGroup"} & fields.keys():
            continue
        command = Command.request(code, fields=fields, body=b"x")
        if entry.is_oneway:
            await peer.client.send_oneway(peer.address, command)
        else:
            await peer.client.request(peer.address, command, TIMEOUT_S)
    topics = json.dumps({"topicConfigList": [{"topicName": name}]}).encode()
    assert (await peer.ask(Code.UPDATE_AND_CREATE_TOPIC_LIST, body=topics)).code == 29
    assert (await peer.ask(Code.DELETE_TOPIC_IN_BROKER, DeleteTopicRequest(topic=name))).code == 29
    assert _outside_store(tmp_path) == before
    assert (await peer.ask(Code.GET_BROKER_RUNTIME_INFO)).code == ResponseCode.SUCCESS


def _outside_store(root: Path) -> list[Path]:
    """Returns all paths outside the directories of topic queues."""
    queues = root / "store" / "consumequeue"
    return sorted(path for path in root.rglob("*") if path.is_dir() and queues not in path.parents)


def _fields(kind: type[Any], name: str) -> dict[str, str]:
    fields = {}
    for field in msgspec.structs.fields(kind):
        text = str(field.type)
        if "bool" in text:
            fields[field.encode_name] = "true"
        elif "int" in text:
            fields[field.encode_name] = "0"
        else:
            fields[field.encode_name] = name
    return fields
