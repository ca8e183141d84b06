"""Attributes of topics and groups: the known keys, their values, and changes to them (`+key=value`, `-key`).

Invariants: a table holds only attributes that satisfy these rules, so RocketMQ can read it. Attributes of
            lite topics are stored and shown but have no effect: TandemMQ does not serve lite topics
            (NOT_SERVED in `tools/compatibility.py`).
Source: spec semantics 20, spec remoting 8.6, spec rocketmq55 4.2 and 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tandemmq.broker.guards import invalid
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig, TopicConfig

_LONG_MAX: Final = 2**63 - 1
_TEXT_LENGTH_MAX: Final = 255
_EXPIRATION: Final = "lite.topic.expiration"
_TYPE: Final = "message.type"
_PRIORITY_FACTOR: Final = "priority.factor"
_PRIORITY_FACTOR_DEFAULT: Final = "100"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeRule:
    """The allowed values of one attribute: one of `values`, a whole number within `numbers`, or any text."""

    values: tuple[str, ...] = ()
    numbers: tuple[int, int] | None = None
    is_changeable: bool = True

    def check(self, key: str, value: str) -> None:
        """Raises BadRequest naming what is allowed."""
        if self.numbers is not None:
            low, high = self.numbers
            # A longer number is out of range anyway, and int() rejects very long ones.
            is_number = value.removeprefix("-").isdecimal() and value.isascii() and len(value) <= 20
            if not is_number or not low <= int(value) <= high:
                raise invalid(
                    f"the attribute {key} must be a whole number from {low} to {high}, not {value[:32]!r}"
                )
        elif self.values:
            if value not in self.values:
                allowed = ", ".join(self.values)
                raise invalid(f"the attribute {key} must be one of {allowed}, not {value[:32]!r}")
        elif not 0 < len(value) <= _TEXT_LENGTH_MAX:
            raise invalid(f"the attribute {key} must have 1 to {_TEXT_LENGTH_MAX} characters")


_FLAG: Final = AttributeRule(values=("true", "false"))

TOPIC_RULES: Final[Mapping[str, AttributeRule]] = {
    "queue.type": AttributeRule(values=("SimpleCQ",), is_changeable=False),
    "cleanup.policy": AttributeRule(values=("DELETE",), is_changeable=False),
    _TYPE: AttributeRule(
        values=("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED", "LITE", "UNSPECIFIED")
    ),
    "reserve.time": AttributeRule(numbers=(-_LONG_MAX - 1, _LONG_MAX)),
    _EXPIRATION: AttributeRule(numbers=(-1, 43_200)),
}
"""BatchCQ queues and COMPACTION are not supported, so a topic cannot request them."""

GROUP_RULES: Final[Mapping[str, AttributeRule]] = {
    _PRIORITY_FACTOR: AttributeRule(numbers=(0, 100)),
    "lite.bind.topic": AttributeRule(),
    "lite.sub.model": AttributeRule(values=("Shared", "Exclusive")),
    "lite.sub.reset.offset.exclusive": _FLAG,
    "lite.sub.reset.offset.unsubscribe": _FLAG,
    "lite.sub.client.quota": AttributeRule(numbers=(-1, _LONG_MAX)),
    "lite.sub.client.max.event.cnt": AttributeRule(numbers=(10, _LONG_MAX)),
    "lite.sub.wildcard": AttributeRule(),
}


def has_priorities(topic: TopicConfig | None) -> bool:
    """Returns True if the queues of the topic are levels of priority, the highest number first."""
    return topic is not None and topic.attributes.get(_TYPE) == "PRIORITY"


def priority_factor(group: SubscriptionGroupConfig | None) -> int:
    """Returns the percentage of the group's pops that follow the priorities of a topic."""
    attributes = {} if group is None else group.attributes
    return int(attributes.get(_PRIORITY_FACTOR, _PRIORITY_FACTOR_DEFAULT))


def apply_topic_attributes(
    before: Mapping[str, str], changes: str | None, *, is_new: bool, is_mixed_allowed: bool
) -> dict[str, str]:
    """Returns the attributes of a topic after the changes.

    Raises:  BadRequest naming the change that is malformed, unknown or not supported.
    """
    after = _apply(before, (changes or "").split(","), TOPIC_RULES, is_new=is_new)
    if after.get(_TYPE) == "MIXED" != before.get(_TYPE) and not is_mixed_allowed:
        raise invalid("message.type MIXED needs enableMixedMessageType")
    if _EXPIRATION in after and after.get(_TYPE) != "LITE":
        raise invalid(f"the attribute {_EXPIRATION} needs message.type LITE")
    return after


def apply_group_attributes(before: Mapping[str, str], requested: Mapping[str, str]) -> dict[str, str]:
    """Returns the attributes of a group after a request, whose keys begin with + or -.

    A key without a sign whose value is unchanged is ignored, so that a tool may send back the attributes it
    read.

    Raises:  BadRequest naming the change that is malformed or unknown.
    """
    changed = dict(requested.items() - before.items())
    changes = (key if key.startswith("-") else f"{key}={value}" for key, value in changed.items())
    return _apply(before, changes, GROUP_RULES, is_new=False)


def _apply(
    before: Mapping[str, str], changes: Iterable[str], rules: Mapping[str, AttributeRule], *, is_new: bool
) -> dict[str, str]:
    after = dict(before)
    for change in changes:
        if not change.strip():
            continue
        sign, text = change.strip()[0], change.strip()[1:]
        key, has_value, value = text.partition("=")
        rule = rules.get(key)
        if sign not in "+-" or rule is None or bool(has_value) != (sign == "+"):
            raise invalid(
                f"attribute change {change[:64]!r}: must be +key=value or -key; keys are {', '.join(rules)}"
            )
        if not rule.is_changeable and not is_new and before.get(key, value) != value:
            raise invalid(f"the attribute {key} of an existing topic cannot be changed")
        if sign == "-":
            after.pop(key, None)
            continue
        rule.check(key, value)
        after[key] = value
    return after
