"""SendMessage: from a client's messages to one send at a broker, and from its answer to the result.

A request with one message is one send; several messages are one batch, which the broker stores as a whole.
Messages without a group go to another broker when the first one cannot be reached; those with a group wait
for another master of their broker. A send may therefore be executed twice, as when the client repeats it.

At a bound: more body bytes in flight than `bytes_in_flight_max` are refused with TOO_MANY_REQUESTS, which
            clients retry later.
Source:     spec proxy 5.2, 5.5, 5.6, 5.8, 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from tandemmq.api import broker_send
from tandemmq.api.broker_send import SendAnswer, SendStatus
from tandemmq.client.route_cache import RouteView
from tandemmq.errors import NotPermitted, QueueNotFound, RequestTimeout, TandemError, TopicNotFound
from tandemmq.protocol.batch import encode_batch
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.message_id import decode_message_id
from tandemmq.protocol.requests.send import SendRequestV2
from tandemmq.protocol.topic_names import AUTO_CREATE_TOPIC, is_retry_topic
from tandemmq.proxy.brokers import OUTAGES, SEND_S, NoMaster
from tandemmq.proxy.core import ProxyCore
from tandemmq.proxy.incoming import IncomingMessage, read_messages
from tandemmq.proxy.kinds import MessageKind, check_kind
from tandemmq.proxy.meters import Limit
from tandemmq.proxy.queue_choice import NoWritableQueue, QueueChooser
from tandemmq.proxy.rpc import OK, Caller, Message
from tandemmq.proxy.schema import message_class
from tandemmq.proxy.statuses import Code, RpcRefused
from tandemmq.proxy.transaction_ids import TransactionId, render_transaction_id
from tandemmq.units import MIB, Buffer

SendMessageResponse = message_class("SendMessageResponse")

BYTES_IN_FLIGHT_MAX: Final = 256 * MIB
SILENT_S_MIN: Final = 1.0
"""The shortest time without an answer after which a broker counts as failed; a client may ask for less."""
DEFAULT_TOPIC_QUEUES: Final = 4
STALE: Final = (NotPermitted, QueueNotFound, TopicNotFound)
"""The errors of a broker whose topic has changed: with a new route the send may succeed."""
MOVED: Final = (*OUTAGES, *STALE)
"""The errors after which another broker, or the same one a moment later, may succeed."""

_CODE_OF_STATUS: Final = {
    SendStatus.SEND_OK: Code.OK,
    SendStatus.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    SendStatus.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    SendStatus.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
}
_SINGLE_KINDS: Final = (MessageKind.TRANSACTION, MessageKind.DELAY, MessageKind.PRIORITY)
"""The kinds that brokers refuse in a batch, or whose property they ignore there."""


@dataclass(slots=True)
class ProduceHandlers:
    """Handles SendMessage."""

    core: ProxyCore
    bytes_in_flight_max: int = BYTES_IN_FLIGHT_MAX
    bytes_in_flight: int = field(init=False, default=0)
    _chooser: QueueChooser = field(init=False)

    def __post_init__(self) -> None:
        self._chooser = QueueChooser(self.core.clock, self.core.chance)

    async def handle_send(self, caller: Caller, request: Message) -> Message:
        """Returns one entry per message, in order."""
        now_ms = self.core.clock.now_ms()
        topic, messages = read_messages(request, caller=caller, options=self.core.options, now_ms=now_ms)
        if len(messages) > 1:
            _check_batch(messages)
        await self._check_kinds(topic, messages)
        size = sum(len(message.body) + len(message.properties) for message in messages)
        if self.bytes_in_flight + size > self.bytes_in_flight_max:
            raise self.core.traffic.refusal(
                Limit.SEND_BYTES,
                f"{self.bytes_in_flight} bytes of messages are in flight at this proxy, at most"
                f" {self.bytes_in_flight_max} are allowed: retry later",
            )
        if messages[0].kind is MessageKind.TRANSACTION:
            # Brokers send the checks of its transactions to registered producers only.
            self.core.clients.note_transaction(topic, caller.client_id)
        self.bytes_in_flight += size
        try:
            queue, answer = await self._send(topic, messages, caller)
        finally:
            self.bytes_in_flight -= size
        self.core.traffic.messages_in += len(messages)
        self.core.traffic.bytes_in += sum(len(message.body) for message in messages)
        return _response(messages, queue, answer)

    async def _check_kinds(self, topic: str, messages: Sequence[IncomingMessage]) -> None:
        await self.core.brokers.topic(topic)
        if not self.core.options.checks_message_type:
            return
        try:
            accepted = await self.core.brokers.known_kind(topic)
        except NoMaster:
            return  # the send itself waits for a master
        for message in messages:
            check_kind(topic, accepted, message.kind)

    async def _send(
        self, topic: str, messages: Sequence[IncomingMessage], caller: Caller
    ) -> tuple[MessageQueue, SendAnswer]:
        """Sends to one broker; after a failure to others, or to the same ones again, until the deadline.

        Raises:  the error of the last attempt.
        """
        deadline_s = min(self.core.clock.monotonic() + SEND_S, caller.deadline_s)
        group, body = messages[0].group, _body_of(messages)
        failed: set[str] = set()
        last: TandemError = RequestTimeout(f"the deadline of the send to topic {topic} has passed")
        is_refreshed = False
        while True:
            view = (await self.core.brokers.topic(topic)).view
            try:
                queue = self._chooser.choose(view, group, failed)
                if queue.broker_name not in failed:
                    return queue, await self._ask(
                        view, queue, messages, body, deadline_s - self.core.clock.monotonic()
                    )
            except MOVED as error:
                last = error
                failed.add(queue.broker_name)
                self.core.brokers.topics.refresh_soon(topic)
                continue
            except NoWritableQueue as error:
                if not error.is_outage:
                    raise
                last = error
            # Every broker that may get the messages has failed.
            if is_refreshed and isinstance(last, STALE):
                raise last
            await self.core.brokers.pause(last, deadline_s)
            with suppress(*OUTAGES, RequestTimeout):  # the old route stays in use
                await self.core.brokers.topics.refresh(topic)
            is_refreshed = True
            failed.clear()

    async def _ask(
        self,
        view: RouteView,
        queue: MessageQueue,
        messages: Sequence[IncomingMessage],
        body: Buffer,
        timeout_s: float,
    ) -> SendAnswer:
        address = view.master_address(queue.broker_name)
        assert address is not None, queue
        if timeout_s <= 0:
            raise RequestTimeout(f"the deadline of the send to topic {queue.topic} has passed")
        header = _header(messages, queue)
        try:
            answer = await broker_send.send(
                self.core.brokers.remoting, address, header, body, timeout_s=timeout_s
            )
        except TandemError as error:
            if timeout_s >= SILENT_S_MIN or not isinstance(error, RequestTimeout):
                self._chooser.record_failure(queue.broker_name, error)
            raise
        self._chooser.record_success(queue.broker_name)
        return answer


def _check_batch(messages: Sequence[IncomingMessage]) -> None:
    """Checks that the messages can be one batch, in one queue. Raises RpcRefused BAD_REQUEST."""
    for message in messages:
        if message.kind in _SINGLE_KINDS:
            raise RpcRefused(
                Code.BAD_REQUEST,
                f"a request with {len(messages)} messages has one of kind {message.kind.value}: send it in a"
                " request of its own",
            )
        if message.group != messages[0].group:
            raise RpcRefused(
                Code.BAD_REQUEST, "all messages of a request must have the same message group, or none"
            )


def _body_of(messages: Sequence[IncomingMessage]) -> Buffer:
    if len(messages) == 1:
        return messages[0].body
    return encode_batch((0, message.body, message.properties) for message in messages)


def _header(messages: Sequence[IncomingMessage], queue: MessageQueue) -> SendRequestV2:
    """Returns the header of a send. The producer group is the topic's name, so that any proxy can answer for
    any producer (spec proxy 5.4).
    """
    first, is_batch = messages[0], len(messages) > 1
    return SendRequestV2(
        producer_group=queue.topic,
        topic=queue.topic,
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_count=DEFAULT_TOPIC_QUEUES,
        queue_id=queue.queue_id,
        sys_flag=first.sys_flag,
        born_at_ms=first.born_at_ms,
        flag=0,
        properties="" if is_batch else first.properties.decode(),
        retry_count=first.retry_count if is_retry_topic(queue.topic) else 0,
        is_batch=is_batch,
        broker_name=queue.broker_name,
    )


def _response(messages: Sequence[IncomingMessage], queue: MessageQueue, answer: SendAnswer) -> Message:
    code = _CODE_OF_STATUS[answer.status]
    if code is not Code.OK:
        status = {"code": int(code), "message": f"stored by the master, but {answer.status.value}"}
        return SendMessageResponse(status=status, entries=[{"status": status} for _ in messages])
    entries: list[dict[str, Any]] = [
        {"status": OK, "message_id": message.message_id, "offset": answer.queue_offset + index}
        for index, message in enumerate(messages)
    ]
    if messages[0].kind is MessageKind.TRANSACTION:
        entries[0]["transaction_id"] = render_transaction_id(
            TransactionId(
                queue.broker_name,
                answer.queue_offset,
                decode_message_id(answer.message_id).log_offset,
                messages[0].message_id,
            )
        )
    if answer.recall_handle:
        entries[0]["recall_handle"] = answer.recall_handle
    return SendMessageResponse(status=OK, entries=entries)
