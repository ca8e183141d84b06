"""Requests as values: a `Call` is the code of a request, the builder of its content, and the reader of its
answer.

    query_topic_stats = Call(RequestCode.GET_TOPIC_STATS_INFO, TopicStatsRequest, body(decode_topic_stats))
    stats = await query_topic_stats(client, address, topic="Orders")

The arguments after the address are those of the builder: in most cases the fields of the request's header.
Each module of `api` is a list of such values, one per request.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, ClassVar, Final, Generic, NamedTuple, ParamSpec, TypeVar

from tandemmq.errors import NotNameServer, TandemError
from tandemmq.protocol import rejections
from tandemmq.protocol.bodies.codec import decode_body
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command, Header
from tandemmq.protocol.properties_file import edit_properties, parse_properties
from tandemmq.remoting.client import RemotingClient
from tandemmq.units import Buffer

P = ParamSpec("P")
A = TypeVar("A")
H = TypeVar("H", bound=Header)

ADMIN_TIMEOUT_S = 5.0
"""The timeout of requests of operators' tools: mqadmin's default (spec remoting 8.8)."""


class RequestContent(NamedTuple):
    """The content of a request that has more than a header or a body."""

    header: Header | None = None
    body: Buffer = b""
    fields: Mapping[str, str] | None = None


class Call(Generic[P, A]):
    """One kind of request; calling the value sends a request and returns the decoded answer.

    `read` decodes a successful answer, `outcomes` those whose codes are results and not errors, such as
    nothing found. Without `timeout_s` the client's own timeout applies (`ConnectionOptions.call_timeout_s`).

    Raises:  the RequestRejected class of the response code; BrokerUnreachable; RequestTimeout.
    """

    TIMEOUT_S: ClassVar[float | None] = None

    def __init__(
        self,
        code: RequestCode,
        make: Callable[P, Header | Buffer | RequestContent],
        read: Callable[[Command], A],
        *,
        outcomes: Mapping[int, Callable[[Command], A]] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self._code = code
        self._make = make
        self._outcomes = {int(ResponseCode.SUCCESS): read, **(outcomes or {})}
        self._timeout_s = self.TIMEOUT_S if timeout_s is None else timeout_s

    def __call__(
        self, client: RemotingClient, address: str, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, A]:
        """Sends the request and returns the decoded answer."""
        return self._send(self._timeout_s, client, address, self._make(*args, **kwargs))

    def within(
        self, timeout_s: float, client: RemotingClient, address: str, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, A]:
        """Sends the request with the timeout `timeout_s`."""
        return self._send(timeout_s, client, address, self._make(*args, **kwargs))

    async def _send(
        self,
        timeout_s: float | None,
        client: RemotingClient,
        address: str,
        made: Header | Buffer | RequestContent,
    ) -> A:
        if isinstance(made, Header):
            made = RequestContent(made)
        elif not isinstance(made, RequestContent):
            made = RequestContent(body=made)
        answer = await call_raw(
            client, address, self._code, made.header, body=made.body, fields=made.fields, timeout_s=timeout_s
        )
        read = self._outcomes.get(answer.code)
        if read is not None:
            return read(answer)
        raise await self._find_error(client, address, answer)

    async def _find_error(self, client: RemotingClient, address: str, answer: Command) -> TandemError:
        return rejections.to_error(answer)


class AdminCall(Call[P, A]):
    """A request of an operator's tool: its timeout is ADMIN_TIMEOUT_S."""

    TIMEOUT_S = ADMIN_TIMEOUT_S


_OTHER_SERVERS: Final = {
    "broker": RequestCode.GET_BROKER_RUNTIME_INFO,
    "controller": RequestCode.CONTROLLER_GET_METADATA_INFO,
}
"""The servers that a user may mistake for a name server, each with a request that only this kind answers."""


class NameServerCall(Call[P, A]):
    """A request to name servers. Raises NotNameServer, too, when the address is that of a broker or a
    controller.
    """

    async def _find_error(self, client: RemotingClient, address: str, answer: Command) -> TandemError:
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            for kind, known in _OTHER_SERVERS.items():
                reply = await call_raw(client, address, known)
                if reply.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    return NotNameServer(
                        f"{address} is a {kind}, not a name server: give a name server's address, usually"
                        " with port 9876"
                    )
        return rejections.to_error(answer)


async def call(
    client: RemotingClient,
    address: str,
    code: int,
    header: Header | None = None,
    *,
    body: Buffer = b"",
    timeout_s: float | None = None,
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
    body: Buffer = b"",
    fields: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> Command:
    """Sends a request and returns the answer, whatever its code. Raises BrokerUnreachable, RequestTimeout."""
    if timeout_s is None:
        timeout_s = client.options.call_timeout_s
    return await client.request(address, Command.request(code, header, body=body, fields=fields), timeout_s)


# Builders of requests, and readers of answers


def empty() -> bytes:
    """Builds a request without content."""
    return b""


def given(kind: type[H]) -> Callable[[H], H]:
    """Returns a builder for callers that pass a complete header of this type."""
    return lambda header: header


def one_setting(key: str, value: str) -> bytes:
    """Builds a request that changes one setting: the line of a Java properties file."""
    return edit_properties(b"", {key: value})


def body(decode: Callable[[Buffer], A]) -> Callable[[Command], A]:
    """Returns a reader of the answer's body."""
    return lambda answer: decode(answer.body)


def value(shape: type[A]) -> Callable[[Command], A]:
    """Returns a reader of the answer's body, a JSON text of this shape."""
    return lambda answer: decode_body(answer.body, shape)


def optional(shape: type[A]) -> Callable[[Command], A | None]:
    """Returns a reader of the answer's body as `value` does; None for an answer without a body."""
    return lambda answer: decode_body(answer.body, shape) if answer.body else None


def entries(shape: type[A]) -> Callable[[Command], list[A]]:
    """Returns a reader of a list in the answer's body; an empty list for an answer without a body."""
    kind: type[list[A]] = list[shape]  # type: ignore[valid-type]  # it is a type
    return lambda answer: decode_body(answer.body or b"[]", kind)


def header(kind: type[H]) -> Callable[[Command], H]:
    """Returns a reader of the answer's header."""
    return lambda answer: answer.decode(kind)


def done(answer: Command) -> None:
    """Reads an answer that has no content."""


def absent(answer: Command) -> None:
    """Reads an answer whose code says that the requested object does not exist; the result is None."""


def remark(answer: Command) -> str:
    """Returns the remark of the answer, an empty text without one."""
    return answer.remark or ""


def settings(answer: Command) -> dict[str, str]:
    """Returns the settings in the body of the answer, a Java properties file. Raises ConfigError."""
    held = parse_properties(bytes(answer.body), "the settings of the server")
    return {key: setting.text for key, setting in held.items()}
