"""Calls the handler of a request and sends its answer; used by servers, and by clients for requests that
brokers push.

A handler is called in the loop turn in which its request was read. Errors become answers only here. A failed
assertion or a fatal error is not answered but passed to the owner's `on_fatal`, because the process must
stop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tandemmq.errors import RemoteProtocolError, RequestRejected, TandemError
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import Frame, decode_frames
from tandemmq.remoting.channel import Channel, OnBlock
from tandemmq.runtime.tasks import OnFatal, TaskScope
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

Waiting = Coroutine[Any, Any, Command | None]
Handler = Callable[[Channel, Command], Command | Waiting | None]
"""The result of a handler: a Command is sent at once; None sends nothing now (the handler answers later by
`channel.send`); a coroutine runs as a task and its result is sent.
"""
_CODE_FIRST: Final = b'{"code":'
_CODE_END_MAX: Final = len(_CODE_FIRST) + 7


@dataclass(frozen=True, slots=True)
class BlockRoute:
    """A handler whose requests may also be handled many at once, with `take`."""

    handle: Handler
    take: OnBlock

    def __call__(self, channel: Channel, command: Command) -> Command | Waiting | None:
        return self.handle(channel, command)


RequestRecorder = Callable[[int, str], None]
"""Records the response code and the remark of one request."""
Guard = Callable[[Channel, Command], RequestRecorder | None]
"""A check called before the handler; raises RequestRejected for a request that must not be served. For a
request whose outcome is to be recorded, the guard returns the recorder.
"""


class RequestDispatcher:
    """Calls handlers by code. `routes` is consulted for each request and may grow."""

    __slots__ = ("_guard", "_on_fatal", "_routes", "_scope", "_tasks_max")

    def __init__(
        self,
        routes: Mapping[int, Handler],
        scope: TaskScope,
        *,
        tasks_max: int,
        on_fatal: OnFatal | None,
        guard: Guard | None = None,
    ) -> None:
        self._guard = guard
        self._routes = routes
        self._scope = scope
        self._tasks_max = tasks_max
        self._on_fatal = on_fatal

    def dispatch(self, channel: Channel, command: Command) -> None:
        """Calls the handler of `command`; raises only fatal errors, and only without `on_fatal`."""
        handler = self._routes.get(command.code)
        if handler is None:
            _answer(
                channel, command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, _unsupported_remark(command.code)
            )
            return
        record: RequestRecorder | None = None
        try:
            if self._guard is not None:
                record = self._guard(channel, command)
            result = handler(channel, command)
            if result is None or isinstance(result, Command):
                if record is not None:
                    _record_answer(record, result)
                if result is not None and not command.is_oneway:
                    channel.send(result)
                return
        except Exception as error:  # noqa: BLE001  # the edge where errors become answers
            self._on_error(channel, command, error, record)
            return
        self._start(channel, command, result, record)

    def dispatch_block(self, channel: Channel, frames: Sequence[Frame]) -> bool:
        """Handles requests that arrived together, if the route of the first one takes them all as a block.

        Returns False, and does nothing, if they must be dispatched one by one. With a guard they always are.
        An error of the route answers each of them.
        Raises:  RemoteProtocolError after such an error if a header is invalid.
        """
        if self._guard is not None:
            return False
        code = _leading_code(frames[0][0])
        route = self._routes.get(code)
        if type(route) is not BlockRoute:
            return False
        try:
            return route.take(channel, frames)
        except Exception as error:  # noqa: BLE001  # as in `dispatch`
            if _is_fatal(error):
                self._fail(error)
                return True
            _log_unexpected(error, code, channel)
            # A failed request may have taken effect, here as there.
            for command in decode_frames(frames):
                if not command.is_response:
                    if not command.is_oneway:
                        channel.begin_block(command.code, (command.opaque,))
                    _answer_error(channel, command, error)
            return True

    def switch(self, routes: Mapping[int, Handler], scope: TaskScope, *, guard: Guard | None = None) -> None:
        """Sends requests to these handlers from now on."""
        self._routes, self._scope, self._guard = routes, scope, guard

    def _start(
        self, channel: Channel, command: Command, waiting: Waiting, record: RequestRecorder | None
    ) -> None:
        if channel.tasks_running >= self._tasks_max:
            waiting.close()
            remark = f"[OVERLOAD]{self._tasks_max} requests of this connection are being handled"
            if record is not None:
                record(ResponseCode.SYSTEM_BUSY, remark)
            _answer(channel, command, ResponseCode.SYSTEM_BUSY, remark)
            return
        channel.tasks_running += 1
        self._scope.start(f"request-{command.code}", self._run(channel, command, waiting, record))

    async def _run(
        self, channel: Channel, command: Command, waiting: Waiting, record: RequestRecorder | None
    ) -> None:
        try:
            reply = await waiting
            if record is not None:
                _record_answer(record, reply)
            if reply is not None and not command.is_oneway:
                channel.send(reply)
        except Exception as error:  # noqa: BLE001  # as above
            self._on_error(channel, command, error, record)
        finally:
            channel.tasks_running -= 1

    def _on_error(
        self, channel: Channel, command: Command, error: Exception, record: RequestRecorder | None
    ) -> None:
        if record is not None:
            _record_error(record, error)
        if _is_fatal(error):
            self._fail(error)
            return
        _log_unexpected(error, command.code, channel)
        _answer_error(channel, command, error)

    def _fail(self, error: Exception) -> None:
        if self._on_fatal is None:
            raise error
        self._on_fatal(error)


def _is_fatal(error: Exception) -> bool:
    return isinstance(error, AssertionError) or (isinstance(error, TandemError) and error.fatal)


def _leading_code(header: bytes) -> int:
    """Returns the request code of a JSON header that begins with it, as those of most clients do; -1
    otherwise.
    """
    if not header.startswith(_CODE_FIRST):
        return -1
    digits = header[len(_CODE_FIRST) : max(0, header.find(b",", len(_CODE_FIRST), _CODE_END_MAX))]
    return int(digits) if digits.isdigit() else -1


def _record_answer(record: RequestRecorder, answer: Command | None) -> None:
    record(*((ResponseCode.SUCCESS, "") if answer is None else (answer.code, answer.remark or "")))


def _record_error(record: RequestRecorder, error: Exception) -> None:
    if isinstance(error, RequestRejected):
        record(error.code, error.remark)
    else:
        record(ResponseCode.SYSTEM_ERROR, str(error))


def _unsupported_remark(code: int) -> str:
    """Returns the error text for an unknown code; a RocketMQ code without support is named, with the
    reason, and so is a code of another kind of server.
    """
    # The client, which answers requests too, starts without it.
    from tandemmq.protocol.catalogue import CATALOGUE, NOT_OURS

    text = f"request code {code} is not supported"
    if code in CATALOGUE:
        row = CATALOGUE[code]
        return f"{text}: {row.name} is a request to a {row.served_by.value}"
    name, reason = NOT_OURS.get(code, ("", ""))
    return f"{text}: {name}, {reason}" if name else text


def _log_unexpected(error: Exception, code: int, channel: Channel) -> None:
    """Logs the failure of a request, or of requests that arrived together, unless its peer caused it."""
    if not isinstance(error, RequestRejected | RemoteProtocolError):
        log.error(events.REQUEST_FAILED, extra={"code": code, "peer": channel.peer}, exc_info=error)


def _answer_error(channel: Channel, command: Command, error: Exception) -> None:
    if isinstance(error, RequestRejected):
        _answer(channel, command, error.code, error.remark)
        return
    is_known = isinstance(error, RemoteProtocolError)  # the frame was valid, its body was not
    # Other errors are only logged: the text may contain paths or other peers' data.
    remark = str(error) if is_known else f"the request {command.code} failed: see the log"
    _answer(channel, command, ResponseCode.SYSTEM_ERROR, remark)


def _answer(channel: Channel, command: Command, code: int, remark: str) -> None:
    if not command.is_oneway:
        channel.send(command.reply(code, remark=remark))
