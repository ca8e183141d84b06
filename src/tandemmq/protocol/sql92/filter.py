"""A compiled filter, and the bounds within which one is compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandemmq.protocol.properties import find_property
from tandemmq.protocol.record_check import find_record_properties
from tandemmq.protocol.sql92.values import NotComparable, SqlError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tandemmq.protocol.command import Buffer
    from tandemmq.protocol.sql92.nodes import Evaluate, Lookup

LENGTH_MAX: Final = 16_384
NODES_MAX: Final = 1_000


KNOWN_MAX: Final = 4_096
KNOWN_BYTES_MAX: Final = 64


class SqlFilter:
    """Says which messages a SQL92 expression takes. `size` counts what is evaluated for one message.

    Strategy: an expression asks for few properties, and these have few values: what it says of some values is
              kept, short ones only. When KNOWN_MAX are kept all are forgotten.
    """

    __slots__ = ("_evaluate", "_known", "_names", "expression", "size")

    def __init__(self, expression: str, evaluate: Evaluate, size: int, names: Iterable[str]) -> None:
        self.expression = expression
        self._evaluate = evaluate
        self.size = size
        self._names = tuple((name, name.encode()) for name in names)
        self._known: dict[tuple[bytes | None, ...], bool] = {}

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

        values = tuple([find_property(raw, name) for _, name in self._names])
        is_match = self._known.get(values)
        if is_match is None:
            texts = {
                name: None if value is None else str(value, "utf-8", "replace")
                for (name, _), value in zip(self._names, values, strict=True)
            }
            is_match = self.matches(texts.__getitem__)
            self._keep(values, is_match)
        return is_match

    def _keep(self, values: tuple[bytes | None, ...], is_match: bool) -> None:
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        if sum(len(value) for value in values if value) <= KNOWN_BYTES_MAX:
            self._known[values] = is_match


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
    return SqlFilter(expression, root.evaluate, root.size, sorted(root.names))
