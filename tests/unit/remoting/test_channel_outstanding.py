from __future__ import annotations

import pytest

from tandemmq.errors import Busy
from tandemmq.remoting.channel import OPAQUE_MAX, OutstandingRequests


def test_opaques_wrap_to_one_and_skip_those_that_wait() -> None:
    table = OutstandingRequests(10)
    assert [table.add(print, 0), table.add(print, 0)] == [1, 2]
    table._opaque = OPAQUE_MAX
    assert table.add(print, 0) == 3
    table._opaque = OPAQUE_MAX - 1
    assert table.next_opaque() == OPAQUE_MAX


def test_expiry_takes_what_is_due_oldest_first() -> None:
    table = OutstandingRequests(10)
    callbacks = [lambda _, number=number: number for number in range(4)]
    for callback, deadline in zip(callbacks, (5.0, 1.0, 3.0, 1.0), strict=True):
        table.add(callback, deadline)
    assert table.next_deadline() == 1.0
    assert table.take_expired(3.0) == [callbacks[1], callbacks[2], callbacks[3]]
    assert table.take_expired(3.0) == []
    assert len(table) == 1
    assert table.take_all() == [callbacks[0]]
    assert table.next_deadline() is None


def test_bound() -> None:
    table = OutstandingRequests(1)
    opaque = table.add(print, 0)
    with pytest.raises(Busy):
        table.add(print, 0)
    assert table.take(opaque) is print
    assert table.take(opaque) is None
