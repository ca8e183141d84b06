"""Operators' requests to a real broker, and its registration at name servers (spec semantics 16, 19, 22)."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import msgspec
import pytest
from broker_rig import (
    Peer,
    consumer,
    copy_as_killed,
    make_broker,
    records_of,
    running_broker,
    running_name_server,
)

from ports import free_port
from tandemmq.api.nameserver import query_route
from tandemmq.broker import registration, tables
from tandemmq.broker.broker import Broker
from tandemmq.errors import ConfigError
from tandemmq.protocol.bodies.client import MessageModel
from tandemmq.protocol.bodies.codec import MessageQueue, decode_body, decode_kv_table, encode_body
from tandemmq.protocol.bodies.register import decode_register_broker_body
from tandemmq.protocol.bodies.route import TopicRoute
from tandemmq.protocol.bodies.stats import decode_consume_stats, decode_topic_stats
from tandemmq.protocol.bodies.tables import (
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
    decode_group_list,
)
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.admin import (
    ConsumeStatsRequest,
    CreateTopicRequest,
    DeleteGroupRequest,
    DeleteTopicRequest,
    GroupConfigRequest,
    TopicConfigRequest,
    TopicConsumersRequest,
    TopicStatsRequest,
)
from tandemmq.protocol.requests.consume import (
    QueryMessageRequest,
    QueryOffsetRequest,
    UpdateOffsetRequest,
    ViewMessageRequest,
)
from tandemmq.protocol.requests.replica import AllTopicConfigRequest
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.options import render_address
from tandemmq.remoting.server import RemotingServer
from tandemmq.runtime.machine import LoopClock, TcpNetwork
from waits import until


def topic_request(topic: str, **changes: object) -> CreateTopicRequest:
    values: dict[str, object] = {
        "topic": topic,
        "default_topic": "TBW102",
        "read_queue_count": 2,
        "write_queue_count": 2,
        "permission": 6,
        **changes,
    }
    return CreateTopicRequest(**values)  # type: ignore[arg-type]  # real fields


async def test_topic_is_made_changed_shown_and_deleted(tmp_path: Path, peer: Peer) -> None:
    await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_request("T1", attributes="+message.type=FIFO"))
    shown = await peer.ask(RequestCode.GET_TOPIC_CONFIG, TopicConfigRequest(topic="T1"))
    config = decode_body(shown.body, TopicConfig)
    assert (config.read_queue_count, config.attributes) == (2, {"message.type": "FIFO"})
    saved = decode_body((tmp_path / "config" / "topics.json").read_bytes(), TopicConfigTable)
    assert saved.topics["T1"] == config
    await peer.send_ok("T1")
    assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequest(topic="T1"))).code == 0
    assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequest(topic="T1"))).code == 0
    shown = await peer.ask(RequestCode.GET_TOPIC_CONFIG, TopicConfigRequest(topic="T1"))
    assert shown.code == ResponseCode.TOPIC_NOT_EXIST
    assert (await peer.send_ok("T1")).queue_offset == 0


@pytest.mark.parametrize(
    ("if_exists", "wanted", "found"),
    [
        ("keep", (9, 9, 4), (4, 4, 6)),
        ("grow", (2, 9, 4), (4, 9, 6)),
        ("noFewer", (9, 2, 4), (9, 4, 4)),
        (None, (2, 3, 4), (2, 3, 4)),
    ],
)
async def test_a_creation_says_what_an_existing_topic_keeps(
    peer: Peer, if_exists: str | None, wanted: tuple[int, int, int], found: tuple[int, int, int]
) -> None:
    async def create(read: int, write: int, permission: int) -> TopicConfig:
        counts = {"read_queue_count": read, "write_queue_count": write, "permission": permission}
        made = topic_request("T1", if_exists=if_exists, **counts)
        assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, made)).code == 0
        shown = await peer.ask(RequestCode.GET_TOPIC_CONFIG, TopicConfigRequest(topic="T1"))
        return decode_body(shown.body, TopicConfig)

    for request, result in (((4, 4, 6), (4, 4, 6)), (wanted, found)):
        config = await create(*request)
        assert (config.read_queue_count, config.write_queue_count, config.permission) == result


@pytest.mark.parametrize("if_exists", ["keep", "grow"])
async def test_a_creation_that_keeps_or_grows_a_topic_changes_no_attribute(
    peer: Peer, if_exists: str
) -> None:
    for message_type in ("FIFO", "DELAY"):
        made = topic_request("T1", if_exists=if_exists, attributes=f"+message.type={message_type}")
        assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, made)).code == 0
    shown = await peer.ask(RequestCode.GET_TOPIC_CONFIG, TopicConfigRequest(topic="T1"))
    assert decode_body(shown.body, TopicConfig).attributes == {"message.type": "FIFO"}


async def test_queues_of_a_topic_that_no_table_tells_of_are_deleted(broker: Broker, peer: Peer) -> None:
    """This happens on a slave that became master before it learned that the topic was created."""
    await peer.send_ok("T1", b"old")
    broker._tables.topics.remove("T1", 0)
    assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequest(topic="T1"))).code == 0
    assert broker.store is not None
    assert [key for key in broker.store.queue_keys() if key[0] == "T1"] == []
    assert (await peer.send_ok("T1", b"new")).queue_offset == 0


@pytest.mark.parametrize(
    "request_",
    [
        topic_request("../T1"),
        topic_request("TBW102"),
        topic_request("rmq_sys_anything"),
        topic_request("DefaultCluster"),
        topic_request("T1", permission=8),
        topic_request("T1", read_queue_count=-1),
        topic_request("T1", write_queue_count=70_000),
        topic_request("T1", topic_filter_type="ALL"),
        topic_request("T1", attributes="+cleanup.policy=COMPACTION"),
        topic_request("T1", attributes="message.type=FIFO"),
        topic_request("T1", attributes="+message.type=MIXED"),
        topic_request("T1", if_exists="shrink"),
    ],
)
async def test_impossible_topics_are_refused(peer: Peer, request_: CreateTopicRequest) -> None:
    answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, request_)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert answer.remark


async def test_a_group_that_is_asked_for_is_made_where_groups_are_made_by_use(
    peer: Peer, tmp_path: Path
) -> None:
    asked = GroupConfigRequest(group="CG")
    shown = await peer.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, asked)
    assert decode_body(shown.body, SubscriptionGroupConfig) == SubscriptionGroupConfig(name="CG")
    bad = await peer.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupConfigRequest(group="no/slash"))
    assert bad.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    async with running_broker(tmp_path / "b", auto_create_group=False) as strict, Peer(strict) as other:
        shown = await other.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, asked)
        assert shown.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_group_is_made_shown_and_deleted_with_its_offsets(peer: Peer) -> None:
    await peer.send_ok("T1")
    config = SubscriptionGroupConfig(name="CG", retry_count_max=3)
    answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_body(config))
    assert answer.code == ResponseCode.SUCCESS
    shown = await peer.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupConfigRequest(group="CG"))
    assert decode_body(shown.body, SubscriptionGroupConfig) == config
    header = UpdateOffsetRequest(consumer_group="CG", topic="T1", queue_id=0, committed_offset=1)
    await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    delete = DeleteGroupRequest(group="CG", cleans_offsets=True)
    assert (await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, delete)).code == ResponseCode.SUCCESS
    listed = await peer.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert "CG" not in decode_body(listed.body, SubscriptionGroupTable).groups
    consumers = await peer.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicConsumersRequest(topic="T1"))
    assert decode_group_list(consumers.body) == ()
    bad = SubscriptionGroupConfig(name="no/slash")
    answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_body(bad))
    assert answer.code == ResponseCode.INVALID_PARAMETER


async def test_stats_of_a_topic_and_a_group(peer: Peer) -> None:
    for _ in range(3):
        await peer.send_ok("T1")
    header = UpdateOffsetRequest(consumer_group="CG", topic="T1", queue_id=0, committed_offset=2)
    await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    queue = MessageQueue(topic="T1", broker_name="broker-a", queue_id=0)
    answer = await peer.ask(RequestCode.GET_TOPIC_STATS_INFO, TopicStatsRequest(topic="T1"))
    stats = decode_topic_stats(answer.body)
    assert len(stats.queues) == 4
    assert (stats.queues[queue].min_offset, stats.queues[queue].max_offset) == (0, 3)
    assert stats.queues[queue].updated_at_ms > 0
    answer = await peer.ask(RequestCode.GET_CONSUME_STATS, ConsumeStatsRequest(consumer_group="CG"))
    progress = decode_consume_stats(answer.body).queues[queue]
    assert (progress.broker_offset, progress.committed_offset) == (3, 2)
    assert progress.last_timestamp_ms > 0
    consumers = await peer.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicConsumersRequest(topic="T1"))
    assert decode_group_list(consumers.body) == ("CG",)
    await peer.heartbeat("c1", consumer("Online", "T1"))
    consumers = await peer.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicConsumersRequest(topic="T1"))
    assert decode_group_list(consumers.body) == ("CG", "Online")
    answer = await peer.ask(RequestCode.GET_TOPIC_STATS_INFO, TopicStatsRequest(topic="Nowhere"))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


async def test_consume_stats_leave_out_broadcasting_groups_and_unsubscribed_topics(peer: Peer) -> None:
    """Broadcasting clients keep their progress themselves; a topic that a group no longer subscribes to has
    no lag.
    """

    async def topics_of(group: str, topic: str | None = None) -> set[str]:
        header = ConsumeStatsRequest(consumer_group=group, topic=topic)
        stats = decode_consume_stats((await peer.ask(RequestCode.GET_CONSUME_STATS, header)).body)
        return {queue.topic for queue in stats.queues}

    for topic in ("T1", "T2"):
        await peer.send_ok(topic)
    await peer.heartbeat("c1", consumer("Everybody", "T1", message_model=MessageModel.BROADCASTING))
    assert (await topics_of("Everybody"), await topics_of("Everybody", "T1")) == (set(), set())
    for topic in ("T1", "T2"):
        header = UpdateOffsetRequest(consumer_group="CG", topic=topic, queue_id=0, committed_offset=0)
        await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    assert await topics_of("CG") == {"T1", "T2"}
    await peer.heartbeat("c2", consumer("CG", "T1"))
    assert (await topics_of("CG"), await topics_of("CG", "T2")) == ({"T1"}, set())
    header = UpdateOffsetRequest(consumer_group="Everybody", topic="T1", queue_id=0, committed_offset=1)
    await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    assert await topics_of("Everybody", "T1") == {"T1"}  # its offsets are nevertheless stored here


async def test_figures_of_days_leave_out_what_the_system_sends(broker: Broker, peer: Peer) -> None:
    for topic in ("T1", "RMQ_SYS_TRACE_TOPIC"):
        await peer.send_ok(topic)
        await peer.pull(topic)
    table = decode_kv_table((await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)
    assert (table["msgPutTotalTodayNow"], table["msgGetTotalTodayNow"]) == ("1", "1")
    assert (table["putMessageTimesTotal"], table["getTransferedTps"]) == ("2", table["getTransferredTps"])
    broker.stats_items.sample(10.0)
    await peer.send_ok("T1")
    table = decode_kv_table((await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)
    assert table["msgPutTotalTodayNow"] == "2"


async def test_figures_of_timers(peer: Peer) -> None:
    in_a_minute = {"TIMER_DELAY_SEC": "60"}
    assert (await peer.send("T1", properties=in_a_minute)).code == ResponseCode.SUCCESS
    assert (await peer.send("T1", properties={"TIMER_DELAY_SEC": "1"})).code == ResponseCode.SUCCESS

    async def figures() -> dict[str, str]:
        table = decode_kv_table((await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)
        return {name: text for name, text in table.items() if name.startswith("timer")}

    assert float((await figures())["timerEnqueueTps"]) > 0
    while float((found := await figures())["timerDequeueTps"]) == 0:
        await peer.pull("T1", sys_flag=0x6, suspend_timeout_ms=100)
    waiting = [found[name] for name in ("timerCongestNum", "timerOffsetBehind", "timerReadBehind")]
    assert waiting == ["1", "0", "0"]


async def test_runtime_info_and_settings(broker: Broker, peer: Peer) -> None:
    await peer.send_ok("T1")
    table = decode_kv_table((await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)
    assert table["brokerVersionDesc"] == "V5_3_3"
    assert table["putMessageTimesTotal"] == "1"
    assert len(table["putTps"].split()) == 3
    assert int(table["earliestMessageTimeStamp"]) > 1_600_000_000_000
    assert float(table["commitLogDiskRatio"]) >= 0
    assert table["commitLogDiskRatio"] == table[f"commitLogDiskRatio_{broker._store_options.log_dir}"]
    assert float(table["putLatency999"]) >= float(table["putLatency99"]) > 0
    shares = dict(part.rsplit(":", 1) for part in table["putMessageDistributeTime"].split())
    assert (len(shares), sum(map(int, shares.values()))) == (13, 1)
    answer = await peer.ask(RequestCode.GET_BROKER_CONFIG)
    lines = bytes(answer.body).decode().splitlines()
    assert "brokerName=broker-a" in lines
    assert "messageDelayLevel=1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h" in lines
    assert {"aclEnable=false", "authenticationEnabled=false", "authorizationEnabled=false"} <= {*lines}
    assert "counter" in answer.fields["version"]


async def test_settings_cannot_be_changed_while_it_runs(peer: Peer) -> None:
    same = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerName=broker-a\n")
    assert same.code == ResponseCode.SUCCESS
    answer = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerName=other\nnonsense=1\n")
    assert answer.code == ResponseCode.NO_PERMISSION
    assert "brokerName cannot be changed while the broker runs" in (answer.remark or "")


async def test_messages_are_found_by_place_and_by_key(peer: Peer) -> None:
    await peer.send_ok("T1", b"one", properties={"KEYS": "order-1 order-2", "UNIQ_KEY": "EF" * 16})
    await peer.send_ok("T1", b"two", properties={"KEYS": "order-2"})

    async def query(key: str, *, unique: bool = False, index_type: str = "") -> list[bytes]:
        header = QueryMessageRequest(
            topic="T1",
            key=key,
            count_max=8,
            begin_at_ms=0,
            end_at_ms=2**63 - 1,
            is_unique_key=unique,
            index_type=index_type,
        )
        answer = await peer.ask(RequestCode.QUERY_MESSAGE, header)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return []
        return sorted(record.body for record in records_of(answer))

    assert await query("order-1") == [b"one"]
    assert await query("order-2") == [b"one", b"two"]
    assert await query("EF" * 16, unique=True) == [b"one"]
    assert await query("order-3") == []
    await peer.send_ok("T1", b"red", properties={"TAGS": "red", "KEYS": "T#blue"})
    assert await query("red") == []
    assert await query("red", index_type="T") == [b"red"]
    assert await query("blue", index_type="T") == []
    assert await query("order-1", index_type="K") == await query("order-1", index_type="U") == [b"one"]
    with pytest.raises(AssertionError, match="indexType 'X' must be K"):
        await query("order-1", index_type="X")
    for offset in (-1, 1, 10**12):
        answer = await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequest(log_offset=offset))
        assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_unknown_code_and_replica_tables(peer: Peer) -> None:
    unknown = await peer.ask(4711)
    assert unknown.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert unknown.remark == "request code 4711 is not supported"
    for code in range(200070, 200080):
        lite = await peer.ask(code)
        assert lite.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert "lite topics: a topic with many queues" in (lite.remark or "")
    answer = await peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG, AllTopicConfigRequest())
    table = decode_body(answer.body, TopicConfigTable)
    assert table.topics["TBW102"].permission == 7
    assert table.data_version.counter > 0


async def test_unreadable_topic_file_falls_back_to_its_backup(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_request("T1"))
        await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_request("T2"))
    path = tmp_path / "config" / "topics.json"
    path.write_bytes(b"\x00" * 100)
    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        answer = await peer.ask(RequestCode.GET_TOPIC_CONFIG, TopicConfigRequest(topic="T1"))
        assert answer.code == ResponseCode.SUCCESS
    path.write_bytes(b"no json")
    path.with_name("topics.json.bak").write_bytes(b"neither")
    broken = make_broker(tmp_path)
    with pytest.raises(ConfigError, match=r"topics\.json"):
        await broken.start()
    await broken.stop()


@pytest.mark.parametrize("has_backup", [False, True])
async def test_a_lost_topic_file_hides_no_message(tmp_path: Path, has_backup: bool) -> None:
    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        for topic in ("Gone", "Old", "New"):
            four = topic_request(topic, read_queue_count=4, write_queue_count=4)
            await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, four)
        await peer.send_ok("Gone")
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequest(topic="Gone"))
        for topic in ("Old", "New"):
            await peer.send_ok(topic, b"kept", queue_id=3)
    path = tmp_path / "config" / "topics.json"
    table = decode_body(path.read_bytes(), TopicConfigTable)
    path.unlink()
    backup = path.with_name("topics.json.bak")
    backup.unlink()
    if has_backup:
        old = msgspec.structs.replace(table.topics["Old"], read_queue_count=2, write_queue_count=2)
        kept = {name: one for name, one in table.topics.items() if name != "New"} | {"Old": old}
        backup.write_bytes(encode_body(msgspec.structs.replace(table, topics=kept)))
    for _ in range(2):  # as restored, and as saved after that
        async with running_broker(tmp_path) as broker, Peer(broker) as peer:
            for topic in ("Old", "New"):
                answer = await peer.pull(topic, queue_id=3)
                assert records_of(answer)[0].body == b"kept"
                await peer.send_ok(topic, queue_id=1)
            answer = await peer.ask(RequestCode.GET_TOPIC_CONFIG, TopicConfigRequest(topic="Gone"))
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize("is_young", [True, False])
async def test_a_slave_that_was_not_told_of_a_topic_in_time_hides_none_of_it(
    tmp_path: Path, is_young: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave becomes master with tables that are slightly older than its log. An unknown topic counts as
    deleted if it began long ago.
    """
    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_request("T1"))
        await peer.send_ok("T1", queue_id=0)
        await peer.send_ok("Gone")
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequest(topic="Gone"))
    path = tmp_path / "config" / "topics.json"
    before = path.read_bytes()
    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        wider = topic_request("T1", read_queue_count=8, write_queue_count=8)
        await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, wider)
        await peer.send_ok("T1", b"kept", queue_id=7)
        await peer.send_ok("Late", b"kept", queue_id=3)
    path.write_bytes(before)
    if not is_young:
        monkeypatch.setattr(tables, "DISCOVERY_MS_MAX", -1)
    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        for topic, queue_id in (("Late", 3), ("T1", 7)):
            answer = await peer.pull(topic, queue_id=queue_id)
            if is_young:
                assert [record.body for record in records_of(answer)] == [b"kept"]
            else:
                assert answer.code in (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.INVALID_PARAMETER)
        answer = await peer.ask(RequestCode.GET_TOPIC_CONFIG, TopicConfigRequest(topic="Gone"))
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize("backup", [None, b'{"offsetTable":{"T1@Known":{"0":1}}}'])
async def test_a_group_whose_progress_was_lost_skips_nothing(tmp_path: Path, backup: bytes | None) -> None:
    async def begins_at(peer: Peer, group: str, queue_id: int) -> int | None:
        header = QueryOffsetRequest(
            consumer_group=group, topic="T1", queue_id=queue_id, zero_if_missing=False
        )
        answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, header)
        return int(answer.fields["offset"]) if answer.code == ResponseCode.SUCCESS else None

    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        for queue_id in (0, 0, 1, 1):
            await peer.send_ok("T1", queue_id=queue_id)
        for queue_id in (0, 1):
            header = UpdateOffsetRequest(
                consumer_group="Known", topic="T1", queue_id=queue_id, committed_offset=2
            )
            await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    path = tmp_path / "config" / "consumerOffset.json"
    path.unlink()
    path.with_name(f"{path.name}.bak").unlink()
    if backup is not None:
        path.with_name(f"{path.name}.bak").write_bytes(backup)
    for _ in range(2):  # as found, and as saved after that
        async with running_broker(tmp_path) as broker, Peer(broker) as peer:
            assert await begins_at(peer, "Known", 0) == (0 if backup is None else 1)
            assert await begins_at(peer, "Known", 1) == 0
            assert await begins_at(peer, "Later", 1) is None


