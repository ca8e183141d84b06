"""PullMessage and the offset rpcs (spec proxy 5.15), and lite topics (5.16)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest
from consume_rig import BROKER, GROUP, TOPIC, Held, OneBroker, PopBroker, Proxy

from sim.manual_clock import ManualClock
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests import consume as headers
from tandemmq.proxy.offsets import PullConsumerHandlers
from tandemmq.proxy.schema import message_class
from tandemmq.proxy.statuses import Code, RpcRefused
from unit.proxy.cores import make_core

PullMessageRequest = message_class("PullMessageRequest")

QUEUE: dict[str, Any] = {"topic": {"name": TOPIC}, "id": 0, "broker": {"name": BROKER}}


class PullBroker(PopBroker):
    """Answers pulls with its messages, and offsets with what `answers` has for the request."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.answers: dict[int, Callable[[Command], Command]] = {}
        self.pull_code = ResponseCode.SUCCESS

    async def request(self, address: str, command: Command, timeout_s: float) -> Command:
        self.asked.append(command)
        if command.code != RequestCode.PULL_MESSAGE:
            return self.answers[command.code](command)
        header = command.header
        assert isinstance(header, headers.PullRequest)
        records = [
            self._record(offset, message)
            for offset, message in enumerate(self.messages)
            if offset >= header.queue_offset
        ][: header.count_max]
        response = headers.PullResponse(
            suggested_broker_id=0,
            next_offset=header.queue_offset + len(records),
            min_offset=0,
            max_offset=len(self.messages),
        )
        code = self.pull_code if records else ResponseCode.PULL_NOT_FOUND
        return command.reply(code, response, body=b"".join(records) if code == 0 else b"")


def make(*bodies: str, **options: Any) -> tuple[PullBroker, PullConsumerHandlers]:
    broker = PullBroker()
    broker.messages = [Held(body.encode(), "t") for body in bodies]
    core = make_core(brokers=OneBroker(broker, broker.clock), clock=broker.clock)
    return broker, PullConsumerHandlers(core, **options)


async def pull(handlers: PullConsumerHandlers, **changes: Any) -> list[Any]:
    caller = Proxy(cast(PullBroker, handlers.core.brokers.remoting)).caller(changes.pop("remaining_s", 23.0))
    asked = PullMessageRequest(
        **{
            "group": {"name": GROUP},
            "message_queue": QUEUE,
            "offset": 0,
            "batch_size": 16,
            "long_polling_timeout": {"seconds": 10},
            **changes,
        }
    )
    answers: list[Any] = []

    async def send(elements: Iterable[Any]) -> None:
        answers.extend(elements)

    await handlers.handle_pull(caller, asked, send)
    return answers


async def test_a_pull_streams_a_status_the_messages_and_the_next_offset() -> None:
    broker, handlers = make("a", "b", "c")
    answers = await pull(handlers, offset=1)
    assert answers[0].status.code == Code.OK
    assert [answer.message.body for answer in answers[1:-1]] == [b"b", b"c"]
    assert not any(answer.message.system_properties.receipt_handle for answer in answers[1:-1])
    assert answers[-1].next_offset == 3
    [header] = broker.asked_of(RequestCode.PULL_MESSAGE)
    assert (header.suspend_timeout_ms, header.subscription, header.commits_offset) == (10_000, "*", False)


async def test_a_pull_that_finds_nothing_says_where_to_continue() -> None:
    broker, handlers = make("a")
    answers = await pull(handlers, offset=1)
    assert [answer.WhichOneof("content") for answer in answers] == ["status", "next_offset"]
    assert answers[0].status.code == Code.MESSAGE_NOT_FOUND
    broker.pull_code = ResponseCode.PULL_OFFSET_MOVED
    assert (await pull(handlers))[0].status.code == Code.ILLEGAL_OFFSET


async def test_a_pull_is_held_within_the_callers_time_and_filters_by_text() -> None:
    broker, handlers = make("a")
    answers = await pull(
        handlers,
        remaining_s=2.0,
        batch_size=1_000,
        filter_expression={"type": "TAG", "expression": "other"},
    )
    assert answers[0].status.code == Code.MESSAGE_NOT_FOUND
    assert answers[-1].next_offset == 1
    [header] = broker.asked_of(RequestCode.PULL_MESSAGE)
    assert (header.suspend_timeout_ms, header.count_max, header.subscription) == (1_700, 32, "other")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"offset": -1}, Code.ILLEGAL_OFFSET),
        ({"batch_size": 0}, Code.BAD_REQUEST),
        ({"message_queue": {**QUEUE, "broker": {}}}, Code.BAD_REQUEST),
        ({"message_queue": {**QUEUE, "id": -1}}, Code.BAD_REQUEST),
        ({"filter_expression": {"type": "SQL", "expression": "("}}, Code.ILLEGAL_FILTER_EXPRESSION),
        ({"filter_expression": {"type": "TAG", "expression": "t" * 16_385}}, Code.ILLEGAL_FILTER_EXPRESSION),
    ],
)
async def test_a_bad_pull_is_refused(changes: dict[str, Any], code: Code) -> None:
    broker, handlers = make()
    with pytest.raises(RpcRefused) as refused:
        await pull(handlers, **changes)
    assert refused.value.code == code
    assert not broker.asked


