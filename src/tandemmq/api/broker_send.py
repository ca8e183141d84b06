"""Requests of producers to a broker: storing messages, ending transactions, replies and recalls. Also sending
a message back for a retry (spec remoting 9.2, 9.6, 9.7, 9.10).
"""

from __future__ import annotations

from enum import Enum

import msgspec

from tandemmq.api.calls import Call, done, given
from tandemmq.protocol import rejections
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests import send as headers
from tandemmq.remoting.client import RemotingClient
from tandemmq.units import Buffer

SEND_TIMEOUT_S = 3.0


class SendStatus(Enum):
    """The result of a send. Each status means that the master has stored the message; the last three also
    mean that a guarantee was not met in time.

    SEND_OK              flushed and replicated as configured at the broker
    FLUSH_DISK_TIMEOUT   not flushed to disk within the broker's time limit
    FLUSH_SLAVE_TIMEOUT  not acknowledged by the slave within the limit
    SLAVE_NOT_AVAILABLE  no slave (or too few) connected
    """

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


STATUS_OF_CODE: dict[int, SendStatus] = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}
"""The response codes that are results, not errors (spec semantics 3.3); every other code raises."""


class SendAnswer(msgspec.Struct, frozen=True, gc=False):
    """A stored message or batch. For a batch, `message_id` is a comma-separated list and `queue_offset` is
    that of the first message.
    """

    status: SendStatus
    message_id: str
    queue_id: int
    queue_offset: int
    transaction_id: str | None = None
    recall_handle: str | None = None
    region: str = "DefaultRegion"
    is_traced: bool = True


def send_command(header: headers.SendRequestV2, body: Buffer, *, oneway: bool = False) -> Command:
    """Returns the request for a message or a batch, for producers that pipeline their sends."""
    code = RequestCode.SEND_BATCH_MESSAGE if header.is_batch else RequestCode.SEND_MESSAGE_V2
    return Command.request(code, header, body=body, oneway=oneway)


def read_send_answer(answer: Command) -> SendAnswer:
    """Decodes the broker's answer.

    Raises:  the RequestRejected class of any code that is not one of the four statuses.
    """
    status = STATUS_OF_CODE.get(answer.code)
    if status is None:
        raise rejections.to_error(answer)
    header = answer.decode(headers.SendResponse)
    return SendAnswer(
        status,
        header.message_id,
        header.queue_id,
        header.queue_offset,
        header.transaction_id,
        header.recall_handle,
        header.region,
        header.is_traced,
    )


async def send(
    client: RemotingClient,
    address: str,
    header: headers.SendRequestV2,
    body: Buffer,
    *,
    timeout_s: float = SEND_TIMEOUT_S,
) -> SendAnswer:
    """Sends a message, or a batch if the header says so."""
    return read_send_answer(await client.request(address, send_command(header, body), timeout_s))


async def send_oneway(
    client: RemotingClient, address: str, header: headers.SendRequestV2, body: Buffer
) -> None:
    """Sends a message without waiting for an answer; the caller does not learn if the message was stored."""
    await client.send_oneway(address, send_command(header, body, oneway=True))


send_back = Call(RequestCode.CONSUMER_SEND_MSG_BACK, given(headers.SendBackRequest), done)
"""Asks the broker to deliver a stored message again later, or to move it to the dead letters."""

# Transactions, replies and recalls: END_TRANSACTION, SEND_REPLY_MESSAGE_V2, RECALL_MESSAGE.


def end_command(header: headers.EndTransactionRequest) -> Command:
    """Returns the one-way request that ends a transaction, for an answer to a check, which must use the
    connection of the check.
    """
    return Command.request(RequestCode.END_TRANSACTION, header, oneway=True)


async def end_transaction(
    client: RemotingClient, address: str, header: headers.EndTransactionRequest
) -> None:
    """Reports the outcome of a transaction to a broker; the caller does not learn if the report arrived.

    Raises:  BrokerUnreachable if no connection could be made.
    """
    await client.send_oneway(address, end_command(header))


async def send_reply(
    client: RemotingClient,
    address: str,
    header: headers.SendRequestV2,
    body: Buffer,
    *,
    timeout_s: float = SEND_TIMEOUT_S,
) -> SendAnswer:
    """Makes the broker push a reply to the client that waits for it.

    Raises:  RequestRejected when that client is not connected or rejects the reply.
    """
    command = Command.request(RequestCode.SEND_REPLY_MESSAGE_V2, header, body=body)
    return read_send_answer(await client.request(address, command, timeout_s))


recall = Call(
    RequestCode.RECALL_MESSAGE,
    headers.RecallRequest,
    lambda answer: answer.decode(headers.RecallResponse).message_id,
)
"""Recalls a timed message; returns its unique key.

Raises RequestRejected when recalls are off, the handle is from another broker, or it is too late.
"""
