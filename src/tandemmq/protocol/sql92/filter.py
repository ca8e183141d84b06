"""A compiled filter, and the bounds within which one is compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandemmq.protocol.properties import find_property
from tandemmq.protocol.record_check import find_record_properties
from tandemmq.protocol.sql92.values import NotComparable, SqlError

if TYPE_CHECKING:
    from tandemmq.protocol.command import Buffer
    from tandemmq.protocol.sql92.nodes import Evaluate, Lookup

LENGTH_MAX: Final = 16_384
NODES_MAX: Final = 1_000


class SqlFilter:
    """Says which messages a SQL92 expression takes. `size` counts what is evaluated for one message."""

    __slots__ = ("_evaluate", "expression", "size")

    def __init__(self, expression: str, evaluate: Evaluate, size: int) -> None:
        self.expression = expression
        self._evaluate = evaluate
        self.size = size

    def matches(self, lookup: Lookup) -> bool:
        """True only when the expression is TRUE; `lookup` gives a property or None."""
        try:
            return self._evaluate(lookup) is True
        except NotComparable:
            return False

    def matches_record(self, record: Buffer) -> bool:
        """The same for a stored record; nothing but its properties is decoded. False for broken bytes."""
        raw = find_record_properties(record)
        if raw is None:
            return False

        def lookup(name: str) -> str | None:
            found = find_property(raw, name.encode())
            return None if found is None else str(found, "utf-8", "replace")

        return self.matches(lookup)


def compile_filter(expression: str) -> SqlFilter:
    """The filter for an expression.

    Raises:  SqlError (a ValueError) that says what is wrong and where.
    """
    if len(expression) > LENGTH_MAX:
        raise SqlError(f"the expression has {len(expression)} characters, at most {LENGTH_MAX} are allowed")
    if not expression.strip():
        raise SqlError("the expression is empty")
    from tandemmq.protocol.sql92.grammar import parse

    root = parse(expression)
    if root.size > NODES_MAX:
        raise SqlError(f"the expression has {root.size} parts, at most {NODES_MAX} are allowed")
    return SqlFilter(expression, root.evaluate, root.size)
