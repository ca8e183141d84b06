"""Transactions, replies and recalls: END_TRANSACTION, SEND_REPLY_MESSAGE_V2, RECALL_MESSAGE (spec remoting
9.2, 9.7, 9.10).
"""

from __future__ import annotations

from tandemmq.api.broker_send import SEND_TIMEOUT_S, SendAnswer, read_send_answer
from tandemmq.api.calls import CALL_TIMEOUT_S, call, tell
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Buffer, Command
from tandemmq.protocol.requests.send import (
    EndTransactionRequest,
    RecallRequest,
    RecallResponse,
    SendRequestV2,
)
from tandemmq.remoting.client import RemotingClient


def end_command(header: EndTransactionRequest) -> Command:
    """The oneway request; an answer to a check goes over the connection that asked."""
    return Command.request(RequestCode.END_TRANSACTION, header, oneway=True)


async def end_transaction(client: RemotingClient, address: str, header: EndTransactionRequest) -> None:
    """Tell a broker how a transaction ended; whether it arrived is not known.

    Raises:  BrokerUnreachable if no connection could be made.
    """
    await tell(client, address, RequestCode.END_TRANSACTION, header)


async def send_reply(
    client: RemotingClient,
    address: str,
    header: SendRequestV2,
    body: Buffer,
    *,
    timeout_s: float = SEND_TIMEOUT_S,
) -> SendAnswer:
    """Have the broker push a reply to the client that waits for it.

    Raises:  RequestRejected when that client is not connected or refuses it.
    """
    command = Command.request(RequestCode.SEND_REPLY_MESSAGE_V2, header, body=body)
    return read_send_answer(await client.request(address, command, timeout_s))


async def recall(
    client: RemotingClient, address: str, topic: str, handle: str, *, timeout_s: float = CALL_TIMEOUT_S
) -> str:
    """The unique key of the timed message that is taken back.

    Raises:  RequestRejected when recalls are off, the handle is none of this broker, or it is too late.
    """
    header = RecallRequest(topic=topic, recall_handle=handle)
    answer = await call(client, address, RequestCode.RECALL_MESSAGE, header, timeout_s=timeout_s)
    return answer.decode(RecallResponse).message_id
