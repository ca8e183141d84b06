"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue (spec proxy 5.12 to 5.14)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from consume_rig import BROKER, GROUP, TOPIC, Held, PopBroker, Proxy, handle_of
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.manual_clock import START_MS, ManualClock
from tandemmq.errors import RequestRejected
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.proxy.acknowledging import ENTRIES_MAX
from tandemmq.proxy.handles import parse_receipt
from tandemmq.proxy.schema import message_class
from tandemmq.proxy.statuses import Code, RpcRefused

AckMessageRequest = message_class("AckMessageRequest")
ChangeInvisibleDurationRequest = message_class("ChangeInvisibleDurationRequest")
ForwardRequest = message_class("ForwardMessageToDeadLetterQueueRequest")
ReceiveMessageRequest = message_class("ReceiveMessageRequest")

NAMES: dict[str, Any] = {"group": {"name": GROUP}, "topic": {"name": TOPIC}}


def make(*bodies: str, is_tandem: bool = True) -> Proxy:
    broker = PopBroker(ManualClock(), is_tandem=is_tandem)
    broker.messages = [Held(body.encode()) for body in bodies]
    return Proxy(broker)


async def receive(proxy: Proxy, **changes: Any) -> list[str]:
    """Returns the handles of the messages."""
    asked = ReceiveMessageRequest(
        group={"name": GROUP},
        message_queue={"topic": {"name": TOPIC}},
        batch_size=32,
        **{"invisible_duration": {"seconds": 30}, **changes},
    )
    handles = []

    async def send(answers: Iterable[Any]) -> None:
        for answer in answers:
            if answer.WhichOneof("content") == "message":
                handles.append(answer.message.system_properties.receipt_handle)

    await proxy.receiving.handle_receive(proxy.caller(), asked, send)
    return handles


async def ack(proxy: Proxy, *handles: str) -> Any:
    entries = [{"message_id": str(place), "receipt_handle": text} for place, text in enumerate(handles)]
    return await proxy.receipts.handle_ack(proxy.caller(), AckMessageRequest(**NAMES, entries=entries))


async def change(proxy: Proxy, handle: str, seconds: int, **changes: Any) -> Any:
    asked = ChangeInvisibleDurationRequest(
        **NAMES, receipt_handle=handle, invisible_duration={"seconds": seconds}, **changes
    )
    return await proxy.receipts.handle_change(proxy.caller(), asked)


async def test_each_entry_has_its_own_status_in_the_order_of_the_request() -> None:
    proxy = make("a", "b")
    first, second = await receive(proxy)
    answer = await ack(proxy, first, "nonsense", second)
    assert answer.status.code == Code.MULTIPLE_RESULTS
    assert [entry.status.code for entry in answer.entries] == [
        Code.OK,
        Code.INVALID_RECEIPT_HANDLE,
        Code.OK,
    ]
    assert [entry.message_id for entry in answer.entries] == ["0", "1", "2"]
    assert [entry.receipt_handle for entry in answer.entries] == [first, "nonsense", second]
    assert proxy.broker.visible_in_ms() == [None, None]
    assert [header.is_strict for header in proxy.broker.asked_of(RequestCode.ACK_MESSAGE)] == [True, True]


async def test_entries_of_one_result_share_their_status() -> None:
    proxy = make("a", "b")
    assert (await ack(proxy, *await receive(proxy))).status.code == Code.OK
    assert (await ack(proxy, "x", "y")).status.code == Code.INVALID_RECEIPT_HANDLE


@pytest.mark.parametrize("count", [0, ENTRIES_MAX + 1])
async def test_the_number_of_entries_is_bounded(count: int) -> None:
    proxy = make()
    with pytest.raises(RpcRefused) as refused:
        await ack(proxy, *["x"] * count)
    assert refused.value.code == Code.BAD_REQUEST


async def test_an_expired_handle_is_refused_without_asking_the_broker() -> None:
    proxy = make("a")
    [handle] = await receive(proxy)
    proxy.broker.clock.advance(30)
    assert (await ack(proxy, handle)).entries[0].status.code == Code.INVALID_RECEIPT_HANDLE
    assert (await change(proxy, handle, 10)).status.code == Code.INVALID_RECEIPT_HANDLE
    assert not proxy.broker.asked_of(RequestCode.ACK_MESSAGE)


