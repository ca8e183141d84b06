"""The table of delay levels."""

from __future__ import annotations

import pytest

from tandemmq.errors import ConfigError
from tandemmq.protocol.topic_names import DELAY_LEVELS_MS, delivered_at_ms, parse_delay_levels


def test_default_levels_run_from_a_second_to_two_hours() -> None:
    assert len(DELAY_LEVELS_MS) == 18
    assert (DELAY_LEVELS_MS[0], DELAY_LEVELS_MS[17]) == (1000, 7_200_000)


def test_level_above_the_highest_counts_as_the_highest() -> None:
    assert delivered_at_ms(1, 10, (5, 7)) == 15
    assert delivered_at_ms(9, 10, (5, 7)) == 17
    assert delivered_at_ms(1, 2**63 - 1, (5, 7)) == 2**63 - 1


def test_units_are_seconds_to_days() -> None:
    assert parse_delay_levels("1s 2m 3h  4d") == (1000, 120_000, 10_800_000, 345_600_000)


@pytest.mark.parametrize("text", ["", "1x", "s", "-1s", "1.5s"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="messageDelayLevel"):
        parse_delay_levels(text)