async def test_pulls_are_bounded() -> None:
    _, handlers = make(held_count_max=0)
    with pytest.raises(RpcRefused) as refused:
        await pull(handlers)
    assert refused.value.code == Code.TOO_MANY_REQUESTS


async def ask(handlers: PullConsumerHandlers, name: str, **fields: Any) -> Any:
    handle = {
        "UpdateOffset": handlers.handle_update,
        "GetOffset": handlers.handle_get,
        "QueryOffset": handlers.handle_query,
        "SyncLiteSubscription": handlers.handle_lite,
    }[name]
    caller = Proxy(cast(PullBroker, handlers.core.brokers.remoting)).caller()
    return await handle(caller, message_class(f"{name}Request")(**fields))


async def test_offsets_of_a_group_are_stored_and_returned() -> None:
    broker, handlers = make()
    named = {"group": {"name": GROUP}, "message_queue": QUEUE}
    broker.answers[RequestCode.UPDATE_CONSUMER_OFFSET] = lambda command: command.reply()
    assert (await ask(handlers, "UpdateOffset", **named, offset=7)).status.code == Code.OK
    [header] = broker.asked_of(RequestCode.UPDATE_CONSUMER_OFFSET)
    assert header.committed_offset == 7
    broker.answers[RequestCode.QUERY_CONSUMER_OFFSET] = lambda command: command.reply(
        0, headers.QueryOffsetResponse(offset=7)
    )
    assert (await ask(handlers, "GetOffset", **named)).offset == 7
    broker.answers[RequestCode.QUERY_CONSUMER_OFFSET] = lambda command: command.reply(
        ResponseCode.QUERY_NOT_FOUND, headers.QueryOffsetResponse(offset=-1)
    )
    for name, fields, code in (
        ("GetOffset", {}, Code.OFFSET_NOT_FOUND),
        ("UpdateOffset", {"offset": -1}, Code.ILLEGAL_OFFSET),
    ):
        with pytest.raises(RpcRefused) as refused:
            await ask(handlers, name, **named, **fields)
        assert refused.value.code == code


async def test_offsets_of_a_queue_are_its_begin_its_end_and_a_time() -> None:
    broker, handlers = make()
    broker.answers = {
        RequestCode.GET_MIN_OFFSET: lambda command: command.reply(0, headers.GetMinOffsetResponse(offset=1)),
        RequestCode.GET_MAX_OFFSET: lambda command: command.reply(0, headers.GetMaxOffsetResponse(offset=9)),
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: lambda command: command.reply(
            0, headers.SearchOffsetResponse(offset=5)
        ),
    }
    queue: dict[str, Any] = {"message_queue": QUEUE}
    assert (await ask(handlers, "QueryOffset", **queue)).offset == 1
    assert (await ask(handlers, "QueryOffset", **queue, query_offset_policy="END")).offset == 9
    at: dict[str, Any] = {"query_offset_policy": "TIMESTAMP", "timestamp": {"seconds": 3, "nanos": 5_000_000}}
    assert (await ask(handlers, "QueryOffset", **queue, **at)).offset == 5
    [search] = broker.asked_of(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
    assert search.timestamp_ms == 3_005
    for seconds, sent_ms in ((-(2**63), 0), (2**63 - 1, 253_402_300_799_999)):
        # Brokers refuse a number beyond 64 bits, and clients would repeat the request.
        await ask(handlers, "QueryOffset", **queue, **{**at, "timestamp": {"seconds": seconds}})
        assert broker.asked_of(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)[-1].timestamp_ms == sent_ms
    for policy in ("TIMESTAMP", 7):
        with pytest.raises(RpcRefused) as refused:
            await ask(handlers, "QueryOffset", **queue, query_offset_policy=policy)
        assert refused.value.code == Code.BAD_REQUEST


async def test_lite_topics_are_not_supported() -> None:
    _, handlers = make()
    with pytest.raises(RpcRefused) as refused:
        await ask(handlers, "SyncLiteSubscription")
    assert refused.value.code == Code.UNSUPPORTED
