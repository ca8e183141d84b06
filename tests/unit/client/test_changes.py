"""Changes at several brokers, some of which fail."""

from __future__ import annotations

import pytest

from tandemmq.client.changes import change_each
from tandemmq.errors import BadRequest, BrokerUnreachable, NotPermitted, PartlyChanged, TandemError


async def change(target: TandemError | int) -> int:
    if isinstance(target, TandemError):
        raise target
    return target


async def test_every_target_is_tried_and_the_error_names_both_kinds() -> None:
    assert await change_each({"a": 1, "b": 2}, change) == {"a": 1, "b": 2}
    mixed = {"a": 1, "b": BrokerUnreachable("no connection"), "c": 3, "d": BadRequest("no such queue")}
    with pytest.raises(PartlyChanged) as caught:
        await change_each(mixed, change)
    text = "changed at a, c; failed at b: no connection; d: no such queue (response code 1)"
    assert str(caught.value) == text
    with pytest.raises(PartlyChanged, match="changed at no broker; failed at a: gone; b: gone"):
        await change_each({"a": BrokerUnreachable("gone"), "b": BrokerUnreachable("gone")}, change)


async def test_the_error_of_the_only_target_and_a_missing_right_stay_what_they_are() -> None:
    with pytest.raises(BadRequest, match="no such queue"):
        await change_each({"a": BadRequest("no such queue")}, change)
    with pytest.raises(NotPermitted):
        await change_each({"a": NotPermitted("no right"), "b": NotPermitted("no right")}, change)
    with pytest.raises(PartlyChanged, match="changed at a; failed at b: no right"):
        await change_each({"a": 1, "b": NotPermitted("no right")}, change)
