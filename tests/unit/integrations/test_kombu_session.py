"""The messages that a channel may still get, shared by the readers of its queues."""

from __future__ import annotations

import asyncio

from tandemmq.integrations.kombu_session import Credit


async def test_readers_share_what_is_free() -> None:
    credit = Credit(lambda: 8)
    credit.reader_count = 2
    assert [await credit.reserve(32), await credit.reserve(32)] == [4, 4]
    third = asyncio.ensure_future(credit.reserve(32))
    await asyncio.sleep(0)
    assert not third.done()
    credit.release(4)
    assert await third == 4


async def test_a_reader_that_reserves_again_waits_behind_the_others() -> None:
    credit = Credit(lambda: 1)
    credit.reader_count = 2
    assert await credit.reserve(32) == 1
    other = asyncio.ensure_future(credit.reserve(32))
    await asyncio.sleep(0)
    credit.release(1)
    again = asyncio.ensure_future(credit.reserve(32))
    assert await other == 1
    assert not again.done()
    credit.release(1)
    assert await again == 1
