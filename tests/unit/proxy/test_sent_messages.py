"""EndTransaction and RecallMessage: any proxy forwards them to the broker that the id or handle names."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from send_rig import CALLER, LOG_OFFSET, SendRig, TopicRow, message, request, send_rig, unreachable

from tandemmq.errors import BrokerUnreachable, TandemError
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.requests.send import EndTransactionRequest, RecallRequest
from tandemmq.proxy.options import ProxyOptions
from tandemmq.proxy.schema import enum_number, message_class
from tandemmq.proxy.sending import ProduceHandlers
from tandemmq.proxy.sent_messages import SentMessageHandlers
from tandemmq.proxy.statuses import Code, code_of
from tandemmq.proxy.transaction_ids import TransactionId, render_transaction_id

EndTransaction = message_class("EndTransactionRequest")
Recall = message_class("RecallMessageRequest")
ID = render_transaction_id(TransactionId("a", 5, 900, "01AB"))


@pytest.fixture
async def rig() -> AsyncIterator[SendRig]:
    async with send_rig(
        Half=TopicRow({"a": 4, "b": 4}, "TRANSACTION"),
        Delay=TopicRow({"a": 4, "b": 4}, "DELAY"),
        Mixed=TopicRow({"a": 4}, "MIXED"),
        Normal=TopicRow({"a": 4}),
    ) as built:
        yield built


def handlers(rig: SendRig, **arguments: Any) -> SentMessageHandlers:
    return SentMessageHandlers(rig.core(**arguments))


def end(
    *,
    topic: str = "Half",
    transaction_id: str = ID,
    resolution: str = "COMMIT",
    source: str = "SOURCE_CLIENT",
) -> Any:
    return EndTransaction(
        topic={"name": topic},
        message_id="01AB",
        transaction_id=transaction_id,
        resolution=enum_number("TransactionResolution", resolution),
        source=enum_number("TransactionSource", source),
    )


def handle(broker: str = "a", topic: str = "Delay") -> str:
    return base64.urlsafe_b64encode(f"v1 {topic} {broker} 1700000060001 01AB".encode()).decode()


def recall(recall_handle: str, topic: str = "Delay") -> Any:
    return Recall(topic={"name": topic}, recall_handle=recall_handle)


async def refusal(answer: Any) -> TandemError:
    with pytest.raises(TandemError) as refused:
        await answer
    return refused.value


@pytest.mark.parametrize(
    ("resolution", "decision"), [("COMMIT", 8), ("ROLLBACK", 12)], ids=["commit", "rollback"]
)
@pytest.mark.parametrize("source", ["SOURCE_CLIENT", "SOURCE_SERVER_CHECK", "SOURCE_UNSPECIFIED"])
async def test_outcome_goes_to_the_broker_of_the_id(
    rig: SendRig, resolution: str, decision: int, source: str
):
    answer = await handlers(rig).handle_end_transaction(CALLER, end(resolution=resolution, source=source))
    assert answer.status.code == Code.OK
    [(broker, command)] = rig.table.oneway
    assert broker == "a"
    assert command.is_oneway
    assert command.decode(EndTransactionRequest) == EndTransactionRequest(
        producer_group="Half",
        topic="Half",
        half_queue_offset=5,
        log_offset=900,
        decision=decision,
        unique_key="01AB",
        transaction_id="01AB",
        is_from_check=source == "SOURCE_SERVER_CHECK",
        broker_name="a",
    )


async def test_id_of_one_proxy_works_at_another(rig: SendRig):
    sender = ProduceHandlers(rig.core())
    sent = await sender.handle_send(CALLER, request(message("Half", kind="TRANSACTION")))
    async with send_rig(Half=TopicRow({"a": 4, "b": 4}, "TRANSACTION")) as other:
        await handlers(other).handle_end_transaction(
            CALLER, end(transaction_id=sent.entries[0].transaction_id)
        )
        [(broker, command)] = other.table.oneway
    header = command.decode(EndTransactionRequest)
    assert broker == rig.table.sends[0][0]
    assert (header.half_queue_offset, header.log_offset, header.unique_key) == (100, LOG_OFFSET, "01AB")


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (end(transaction_id=""), Code.INVALID_TRANSACTION_ID),
        (end(transaction_id="01ACDE48001122334455667788990011AA"), Code.INVALID_TRANSACTION_ID),
        (
            end(transaction_id=render_transaction_id(TransactionId("stranger", 1, 2, "k"))),
            Code.INVALID_TRANSACTION_ID,
        ),
        (end(resolution="TRANSACTION_RESOLUTION_UNSPECIFIED"), Code.BAD_REQUEST),
        (end(topic="bad topic"), Code.ILLEGAL_TOPIC),
        (end(topic="Missing"), Code.TOPIC_NOT_FOUND),
    ],
)
async def test_bad_outcome_gets_its_code(rig: SendRig, asked: Any, code: Code):
    assert code_of(await refusal(handlers(rig).handle_end_transaction(CALLER, asked))) is code
    assert rig.table.oneway == []


async def test_outcome_waits_for_another_master_until_the_deadline(rig: SendRig):
    rig.table.fail = unreachable("a")
    error = await refusal(handlers(rig).handle_end_transaction(replace(CALLER, deadline_s=1.0), end()))
    assert isinstance(error, BrokerUnreachable)
    assert 0.7 < rig.clock.monotonic() <= 1.0


async def test_recall_goes_to_the_broker_of_the_handle(rig: SendRig):
    answer = await handlers(rig).handle_recall(CALLER, recall(handle("b")))
    assert (answer.status.code, answer.message_id) == (Code.OK, "RECALLED")
    [(broker, command)] = rig.table.recalls
    assert broker == "b"
    assert command.decode(RecallRequest) == RecallRequest(
        topic="Delay", recall_handle=handle("b"), producer_group="Delay"
    )


async def test_recall_of_a_mixed_topic_is_allowed(rig: SendRig):
    answer = await handlers(rig).handle_recall(CALLER, recall(handle("a", "Mixed"), "Mixed"))
    assert answer.status.code == Code.OK


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (recall(""), Code.BAD_REQUEST),
        (recall("not a handle"), Code.BAD_REQUEST),
        (recall("é"), Code.BAD_REQUEST),
        (recall("A" * 1_000_000), Code.BAD_REQUEST),
        (recall(handle("stranger")), Code.BAD_REQUEST),
        (recall(handle("a", "Normal"), "Normal"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (recall(handle(), "bad topic"), Code.ILLEGAL_TOPIC),
        (recall(handle(), "Missing"), Code.TOPIC_NOT_FOUND),
    ],
)
async def test_bad_recall_gets_its_code(rig: SendRig, asked: Any, code: Code):
    assert code_of(await refusal(handlers(rig).handle_recall(CALLER, asked))) is code
    assert rig.table.recalls == []


async def test_kind_of_the_topic_is_not_checked_when_switched_off(rig: SendRig):
    service = handlers(rig, options=ProxyOptions(checks_message_type=False))
    answer = await service.handle_recall(CALLER, recall(handle("a", "Normal"), "Normal"))
    assert answer.status.code == Code.OK


@pytest.mark.parametrize(
    ("broker_code", "code"),
    [
        (ResponseCode.ILLEGAL_OPERATION, Code.BAD_REQUEST),
        (ResponseCode.NO_PERMISSION, Code.FORBIDDEN),
        (ResponseCode.SYSTEM_ERROR, Code.INTERNAL_SERVER_ERROR),
    ],
)
async def test_refused_recall_has_its_code(rig: SendRig, broker_code: int, code: Code):
    rig.table.code, rig.table.remark = broker_code, "no"
    assert code_of(await refusal(handlers(rig).handle_recall(CALLER, recall(handle())))) is code
