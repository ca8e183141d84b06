"""Requests of brokers that concern clients of this proxy: they become commands on telemetry streams.

Checks of transactions go to one producer of the topic; without one they are dropped, and the broker asks
again. A tool's request for a consumer waits for the consumer's answer.

Source: spec proxy 4.3, 5.8; spec semantics 15, 17.6.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tandemmq.errors import RemoteProtocolError, RequestRejected
from tandemmq.protocol import properties as names
from tandemmq.protocol.bodies.client import DirectlyConsumed
from tandemmq.protocol.bodies.codec import encode_body
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.record import RecordError, decode_record
from tandemmq.protocol.requests.admin import ConsumeDirectlyRequest, RunningInfoRequest
from tandemmq.protocol.requests.send import CheckTransactionRequest
from tandemmq.protocol.topic_names import is_retry_topic
from tandemmq.proxy.clients import Clients, GrpcClient
from tandemmq.proxy.outgoing import render_message
from tandemmq.proxy.registration import describe_consumer
from tandemmq.proxy.rpc import Message
from tandemmq.proxy.statuses import Code
from tandemmq.proxy.transaction_ids import TransactionId, render_transaction_id
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.dispatch import Handler
from tandemmq.runtime.ports import Clock
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

FAILED_TO_CONSUME: Final = 60_000
_RESULTS: Final = {
    int(Code.OK): "CR_SUCCESS",
    FAILED_TO_CONSUME: "CR_LATER",
    int(Code.MESSAGE_CORRUPTED): "CR_RETURN_NULL",
}
_OTHER_RESULT: Final = "CR_THROW_EXCEPTION"


@dataclass(slots=True)
class RelayedRequests:
    """Serves requests of brokers over the proxy's own connections.

    `unanswered_checks` counts checks of transactions that no connected producer could get.
    """

    clients: Clients
    clock: Clock
    unanswered_checks: int = 0

    def routes(self) -> Mapping[int, Handler]:
        """Returns the handlers for every connection to brokers."""
        return {
            RequestCode.CHECK_TRANSACTION_STATE: self.handle_check,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.handle_running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.handle_consume_directly,
            # Clients of this protocol divide no queues among themselves, and pop offsets are the broker's.
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: _ignore,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: _ignore,
        }

    def handle_check(self, _channel: Channel, command: Command) -> None:
        """Asks a producer for the outcome of a transaction; the answer is an EndTransaction, at any proxy."""
        header = command.decode(CheckTransactionRequest)
        record = decode_record(command.body)
        topic = record.topic
        client = self.clients.producer_of(record.properties.get(names.PGROUP) or topic)
        unique_key = header.unique_key or record.unique_key
        if client is None or not header.broker_name or not unique_key:
            self.unanswered_checks += 1
            log.debug(events.PROXY_CHECK_UNANSWERED, extra={"topic": topic, "unique_key": unique_key})
            return
        transaction = TransactionId(
            header.broker_name, header.half_queue_offset, header.log_offset, unique_key
        )
        self.clients.command(
            client,
            recover_orphaned_transaction_command={
                "message": render_message(record, topic=topic),
                "transaction_id": render_transaction_id(transaction),
            },
        )

    async def handle_running_info(self, _channel: Channel, command: Command) -> Command:
        """Answers what is known of a consumer, and its thread stacks if the tool wants them."""
        header = command.decode(RunningInfoRequest)
        client = self._find(header.consumer_group, header.client_id)
        stack = ""
        if header.has_stack:
            answer = await self.clients.ask(client, "print_thread_stack_trace_command")
            stack = answer.thread_stack_trace.thread_stack_trace
        return command.reply(body=_running_info(client, stack))

    async def handle_consume_directly(self, _channel: Channel, command: Command) -> Command:
        """Has a consumer consume one message, and answers the result."""
        header = command.decode(ConsumeDirectlyRequest)
        client = self._find(header.consumer_group, header.client_id or "")
        try:
            record = decode_record(command.body)
        except RecordError as error:
            raise RemoteProtocolError(f"the body is not one message: {error}") from None
        topic = record.topic
        if is_retry_topic(topic):
            topic = record.properties.get(names.RETRY_TOPIC, topic)
        begun_s = self.clock.monotonic()
        answer = await self.clients.ask(
            client, "verify_message_command", message=render_message(record, topic=topic)
        )
        result = DirectlyConsumed(
            result=_RESULTS.get(answer.status.code, _OTHER_RESULT),
            is_ordered=_is_orderly(client.settings),
            remark=answer.status.message,
            took_ms=round((self.clock.monotonic() - begun_s) * 1000),
        )
        return command.reply(body=encode_body(result))

    def _find(self, group: str, client_id: str) -> GrpcClient:
        client = self.clients.get(client_id)
        if client is None or client.profile is None or client.profile.group != group:
            raise RequestRejected(
                f"no consumer {client_id[:160]!r} of the group {group[:160]!r} is connected to this proxy",
                code=ResponseCode.SYSTEM_ERROR,
            )
        return client


def _ignore(_channel: Channel, command: Command) -> Command | None:
    """Acknowledges a request that needs no action."""
    return None if command.is_oneway else command.reply()


def _is_orderly(settings: Message | None) -> bool:
    return settings is not None and bool(settings.subscription.fifo)


def _running_info(client: GrpcClient, stack: str) -> bytes:
    """Returns a ConsumerRunningInfo: this proxy knows no queues of a consumer, because pops have none."""
    assert client.profile is not None
    consumer = describe_consumer(client.profile, client.changed_at_ms)
    info: dict[str, Any] = {
        "mqPopTable": {},
        "mqTable": {},
        "properties": {
            "PROP_CONSUME_TYPE": consumer.consume_type.value,
            "PROP_CLIENT_VERSION": client.version,
            "PROP_CONSUMEORDERLY": "true" if _is_orderly(client.settings) else "false",
        },
        "statusTable": {},
        "subscriptionSet": consumer.subscriptions,
    }
    if stack:
        info["jstack"] = stack
    return encode_body(info, has_sets=True)