@pytest.mark.parametrize("ahead_s", [3_600, -3_600])
async def test_a_proxy_with_a_wrong_clock_accepts_and_refuses_as_others_do(ahead_s: int) -> None:
    """Handles expire by the clock of the broker that made them."""
    broker = make("a", "b").broker
    clock = ManualClock(broker.clock.now_ms() + ahead_s * 1_000)
    proxy = Proxy(broker, clock=clock)
    first, second = await receive(proxy)
    assert (await ack(proxy, first)).status.code == Code.OK
    broker.clock.advance(30)
    clock.advance(30)
    assert (await ack(proxy, second)).entries[0].status.code == Code.INVALID_RECEIPT_HANDLE


@pytest.mark.parametrize("auto_renew", [False, True])
async def test_any_proxy_accepts_the_handle_of_any_other(auto_renew: bool) -> None:
    """The second proxy never met the client, and the first one is gone."""
    proxy = make("a", "b", "c")
    first, second, third = await receive(proxy, auto_renew=auto_renew)
    other = Proxy(proxy.broker)
    await proxy.tasks.close()
    assert (await ack(other, first)).status.code == Code.OK
    assert (await change(other, second, 10)).status.code == Code.OK
    asked = ForwardRequest(**NAMES, receipt_handle=third, message_id="key-2")
    assert (await other.receipts.handle_forward(other.caller(), asked)).status.code == Code.OK
    assert other.broker.visible_in_ms() == [None, 10_000, None]


async def test_a_change_returns_a_new_handle_with_nine_fields() -> None:
    proxy = make("a")
    [handle] = await receive(proxy)
    answer = await change(proxy, handle, 100)
    assert answer.status.code == Code.OK
    new = parse_receipt(answer.receipt_handle)
    assert (new.log_offset, new.handle.invisible_ms, new.is_renewable) == (1_000, 100_000, False)
    assert (await ack(proxy, handle)).status.code == Code.INVALID_RECEIPT_HANDLE
    assert (await ack(proxy, answer.receipt_handle)).status.code == Code.OK


async def test_a_message_may_be_put_off_untried() -> None:
    proxy = make("a")
    [handle] = await receive(proxy)
    await change(proxy, handle, 0, suspend=True)
    assert (proxy.broker.visible_in_ms(), proxy.broker.messages[0].is_suspended) == ([0], True)


@pytest.mark.parametrize(
    ("seconds", "changes", "code"),
    [
        (-1, {}, Code.ILLEGAL_INVISIBLE_TIME),
        (43_201, {}, Code.ILLEGAL_INVISIBLE_TIME),
        (10, {"group": {"name": ""}}, Code.ILLEGAL_CONSUMER_GROUP),
        (10, {"topic": {"name": "Gone"}}, Code.TOPIC_NOT_FOUND),
    ],
)
async def test_a_failed_change_returns_the_handle_that_was_sent(
    seconds: int, changes: dict[str, Any], code: Code
) -> None:
    proxy = make("a")
    [handle] = await receive(proxy)
    asked = ChangeInvisibleDurationRequest(
        **{**NAMES, **changes}, receipt_handle=handle, invisible_duration={"seconds": seconds}
    )
    answer = await proxy.receipts.handle_change(proxy.caller(), asked)
    assert (answer.status.code, answer.receipt_handle) == (code, handle)


async def test_a_busy_broker_leaves_the_message_to_its_client() -> None:
    proxy = make("a")
    [handle] = await receive(proxy, auto_renew=True)
    for code in (RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME):
        proxy.broker.failures[code] = (ResponseCode.SYSTEM_BUSY, "busy")
    answer = await change(proxy, handle, 10)
    assert (answer.status.code, answer.receipt_handle) == (Code.TOO_MANY_REQUESTS, handle)
    assert (await ack(proxy, handle)).status.code == Code.TOO_MANY_REQUESTS
    assert len(proxy.renewal) == 1, "it is still renewed"


async def test_an_acknowledged_message_is_no_longer_renewed() -> None:
    proxy = make("a", "b", "c")
    first, second, third = await receive(proxy, auto_renew=True)
    await ack(proxy, first)
    await change(proxy, second, 10)
    assert len(proxy.renewal) == 1
    await proxy.receipts.handle_forward(
        proxy.caller(), ForwardRequest(**NAMES, receipt_handle=third, message_id="key-2")
    )
    assert len(proxy.renewal) == 0


