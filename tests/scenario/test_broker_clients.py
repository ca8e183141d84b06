"""Clients of a real broker: heartbeats, notifications, membership, queue locks (spec semantics 15 and 16)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_rig import Peer, consumer, running_broker

from tandemmq.broker.broker import Broker
from tandemmq.protocol.bodies.client import (
    ConsumerConnections,
    LockRequest,
    MessageModel,
    decode_consumer_list,
    decode_lock_answer,
    decode_producer_connections,
)
from tandemmq.protocol.bodies.codec import MessageQueue, decode_body, encode_body
from tandemmq.protocol.bodies.progress import decode_reset_offsets
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.admin import (
    ConsumerConnectionsRequest,
    ProducerConnectionsRequest,
    ResetOffsetRequest,
    TopicConfigRequest,
)
from tandemmq.protocol.requests.consume import NotificationRequest
from tandemmq.protocol.requests.route import (
    ConsumerListRequest,
    NotifyConsumerIdsChangedRequest,
    UnregisterClientRequest,
)
from tandemmq.remoting.channel import Channel
from waits import until


class Listening(Peer):
    """A peer that keeps the notifications that it receives."""

    def __init__(self, broker: Broker) -> None:
        self.notices: list[str] = []
        super().__init__(broker, {int(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED): self._on_notice})

    def _on_notice(self, _channel: Channel, command: Command) -> None:
        assert command.is_oneway
        self.notices.append(command.decode(NotifyConsumerIdsChangedRequest).consumer_group)


@pytest.fixture
async def first(broker: Broker) -> AsyncIterator[Listening]:
    async with Listening(broker) as peer:
        yield peer


@pytest.fixture
async def second(broker: Broker) -> AsyncIterator[Listening]:
    async with Listening(broker) as peer:
        yield peer


async def members(peer: Peer, group: str = "CG") -> tuple[str, ...]:
    answer = await peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerListRequest(consumer_group=group))
    if answer.code == ResponseCode.SYSTEM_ERROR:
        return ()
    return decode_consumer_list(answer.body)


async def test_members_are_told_when_one_joins_and_leaves(first: Listening, second: Listening) -> None:
    answer = await first.heartbeat("c1", consumer("CG", "T1"))
    assert answer.fields["IS_SUPPORT_HEART_BEAT_V2"] == "true"
    await until(lambda: first.notices == ["CG"], "the first is told of itself")
    await second.heartbeat("c2", consumer("CG", "T1"))
    await until(lambda: first.notices == ["CG"] * 2 and second.notices == ["CG"], "both are told")
    assert await members(first) == ("c1", "c2")
    await first.heartbeat("c1", consumer("CG", "T1"))
    await second.client.close()
    await until(lambda: first.notices == ["CG"] * 3, "the first is told of the end")
    assert await members(first) == ("c1",)


async def test_changed_topics_are_told_and_a_changed_expression_is_not(first: Listening) -> None:
    await first.heartbeat("c1", consumer("CG", "T1"))
    await until(lambda: len(first.notices) == 1, "joined")
    await first.heartbeat("c1", consumer("CG", "T1", expression="a"))
    await first.heartbeat("c1", consumer("CG", "T1", "T2"))
    await until(lambda: len(first.notices) == 2, "a topic more")
    await first.heartbeat("c1", consumer("CG", "T2"))
    await until(lambda: len(first.notices) == 3, "a topic less")


async def test_broadcasting_members_are_not_told(first: Listening, second: Listening) -> None:
    await first.heartbeat("c1", consumer("BG", "T1", message_model=MessageModel.BROADCASTING))
    await second.heartbeat("c2", consumer("BG", "T1", message_model=MessageModel.BROADCASTING))
    await first.heartbeat("c1", consumer("CG", "T1"))
    await until(lambda: first.notices == ["CG"], "only the clustering group")
    assert second.notices == []


async def test_undecodable_heartbeats_are_logged(
    first: Listening, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """The consumer would get no messages and no error: an invalid heartbeat, and one without a client id."""
    for body in (b'{"clientID":"c1","consumerDataSet":[{"consumeType":7,"groupName":"CG"}]}', b"", b"{}"):
        for _ in range(2):
            answer = await first.ask(RequestCode.HEART_BEAT, body=body)
            assert answer.code != ResponseCode.SUCCESS
    header = NotificationRequest(consumer_group="CG", topic="none", queue_id=-1, poll_ms=1)
    answer = await first.ask(RequestCode.NOTIFICATION, header)
    assert answer.code != ResponseCode.SUCCESS
    lines = [record for record in caplog.records if record.getMessage() == "consumer.refused"]
    told = [(record.request, record.group) for record in lines]  # type: ignore[attr-defined]  # of extra
    assert told[0] == ("HEART_BEAT", "")
    assert told[-1] == ("NOTIFICATION", "CG")
    assert "consumeType" in lines[0].reason  # type: ignore[attr-defined]  # of extra
    assert broker._parts.core.refusals.count == 7


async def test_heartbeat_makes_the_retry_topic(first: Listening) -> None:
    await first.heartbeat("c1", consumer("CG", "T1"))
    answer = await first.ask(RequestCode.GET_TOPIC_CONFIG, TopicConfigRequest(topic="%RETRY%CG"))
    assert answer.code == ResponseCode.SUCCESS


async def test_unregistered_client_is_gone_at_once(first: Listening, second: Listening) -> None:
    await first.heartbeat("c1", consumer("CG", "T1"), producers=("PG",))
    await second.heartbeat("c2", consumer("CG", "T1"))
    header = UnregisterClientRequest(client_id="c1", consumer_group="CG", producer_group="PG")
    assert (await first.ask(RequestCode.UNREGISTER_CLIENT, header)).code == ResponseCode.SUCCESS
    assert await members(second) == ("c2",)
    producers = await second.ask(
        RequestCode.GET_PRODUCER_CONNECTION_LIST, ProducerConnectionsRequest(producer_group="PG")
    )
    assert producers.code == ResponseCode.SYSTEM_ERROR


async def test_unknown_group_has_no_members(first: Listening) -> None:
    answer = await first.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerListRequest(consumer_group="X"))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "X" in (answer.remark or "")


async def test_group_that_may_not_be_made_is_passed_over(tmp_path: Path) -> None:
    async with running_broker(tmp_path, auto_create_group=False) as broker, Peer(broker) as peer:
        answer = await peer.heartbeat("c1", consumer("CG", "T1"))
        assert answer.code == ResponseCode.SUCCESS
        assert await members(peer) == ()


async def test_silent_client_expires(tmp_path: Path) -> None:
    options = {"channel_expired_ms": 50, "client_scan_period_ms": 20}
    async with running_broker(tmp_path, **options) as broker, Peer(broker) as peer, Peer(broker) as watcher:
        await peer.heartbeat("c1", consumer("CG", "T1"))

        async def is_gone() -> bool:
            return not await members(watcher)

        await until(is_gone, "the client that is silent is gone")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"clientID":5,"consumerDataSet":7}', b"\xff\xfe", b'{"a":' * 99]
)
async def test_broken_heartbeats_are_answered_and_the_connection_lives(first: Listening, body: bytes) -> None:
    answer = await first.ask(RequestCode.HEART_BEAT, body=body)
    assert answer.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER)
    assert answer.remark
    assert (await first.heartbeat("c1", consumer("CG", "T1"))).code == ResponseCode.SUCCESS


async def test_number_of_groups_per_client_is_bounded(tmp_path: Path) -> None:
    async with running_broker(tmp_path, groups_per_client_max=2) as broker, Peer(broker) as peer:
        answer = await peer.heartbeat("c1", *(consumer(f"G{i}", "T1") for i in range(3)))
        assert answer.code == ResponseCode.INVALID_PARAMETER


async def test_connections_are_listed(first: Listening) -> None:
    await first.heartbeat("c1", consumer("CG", "T1", expression="a || b"), producers=("PG",))
    answer = await first.ask(
        RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerConnectionsRequest(consumer_group="CG")
    )
    connections = decode_body(answer.body, ConsumerConnections)
    assert [connection.client_id for connection in connections.connections] == ["c1"]
    assert connections.subscriptions["T1"].expression == "a || b"
    answer = await first.ask(
        RequestCode.GET_PRODUCER_CONNECTION_LIST, ProducerConnectionsRequest(producer_group="PG")
    )
    assert [connection.client_id for connection in decode_producer_connections(answer.body)] == ["c1"]
    answer = await first.ask(
        RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerConnectionsRequest(consumer_group="Off")
    )
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE


async def test_reset_is_pushed_to_clients_when_the_broker_is_told_so(tmp_path: Path) -> None:
    pushed: list[dict[MessageQueue, int]] = []

    def on_push(_channel: Channel, command: Command) -> None:
        pushed.append(decode_reset_offsets(command.body))

    reset = ResetOffsetRequest(topic="T1", group="CG", timestamp_ms=-1, is_forced=True, queue_id=0)
    async with (
        running_broker(tmp_path, server_side_reset=False) as broker,
        Peer(broker, {int(RequestCode.RESET_CONSUMER_CLIENT_OFFSET): on_push}) as peer,
    ):
        for _ in range(3):
            await peer.send_ok("T1")
        await peer.pull("T1", sys_flag=0x5, committed_offset=1)
        offline = await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
        assert offline.code == ResponseCode.CONSUMER_NOT_ONLINE
        await peer.heartbeat("c1", consumer("CG", "T1"))
        answer = await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
        await until(lambda: bool(pushed), "the client is told")
        assert [*pushed[0].values()] == [*decode_reset_offsets(answer.body).values()] == [3]


async def lock(peer: Peer, client_id: str, *queues: MessageQueue) -> frozenset[MessageQueue]:
    request = LockRequest(client_id=client_id, consumer_group="CG", queues=queues)
    answer = await peer.ask(RequestCode.LOCK_BATCH_MQ, body=encode_body(request))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return decode_lock_answer(answer.body)


async def test_queue_is_locked_by_one_client_until_it_lets_go(first: Listening) -> None:
    await first.send_ok("T1")
    q0, q1, no = (MessageQueue(topic="T1", broker_name="broker-a", queue_id=i) for i in (0, 1, 77))
    assert await lock(first, "c1", q0, q1, no) == {q0, q1}
    assert await lock(first, "c2", q0) == frozenset()
    request = LockRequest(client_id="c1", consumer_group="CG", queues=(q0,))
    await first.ask(RequestCode.UNLOCK_BATCH_MQ, body=encode_body(request))
    assert await lock(first, "c2", q0, q1) == {q0}
    # A group that consumes in order has already retried itself: its message goes to the dead letters.
    await first.send_ok("%RETRY%CG", b"ordered", retry_count=1)
    assert (await first.pull("%DLQ%CG")).code == ResponseCode.SUCCESS
