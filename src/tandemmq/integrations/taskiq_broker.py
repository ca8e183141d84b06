"""The broker of Taskiq, and results by reply.

    broker = TandemBroker("127.0.0.1:9876").with_results_by_reply()

    @broker.task
    async def add(one: int, other: int) -> int:
        return one + other

Workers are members of one group that pops, so any number of them share the topic, and each task is
acknowledged by itself. A result travels as the reply to its task's message, straight to the client that sent
it: nothing is stored, and only that client can read it. A task that a worker sends again (a retry, a requeue)
carries the address of its first sender in a label, so the sender gets the result of the last run.
At a bound: a client keeps its newest `RESULTS_MAX` results, and a worker the newest `OPEN_MAX` messages of
            tasks without a result; a task that fell out has no result.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any, Final, Self, TypeVar

import msgspec

from tandemmq.client.consumer.pop import PopConsumer
from tandemmq.client.options import ClientOptions, PopOptions, ProducerOptions, ServerNames, StartFrom
from tandemmq.client.producer.producer import Producer
from tandemmq.client.producer.results import SendResult
from tandemmq.errors import BadRequest, RequestRejected, TandemError, install_hint
from tandemmq.protocol import properties as names
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.message import Message, PoppedMessage, ReceivedMessage
from tandemmq.protocol.properties import encode_properties

try:
    from taskiq import (
        AckableMessage,
        AsyncBroker,
        AsyncResultBackend,
        BrokerMessage,
        TaskiqMessage,
        TaskiqMiddleware,
        TaskiqResult,
    )
    from taskiq.exceptions import ResultGetError
except ImportError:
    raise ImportError(f"this module needs the extra taskiq: {install_hint('taskiq')}") from None

log = logging.getLogger(__name__)

V = TypeVar("V")

TASK_ID: Final = "TASKIQ_ID"
"""The property with the id of the task."""
REPLY_LABEL: Final = "tandemmq_reply_to"
"""The label with the client that waits for the result, and its correlation id."""
RESULTS_MAX: Final = 10_000
OPEN_MAX: Final = 10_000
SEND_S: Final = 10.0
PAUSE_S_MIN: Final = 1.0
PAUSE_S_MAX: Final = 30.0
"""The pauses after failed reads: each is twice the one before."""


class TandemBroker(AsyncBroker):  # type: ignore[misc]  # skipped by mypy
    """Sends tasks to a topic, and reads them in a worker.

    A task's label `delay` (seconds) lets its message wait at the broker. `invisible_s`: the time after which
    a task that was not acknowledged, because its worker died, is delivered again; longer than the longest
    task. `result_s`: the time for which a client waits for a reply.
    """

    def __init__(
        self,
        name_servers: ServerNames,
        *,
        topic: str = "taskiq",
        group: str = "taskiq",
        client: ClientOptions | None = None,
        invisible_s: float = 600.0,
        result_s: float = 3600.0,
        task_id_generator: Callable[[], str] | None = None,
    ) -> None:
        super().__init__(task_id_generator=task_id_generator)
        self.topic, self.group, self.result_s = topic, group, result_s
        self._name_servers = name_servers
        self._options = client or ClientOptions()
        self._pop = PopOptions(client=self._options, start_from=StartFrom.FIRST, invisible_s=invisible_s)
        self._producer: Producer | None = None
        self._starting = asyncio.Lock()
        """Held while the producer starts: a call of `startup` meanwhile waits for the same one."""
        self._replies: ReplyResults[Any] | None = None
        self.open_messages: OrderedDict[str, PoppedMessage] = OrderedDict()
        """The messages of tasks that this worker has begun and not ended, by the task's id."""

    def with_results_by_reply(self) -> Self:
        """Sends the result of a task to the client that sent the task."""
        self._replies = ReplyResults(self)
        self.result_backend = self._replies
        self.add_middlewares(_ReplyAddress(self))
        return self

    async def startup(self) -> None:
        """Connects; a second call, which a scheduler of the same process makes, does not connect again.

        Raises:  BrokerUnreachable when no name server accepts a connection.
        """
        await super().startup()
        async with self._starting:
            if self._producer is None:
                options = ProducerOptions(client=self._options, timeout_s=SEND_S)
                producer = Producer(f"{self.group}-tasks", self._name_servers, options=options)
                self._producer = await producer.start()

    async def shutdown(self) -> None:
        """Ends the connections; results that have not come are lost."""
        await super().shutdown()
        producer, self._producer = self._producer, None
        if self._replies is not None:
            await self._replies.close()
        if producer is not None:
            await producer.close()

    @property
    def producer(self) -> Producer:
        """The producer. Raises RuntimeError before `startup`."""
        if self._producer is None:
            raise RuntimeError("the broker is not started: call `await broker.startup()` first")
        return self._producer

    async def kick(self, message: BrokerMessage) -> None:
        """Sends a task; returns once it is stored."""
        delay = message.labels.get("delay")
        task = Message(
            self.topic,
            message.message,
            keys=[message.task_id],
            properties={TASK_ID: message.task_id},
            delay_ms=None if delay is None else round(float(delay) * 1000),
        )
        if self._replies is None or REPLY_LABEL in message.labels:
            await self.producer.send(task)
        else:
            await self._replies.send(message.task_id, task)

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yields the tasks for this worker. Waits while a broker refuses it: an operator may grant a missing
        permission, for example.

        Raises:  BadRequest for a setting that brokers do not allow; RequestRejected from brokers that do not
                 serve pops.
        """
        pause_s = PAUSE_S_MIN
        consumer = PopConsumer(self.group, options=self._pop, instance=self.producer.instance)
        consumer.subscribe(self.topic)
        async with consumer:
            while True:
                try:
                    found = await consumer.receive(1)
                except RequestRejected as error:
                    if isinstance(error, BadRequest) or error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                        log.error("tasks cannot be read: %s", error)
                        raise
                    log.warning("tasks cannot be read now: %s", error)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, PAUSE_S_MAX)
                    continue
                pause_s = PAUSE_S_MIN
                for message in found:
                    self._note_open(message)
                    yield AckableMessage(data=message.body, ack=partial(_acknowledge, consumer, message))

    def _note_open(self, message: PoppedMessage) -> None:
        if self._replies is not None:
            self.open_messages[message.properties.get(TASK_ID, "")] = message
            while len(self.open_messages) > OPEN_MAX:
                self.open_messages.popitem(last=False)


async def _acknowledge(consumer: PopConsumer, message: PoppedMessage) -> None:
    try:
        await consumer.ack(message)
    except TandemError as error:  # delivered again once its invisible time has passed
        log.warning("task %s is not acknowledged: %s", message.properties.get(TASK_ID), error)


class _ReplyAddress(TaskiqMiddleware):  # type: ignore[misc]  # skipped by mypy
    """Labels a task with the client that waits for its result, before the task runs."""

    def __init__(self, broker: TandemBroker) -> None:
        super().__init__()
        self._tandem = broker

    def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        """Adds the label, unless an earlier run did."""
        request = self._tandem.open_messages.get(message.task_id)
        if request is not None and names.REPLY_TO_CLIENT in request.properties:
            address = [request.properties[name] for name in _ADDRESS]
            message.labels.setdefault(REPLY_LABEL, json.dumps(address))
        return message


_ADDRESS: Final = (names.REPLY_TO_CLIENT, names.CORRELATION_ID)


def _request_of(message: PoppedMessage, address: str | None) -> ReceivedMessage:
    """Returns the message of a task's last run as the request to answer."""
    if address is None:
        return message
    properties = message.record.properties | dict(zip(_ADDRESS, json.loads(address), strict=True))
    record = msgspec.structs.replace(
        message.record, raw_properties=encode_properties(properties), _properties=properties
    )
    return ReceivedMessage(record, topic=message.topic, broker_name=message.broker_name)


