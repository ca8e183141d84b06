"""The acknowledgement of FastStream's messages: what happens while no broker accepts a failed one."""

import asyncio
from typing import Any

import pytest

from tandemmq.client import ConsumerOptions, MessageModel, ReceivedMessage
from tandemmq.errors import BadRequest, BrokerUnreachable, NotPermitted, TandemError
from tandemmq.integrations.faststream import subscriber as module
from tandemmq.integrations.faststream.message import MessageParser
from tandemmq.integrations.faststream.subscriber import ConsumerAcknowledger, create_missing
from tandemmq.protocol.record import Record

CALLS = list[tuple[Any, ...]]


class StubConsumer:
    """Records the calls; `errors` are raised first."""

    def __init__(self, *errors: TandemError) -> None:
        self.calls: CALLS = []
        self._errors = list(errors)

    def ack_all(self, messages: tuple[ReceivedMessage, ...]) -> None:
        self.calls.append(("ack", *messages))

    async def suspend(self, message: ReceivedMessage, *, delay_s: float) -> None:
        self.calls.append(("suspend", message, delay_s))

    async def retry_later(
        self, message: ReceivedMessage, *, delay_s: float | None = None, delay_level: int = 0
    ) -> None:
        self.calls.append(("retry", message, delay_level or delay_s))
        if self._errors:
            raise self._errors.pop(0)

    async def dead_letter(self, message: ReceivedMessage, *, reason: str) -> None:
        self.calls.append(("dead", message, reason))
        if self._errors:
            raise self._errors.pop(0)


def received() -> ReceivedMessage:
    fields: dict[str, Any] = dict.fromkeys(Record.__struct_fields__, 0)
    fields |= {"topic": "Orders", "body": b"1", "raw_properties": b"UNIQ_KEY\x01K", "_properties": None}
    return ReceivedMessage(Record(**fields))


def acknowledger(*errors: TandemError, **options: Any) -> tuple[ConsumerAcknowledger, CALLS]:
    made, consumer = ConsumerAcknowledger(ConsumerOptions(**options)), StubConsumer(*errors)
    made.consumer = consumer  # type: ignore[assignment]
    return made, consumer.calls


@pytest.fixture(autouse=True)
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.001)


async def test_a_failed_message_is_sent_back_until_a_broker_accepts_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made, calls = acknowledger(BrokerUnreachable("gone"), NotPermitted("read-only"))
    message = received()
    await made.nack([message], 3.0)
    assert calls == [("retry", message, 3.0)] * 3
    assert "message K cannot be sent back now: gone" in caplog.text


async def test_a_message_that_is_settled_is_not_settled_again() -> None:
    made, calls = acknowledger()
    message = await MessageParser(made).parse_message(received())
    await message.ack()
    await message.nack(delay_s=1)
    await message.reject("too late")
    await message.ack()
    assert [kind for kind, *_ in calls] == ["ack"]


async def test_a_rejection_is_raised() -> None:
    made, calls = acknowledger(BadRequest("no such group"))
    with pytest.raises(BadRequest):
        await made.reject([received()], "invalid")
    assert [call[2] for call in calls] == ["invalid"]


async def test_sending_back_ends_with_the_consumer() -> None:
    made, calls = acknowledger(*[BrokerUnreachable("gone")] * 1000)
    sending = asyncio.ensure_future(made.nack([received()], None))
    while not calls:  # noqa: ASYNC110  # the stub has no event
        await asyncio.sleep(0)
    made.consumer = None
    await sending
    await made.ack([received()])
    assert not [call for call in calls if call[0] == "ack"]


async def test_an_ordered_message_goes_back_into_its_queue() -> None:
    made, calls = acknowledger(orderly=True)
    message = received()
    await made.nack([message], None)
    await made.nack([message], 0.1)
    await made.reject([message], "")
    assert calls == [("suspend", message, 1.0), ("suspend", message, 0.1), ("retry", message, -1)]


async def test_a_broadcasting_group_has_no_retries(caplog: pytest.LogCaptureFixture) -> None:
    made, calls = acknowledger(model=MessageModel.BROADCASTING)
    message = received()
    await made.nack([message], None)
    assert calls == [("ack", message)]
    assert "a broadcasting group has no retries" in caplog.text


async def test_a_topic_that_cannot_be_created_is_read_when_it_appears(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Forbidden:
        instance = None

        async def queues(self, topic: str) -> None:
            raise NotPermitted(f"no right to {topic}")

    await create_missing(Forbidden(), "Orders")  # type: ignore[arg-type]
    assert "topic Orders cannot be created: no right to Orders" in caplog.text
