"""Replies through a real broker over the loopback (spec semantics 15 and 3.10, spec remoting 9.10)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_rig import Peer, records_of, running_broker, send_header

from tandemmq.broker.broker import Broker
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.properties import decode_properties, encode_properties
from tandemmq.protocol.requests.send import PushReplyRequest, SendRequest, SendResponse
from tandemmq.remoting.channel import Channel

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
REPLY = {"MSG_TYPE": "reply", "CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "asker", "TTL": "3000"}


class Requester(Peer):
    """A client that receives replies; `code` is its answer."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, {int(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT): self._on_push})
        self.code = 0
        self.pushed: list[tuple[PushReplyRequest, bytes]] = []

    def _on_push(self, channel: Channel, command: Command) -> Command:
        self.pushed.append((command.decode(PushReplyRequest), bytes(command.body)))
        return command.reply(self.code)


@pytest.fixture
async def requester(broker: Broker) -> AsyncIterator[Requester]:
    async with Requester(broker) as requester:
        await requester.heartbeat("asker", producers=("PG",))
        yield requester


@pytest.fixture
async def responder(broker: Broker) -> AsyncIterator[Peer]:
    async with Peer(broker) as peer:
        yield peer


async def reply(responder: Peer, properties: dict[str, str] = REPLY) -> Command:
    header = send_header(REPLY_TOPIC, properties)
    return await responder.ask(RequestCode.SEND_REPLY_MESSAGE_V2, header, body=b"pong")


async def test_reply_reaches_the_client_that_waits_and_is_stored(
    requester: Requester, responder: Peer
) -> None:
    answer = await reply(responder)
    assert answer.code == ResponseCode.SUCCESS
    [(header, body)] = requester.pushed
    assert body == b"pong"
    assert header.topic == REPLY_TOPIC
    assert header.born_host.startswith("127.0.0.1:")
    pairs = decode_properties((header.properties or "").encode())
    assert pairs["CORRELATION_ID"] == "c-1"
    assert int(pairs["PUSH_REPLY_TIME"]) == header.stored_at_ms
    [record] = records_of(await responder.pull(REPLY_TOPIC))
    assert record.body == b"pong"
    assert answer.decode(SendResponse).message_id == record.message_id


async def test_first_form_of_the_request_is_taken_too(requester: Requester, responder: Peer) -> None:
    long = SendRequest(
        producer_group="PG",
        topic=REPLY_TOPIC,
        default_topic="TBW102",
        default_topic_queue_count=4,
        queue_id=0,
        sys_flag=0,
        born_at_ms=1,
        flag=0,
        properties=encode_properties(REPLY).decode(),
    )
    answer = await responder.ask(RequestCode.SEND_REPLY_MESSAGE, long, body=b"pong")
    assert answer.code == ResponseCode.SUCCESS
    assert len(requester.pushed) == 1


async def test_sender_is_told_when_nobody_waits(requester: Requester, responder: Peer) -> None:
    answer = await reply(responder, {**REPLY, "REPLY_TO_CLIENT": "gone"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "'gone' is not connected" in (answer.remark or "")
    answer = await reply(responder, {"CORRELATION_ID": "c-1"})
    assert "REPLY_TO_CLIENT" in (answer.remark or "")
    requester.code = 1
    answer = await reply(responder)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "refused" in (answer.remark or "")
    assert len(records_of(await responder.pull(REPLY_TOPIC))) == 3


async def test_client_that_left_gets_nothing(requester: Requester, responder: Peer) -> None:
    await requester.client.close()
    answer = await reply(responder)
    assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_replies_need_not_be_stored(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, reply_store_enable=False) as broker,
        Requester(broker) as requester,
        Peer(broker) as responder,
    ):
        await requester.heartbeat("asker", producers=("PG",))
        answer = await reply(responder)
        assert answer.code == ResponseCode.SUCCESS
        assert answer.decode(SendResponse).message_id == "0"
        assert (await responder.pull(REPLY_TOPIC)).code != ResponseCode.SUCCESS
