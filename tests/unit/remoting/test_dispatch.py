"""The recorder of a request, which its guard returns, gets the outcome of every way to answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from tandemmq.errors import RequestRejected
from tandemmq.protocol.codes import FLAG_ONEWAY, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import Frame
from tandemmq.protocol.header_json import encode_header_json
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.dispatch import BlockRoute, Handler, RequestDispatcher
from tandemmq.runtime.tasks import TaskScope
from waits import until


class OneChannel:
    """A channel that keeps its answers."""

    def __init__(self, tasks_running: int = 0) -> None:
        self.peer = ("127.0.0.1", 1)
        self.tasks_running = tasks_running
        self.sent: list[Command] = []
        self.begun: list[int] = []

    def send(self, command: Command) -> None:
        self.sent.append(command)

    def begin_block(self, _code: int, opaques: Sequence[int]) -> None:
        self.begun += opaques


def _fails(_channel: Channel, _command: Command) -> Command:
    raise RequestRejected("the disk is full", code=ResponseCode.SYSTEM_ERROR)


async def _later_fails(channel: Channel, command: Command) -> Command:
    return _fails(channel, command)


async def _later(_channel: Channel, command: Command) -> Command:
    return command.reply(ResponseCode.SUCCESS)


@pytest.mark.parametrize(
    ("handler", "tasks_running", "outcome"),
    [
        (lambda _channel, command: command.reply(ResponseCode.SUCCESS), 0, (ResponseCode.SUCCESS, "")),
        (lambda _channel, _command: None, 0, (ResponseCode.SUCCESS, "")),
        (_fails, 0, (ResponseCode.SYSTEM_ERROR, "the disk is full")),
        (_later, 0, (ResponseCode.SUCCESS, "")),
        (_later_fails, 0, (ResponseCode.SYSTEM_ERROR, "the disk is full")),
        (
            _later,
            1,
            (ResponseCode.SYSTEM_BUSY, "[OVERLOAD]1 requests of this connection are being handled"),
        ),
    ],
    ids=["answered", "no answer", "rejected", "answered later", "rejected later", "too many in flight"],
)
async def test_the_recorder_gets_one_outcome_of_each_request(
    handler: Handler, tasks_running: int, outcome: tuple[int, str]
) -> None:
    recorded: list[tuple[int, str]] = []
    scope = TaskScope("test")
    channel = OneChannel(tasks_running)
    dispatcher = RequestDispatcher(
        {1: handler},
        scope,
        tasks_max=1,
        on_fatal=None,
        guard=lambda _channel, _command: lambda code, remark: recorded.append((code, remark)),
    )
    dispatcher.dispatch(cast(Any, channel), Command.request(1))
    await until(lambda: recorded)
    await scope.close()
    assert recorded == [outcome]


def _frames(*codes: int) -> list[Frame]:
    return [(encode_header_json(Command(code=code)), b"", 0) for code in codes]


def _dispatcher(take: Any, **settings: Any) -> RequestDispatcher:
    routes: dict[int, Handler] = {310: BlockRoute(_fails, take), 11: _fails}
    return RequestDispatcher(routes, TaskScope("test"), tasks_max=1, on_fatal=None, **settings)


@pytest.mark.parametrize(
    ("first", "is_taken"),
    [
        (_frames(310)[0][0], True),
        (_frames(11)[0][0], False),
        (_frames(999)[0][0], False),
        (b'{"code":310', False),
        (b'{"code":' + b"3" * 9000, False),
        (b'{"code":-310,"x":0}', False),
        (b'{"code":"310","x":0}', False),
        (b'{"opaque":1,"code":310}', False),
        (b"", False),
    ],
)
def test_a_block_goes_to_the_route_of_its_first_request(first: bytes, is_taken: bool) -> None:
    taken: list[int] = []

    def take(_channel: Channel, frames: Any) -> bool:
        taken.append(len(frames))
        return True

    frames = [(first, b"", 0), *_frames(310)]
    assert _dispatcher(take).dispatch_block(cast(Channel, OneChannel()), frames) is is_taken
    assert taken == ([2] if is_taken else [])


def test_no_block_passes_a_guard() -> None:
    def never(_channel: Channel, _frames: Any) -> bool:
        raise AssertionError("the guard was not asked")

    dispatcher = _dispatcher(never, guard=lambda _channel, _command: None)
    assert not dispatcher.dispatch_block(cast(Channel, OneChannel()), _frames(310))


def test_each_request_of_a_block_that_fails_is_answered_as_if_it_came_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def breaks(_channel: Channel, _frames: Any) -> bool:
        raise KeyError("a bug")

    oneway = Command(code=310, opaque=2, flag=FLAG_ONEWAY)
    commands = [Command(code=310, opaque=1), oneway, Command(code=11, opaque=3), Command(0, opaque=4).reply()]
    frames: list[Frame] = [(encode_header_json(command), b"", 0) for command in commands]
    channel = OneChannel()
    assert _dispatcher(breaks).dispatch_block(cast(Channel, channel), frames)
    assert [(answer.opaque, answer.code, answer.remark) for answer in channel.sent] == [
        (1, ResponseCode.SYSTEM_ERROR, "the request 310 failed: see the log"),
        (3, ResponseCode.SYSTEM_ERROR, "the request 11 failed: see the log"),
    ]
    assert channel.begun == [1, 3], "so that their time is measured"
    assert [vars(record)["code"] for record in caplog.records] == [310], "one line, not one for each"


def test_a_rejection_of_a_block_answers_each_of_its_requests() -> None:
    def rejects(_channel: Channel, _frames: Any) -> bool:
        raise RequestRejected("the disk is full", code=ResponseCode.SYSTEM_BUSY)

    channel = OneChannel()
    assert _dispatcher(rejects).dispatch_block(cast(Channel, channel), _frames(310, 310))
    assert [(answer.code, answer.remark) for answer in channel.sent] == [
        (ResponseCode.SYSTEM_BUSY, "the disk is full")
    ] * 2


def test_a_failed_assertion_in_a_block_goes_to_the_owner() -> None:
    def breaks(_channel: Channel, _frames: Any) -> bool:
        raise AssertionError("a bug")

    with pytest.raises(AssertionError, match="a bug"):
        _dispatcher(breaks).dispatch_block(cast(Channel, OneChannel()), _frames(310))
