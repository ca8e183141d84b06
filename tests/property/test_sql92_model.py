"""SQL92 filters against an evaluator that walks a tree, on random expressions and messages."""

from __future__ import annotations

import contextlib
import operator
from itertools import accumulate
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tandemmq.protocol.hashes import tag_hash
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.sql92 import SqlError, compile_filter

Tree = tuple[Any, ...]
NAMES = ("a", "b", "TAGS")
ORDERS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


class Mistake(Exception):
    pass


def leaves() -> st.SearchStrategy[Tree]:
    name = st.sampled_from(NAMES)
    number = st.integers(-20, 20)
    text = st.sampled_from(["x", "y", "5", "it's"])
    return st.one_of(
        st.tuples(st.sampled_from(["=", "<>"]), name, st.one_of(number, text)),
        st.tuples(st.just("="), st.just("TAGS"), text),
        st.tuples(st.sampled_from(list(ORDERS)), name, number),
        st.tuples(st.just("between"), name, number, number, st.booleans()),
        st.tuples(st.just("in"), name, st.lists(text, min_size=1, max_size=7), st.booleans()),
        st.tuples(st.sampled_from(["contains", "startswith", "endswith"]), name, text, st.booleans()),
        st.tuples(st.just("null"), name, st.booleans()),
    )


def trees() -> st.SearchStrategy[Tree]:
    return st.recursive(
        leaves(),
        lambda part: st.one_of(
            st.tuples(st.sampled_from(["and", "or"]), part, part), st.tuples(st.just("not"), part)
        ),
        max_leaves=12,
    )


def literal(value: object) -> str:
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def render(tree: Tree) -> str:
    kind = tree[0]
    if kind in ("and", "or"):
        return f"({render(tree[1])}) {kind} ({render(tree[2])})"
    if kind == "not":
        return f"NOT ({render(tree[1])})"
    if kind == "between":
        return f"{tree[1]} {'NOT ' if tree[4] else ''}BETWEEN {tree[2]} AND {tree[3]}"
    if kind == "in":
        return f"{tree[1]} {'NOT ' if tree[3] else ''}In ({', '.join(map(literal, tree[2]))})"
    if kind in ("contains", "startswith", "endswith"):
        return f"{tree[1]} {'NOT ' if tree[3] else ''}{kind.upper()} {literal(tree[2])}"
    if kind == "null":
        return f"{tree[1]} IS {'NOT ' if tree[2] else ''}NULL"
    return f"{tree[1]}{kind}{literal(tree[2])}"


def number_of(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Mistake from None


def judge(tree: Tree, message: dict[str, str]) -> bool | None:
    kind = tree[0]
    if kind == "not":
        value = judge(tree[1], message)
        return None if value is None else not value
    if kind in ("and", "or"):
        decisive = kind == "or"
        left = judge(tree[1], message)
        if left is decisive:
            return decisive
        right = judge(tree[2], message)
        if right is decisive:
            return decisive
        return None if left is None or right is None else not decisive
    value = message.get(tree[1])
    if kind == "null":
        return (value is None) is not tree[2]
    if kind in ("contains", "startswith", "endswith"):
        if value is None:
            return False
        tests = {"contains": str.__contains__, "startswith": str.startswith, "endswith": str.endswith}
        return tests[kind](value, tree[2]) is not tree[3]
    if value is None:
        return None
    if kind == "in":
        return (value in tree[2]) is not tree[3]
    if kind == "between":
        return (tree[2] <= number_of(value) <= tree[3]) is not tree[4]
    if kind in ORDERS:
        return ORDERS[kind](number_of(value), tree[2])
    same = value == tree[2] if isinstance(tree[2], str) else number_of(value) == tree[2]
    return same is (kind == "=")


def has_bad_bounds(tree: Tree) -> bool:
    """Returns True if a constant range is invalid. The parser checks only unsigned constants: a negated one
    is an expression.
    """
    if tree[0] == "between":
        low, high, is_negated = tree[2], tree[3], tree[4]
        return not is_negated and low > high and low >= 0 and high >= 0
    return any(has_bad_bounds(part) for part in tree[1:] if isinstance(part, tuple))


messages = st.dictionaries(
    st.sampled_from(NAMES), st.sampled_from(["x", "y", "5", "-3", "17", "it's", "+4"]), max_size=3
)


@given(trees(), messages)
def test_filter_agrees_with_a_tree_walk(tree: Tree, message: dict[str, str]) -> None:
    text = render(tree)
    if has_bad_bounds(tree):
        try:
            compile_filter(text)
        except SqlError:
            return
        raise AssertionError(text)
    try:
        expected = judge(tree, message) is True
    except Mistake:
        expected = False
    compiled = compile_filter(text)
    assert compiled.matches(message.get) is expected, text
    # As a store does: with the wire form, and only where the tag allows it.
    assert compiled.matches_properties(encode_properties(message)) is expected, text
    if expected and compiled.tag_hashes is not None:
        assert tag_hash(message["TAGS"]) in compiled.tag_hashes, text


pieces = st.sampled_from([b"a", b"b", b"TAGS", b"x", b"5", b"\x01", b"\x02", b"\x02a\x01", b"\xff", b"\n"])
wires = st.lists(st.lists(pieces, max_size=12).map(b"".join), min_size=1, max_size=8)


@given(trees().filter(lambda tree: not has_bad_bounds(tree)), wires)
def test_many_messages_are_selected_as_one_by_one(tree: Tree, texts: list[bytes]) -> None:
    """Whatever the bytes are: broken pairs, repeated names, missing values."""
    ends = list(accumulate(len(text) + 3 for text in texts))
    begins = [end - len(text) for end, text in zip(ends, texts, strict=True)]
    view = memoryview(b"".join(b"\x02a\x01" + text for text in texts))
    by_one, by_many = compile_filter(render(tree)), compile_filter(render(tree))
    assert by_many.select(view, begins, ends) == list(map(by_one.matches_properties, texts))


@given(st.text(alphabet="ab15'()=<>-. \tnotANDOrIiSULlBETWN,+*/", max_size=40))
def test_any_text_compiles_or_is_refused(text: str) -> None:
    with contextlib.suppress(SqlError):
        compile_filter(text).matches({"a": "1"}.get)