async def test_a_group_made_again_begins_anew_also_after_a_kill(tmp_path: Path) -> None:
    """The offsets were deleted with the group, and the answer came before the next save of the offsets."""
    left = tmp_path / "left"
    async with running_broker(tmp_path / "first") as broker, Peer(broker) as peer:
        await peer.send_ok("T1", queue_id=0)
        header = UpdateOffsetRequest(consumer_group="G", topic="T1", queue_id=0, committed_offset=1)
        await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
        await broker._tables.saver.save(broker._tables.offset_file)
        deletion = DeleteGroupRequest(group="G", cleans_offsets=True)
        assert (await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, deletion)).code == ResponseCode.SUCCESS
        copy_as_killed(tmp_path / "first", left)
    async with running_broker(left) as broker, Peer(broker) as peer:
        question = QueryOffsetRequest(consumer_group="G", topic="T1", queue_id=0, zero_if_missing=False)
        answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, question)
        assert answer.code == ResponseCode.QUERY_NOT_FOUND


async def test_a_broker_that_had_no_consumer_has_lost_nothing(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        await peer.send_ok("T1")
        await peer.heartbeat("c1", consumer("Made", "T1"))
    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        header = QueryOffsetRequest(consumer_group="Made", topic="T1", queue_id=0, zero_if_missing=False)
        answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, header)
        assert answer.code == ResponseCode.QUERY_NOT_FOUND


