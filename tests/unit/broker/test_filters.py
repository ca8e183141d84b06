"""Tag expressions as sets of hashes (spec semantics 9.1)."""

from __future__ import annotations

import pytest

from tandemmq.broker.pull import filters
from tandemmq.broker.pull.filters import (
    EXPRESSION_LENGTH_MAX,
    SqlBudget,
    compile_sql,
    is_tag_type,
    parse_tags,
)
from tandemmq.protocol.hashes import java_hash
from tandemmq.protocol.sql92 import SqlFilter, compile_filter


@pytest.mark.parametrize("expression", [None, "", "  ", "*", " * "])
def test_everything_is_none(expression: str | None) -> None:
    assert parse_tags(expression) is None


def test_tags_are_trimmed_and_blanks_dropped() -> None:
    assert parse_tags(" a || b||||c ") == {java_hash("a"), java_hash("b"), java_hash("c")}
    assert parse_tags("TagA") == {2598919}


@pytest.mark.parametrize("expression", ["||", " || || ", "a" * (EXPRESSION_LENGTH_MAX + 1), "a||" * 5_000])
def test_unmatchable_or_too_long_tag_expression_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match="expression"):
        parse_tags("||".join(f"t{i}" for i in range(5_000)) if expression.startswith("a||") else expression)


def test_absent_type_means_tag() -> None:
    assert is_tag_type(None)
    assert is_tag_type("")
    assert is_tag_type("TAG")
    assert not is_tag_type("SQL92")


def test_one_heartbeat_has_a_budget_of_sql_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def compile_one(expression: str) -> SqlFilter:
        compiled.append(expression)
        return compile_filter(expression)

    monkeypatch.setattr(filters, "compile_filter", compile_one)
    expressions = [f"a = '{'x' * 4_000}{n}'" for n in range(6)]
    budget = SqlBudget()
    answers = [budget.compile(expression) for expression in expressions]
    assert [answer is None for answer in answers] == [False] * 5 + [True]
    assert [SqlBudget().compile(expression) for expression in expressions[:5]] == answers[:5]
    assert compiled == expressions[:5]  # another client gets them at no cost
    assert isinstance(compile_sql(expressions[5]), SqlFilter)
    assert budget.compile(expressions[5]) is not None


def test_the_expressions_that_are_kept_are_bounded() -> None:
    for n in range(filters.CACHED_COUNT_MAX + 10):
        compile_sql(f"number = {n}")
    assert len(filters._compiled) == filters.CACHED_COUNT_MAX
