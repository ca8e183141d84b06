"""A tool's queries to a consumer, forwarded by the broker (spec semantics 15)."""

from __future__ import annotations

from pathlib import Path

import pytest
from broker_rig import Peer, consumer, running_broker

from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.record import decode_record
from tandemmq.protocol.requests.admin import ConsumeDirectlyRequest, RunningInfoRequest
from tandemmq.remoting.channel import Channel


async def test_consumer_is_asked_and_its_answer_relayed(tmp_path: Path) -> None:
    asked: list[Command] = []

    def answer(channel: Channel, command: Command) -> Command:
        asked.append(command)
        return command.reply(body=b"{}", remark="mine")

    codes = (RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY)
    routes = {int(code): answer for code in codes}
    async with running_broker(tmp_path) as broker, Peer(broker, routes) as member, Peer(broker) as tool:
        sent = await member.send_ok("T1", b"stored")
        await member.heartbeat("c1", consumer("CG", "T1"))
        info = await tool.ask(
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            RunningInfoRequest(consumer_group="CG", client_id="c1", has_stack=True),
        )
        assert (info.code, info.body, info.remark) == (0, b"{}", "mine")
        header = asked[0].decode(RunningInfoRequest)
        assert (header.consumer_group, header.client_id, header.has_stack) == ("CG", "c1", True)

        question = ConsumeDirectlyRequest(
            consumer_group="CG", client_id="c1", message_id=sent.message_id, topic="T1"
        )
        assert (await tool.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, question)).body == b"{}"
        assert decode_record(asked[1].body).body == b"stored"
        directly = asked[1].decode(ConsumeDirectlyRequest)
        assert (directly.broker_name, directly.topic_sys_flag, directly.group_sys_flag) == ("broker-a", 0, 0)


@pytest.mark.parametrize(
    ("code", "header"),
    [
        (
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            RunningInfoRequest(consumer_group="CG", client_id="nobody"),
        ),
        (
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            ConsumeDirectlyRequest(consumer_group="CG", client_id="c1", message_id="0" * 32),
        ),
        (
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            ConsumeDirectlyRequest(consumer_group="CG", client_id="c1", message_id="no id"),
        ),
    ],
    ids=["offline", "no message", "no id"],
)
async def test_questions_that_reach_no_consumer(
    tmp_path: Path, code: RequestCode, header: RunningInfoRequest | ConsumeDirectlyRequest
) -> None:
    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        await peer.heartbeat("c1", consumer("CG", "T1"))
        assert (await peer.ask(code, header)).code == ResponseCode.SYSTEM_ERROR


async def test_consumer_that_leaves_is_told(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, Peer(broker) as tool:

        def leave(channel: Channel, command: Command) -> None:
            channel.close()

        routes = {int(RequestCode.GET_CONSUMER_RUNNING_INFO): leave}
        async with Peer(broker, routes) as member:
            await member.heartbeat("c1", consumer("CG", "T1"))
            header = RunningInfoRequest(consumer_group="CG", client_id="c1")
            answer = await tool.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, header)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "c1" in (answer.remark or "")
