"""Topic attributes as a request changes them: `+key=value,-key`. Pure (spec semantics 16.3, spec remoting
8.6)."""

from __future__ import annotations

from collections.abc import Mapping

from tandemmq.broker.guards import invalid

_VALUES: dict[str, tuple[str, ...] | None] = {
    "queue.type": ("SimpleCQ",),
    "cleanup.policy": ("DELETE",),
    "message.type": ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "UNSPECIFIED"),
    "reserve.time": None,
}
"""What is served; BatchCQ queues and COMPACTION are not, so a topic cannot ask for them."""

_IMMUTABLE = frozenset(("queue.type", "cleanup.policy"))


def apply_attributes(
    before: Mapping[str, str], changes: str | None, *, is_new: bool, is_mixed_allowed: bool
) -> dict[str, str]:
    """The attributes after the changes.

    Raises:  BadRequest naming the change that is malformed, unknown or not served.
    """
    after = dict(before)
    for change in (changes or "").split(","):
        if not change.strip():
            continue
        sign, text = change.strip()[0], change.strip()[1:]
        key, has_value, value = text.partition("=")
        if sign not in "+-" or key not in _VALUES or bool(has_value) != (sign == "+"):
            raise invalid(
                f"attribute change {change[:64]!r}: must be +key=value or -key; keys are {', '.join(_VALUES)}"
            )
        if key in _IMMUTABLE and not is_new and before.get(key, value) != value:
            raise invalid(f"the attribute {key} of a topic that exists cannot be changed")
        if sign == "-":
            after.pop(key, None)
            continue
        _check_value(key, value, is_mixed_allowed)
        after[key] = value
    return after


def as_changes(attributes: Mapping[str, str]) -> str:
    """The attributes of a configuration as changes: a key that has no sign of its own is set."""
    changes = []
    for key, value in attributes.items():
        if key.startswith("-"):
            changes.append(key)
        else:
            changes.append(f"+{key.removeprefix('+')}={value}")
    return ",".join(changes)


def _check_value(key: str, value: str, is_mixed_allowed: bool) -> None:
    allowed = _VALUES[key]
    if allowed is None:
        if not value.removeprefix("-").isdecimal():
            raise invalid(f"the attribute {key} must be a whole number, not {value[:32]!r}")
    elif value not in allowed:
        raise invalid(f"the attribute {key} must be one of {', '.join(allowed)}, not {value[:32]!r}")
    if value == "MIXED" and not is_mixed_allowed:
        raise invalid("message.type MIXED needs enableMixedMessageType")
