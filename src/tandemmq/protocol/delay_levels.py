"""Delay levels: how long a message of topic SCHEDULE_TOPIC_XXXX waits before it is delivered.

Source: spec store 5 (tagsCode), 15.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tandemmq.errors import ConfigError

_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
UNKNOWN_LEVEL_DELAY_MS: Final = 1000

DELAY_LEVELS_TEXT: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Milliseconds per level; level 1 is item 0.

    Raises:  ConfigError naming the piece that is not a number with one of s, m, h, d.
    """
    delays = []
    for piece in text.split():
        number, unit = piece[:-1], piece[-1]
        if unit not in _UNIT_MS or not (number.isascii() and number.isdigit()):
            raise ConfigError(f"messageDelayLevel: {piece!r} must be a whole number with unit s, m, h or d")
        delays.append(int(number) * _UNIT_MS[unit])
    if not delays:
        raise ConfigError("messageDelayLevel: at least one level such as 1s is needed")
    return tuple(delays)


def render_delay_levels(delays_ms: Sequence[int]) -> str:
    """As `parse_delay_levels` takes it, each level in its largest unit."""
    return " ".join(
        next(f"{delay_ms // size}{unit}" for unit, size in reversed(_UNIT_MS.items()) if delay_ms % size == 0)
        for delay_ms in delays_ms
    )


DELAY_LEVELS_MS: Final = parse_delay_levels(DELAY_LEVELS_TEXT)


def delivered_at_ms(level: int, stored_at_ms: int, delays_ms: Sequence[int] = DELAY_LEVELS_MS) -> int:
    """When a message of this level (above 0) is due; a level above the highest counts as the highest."""
    assert level > 0
    return stored_at_ms + delays_ms[min(level, len(delays_ms)) - 1]
