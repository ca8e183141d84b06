"""What to do with a half message that is not done: decided from what is stored of it. Pure.

Source: spec semantics 17 (row by row), spec store 14.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from tandemmq.broker.transaction.half import number_of, text_of
from tandemmq.protocol import properties as names
from tandemmq.protocol.record import Record

_HOUR_MS = 3_600_000


class Verdict(Enum):
    """What becomes of a half message in this round."""

    WAIT = "it is young, and so is all behind it"
    RENEW = "it is to be left alone for a time of its own"
    CHECK = "ask its producer"
    DISCARD = "nobody decided"


class CheckLimits(NamedTuple):
    """transactionTimeOut, transactionCheckMax, fileReservedTime."""

    timeout_ms: int
    count_max: int
    reserved_hours: int


def plan_check(half: Record, now_ms: int, limits: CheckLimits) -> Verdict:
    """The verdict. A message from the future (its producer's clock is ahead) is asked about."""
    age_ms = now_ms - half.born_at_ms
    if check_times(half) >= limits.count_max or age_ms > limits.reserved_hours * _HOUR_MS:
        return Verdict.DISCARD
    if age_ms < 0:
        return Verdict.CHECK
    immunity_ms = immunity_of(half, limits.timeout_ms)
    if immunity_ms is None:
        return Verdict.WAIT if age_ms <= limits.timeout_ms else Verdict.CHECK
    return Verdict.RENEW if age_ms < immunity_ms else Verdict.CHECK


def is_late(half: Record, now_ms: int, timeout_ms: int) -> bool:
    """True when the producer itself may no longer decide, but only when it is asked (spec semantics 17)."""
    immunity_ms = immunity_of(half, timeout_ms)
    return immunity_ms is not None and now_ms - half.born_at_ms > max(immunity_ms, timeout_ms)


def immunity_of(half: Record, timeout_ms: int) -> int | None:
    """CHECK_IMMUNITY_TIME_IN_SECONDS in milliseconds; `timeout_ms` for -1 or what is not a number."""
    text = text_of(half, names.CHECK_IMMUNITY_TIME)
    if not text:
        return None
    return int(text) * 1000 if text.isascii() and text.isdigit() and len(text) < 10 else timeout_ms


def check_times(half: Record) -> int:
    """How often the producer was asked about a half message so far."""
    return number_of(half, names.TRANSACTION_CHECK_TIMES, 0)
