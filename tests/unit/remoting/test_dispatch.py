"""The recorder of a request, which its guard returns, gets the outcome of every way to answer."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tandemmq.errors import RequestRejected
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.dispatch import Handler, RequestDispatcher
from tandemmq.runtime.tasks import TaskScope
from waits import until


class OneChannel:
    """A channel that keeps its answers."""

    def __init__(self, tasks_running: int = 0) -> None:
        self.peer = ("127.0.0.1", 1)
        self.tasks_running = tasks_running
        self.sent: list[Command] = []

    def send(self, command: Command) -> None:
        self.sent.append(command)


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
