"""Docstrings open with a verb or a noun phrase, so that the first words say what the reader gets."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REFUSED = re.compile(r"(What|Who|Whose|Whom|Where|Which|Of|As|So|Until|When|How|Whether)\b")
"""Openings that leave the noun or the verb to a clause behind them."""


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """The line and text of each docstring, those below attributes included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        body = getattr(node, "body", None)
        for one in body if isinstance(body, list) else ():
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant):
                value = one.value.value
                if isinstance(value, str):
                    yield one.lineno, value.strip()


@pytest.mark.parametrize("folder", ["src", "tools", "tests"])
def test_docstrings_open_with_a_verb_or_a_noun(folder: str) -> None:
    refused = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in docstrings(path)
        if REFUSED.match(text)
    ]
    assert refused == []