class ReplyResults(AsyncResultBackend[V]):  # type: ignore[misc]  # skipped by mypy
    """The results of tasks, as replies to their messages."""

    def __init__(self, broker: TandemBroker) -> None:
        self._broker = broker
        self._waiting: dict[str, asyncio.Task[None]] = {}
        self._results: OrderedDict[str, TaskiqResult[V]] = OrderedDict()

    async def send(self, task_id: str, task: Message) -> None:
        """Sends a task whose reply will be its result; returns once it is stored."""
        stored: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        waiting = asyncio.ensure_future(self._ask(task_id, task, stored))
        self._waiting[task_id] = waiting
        await stored

    async def _ask(self, task_id: str, task: Message, stored: asyncio.Future[SendResult]) -> None:
        broker = self._broker

        def note_stored(result: SendResult) -> None:
            if not stored.done():
                stored.set_result(result)

        try:
            reply = await broker.producer.request(task, timeout_s=broker.result_s, on_stored=note_stored)
            self._results[task_id] = TaskiqResult.model_validate_json(reply.body)
            while len(self._results) > RESULTS_MAX:
                self._results.popitem(last=False)
        except asyncio.CancelledError:
            stored.cancel()
            raise
        except Exception as error:  # noqa: BLE001  # the sender gets it, or the log
            if stored.done():
                log.warning("task %s has no result: %s", task_id, error)
            else:
                stored.set_exception(error)
        finally:
            self._waiting.pop(task_id, None)

    async def close(self) -> None:
        """Waits for no more results."""
        left = list(self._waiting.values())
        for waiting in left:
            waiting.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def set_result(self, task_id: str, result: TaskiqResult[V]) -> None:
        """Sends the result to the client; a client that is gone gets none."""
        message = self._broker.open_messages.pop(task_id, None)
        if message is None:
            log.warning("task %s: no message to reply to", task_id)
            return
        try:
            request = _request_of(message, result.labels.get(REPLY_LABEL))
            await self._broker.producer.reply(request, result.model_dump_json().encode())
        except TandemError as error:
            log.warning("the result of task %s reached no client: %s", task_id, error)

    async def is_result_ready(self, task_id: str) -> bool:
        """Returns True if the result has come."""
        return task_id in self._results

    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[V]:
        """Returns the result. Raises ResultGetError if it has not come to this client."""
        found = self._results.get(task_id)
        if found is None:
            raise ResultGetError
        return found if with_logs else found.model_copy(update={"log": None})


__all__ = ["ReplyResults", "TandemBroker"]
