"""A compiled filter, and the bounds for compiling one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Final

from tandemmq.protocol.hashes import tag_hash
from tandemmq.protocol.properties import find_properties, property_mark
from tandemmq.protocol.record_check import find_record_properties
from tandemmq.protocol.sql92.values import NotComparable, SqlError

if TYPE_CHECKING:
    from tandemmq.protocol.command import Buffer
    from tandemmq.protocol.sql92.nodes import Lookup, Node, Pairs

LENGTH_MAX: Final = 16_384
NODES_MAX: Final = 1_000


KNOWN_MAX: Final = 4_096
KNOWN_BYTES_MAX: Final = 64
NEEDS_MAX: Final = 4


class SqlFilter:
    """A compiled SQL92 expression, which selects messages.

    `size`: the number of nodes evaluated for one message. `tag_hashes`: every selected message has TAGS with
    one of these hashes; None: it may have others, or none.

    Strategy: an expression reads few properties, with few distinct values. The results for short values are
              cached; at KNOWN_MAX entries the cache is cleared.
    """

    __slots__ = (
        "_evaluate",
        "_known",
        "_marks",
        "_names",
        "_needs",
        "_patterns",
        "expression",
        "size",
        "tag_hashes",
    )

    def __init__(self, expression: str, root: Node) -> None:
        self.expression = expression
        self._evaluate = root.evaluate
        self.size = root.size
        self.tag_hashes = None if root.tags is None else frozenset(map(tag_hash, root.tags))
        self._names = tuple(sorted(root.names))
        self._needs = _needs_of(root.pairs)
        self._marks = tuple(map(property_mark, self._names))
        self._patterns = tuple(map(_value_pattern, self._names))
        self._known: dict[tuple[bytes | None, ...], bool] = {}

    def matches(self, lookup: Lookup) -> bool:
        """Returns True only if the expression is TRUE; `lookup` returns a property or None."""
        try:
            return self._evaluate(lookup) is True
        except NotComparable:
            return False

    def matches_record(self, record: Buffer) -> bool:
        """Like `matches`, for a stored record; only its properties are decoded. False for broken bytes."""
        raw = find_record_properties(record)
        return raw is not None and self.matches_properties(raw)

    def matches_properties(self, raw: bytes) -> bool:
        """Like `matches`, for a message's properties in their wire form."""
        if self._needs is not None:
            for need in self._needs:
                if need in raw:
                    break
            else:
                return False
        return self._decide(find_properties(raw, self._marks))

    def select(self, view: memoryview, begins: Sequence[int], ends: Sequence[int]) -> list[bool]:
        """Returns the results of `matches_properties` for the properties `view[begin:end]` of many messages.

        A regular expression finds a property in half the time, because it needs no copy.
        """
        columns = [
            [found and found[1] for found in map(pattern.match, repeat(view), begins, ends)]
            for pattern in self._patterns
        ]
        rows = list(zip(*columns, strict=True)) if columns else [()] * len(begins)
        results = {values: self._decide(values) for values in set(rows)}
        return list(map(results.__getitem__, rows))

    def _decide(self, values: tuple[bytes | None, ...]) -> bool:
        is_match = self._known.get(values)
        if is_match is None:
            texts = [None if value is None else str(value, "utf-8", "replace") for value in values]
            is_match = self.matches(dict(zip(self._names, texts, strict=True)).__getitem__)
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            if sum(map(len, filter(None, values))) <= KNOWN_BYTES_MAX:
                self._known[values] = is_match
        return is_match


def _needs_of(pairs: Pairs | None) -> tuple[bytes, ...] | None:
    """Returns the byte strings of which a message with one of the pairs contains at least one.

    None if a search for each would cost more than it saves, or if other bytes could decode to the same text.
    """
    if pairs is None or len(pairs) > NEEDS_MAX or any(not _is_exact(text) for _, text in pairs):
        return None
    return tuple(f"{name}\x01{text}".encode() for name, text in sorted(pairs))


def _value_pattern(name: str) -> re.Pattern[bytes]:
    """Returns an expression whose group 1 is the value of the last pair with this name that has a value."""
    return re.compile(rb"(?s:.*\x02)?%b\x01([^\x02]+)" % re.escape(name.encode()))


def _is_exact(text: str) -> bool:
    """Returns True if only one byte string decodes to this text."""
    return "\ufffd" not in text and text.encode("utf-8", "replace").decode() == text


def compile_filter(expression: str) -> SqlFilter:
    """Returns the filter for an expression.

    Raises:  SqlError (a ValueError) that states the fault and its position.
    """
    if len(expression) > LENGTH_MAX:
        raise SqlError(f"the expression has {len(expression)} characters, at most {LENGTH_MAX} are allowed")
    if not expression.strip():
        raise SqlError("the expression is empty")
    from tandemmq.protocol.sql92.grammar import parse

    root = parse(expression)
    if root.size > NODES_MAX:
        raise SqlError(f"the expression has {root.size} parts, at most {NODES_MAX} are allowed")
    return SqlFilter(expression, root)
