"""The broker's wrappers around its handlers in a group with controllers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tandemmq.broker.autoswitch.term import (
    READS,
    TABLE_CHANGES,
    copied_routes,
    fenced_routes,
    verified_routes,
)
from tandemmq.errors import ServiceNotAvailable
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.remoting.dispatch import BlockRoute
from waits import until

REQUEST = Command.request(RequestCode.DELETE_TOPIC_IN_BROKER)
CHANNEL: Any = None


@pytest.mark.parametrize("is_asynchronous", [False, True])
@pytest.mark.parametrize("code", sorted(TABLE_CHANGES))
async def test_a_change_of_tables_is_answered_when_the_next_master_has_it(
    code: int, is_asynchronous: bool
) -> None:
    steps: list[str] = []
    may_go_on = asyncio.Event()

    def change(_channel: object, command: Command) -> Any:
        steps.append("changed")

        async def later() -> Command:
            return command.reply()

        return later() if is_asynchronous else command.reply()

    async def wait_copied() -> None:
        steps.append("waits")
        await may_go_on.wait()
        steps.append("copied")

    handler = copied_routes({code: change}, wait_copied)[code]
    answer = asyncio.ensure_future(handler(CHANNEL, REQUEST))  # type: ignore[arg-type]
    await until(lambda: len(steps) == 2 or answer.done())
    assert not answer.done()
    may_go_on.set()
    assert (await answer).code == ResponseCode.SUCCESS  # type: ignore[union-attr]
    assert steps == ["changed", "waits", "copied"]


async def test_requests_that_change_no_table_do_not_wait_for_members() -> None:
    async def wait_copied() -> None:
        raise AssertionError("nothing is to be copied")

    def refuse(_channel: object, command: Command) -> Command:
        return command.reply(ResponseCode.SYSTEM_ERROR)

    def stay_silent(_channel: object, _command: Command) -> None:
        return None

    code = RequestCode.DELETE_TOPIC_IN_BROKER
    refused = await copied_routes({code: refuse}, wait_copied)[code](CHANNEL, REQUEST)  # type: ignore[misc]
    assert refused.code == ResponseCode.SYSTEM_ERROR
    silent = copied_routes({code: stay_silent}, wait_copied)[code](CHANNEL, REQUEST)
    assert await silent is None  # type: ignore[misc]
    routes = copied_routes({RequestCode.SEND_MESSAGE: refuse}, wait_copied)
    assert routes[RequestCode.SEND_MESSAGE] is refuse


CLIENT_WRITES = (
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.END_TRANSACTION,
    RequestCode.POP_MESSAGE,
    RequestCode.ACK_MESSAGE,
    RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.LOCK_BATCH_MQ,
)


@pytest.mark.parametrize("code", CLIENT_WRITES)
def test_a_fenced_master_accepts_nothing_that_its_successor_would_lack(code: RequestCode) -> None:
    """This includes acknowledgements: the client would get SUCCESS, and the successor would deliver the
    message again.
    """
    may_write = [True]
    handled: list[int] = []

    def handle(_channel: object, command: Command) -> None:
        handled.append(command.code)

    forwarding: Any = Closed()
    handler = fenced_routes({code: handle}, lambda: may_write[0], forwarding)[code]
    assert handler(CHANNEL, Command.request(code)) is None
    may_write[0] = False
    with pytest.raises(ServiceNotAvailable, match="fenced"):
        handler(CHANNEL, Command.request(code))
    assert handled == [code]


def test_a_fenced_master_leaves_a_block_of_sends_to_the_fence() -> None:
    may_write = [True]
    taken: list[object] = []
    forwarding: Any = Closed()

    def take(_channel: object, frames: Any) -> bool:
        taken.append(frames)
        return True

    code = int(RequestCode.SEND_MESSAGE_V2)
    route = BlockRoute(lambda _channel, command: command.reply(), take)
    fenced = fenced_routes({code: route}, lambda: may_write[0], forwarding)[code]
    assert isinstance(fenced, BlockRoute)
    assert fenced.take(CHANNEL, [])
    may_write[0] = False
    assert not fenced.take(CHANNEL, [])
    assert taken == [[]]
    with pytest.raises(ServiceNotAvailable, match="fenced"):
        fenced(CHANNEL, Command.request(code))


class Closed:
    is_open = False


@pytest.mark.parametrize("code", sorted(READS))
def test_a_broker_that_may_be_of_another_group_serves_no_reads(code: int) -> None:
    """It has other messages at the same offsets; clients with an old route would mistake them for
    their own.
    """
    reason = ["it belongs to the group f"]
    handler = verified_routes({code: lambda _channel, command: command.reply()}, lambda: reason[0])[code]
    with pytest.raises(ServiceNotAvailable, match="belongs to the group f"):
        handler(CHANNEL, Command.request(code))
    reason[0] = ""
    answer = handler(CHANNEL, Command.request(code))
    assert isinstance(answer, Command)
    assert answer.code == ResponseCode.SUCCESS


def test_a_broker_that_is_not_proven_yet_takes_what_reads_nothing() -> None:
    code = RequestCode.GET_BROKER_EPOCH_CACHE
    handler = verified_routes({code: lambda _channel, command: command.reply()}, lambda: "not asked yet")[
        code
    ]
    assert isinstance(handler(CHANNEL, Command.request(code)), Command)
