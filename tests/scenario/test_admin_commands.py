"""`tandemmq admin` and `tandemmq audit` against a name server, a master and its slave."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from broker_rig import Peer, consumer
from client_rig import FAST, Rig, running_rig, take
from typer.testing import CliRunner, Result

from tandemmq.admin import audit_command
from tandemmq.admin.audit_command import AuditOutcome, compare_logs
from tandemmq.admin.render import CommandAnswer
from tandemmq.api import broker_admin, nameserver, replica
from tandemmq.broker.broker import Broker
from tandemmq.cli import app
from tandemmq.client import (
    ConsumeResult,
    Message,
    Producer,
    PushConsumer,
    PushOptions,
    ReceivedMessage,
    StartFrom,
)
from tandemmq.manage.tools import open_tools
from tandemmq.protocol.topic_names import TRACE_TOPIC, retry_topic
from tandemmq.remoting.options import render_address
from tandemmq.store import MessageStore
from waits import PATIENCE_S, until


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with running_rig(tmp_path) as subject:
        yield subject


async def invoke(*arguments: str) -> Result:
    """Runs the command in a separate thread, because it runs an event loop."""
    return await asyncio.to_thread(CliRunner().invoke, app, list(arguments))


async def rows(rig: Rig, *arguments: str, exit_code: int = 0) -> dict[str, list[dict[str, Any]]]:
    result = await invoke("admin", *arguments, "-n", rig.namesrv, "--json")
    assert result.exit_code == exit_code, result.output
    tables: dict[str, list[dict[str, Any]]] = json.loads(result.stdout)
    return tables


async def send(rig: Rig, topic: str, count: int, **fields: Any) -> str:
    async with Producer("P", rig.namesrv) as producer:
        for number in range(count):
            result = await producer.send(Message(topic, b"m%d" % number, **fields))
    await rig.wait_for_route(topic)
    return result.message_id


async def test_topic_is_made_shown_and_deleted(rig: Rig) -> None:
    await rig.start_broker()
    made = await rows(rig, "updateTopic", "-c", "DefaultCluster", "-t", "Orders", "-r", "3", "-w", "3")
    assert [(row["topic"], row["write_queues"]) for row in made["changed"]] == [("Orders", 3)]
    assert {"topic": "Orders"} in (await rows(rig, "topicList"))["topics"]
    route = await rows(rig, "topicRoute", "-t", "Orders")
    assert [(row["broker"], row["read_queues"]) for row in route["queues"]] == [("broker-a", 3)]
    assert [row["id"] for row in route["addresses"]] == [0]
    await send(rig, "Orders", 5)
    ends = (await rows(rig, "topicStatus", "-t", "Orders"))["queues"]
    assert sum(row["messages"] for row in ends) == 5
    await rows(rig, "deleteTopic", "-c", "DefaultCluster", "-t", "Orders")
    assert {"topic": "Orders"} not in (await rows(rig, "topicList"))["topics"]


async def test_a_topic_of_a_master_and_its_slave_is_deleted(rig: Rig) -> None:
    """The slave follows its master and gets no request; an absent master may bring the topic back."""
    await rig.start_broker()
    slave = await rig.start_broker("broker-a", 1)
    await rows(rig, "updateTopic", "-c", "DefaultCluster", "-t", "Orders")
    tables = slave._tables
    await until(lambda: tables.topics.get("Orders") is not None)
    await send(rig, "Orders", 1)
    await rig.wait_for_slave()
    await rows(rig, "deleteTopic", "-c", "DefaultCluster", "-t", "Orders")
    assert {"topic": "Orders"} not in (await rows(rig, "topicList"))["topics"]
    await until(lambda: tables.topics.get("Orders") is None)
    await rig.stop_broker("broker-a")
    result = await invoke("admin", "deleteTopic", "-c", "DefaultCluster", "-t", "Orders", "-n", rig.namesrv)
    assert (result.exit_code, "broker-a has no master now" in result.output) == (1, True)


async def test_no_broker_is_registered(rig: Rig) -> None:
    result = await invoke("admin", "clusterList", "-c", "Any", "-n", rig.namesrv)
    assert result.exit_code != 0
    text = " ".join(result.output.replace("│", " ").split())
    assert "unknown cluster 'Any'; no broker is registered at these name servers" in text


async def test_brokers_are_shown(rig: Rig) -> None:
    broker = await rig.start_broker()
    address = render_address(broker.address)
    (row,) = (await rows(rig, "clusterList"))["brokers"]
    assert (row["broker"], row["id"], row["address"], row["role"]) == (
        "broker-a",
        0,
        address,
        "ASYNC_MASTER",
    )
    figures = (await rows(rig, "brokerStatus", "-b", address))["figures"]
    assert {"broker": address, "name": "brokerActive", "value": "true"} in figures
    settings = (await rows(rig, "getBrokerConfig", "-b", address))["settings"]
    assert {"broker": address, "key": "brokerName", "value": "broker-a"} in settings


async def test_broker_that_does_not_answer_is_listed(rig: Rig) -> None:
    await rig.start_broker("broker-a")
    gone = await rig.start_broker("broker-b")
    for server in gone._servers:
        await server.stop()
    brokers = (await rows(rig, "clusterList"))["brokers"]
    assert [bool(row["note"]) for row in brokers] == [False, True]


async def test_messages_are_found(rig: Rig) -> None:
    await rig.start_broker()
    await rows(rig, "updateTopic", "-c", "DefaultCluster", "-t", "T")
    message_id = await send(rig, "T", 1, keys=["order-7"], tags="new")
    (row,) = (await rows(rig, "queryMsgById", "-i", message_id))["messages"]
    assert (row["topic"], row["body"], row["tags"], row["message_id"]) == ("T", "m0", "new", message_id)
    found = await rows(rig, "queryMsgById", "-i", row["unique_key"], "-t", "T")
    assert found["messages"] == [row]
    found = await rows(rig, "queryMsgByKey", "-t", "T", "-k", "order-7")
    assert found["messages"] == [row]
    assert (await rows(rig, "queryMsgByKey", "-t", "T", "-k", "none", exit_code=1))["messages"] == []
    stored_at = row["stored_at"]
    by_key = ("queryMsgByKey", "-t", "T", "-k", "order-7")
    assert (await rows(rig, *by_key, "-e", str(stored_at - 60_000), exit_code=1))["messages"] == []
    found = await rows(rig, *by_key, "-b", str(stored_at - 60_000), "-e", str(stored_at + 60_000))
    assert found["messages"] == [row]


async def test_a_message_is_sent_and_found_by_its_place(rig: Rig) -> None:
    await rig.start_broker()
    await rows(rig, "updateTopic", "-c", "DefaultCluster", "-t", "Orders", "-r", "3", "-w", "3")
    words = ("-p", "order 1", "-k", "k1 k2", "-c", "paid", "-b", "broker-a", "-i", "2")
    (sent,) = (await rows(rig, "sendMessage", "-t", "Orders", *words))["sent"]
    assert (sent["queue"], sent["queue_offset"], sent["status"]) == (2, 0, "SEND_OK")
    place = ("-t", "Orders", "-b", "broker-a", "-i", "2")
    (found,) = (await rows(rig, "queryMsgByOffset", *place, "-o", "0"))["messages"]
    assert (found["body"], found["keys"], found["tags"]) == ("order 1", "k1 k2", "paid")
    await rows(rig, "queryMsgByOffset", *place, "-o", "7", exit_code=1)
    by_key = await rows(rig, "queryMsgByUniqueKey", "-t", "Orders", "-i", sent["unique_key"])
    assert by_key["messages"][0]["message_id"] == sent["message_id"]
    assert await rows(rig, "topicClusterList", "-t", "Orders") == {
        "clusters": [{"cluster": "DefaultCluster"}]
    }
    refused = await invoke("admin", "sendMessage", "-t", "Orders", "-p", "x", "-b", "b", "-n", rig.namesrv)
    assert (refused.exit_code, "no writable queue" in refused.output) == (1, True)


async def test_producers_groups_and_settings_are_shown_and_changed(rig: Rig) -> None:
    broker = await rig.start_broker()
    await send(rig, "Orders", 1)
    async with Producer("shop", rig.namesrv) as producer:
        await producer.send(Message("Orders", b"x"))
        shown = partial(rows, rig, "producerConnection", "-g", "shop", "-t", "Orders")
        await until(shown, not_yet=(AssertionError,))  # after its heartbeat, which follows the first send
        (one,) = (await shown())["producers"]
        assert (one["language"], one["broker"]) == ("PYTHON", render_address(broker.address))
    assert (await rows(rig, "producerConnection", "-g", "nobody", exit_code=1))["producers"] == []
    await rows(rig, "updateSubGroup", "-c", "DefaultCluster", "-g", "billing", "-r", "3")
    (group,) = (await rows(rig, "getConsumerConfig", "-g", "billing"))["groups"]
    assert (group["retry_count_max"], group["is_consume_enabled"]) == (3, True)
    await rows(rig, "deleteSubGroup", "-c", "DefaultCluster", "-g", "billing", "-r", "true")
    (group,) = (await rows(rig, "getConsumerConfig", "-g", "billing"))["groups"]
    assert group["retry_count_max"] == 16  # the broker creates a group on a query
    place = ("-b", render_address(broker.address))
    await rows(rig, "updateBrokerConfig", *place, "-k", "fileReservedTime", "-v", "48")
    assert store_of(broker).options.file_reserved_hours == 48
    for name in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
        cleaned = [{"broker": render_address(broker.address)}]
        assert (await rows(rig, name))["cleaned"] == cleaned
        assert (await rows(rig, name, "--cluster", "DefaultCluster"))["cleaned"] == cleaned


async def test_consumer_connection_shows_refused_requests_of_the_group(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """The consumer is silent and the broker is healthy: only the recorded rejections show the reason."""
    broker = await rig.start_broker(auto_create_group=False)
    async with Peer(broker) as peer:
        await peer.heartbeat("c1", consumer("Deaf", "T"))
        await peer.heartbeat("c1", consumer("Deaf", "T"))
        for _ in range(3):
            assert (await peer.pull("T", consumer_group="Deaf")).code != 0
        shown = await rows(rig, "consumerConnection", "-g", "Deaf", exit_code=1)
        refused = {(row["request"], row["code"]): row for row in shown["refusals"]}
        assert refused["HEART_BEAT", 26]["client"] == "c1"
        assert [row["count"] for row in refused.values()] == [2, 3]
        lines = [record for record in caplog.records if record.getMessage() == "consumer.refused"]
        assert [record.request for record in lines] == ["HEART_BEAT", "PULL_MESSAGE"]  # type: ignore[attr-defined]  # of extra
        (row,) = (await rows(rig, "clusterList"))["brokers"]
        assert row["refused"] == "5"
        await rows(rig, "updateSubGroup", "-c", "DefaultCluster", "-g", "Deaf")
        await peer.heartbeat("c1", consumer("Deaf", "T", "no/topic", expression="a"))
        shown = await rows(rig, "consumerConnection", "-g", "Deaf")
        assert [row["client"] for row in shown["members"]] == ["c1"]
        assert [(row["topic"], row["expression"]) for row in shown["subscriptions"]] == [("T", "a")]
        assert "no/topic" in shown["refusals"][-1]["reason"]


async def test_a_change_of_a_topic_hides_no_message(rig: Rig, tmp_path: Path) -> None:
    """mqadmin's defaults apply to a new topic; for an existing one, settings that are not given stay."""
    await rig.start_broker()
    place = ("-c", "DefaultCluster", "-t", "T")
    made = await rows(
        rig, "updateTopic", *place, "-r", "12", "-w", "12", "-p", "4", "-a", "+message.type=NORMAL"
    )
    assert [(row["read_queues"], row["permission"]) for row in made["changed"]] == [(12, 4)]
    changed = (await rows(rig, "updateTopic", *place, "-p", "6"))["changed"]
    assert [(row["read_queues"], row["write_queues"]) for row in changed] == [(12, 12)]
    await send(rig, "T", 24)
    for command in ("-r 1 -w 1", "-r 1"):
        result = await invoke("admin", "updateTopic", *place, *command.split(), "-n", rig.namesrv)
        assert result.exit_code == 1
        assert "keeps its read queues" in result.output
    config = tmp_path / "topics.json"
    config.write_text('[{"topicName":"T","readQueueNums":1,"writeQueueNums":1}]')
    listed = ("admin", "updateTopicList", "-f", str(config), "-c", "DefaultCluster", "-n", rig.namesrv)
    result = await invoke(*listed)
    assert (result.exit_code, "nothing was changed" in result.output) == (1, True)
    route = (await rows(rig, "topicRoute", "-t", "T"))["queues"]
    assert [(row["read_queues"], row["write_queues"]) for row in route] == [(12, 1)]
    await rows(rig, "updateTopic", *place, "-r", "1", "--force")
    assert (await invoke(*listed, "--force")).exit_code == 0


