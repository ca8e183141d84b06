"""SendMessage: one send at the right broker, and an answer that every client reads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from send_rig import CALLER, LOG_OFFSET, SendRig, TopicRow, message, request, send_rig, unreachable

from batch_items import split_batch
from tandemmq.errors import (
    BrokerUnreachable,
    RequestRejected,
    RequestTimeout,
    ServiceNotAvailable,
    TandemError,
    TopicNotFound,
)
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.properties import decode_properties
from tandemmq.proxy.options import ProxyOptions
from tandemmq.proxy.queue_choice import queue_index
from tandemmq.proxy.sending import ProduceHandlers
from tandemmq.proxy.statuses import Code, RpcRefused, code_of
from tandemmq.proxy.transaction_ids import TransactionId, parse_transaction_id

SENDS = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
TWO = {"a": 4, "b": 4}


@pytest.fixture
async def rig() -> AsyncIterator[SendRig]:
    async with send_rig(
        T=TopicRow(dict(TWO)),
        One=TopicRow({"a": 4}),
        Fifo=TopicRow(dict(TWO), "FIFO"),
        Delay=TopicRow(dict(TWO), "DELAY"),
        Half=TopicRow(dict(TWO), "TRANSACTION"),
        Mixed=TopicRow(dict(TWO), "MIXED"),
        Levels=TopicRow(dict(TWO), "PRIORITY"),
        ReadOnly=TopicRow(dict(TWO), permission=4),
    ) as built:
        yield built


def handlers(rig: SendRig, **arguments: Any) -> ProduceHandlers:
    return ProduceHandlers(rig.core(**arguments))


async def send(rig: SendRig, *messages: dict[str, Any], **arguments: Any) -> Any:
    return await handlers(rig, **arguments).handle_send(CALLER, request(*messages))


def noting(seen: list[tuple[str, str]]) -> Any:
    """Returns a table of clients that only lists the noted transactions."""
    return SimpleNamespace(note_transaction=lambda *both: seen.append(both))


def at(rig: SendRig, offset_s: int) -> dict[str, int]:
    return {"seconds": rig.clock.now_ms() // 1000 + offset_s}


async def refusal(answer: Awaitable[Any]) -> TandemError:
    with pytest.raises(TandemError) as refused:
        await answer
    return refused.value


async def test_normal_message_is_stored_by_one_broker(rig: SendRig):
    answer = await send(rig, message(user={"colour": "red"}))
    [(broker, header, body)] = rig.table.sends
    assert (answer.status.code, len(answer.entries)) == (Code.OK, 1)
    [entry] = answer.entries
    assert (entry.status.code, entry.message_id, entry.offset) == (Code.OK, "01AB", 100)
    assert (entry.transaction_id, entry.recall_handle) == ("", "")
    assert body == b"hello"
    assert (header.topic, header.producer_group, header.broker_name) == ("T", "T", broker)
    assert (header.sys_flag, header.is_batch, header.retry_count) == (0, False, 0)
    assert decode_properties((header.properties or "").encode())["colour"] == "red"


async def test_messages_without_a_group_take_turns_over_all_queues(rig: SendRig):
    service = handlers(rig)
    for _ in range(8):
        await service.handle_send(CALLER, request(message()))
    queues = {(broker, header.queue_id) for broker, header, _ in rig.table.sends}
    assert len(queues) == 8


async def test_messages_of_a_group_have_one_queue(rig: SendRig):
    service = handlers(rig)
    for _ in range(3):
        await service.handle_send(CALLER, request(message("Fifo", message_group="group0")))
    index = queue_index("group0", 8)
    expected = ("a" if index < 4 else "b", index % 4)
    assert {(broker, header.queue_id) for broker, header, _ in rig.table.sends} == {expected}


async def test_queue_id_of_the_client_is_ignored(rig: SendRig):
    await send(rig, message(queue_id=999))
    assert 0 <= rig.table.sends[0][1].queue_id < 4


async def test_delayed_message_has_a_recall_handle(rig: SendRig):
    rig.table.recall_handle = "handle"
    answer = await send(rig, message("Delay", delivery_timestamp=at(rig, 60)))
    assert answer.entries[0].recall_handle == "handle"
    properties = decode_properties((rig.table.sends[0][1].properties or "").encode())
    assert properties["TIMER_DELIVER_MS"] == str(at(rig, 60)["seconds"] * 1000)


async def test_transaction_has_an_id_with_its_position(rig: SendRig):
    seen: list[tuple[str, str]] = []
    answer = await send(
        rig,
        message("Half", kind="TRANSACTION"),
        clients=noting(seen),
    )
    [(broker, header, _)] = rig.table.sends
    assert header.sys_flag == 0x4
    found = parse_transaction_id(answer.entries[0].transaction_id)
    assert found == TransactionId(broker, 100, LOG_OFFSET, "01AB")
    assert seen == [("Half", CALLER.client_id)]


async def test_other_messages_register_no_producer(rig: SendRig):
    seen: list[tuple[str, str]] = []
    await send(rig, message(), clients=noting(seen))
    assert seen == []


async def test_priority_is_a_property(rig: SendRig):
    await send(rig, message("Levels", priority=3))
    properties = decode_properties((rig.table.sends[0][1].properties or "").encode())
    assert properties["_SYS_MSG_PRIORITY_"] == "3"


async def test_several_messages_are_one_batch_with_an_entry_each(rig: SendRig):
    parts = [message(body=b"%d" % i, message_id=f"id{i}", tag=f"t{i}") for i in range(3)]
    answer = await send(rig, *parts)
    [(_, header, body)] = rig.table.sends
    assert header.is_batch
    assert header.properties == ""
    items = split_batch(body)
    assert [bytes(item.body) for item in items] == [b"0", b"1", b"2"]
    assert [decode_properties(item.properties)["UNIQ_KEY"] for item in items] == ["id0", "id1", "id2"]
    assert [decode_properties(item.properties)["TAGS"] for item in items] == ["t0", "t1", "t2"]
    assert answer.status.code == Code.OK
    assert [(one.message_id, one.offset) for one in answer.entries] == [
        ("id0", 100),
        ("id1", 101),
        ("id2", 102),
    ]


async def test_batch_of_a_group_goes_to_the_queue_of_the_group(rig: SendRig):
    await send(rig, *(message("Fifo", message_group="group0") for _ in range(2)))
    assert rig.table.sends[0][1].queue_id == queue_index("group0", 8) % 4


BATCHES: list[tuple[str, list[dict[str, Any]]]] = [
    ("transaction", [message("Mixed"), message("Mixed", kind="TRANSACTION")]),
    ("delayed", [message("Mixed", delivery_timestamp={"seconds": 1}), message("Mixed")]),
    ("priority", [message("Levels", priority=1), message("Levels", priority=1)]),
    ("two groups", [message("Fifo", message_group="g"), message("Fifo", message_group="h")]),
]


@pytest.mark.parametrize("messages", [row[1] for row in BATCHES], ids=[row[0] for row in BATCHES])
async def test_messages_that_are_no_batch_are_refused(rig: SendRig, messages: list[dict[str, Any]]):
    error = await refusal(send(rig, *messages))
    assert code_of(error) is Code.BAD_REQUEST
    assert rig.table.sends == []


KINDS: list[tuple[str, dict[str, Any]]] = [
    ("NORMAL", {}),
    ("FIFO", {"message_group": "g"}),
    ("DELAY", {"delivery_timestamp": {"seconds": 1}}),
    ("TRANSACTION", {"kind": "TRANSACTION"}),
    ("PRIORITY", {"priority": 1}),
]
TOPIC_KINDS = {"T": "NORMAL", "Fifo": "FIFO", "Delay": "DELAY", "Half": "TRANSACTION", "Levels": "PRIORITY"}


@pytest.mark.parametrize("topic", [*TOPIC_KINDS, "Mixed"])
@pytest.mark.parametrize(("kind", "fields"), KINDS)
async def test_topic_accepts_its_kind_only(rig: SendRig, topic: str, kind: str, fields: dict[str, Any]):
    accepts = TOPIC_KINDS.get(topic) == kind or (topic == "Mixed" and kind != "PRIORITY")
    if accepts:
        assert (await send(rig, message(topic, **fields))).status.code == Code.OK
    else:
        error = await refusal(send(rig, message(topic, **fields)))
        assert code_of(error) is Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        assert rig.table.sends == []
    assert (
        await send(rig, message(topic, **fields), options=ProxyOptions(checks_message_type=False))
    ).status.code == Code.OK


async def test_unknown_topic_is_not_created(rig: SendRig):
    error = await refusal(send(rig, message("Missing")))
    assert code_of(error) is Code.TOPIC_NOT_FOUND
    assert rig.table.sends == []


async def test_topic_without_write_permission_is_forbidden_at_once(rig: SendRig):
    error = await refusal(send(rig, message("ReadOnly")))
    assert code_of(error) is Code.FORBIDDEN
    assert rig.clock.monotonic() == 0


@pytest.mark.parametrize(
    ("broker_code", "code"),
    [
        (ResponseCode.FLUSH_DISK_TIMEOUT, Code.MASTER_PERSISTENCE_TIMEOUT),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, Code.SLAVE_PERSISTENCE_TIMEOUT),
        (ResponseCode.SLAVE_NOT_AVAILABLE, Code.HA_NOT_AVAILABLE),
    ],
)
async def test_unmet_guarantee_has_its_code_and_no_ids(rig: SendRig, broker_code: int, code: Code):
    rig.table.code = broker_code
    answer = await send(rig, message(), message())
    assert answer.status.code == code
    assert [(one.status.code, one.message_id, one.offset) for one in answer.entries] == [(code, "", 0)] * 2


@pytest.mark.parametrize(
    ("broker_code", "code", "attempts"),
    [
        (ResponseCode.SYSTEM_BUSY, Code.TOO_MANY_REQUESTS, 1),
        (ResponseCode.MESSAGE_ILLEGAL, Code.BAD_REQUEST, 1),
        (ResponseCode.SYSTEM_ERROR, Code.INTERNAL_SERVER_ERROR, 1),
        (ResponseCode.NO_PERMISSION, Code.FORBIDDEN, 4),
        (ResponseCode.TOPIC_NOT_EXIST, Code.TOPIC_NOT_FOUND, 4),
    ],
)
async def test_rejection_of_the_broker_has_its_code(
    rig: SendRig, broker_code: int, code: Code, attempts: int
):
    """A stale route is refreshed once, and each broker is asked once per route."""
    rig.table.code, rig.table.remark = broker_code, "refused"
    assert code_of(await refusal(send(rig, message()))) is code
    assert len(rig.table.sends) == attempts


async def test_another_broker_gets_the_message_when_the_first_is_unreachable(rig: SendRig):
    rig.table.fail = unreachable("a")
    service = handlers(rig)
    for _ in range(6):
        assert (await service.handle_send(CALLER, request(message()))).status.code == Code.OK
    assert {broker for broker, _, _ in rig.table.sends} == {"b"}
    assert rig.clock.monotonic() == 0


async def test_broker_that_failed_is_not_tried_first_by_the_next_sends(rig: SendRig):
    tried: list[str] = []
    lost = unreachable("a")

    def fail(name: str, command: Command) -> TandemError | None:
        if command.code in SENDS:
            tried.append(name)
        return lost(name, command)

    rig.table.fail = fail
    service = handlers(rig)
    for _ in range(20):
        await service.handle_send(CALLER, request(message()))
    assert tried.count("a") == 1


async def test_message_of_a_group_waits_for_its_broker_and_goes_nowhere_else(rig: SendRig):
    broker = "a" if queue_index("group0", 8) < 4 else "b"
    rig.table.fail = unreachable(broker)
    error = await refusal(send(rig, message("Fifo", message_group="group0")))
    assert isinstance(error, BrokerUnreachable)
    assert rig.table.sends == []
    assert 1.5 < rig.clock.monotonic() <= 2.0


async def test_send_follows_the_master_to_its_new_address(rig: SendRig):
    def fail(name: str, command: Command) -> TandemError | None:
        if command.code not in SENDS or rig.table.masters["a"] == "new:10911":
            return None
        if rig.clock.monotonic() > 0.5:
            rig.table.masters["a"] = "new:10911"
        return BrokerUnreachable("the old master is gone")

    rig.table.fail = fail
    assert (await send(rig, message("One"))).status.code == Code.OK
    assert 0.5 < rig.clock.monotonic() < 1.5


async def test_all_brokers_unreachable_ends_at_the_deadline(rig: SendRig):
    rig.table.fail = unreachable("a", "b")
    assert isinstance(await refusal(send(rig, message())), BrokerUnreachable)
    assert 1.5 < rig.clock.monotonic() <= 2.0


async def test_deadline_of_the_caller_is_kept(rig: SendRig):
    rig.table.fail = unreachable("a", "b")
    caller = replace(CALLER, deadline_s=0.7)
    await refusal(handlers(rig).handle_send(caller, request(message())))
    assert rig.clock.monotonic() <= 0.7


async def test_passed_deadline_is_a_timeout(rig: SendRig):
    caller = replace(CALLER, deadline_s=0.0)
    error = await refusal(handlers(rig).handle_send(caller, request(message())))
    assert code_of(error) is Code.PROXY_TIMEOUT
    assert rig.table.sends == []


async def test_silent_broker_is_not_asked_twice(rig: SendRig):
    attempts: list[str] = []

    def hang(name: str, command: Command) -> TandemError | None:
        if command.code not in SENDS:
            return None
        attempts.append(name)
        return RequestTimeout("no answer")

    rig.table.fail = hang
    error = await refusal(send(rig, message()))
    assert code_of(error) is Code.PROXY_TIMEOUT
    assert len(attempts) == 1


@pytest.mark.parametrize(("deadline_s", "brokers"), [(0.5, {"a", "b"}), (3.0, {"b"})])
async def test_only_a_long_silence_makes_a_broker_avoided(rig: SendRig, deadline_s: float, brokers: set[str]):
    silent = True

    def hang(name: str, command: Command) -> TandemError | None:
        return RequestTimeout("no answer") if silent and name == "a" and command.code in SENDS else None

    rig.table.fail = hang
    service = handlers(rig)
    caller = replace(CALLER, deadline_s=deadline_s)
    for _ in range(8):
        with suppress(RequestTimeout):
            await service.handle_send(caller, request(message()))
    silent = False
    rig.table.sends.clear()
    for _ in range(8):
        await service.handle_send(CALLER, request(message()))
    assert {broker for broker, _, _ in rig.table.sends} == brokers


async def test_topic_that_lost_its_only_master_waits_for_another(rig: SendRig):
    del rig.table.masters["a"]
    service = handlers(rig)
    error = await refusal(service.handle_send(CALLER, request(message("One"))))
    assert code_of(error) is Code.FORBIDDEN
    assert rig.clock.monotonic() > 1.5
    rig.table.masters["a"] = "new:10911"
    assert (await service.handle_send(CALLER, request(message("One")))).status.code == Code.OK


async def test_kind_is_unknown_and_no_conflict_without_a_master(rig: SendRig):
    masters = dict(rig.table.masters)
    rig.table.masters.clear()
    error = await refusal(handlers(rig).handle_send(CALLER, request(message("Fifo", message_group="g"))))
    assert code_of(error) is Code.FORBIDDEN  # as for every topic that lost its masters
    rig.table.masters.update(masters)


async def test_deleted_topic_is_not_found(rig: SendRig):
    service = handlers(rig)
    await service.handle_send(CALLER, request(message("One")))
    del rig.table.topics["One"]
    rig.table.code = ResponseCode.TOPIC_NOT_EXIST
    rig.table.remark = "no such topic"
    error = await refusal(service.handle_send(CALLER, request(message("One"))))
    assert isinstance(error, TopicNotFound)


async def test_lost_name_server_does_not_stop_a_retry(rig: SendRig):
    service = handlers(rig)
    await service.handle_send(CALLER, request(message("One")))
    topics = dict(rig.table.topics)
    states: list[float] = []

    def fail(name: str, command: Command) -> TandemError | None:
        if command.code in SENDS and rig.clock.monotonic() < 0.4:
            states.append(rig.clock.monotonic())
            return ServiceNotAvailable("starting")
        return None

    rig.table.fail = fail
    real, lost = rig.table.request, BrokerUnreachable("no name server")

    async def request_without_names(address: str, command: Command, timeout_s: float) -> Command:
        if address == "names:9876":
            raise lost
        return await real(address, command, timeout_s)

    rig.table.request = request_without_names  # type: ignore[method-assign]
    assert (await service.handle_send(CALLER, request(message("One")))).status.code == Code.OK
    assert states
    assert rig.table.topics == topics


async def test_bytes_in_flight_are_bounded(rig: SendRig):
    """Each send starts while the one before is in flight, until there is no room for another."""
    service = ProduceHandlers(rig.core(), bytes_in_flight_max=2_000)
    inside: list[int] = []
    refused: list[TandemError] = []
    real = rig.table.request

    async def ask(address: str, command: Command, timeout_s: float) -> Command:
        if command.code in SENDS:
            inside.append(service.bytes_in_flight)
            try:
                await service.handle_send(CALLER, request(message(body=bytes(700))))
            except TandemError as error:
                refused.append(error)
        return await real(address, command, timeout_s)

    rig.table.request = ask  # type: ignore[method-assign]
    answer = await service.handle_send(CALLER, request(message(body=bytes(700))))
    assert answer.status.code == Code.OK
    assert len(inside) == 2
    assert inside[1] == 2 * inside[0] > 1_400
    assert [code_of(error) for error in refused] == [Code.TOO_MANY_REQUESTS]
    assert service.bytes_in_flight == 0


@pytest.mark.parametrize(
    "fail", [lambda *_: RequestTimeout("x"), lambda *_: RequestRejected("x"), unreachable("a", "b")]
)
async def test_failed_send_leaves_no_bytes_in_flight(
    rig: SendRig, fail: Callable[[str, Command], TandemError | None]
):
    service = handlers(rig, options=ProxyOptions(checks_message_type=False))
    rig.table.fail = fail
    await refusal(service.handle_send(CALLER, request(message())))
    assert service.bytes_in_flight == 0


async def test_retry_topic_gets_the_count_of_retries(rig: SendRig):
    rig.table.topics["%RETRY%g"] = TopicRow({"a": 1})
    await send(rig, message("%RETRY%g", delivery_attempt=3))
    assert rig.table.sends[0][1].retry_count == 3


async def test_refusal_names_its_code_and_the_limit(rig: SendRig):
    error = await refusal(send(rig, message(tag="a|b")))
    assert isinstance(error, RpcRefused)
    assert "'a|b'" in str(error)


async def test_unknown_kind_is_an_outage_and_no_conflict(rig: SendRig):
    rig.table.fail = lambda name, _: BrokerUnreachable(f"cannot connect to {name}")
    error = await refusal(send(rig, message("Fifo", message_group="g")))
    assert isinstance(error, BrokerUnreachable)
