"""The one way in which all calls of this folder ask, and turn a refusal into an error."""

from __future__ import annotations

from tandemmq.protocol import rejections
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command, Header
from tandemmq.remoting.client import RemotingClient

CALL_TIMEOUT_S = 3.0
"""RocketMQ's mqClientApiTimeout (spec semantics 25.1)."""


async def call(
    client: RemotingClient,
    address: str,
    code: int,
    header: Header | None = None,
    *,
    body: bytes = b"",
    timeout_s: float = CALL_TIMEOUT_S,
) -> Command:
    """The answer of a request that must succeed.

    Raises:  the RequestRejected class of the response code; BrokerUnreachable; RequestTimeout.
    """
    answer = await ask(client, address, code, header, body=body, timeout_s=timeout_s)
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return answer


async def ask(
    client: RemotingClient,
    address: str,
    code: int,
    header: Header | None = None,
    *,
    body: bytes = b"",
    timeout_s: float = CALL_TIMEOUT_S,
) -> Command:
    """The answer whatever its code, for requests where a code is an outcome (nothing found, nobody
    online).
    """
    return await client.request(address, Command.request(code, header, body=body), timeout_s)


async def tell(
    client: RemotingClient, address: str, code: int, header: Header | None = None, *, body: bytes = b""
) -> None:
    """Send without an answer: arrival is not known.

    Raises:  BrokerUnreachable if no connection could be made.
    """
    await client.send_oneway(address, Command.request(code, header, body=body, oneway=True))
