"""The broker of Taskiq over fakes: reads that are rejected, acknowledgements that fail, starting twice."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, ClassVar, Self

import pytest

from tandemmq.errors import BrokerUnreachable, ClientError, NotPermitted
from tandemmq.integrations import taskiq_broker
from tandemmq.integrations.taskiq_broker import TandemBroker
from tandemmq.protocol import properties as names
from tandemmq.protocol.message import PoppedMessage
from tandemmq.protocol.message_id import encode_host
from tandemmq.protocol.record import NewRecord, decode_record, encode_record


class FakeMessage:
    """A task's message."""

    body = b"task"

    def __init__(self) -> None:
        self.properties = {taskiq_broker.TASK_ID: "7"}


class FakeConsumer:
    """A pop consumer that answers as `answers` says."""

    answers: ClassVar[list[Any]] = []
    ack_error: Exception | None = None

    def __init__(self, group: str, **_: object) -> None: ...

    def subscribe(self, topic: str) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def receive(self, count_max: int) -> list[Any]:
        found = self.answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return [found]

    async def ack(self, message: Any) -> None:
        if self.ack_error is not None:
            raise self.ack_error


class FakeProducer:
    """A producer of a started broker."""

    instance = None


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> TandemBroker:
    broker = TandemBroker("127.0.0.1:9876")
    monkeypatch.setattr(broker, "_producer", FakeProducer())
    monkeypatch.setattr(taskiq_broker, "PopConsumer", FakeConsumer)
    monkeypatch.setattr(taskiq_broker, "PAUSE_S_MIN", 0.0)
    return broker


async def test_a_rejected_read_is_repeated_and_a_failed_client_ends_the_worker(
    broker: TandemBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers = [NotPermitted("no permission"), FakeMessage(), ClientError("the consumer has failed")]
    monkeypatch.setattr(FakeConsumer, "answers", answers)
    async with aclosing(broker.listen()) as tasks:
        assert (await anext(tasks)).data == b"task"
        assert "tasks cannot be read now: no permission" in caplog.text
        with pytest.raises(ClientError, match="the consumer has failed"):
            await anext(tasks)


async def test_a_failed_acknowledgement_is_only_logged(
    broker: TandemBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(FakeConsumer, "answers", [FakeMessage()])
    monkeypatch.setattr(FakeConsumer, "ack_error", BrokerUnreachable("no master"))
    async with aclosing(broker.listen()) as tasks:
        task = await anext(tasks)
        acknowledged = task.ack()
        assert asyncio.iscoroutine(acknowledged)
        await acknowledged
    assert "task 7 is not acknowledged: no master" in caplog.text


async def test_a_second_start_does_not_connect_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class StartedProducer(FakeProducer):
        def __init__(self, *_: object, **__: object) -> None:
            made.append(self)

        async def start(self) -> Self:
            return self

        async def close(self) -> None:
            made.append("closed")

    monkeypatch.setattr(taskiq_broker, "Producer", StartedProducer)
    broker = TandemBroker("127.0.0.1:9876")
    await broker.startup()
    await broker.startup()
    assert len(made) == 1
    await broker.shutdown()
    await broker.shutdown()
    assert made[1:] == ["closed"]


async def test_a_broker_may_be_started_again_after_a_failed_start(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [BrokerUnreachable("no name server")]

    class UnreachableProducer(FakeProducer):
        def __init__(self, *_: object, **__: object) -> None: ...

        async def start(self) -> Self:
            if errors:
                raise errors.pop()
            return self

    monkeypatch.setattr(taskiq_broker, "Producer", UnreachableProducer)
    broker = TandemBroker("127.0.0.1:9876")
    with pytest.raises(BrokerUnreachable):
        await broker.startup()
    await broker.startup()
    assert isinstance(broker.producer, UnreachableProducer)


def test_the_reply_to_a_task_that_came_again_follows_the_route_of_its_topic() -> None:
    """No route leads to the retry topic, which its record is in."""
    host = encode_host("127.0.0.1", 1)
    properties = names.encode_properties({names.REPLY_TO_CLIENT: "worker"})
    new = NewRecord(
        topic="%RETRY%g_tasks", queue_id=0, body=b"", properties=properties, born_at_ms=5, born_host=host
    )
    encoded = encode_record(new, queue_offset=7, log_offset=9, stored_at_ms=6, store_host=host)
    message = PoppedMessage(decode_record(encoded), topic="tasks", broker_name="a", handle="")
    request = taskiq_broker._request_of(message, '["sender", "7"]')
    assert (request.topic, request.broker_name) == ("tasks", "a")
    found = request.properties
    assert (found[names.REPLY_TO_CLIENT], found[names.CORRELATION_ID]) == ("sender", "7")
