"""Sending to a real broker: stored messages, answers and rejections (spec semantics 5 and 6)."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from broker_rig import MESSAGE_BYTES_MAX, Peer, make_broker, records_of, running_broker, send_header

from tandemmq.broker.broker import Broker
from tandemmq.errors import ConfigError
from tandemmq.protocol.batch import encode_batch
from tandemmq.protocol.bodies.codec import decode_body
from tandemmq.protocol.bodies.tables import TopicConfig
from tandemmq.protocol.codes import SERIALIZE_ROCKETMQ, RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.message_id import decode_message_id
from tandemmq.protocol.properties import PROPERTIES_BYTES_MAX, encode_properties
from tandemmq.protocol.requests.admin import CreateTopicRequest, TopicConfigRequest
from tandemmq.protocol.requests.consume import ViewMessageRequest
from tandemmq.protocol.requests.send import SendBackRequest, SendRequest, SendResponse
from tandemmq.store import BrokerRole
from waits import until


async def test_send_answers_with_the_place_of_the_message(broker: Broker, peer: Peer) -> None:
    answer = await peer.send(
        "T1", queue_id=2, properties={"UNIQ_KEY": "AB" * 16, "TAGS": "a", "KEYS": "k1 k2"}
    )
    assert answer.code == ResponseCode.SUCCESS
    assert answer.fields["MSG_REGION"] == "DefaultRegion"
    assert answer.fields["TRACE_ON"] == "true"
    response = answer.decode(SendResponse)
    assert (response.queue_id, response.queue_offset, response.transaction_id) == (2, 0, "AB" * 16)
    where = decode_message_id(response.message_id)
    assert (where.ip, where.port) == ("127.0.0.1", broker.address[1])
    [record] = records_of(await peer.pull("T1", queue_id=2))
    assert record.body == b"hello"
    assert record.message_id == response.message_id
    assert record.properties["CLUSTER"] == "DefaultCluster"
    assert record.properties["MSG_REGION"] == "DefaultRegion"
    assert record.properties["TRACE_ON"] == "true"
    assert (record.tags, record.keys) == ("a", "k1 k2")


async def test_queue_offsets_are_dense_in_one_queue(peer: Peer) -> None:
    offsets = [(await peer.send_ok("T1", queue_id=1)).queue_offset for _ in range(5)]
    assert offsets == [0, 1, 2, 3, 4]


async def test_missing_unique_key_is_made_by_the_broker(peer: Peer) -> None:
    response = await peer.send_ok("T1")
    assert response.transaction_id is not None
    assert len(response.transaction_id) == 32
    [record] = records_of(await peer.pull("T1"))
    assert record.unique_key == response.transaction_id


async def test_properties_without_last_separator_are_read(peer: Peer) -> None:
    text = "TAGS\x01a\x02UNIQ_KEY\x01" + "CD" * 16
    await peer.ask(RequestCode.SEND_MESSAGE_V2, send_header("T1", properties=None, queue_id=0), body=b"first")
    header = send_header("T1")
    header = type(header)(**{**{f: getattr(header, f) for f in header.__struct_fields__}, "properties": text})
    answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, header, body=b"second")
    assert answer.decode(SendResponse).transaction_id == "CD" * 16
    records = records_of(await peer.pull("T1"))
    assert records[1].properties["CLUSTER"] == "DefaultCluster"
    assert records[1].tags == "a"


async def test_long_header_names_and_compact_headers_are_served(peer: Peer) -> None:
    header = SendRequest(
        producer_group="PG", topic="T1", default_topic="TBW102", default_topic_queue_count=4,
        queue_id=0, sys_flag=0, born_at_ms=1, flag=7,
    )  # fmt: skip
    answer = await peer.ask(RequestCode.SEND_MESSAGE, header, body=b"x")
    assert answer.code == ResponseCode.SUCCESS
    command = Command.request(
        RequestCode.SEND_MESSAGE_V2, send_header("T1"), body=b"y", serialize_type=SERIALIZE_ROCKETMQ
    )
    answer = await peer.client.request(peer.address, command, 5.0)
    assert answer.serialize_type == SERIALIZE_ROCKETMQ
    assert answer.decode(SendResponse).queue_offset == 1
    assert answer.fields["MSG_REGION"] == "DefaultRegion"
    assert [record.flag for record in records_of(await peer.pull("T1"))] == [7, 0]


async def test_unknown_topic_is_made_from_the_template(peer: Peer) -> None:
    await peer.send_ok("Fresh", default_topic_queue_count=3)
    config = decode_body(
        (await peer.ask(RequestCode.GET_TOPIC_CONFIG, TopicConfigRequest(topic="Fresh"))).body, TopicConfig
    )
    assert (config.read_queue_count, config.write_queue_count, config.permission) == (3, 3, 6)


async def test_unknown_topic_without_usable_template_is_refused(peer: Peer) -> None:
    answer = await peer.send("Fresh", default_topic="Nothing")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert "Fresh" in (answer.remark or "")
    assert answer.fields["MSG_REGION"] == "DefaultRegion"


async def test_automatic_topics_can_be_switched_off(tmp_path: Path) -> None:
    async with running_broker(tmp_path, auto_create_topic=False) as broker, Peer(broker) as peer:
        assert (await peer.send("Fresh")).code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize(
    ("changes", "code", "word"),
    [
        ({"queue_id": 99}, ResponseCode.INVALID_PARAMETER, "0..3"),
        ({"topic": "New", "default_topic_queue_count": 0}, ResponseCode.INVALID_PARAMETER, "at least 1"),
        ({"topic": "no spaces"}, ResponseCode.INVALID_PARAMETER, "characters"),
        ({"topic": "../../etc/passwd"}, ResponseCode.INVALID_PARAMETER, "characters"),
        ({"topic": "t" * 128}, ResponseCode.INVALID_PARAMETER, "127"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION, "SCHEDULE_TOPIC_XXXX"),
        ({"properties": {"TRAN_MSG": "true"}}, ResponseCode.MESSAGE_ILLEGAL, "PGROUP"),
        ({"properties": {"DELAY": "soon"}}, ResponseCode.MESSAGE_ILLEGAL, "DELAY"),
        ({"properties": {"TIMER_DELAY_SEC": "soon"}}, ResponseCode.MESSAGE_ILLEGAL, "TIMER_DELAY_SEC"),
        ({"properties": {"TIMER_DELAY_SEC": "259201"}}, ResponseCode.MESSAGE_ILLEGAL, "259200"),
        ({"properties": {"INNER_NUM": "5"}}, ResponseCode.MESSAGE_ILLEGAL, "INNER_NUM"),
        ({"properties": {"a": "x" * 33_000}}, ResponseCode.MESSAGE_ILLEGAL, "32767"),
        ({"sys_flag": 0x4}, ResponseCode.MESSAGE_ILLEGAL, "sysFlag"),
        ({"sys_flag": 0x80}, ResponseCode.MESSAGE_ILLEGAL, "BatchCQ"),
    ],
)
async def test_refusals_name_what_is_wrong(
    peer: Peer, changes: dict[str, object], code: ResponseCode, word: str
) -> None:
    changes = dict(changes)
    answer = await peer.send(str(changes.pop("topic", "T1")), **changes)
    assert (answer.code, word in (answer.remark or "")) == (code, True), answer.remark
    assert answer.fields["TRACE_ON"] == "true"


async def test_empty_and_oversized_bodies_are_refused(peer: Peer) -> None:
    assert (await peer.send("T1", b"")).code == ResponseCode.MESSAGE_ILLEGAL
    answer = await peer.send("T1", b"x" * (MESSAGE_BYTES_MAX + 1))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert str(MESSAGE_BYTES_MAX) in (answer.remark or "")
    assert (await peer.send("T1", b"x" * MESSAGE_BYTES_MAX)).code == ResponseCode.SUCCESS


async def test_negative_queue_id_lets_the_broker_choose(peer: Peer) -> None:
    chosen = {(await peer.send_ok("T1", queue_id=-1)).queue_id for _ in range(40)}
    assert chosen == {0, 1, 2, 3}


async def test_missing_or_ill_typed_fields_are_named(peer: Peer) -> None:
    fields = {"a": "PG", "b": "T1", "c": "TBW102", "d": "4", "e": "zero", "f": "0", "g": "1", "h": "0"}
    command = Command.request(RequestCode.SEND_MESSAGE_V2, body=b"x", fields=fields)
    answer = await peer.client.request(peer.address, command, 5.0)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "e " in (answer.remark or "")
    assert answer.fields["MSG_REGION"] == "DefaultRegion"


async def test_oneway_send_is_stored_without_an_answer(peer: Peer) -> None:
    await peer.client.send_oneway(
        peer.address,
        Command.request(RequestCode.SEND_MESSAGE_V2, send_header("T1"), body=b"quiet", oneway=True),
    )
    assert (await peer.send_ok("T1", b"loud")).queue_offset == 1
    assert [record.body for record in records_of(await peer.pull("T1"))] == [b"quiet", b"loud"]


async def test_batch_is_stored_as_single_messages(peer: Peer) -> None:
    items = [(i, b"m%d" % i, encode_properties({"TAGS": f"t{i}", "UNIQ_KEY": f"{i:032X}"})) for i in range(3)]
    answer = await peer.ask(
        RequestCode.SEND_BATCH_MESSAGE, send_header("T1", is_batch=True), body=encode_batch(items)
    )
    response = answer.decode(SendResponse)
    assert len(response.message_id.split(",")) == 3
    assert response.queue_offset == 0
    records = records_of(await peer.pull("T1"))
    assert [(record.body, record.flag, record.tags) for record in records] == [
        (b"m0", 0, "t0"), (b"m1", 1, "t1"), (b"m2", 2, "t2"),
    ]  # fmt: skip
    assert [record.unique_key for record in records] == [f"{i:032X}" for i in range(3)]


async def test_broken_batch_is_refused_whole(peer: Peer) -> None:
    good = encode_batch([(0, b"m", b""), (0, b"n", b"")])
    for body in (good[:-1], good + b"x", b""):
        answer = await peer.ask(RequestCode.SEND_BATCH_MESSAGE, send_header("T1", is_batch=True), body=body)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL, answer.remark
    delayed = encode_batch([(0, b"m", b"DELAY\x013\x02")])
    answer = await peer.ask(RequestCode.SEND_BATCH_MESSAGE, send_header("T1", is_batch=True), body=delayed)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    retry = send_header("%RETRY%CG", is_batch=True)
    assert (
        await peer.ask(RequestCode.SEND_BATCH_MESSAGE, retry, body=good)
    ).code == ResponseCode.MESSAGE_ILLEGAL
    assert (await peer.pull("T1")).code == ResponseCode.PULL_NOT_FOUND


async def test_delayed_message_waits_in_the_schedule_topic(broker: Broker, peer: Peer) -> None:
    response = await peer.send_ok("T1", b"later", queue_id=3, properties={"DELAY": "2", "TAGS": "a"})
    assert response.queue_id == 3
    view = await peer.ask(
        RequestCode.VIEW_MESSAGE_BY_ID,
        ViewMessageRequest(log_offset=decode_message_id(response.message_id).log_offset),
    )
    [record] = records_of(view)
    assert (record.topic, record.queue_id) == ("SCHEDULE_TOPIC_XXXX", 1)
    assert (record.properties["REAL_TOPIC"], record.properties["REAL_QID"]) == ("T1", "3")


async def test_read_only_topic_takes_no_messages_until_it_is_writeable_again(peer: Peer) -> None:
    def topic(permission: int) -> CreateTopicRequest:
        return CreateTopicRequest(
            topic="RO", default_topic="TBW102", read_queue_count=2, write_queue_count=2, permission=permission
        )

    await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic(6))
    assert (await peer.send("RO")).code == ResponseCode.SUCCESS
    await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic(4))
    assert (await peer.send("RO")).code == ResponseCode.NO_PERMISSION
    await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic(6))
    assert (await peer.send("RO")).code == ResponseCode.SUCCESS


async def test_tried_often_enough_a_retry_becomes_a_dead_letter(peer: Peer) -> None:
    assert (await peer.send("%RETRY%CG", b"again", retry_count=16)).code == ResponseCode.SUCCESS
    delayed = {"DELAY": "3"}
    answer = await peer.send("%RETRY%CG", b"dead", retry_count=17, properties=delayed)
    assert answer.code == ResponseCode.SUCCESS
    assert (await peer.send("%RETRY%CG", b"dead too", retry_count=3, retry_count_max=2)).code == 0
    assert [r.body for r in records_of(await peer.pull("%RETRY%CG"))] == [b"again"]
    dead = records_of(await peer.pull("%DLQ%CG"))
    assert [(r.body, r.properties["DELAY"]) for r in dead] == [(b"dead", "-1"), (b"dead too", "-1")]


async def test_retry_topic_of_a_group_that_may_not_be_made_is_refused(tmp_path: Path) -> None:
    async with running_broker(tmp_path, auto_create_group=False) as broker, Peer(broker) as peer:
        assert (await peer.send("%RETRY%CG")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_sent_back_message_is_stored_for_later_and_in_the_end_as_dead_letter(
    broker: Broker, peer: Peer
) -> None:
    response = await peer.send_ok("T1", b"poison", properties={"TAGS": "a", "KEYS": "k"})
    log_offset = decode_message_id(response.message_id).log_offset
    answer = await peer.ask(
        RequestCode.CONSUMER_SEND_MSG_BACK, SendBackRequest(log_offset=log_offset, group="CG", delay_level=1)
    )
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    answer = await peer.ask(
        RequestCode.CONSUMER_SEND_MSG_BACK, SendBackRequest(log_offset=log_offset, group="CG", delay_level=-1)
    )
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    [dead] = records_of(await peer.pull("%DLQ%CG"))
    assert dead.body == b"poison"
    assert dead.retry_count == 1
    assert dead.properties["RETRY_TOPIC"] == "T1"
    assert dead.properties["ORIGIN_MESSAGE_ID"] == response.message_id
    assert (dead.tags, dead.keys) == ("a", "k")
    assert dead.properties["DELAY"] == "0"
    await until(lambda: broker.store is not None and broker.store.queue_max("%RETRY%CG", 0) == 1)
    [again] = records_of(await peer.pull("%RETRY%CG"))
    answer = await peer.ask(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        SendBackRequest(log_offset=again.log_offset, group="CG", delay_level=-1),
    )
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    [_, dead] = records_of(await peer.pull("%DLQ%CG"))
    places = [dead.properties[name] for name in ("DELAY", "REAL_TOPIC", "REAL_QID", "RETRY_TOPIC")]
    assert places == ["0", "%RETRY%CG", "0", "T1"]


@pytest.mark.parametrize("room", [0, 50, 250])
async def test_a_message_at_the_limit_of_properties_is_retried_and_ends_as_a_dead_letter(
    broker: Broker, peer: Peer, room: int
) -> None:
    """A retry carries its first topic and its delay; without room, first the delay is dropped, then the
    retry.
    """
    await peer.send_ok("T1", b"small", properties={"UNIQ_KEY": "K" * 32})
    [small] = records_of(await peer.pull("T1"))
    added = len(small.raw_properties) - len(encode_properties({"UNIQ_KEY": "K" * 32}))
    text = filled("UNIQ_KEY\x01" + "K" * 32, added + room)
    sent = await peer.ask(
        RequestCode.SEND_MESSAGE_V2, msgspec.structs.replace(send_header("T1"), properties=text), body=b"big"
    )
    assert sent.code == ResponseCode.SUCCESS, sent.remark
    log_offset = decode_message_id(sent.decode(SendResponse).message_id).log_offset
    store = broker.store
    assert store is not None
    for number in range(2):
        header = SendBackRequest(log_offset=log_offset, group="CG", delay_level=1, retry_count_max=1)
        answer = await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        await until(
            lambda number=number: (  # type: ignore[misc]
                store.queue_max("%RETRY%CG", 0) > number or store.queue_max("%DLQ%CG", 0) > 0
            ),
            "it is stored again",
        )
        if store.queue_max("%DLQ%CG", 0):
            break
        again = records_of(await peer.pull("%RETRY%CG"))[-1]
        assert (again.retry_count, again.properties["RETRY_TOPIC"]) == (number + 1, "T1")
        assert again.properties["big"] == "v" * len(again.properties["big"])
        log_offset = again.log_offset
    [dead] = records_of(await peer.pull("%DLQ%CG"))
    assert dead.body == b"big"
    assert len(dead.properties["big"]) > 32_000


def filled(first: str, room: int) -> str:
    """Returns properties that leave exactly `room` bytes."""
    base = first + "\x02big\x01"
    return base + "v" * (PROPERTIES_BYTES_MAX - room - len(base) - 1) + "\x02"


@pytest.mark.parametrize("retry_count", [1, 17])
async def test_a_retry_that_its_consumer_sends_is_stored_though_it_has_grown_beyond_the_limit(
    broker: Broker, peer: Peer, retry_count: int
) -> None:
    """Orderly consumers send such retries, and consumers whose hand-back failed."""
    added = {
        "RETRY_TOPIC": "T1",
        "DELAY": "1",
        "ORIGIN_MESSAGE_ID": "A" * 32,
        "RECONSUME_TIME": "1",
        "MAX_RECONSUME_TIMES": "16",
    }
    text = encode_properties({"UNIQ_KEY": "K" * 32, "big": "v" * 32_600, **added}).decode()
    answer = await peer.ask(
        RequestCode.SEND_MESSAGE_V2,
        msgspec.structs.replace(send_header("%RETRY%CG", retry_count=retry_count), properties=text),
        body=b"big",
    )
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    topic = "%RETRY%CG" if retry_count == 1 else "%DLQ%CG"
    store = broker.store
    assert store is not None
    await until(lambda: store.queue_max(topic, 0) == 1)
    [record] = records_of(await peer.pull(topic))
    assert len(record.properties["big"]) == 32_600
    assert record.properties["RETRY_TOPIC"] == "T1"


async def test_sent_back_message_waits_for_a_second_copy(tmp_path: Path) -> None:
    """The consumer drops its message after the answer (cluster simulation, seed 2095)."""
    store = {"role": BrokerRole.SYNC_MASTER, "in_sync_replicas": 2, "slave_timeout_ms": 100}
    async with running_broker(tmp_path, store=store) as broker, Peer(broker) as peer:
        stored = await peer.send("T1", b"alone", properties={"WAIT": "false"})
        log_offset = decode_message_id(stored.decode(SendResponse).message_id).log_offset
        header = SendBackRequest(log_offset=log_offset, group="CG", delay_level=1)
        answer = await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "FLUSH_SLAVE_TIMEOUT" in (answer.remark or "")


async def test_sending_back_what_is_not_there_is_an_error(peer: Peer) -> None:
    for offset in (-1, 3, 1 << 40):
        header = SendBackRequest(log_offset=offset, group="CG", delay_level=0)
        answer = await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)
        assert answer.code == ResponseCode.SYSTEM_ERROR, (offset, answer.remark)


async def test_send_back_of_a_message_with_another_key_or_topic_is_refused(peer: Peer) -> None:
    """Log offsets are reused after a log has lost its end."""
    stored = await peer.send_ok("T1", b"mine", properties={"UNIQ_KEY": "A1"})
    log_offset = decode_message_id(stored.message_id).log_offset
    for message_id, topic, is_meant in (
        ("A1", "T1", True),
        (stored.message_id, "T1", True),
        ("B2", "T1", False),
        (None, "T1", True),
        (None, "Salaries", False),
        (None, None, True),
    ):
        header = SendBackRequest(
            log_offset=log_offset,
            group="CG",
            delay_level=-1,
            original_message_id=message_id,
            original_topic=topic,
        )
        answer = await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)
        assert answer.code == (ResponseCode.SUCCESS if is_meant else ResponseCode.SYSTEM_ERROR), header
        assert is_meant or "another message is stored" in (answer.remark or "")
    assert len(records_of(await peer.pull("%DLQ%CG"))) == 4


async def test_slave_refuses_sends_and_names_the_reason(tmp_path: Path) -> None:
    async with running_broker(tmp_path, broker_id=1) as broker, Peer(broker) as peer:
        answer = await peer.send("T1")
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert (answer.remark or "").startswith("[REJECTREQUEST]")
        assert answer.fields["MSG_REGION"] == "DefaultRegion"
        assert (await peer.pull("T1")).code == ResponseCode.SYSTEM_BUSY


async def test_messages_and_topics_survive_a_restart(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        await peer.send_ok("T1", b"kept")
    async with running_broker(tmp_path, auto_create_topic=False) as broker, Peer(broker) as peer:
        assert [record.body for record in records_of(await peer.pull("T1"))] == [b"kept"]
        assert (await peer.send_ok("T1")).queue_offset == 1


def test_id_and_role_must_agree(tmp_path: Path) -> None:
    from tandemmq.store import BrokerRole

    with pytest.raises(ConfigError, match="brokerRole"):
        make_broker(tmp_path, store={"role": BrokerRole.SLAVE})
