"""TransactionProducer: messages that become visible only after the work that they belong to has succeeded.

    async with TransactionProducer("orders", "127.0.0.1:9876", check=was_booked) as producer:
        await producer.send(Message(topic="Orders", body=b"..."), book)

The broker stores the message as a half message, `work` runs, and its outcome goes to the broker. If the
outcome is lost or UNKNOWN, the broker checks later, and `check` answers, in any process of the group.
Source: spec semantics 3.9, spec remoting 9.7.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import NamedTuple, Self

from tandemmq.api import broker_send
from tandemmq.client.instance import Client, ClientInstance
from tandemmq.client.options import ProducerOptions, ServerNames
from tandemmq.client.producer.producer import Producer
from tandemmq.client.producer.results import SendResult
from tandemmq.errors import ClientError, MessageIllegal, TandemError
from tandemmq.protocol import properties as names
from tandemmq.protocol.message import Message, ReceivedMessage
from tandemmq.protocol.message_id import decode_message_id
from tandemmq.protocol.requests.send import CheckTransactionRequest, EndTransactionRequest
from tandemmq.protocol.sys_flag import (
    TRANSACTION_COMMIT,
    TRANSACTION_NONE,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from tandemmq.remoting.channel import Channel
from tandemmq.telemetry import events
from tandemmq.telemetry.log_lines import event_logger

log = event_logger(__name__)

CHECKS_WAITING_MAX = 2_000
"""The number of checks that may wait or run; one more is dropped, and the broker checks again."""
CHECKS_RUNNING_MAX = 16


class TransactionState(Enum):
    """The outcome of a transaction, by the protocol's number. UNKNOWN lets the broker check later."""

    COMMIT = TRANSACTION_COMMIT
    ROLLBACK = TRANSACTION_ROLLBACK
    UNKNOWN = TRANSACTION_NONE


State = TransactionState
Work = Callable[[Message], State | Awaitable[State]]
Check = Callable[[ReceivedMessage], State | Awaitable[State]]


class TransactionResult(NamedTuple):
    """The position of the half message, and the state reported to the broker."""

    sent: SendResult
    state: TransactionState


