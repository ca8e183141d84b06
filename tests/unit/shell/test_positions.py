"""The texts for durations and positions."""

from __future__ import annotations

import time

import pytest
import typer

from tandemmq.shell.positions import (
    FIRST,
    LAST,
    SECONDS,
    StartPosition,
    parse_duration,
    parse_position,
)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("500ms", 500), ("1.5s", 1_500), ("2m", 120_000), ("2h", 7_200_000), ("7d", 604_800_000), ("5", None)],
)
def test_durations(text: str, milliseconds: int | None) -> None:
    assert parse_duration(text) == milliseconds


def test_positions() -> None:
    assert parse_position("earliest", "--from") == parse_position("first", "--from") == FIRST
    assert parse_position("latest", "--from") == parse_position("last", "--from") == LAST
    assert parse_position("offset:120", "--from") == StartPosition(offset=120)
    ago = parse_position("2h", "--from").time_ms
    assert abs(time.time() * 1000 - ago - 7_200_000) < 60_000
    for text in ("offset:", "offset:-1", "offset:٣", "yesterday", ""):
        with pytest.raises(typer.BadParameter, match="earliest, latest, offset:N"):
            parse_position(text, "--from")


def test_seconds_may_have_no_unit() -> None:
    assert [SECONDS.parse(text, "--wait") for text in ("5", "0.5", "500ms", "2m")] == [5, 0.5, 0.5, 120]
    for text in ("0", "10ms", "-1", "soon"):
        with pytest.raises(typer.BadParameter, match="at least 100ms"):
            SECONDS.parse(text, "--wait")
