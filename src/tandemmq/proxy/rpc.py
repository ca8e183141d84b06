"""The seam between the transport of gRPC and the handlers of the proxy.

The transport knows calls, which carry bytes, and methods, which are served with calls. The handlers know
requests and answers, which are protobuf messages, and the caller. A `Method` made by `unary`, `server_stream`
or `two_way` decodes, identifies the caller, and turns errors into answers with a status.

Source: spec proxy 2.9, 2.10, 3.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple, Protocol

from tandemmq.errors import TandemError
from tandemmq.proxy.limited_lines import LimitedLines
from tandemmq.proxy.schema import message_class
from tandemmq.proxy.statuses import Code, RpcRefused, code_of
from tandemmq.runtime.ports import Address
from tandemmq.telemetry import events
from tandemmq.units import KIB

log = logging.getLogger(__name__)

SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"

GATHERED_BYTES: Final = 64 * KIB
"""The bytes of an answer's elements that are sent together; a frame for each costs more than its message."""

Message = Any
"""A protobuf message of `schema`; its classes are made at run time, so no static type describes them."""


class GrpcStatus(IntEnum):
    """The gRPC statuses that the proxy uses (spec proxy 2.10)."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class GrpcFailure(TandemError):
    """The end of a call with a gRPC status other than OK."""

    def __init__(self, status: GrpcStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class GrpcCall(Protocol):
    """One call, as the transport provides it. When the peer cancels the call, its connection is lost, or its
    deadline passes, the task of the handler is cancelled.

    code  the code of the answer's status, for the metrics; 0 without one
    """

    code: int

    @property
    def peer(self) -> Address: ...

    @property
    def lines(self) -> LimitedLines:
        """The log lines of all calls."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """The request headers, names in lower case; the last value of a repeated name."""

    @property
    def deadline_s(self) -> float:
        """The end of the call on `Clock.monotonic`; infinite without a deadline."""

    async def start(self) -> None:
        """Sends the response headers now instead of with the first message."""

    async def send(self, *messages: bytes) -> None:
        """Sends messages, in as few frames as they fit in; waits while the peer's flow control window, or the
        socket, is full. Tasks may send concurrently. Raises GrpcFailure CANCELLED after the end of the call.
        """

    async def receive(self) -> bytes | None:
        """Returns the next message of the peer; None when it has ended its side.

        Raises:  RpcRefused TOO_MANY_REQUESTS when the proxy is overloaded; GrpcFailure for a message that is
                 too large or compressed, and after the end of the call.
        """


class Method(NamedTuple):
    """One rpc as the transport serves it. `serve` returns for status OK and raises GrpcFailure for others.

    A held rpc has calls that last: the transport has another bound for their number. The calls of a poll last
    until there is an answer; those of other held rpcs may last as long as the client.
    """

    path: str
    serve: Callable[[GrpcCall], Awaitable[None]]
    is_held: bool = False
    is_poll: bool = False


@dataclass(frozen=True, slots=True)
class Caller:
    """The client behind a call (spec proxy 3.1).

    client_id   `x-mq-client-id`, never empty
    deadline_s  the end of the call on `Clock.monotonic`; infinite without a deadline
    access_key  the authenticated user; empty for an anonymous caller
    """

    client_id: str
    language: str
    version: str
    namespace: str
    peer: Address
    deadline_s: float
    access_key: str = ""


Admit = Callable[[GrpcCall, Message], Awaitable[Caller]]
"""Returns the caller of a request that may be served; raises RpcRefused."""
Unary = Callable[[Caller, Message], Awaitable[Message]]
Send = Callable[[Iterable[Message]], Awaitable[None]]
"""Writes elements of the answer, in order; asks for further ones when GATHERED_BYTES of them are sent."""
Streaming = Callable[[Caller, Message, Send], Awaitable[None]]


def unary(name: str, admit: Admit, handle: Unary) -> Method:
    """Returns the method of an rpc with one answer; an error becomes an answer that has only a status."""
    request, response = _messages_of(name)

    async def serve(call: GrpcCall) -> None:
        try:
            asked = await receive_one(call, request)
            answer = await handle(await admit(call, asked), asked)
        except TandemError as error:
            if isinstance(error, GrpcFailure):
                raise
            answer = response(status=failed_status(name, error, call.lines))
        call.code = answer.status.code
        await call.send(answer.SerializeToString())

    return Method(SERVICE + name, serve)


def server_stream(name: str, admit: Admit, handle: Streaming) -> Method:
    """Returns the method of a poll, whose answer is a stream; an error becomes its last element."""
    request, response = _messages_of(name)

    async def serve(call: GrpcCall) -> None:
        async def send(answers: Iterable[Message]) -> None:
            gathered: list[bytes] = []
            size = 0
            for answer in answers:
                if not call.code:
                    call.code = answer.status.code
                gathered.append(answer.SerializeToString())
                size += len(gathered[-1])
                if size >= GATHERED_BYTES:
                    await call.send(*gathered)
                    gathered, size = [], 0
            if gathered:
                await call.send(*gathered)

        try:
            asked = await receive_one(call, request)
            await handle(await admit(call, asked), asked, send)
        except TandemError as error:
            if isinstance(error, GrpcFailure):
                raise
            answer = response(status=failed_status(name, error, call.lines))
            call.code = answer.status.code
            await send([answer])

    return Method(SERVICE + name, serve, is_held=True, is_poll=True)


def _messages_of(name: str) -> tuple[Message, Message]:
    """Returns the classes of an rpc's request and response, which have its name."""
    return message_class(f"{name}Request"), message_class(f"{name}Response")


async def receive_one(call: GrpcCall, request: Message) -> Message:
    """Returns the request of a call that has one. Raises GrpcFailure without one; RpcRefused as `parse`."""
    data = await call.receive()
    if data is None:
        raise GrpcFailure(GrpcStatus.INTERNAL, "the call ended without a request")
    return parse(request, data)


def parse(shape: Message, data: bytes) -> Message:
    """Decodes a request. Raises RpcRefused BAD_REQUEST for bytes of another shape."""
    try:
        return shape.FromString(data)
    except Exception as error:  # noqa: BLE001  # the library's DecodeError has no typed import
        raise RpcRefused(Code.BAD_REQUEST, f"the request cannot be decoded: {error}") from None


def grpc_status_of(code: Code) -> GrpcStatus:
    """Returns the gRPC status for a refusal where the answer has no field for a status (spec proxy 2.10)."""
    if code is Code.TOO_MANY_REQUESTS:
        return GrpcStatus.RESOURCE_EXHAUSTED
    if code is Code.UNSUPPORTED or code < Code.INTERNAL_SERVER_ERROR:
        return GrpcStatus.INVALID_ARGUMENT
    return GrpcStatus.INTERNAL


def failed_status(name: str, error: TandemError, lines: LimitedLines) -> dict[str, Any]:
    """Returns the fields of the status that answers an error; logs errors of the proxy itself."""
    code = code_of(error)
    if code == Code.INTERNAL_SERVER_ERROR:
        lines.write(log, events.PROXY_RPC_FAILED, {"rpc": name, "error": str(error)})
    return {"code": int(code), "message": str(error) or code.name}


OK: Final[dict[str, Any]] = {"code": int(Code.OK), "message": Code.OK.name}
"""The fields of the status of success."""
