"""Subscription expressions of type TAG, as sets of tag hashes. Pure (spec semantics 9.1)."""

from __future__ import annotations

from tandemmq.protocol.java_hash import java_hash

TAG_TYPE = "TAG"
MATCH_ALL = "*"

EXPRESSION_LENGTH_MAX = 65_536
TAG_COUNT_MAX = 4_096


def is_tag_type(expression_type: str | None) -> bool:
    """Whether an expression type means tags, which is also what no type means."""
    return not expression_type or expression_type == TAG_TYPE


def split_tags(expression: str) -> list[str]:
    """The tags that an expression such as `TagA || TagB` names."""
    return [tag for part in expression.split("||") if (tag := part.strip())]


def parse_tags(expression: str | None) -> frozenset[int] | None:
    """The hashes of the tags in `expression`; None when it matches every message.

    Raises:  ValueError naming the bound, or an expression of separators only, which could never match.
    """
    if expression is None or not expression.strip() or expression.strip() == MATCH_ALL:
        return None
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise ValueError(
            f"the expression has {len(expression)} characters, at most {EXPRESSION_LENGTH_MAX} allowed"
        )
    tags = split_tags(expression)
    if not tags:
        raise ValueError(
            f"the expression {expression[:64]!r} names no tag; allowed are '*' and 'TagA || TagB'"
        )
    if len(tags) > TAG_COUNT_MAX:
        raise ValueError(f"the expression names {len(tags)} tags, at most {TAG_COUNT_MAX} allowed")
    return frozenset(java_hash(tag) for tag in tags)
