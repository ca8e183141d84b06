"""Tag expressions as sets of hashes (spec semantics 9.1)."""

from __future__ import annotations

import pytest

from tandemmq.broker.pull.filters import EXPRESSION_LENGTH_MAX, is_tag_type, parse_tags
from tandemmq.protocol.hashes import java_hash


@pytest.mark.parametrize("expression", [None, "", "  ", "*", " * "])
def test_everything_is_none(expression: str | None) -> None:
    assert parse_tags(expression) is None


def test_tags_are_trimmed_and_blanks_dropped() -> None:
    assert parse_tags(" a || b||||c ") == {java_hash("a"), java_hash("b"), java_hash("c")}
    assert parse_tags("TagA") == {2598919}


@pytest.mark.parametrize("expression", ["||", " || || ", "a" * (EXPRESSION_LENGTH_MAX + 1), "a||" * 5_000])
def test_what_could_never_match_or_is_too_long_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match="expression"):
        parse_tags("||".join(f"t{i}" for i in range(5_000)) if expression.startswith("a||") else expression)


def test_absent_type_means_tag() -> None:
    assert is_tag_type(None)
    assert is_tag_type("")
    assert is_tag_type("TAG")
    assert not is_tag_type("SQL92")