class TransactionProducer(Client):
    """One producer of a group whose members all answer checks for each other."""

    def __init__(
        self,
        group: str,
        namesrv: ServerNames = "",
        *,
        check: Check,
        options: ProducerOptions | None = None,
        instance: ClientInstance | None = None,
    ) -> None:
        """Creates the producer. `check(message)` returns the state of an earlier transaction, according to
        the application's data; it may be a coroutine function. An exception counts as UNKNOWN.
        """
        self.producer = Producer(group, namesrv, options=options, instance=instance)
        self.group = self.producer.group
        self._instance = self.producer.instance
        self._check = check
        self._slots = asyncio.Semaphore(CHECKS_RUNNING_MAX)
        self._checks_waiting = 0

    async def start(self) -> Self:
        """Connects to a name server and begins to answer checks.

        Raises:  BrokerUnreachable when no name server accepts a connection; ClientError for a second
                 transaction producer of the group on one instance.
        """
        questions = self._instance.questions
        if self.group in questions.checks:
            raise ClientError(f"this client already has a transaction producer of group {self.group!r}")
        await self.producer.start()
        questions.checks[self.group] = self._on_check
        return self

    async def close(self) -> None:
        """Leaves the group; checks go to other members, or wait until there is one."""
        if self._instance.questions.checks.get(self.group) == self._on_check:
            del self._instance.questions.checks[self.group]
        await self.producer.close()

    async def send(
        self, message: Message, work: Work, *, timeout_s: float | None = None
    ) -> TransactionResult:
        """Stores the half message, runs `work(message)` and reports the outcome to the broker.

        An exception of `work` is raised after UNKNOWN was reported to the broker; `check` decides later. A
        half message that was stored without every guarantee of the broker is rolled back, and `work` does not
        run.

        Raises:  the errors of `Producer.send`; MessageIllegal for a delayed message or one with a priority;
                 nothing has happened then.
        """
        sent = await self.send_half(message, timeout_s=timeout_s)
        if not sent.is_ok:
            await self.end(sent, State.ROLLBACK)
            return TransactionResult(sent, State.ROLLBACK)
        try:
            state = await _outcome(work, message)
        except BaseException:
            await self.end(sent, State.UNKNOWN)
            raise
        await self.end(sent, state)
        return TransactionResult(sent, state)

    async def send_half(self, message: Message, *, timeout_s: float | None = None) -> SendResult:
        """Stores the half message only, for code that cannot pass its work as a function; `end` is the second
        step.
        """
        if message.delay_level or message.delay_ms is not None or message.deliver_at_ms is not None:
            raise MessageIllegal("a transactional message cannot be delayed")
        if message.priority is not None:
            raise MessageIllegal("a transactional message cannot have a priority")
        system = {names.TRAN_MSG: "true", names.PGROUP: self.group}
        return await self.producer.send_system(
            message, system, sys_flag=TRANSACTION_PREPARED, timeout_s=timeout_s
        )

    async def end(self, sent: SendResult, state: TransactionState) -> None:
        """Reports the outcome of the transaction to the broker. Delivery is not guaranteed: if the report is
        lost, the broker checks.
        """
        name, remoting = sent.queue.broker_name, self._instance.remoting
        topic = self._instance.namespace.wrap(sent.queue.topic)
        header = EndTransactionRequest(
            producer_group=self.group,
            half_queue_offset=sent.queue_offset,
            log_offset=decode_message_id(sent.message_id).log_offset,
            decision=state.value,
            unique_key=sent.unique_key,
            topic=topic,
            transaction_id=sent.unique_key,
            broker_name=name,
        )
        try:
            await self._instance.call_master(
                topic,
                name,
                lambda address, _: broker_send.end_transaction(remoting, address, header),
                timeout_s=self._instance.options.call_timeout_s,
            )
        except TandemError as error:
            log.warning(
                events.TRANSACTION_END_UNSENT,
                extra={"unique_key": sent.unique_key, "state": state.name, "error": str(error)},
            )

    def _on_check(self, channel: Channel, header: CheckTransactionRequest, message: ReceivedMessage) -> None:
        if self._checks_waiting >= CHECKS_WAITING_MAX:
            return
        self._checks_waiting += 1
        self._instance.tasks.start("transaction-check", self._answer(channel, header, message))

    async def _answer(
        self, channel: Channel, header: CheckTransactionRequest, message: ReceivedMessage
    ) -> None:
        try:
            async with self._slots:
                state = await self._decide(message)
        finally:
            self._checks_waiting -= 1
        end = EndTransactionRequest(
            producer_group=self.group,
            half_queue_offset=header.half_queue_offset,
            log_offset=header.log_offset,
            decision=state.value,
            unique_key=message.message_id,
            topic=header.topic,
            is_from_check=True,
            transaction_id=header.transaction_id,
            broker_name=header.broker_name,
        )
        if not channel.is_closed:
            channel.send(broker_send.end_command(end))

    async def _decide(self, message: ReceivedMessage) -> TransactionState:
        try:
            return await _outcome(self._check, message)
        except Exception as error:  # noqa: BLE001  # the user's code; the broker asks again
            log.warning(
                events.TRANSACTION_CHECK_FAILED,
                extra={"unique_key": message.message_id, "error": repr(error)},
            )
            return State.UNKNOWN


async def _outcome(function: Callable[..., object], message: object) -> TransactionState:
    """Returns the result of the user's function.

    Raises:  ClientError when it is not a TransactionState; the function's error.
    """
    state = function(message)
    if inspect.isawaitable(state):
        state = await state
    if not isinstance(state, TransactionState):
        raise ClientError(f"expected a TransactionState, got {state!r}")
    return state
