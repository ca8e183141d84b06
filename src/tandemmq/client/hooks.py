"""The hooks of the application: what `on_send` and `on_consume` are called with, and the call itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from tandemmq.client.producer.results import SendResult
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.message import Message, ReceivedMessage
from tandemmq.telemetry import events
from tandemmq.telemetry.log_lines import event_logger

log = event_logger(__name__)


class SendEvent(NamedTuple):
    """The outcome of a send: `result` or `error`, never both."""

    message: Message
    result: SendResult | None
    error: BaseException | None
    took_s: float


class ConsumeEvent(NamedTuple):
    """The outcome of handling a message; `error` is the exception that the handler raised, or None when it
    asked for a retry.
    """

    message: ReceivedMessage
    is_success: bool
    error: BaseException | None
    took_s: float


CallHandler = Callable[[Any], Awaitable[object]]
HandleMiddleware = Callable[[Any, CallHandler], Awaitable[object]]
"""An async function of what the handler gets, a message or a list, and of the next one to call."""
CallSend = Callable[[Sequence[Message]], Awaitable[list[SendResult]]]
SendMiddleware = Callable[[Sequence[Message], CallSend], Awaitable[list[SendResult]]]
"""An async function of the messages of one request, and of the next one to call."""
OnSend = Callable[[SendEvent], object]
OnConsume = Callable[[ConsumeEvent], object]
OnQueues = Callable[[tuple[MessageQueue, ...]], object]
OnAddress = Callable[[str], object]

A = TypeVar("A")
R = TypeVar("R")


def call_hook(hook: Callable[[Any], object], event: object) -> None:
    """Calls the application's hook; an exception is logged and has no other effect."""
    try:
        hook(event)
    except Exception as error:  # the user's code
        log.warning(events.HOOK_FAILED, extra={"hook": repr(hook)}, exc_info=error)


class ConnectionEvents:
    """Reports lost connections, and their return, to the hooks of an application."""

    def __init__(self, on_disconnected: OnAddress | None, on_reconnected: OnAddress | None) -> None:
        self._on_disconnected = on_disconnected
        self._on_reconnected = on_reconnected
        self._lost: set[str] = set()

    def lost(self, address: str) -> None:
        """Records that the connection to the address was lost."""
        if self._on_reconnected is not None:
            self._lost.add(address)
        if self._on_disconnected is not None:
            call_hook(self._on_disconnected, address)

    def opened(self, address: str) -> None:
        """Records a new connection to the address."""
        if self._on_reconnected is not None and address in self._lost:
            self._lost.discard(address)
            call_hook(self._on_reconnected, address)


def chained(
    middleware: Sequence[Callable[[A, Callable[[A], R]], R]], call: Callable[[A], R]
) -> Callable[[A], R]:
    """Returns the call as the middleware surrounds it, the first one outermost."""
    for one in reversed(middleware):
        call = _bind(one, call)
    return call


def _bind(middleware: Callable[[A, Callable[[A], R]], R], call_next: Callable[[A], R]) -> Callable[[A], R]:
    return lambda argument: middleware(argument, call_next)
