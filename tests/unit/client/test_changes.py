"""Changes at several brokers, some of which fail."""

from __future__ import annotations

import pytest

from tandemmq.client.changes import change_each
from tandemmq.errors import BadRequest, BrokerUnreachable, NotPermitted, PartlyChanged

ERRORS = {
    "away": BrokerUnreachable("no connection"),
    "gone": BrokerUnreachable("gone"),
    "wrong": BadRequest("no such queue"),
    "denied": NotPermitted("no right"),
    "denied too": NotPermitted("no right"),
}


async def change(target: str) -> int:
    if target in ERRORS:
        raise ERRORS[target]
    return len(target)


async def test_every_target_is_tried_and_the_error_names_both_kinds() -> None:
    assert await change_each(["a", "bc"], change) == {"a": 1, "bc": 2}
    with pytest.raises(PartlyChanged) as caught:
        await change_each(["a", "away", "c", "wrong"], change)
    text = "changed at a, c; failed at away: no connection; wrong: no such queue"
    assert str(caught.value) == text
    with pytest.raises(PartlyChanged, match=r"changed at no broker; failed at away: .*; gone: gone"):
        await change_each(["away", "gone"], change)


async def test_the_error_of_the_only_target_and_a_missing_right_stay_what_they_are() -> None:
    with pytest.raises(BadRequest, match="no such queue"):
        await change_each(["wrong"], change)
    with pytest.raises(NotPermitted):
        await change_each(["denied", "denied too"], change)
    with pytest.raises(PartlyChanged, match="changed at a; failed at denied: no right"):
        await change_each(["a", "denied"], change)
