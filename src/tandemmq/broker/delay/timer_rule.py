"""Times of timer messages: when a sender wants a message, and when it goes: pure.

A time is cut to whole slots of PRECISION_MS. A message goes when its slot is over, so never before its time
and at most PRECISION_MS after it; a time on a slot's edge belongs to the slot that ends there.
Source:  spec store 16, spec semantics 18.2. timerPrecisionMs is fixed, because a slot stored with one
         precision would be early under a finer one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tandemmq.broker.delay.timer_wheel import CANCELLING, TimerKey
from tandemmq.errors import ConfigError, MessageIllegal, RequestRejected
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.properties import find_property
from tandemmq.protocol.record import Record

TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
WISHES: Final = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
"""In the order in which they count."""

PRECISION_MS: Final = 1_000
_HOUR_MS: Final = 3_600_000
ROLL_AFTER_MS: Final = 2 * 24 * _HOUR_MS
"""RocketMQ's timerRollWindowSlot: a message that waits longer is stored anew, or retention would reach it."""
_DIGITS_MAX: Final = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerLimits:
    """Whether and how far ahead messages may be timed (timerWheelEnable, timerMaxDelaySec)."""

    is_enabled: bool = True
    delay_s_max: int = 259_200

    def __post_init__(self) -> None:
        if not 1 <= self.delay_s_max <= 10**9:
            raise ConfigError(f"timerMaxDelaySec: {self.delay_s_max} is outside 1..{10**9}")


def has_wish(pairs: Mapping[str, str]) -> bool:
    """True for a message that asks for a time of its own and has not got one yet."""
    return TIMER_OUT_MS not in pairs and any(name in pairs for name in WISHES)


def plan_timer(pairs: Mapping[str, str], now_ms: int, limits: TimerLimits) -> int | None:
    """The slot of a message with a wish; None when its time has come and it is stored at once.

    Raises:  MessageIllegal for a time that is not a number or too far ahead, or a cancellation that comes too
             late; RequestRejected (SYSTEM_ERROR) while timers are switched off.
    """
    name = next(name for name in WISHES if name in pairs)
    at_ms = _number(name, pairs[name])
    if name == TIMER_DELAY_SEC:
        at_ms = now_ms + at_ms * 1000
    elif name == TIMER_DELAY_MS:
        at_ms += now_ms
    if not limits.is_enabled:
        raise RequestRejected(
            f"{name}: timer messages are switched off on this broker (timerWheelEnable=false);"
            " use DELAY with a delay level",
            code=ResponseCode.SYSTEM_ERROR,
        )
    if at_ms <= now_ms:
        if TIMER_DEL_UNIQKEY in pairs:
            raise MessageIllegal(f"{name}: the time of the message to cancel has passed")
        return None
    if at_ms - now_ms > limits.delay_s_max * 1000:
        raise MessageIllegal(
            f"{name} {pairs[name]} is {(at_ms - now_ms) // 1000} s ahead,"
            f" at most {limits.delay_s_max} s are allowed (timerMaxDelaySec)"
        )
    return slot_of(at_ms)


def slot_of(at_ms: int) -> int:
    """The slot that ends at or right after `at_ms`: what TIMER_OUT_MS holds."""
    return (at_ms - 1) // PRECISION_MS * PRECISION_MS


def slots_over(now_ms: int) -> int:
    """The first slot that is not over: messages of slots below it go."""
    return now_ms // PRECISION_MS * PRECISION_MS


def cancel_name(topic: str, unique_key: str) -> str:
    """How a cancellation names its message: the value of TIMER_DEL_UNIQKEY."""
    return f"{topic}+{unique_key}"


@dataclass(frozen=True, slots=True)
class Timed:
    """What the delivering side must know of a stored timer message.

    `key`: when it is to be handled; then it is delivered, or stored anew when `is_roll`. `slot_ms`: the slot
    of its time. `cancels`: the name of the message that it takes back; it is never delivered itself.
    """

    key: TimerKey
    slot_ms: int
    cancels: str

    @property
    def is_roll(self) -> bool:
        return self.key.slot_ms < self.slot_ms


def roll_window_ms(file_reserved_hours: int) -> int:
    """How long a message may wait in one place: half of what the log is kept (fileReservedTime) at most, so
    that the other half is left for a broker that was down when it had to store the message anew.
    """
    return min(ROLL_AFTER_MS, file_reserved_hours * _HOUR_MS // 2)


def read_timer(record: Record, roll_after_ms: int = ROLL_AFTER_MS) -> Timed | None:
    """None for a record of the timer topic that nobody timed."""
    raw = find_property(record.raw_properties, TIMER_OUT_MS.encode())
    if raw is None or not raw.isdigit() or len(raw) > _DIGITS_MAX:
        return None
    slot_ms = int(raw)
    handled_ms = min(slot_ms, slot_of(record.stored_at_ms + roll_after_ms))
    cancels = find_property(record.raw_properties, TIMER_DEL_UNIQKEY.encode())
    if cancels is not None:
        key = TimerKey(handled_ms, CANCELLING + record.queue_offset)
        return Timed(key, slot_ms, str(cancels, "utf-8", "replace"))
    return Timed(TimerKey(handled_ms, record.queue_offset), slot_ms, "")


def _number(name: str, value: str) -> int:
    digits = value.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > _DIGITS_MAX:
        raise MessageIllegal(f"{name} {value[:32]!r} must be a whole number")
    return int(value)
