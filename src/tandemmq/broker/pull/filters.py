"""Subscription expressions of both types. A tag expression becomes a set of hashes (spec semantics 9.1).
SQL92 is compiled once, cached, and evaluated on the properties of stored records. A broken expression is
cached as well, so that a client repeating it costs nothing (spec semantics 9.2 and 9.3).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

from tandemmq.errors import RequestRejected
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.hashes import java_hash
from tandemmq.protocol.sql92 import SqlError, SqlFilter, compile_filter

TAG_TYPE = "TAG"
MATCH_ALL = "*"

EXPRESSION_LENGTH_MAX = 65_536
TAG_COUNT_MAX = 4_096
CACHED_EXPRESSION_LENGTH_MAX = 256

Filter: TypeAlias = frozenset[int] | SqlFilter | None


def is_tag_type(expression_type: str | None) -> bool:
    """Returns True for the tag type, which is also the default if the type is missing."""
    return not expression_type or expression_type == TAG_TYPE


def split_tags(expression: str) -> list[str]:
    """Returns the tags that an expression such as `TagA || TagB` names."""
    return [tag for part in expression.split("||") if (tag := part.strip())]


def parse_tags(expression: str | None) -> frozenset[int] | None:
    """Returns the hashes of the tags in `expression`, or None if it matches every message.

    Raises:  ValueError if a bound is exceeded, or if the expression has only separators and could never
            match.
    """
    if expression is None or not expression.strip() or expression.strip() == MATCH_ALL:
        return None
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise ValueError(
            f"the expression has {len(expression)} characters, at most {EXPRESSION_LENGTH_MAX} allowed"
        )
    tags = split_tags(expression)
    if not tags:
        raise ValueError(f"the expression {expression[:64]} has no tag; allowed are '*' and 'TagA || TagB'")
    if len(tags) > TAG_COUNT_MAX:
        raise ValueError(f"the expression names {len(tags)} tags, at most {TAG_COUNT_MAX} allowed")
    return frozenset(java_hash(tag) for tag in tags)


SQL_TYPE = "SQL92"
CACHED_COUNT_MAX = 512
"""The number of cached expressions. Each has at most 16 KiB of text; a compiled one of that length takes
about ten times as much, but few are that long.
"""
BUDGET_CHARACTERS = 16_384
COMPILE_CHARACTERS_MIN = 16
"""The minimum charge per expression, in characters."""


_compiled: dict[str, SqlFilter | str] = {}
"""The cache for all clients, by expression, least recently used first."""


def compile_sql(expression: str) -> SqlFilter | str:
    """Returns the compiled filter, or the error text."""
    compiled = _compiled.pop(expression, None)
    if compiled is None:
        try:
            compiled = compile_filter(expression)
        except SqlError as error:
            compiled = str(error)
        if len(_compiled) >= CACHED_COUNT_MAX:
            del _compiled[next(iter(_compiled))]
    _compiled[expression] = compiled
    return compiled


class SqlBudget:
    """The number of characters of SQL92 that one heartbeat may have compiled, at about 5 us each."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = BUDGET_CHARACTERS

    def compile(self, expression: str) -> SqlFilter | str | None:
        """Returns the filter or the error text; None if the budget is spent, so that the first pull compiles
        it.
        """
        if expression not in _compiled:
            if self._left <= 0:
                return None
            self._left -= len(expression) + COMPILE_CHARACTERS_MIN
        return compile_sql(expression)


def require_sql(topic: str, expression: str, expression_type: str | None, *, is_enabled: bool) -> SqlFilter:
    """Returns the filter for a subscription that is not of type TAG.

    Raises:  RequestRejected: SYSTEM_ERROR when filters by property are off or the type is unknown,
            SUBSCRIPTION_PARSE_FAILED when the expression cannot be compiled.
    """
    check_type(expression_type, is_enabled=is_enabled)
    compiled = compile_sql(expression)
    if isinstance(compiled, str):
        raise RequestRejected(
            f"the subscription of {topic[:160]} cannot be parsed: {compiled}",
            code=ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        )
    return compiled


def parse_filter(
    topic: str, expression_type: str | None, expression: str | None, *, is_sql_enabled: bool
) -> Filter:
    """Returns the tags or the filter of a pull or a pop, or None if it wants every message.

    Raises:  RequestRejected: SUBSCRIPTION_PARSE_FAILED, or SYSTEM_ERROR for an unsupported expression type.
    """
    if not is_tag_type(expression_type):
        return require_sql(topic, expression or "", expression_type, is_enabled=is_sql_enabled)
    try:
        if expression is None or len(expression) <= CACHED_EXPRESSION_LENGTH_MAX:
            return _parse_cached(expression)
        return parse_tags(expression)
    except ValueError as error:
        raise RequestRejected(
            f"the subscription of {topic} cannot be parsed: {error}",
            code=ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        ) from None


_parse_cached = lru_cache(maxsize=4096)(parse_tags)


def check_type(expression_type: str | None, *, is_enabled: bool) -> None:
    """Raises RequestRejected (SYSTEM_ERROR) unless this broker supports the expression type."""
    if expression_type != SQL_TYPE:
        raise RequestRejected(
            f"the expression type {str(expression_type)[:32]!r} is unknown: use TAG or SQL92",
            code=ResponseCode.SYSTEM_ERROR,
        )
    if not is_enabled:
        raise RequestRejected(
            "filters by property (SQL92) are off on this broker: set enablePropertyFilter=true",
            code=ResponseCode.SYSTEM_ERROR,
        )
