"""Numbers that an application passes to the client."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tandemmq.client.call_values import TIMEOUT_S_MAX, to_count, to_number, to_timeout
from tandemmq.errors import BadRequest

WRONG = [math.nan, "1", None, True, [], 1j]


@pytest.mark.parametrize(
    ("value", "timeout_s"),
    [
        (2, 2.0),
        (np.float32(0.5), 0.5),
        (np.float16(2), 2.0),
        (-1, -1.0),
        (math.inf, TIMEOUT_S_MAX),
        (10**400, TIMEOUT_S_MAX),
    ],
)
def test_timeouts(value: Any, timeout_s: float) -> None:
    assert to_timeout(value) == timeout_s
    assert type(to_timeout(value)) is float
    assert to_timeout(-value) == -timeout_s


@pytest.mark.parametrize("value", WRONG)
def test_a_wrong_number_is_named(value: Any) -> None:
    with pytest.raises(BadRequest, match=r"timeout_s .*: must be a number of seconds"):
        to_timeout(value)
    with pytest.raises(BadRequest, match=r"delay_s .*: must be a number from 0 to 9"):
        to_number("delay_s", value, 0, 9)
    with pytest.raises(BadRequest, match=r"count_max .*: must be a whole number from 1 to 32"):
        to_count("count_max", value, 1, 32)


def test_bounds_are_allowed() -> None:
    for value in (1, 32, np.int64(5)):
        count, number = to_count("count_max", value, 1, 32), to_number("delay_s", value, 1, 32)
        assert (count, type(count), number, type(number)) == (value, int, value, float)
    for value in (0, 33, 10**400, -math.inf, 1.5):
        with pytest.raises(BadRequest):
            to_count("count_max", value, 1, 32)
    for value in (0.999, 32.001, 10**400, -(10**400), math.inf):
        with pytest.raises(BadRequest):
            to_number("delay_s", value, 1, 32)


def test_short_numbers_do_not_overflow() -> None:
    for value in (np.int8(100), np.int16(100), np.float16(100), Fraction(100)):
        assert to_number("delay_s", value, 0, 300_000) * 1000 == 100_000