async def test_progress_is_shown_and_reset(rig: Rig) -> None:
    await rig.start_broker()
    await rows(rig, "updateTopic", "-c", "DefaultCluster", "-t", "T", "-r", "1", "-w", "1")
    await send(rig, "T", 10)
    await rows(rig, "updateSubGroup", "-c", "DefaultCluster", "-g", "G", "-r", "3", "-d", "false")
    async with rig.consumer("G") as consumer:
        consumer.ack(*await take(consumer, 10))

    async def lag() -> int:
        shown = await rows(rig, "consumerProgress", "-g", "G", "-t", "T")
        return sum(row["lag"] for row in shown["queues"])

    assert await lag() == 0
    reset = await rows(rig, "resetOffsetByTime", "-g", "G", "-t", "T", "-s", "0")
    assert [row["offset"] for row in reset["queues"]] == [0]
    assert await lag() == 10
    await rig.wait_for_route(retry_topic("G"))  # by which a group is found
    summary = (await rows(rig, "consumerProgress"))["groups"]
    assert {"group": "G", "members": 0, "lag": 10} in summary


async def test_a_queue_without_a_committed_offset_waits_whole(rig: Rig) -> None:
    """Also at a broker where the group has no offset of the topic, and in a topic that it only
    subscribes to.
    """
    await rig.start_broker("broker-a")
    await rows(rig, "updateTopic", "-c", "DefaultCluster", "-t", "T", "-r", "1", "-w", "1")
    await send(rig, "T", 3)
    async with rig.consumer("G") as reader:
        reader.ack(*await take(reader, 3))
    broker = await rig.start_broker("broker-b")
    address = render_address(broker.address)
    await rows(rig, "updateTopic", "-b", address, "-t", "T", "-r", "1", "-w", "1")
    await rows(rig, "updateTopic", "-b", address, "-t", "U", "-r", "1", "-w", "1")
    async with Peer(broker) as peer:
        for topic, count in (("T", 2), ("U", 5)):
            for _ in range(count):
                await peer.send(topic)
        await peer.heartbeat("c1", consumer("G", "T", "U"))
        shown = await rows(rig, "consumerProgress", "-g", "G")
        waiting = {(row["topic"], row["broker"]): row["lag"] for row in shown["queues"] if row["lag"]}
        assert waiting == {("T", "broker-b"): 2, ("U", "broker-b"): 5}
        assert {"group": "G", "members": 1, "lag": 7} in (await rows(rig, "consumerProgress"))["groups"]


