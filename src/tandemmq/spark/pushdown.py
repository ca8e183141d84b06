"""The conditions of a batch query on queues, offsets, store times, tags and keys.

Spark offers the AND-parts of a WHERE clause, and applies itself the ones that are returned to it (spec spark
SP-42). Every condition that is not decided exactly for each row is returned: a store time only narrows a
range, brokers filter tags by a hash, and a key only finds candidates. A query therefore returns the same rows
as without pushdown, and only reads less.

Pure: no Spark, no network. Filters are recognised by the name of their class, so that tests need no Spark
either.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tandemmq.spark.columns import Projection
from tandemmq.spark.offsets import QueueKey

CLOCK_SLACK_MS: Final = 60_000
"""The amount by which store times may fall along a queue: a broker's clock may be set back, and the clocks of
successive masters differ.
"""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_EQUAL: Final = ("EqualTo", "EqualNullSafe")
_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
}
_OF_QUEUE: Final[dict[str, Callable[[QueueKey], Any]]] = {
    "topic": lambda queue: queue.topic.encode(),
    "brokerName": lambda queue: queue.broker.encode(),
    "queueId": lambda queue: queue.queue_id,
}
_NEVER_NULL: Final = {*_OF_QUEUE, "queueOffset", "storeTimestamp"}


@dataclass(frozen=True, slots=True)
class QueueRule:
    """A condition on a column that is the same for all messages of a queue."""

    column: str
    kind: str
    value: Any
    is_negated: bool = False

    def holds(self, queue: QueueKey) -> bool:
        return _satisfies(self.kind, _OF_QUEUE[self.column](queue), self.value) is not self.is_negated


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """The conditions on a wanted row; ends are exclusive, times in milliseconds, None means no condition."""

    queue_rules: tuple[QueueRule, ...] = ()
    begin: int = 0
    end: int | None = None
    stored_from_ms: int | None = None
    stored_until_ms: int | None = None
    tags: tuple[str, ...] | None = None
    key: str | None = None

    def may_match(self, queue: QueueKey) -> bool:
        return all(rule.holds(queue) for rule in self.queue_rules)

    def render(self) -> str:
        """Renders the conditions for people; `-` if there are none."""
        parts = [
            f"{'not ' if rule.is_negated else ''}{rule.column} {rule.kind} {_render_value(rule.value)}"
            for rule in self.queue_rules
        ]
        if self.begin or self.end is not None:
            parts.append(f"queueOffset {self.begin}..{'' if self.end is None else self.end}")
        if self.stored_from_ms is not None or self.stored_until_ms is not None:
            until = "" if self.stored_until_ms is None else self.stored_until_ms
            parts.append(f"storeTimestamp {self.stored_from_ms or 0}..{until}")
        if self.tags is not None:
            parts.append(f"tags {' || '.join(self.tags) or '(none)'}")
        if self.key is not None:
            parts.append(f"key {self.key}")
        return "; ".join(parts) or "-"


@dataclass(slots=True)
class PushdownPlan:
    """The conditions understood so far, and the filters that Spark still has to apply."""

    pushed: Pushed = field(default_factory=Pushed)
    rest: list[Any] = field(default_factory=list)


def plan_pushdown(filters: Iterable[Any], projection: Projection) -> PushdownPlan:
    """Returns the conditions of `filters`, and those filters (the same objects) that Spark must still
    apply.
    """
    names = {column.label: column.name for column in projection}
    plan = PushdownPlan()
    for offered in filters:
        kind, inner, is_negated = type(offered).__name__, offered, False
        if kind == "Not":
            inner, is_negated = offered.child, True
            kind = type(inner).__name__
        attribute: Sequence[str] = getattr(inner, "attribute", ())
        column = names.get(attribute[0]) if len(attribute) == 1 else None
        value = getattr(inner, "value", None)
        if column is None or not _narrow(plan, column, kind, value, is_negated):
            plan.rest.append(offered)
    return plan


def _narrow(plan: PushdownPlan, column: str, kind: str, value: Any, is_negated: bool) -> bool:
    """Returns True if the filter is fully handled; its condition is added to the plan in either case."""
    if kind == "IsNotNull":
        return column in _NEVER_NULL and not is_negated
    if value is None or (kind == "In" and any(item is None for item in value)):
        return False
    if column in _OF_QUEUE:
        return _narrow_queues(plan, QueueRule(column, kind, _sortable(value), is_negated))
    if is_negated:
        return False
    if column == "queueOffset":
        return _narrow_offsets(plan, kind, value)
    if column == "storeTimestamp":
        _narrow_times(plan, kind, value)
    elif column == "tags" and kind in (*_EQUAL, "In"):
        _narrow_tags(plan, tuple(value) if kind == "In" else (value,))
    elif column == "keys" and kind in _EQUAL and _is_word(value):
        plan.pushed = replace(plan.pushed, key=value)
    return False


def _narrow_queues(plan: PushdownPlan, rule: QueueRule) -> bool:
    if _satisfies(rule.kind, rule.value, rule.value) is None:
        return False
    plan.pushed = replace(plan.pushed, queue_rules=(*plan.pushed.queue_rules, rule))
    return True


def _satisfies(kind: str, actual: Any, value: Any) -> bool | None:
    """Returns True if the value satisfies a filter; None for an unknown kind of filter."""
    if kind in _EQUAL:
        return bool(actual == value)
    if kind == "In":
        return actual in value if isinstance(value, tuple) else None
    if kind in _COMPARE:
        return _COMPARE[kind](actual, value)
    if not isinstance(actual, bytes) and kind.startswith("String"):
        return None
    if kind == "StringStartsWith":
        return bool(actual.startswith(value))
    if kind == "StringEndsWith":
        return bool(actual.endswith(value))
    if kind == "StringContains":
        return value in actual
    return None


def _render_value(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_render_value, value))
    return value.decode() if isinstance(value, bytes) else str(value)


def _sortable(value: Any) -> Any:
    """Returns text as bytes: Spark orders strings by their UTF-8 form."""
    if isinstance(value, (tuple, list)):
        return tuple(_sortable(item) for item in value)
    return value.encode() if isinstance(value, str) else value


def _narrow_offsets(plan: PushdownPlan, kind: str, value: Any) -> bool:
    if kind in _EQUAL:
        begin, end = value, value + 1
    elif kind in ("GreaterThan", "GreaterThanOrEqual"):
        begin, end = value + (kind == "GreaterThan"), None
    elif kind in ("LessThan", "LessThanOrEqual"):
        begin, end = 0, value + (kind == "LessThanOrEqual")
    elif kind == "In" and value:
        begin, end = min(value), max(value) + 1
    else:
        return False
    pushed = plan.pushed
    plan.pushed = replace(pushed, begin=max(pushed.begin, begin), end=_least(pushed.end, end))
    return kind != "In"


def _narrow_times(plan: PushdownPlan, kind: str, value: Any) -> None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return
    at_ms, part = divmod(value - _EPOCH, _MILLISECOND)
    pushed = plan.pushed
    if kind in (*_EQUAL, "GreaterThan", "GreaterThanOrEqual"):
        since = max(at_ms - CLOCK_SLACK_MS, pushed.stored_from_ms or 0, 0)
        pushed = replace(pushed, stored_from_ms=since)
    if kind in (*_EQUAL, "LessThan", "LessThanOrEqual"):
        until = max(at_ms + 1 + bool(part) + CLOCK_SLACK_MS, 0)
        pushed = replace(pushed, stored_until_ms=_least(pushed.stored_until_ms, until))
    plan.pushed = pushed


def _narrow_tags(plan: PushdownPlan, tags: tuple[Any, ...]) -> None:
    if not all(_is_word(tag) and "||" not in tag and tag != "*" for tag in tags):
        return
    known = plan.pushed.tags
    both = tags if known is None else tuple(tag for tag in known if tag in tags)
    plan.pushed = replace(plan.pushed, tags=tuple(dict.fromkeys(both)))


def _is_word(value: Any) -> bool:
    """Returns True for text that brokers treat as exactly one tag or key."""
    return isinstance(value, str) and value.split() == [value]


def _least(known: int | None, found: int | None) -> int | None:
    return min((at for at in (known, found) if at is not None), default=None)
