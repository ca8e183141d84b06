"""Builds functions from an expression while it is parsed: `Builder` is called for each complete rule.

A node's `evaluate` takes the lookup of a property and returns a value; None is SQL's NULL. The checks of
RocketMQ's parser need only the kind of a node (`NodeKind`).
Source:  spec semantics 9.2.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Final, NamedTuple, TypeAlias

from lark import Token, Transformer, v_args

from tandemmq.protocol.properties import TAGS
from tandemmq.protocol.sql92.values import (
    INT_MAX,
    LONG_MAX,
    Long,
    NotComparable,
    Present,
    SqlError,
    Value,
    compare,
    compare_doubles,
    parse_integer,
)

DEPTH_MAX: Final = 100
DOUBLE_MIN: Final = 5e-324
DOUBLE_MAX: Final = 1.7976931348623157e308

Lookup: TypeAlias = Callable[[str], str | None]
Evaluate: TypeAlias = Callable[[Lookup], Value]
Relation: TypeAlias = Callable[[int, int], bool]
Pairs: TypeAlias = frozenset[tuple[str, str]]


class NodeKind(Enum):
    """The kind of a node, for the checks."""

    CONSTANT = auto()
    BOOLEAN_CONSTANT = auto()
    PROPERTY = auto()
    BOOLEAN = auto()
    NUMBER = auto()


_CONSTANTS: Final = (NodeKind.CONSTANT, NodeKind.BOOLEAN_CONSTANT)
_BOOLEANS: Final = (NodeKind.BOOLEAN, NodeKind.BOOLEAN_CONSTANT)


class Node(NamedTuple):
    """A part of an expression.

    `size` is the number of its nodes, `depth` their nesting; `names` are the properties it reads. It is true
    only for messages whose TAGS is one of `tags`, and which have one of `pairs`, each a property and its
    value; None: no restriction.
    """

    kind: NodeKind
    evaluate: Evaluate
    size: int = 1
    depth: int = 1
    constant: Value = None
    names: frozenset[str] = frozenset()
    tags: frozenset[str] | None = None
    pairs: Pairs | None = None


def _join(
    kind: NodeKind,
    evaluate: Evaluate,
    *parts: Node,
    tags: frozenset[str] | None = None,
    pairs: Pairs | None = None,
) -> Node:
    depth = 1 + max(part.depth for part in parts)
    if depth > DEPTH_MAX:
        raise SqlError(f"the expression nests more than {DEPTH_MAX} levels deep")
    names = frozenset().union(*(part.names for part in parts))
    return Node(
        kind, evaluate, 1 + sum(part.size for part in parts), depth, names=names, tags=tags, pairs=pairs
    )


def _constant(value: Value, kind: NodeKind = NodeKind.CONSTANT) -> Node:
    return Node(kind, lambda _lookup: value, constant=value)


def as_boolean(node: Node) -> Node:
    """Returns the node as a condition. A property alone is one that is never true, since its value is a
    string.

    Raises:  SqlError for a number or a string.
    """
    if node.kind in _BOOLEANS:
        return node
    if node.kind is not NodeKind.PROPERTY:
        raise SqlError("expected a condition, found a number or a string")
    of = node.evaluate
    return _join(NodeKind.BOOLEAN, lambda lookup: None if of(lookup) is None else False, node)


def _not(node: Node) -> Node:
    of = as_boolean(node).evaluate

    def evaluate(lookup: Lookup) -> Value:
        value = of(lookup)
        return None if value is None else not value

    return _join(NodeKind.BOOLEAN, evaluate, node)


def _all(parts: tuple[Node, ...]) -> Node:
    if len(parts) == 1:
        return parts[0]
    known = [part.tags for part in parts if part.tags is not None]
    tags = frozenset.intersection(*known) if known else None
    pairs = min((part.pairs for part in parts if part.pairs is not None), key=len, default=None)
    return _join(NodeKind.BOOLEAN, _until(parts, decisive=False), *parts, tags=tags, pairs=pairs)


def _any(parts: tuple[Node, ...]) -> Node:
    if len(parts) == 1:
        return parts[0]
    known = [part.tags for part in parts if part.tags is not None]
    tags = frozenset().union(*known) if len(known) == len(parts) else None
    all_pairs = [part.pairs for part in parts if part.pairs is not None]
    pairs = frozenset().union(*all_pairs) if len(all_pairs) == len(parts) else None
    return _join(NodeKind.BOOLEAN, _until(parts, decisive=True), *parts, tags=tags, pairs=pairs)


def _until(parts: tuple[Node, ...], *, decisive: bool) -> Evaluate:
    """Returns the evaluation of conditions up to the first one with the decisive value. Without one, the
    result is unknown if a condition is unknown, else the other value.
    """
    conditions = [as_boolean(part).evaluate for part in parts]

    def evaluate(lookup: Lookup) -> Value:
        result: Value = not decisive
        for condition in conditions:
            value = condition(lookup)
            if value is decisive:
                return decisive
            if value is None:
                result = None
        return result

    return evaluate


def _with_needs(node: Node, of: Node, texts: Iterable[str]) -> Node:
    """Returns the node, which is true only if `of` is one of these texts."""
    if of.kind is not NodeKind.PROPERTY:
        return node
    (name,) = of.names
    tags = frozenset(texts)
    pairs = frozenset((name, text) for text in tags)
    return node._replace(tags=tags if name == TAGS else None, pairs=pairs)


def _equal_values(left: Evaluate, right: Evaluate) -> Evaluate:
    def evaluate(lookup: Lookup) -> Value:
        first, second = left(lookup), right(lookup)
        if first is None:
            return True if second is None else None
        if second is None:
            return False
        return compare(first, second) == 0

    return evaluate


def _equal(left: Node, right: Node) -> Node:
    for node in (left, right):
        if node.kind in _CONSTANTS and node.constant is None:
            raise SqlError("NULL cannot be compared with = or <>: use IS NULL or IS NOT NULL")
    if left.kind is NodeKind.BOOLEAN_CONSTANT and right.kind is NodeKind.CONSTANT:
        raise SqlError("TRUE and FALSE cannot be compared with a number or a string")
    evaluate = _compare_constant(left, right, operator.eq)
    if evaluate is None:
        evaluate = _equal_values(left.evaluate, right.evaluate)
    joined = _join(NodeKind.BOOLEAN, evaluate, left, right)
    for node, other in ((left, right), (right, left)):
        if isinstance(other.constant, str):
            return _with_needs(joined, node, (other.constant,))
    return joined


def _compare_constant(left: Node, right: Node, relation: Relation) -> Evaluate | None:
    """Returns a fast comparison of a property with a whole number, or for equality with a string.

    Most filters do that. The result is that of `compare`, without checking both types for each message. None
    for other nodes.
    """
    of, constant = left.evaluate, right.constant
    if left.kind is not NodeKind.PROPERTY or right.kind is not NodeKind.CONSTANT:
        return None
    if isinstance(constant, str) and relation is operator.eq:

        def is_equal(lookup: Lookup) -> Value:
            text = of(lookup)
            return None if text is None else text == constant

        return is_equal
    if not isinstance(constant, int):
        return None
    number, limit = constant, LONG_MAX if isinstance(constant, Long) else INT_MAX

    def evaluate(lookup: Lookup) -> Value:
        text = of(lookup)
        assert text is None or isinstance(text, str), text
        return None if text is None else relation(parse_integer(text, limit), number)

    return evaluate


def _ordered(left: Node, right: Node, relation: Relation) -> Node:
    for node in (left, right):
        is_number = isinstance(node.constant, int | float) and not isinstance(node.constant, bool)
        if node.kind in _BOOLEANS or (node.kind is NodeKind.CONSTANT and not is_number):
            raise SqlError("only numbers and properties can be operands of <, <=, > and >=, or of BETWEEN")
    first_of, second_of = left.evaluate, right.evaluate

    def evaluate(lookup: Lookup) -> Value:
        first = first_of(lookup)
        if first is None:
            return None
        second = second_of(lookup)
        if second is None:
            return None
        if isinstance(first, str) and isinstance(second, str):
            return relation(compare_doubles(first, second), 0)
        return relation(compare(first, second), 0)

    return _join(NodeKind.BOOLEAN, _compare_constant(left, right, relation) or evaluate, left, right)


def _search(left: Node, token: Token, found: Callable[[str, str], bool], *, expected: bool) -> Node:
    expected_text, of = _unquote(token), left.evaluate
    is_text = left.kind is NodeKind.PROPERTY or isinstance(left.constant, str)
    if not is_text:
        raise SqlError("CONTAINS, STARTSWITH and ENDSWITH need a property or a string before them")

    def evaluate(lookup: Lookup) -> Value:
        value = of(lookup)
        if not expected_text or not isinstance(value, str):
            return False
        return found(value, expected_text) is expected

    return _join(NodeKind.BOOLEAN, evaluate, left)


def _in(left: Node, tokens: tuple[Token, ...], *, expected: bool) -> Node:
    if left.kind is not NodeKind.PROPERTY:
        raise SqlError("IN needs the name of a property before it")
    texts = frozenset(map(_unquote, tokens))
    of = left.evaluate

    def evaluate(lookup: Lookup) -> Value:
        value = of(lookup)
        return None if value is None else (value in texts) is expected

    joined = _join(NodeKind.BOOLEAN, evaluate, left)
    return _with_needs(joined, left, texts) if expected else joined


def _unquote(token: Token) -> str:
    return str(token)[1:-1].replace("''", "'")


def _check_bounds(low: Node, high: Node) -> None:
    if low.kind not in _CONSTANTS or high.kind not in _CONSTANTS:
        return
    if low.constant is None or high.constant is None:
        raise SqlError("NULL cannot be a bound of BETWEEN")
    try:
        order = compare(_present(high), _present(low))
    except NotComparable:
        raise SqlError("the bounds of BETWEEN cannot be compared with each other") from None
    if order < 0:
        raise SqlError(
            f"the bounds of BETWEEN are the wrong way round: {low.constant!r} is above {high.constant!r}"
        )


def _present(node: Node) -> Present:
    assert node.constant is not None
    return node.constant


def _rule(build: Callable[..., Node], *arguments: object, **options: object) -> Callable[..., Node]:
    """Returns a method of the builder: `build` with the nodes of a rule, then with these arguments."""
    return lambda self, *parts: build(*parts, *arguments, **options)


@v_args(inline=True)
class Builder(Transformer[Token, Node]):
    """One method per rule of the grammar."""

    start = _rule(as_boolean)
    equal = _rule(_equal)
    greater = _rule(_ordered, operator.gt)
    greater_equal = _rule(_ordered, operator.ge)
    less = _rule(_ordered, operator.lt)
    less_equal = _rule(_ordered, operator.le)
    contains = _rule(_search, str.__contains__, expected=True)
    not_contains = _rule(_search, str.__contains__, expected=False)
    starts_with = _rule(_search, str.startswith, expected=True)
    not_starts_with = _rule(_search, str.startswith, expected=False)
    ends_with = _rule(_search, str.endswith, expected=True)
    not_ends_with = _rule(_search, str.endswith, expected=False)
    negation = _rule(_not)
    true = _rule(_constant, True, NodeKind.BOOLEAN_CONSTANT)
    false = _rule(_constant, False, NodeKind.BOOLEAN_CONSTANT)
    null = _rule(_constant, None, NodeKind.BOOLEAN_CONSTANT)

    def disjunction(self, *parts: Node) -> Node:
        return _any(parts)

    def conjunction(self, *parts: Node) -> Node:
        return _all(parts)

    def not_equal(self, left: Node, right: Node) -> Node:
        return _not(_equal(left, right))

    def is_null(self, node: Node) -> Node:
        of = node.evaluate
        return _join(NodeKind.BOOLEAN, lambda lookup: of(lookup) is None, node)

    def is_not_null(self, node: Node) -> Node:
        of = node.evaluate
        return _join(NodeKind.BOOLEAN, lambda lookup: of(lookup) is not None, node)

    def between(self, node: Node, low: Node, high: Node) -> Node:
        _check_bounds(low, high)
        return _all((_ordered(node, low, operator.ge), _ordered(node, high, operator.le)))

    def not_between(self, node: Node, low: Node, high: Node) -> Node:
        return _any((_ordered(node, low, operator.lt), _ordered(node, high, operator.gt)))

    def in_list(self, left: Node, *tokens: Token) -> Node:
        return _in(left, tokens, expected=True)

    def not_in_list(self, left: Node, *tokens: Token) -> Node:
        return _in(left, tokens, expected=False)

    def plus(self, node: Node) -> Node:
        return node

    def minus(self, node: Node) -> Node:
        of = node.evaluate

        def evaluate(lookup: Lookup) -> Value:
            value = of(lookup)
            if isinstance(value, bool) or not isinstance(value, int | float):
                return None
            return Long(-value) if isinstance(value, Long) else -value

        return _join(NodeKind.NUMBER, evaluate, node)

    def group(self, node: Node) -> Node:
        # One level deeper, so that the nesting of brackets is bounded.
        if node.depth >= DEPTH_MAX:
            raise SqlError(f"the expression nests more than {DEPTH_MAX} levels deep")
        return node._replace(depth=node.depth + 1)

    def text(self, token: Token) -> Node:
        return _constant(_unquote(token))

    def integer(self, token: Token) -> Node:
        number = int(str(token).rstrip("lL"))
        if number > LONG_MAX:
            raise SqlError(f"{str(token)[:32]} is too large: whole numbers have at most 64 bits")
        return _constant(number if number <= INT_MAX else Long(number))

    def float_number(self, token: Token) -> Node:
        number = float(token)
        if not DOUBLE_MIN <= number <= DOUBLE_MAX:
            raise SqlError(f"{str(token)[:32]} is zero or too large for a number with a point or an exponent")
        return _constant(number)

    def name(self, token: Token) -> Node:
        name = str(token)
        return Node(NodeKind.PROPERTY, lambda lookup: lookup(name), names=frozenset({name}))
