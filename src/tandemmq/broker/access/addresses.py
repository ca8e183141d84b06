"""Patterns of remote addresses in plain_acl.yml (spec semantics 21.2); pure.

Blank: nobody. `*` in every place: everybody. `10.0.0.{1,7}`: these. `10.0.0.1,10.0.0.9`: these.
`10.0.0.*`, `10.0.1-9.*`: ranges from the second place on. Anything else: one address. IPv6 likewise with
`:` and hexadecimal numbers; a `*` there ends the pattern.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from tandemmq.errors import ConfigError

Matcher = Callable[[str], bool]

_EVERYBODY: Final = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")
_CHOICE: Final = re.compile(r"(.+[.:])\{([^{}]+)\}")


def make_matcher(pattern: str) -> Matcher:
    """Tells whether an address is one of the pattern.

    Raises:  ConfigError quoting a pattern that is none.
    """
    text = pattern.strip()
    if not text:
        return lambda _: False
    if text in _EVERYBODY:
        return lambda _: True
    choice = _CHOICE.fullmatch(text)
    if choice is not None:
        return _one_of([choice[1] + last.strip() for last in choice[2].split(",")], pattern)
    if "," in text:
        return _one_of(text.split(","), pattern)
    if "*" in text or "-" in text:
        return _in_ranges(text, pattern)
    return _one_of([text], pattern)


def _one_of(texts: list[str], pattern: str) -> Matcher:
    try:
        wanted = frozenset(ip_address(text.strip()) for text in texts)
    except ValueError:
        raise _fault(pattern) from None
    return lambda address: _parse(address) in wanted


def _in_ranges(text: str, pattern: str) -> Matcher:
    """Every place a number or a range; after the first range only `*` may follow."""
    is_v6 = ":" in text
    count, largest, base = (8, 0xFFFF, 16) if is_v6 else (4, 255, 10)
    places = _places_v6(text) if is_v6 else text.split(".")
    if len(places) > count or not places or (not is_v6 and len(places) != count):
        raise _fault(pattern)
    try:
        ranges = [_range(place, largest, base) for place in places]
    except ValueError:
        raise _fault(pattern) from None
    first = next((at for at, (low, high) in enumerate(ranges) if low != high), len(ranges))
    if first == 0 or any(place != "*" for place in places[first + 1 :]):
        raise _fault(pattern)

    def matches(address: str) -> bool:
        parsed = _parse(address)
        if parsed is None or (parsed.version == 6) != is_v6:
            return False
        numbers = _numbers(parsed)
        return all(low <= number <= high for number, (low, high) in zip(numbers, ranges, strict=False))

    return matches


def _places_v6(text: str) -> list[str]:
    """The places of an IPv6 pattern; `::` stands for the zeros that are missing."""
    if "::" not in text:
        return text.split(":")
    head, _, tail = text.partition("::")
    before = head.split(":") if head else []
    after = tail.split(":") if tail else []
    return [*before, *["0"] * (8 - len(before) - len(after)), *after]


def _range(place: str, largest: int, base: int) -> tuple[int, int]:
    if place == "*":
        return 0, largest
    low, dash, high = place.partition("-")
    numbers = int(low, base), int(high if dash else low, base)
    if not 0 <= numbers[0] <= numbers[1] <= largest:
        raise ValueError
    return numbers


def _numbers(address: IPv4Address | IPv6Address) -> list[int]:
    data = address.packed
    if address.version == 4:
        return list(data)
    return [int.from_bytes(data[at : at + 2], "big") for at in range(0, 16, 2)]


def _parse(address: str) -> IPv4Address | IPv6Address | None:
    """None for what is not an address; an IPv4 address in IPv6 clothes is taken as what it is."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return mapped or parsed


def _fault(pattern: str) -> ConfigError:
    return ConfigError(
        f"address pattern {pattern!r}: must be *, an address, addresses joined by commas, one with"
        " {a,b} as its last place, or one with ranges such as 10.0.1-9.* from the second place on"
    )
