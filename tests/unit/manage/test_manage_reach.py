"""Reads of several brokers at once, and the features that brokers lack."""

from __future__ import annotations

import asyncio

import pytest

from tandemmq.errors import BrokerUnreachable, NotPermitted, RequestRejected, RequestTimeout
from tandemmq.manage.reach import READS_AT_ONCE_MAX, WORKS_AT_ONCE_MAX, ask_each, if_supported, map_each
from tandemmq.protocol.codes import ResponseCode


async def test_each_target_has_an_outcome_in_order() -> None:
    async def read(target: str) -> int:
        if target == "silent":
            await asyncio.Event().wait()
        if target == "gone":
            raise BrokerUnreachable("no connection")
        if target == "slow":
            raise RequestTimeout("slow: no answer within 7 s")
        if target == "closed":
            raise NotPermitted("may not")
        return len(target)

    found = await ask_each(["one", "silent", "gone", "closed", "slow"], read, timeout_s=0.05)
    assert [one.target for one in found] == ["one", "silent", "gone", "closed", "slow"]
    assert [one.answer for one in found] == [3, None, None, None, None]
    assert [one.is_denied for one in found] == [False, False, False, True, False]
    assert [one.error for one in found[:3]] == ["", "no answer within 0.05 s", "no connection"]
    assert found[4].error == "slow: no answer within 7 s"


async def test_reads_at_once_are_bounded() -> None:
    running, most = 0, 0

    async def read(_: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    await ask_each(range(3 * READS_AT_ONCE_MAX), read)
    assert most == READS_AT_ONCE_MAX


async def test_no_further_work_begins_after_an_error() -> None:
    begun: list[int] = []

    async def work(item: int) -> None:
        begun.append(item)
        await asyncio.sleep(0)
        if item == 0:
            raise BrokerUnreachable("no connection")

    with pytest.raises(BrokerUnreachable):
        await map_each(range(10 * WORKS_AT_ONCE_MAX), work)
    count = len(begun)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(begun) == count < 10 * WORKS_AT_ONCE_MAX


async def unsupported() -> str:
    raise RequestRejected("request type 1 not supported", code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED)


async def supported() -> str:
    return "done"


async def denied() -> str:
    raise NotPermitted("may not")


async def test_a_request_that_a_broker_lacks_has_no_result() -> None:
    assert await if_supported(supported()) == "done"
    assert await if_supported(unsupported()) is None
    with pytest.raises(NotPermitted):
        await if_supported(denied())
