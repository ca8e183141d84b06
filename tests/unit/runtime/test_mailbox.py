from __future__ import annotations

import asyncio

import pytest

from tandemmq.runtime.mailbox import Mailbox, MailboxClosed, WhenFull


async def test_items_come_out_in_order() -> None:
    box: Mailbox[int] = Mailbox(3, WhenFull.WAIT)
    for item in (1, 2, 3):
        assert await box.put(item)
    assert not box.put_now(4)
    assert [await box.take(), len(box)] == [1, 2]
    assert box.take_all() == [2, 3]


async def test_full_mailbox_makes_the_putter_wait() -> None:
    box: Mailbox[int] = Mailbox(1, WhenFull.WAIT)
    await box.put(1)
    putting = asyncio.ensure_future(box.put(2))
    await asyncio.sleep(0)
    assert not putting.done()
    assert await box.take() == 1
    assert await putting
    assert await box.take() == 2


async def test_policies_when_full() -> None:
    rejecting: Mailbox[int] = Mailbox(2, WhenFull.REJECT)
    assert [rejecting.put_now(item) for item in (1, 2, 3)] == [True, True, False]
    dropping: Mailbox[int] = Mailbox(2, WhenFull.DROP_OLDEST)
    assert [await dropping.put(item) for item in (1, 2, 3)] == [True, True, True]
    assert (rejecting.take_all(), rejecting.dropped) == ([1, 2], 1)
    assert (dropping.take_all(), dropping.dropped) == ([2, 3], 1)


async def test_close_lets_the_rest_be_taken_and_wakes_waiters() -> None:
    box: Mailbox[int] = Mailbox(1, WhenFull.WAIT)
    await box.put(1)
    putting = asyncio.ensure_future(box.put(2))
    await asyncio.sleep(0)
    box.close()
    with pytest.raises(MailboxClosed):
        await putting
    assert await box.take() == 1
    with pytest.raises(MailboxClosed):
        await box.take()
    with pytest.raises(MailboxClosed):
        box.put_now(3)


async def test_taker_waits_for_an_item() -> None:
    box: Mailbox[int] = Mailbox(1, WhenFull.WAIT)
    taking = asyncio.ensure_future(box.take())
    await asyncio.sleep(0)
    box.put_now(9)
    assert await taking == 9
