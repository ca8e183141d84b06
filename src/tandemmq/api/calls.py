"""The request functions that all calls of this folder use; they turn a rejection into an error."""

from __future__ import annotations

from tandemmq.protocol import rejections
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command, Header
from tandemmq.remoting.client import RemotingClient

CALL_TIMEOUT_S = 3.0
"""The default timeout in seconds: RocketMQ's mqClientApiTimeout (spec semantics 25.1)."""


async def call(
    client: RemotingClient,
    address: str,
    code: int,
    header: Header | None = None,
    *,
    body: bytes = b"",
    timeout_s: float = CALL_TIMEOUT_S,
) -> Command:
    """Sends a request that must succeed, and returns the answer.

    Raises:  the RequestRejected class of the response code; BrokerUnreachable; RequestTimeout.
    """
    answer = await call_raw(client, address, code, header, body=body, timeout_s=timeout_s)
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return answer


async def call_raw(
    client: RemotingClient,
    address: str,
    code: int,
    header: Header | None = None,
    *,
    body: bytes = b"",
    timeout_s: float = CALL_TIMEOUT_S,
) -> Command:
    """Sends a request and returns the answer whatever its code, for requests where a code is an outcome
    (nothing found, no member online).
    """
    return await client.request(address, Command.request(code, header, body=body), timeout_s)


async def call_oneway(
    client: RemotingClient, address: str, code: int, header: Header | None = None, *, body: bytes = b""
) -> None:
    """Sends a one-way request; the caller does not learn if it arrived.

    Raises:  BrokerUnreachable if no connection could be made.
    """
    await client.send_oneway(address, Command.request(code, header, body=body, oneway=True))
