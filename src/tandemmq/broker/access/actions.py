"""Actions on resources, as bits and by their names (spec semantics 21.3)."""

from __future__ import annotations

from typing import Final

from tandemmq.errors import ConfigError

PUB, SUB, CREATE, UPDATE, DELETE, GET, LIST = (1 << number for number in range(7))
ALL: Final = 127

NAMES: Final = {
    "Pub": PUB,
    "Sub": SUB,
    "Create": CREATE,
    "Update": UPDATE,
    "Delete": DELETE,
    "Get": GET,
    "List": LIST,
}
_BY_FOLDED: Final = {"all": ALL, "any": ALL, **{name.lower(): bit for name, bit in NAMES.items()}}


def parse_action(name: str) -> int:
    """The bit of an action's name, in any case; All and Any are every one.

    Raises:  ConfigError naming what is allowed.
    """
    bit = _BY_FOLDED.get(name.strip().lower())
    if bit is None:
        raise ConfigError(f"action {name!r}: must be All or one of {', '.join(NAMES)}")
    return bit


def render_actions(bits: int) -> str:
    """The names of the bits, joined by `|`."""
    return "|".join(name for name, bit in NAMES.items() if bits & bit) or "none"


def is_administrative(bits: int) -> bool:
    """Only changes: no producer or consumer asks for it."""
    return bool(bits) and not bits & (PUB | SUB | GET | LIST)
