"""The typed calls against a peer that records the requests and sends the test's answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from tandemmq.api import broker_admin, broker_consume, broker_send, controller, nameserver
from tandemmq.api.broker_consume import PullStatus
from tandemmq.api.broker_send import SendStatus
from tandemmq.api.nameserver import BrokerIdentity
from tandemmq.errors import (
    BadRequest,
    BrokerUnreachable,
    Busy,
    ConfigError,
    GroupNotFound,
    MessageIllegal,
    RequestRejected,
    RequestTimeout,
    TopicNotFound,
)
from tandemmq.protocol.bodies import DataVersion, MessageQueue
from tandemmq.protocol.bodies.client import Heartbeat, encode_consumer_list
from tandemmq.protocol.bodies.codec import decode_body, encode_kv_table
from tandemmq.protocol.bodies.progress import encode_reset_offsets
from tandemmq.protocol.bodies.register import RegisterBrokerBody, body_crc32, decode_register_broker_body
from tandemmq.protocol.bodies.tables import TopicConfig, TopicConfigTable, encode_topic_list
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.record import NewRecord, encode_record
from tandemmq.protocol.requests.consume import PullRequest, QueryMessageRequest
from tandemmq.protocol.requests.send import SendRequestV2
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.options import render_address
from tandemmq.remoting.server import RemotingServer
from tandemmq.runtime.machine import LoopClock, TcpNetwork

IDENTITY = BrokerIdentity(
    cluster_name="C",
    broker_name="a",
    broker_id=1,
    broker_address="10.0.0.1:10911",
    ha_address="10.0.0.1:10912",
)
SEND = SendRequestV2(
    producer_group="g",
    topic="T",
    default_topic="TBW102",
    default_topic_queue_count=4,
    queue_id=0,
    sys_flag=0,
    born_at_ms=1,
    flag=0,
)
PULL = PullRequest(
    consumer_group="g",
    topic="T",
    queue_id=0,
    queue_offset=5,
    count_max=32,
    sys_flag=0,
    committed_offset=0,
    suspend_timeout_ms=0,
    subscription_version=0,
)


class Peer:
    """A peer that answers every request code with `reply`; `asked` is the last request."""

    def __init__(self) -> None:
        self.reply: Callable[[Command], Command | None] = lambda command: command.reply()
        self.asked = Command(0)
        self.address = ""
        self.client = RemotingClient(network=TcpNetwork(), clock=LoopClock())
        routes = {int(code): self._handle for code in RequestCode}
        self.server = RemotingServer(routes, network=TcpNetwork(), clock=LoopClock())

    def answers(self, code: int = 0, body: bytes = b"", **fields: object) -> None:
        texts = {name: str(value) for name, value in fields.items()}
        self.reply = lambda command: command.reply(
            code, body=body, fields=texts, remark="as told" if code else None
        )

    def _handle(self, channel: Channel, command: Command) -> Command | None:
        self.asked = command
        return self.reply(command)


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    peer = Peer()
    peer.address = render_address(await peer.server.start("127.0.0.1", 0))
    yield peer
    await peer.client.close()
    await peer.server.stop()


async def test_registration_carries_the_topics_and_their_checksum(peer: Peer):
    peer.answers(
        body=encode_kv_table({"T": "a:4"}), haServerAddr="10.0.0.9:10912", masterAddr="10.0.0.9:10911"
    )
    table = TopicConfigTable(data_version=DataVersion(counter=3), topics={"T": TopicConfig(name="T")})
    answer = await nameserver.register_broker(
        peer.client, peer.address, IDENTITY, RegisterBrokerBody(topics=table)
    )
    assert answer.master_address == "10.0.0.9:10911"
    assert answer.master_ha_address == "10.0.0.9:10912"
    assert answer.order_topics == {"T": "a:4"}
    assert peer.asked.code == RequestCode.REGISTER_BROKER
    assert peer.asked.fields["bodyCrc32"] == str(body_crc32(peer.asked.body))
    assert peer.asked.fields["brokerId"] == "1"
    assert decode_register_broker_body(peer.asked.body).topics == table


async def test_registration_without_a_master_leaves_the_fields_empty(peer: Peer):
    peer.answers()
    answer = await nameserver.register_broker(peer.client, peer.address, IDENTITY, RegisterBrokerBody())
    assert (answer.master_address, answer.master_ha_address, answer.order_topics) == (None, None, {})
    await nameserver.unregister_broker(peer.client, peer.address, IDENTITY)
    assert peer.asked.fields["brokerName"] == "a"


async def test_unknown_topic_is_no_route_and_not_an_error(peer: Peer):
    peer.answers(17)
    assert await nameserver.query_route(peer.client, peer.address, "T") is None
    peer.answers(1)
    with pytest.raises(RequestRejected, match="as told"):
        await nameserver.query_route(peer.client, peer.address, "T")


async def test_name_server_lists_and_values(peer: Peer):
    peer.answers(body=encode_topic_list(["b", "a"]))
    assert await nameserver.query_topics(peer.client, peer.address) == ["a", "b"]
    peer.answers(22)
    assert await nameserver.get_kv(peer.client, peer.address, "n", "k") is None
    peer.answers(value="v")
    assert await nameserver.get_kv(peer.client, peer.address, "n", "k") == "v"
    await nameserver.put_kv(peer.client, peer.address, "n", "k", "v")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (0, SendStatus.SEND_OK),
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
async def test_four_codes_mean_that_a_message_is_stored(peer: Peer, code: int, status: SendStatus):
    peer.answers(code, msgId="ID", queueId=2, queueOffset=9, transactionId="K")
    answer = await broker_send.send(peer.client, peer.address, SEND, b"x")
    assert (answer.status, answer.message_id, answer.queue_id, answer.queue_offset) == (status, "ID", 2, 9)
    assert peer.asked.code == RequestCode.SEND_MESSAGE_V2


@pytest.mark.parametrize(
    ("code", "error"), [(2, Busy), (13, MessageIllegal), (17, TopicNotFound), (29, BadRequest)]
)
async def test_other_codes_are_errors_of_their_class(peer: Peer, code: int, error: type[RequestRejected]):
    peer.answers(code)
    with pytest.raises(error) as caught:
        await broker_send.send(peer.client, peer.address, SEND, b"x")
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (0, PullStatus.FOUND),
        (19, PullStatus.NOTHING_NEW),
        (20, PullStatus.NOTHING_MATCHED),
        (21, PullStatus.OFFSET_MOVED),
    ],
)
async def test_pull_answer_is_decoded_by_response_code(peer: Peer, code: int, status: PullStatus):
    peer.answers(code, b"body", suggestWhichBrokerId=1, nextBeginOffset=6, minOffset=2, maxOffset=8)
    pulled = await broker_consume.pull(peer.client, peer.address, PULL)
    assert (pulled.status, pulled.next_offset, pulled.min_offset, pulled.max_offset) == (status, 6, 2, 8)
    assert (pulled.suggested_broker_id, bytes(pulled.body)) == (1, b"body")


async def test_refused_pull_raises(peer: Peer):
    peer.answers(26)
    with pytest.raises(GroupNotFound):
        await broker_consume.pull(peer.client, peer.address, PULL)


async def test_offsets(peer: Peer):
    peer.answers(22)
    assert await broker_consume.query_committed_offset(peer.client, peer.address, "g", "T", 0) is None
    peer.answers(offset=7, timestamp=-1)
    query = broker_consume.query_committed_offset(
        peer.client, peer.address, "g", "T", 0, zero_if_missing=False
    )
    assert await query == 7
    assert peer.asked.fields["setZeroIfNotFound"] == "false"
    assert await broker_consume.query_max_offset(peer.client, peer.address, "T", 0) == 7
    assert await broker_consume.query_min_offset(peer.client, peer.address, "T", 0) == 7
    assert await broker_consume.search_offset(peer.client, peer.address, "T", 0, 5, is_upper=True) == 7
    assert peer.asked.fields["boundaryType"] == "UPPER"
    await broker_consume.commit_offset(peer.client, peer.address, "g", "T", 0, 9)
    assert peer.asked.fields["commitOffset"] == "9"


async def test_membership(peer: Peer):
    peer.answers()
    heartbeat = Heartbeat(client_id="c")
    await broker_consume.send_heartbeat(peer.client, peer.address, heartbeat)
    assert decode_body(peer.asked.body, Heartbeat) == heartbeat
    await broker_consume.unregister_client(peer.client, peer.address, "c", consumer_group="g")
    assert peer.asked.fields == {"clientID": "c", "consumerGroup": "g"}
    peer.answers(1)
    assert await broker_consume.query_consumer_ids(peer.client, peer.address, "g") == ()
    peer.answers(body=encode_consumer_list(["y", "x"]))
    assert await broker_consume.query_consumer_ids(peer.client, peer.address, "g") == ("y", "x")


async def test_topics_and_groups_that_are_not_there(peer: Peer):
    peer.answers(17)
    assert await broker_admin.query_topic_config(peer.client, peer.address, "T") is None
    with pytest.raises(TopicNotFound):
        await broker_admin.query_topic_stats(peer.client, peer.address, "T")
    peer.answers(26)
    assert await broker_admin.query_group_config(peer.client, peer.address, "g") is None
    peer.answers()
    config = TopicConfig(name="T", read_queue_count=2, write_queue_count=3, attributes={"k": "v"})
    await broker_admin.create_topic(peer.client, peer.address, config)
    assert peer.asked.fields["writeQueueNums"] == "3"
    assert peer.asked.fields["attributes"] == "+k=v"


async def test_index_hits_of_another_key_are_dropped(peer: Peer):
    def record(topic: str, properties: bytes) -> bytes:
        new = NewRecord(
            topic=topic,
            queue_id=0,
            body=b"x",
            properties=properties,
            born_at_ms=1,
            born_host=b"\x7f\0\0\1\0\0\0\1",
        )
        return encode_record(
            new, queue_offset=0, log_offset=0, stored_at_ms=1, store_host=b"\x7f\0\0\1\0\0\0\1"
        )

    hits = [
        record("T", b"KEYS\x01k other\x02"),
        record("T", b"KEYS\x01kk\x02"),
        record("U", b"KEYS\x01k\x02"),
    ]
    peer.answers(0, b"".join(hits), indexLastUpdateTimestamp=1, indexLastUpdatePhyoffset=1)
    header = QueryMessageRequest(topic="T", key="k", count_max=32, begin_at_ms=0, end_at_ms=9)
    found = await broker_admin.query_messages(peer.client, peer.address, header)
    assert [one.keys for one in found] == ["k other"]
    peer.answers(22)
    assert await broker_admin.query_messages(peer.client, peer.address, header) == []
    peer.answers(0, hits[0])
    assert (await broker_admin.view_message(peer.client, peer.address, 0)).body == b"x"  # type: ignore[union-attr]
    peer.answers(1)
    assert await broker_admin.view_message(peer.client, peer.address, 0) is None


async def test_operators_questions(peer: Peer):
    peer.answers(body=encode_kv_table({"putTps": "1 2 3"}))
    assert await broker_admin.query_runtime_info(peer.client, peer.address) == {"putTps": "1 2 3"}
    peer.answers(206)
    assert await broker_admin.query_consumer_connections(peer.client, peer.address, "g") is None
    peer.answers(1)
    assert await broker_admin.query_producer_connections(peer.client, peer.address, "g") == ()
    queue = MessageQueue("T", "a", 0)
    peer.answers(body=encode_reset_offsets({queue: 4}))
    assert await broker_admin.reset_offsets(peer.client, peer.address, "g", "T", -1) == {queue: 4}
    assert peer.asked.fields["timestamp"] == "-1"


async def test_settings_of_servers_are_names_and_values(peer: Peer):
    text = b"# by hand\nbrokerName = broker-a\nmessageDelayLevel=1s 5s\nempty=\n"
    expected = {"brokerName": "broker-a", "messageDelayLevel": "1s 5s", "empty": ""}
    for query in (broker_admin.query_broker_config, nameserver.query_config, controller.query_config):
        peer.answers(body=text)
        assert await query(peer.client, peer.address) == expected
    peer.answers(body=b"a=\\u12")
    with pytest.raises(ConfigError, match="the settings of the server, line 1"):
        await broker_admin.query_broker_config(peer.client, peer.address)


async def test_silence_and_absence_have_their_own_errors(peer: Peer):
    peer.answers(206)
    await broker_admin.query_consumer_connections(peer.client, peer.address, "g")  # connects
    peer.reply = lambda command: None
    with pytest.raises(RequestTimeout):
        await nameserver.query_cluster_info.within(0.1, peer.client, peer.address)
    with pytest.raises(BrokerUnreachable):
        await nameserver.query_cluster_info.within(0.5, peer.client, "127.0.0.1:1")