async def test_a_group_skips_what_waits_and_another_goes_on_there(rig: Rig) -> None:
    await rig.start_broker()
    await rows(rig, "updateTopic", "-c", "DefaultCluster", "-t", "T", "-r", "1", "-w", "1")
    await send(rig, "T", 10)
    for group in ("G", "H"):
        await rows(rig, "updateSubGroup", "-c", "DefaultCluster", "-g", group)
        await rows(rig, "resetOffsetByTime", "-g", group, "-t", "T", "-s", "0")

    async def lag(group: str) -> int:
        shown = await rows(rig, "consumerProgress", "-g", group, "-t", "T")
        return sum(row["lag"] for row in shown["queues"])

    skipped = await rows(rig, "skipAccumulatedMessage", "-g", "G", "-t", "T", "-f", "true")
    assert [row["offset"] for row in skipped["queues"]] == [10]
    assert (await lag("G"), await lag("H")) == (0, 10)
    cloned = await rows(rig, "cloneGroupOffset", "-s", "G", "-d", "H", "-t", "T", "-o", "false")
    assert [(row["source"], row["target"]) for row in cloned["cloned"]] == [("G", "H")]
    assert (await lag("G"), await lag("H")) == (0, 0)


async def test_a_group_goes_on_from_a_place_of_one_queue(rig: Rig) -> None:
    broker = await rig.start_broker()
    await rows(rig, "updateTopic", "-c", "DefaultCluster", "-t", "T", "-r", "2", "-w", "2")
    await send(rig, "T", 10)
    await rows(rig, "updateSubGroup", "-c", "DefaultCluster", "-g", "G")
    await rows(rig, "skipAccumulatedMessage", "-g", "G", "-t", "T")
    reset = ("resetOffsetByTime", "-g", "G", "-t", "T", "-s", "0")
    queue = ("-b", render_address(broker.address), "-q", "1")

    async def offsets() -> list[int]:
        shown = await rows(rig, "consumerProgress", "-g", "G", "-t", "T")
        return [row["consumer_offset"] for row in sorted(shown["queues"], key=lambda row: row["queue"])]

    first, second = await offsets()
    moved = await rows(rig, *reset, *queue, "-o", "2")
    assert [(row["queue"], row["offset"]) for row in moved["queues"]] == [(1, 2)]
    assert await offsets() == [first, 2]
    assert second > 2
    moved = await rows(rig, *reset, *queue)
    assert [(row["queue"], row["offset"]) for row in moved["queues"]] == [(1, 0)]
    assert await offsets() == [first, 0]
    for wrong, why in (
        (queue[:2], "-b and -q"),
        (queue[2:], "-b and -q"),
        (("-o", "1"), "also needs the queue"),
    ):
        result = await invoke("admin", *reset, *wrong, "-n", rig.namesrv)
        assert (result.exit_code, why in " ".join(result.output.split())) == (2, True)
    far = await invoke("admin", *reset, *queue, "-o", "99")
    assert (far.exit_code, "offset 99 of queue 1 of T is outside 0.." in far.stderr) == (1, True)


async def test_producers_are_led_away_by_permissions(rig: Rig) -> None:
    broker = await rig.start_broker()
    place = ("-c", "DefaultCluster", "-t", "T")
    await rows(rig, "updateTopic", *place, "-r", "3", "-w", "3")
    one = ("-b", render_address(broker.address), "-t", "T")
    for target, old, new in ((one, 6, 2), (place, 2, 4)):
        (row,) = (await rows(rig, "updateTopicPerm", *target, "-p", str(new)))["changed"]
        assert (row["old_permission"], row["permission"]) == (old, new)

    async def route() -> list[tuple[int, int]]:
        shown = await rows(rig, "topicRoute", "-t", "T")
        return [(row["write_queues"], row["permission"]) for row in shown["queues"]]

    assert await route() == [(3, 4)]
    await rows(rig, "updateTopicPerm", *place, "-p", "6")
    (wiped,) = (await rows(rig, "wipeWritePerm", "-b", "broker-a"))["changed"]
    assert wiped["topics"] > 0
    assert await route() == [(3, 4)]
    (added,) = (await rows(rig, "addWritePerm", "-b", "broker-a"))["changed"]
    assert added["topics"] == wiped["topics"]
    assert await route() == [(3, 6)]
    unknown = ("admin", "updateTopicPerm", "-t", "None", "-c", "DefaultCluster", "-p", "4", "-n", rig.namesrv)
    assert "has the topic 'None'" in (await invoke(*unknown)).output