async def test_fast_listener_serves_all_but_pulls(tmp_path: Path) -> None:
    port = free_port(neighbours=(-2, 1))
    async with running_broker(tmp_path, listen_port=port) as broker, Peer(broker) as peer:
        assert broker.address == ("127.0.0.1", port)
        assert broker.ha_address == ("127.0.0.1", port + 1)
        peer.address = f"127.0.0.1:{port - 2}"
        await peer.send_ok("T1")
        assert (await peer.pull("T1")).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert (await peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG, AllTopicConfigRequest())).code == 0


async def test_taken_port_is_an_error_that_names_it(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "a") as broker:
        port = broker.address[1]
        second = make_broker(tmp_path / "b", listen_port=port)
        with pytest.raises(ConfigError, match=str(port)):
            await second.start()
        await second.stop()


# Registration


async def route_of(peer: Peer, name_server: str, topic: str) -> TopicRoute | None:
    return await query_route(peer.client, name_server, topic)


async def test_broker_registers_tells_new_topics_at_once_and_leaves(tmp_path: Path) -> None:
    async with (
        running_name_server(tmp_path / "ns") as name_server,
        running_broker(tmp_path / "b", name_servers=(name_server,)) as broker,
        Peer(broker) as peer,
    ):
        route = await route_of(peer, name_server, "TBW102")
        assert route is not None
        assert route.brokers[0].addresses == {0: render_address(broker.address)}
        await peer.send_ok("Fresh", default_topic_queue_count=2)
        await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_request("Made", read_queue_count=5))
        routes: dict[str, TopicRoute | None] = {}

        async def both_known() -> bool:
            for topic in ("Fresh", "Made"):
                routes[topic] = await route_of(peer, name_server, topic)
            return None not in routes.values()

        await until(both_known, "both topics have a route")
        assert routes["Fresh"] is not None
        assert routes["Made"] is not None
        assert routes["Fresh"].queues[0].write_queue_count == 2
        assert routes["Made"].queues[0].read_queue_count == 5
        await broker.stop()
        assert await route_of(peer, name_server, "Fresh") is None


