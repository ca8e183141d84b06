"""The messages that a channel may still get, shared by the readers of its queues; the messages that wait for
the thread of the connection.
"""

from __future__ import annotations

import asyncio
import os
import select

import pytest

from tandemmq.errors import BrokerUnreachable
from tandemmq.integrations.kombu_session import ArrivedMessages, Credit, Delivery


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


def test_the_descriptor_is_readable_while_messages_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "eventfd", raising=False)  # as on macOS and Windows
    arrivals = ArrivedMessages()
    one, other = Delivery("a", b"1", 0), Delivery("b", b"2", 0)

    def is_readable() -> bool:
        return bool(select.select([arrivals.wake_fd], [], [], 0)[0])

    assert not is_readable()
    for _ in range(2):
        arrivals.put(one)
        arrivals.put(other)
        assert arrivals.take(None) is one
        assert is_readable()
        assert arrivals.take(None) is other
        assert not is_readable()
    arrivals.put(one)
    assert arrivals.withdraw("b") == []
    assert is_readable()
    assert arrivals.withdraw("a") == [one]
    assert not is_readable()
    assert arrivals.take(0) is None
    arrivals.put(other)
    arrivals.close()
    with pytest.raises(BrokerUnreachable):
        arrivals.take(None)
    arrivals.put(one)
    arrivals.close()
