"""ReceiveMessage: what is admitted, what is popped, and what becomes of messages that are not delivered."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from math import inf
from typing import Any

import pytest
from consume_rig import BROKER, GROUP, TOPIC, Held, PopBroker, Proxy
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.manual_clock import ManualClock
from tandemmq.errors import RequestRejected, TandemError, TopicNotFound
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.proxy.answer_budget import STALL_S
from tandemmq.proxy.handles import parse_receipt
from tandemmq.proxy.receiving import HANDED_BACK_MS
from tandemmq.proxy.renewal import RenewalOptions
from tandemmq.proxy.rpc import GrpcFailure
from tandemmq.proxy.schema import message_class
from tandemmq.proxy.statuses import Code, RpcRefused

ReceiveMessageRequest = message_class("ReceiveMessageRequest")


def request(**changes: Any) -> Any:
    values: dict[str, Any] = {
        "group": {"name": GROUP},
        "message_queue": {"topic": {"name": TOPIC}, "broker": {"name": BROKER}},
        "batch_size": 32,
        "invisible_duration": {"seconds": 30},
        "long_polling_timeout": {"seconds": 20},
        **changes,
    }
    return ReceiveMessageRequest(**{key: value for key, value in values.items() if value is not None})


class Answers:
    """The answers of one call. `stops_at`: the send that never returns, by its number."""

    def __init__(self, stops_at: int | None = None) -> None:
        self.sent: list[Any] = []
        self.stops_at = stops_at

    async def send(self, answers: Iterable[Any]) -> None:
        for answer in answers:
            await asyncio.sleep(0)
            if self.stops_at == len(self.sent):
                await asyncio.Event().wait()
            self.sent.append(answer)

    @property
    def kinds(self) -> list[str]:
        return [answer.WhichOneof("content") for answer in self.sent]

    @property
    def messages(self) -> list[Any]:
        return [answer.message for answer in self.sent if answer.WhichOneof("content") == "message"]


def make(*bodies: str, tags: str = "", **options: Any) -> Proxy:
    broker = PopBroker(ManualClock(), is_tandem=options.pop("is_tandem", True))
    broker.messages = [Held(body.encode(), tags) for body in bodies]
    return Proxy(broker, **options)


async def receive(proxy: Proxy, asked: Any, *, remaining_s: float = 23.0) -> Answers:
    answers = Answers()
    await proxy.receiving.handle_receive(proxy.caller(remaining_s), asked, answers.send)
    await settle()
    return answers


async def settle() -> None:
    for _ in range(60):
        await asyncio.sleep(0)


async def test_the_stream_is_a_status_the_messages_and_the_time_of_delivery() -> None:
    proxy = make("a", "b")
    answers = await receive(proxy, request())
    assert answers.kinds == ["status", "message", "message", "delivery_timestamp"]
    assert answers.sent[0].status.code == Code.OK
    first = answers.messages[0]
    assert (first.body, first.topic.name) == (b"a", TOPIC)
    assert first.system_properties.invisible_duration.seconds == 30
    receipt = parse_receipt(first.system_properties.receipt_handle)
    assert (receipt.handle.broker_name, receipt.log_offset, receipt.is_renewable) == (BROKER, 1_000, False)
    [header] = proxy.broker.asked_of(RequestCode.POP_MESSAGE)
    assert (header.queue_id, header.init_mode, header.invisible_ms, header.is_renewable) == (
        -1,
        1,
        30_000,
        None,
    )
    assert proxy.receiving.held_count == 0


async def test_a_poll_without_messages_is_answered_as_such() -> None:
    proxy = make()
    answers = await receive(proxy, request())
    assert answers.kinds == ["status", "delivery_timestamp"]
    assert answers.sent[0].status.code == Code.MESSAGE_NOT_FOUND
    proxy.broker.failures[RequestCode.POP_MESSAGE] = (ResponseCode.POLLING_FULL, "full")
    answers = await receive(proxy, request())
    assert answers.sent[0].status.code == Code.TOO_MANY_REQUESTS


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"batch_size": 0}, Code.BAD_REQUEST),
        ({"batch_size": -1}, Code.BAD_REQUEST),
        ({"invisible_duration": {"seconds": 9}}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_duration": {"seconds": 43_201}}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_duration": None}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"filter_expression": {"type": "TAG", "expression": "||"}}, Code.ILLEGAL_FILTER_EXPRESSION),
        ({"filter_expression": {"type": "SQL", "expression": "a >"}}, Code.ILLEGAL_FILTER_EXPRESSION),
        # No header of a request to a broker could hold these.
        ({"filter_expression": {"type": "TAG", "expression": "t" * 16_385}}, Code.ILLEGAL_FILTER_EXPRESSION),
        ({"attempt_id": "a" * 513}, Code.BAD_REQUEST),
        ({"group": {"name": "a b"}}, Code.ILLEGAL_CONSUMER_GROUP),
        ({"message_queue": {"topic": {"name": ""}}}, Code.ILLEGAL_TOPIC),
    ],
)
async def test_a_bad_request_is_refused_before_anything_is_popped(
    changes: dict[str, Any], code: Code
) -> None:
    proxy = make("a")
    with pytest.raises(RpcRefused) as refused:
        await receive(proxy, request(**changes))
    assert refused.value.code == code
    assert not proxy.broker.asked
    assert proxy.receiving.held_count == 0


async def test_a_topic_without_a_route_and_a_refusing_broker_are_reported() -> None:
    proxy = make()
    with pytest.raises(TopicNotFound):
        await receive(proxy, request(message_queue={"topic": {"name": "Gone"}}))
    proxy.broker.failures[RequestCode.POP_MESSAGE] = (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "no group")
    with pytest.raises(RequestRejected, match="no group"):
        await receive(proxy, request())
    assert not proxy.tasks.is_closed


async def test_the_settings_of_the_group_come_from_the_brokers() -> None:
    proxy = make("a")
    proxy.brokers.group_config = SubscriptionGroupConfig(name=GROUP, is_orderly=True)
    await receive(proxy, request(attempt_id="try-1", batch_size=100_000))
    [header] = proxy.broker.asked_of(RequestCode.POP_MESSAGE)
    assert (header.is_ordered, header.attempt_id, header.count_max) == (True, "try-1", 32)


async def test_a_message_tried_too_often_becomes_a_dead_letter() -> None:
    proxy = make("a", "b")
    proxy.brokers.group_config = SubscriptionGroupConfig(name=GROUP, retry_count_max=2)
    proxy.broker.messages[0].retry_count = 3
    answers = await receive(proxy, request())
    assert [message.body for message in answers.messages] == [b"b"]
    [dead] = proxy.broker.dead
    assert (dead.log_offset, dead.delay_level, dead.original_message_id) == (1_000, -1, "key-0")
    assert proxy.broker.messages[0].is_done
    assert not proxy.broker.messages[1].is_done
    proxy.brokers.group_config = SubscriptionGroupConfig(name=GROUP, retry_count_max=-1)
    proxy.broker.messages = [Held(b"c", retry_count=1_000)]
    assert len((await receive(proxy, request())).messages) == 1


async def test_a_message_whose_tag_only_has_the_same_hash_is_acknowledged_silently() -> None:
    proxy = make("a", tags="BB")
    answers = await receive(proxy, request(filter_expression={"type": "TAG", "expression": "Aa"}))
    assert answers.sent[0].status.code == Code.MESSAGE_NOT_FOUND
    assert proxy.broker.messages[0].is_done


async def test_a_push_consumer_gets_a_handle_that_lives_as_long_as_its_renewals() -> None:
    proxy = make("a", renewal_options=RenewalOptions(invisible_ms=40_000, life_ms=90_000))
    answers = await receive(proxy, request(auto_renew=True, invisible_duration=None))
    [message] = answers.messages
    receipt = parse_receipt(message.system_properties.receipt_handle)
    assert (receipt.handle.invisible_ms, receipt.life_ms) == (40_000, 90_000)
    assert len(proxy.renewal) == 1


async def test_at_a_broker_without_renewals_in_place_the_handle_says_when_it_ends() -> None:
    proxy = make("a", is_tandem=False)
    [message] = (await receive(proxy, request(auto_renew=True))).messages
    assert not parse_receipt(message.system_properties.receipt_handle).is_renewable
    assert len(proxy.renewal) == 1


CANCELLED_AT = range(40)


@pytest.mark.parametrize("turns", CANCELLED_AT)
@pytest.mark.parametrize("auto_renew", [False, True])
async def test_a_receive_that_is_cancelled_at_any_point_hides_no_message(
    turns: int, auto_renew: bool
) -> None:
    """The call is cancelled after a number of turns of the loop. Unless the whole answer was written, its
    messages are visible in a second, and the delivery did not count.
    """
    proxy = make("a", "b", "c")
    answers = Answers()
    call = asyncio.ensure_future(
        proxy.receiving.handle_receive(proxy.caller(), request(auto_renew=auto_renew), answers.send)
    )
    for _ in range(turns):
        await asyncio.sleep(0)
    is_over = call.done()
    call.cancel()
    await settle()
    assert call.done()
    assert is_over is (answers.kinds[-1:] == ["delivery_timestamp"])
    for message, visible_in_ms in zip(proxy.broker.messages, proxy.broker.visible_in_ms(), strict=True):
        if is_over:
            assert visible_in_ms == (60_000 if auto_renew else 30_000)
        else:
            assert visible_in_ms is not None
            assert visible_in_ms <= 1_000
            assert message.is_suspended or message.pop_time_ms == 0
    assert proxy.receiving.held_count == 0
    assert len(proxy.renewal) == (3 if is_over and auto_renew else 0)
    assert not proxy.tasks
    assert not proxy.tasks.is_closed


def test_the_cancellations_reach_every_point() -> None:
    """The last cancellation of the test before comes when the call is over."""

    async def count() -> int:
        proxy, answers = make("a", "b", "c"), Answers()
        call = asyncio.ensure_future(proxy.receiving.handle_receive(proxy.caller(), request(), answers.send))
        turns = 0
        while not call.done():
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert 10 < asyncio.run(count()) < len(CANCELLED_AT)


async def test_a_pop_that_the_broker_answers_after_the_call_is_handed_back() -> None:
    proxy = make("a", "b")
    proxy.broker.gate = asyncio.Event()
    call = asyncio.ensure_future(proxy.receiving.handle_receive(proxy.caller(), request(), Answers().send))
    await settle()
    call.cancel()
    await settle()
    assert proxy.receiving.held_count == 1, "the broker still holds it"
    [pop] = proxy.broker.asked_of(RequestCode.POP_MESSAGE)
    [end] = proxy.broker.asked_of(RequestCode.POLLING_INFO)
    assert end.ended_poll_id == pop.poll_id
    proxy.broker.gate.set()
    await settle()
    assert proxy.receiving.held_count == 0
    assert proxy.broker.visible_in_ms() == [1_000, 1_000]
    proxy.broker.clock.advance(1)
    answers = await receive(proxy, request())
    assert [message.system_properties.delivery_attempt for message in answers.messages] == [1, 1]


async def test_a_failed_write_hands_back_all_messages_of_the_answer() -> None:
    """Clients discard the messages of a failed call: a renewed one would be hidden for hours."""
    proxy = make("a", "b", "c")

    async def send(answers: Iterable[Any]) -> None:
        for answer in answers:
            if answer.WhichOneof("content") == "message" and answer.message.body == b"b":
                raise ConnectionError("the connection is lost")

    with pytest.raises(ConnectionError):
        await proxy.receiving.handle_receive(proxy.caller(), request(auto_renew=True), send)
    await settle()
    assert proxy.clients.is_alive("c1"), "it has connected again"
    assert proxy.broker.visible_in_ms() == [1_000, 1_000, 1_000]
    assert len(proxy.renewal) == 0


async def test_too_many_held_receives_are_refused_and_stopping_answers_them() -> None:
    proxy = make("a", held_receives_max=1)
    proxy.broker.gate = asyncio.Event()
    answers = Answers()
    call = asyncio.ensure_future(proxy.receiving.handle_receive(proxy.caller(), request(), answers.send))
    await settle()
    with pytest.raises(RpcRefused) as refused:
        await receive(proxy, request())
    assert refused.value.code == Code.TOO_MANY_REQUESTS
    proxy.receiving.stop()
    await call
    assert answers.sent[0].status.code == Code.MESSAGE_NOT_FOUND
    ended = asyncio.ensure_future(proxy.receiving.wait_ended(20))
    await settle()
    assert not ended.done()
    proxy.broker.gate.set()
    await ended
    assert (proxy.receiving.held_count, proxy.broker.visible_in_ms()) == (0, [1_000])
    await proxy.receiving.wait_ended(20)


async def test_a_receive_that_comes_while_the_proxy_stops_is_not_held() -> None:
    """Its client did not know of the stop yet, or its topic was looked up meanwhile."""
    proxy = make("a")
    proxy.receiving.stop()
    answers = await receive(proxy, request())
    assert answers.sent[0].status.code == Code.MESSAGE_NOT_FOUND
    assert not proxy.broker.asked_of(RequestCode.POP_MESSAGE)


NAMES = st.sampled_from(["", "T", "G", "Gone", "a b", "%RETRY%G", "TBW102", "x" * 300, "ä"])
SPANS = st.none() | st.fixed_dictionaries(
    {"seconds": st.integers(-(2**63), 2**63 - 1), "nanos": st.integers(-(2**31), 2**31 - 1)}
)


@settings(max_examples=200, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "group": st.fixed_dictionaries({"name": NAMES}),
            "message_queue": st.fixed_dictionaries(
                {
                    "topic": st.fixed_dictionaries({"name": NAMES}),
                    "broker": st.fixed_dictionaries({"name": NAMES | st.just(BROKER)}),
                    "id": st.integers(-(2**31), 2**31 - 1),
                }
            ),
            "filter_expression": st.fixed_dictionaries(
                {"type": st.integers(0, 9), "expression": st.text(max_size=30)}
            ),
            "batch_size": st.integers(-(2**31), 2**31 - 1),
            "invisible_duration": SPANS,
            "long_polling_timeout": SPANS,
            "auto_renew": st.booleans(),
            "attempt_id": st.none() | st.text(max_size=50),
        }
    ),
    st.just(inf) | st.floats(-10, 1e9),
)
def test_any_request_is_served_or_refused(fields: dict[str, Any], remaining_s: float) -> None:
    async def ask() -> None:
        proxy = make("a")
        with contextlib.suppress(TandemError):
            await receive(proxy, request(**fields), remaining_s=remaining_s)
        await settle()
        assert not proxy.tasks.is_closed
        assert proxy.receiving.held_count == 0

    asyncio.run(ask())


async def test_clients_that_do_not_read_bound_what_is_popped() -> None:
    proxy = make("a" * 5_000, "b" * 5_000, answer_bytes_max=6_000)
    one = request(batch_size=1, invisible_duration={"seconds": 60})
    stalled = asyncio.ensure_future(
        proxy.receiving.handle_receive(proxy.caller(), one, Answers(stops_at=1).send)
    )
    await settle()
    assert proxy.answers.byte_count > 5_000
    popped = len(proxy.broker.asked_of(RequestCode.POP_MESSAGE))
    with pytest.raises(RpcRefused) as refused:
        await receive(proxy, one)
    assert refused.value.code == Code.TOO_MANY_REQUESTS
    assert len(proxy.broker.asked_of(RequestCode.POP_MESSAGE)) == popped == 1
    proxy.clock.advance(STALL_S)
    assert (await receive(proxy, one)).messages[0].body == b"b" * 5_000
    with pytest.raises(GrpcFailure):
        await stalled
    await settle()
    assert proxy.broker.messages[0].visible_at_ms - proxy.clock.now_ms() == HANDED_BACK_MS
    assert proxy.answers.byte_count == 0


async def test_a_pop_that_returns_when_the_memory_is_full_is_handed_back() -> None:
    proxy = make("a" * 5_000, "b" * 5_000, answer_bytes_max=6_000)
    proxy.broker.gate = asyncio.Event()
    one = request(batch_size=1)
    stalled = asyncio.ensure_future(
        proxy.receiving.handle_receive(proxy.caller(), one, Answers(stops_at=1).send)
    )
    held = asyncio.ensure_future(receive(proxy, one))
    await settle()
    assert len(proxy.broker.asked_of(RequestCode.POP_MESSAGE)) == 2
    proxy.broker.gate.set()
    with pytest.raises(RpcRefused):
        await held
    await settle()
    assert [message.is_suspended for message in proxy.broker.messages] == [False, True]
    stalled.cancel()
    await settle()