async def test_a_topic_is_made_when_the_name_servers_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow name server delays the answer, but not for ever."""
    gate = asyncio.Event()
    gate.set()
    told: list[str] = []

    async def register(channel: Channel, command: Command) -> Command:
        told.extend(decode_register_broker_body(command.body).topics.topics)
        await gate.wait()
        return command.reply()

    server = RemotingServer(
        {
            RequestCode.REGISTER_BROKER: register,
            RequestCode.UNREGISTER_BROKER: lambda _, command: command.reply(),
        },
        network=TcpNetwork(),
        clock=LoopClock(),
    )
    address = render_address(await server.start("127.0.0.1", 0))
    async with running_broker(tmp_path, name_servers=(address,)) as broker, Peer(broker) as peer:
        gate.clear()
        asked = asyncio.create_task(peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_request("Made")))
        await until(lambda: "Made" in told)
        assert (await peer.ask(RequestCode.GET_TOPIC_CONFIG, TopicConfigRequest(topic="Made"))).code == 0
        assert not asked.done()
        gate.set()
        assert (await asked).code == ResponseCode.SUCCESS
        gate.clear()
        monkeypatch.setattr(registration, "REGISTRATION_WAIT_S", 0.1)
        answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_request("Later"))
        assert answer.code == ResponseCode.SUCCESS
        gate.set()
    await server.stop()


async def test_unreachable_name_server_is_passed_over_and_found_later(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{held.getsockname()[1]}"
        async with running_name_server(tmp_path / "ns") as name_server:
            servers = (dead, name_server)
            async with running_broker(tmp_path / "b", name_servers=servers) as broker, Peer(broker) as peer:
                assert await route_of(peer, name_server, "TBW102") is not None
                assert broker._registration is not None
                links = broker._registration._links
                assert [link.answer is not None for link in links] == [False, True]


async def test_slave_learns_its_master_and_copies_it(tmp_path: Path) -> None:
    async with running_name_server(tmp_path / "ns") as name_server:
        servers = (name_server,)
        async with (
            running_broker(tmp_path / "m", name_servers=servers) as master,
            Peer(master) as peer,
            running_broker(
                tmp_path / "s", name_servers=servers, broker_id=1, slave_read_enable=True
            ) as slave,
            Peer(slave) as reader,
        ):
            await peer.send_ok("T1", b"copied")
            await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_request("T2"))
            assert slave.store is not None
            assert master.store is not None
            end = master.store.max_log_offset
            await until(
                lambda: slave.store is not None and slave.store.dispatched.value >= end, "the log is copied"
            )
            await until(lambda: slave._tables.topics.get("T1") is not None, "the topics are copied")
            assert [record.body for record in records_of(await reader.pull("T1"))] == [b"copied"]
            # Caught up, and the master is alive: the reader is redirected to it instead of waiting here.
            answer = await reader.pull("T1", queue_offset=1, sys_flag=0x6, suspend_timeout_ms=60_000)
            assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            assert answer.fields["suggestWhichBrokerId"] == "0"


async def test_a_topic_that_shrinks_tells_what_nobody_has_read(broker: Broker, peer: Peer) -> None:
    """The change is made as mqadmin requests it; the answer and the log report the hidden messages."""
    wide = topic_request("Wide", read_queue_count=4, write_queue_count=4)
    narrow = topic_request("Wide", read_queue_count=1, write_queue_count=1)
    await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, wide)
    for queue_id in (0, 2, 3):
        await peer.send_ok("Wide", queue_id=queue_id)

    async def shrink() -> str:
        answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, narrow)
        assert answer.code == ResponseCode.SUCCESS
        assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, wide)).remark is None
        return answer.remark or ""

    assert (
        "queues 1 to 3 of Wide are no longer read, and consumers have not read 2 of their messages"
        in await shrink()
    )
    offsets = broker._tables.offsets
    offsets.commit("done", "Wide", 2, 1, 0)
    offsets.commit("done", "Wide", 3, 1, 0)
    assert not await shrink()
    offsets.commit("behind", "Wide", 3, 1, 0)
    assert "the group behind has not read 1 of their messages" in await shrink()
