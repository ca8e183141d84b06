"""Watermarks rise, call their followers, and fall at a truncation."""

from __future__ import annotations

import pytest

from tandemmq.store import Watermark


def test_followers_hear_of_each_raise_in_the_order_they_came() -> None:
    mark = Watermark("appended")
    heard: list[tuple[str, int]] = []
    mark.follow(lambda value: heard.append(("first", value)))
    unfollow = mark.follow(lambda value: heard.append(("second", value)))
    mark.raise_to(5)
    mark.raise_to(5)
    mark.raise_to(3)
    assert heard == [("first", 5), ("second", 5)]
    unfollow()
    unfollow()
    mark.raise_to(6)
    assert heard[2:] == [("first", 6)]
    assert mark.value == 6


def test_a_truncation_lowers_the_mark_and_nothing_else_does() -> None:
    mark = Watermark("appended", 10)
    mark.truncate_to(8)
    assert (mark.value, mark.cut_count) == (8, 1)
    with pytest.raises(AssertionError):
        mark.truncate_to(9)


def test_a_closed_mark_has_no_followers() -> None:
    mark = Watermark("appended")
    heard: list[int] = []
    mark.follow(heard.append)
    mark.close()
    mark.raise_to(1)
    assert heard == []
