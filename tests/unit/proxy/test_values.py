"""Times and numbers of the protocol."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.proxy.schema import message_class
from tandemmq.proxy.values import TIME_MS_MAX, duration, milliseconds, natural_number, timestamp, whole_number

Timestamp = message_class("Timestamp", "google.protobuf")


@pytest.mark.parametrize(
    ("at_ms", "kept"), [(0, 0), (1_999, 1_999), (-(2**63), 0), (-1, 0), (2**63 - 1, TIME_MS_MAX)]
)
def test_a_time_out_of_range_becomes_the_nearest_one_inside(at_ms: int, kept: int) -> None:
    assert milliseconds(Timestamp(**timestamp(at_ms))) == kept


def test_a_duration_is_never_negative() -> None:
    assert duration(-5) == {"seconds": 0, "nanos": 0}
    assert duration(61_002) == {"seconds": 61, "nanos": 2_000_000}


@pytest.mark.parametrize(
    ("text", "natural", "whole"),
    [
        ("7", 7, 7),
        ("-7", None, -7),
        ("9" * 18, 10**18 - 1, 10**18 - 1),
        ("9" * 19, None, None),
        *((text, None, None) for text in ("", "-", "--7", "+7", " 7", "7x", "٧")),
    ],
)
def test_numbers_in_texts(text: str, natural: Any, whole: Any) -> None:
    assert natural_number(text) == natural
    assert whole_number(text) == whole


def test_a_missing_text_has_no_number() -> None:
    assert whole_number(None) is None
