"""The values of SQL92 filters and their comparison: RocketMQ's rules, which are those of Java's types.

A property is a string or absent. A number is an `int` (Java's 32-bit Integer), a `Long` or a `float`; its
kind decides how the compared string is parsed: "3000000000" cannot be compared with 5, but with 5000000000.
Source:  spec semantics 9.2.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1

_SMALL_DIGITS: Final = 9
assert 10**_SMALL_DIGITS <= INT_MAX
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_DOUBLE: Final = re.compile(r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[dDfF]?)")
_JAVA_SPACE: Final = "".join(map(chr, range(33)))


class SqlError(ValueError):
    """Raised for an unusable expression; the text states the fault and its position."""


class NotComparable(Exception):
    """Raised for two values that cannot be compared: the message does not match, whatever the rest evaluates
    to.
    """


class Long(int):
    """A 64-bit integer of Java, even if 32 bits would do."""

    __slots__ = ()


Value: TypeAlias = str | int | float | bool | None
Present: TypeAlias = str | int | float | bool


def parse_integer(text: str, limit: int) -> int:
    """Parses a whole number within `-limit - 1 <= n <= limit`, where limit is at least INT_MAX. Raises
    NotComparable.
    """
    if len(text) <= _SMALL_DIGITS and text.isdigit() and text.isascii():
        return int(text)
    if _INTEGER.fullmatch(text):
        number = int(text)
        if -limit - 1 <= number <= limit:
            return number
    raise NotComparable


def parse_double(text: str) -> float:
    """Parses a double as Java does: surrounding blanks and a last `d` or `f` are allowed. Raises
    NotComparable.
    """
    text = text.strip(_JAVA_SPACE)
    if len(text) > 64 or not _DOUBLE.fullmatch(text):
        raise NotComparable
    return float(text.rstrip("dDfF") if text[-1] in "dDfF" else text)


def compare(left: Present, right: Present) -> int:
    """Returns a number below 0, 0 or above 0; -1 also for types without an order (spec semantics 9.2, row
    `=`).

    Raises:  NotComparable for a string that does not fit the other side's kind, and for a boolean before a
             string.
    """
    if isinstance(left, bool):
        return _compare_bool(left, right)
    if isinstance(left, str):
        if isinstance(right, str):
            return (left > right) - (left < right)
        if isinstance(right, bool):
            return (left.lower() == "true") - right
        return _compare_numbers(_parse_like(left, right), right)
    if isinstance(right, bool):
        return -1
    if isinstance(right, str):
        return _compare_numbers(left, _parse_like(right, left))
    return _compare_numbers(left, right)


def compare_doubles(left: str, right: str) -> int:
    """Compares two strings as numbers."""
    return _compare_numbers(parse_double(left), parse_double(right))


def _compare_bool(left: bool, right: Present) -> int:
    if isinstance(right, bool):
        return left - right
    if isinstance(right, str):
        raise NotComparable
    return -1


def _parse_like(text: str, number: int | float) -> int | float:
    if isinstance(number, float):
        return parse_double(text)
    return parse_integer(text, LONG_MAX if isinstance(number, Long) else INT_MAX)


def _compare_numbers(left: int | float, right: int | float) -> int:
    if isinstance(left, float) or isinstance(right, float):
        return _compare_java_doubles(float(left), float(right))
    return (left > right) - (left < right)


def _compare_java_doubles(left: float, right: float) -> int:
    """Compares by Java's total order: NaN is equal to itself and above everything."""
    if left < right:
        return -1
    if left > right:
        return 1
    return (left != left) - (right != right)