async def test_name_servers_are_shown_and_changed(rig: Rig) -> None:
    shown = await rows(rig, "getNamesrvConfig")
    assert {"orderMessageEnable": "false"}.items() <= {
        row["key"]: row["value"] for row in shown["settings"]
    }.items()
    await rows(rig, "updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
    shown = await rows(rig, "getNamesrvConfig")
    assert {row["key"]: row["value"] for row in shown["settings"]}["orderMessageEnable"] == "true"
    await rows(rig, "updateKvConfig", "-s", "space", "-k", "k", "-v", "v")
    async with open_tools(rig.namesrv) as tools:
        assert await nameserver.get_kv(tools.remoting, rig.namesrv, "space", "k") == "v"
        await rows(rig, "deleteKvConfig", "-s", "space", "-k", "k")
        assert await nameserver.get_kv(tools.remoting, rig.namesrv, "space", "k") is None


async def test_mistakes_are_sentences(rig: Rig) -> None:
    await rig.start_broker()
    for arguments, text in (
        (["topicRoute", "-t", "none"], "none"),
        (["updateTopic", "-t", "T"], "either a broker (-b) or a cluster (-c)"),
        (["updateTopic", "-t", "T", "-c", "x"], "unknown cluster 'x'"),
        (["resetOffsetByTime", "-g", "G", "-t", "T", "-s", "soon"], "yyyy-MM-dd#HH:mm:ss:SSS"),
        (["consumerProgress", "-g", "nobody"], "nobody"),
    ):
        result = await invoke("admin", *arguments, "-n", rig.namesrv)
        assert result.exit_code in (1, 2), result.output
        assert text in " ".join(result.output.replace("│", " ").split()), result.output
        assert "Traceback" not in result.output


async def test_tables_are_for_people(rig: Rig) -> None:
    broker = await rig.start_broker()
    result = await invoke("admin", "haStatus", "-b", render_address(broker.address))
    assert result.exit_code == 0
    assert "masters" in result.stdout


# The audit


def store_of(broker: Broker) -> MessageStore:
    assert broker.store is not None
    return broker.store


async def pair(rig: Rig, count: int = 50) -> tuple[Broker, Broker]:
    master = await rig.start_broker()
    slave = await rig.start_broker(broker_id=1)
    await rows(rig, "updateTopic", "-c", "DefaultCluster", "-t", "T")
    await send(rig, "T", count)
    await until(lambda: store_of(slave).appended.value == store_of(master).appended.value, "copied")
    return master, slave


async def run_audit(rig: Rig, last_bytes: int | None = None) -> tuple[CommandAnswer, dict[str, Any]]:
    async with open_tools(rig.namesrv) as tools:
        answer = await audit_command.audit_brokers(tools, "broker-a", "", last_bytes)
    (table,) = answer.tables
    (row,) = table.rows
    return answer, dict(zip(table.columns, row, strict=True))


async def test_equal_logs_are_equal(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_command, "RANGE_BYTES", 1_000)
    master, _ = await pair(rig)
    answer, row = await run_audit(rig)
    end = store_of(master).appended.value
    assert answer.exit_code == 0
    assert (row["outcome"], row["equal_from"], row["equal_to"], row["lag_bytes"]) == ("EQUAL", 0, end, 0)
    _, row = await run_audit(rig, last_bytes=500)
    assert row["equal_from"] == end - 500
    result = await invoke("audit", "-n", rig.namesrv, "--broker", "broker-a", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["replicas"][0]["outcome"] == "EQUAL"
    status = await rows(rig, "haStatus")
    assert status["copies"][0]["tail"] == "SAME"
    assert status["slaves_of_masters"][0]["start_rule"] == "FIRST_FILE"


async def test_flipped_byte_is_found(rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(audit_command, "RANGE_BYTES", 1_000)
    await pair(rig)
    (segment,) = (tmp_path / "broker-a-1" / "commitlog").iterdir()
    with segment.open("r+b") as file:
        file.seek(4_321)
        byte = file.read(1)
        file.seek(4_321)
        file.write(bytes([byte[0] ^ 1]))
    answer, row = await run_audit(rig)
    assert answer.exit_code == 1
    assert (row["outcome"], row["first_difference"], row["equal_to"]) == ("DIFFERENT", 4_321, 4_321)


async def test_slave_that_is_behind_is_equal_so_far(rig: Rig) -> None:
    master, slave = await pair(rig)
    assert slave._replica is not None
    slave._replica.slave.set_master(None)
    before = store_of(slave).appended.value
    await send(rig, "T", 10)
    answer, row = await run_audit(rig)
    assert answer.exit_code == 0
    assert (row["outcome"], row["equal_to"]) == ("EQUAL", before)
    assert row["lag_bytes"] == store_of(master).appended.value - before


async def test_roles_reversed_the_slave_is_ahead(rig: Rig) -> None:
    master, slave = await pair(rig)
    assert slave._replica is not None
    slave._replica.slave.set_master(None)
    await send(rig, "T", 10)
    async with open_tools(rig.namesrv) as tools:
        found = await compare_logs(
            tools.remoting, render_address(slave.address), render_address(master.address)
        )
    assert found.outcome is AuditOutcome.SLAVE_AHEAD
    assert found.equal_to == store_of(slave).appended.value


async def test_broker_that_cannot_be_asked_is_unknown(rig: Rig) -> None:
    _, slave = await pair(rig)
    for server in slave._servers:
        await server.stop()
    answer, row = await run_audit(rig)
    assert (answer.exit_code, row["outcome"]) == (2, "UNKNOWN")
    assert row["detail"]


async def test_a_group_is_told_to_pop(rig: Rig) -> None:
    address = render_address((await rig.start_broker()).address)
    way = ("setConsumeMode", "-c", "DefaultCluster", "-t", "Orders", "-g", "billing")
    result = await invoke("admin", *way, "-m", "POP", "-n", rig.namesrv)
    assert (result.exit_code, "Orders" in result.output) == (1, True)
    await rows(rig, "updateTopic", "-c", "DefaultCluster", "-t", "Orders")
    await rows(rig, "updateSubGroup", "-c", "DefaultCluster", "-g", "billing")
    result = await invoke("admin", *way, "-m", "push", "-n", rig.namesrv)
    assert (result.exit_code, "PULL or POP" in result.output) == (2, True)
    expected = {
        "broker": address,
        "topic": "Orders",
        "group": "billing",
        "mode": "POP",
        "pop_share_queues": 2,
    }
    assert (await rows(rig, *way, "-m", "pop", "-q", "2"))["changed"] == [expected]
    async with open_tools("") as tools:
        modes = await replica.fetch_request_modes(tools.remoting, address, timeout_s=5)
    assert modes is not None
    held = modes.modes["Orders"]["billing"]
    assert (held.mode, held.pop_share_queue_count) == ("POP", 2)


async def test_messages_are_printed_by_topic_queue_time_and_tag(rig: Rig) -> None:
    await rig.start_broker()
    await rows(rig, "updateTopic", "-c", "DefaultCluster", "-t", "Orders", "-r", "2", "-w", "2")
    await send(rig, "Orders", 6, tags="A")
    await send(rig, "Orders", 3, tags="B")
    assert "body" not in (await rows(rig, "printMsg", "-t", "Orders"))["messages"][0]
    found = (await rows(rig, "printMsg", "-t", "Orders", "-d", "true"))["messages"]
    assert len(found) == 9
    assert {row["body"] for row in found} == {f"m{n}" for n in range(6)}
    found = (await rows(rig, "printMsg", "-t", "Orders", "-s", "B || C"))["messages"]
    assert {row["tags"] for row in found} == {"B"}
    queue = ("printMsgByQueue", "-t", "Orders", "-a", "broker-a", "-i", "0")
    assert await rows(rig, *queue) == {}
    assert "messages: -p true prints them" in (await invoke("admin", *queue, "-n", rig.namesrv)).stderr
    one = await rows(rig, *queue, "-p", "true", "--calculate", "true")
    assert {row["queue"] for row in one["messages"]} == {0}
    assert sum(row["messages"] for row in one["tags"]) == len(one["messages"]) < 9
    newest = max(row["stored_at"] for row in found)
    await rows(rig, "printMsg", "-t", "Orders", "-b", str(newest + 1), exit_code=1)
    assert len((await rows(rig, "printMsg", "-t", "Orders", "-e", str(newest)))["messages"]) == 9
    assert len((await rows(rig, "printMsg", "-t", "Orders", "-m", "4"))["messages"]) == 4
    cut = await invoke("admin", "printMsg", "-t", "Orders", "-m", "4", "-n", rig.namesrv)
    assert "only the first 4 messages" in cut.stderr
    wrong = await invoke("admin", "printMsg", "-t", "Orders", "-b", "2", "-e", "1", "-n", rig.namesrv)
    assert (wrong.exit_code, "later than" in wrong.output) == (2, True)


async def test_entries_of_a_queue_are_shown(rig: Rig) -> None:
    await rig.start_broker()
    await rows(rig, "updateTopic", "-c", "DefaultCluster", "-t", "Orders", "-r", "1", "-w", "1")
    await send(rig, "Orders", 3)
    told = await rows(rig, "queryCq", "-t", "Orders", "-q", "0", "-i", "1", "-c", "5")
    assert [(row["min_offset"], row["max_offset"]) for row in told["queue"]] == [(0, 3)]
    assert [row["queue_offset"] for row in told["entries"]] == [1, 2]
    messages = (await rows(rig, "printMsg", "-t", "Orders"))["messages"]
    assert [row["log_offset"] for row in told["entries"]] == [row["log_offset"] for row in messages[1:]]


async def test_consumers_tell_what_they_do(rig: Rig) -> None:
    await rig.start_broker()
    await rows(rig, "updateTopic", "-c", "DefaultCluster", "-t", "Orders", "-r", "1", "-w", "1")
    await send(rig, "Orders", 3)
    await rows(rig, "consumerStatus", "-g", "G", exit_code=1)
    async with rig.consumer("G", "Orders") as member:
        await take(member, 3)
        told = await rows(rig, "consumerStatus", "-g", "G")
        assert {"subscription of Orders", "PROP_CONSUME_TYPE"} <= {row["name"] for row in told["members"]}
        [queue] = [row for row in told["queues"] if row["topic"] == "Orders"]
        assert (queue["broker"], queue["queue"]) == ("broker-a", 0)
        shown = await rows(rig, "consumerProgress", "-g", "G", "-t", "Orders", "--showClientIP", "true")
        assert [row["client_ip"] for row in shown["queues"]] == ["127.0.0.1"]
        await rows(rig, "consumerStatus", "-g", "G", "-i", "somebody@else", exit_code=1)


async def test_rates_and_lag_of_all_topics(rig: Rig) -> None:
    await rig.start_broker()
    await rows(rig, "updateTopic", "-c", "DefaultCluster", "-t", "Orders", "-r", "1", "-w", "1")
    await send(rig, "Orders", 3)
    async with rig.consumer("G", "Orders") as member:
        await take(member, 3)
    told = (await rows(rig, "statsAll"))["topics"]
    [row] = [row for row in told if row["topic"] == "Orders"]
    assert row["group"] == "G"
    assert {row["topic"] for row in (await rows(rig, "statsAll", "-t", "Orders"))["topics"]} == {"Orders"}
    listed = (await rows(rig, "topicList", "-c"))["topics"]
    assert {"cluster": "DefaultCluster", "topic": "Orders", "group": "G"} in listed
    assert {"cluster": "DefaultCluster", "topic": "TBW102", "group": ""} in listed
    assert not [row for row in listed if row["topic"].startswith("%RETRY%")]


async def test_topics_and_groups_are_written_into_a_file(rig: Rig, tmp_path: Path) -> None:
    await rig.start_broker()
    await rows(rig, "updateTopic", "-c", "DefaultCluster", "-t", "Orders", "-r", "3", "-w", "2")
    await rows(rig, "updateTopic", "-c", "DefaultCluster", "-t", "%RETRY%G")
    await rows(rig, "updateSubGroup", "-c", "DefaultCluster", "-g", "G")
    out = tmp_path / "export"
    [row] = (await rows(rig, "exportMetadata", "-c", "DefaultCluster", "-f", str(out)))["exported"]
    held = json.loads((out / "metadata.json").read_text())
    assert row["path"] == str(out / "metadata.json")
    assert held["topicConfigTable"]["Orders"]["readQueueNums"] == 3
    assert set(held["topicConfigTable"]) == {"Orders"}
    assert set(held["subscriptionGroupTable"]) == {"G"}
    await rows(rig, "exportMetadata", "-c", "DefaultCluster", "-f", str(out), "-t", "-s")
    held = json.loads((out / "topic.json").read_text())
    assert {"Orders", "%RETRY%G"} <= set(held["topicConfigTable"])
    assert "subscriptionGroupTable" not in held
    await rows(rig, "exportMetadata", "-c", "DefaultCluster", "-f", str(out), "-g")
    held = json.loads((out / "subscriptionGroup.json").read_text())
    assert set(held) == {"exportTime", "subscriptionGroupTable"}
    both = await invoke("admin", "exportMetadata", "-c", "X", "-t", "-g")
    assert (both.exit_code, "only topics" in both.output) == (2, True)


POLICY = '{"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [10, 20]}}'


async def test_mqadmin_only_attributes_of_topics_and_groups_are_set(rig: Rig) -> None:
    broker = await rig.start_broker()
    address = render_address(broker.address)
    topic = ("updateTopic", "-b", address, "-t", "Orders")
    await rows(rig, *topic, "-a", "+message.type=FIFO", "-u", "true", "--hasUnitSub", "true")
    await rows(rig, "updateSubGroup", "-b", address, "-g", "G", "-a", "false", "-p", POLICY)
    async with open_tools("") as tools:
        config = await broker_admin.query_topic_config(tools.remoting, address, "Orders")
        assert config is not None
        assert (config.attributes, config.sys_flag) == ({"message.type": "FIFO"}, 3)
        group = await broker_admin.query_group_config(tools.remoting, address, "G")
        assert group is not None
        assert group.retry_policy.customized is not None
        assert (group.notifies_members, group.retry_policy.customized.delays_ms) == (False, (10, 20))
        await rows(rig, *topic, "-a", "-message.type")
        config = await broker_admin.query_topic_config(tools.remoting, address, "Orders")
        assert config is not None
        assert config.attributes == {}
    for wrong in (("-a", "message.type=FIFO"), ("-a", "+message.type"), ("-u", "yes")):
        result = await invoke("admin", *topic, *wrong)
        assert (result.exit_code, wrong[1] in result.output) == (2, True)
    result = await invoke("admin", "updateSubGroup", "-b", address, "-g", "G", "-p", "fast")
    assert (result.exit_code, "CUSTOMIZED" in result.output) == (2, True)


async def test_a_setting_of_a_cluster_is_its_masters_unless_told(rig: Rig) -> None:
    master = await rig.start_broker()
    slave = await rig.start_broker(broker_id=1)
    await rig.wait_for_slave()
    addresses = [render_address(one.address) for one in (master, slave)]
    change = ("updateBrokerConfig", "-c", "DefaultCluster", "-k", "fileReservedTime", "-v", "48")
    assert [row["broker"] for row in (await rows(rig, *change))["changed"]] == addresses[:1]
    told = await rows(rig, *change, "--updateAllBroker", "true")
    assert [row["broker"] for row in told["changed"]] == addresses


async def test_name_servers_may_be_named_where_none_is_asked(rig: Rig) -> None:
    """mqadmin accepts -n everywhere, and its scripts pass it everywhere."""
    broker = await rig.start_broker()
    address = render_address(broker.address)
    result = await invoke("admin", "getControllerConfig", "-a", address, "-n", "127.0.0.1:1")
    assert (result.exit_code, "request code 1010 is not supported" in result.stderr) == (1, True)


async def test_a_list_of_controllers_names_one_at_least() -> None:
    for command in (("getControllerConfig",), ("updateControllerConfig", "-k", "x", "-v", "y")):
        result = await invoke("admin", *command, "-a", ";")
        assert (result.exit_code, "name at least one controller" in result.output) == (2, True)


async def test_lists_of_topics_and_groups_are_made_or_refused_as_a_whole(rig: Rig, tmp_path: Path) -> None:
    broker = await rig.start_broker()
    place = ("-b", render_address(broker.address))
    topics, groups = tmp_path / "topics.json", tmp_path / "groups.json"
    topics.write_text('[{"topicName":"A","readQueueNums":2,"writeQueueNums":2},{"topicName":"B"}]')
    groups.write_text('[{"groupName":"g","retryMaxTimes":3},{"groupName":"h"}]')
    made = (await rows(rig, "updateTopicList", "-f", str(topics), *place))["changed"]
    assert [row["topic"] for row in made] == ["A", "B"]
    assert [row["read_queues"] for row in (await rows(rig, "topicRoute", "-t", "A"))["queues"]] == [2]
    made = (await rows(rig, "updateSubGroupList", "-f", str(groups), *place))["changed"]
    assert [row["group"] for row in made] == ["g", "h"]
    (config,) = (await rows(rig, "getConsumerConfig", "-g", "g"))["groups"]
    assert config["retry_count_max"] == 3
    topics.write_text('[{"topicName":"C"},{"topicName":"not a name"}]')
    result = await invoke("admin", "updateTopicList", "-f", str(topics), *place)
    assert result.exit_code == 1
    assert {"topic": "C"} not in (await rows(rig, "topicList"))["topics"]
    for text in ("[]", "{}", "no JSON"):
        topics.write_text(text)
        result = await invoke("admin", "updateTopicList", "-f", str(topics), *place)
        assert result.exit_code == 2, text


async def test_orders_of_queues_and_shares_of_members(rig: Rig) -> None:
    await rig.start_broker()
    await rows(rig, "updateTopic", "-c", "DefaultCluster", "-t", "Orders", "-r", "3", "-w", "3")
    (row,) = (await rows(rig, "updateOrderConf", "-t", "Orders", "-v", "broker-a:3"))["orders"]
    assert row["order"] == "broker-a:3"
    (row,) = (await rows(rig, "updateOrderConf", "-t", "Orders", "-m", "get"))["orders"]
    assert row["order"] == "broker-a:3"
    (row,) = (await rows(rig, "updateOrderConf", "-t", "Orders", "-m", "delete"))["orders"]
    assert row["order"] is None
    for wrong in (("-m", "put"), ("-m", "get", "-v", "a:1"), ("-m", "other")):
        result = await invoke("admin", "updateOrderConf", "-t", "Orders", *wrong, "-n", rig.namesrv)
        assert result.exit_code == 2, wrong
    shares = (await rows(rig, "allocateMQ", "-t", "Orders", "-i", "10.0.0.2, 10.0.0.1"))["shares"]
    assert [(row["member"], row["queue"]) for row in shares] == [
        ("10.0.0.2", 2),
        ("10.0.0.1", 0),
        ("10.0.0.1", 1),
    ]


async def test_producers_and_progress_of_all_groups_at_a_broker(rig: Rig) -> None:
    place = ("-b", render_address((await rig.start_broker()).address))
    assert (await rows(rig, "producer", *place, exit_code=1))["producers"] == []
    async with Producer("P", rig.namesrv) as producer:
        for _ in range(4):
            await producer.send(Message("Orders", b"m"))
        shown = partial(rows, rig, "producer", *place)
        await until(shown, not_yet=(AssertionError,))  # after its heartbeat, which follows the first send
        assert "P" in {row["group"] for row in (await shown())["producers"]}
    async with rig.consumer("g", "Orders") as reader:
        reader.ack(*await take(reader, 4))
        await reader.commit()
    await send(rig, "Orders", 2)
    queues = (await rows(rig, "brokerConsumeStats", *place))["queues"]
    assert {(row["topic"], row["group"]) for row in queues} >= {("Orders", "g")}
    assert sum(row["lag"] for row in queues) == 2
    assert all(row["lag"] for row in (await rows(rig, "brokerConsumeStats", *place, "-l", "1"))["queues"])
    assert (await rows(rig, "brokerConsumeStats", *place, "-o", "true"))["queues"] == []


async def test_messages_are_consumed_and_sends_tried(rig: Rig) -> None:
    await rig.start_broker()
    await rows(rig, "updateTopic", "-c", "DefaultCluster", "-t", "Orders", "-r", "1", "-w", "1")
    await send(rig, "Orders", 5)
    found = (await rows(rig, "consumeMessage", "-t", "Orders", "-c", "3"))["messages"]
    assert [row["body"] for row in found] == ["m0", "m1", "m2"]
    place = ("-b", "broker-a", "-i", "0", "-o", "3")
    found = (await rows(rig, "consumeMessage", "-t", "Orders", *place))["messages"]
    assert [row["body"] for row in found] == ["m3", "m4"]
    for wrong in (("-i", "0"), ("-b", "broker-a", "-o", "1")):
        result = await invoke("admin", "consumeMessage", "-t", "Orders", *wrong, "-n", rig.namesrv)
        assert result.exit_code == 2, wrong
    tried = await rows(rig, "sendMsgStatus", "-b", "broker-a", "-c", "3", "-s", "10")
    assert [row["status"] for row in tried["sends"]] == ["SEND_OK"] * 3
    tried = await rows(rig, "checkMsgSendRT", "-t", "Orders", "-a", "2")
    assert (tried["summary"][0]["sends"], tried["summary"][0]["failed"]) == (2, 0)
    refused = await rows(rig, "checkMsgSendRT", "-t", "%SYS%no topic", "-a", "1", exit_code=1)
    assert refused["summary"][0]["failed"] == 1


async def test_thresholds_of_cold_reads(rig: Rig) -> None:
    broker = await rig.start_broker()
    place = ("-b", render_address(broker.address))
    await rows(rig, "updateColdDataFlowCtrGroupConfig", "-g", "slow", "-v", "4096", *place)
    shown = (await rows(rig, "getColdDataFlowCtrInfo", *place))["cold_reads"]
    assert {row["group"]: row["threshold_bytes"] for row in shown}["slow"] == 4096
    await rows(rig, "removeColdDataFlowCtrGroupConfig", "-g", "slow", *place)
    shown = (await rows(rig, "getColdDataFlowCtrInfo", *place))["cold_reads"]
    assert [row["group"] for row in shown] == ["(all)"]
    result = await invoke("admin", "updateColdDataFlowCtrGroupConfig", "-g", "slow", "-v", "much", *place)
    assert (result.exit_code, "bytes per 5 s" in result.output) == (1, True)


async def test_a_cluster_is_written_into_files(rig: Rig, tmp_path: Path) -> None:
    await rig.start_broker()
    await rig.start_broker(broker_id=1)
    await rows(rig, "updateTopic", "-c", "DefaultCluster", "-t", "Orders")
    await rows(rig, "updateSubGroup", "-c", "DefaultCluster", "-g", "G")
    await send(rig, "Orders", 3)
    where = ("-c", "DefaultCluster", "-f", str(tmp_path / "export"))
    async with rig.consumer("G", "Orders") as member:
        await take(member, 3)
        [row] = (await rows(rig, "exportConfigs", *where))["exported"]
        assert (row["masters"], row["slaves"]) == (1, 1)
        assert row["path"] == str(tmp_path / "export" / "configs.json")
        held = json.loads((tmp_path / "export" / "configs.json").read_text())
        assert held["clusterScale"] == {"namesrvSize": 1, "masterBrokerSize": 1, "slaveBrokerSize": 1}
        settings = held["brokerConfigs"]["broker-a"]
        assert (settings["brokerRole"], settings["brokerId"]) == ("ASYNC_MASTER", "0")
        [row] = (await rows(rig, "exportMetrics", *where))["exported"]
        held = json.loads((tmp_path / "export" / "metrics.json").read_text())
    figures = held["evaluateReport"]["broker-a"]
    quota = figures["runtimeQuota"]
    assert (quota["topicSize"], quota["groupSize"]) == (1, 1)
    assert set(quota["tps"]) == {"normalInTps", "normalOutTps", "transInTps", "scheduleInTps"}
    assert held["totalData"]["totalOneDayNum"].keys() == quota["oneDayNum"].keys()
    assert set(held["totalData"]["totalTps"]) >= {"totalNormalInTps", "totalTransInTps"}
    [client] = figures["runtimeVersion"]["clientInfo"]
    assert "%V" in client


async def test_the_trace_of_a_message_is_shown(rig: Rig) -> None:
    await rig.start_broker()
    await rows(rig, "updateTopic", "-c", "DefaultCluster", "-t", "Orders", "-r", "1", "-w", "1")
    unknown = await invoke("admin", "queryMsgTraceById", "-i", "AB", "-n", rig.namesrv)
    assert (unknown.exit_code, "no client has traced" in unknown.output) == (1, True)
    (sent,) = (await rows(rig, "sendMessage", "-t", "Orders", "-p", "order", "-m", "true"))["sent"]
    handled = asyncio.Event()

    async def handle(_: ReceivedMessage) -> None:
        handled.set()

    options = PushOptions(client=FAST, start_from=StartFrom.FIRST, trace=True)
    consumer = PushConsumer("G", rig.namesrv, handle, options=options)
    consumer.subscribe("Orders")
    async with consumer:
        await handled.wait()
        await until(lambda: sum(consumer.positions.values()) >= 1)
    await rig.wait_for_route(TRACE_TOPIC)
    told = await rows(rig, "queryMsgTraceById", "-i", sent["unique_key"])
    [pub] = told["sends"]
    assert (pub["group"], pub["topic"], pub["kind"], pub["ok"]) == (
        "TANDEMMQ_ADMIN",
        "Orders",
        "normal",
        True,
    )
    assert pub["client"] == "127.0.0.1"
    [sub] = told["handlings"]
    assert (sub["group"], sub["retries"], sub["ok"], sub["outcome"]) == ("G", 0, True, "success")
    assert 0 < sub["begun_at"] <= sub["ended_at"]
    other = await rows(rig, "queryMsgTraceById", "-i", "F" * 32, exit_code=1)
    assert other == {}


async def test_transactions_and_recalls_of_other_clients_are_in_a_trace(rig: Rig) -> None:
    """Java's clients trace them; TandemMQ's do not."""
    await rig.start_broker()
    ends = ("EndTransaction", "7", "R", "PG", "T", "KEY", "t", "k", "h", "1", "X", "COMMIT_MESSAGE", "true")
    records = [
        ends,
        ("Recall", "8", "R", "PG", "T", "KEY", "true"),
        ("Recall", "8", "R", "PG", "T", "K2", "true"),
    ]
    records += [("Pub", "1", "short"), ("Later", "kind")]
    body = "".join("\x01".join(record) + "\x02" for record in records).encode()
    async with Producer("P", rig.namesrv) as producer:
        await producer.send(Message(TRACE_TOPIC, body, keys=["KEY", "K2"]))
    await rig.wait_for_route(TRACE_TOPIC)
    told = await rows(rig, "queryMsgTraceById", "-i", "KEY")
    [ended] = told["transactions"]
    assert (ended["group"], ended["ended_at"], ended["state"], ended["checked"]) == (
        "PG",
        7,
        "COMMIT_MESSAGE",
        True,
    )
    assert [row["recalled_at"] for row in told["recalls"]] == [8]


async def test_a_message_is_handed_to_a_consumer_at_once(rig: Rig) -> None:
    await rig.start_broker()
    await rows(rig, "updateTopic", "-c", "DefaultCluster", "-t", "Orders", "-r", "1", "-w", "1")
    message_id = await send(rig, "Orders", 1, tags="paid")
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> ConsumeResult:
        seen.append(message.body)
        return ConsumeResult.SUCCESS if len(seen) != 2 else ConsumeResult.RETRY

    assert (await rows(rig, "queryMsgById", "-i", message_id))["groups"] == []
    consumer = PushConsumer("G", rig.namesrv, handle, options=PushOptions(client=FAST))
    consumer.subscribe("Orders", "paid")
    async with consumer:
        await until(lambda: consumer.positions)
        [member] = (await rows(rig, "consumerConnection", "-g", "G"))["members"]
        by_hand = ("-i", message_id, "-g", "G", "-d", member["client"])
        told = await rows(rig, "queryMsgById", *by_hand)
        assert [(row["group"], row["result"]) for row in told["handled"]] == [("G", "CR_SUCCESS")]
        told = await rows(rig, "queryMsgById", *by_hand, exit_code=1)
        assert [row["result"] for row in told["handled"]] == ["CR_LATER"]
        unique_key = told["messages"][0]["unique_key"]
        by_key = ("queryMsgByUniqueKey", "-t", "Orders", "-i", unique_key, *by_hand[2:])
        assert [row["result"] for row in (await rows(rig, *by_key))["handled"]] == ["CR_SUCCESS"]
    assert seen == [b"m0"] * 3
    result = await invoke("admin", "queryMsgById", *by_hand[:-2], "-n", rig.namesrv)
    assert (result.exit_code, "-g and -d" in result.output) == (2, True)


async def test_message_command_shows_which_groups_consumed_it(rig: Rig) -> None:
    await rig.start_broker()
    await rows(rig, "updateTopic", "-c", "DefaultCluster", "-t", "Orders", "-r", "1", "-w", "1")
    await send(rig, "Orders", 1, tags="paid")
    message_id = await send(rig, "Orders", 1, tags="paid")
    async with rig.consumer("all", "Orders") as done, rig.consumer("some", "Orders", "sent") as some:
        await take(done, 2)
        async with rig.consumer("slow", "Orders", auto_ack=False) as slow:
            slow.ack(*await take(slow, 1))
            await slow.commit()
        done.ack()
        await until(lambda: sum(some.positions.values()) >= 2)
        await some.commit()
        told = await rows(rig, "queryMsgById", "-i", message_id)
    states = {row["group"]: (row["members"], row["state"]) for row in told["groups"]}
    assert states["slow"] == (0, "waits")
    assert states["some"] == (1, "skipped: its tag is not subscribed")


async def test_commands_for_rocketmq_features_are_answered_by_our_broker(rig: Rig) -> None:
    address = render_address((await rig.start_broker()).address)
    [row] = (await rows(rig, "resetMasterFlushOffset", "-b", address, "-o", "0"))["changed"]
    assert "no effect" in row["answer"]
    [row] = (await rows(rig, "exportPopRecord", "-c", "DefaultCluster"))["exported"]
    assert row == {"broker": address, "dry": False}
    [row] = (await rows(rig, "exportPopRecord", "-b", address, "-d", "true"))["exported"]
    assert row["dry"] is True
    for mode, expected in (("1", "false"), ("0", "true")):
        [row] = (await rows(rig, "setCommitLogReadAheadMode", "-b", address, "-m", mode))["changed"]
        assert f"dataReadAheadEnable is {expected}" in row["answer"]
        settings = (await rows(rig, "getBrokerConfig", "-b", address))["settings"]
        assert {"broker": address, "key": "dataReadAheadEnable", "value": expected} in settings


async def test_sends_to_each_broker_are_timed(rig: Rig) -> None:
    await rig.start_broker("broker-a")
    await rig.start_broker("broker-b")
    told = (await rows(rig, "clusterRT", "-a", "3", "-s", "16", "-i", "0"))["round_trips"]
    assert [(row["broker"], row["succeeded"], row["failed"]) for row in told] == [
        ("broker-a", 3, 0),
        ("broker-b", 3, 0),
    ]
    assert all(row["took_ms"] > 0 for row in told)


async def test_days_of_brokers_are_shown(rig: Rig) -> None:
    await rig.start_broker()
    await send(rig, "Orders", 3)
    [row] = (await rows(rig, "clusterList", "-m"))["brokers"]
    assert (row["broker"], row["in_yesterday"], row["in_today"]) == ("broker-a", 0, 3)


async def test_groups_are_watched(rig: Rig) -> None:
    await rig.start_broker()
    await rows(rig, "updateTopic", "-c", "DefaultCluster", "-t", "Orders", "-r", "1", "-w", "1")
    await send(rig, "Orders", 5)
    async with rig.consumer("G", "Orders", auto_ack=False) as member:
        member.ack(*(await take(member, 2)))
        await member.commit()
        await rig.wait_for_route(retry_topic("G"))  # by which a group is found
        told = (await rows(rig, "startMonitoring", "-i", "0"))["groups"]
        [row] = [row for row in told if row["group"] == "G"]
        assert (row["members"], row["lag"], row["dead_letters"], row["problems"]) == (1, 3, 0, None)
        assert row["behind_seconds"] is not None
    told = (await rows(rig, "startMonitoring", "-i", "0"))["groups"]
    [row] = [row for row in told if row["group"] == "G"]
    assert (row["members"], row["problems"]) == (0, "no member is online")


async def test_the_retries_of_pops_are_not_another_group(rig: Rig) -> None:
    """A group that pops has a retry topic per topic, in addition to its own."""
    await rig.start_broker()
    for topic in ("Orders", "%RETRY%G", "%RETRY%G_Orders"):
        await rows(rig, "updateTopic", "-c", "DefaultCluster", "-t", topic)
    await rows(rig, "updateSubGroup", "-c", "DefaultCluster", "-g", "G")
    assert [row["group"] for row in (await rows(rig, "consumerProgress"))["groups"]] == ["G"]
    assert [row["group"] for row in (await rows(rig, "startMonitoring", "-i", "0"))["groups"]] == ["G"]


async def test_a_look_is_repeated_until_it_is_interrupted(rig: Rig) -> None:
    """A failing query is reported, and the next one follows."""
    broker = await rig.start_broker()
    address = render_address(broker.address)
    words = ("-m", "tandemmq", "admin", "haStatus", "-b", address, "-i", "0.05", "--json")
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(3):
            assert json.loads(await process.stdout.readline())["masters"][0]["broker"] == address
        await rig.stop_broker()
        assert address in (await process.stderr.readline()).decode()
        process.send_signal(signal.SIGINT)
        _, complaints = await process.communicate()
    assert process.returncode == 0
    assert b"Traceback" not in complaints


async def test_attributes_are_kept_or_refused_by_name(rig: Rig) -> None:
    broker = await rig.start_broker()
    address = render_address(broker.address)
    await rows(rig, "updateTopic", "-b", address, "-t", "Alerts", "-a", "+message.type=PRIORITY")
    topic = broker._tables.topics.get("Alerts")
    assert topic is not None
    assert topic.attributes == {"message.type": "PRIORITY"}
    change = ("updateSubGroup", "-b", address, "-g", "G")
    result = await invoke("admin", *change, "--attributes", "+color=red")
    assert (result.exit_code, "attribute change '+color=red'" in result.output) == (1, True)
    await rows(rig, *change, "--attributes", "+lite.bind.topic=Parent,+priority.factor=50")
    await rows(rig, *change, "--attributes", "-priority.factor")
    group = broker._tables.groups.get("G")
    assert group is not None
    assert group.attributes == {"lite.bind.topic": "Parent"}
    result = await invoke("admin", *change, "--attributes", "color=red")
    assert (result.exit_code, "+name=value" in result.output) == (2, True)
    await rows(rig, *change)