async def test_a_dead_letter_is_copied_and_acknowledged() -> None:
    proxy = make("a")
    [handle] = await receive(proxy)
    asked = ForwardRequest(**NAMES, receipt_handle=handle, message_id="key-0")
    assert (await proxy.receipts.handle_forward(proxy.caller(), asked)).status.code == Code.OK
    [dead] = proxy.broker.dead
    assert (dead.log_offset, dead.delay_level, dead.group, dead.original_topic) == (1_000, -1, GROUP, TOPIC)
    assert proxy.broker.messages[0].is_done


@pytest.mark.parametrize("log_offset", [1_001, 1_002, 5])
async def test_a_dead_letter_is_the_message_of_its_handle(log_offset: int) -> None:
    """The position comes from the client: with another one the broker would copy a message of any topic."""
    proxy = make("a", "b")
    [handle, _] = await receive(proxy)
    forged = f"{handle.rpartition(' ')[0]} {log_offset}"
    with pytest.raises(RpcRefused, match="position of another message") as refused:
        await proxy.receipts.handle_forward(
            proxy.caller(), ForwardRequest(**NAMES, receipt_handle=forged, message_id="key-0")
        )
    assert refused.value.code == Code.INVALID_RECEIPT_HANDLE
    assert proxy.broker.dead == []


async def test_the_id_of_a_dead_letter_is_that_of_the_message() -> None:
    """A broker compares the ids, and its refusal would be an error that clients repeat."""
    proxy = make("a")
    [handle] = await receive(proxy)
    asked = ForwardRequest(**NAMES, receipt_handle=handle, message_id="m" * 300_000)
    assert (await proxy.receipts.handle_forward(proxy.caller(), asked)).status.code == Code.OK
    assert [dead.original_message_id for dead in proxy.broker.dead] == ["key-0"]


async def test_a_dead_letter_that_was_not_stored_is_not_acknowledged() -> None:
    proxy = make("a")
    [handle] = await receive(proxy)
    proxy.broker.failures[RequestCode.CONSUMER_SEND_MSG_BACK] = (ResponseCode.SYSTEM_ERROR, "full")
    with pytest.raises(RequestRejected, match="full"):
        await proxy.receipts.handle_forward(
            proxy.caller(), ForwardRequest(**NAMES, receipt_handle=handle, message_id="key-0")
        )
    assert not proxy.broker.messages[0].is_done
    with pytest.raises(RpcRefused, match="ninth"):
        await proxy.receipts.handle_forward(
            proxy.caller(), ForwardRequest(**NAMES, receipt_handle=handle.rpartition(" ")[0])
        )


async def test_a_handle_of_another_broker_is_invalid() -> None:
    proxy = make("a")
    handle = handle_of(pop_time_ms=proxy.broker.clock.now_ms(), broker="broker-z")
    assert (await ack(proxy, handle)).status.code == Code.INVALID_RECEIPT_HANDLE


NUMBERS = st.sampled_from(["0", "1", "7", "-1", "9" * 18, "9" * 19, "9" * 40, "x", "", "²", " ", "1.5"])
FIELDS = ("0", str(START_MS), "60000", "0", "0", BROKER, "0", "0", "1000", "10800000")
HANDLES = st.text(max_size=60) | st.tuples(
    *(st.just(field) | (st.just(field) | NUMBERS) for field in FIELDS)
).flatmap(lambda fields: st.integers(6, len(fields)).map(lambda count: " ".join(fields[:count])))


@settings(max_examples=300, deadline=None)
@given(HANDLES)
def test_any_text_as_a_handle_is_answered(text: str) -> None:
    async def ask() -> None:
        proxy = make("a")
        [entry] = (await ack(proxy, text)).entries
        assert entry.status.code in (Code.OK, Code.INVALID_RECEIPT_HANDLE)
        answer = await change(proxy, text, 10)
        assert answer.status.code in (Code.OK, Code.INVALID_RECEIPT_HANDLE)
        forward = ForwardRequest(**NAMES, receipt_handle=text, message_id=text)
        refusals = []
        try:
            await proxy.receipts.handle_forward(proxy.caller(), forward)
        except RpcRefused as error:
            refusals.append(error.code)
        assert refusals in ([], [Code.INVALID_RECEIPT_HANDLE])

    asyncio.run(ask())
