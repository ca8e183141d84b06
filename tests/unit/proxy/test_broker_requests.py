"""Requests of brokers that become commands to clients: spec proxy 4.3, 5.8."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from sim.dice import Dice
from sim.manual_clock import ManualClock
from tandemmq.errors import Busy, RequestRejected, TandemError
from tandemmq.protocol.bodies.client import DirectlyConsumed
from tandemmq.protocol.bodies.codec import decode_body
from tandemmq.protocol.bodies.stats import decode_running_info
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.record_layout import NewRecord, encode_record
from tandemmq.protocol.requests.admin import ConsumeDirectlyRequest, RunningInfoRequest
from tandemmq.protocol.requests.send import CheckTransactionRequest
from tandemmq.proxy.broker_requests import RelayedRequests
from tandemmq.proxy.clients import Clients, CommandStream, TelemetryCommand
from tandemmq.proxy.schema import message_class
from tandemmq.proxy.settings import ClientRole, Profile, Subscribed
from tandemmq.proxy.transaction_ids import parse_transaction_id
from tandemmq.remoting.channel import Channel
from tandemmq.runtime.tasks import TaskScope
from unit.proxy.calls import FakeCall, caller
from waits import until

CHANNEL = cast(Channel, None)
PRODUCER = Profile(ClientRole.PRODUCER, topics=("T",))
CONSUMER = Profile(ClientRole.PUSH_CONSUMER, group="G", subscriptions=(Subscribed("T", "a", "TAG"),))


def record(topic: str = "T", **properties: str) -> bytes:
    new = NewRecord(
        topic=topic,
        queue_id=0,
        body=b"x",
        properties=encode_properties({"UNIQ_KEY": "u", **properties}),
        born_at_ms=1_000,
        born_host=bytes(8),
    )
    return bytes(encode_record(new, queue_offset=7, log_offset=900, stored_at_ms=2_000, store_host=bytes(8)))


def check(**changes: Any) -> Command:
    fields: dict[str, Any] = {
        "half_queue_offset": 7,
        "log_offset": 900,
        "topic": "RMQ_SYS_TRANS_HALF_TOPIC",
        "unique_key": "u",
        "broker_name": "broker-a",
    }
    header = CheckTransactionRequest(**{**fields, **changes})
    body = record(TRAN_MSG="true", PGROUP="T")
    return Command.request(RequestCode.CHECK_TRANSACTION_STATE, header, body=body, oneway=True)


class Proxy:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.clients = Clients(clock=self.clock, chance=Dice(1))
        self.tasks = TaskScope("proxy")
        self.requests = RelayedRequests(self.clients, self.clock)

    def connect(self, client_id: str, profile: Profile, **settings: Any) -> FakeCall:
        call = FakeCall(ends=False)
        stream = CommandStream(call)
        stream.has_settings = True
        self.clients.register(caller(client_id), profile, message_class("Settings")(**settings), stream)
        self.tasks.start("writer", stream.write())
        return call

    async def sent(self, call: FakeCall) -> Any:
        """The next command to the client."""
        await until(lambda: call.sent)
        return TelemetryCommand.FromString(call.sent.pop(0))


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    made = Proxy()
    yield made
    await made.tasks.close()
    assert made.tasks.failure is None


async def test_a_check_goes_to_a_producer_of_the_topic(proxy: Proxy) -> None:
    call = proxy.connect("p", PRODUCER)
    other = proxy.connect("c", CONSUMER)
    proxy.requests.handle_check(CHANNEL, check())
    command = (await proxy.sent(call)).recover_orphaned_transaction_command
    assert command.message.topic.name == "T"
    assert command.message.body == b"x"
    assert command.message.system_properties.message_id == "u"
    assert command.message.system_properties.receipt_handle == ""
    assert parse_transaction_id(command.transaction_id) == ("broker-a", 7, 900, "u")
    assert other.sent == []


async def test_a_check_goes_to_a_sender_whose_settings_name_no_topic(proxy: Proxy) -> None:
    call = proxy.connect("p", Profile(ClientRole.PRODUCER))
    proxy.clients.note_transaction("T", "p")
    proxy.requests.handle_check(CHANNEL, check())
    assert (await proxy.sent(call)).WhichOneof("command") == "recover_orphaned_transaction_command"


async def test_a_check_without_a_producer_is_dropped(proxy: Proxy) -> None:
    proxy.requests.handle_check(CHANNEL, check())
    call = proxy.connect("p", PRODUCER)
    proxy.requests.handle_check(CHANNEL, check(broker_name=None))
    assert proxy.requests.unanswered_checks == 2
    assert call.sent == []


async def test_running_info_has_the_stacks_only_when_asked(proxy: Proxy) -> None:
    call = proxy.connect("c", CONSUMER, subscription={"fifo": True})
    plain = Command.request(RequestCode.GET_CONSUMER_RUNNING_INFO, RunningInfoRequest("G", "c"))
    info = decode_running_info((await proxy.requests.handle_running_info(CHANNEL, plain)).body)
    assert info.stack is None
    assert info.properties["PROP_CONSUMEORDERLY"] == "true"
    assert [one.topic for one in info.subscriptions] == ["T"]
    asking = proxy.tasks.start(
        "ask",
        proxy.requests.handle_running_info(
            CHANNEL,
            Command.request(RequestCode.GET_CONSUMER_RUNNING_INFO, RunningInfoRequest("G", "c", True)),
        ),
    )
    nonce = (await proxy.sent(call)).print_thread_stack_trace_command.nonce
    answer = TelemetryCommand(thread_stack_trace={"nonce": nonce, "thread_stack_trace": "main waits"})
    proxy.clients.answer("c", nonce, answer)
    assert decode_running_info((await asking).body).stack == "main waits"


@pytest.mark.parametrize(
    ("code", "result"),
    [
        (20000, "CR_SUCCESS"),
        (60000, "CR_LATER"),
        (40016, "CR_RETURN_NULL"),
        (50502, "CR_THROW_EXCEPTION"),
        (0, "CR_THROW_EXCEPTION"),
    ],
)
async def test_a_consumer_consumes_one_message_for_a_tool(proxy: Proxy, code: int, result: str) -> None:
    call = proxy.connect("c", CONSUMER)
    asking = proxy.tasks.start(
        "ask",
        proxy.requests.handle_consume_directly(
            CHANNEL,
            Command.request(
                RequestCode.CONSUME_MESSAGE_DIRECTLY,
                ConsumeDirectlyRequest(consumer_group="G", client_id="c"),
                body=record("%RETRY%G", RETRY_TOPIC="T"),
            ),
        ),
    )
    command = (await proxy.sent(call)).verify_message_command
    assert command.message.topic.name == "T"
    proxy.clock.advance(2)
    answer = TelemetryCommand(
        status={"code": code, "message": "why"}, verify_message_result={"nonce": command.nonce}
    )
    proxy.clients.answer("c", command.nonce, answer)
    consumed = decode_body(bytes((await asking).body), DirectlyConsumed)
    assert (consumed.result, consumed.remark, consumed.took_ms) == (result, "why", 2000)


async def failure_of(asking: Any) -> TandemError | None:
    try:
        await asking
    except TandemError as error:
        return error
    return None


async def test_an_unknown_or_silent_consumer_is_an_answer(proxy: Proxy) -> None:
    header = ConsumeDirectlyRequest(consumer_group="G", client_id="c")
    asked = Command.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, header, body=record())
    error = await failure_of(proxy.requests.handle_consume_directly(CHANNEL, asked))
    assert isinstance(error, RequestRejected)
    call = proxy.connect("c", CONSUMER)
    asking = proxy.tasks.start("ask", failure_of(proxy.requests.handle_consume_directly(CHANNEL, asked)))
    await proxy.sent(call)
    proxy.clock.advance(5)
    error = await asking
    assert isinstance(error, Busy)
    assert error.code == 2


async def test_a_body_that_is_no_message_is_refused(proxy: Proxy) -> None:
    proxy.connect("c", CONSUMER)
    header = ConsumeDirectlyRequest(consumer_group="G", client_id="c")
    asked = Command.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, header, body=b"junk")
    assert await failure_of(proxy.requests.handle_consume_directly(CHANNEL, asked)) is not None


def test_every_connection_serves_the_same_requests() -> None:
    routes = Proxy().requests.routes()
    notice = Command.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, oneway=True)
    assert routes[RequestCode.NOTIFY_CONSUMER_IDS_CHANGED](CHANNEL, notice) is None
    assert set(routes) == {39, 40, 220, 307, 309}
