"""Names that a document puts behind the link to a source file exist in that file."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = ["docs/architecture.md", "docs/client.md"]
NAMED = re.compile(r"\]\((\.\./src/[^)]+\.py)\)\s+((?:`[\w.]+`,?\s*)+)")


def defined_names(path: Path) -> set[str]:
    """Functions and classes of a module, and methods as `Class.method`."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
            methods = (ast.FunctionDef, ast.AsyncFunctionDef)
            names |= {f"{node.name}.{item.name}" for item in node.body if isinstance(item, methods)}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
    return names


@pytest.mark.parametrize("document", DOCUMENTS)
def test_names_behind_links_exist(document: str) -> None:
    path = ROOT / document
    missing = []
    for source, names in NAMED.findall(path.read_text(encoding="utf-8")):
        known = defined_names(path.parent / source)
        missing += [f"{source}: {name}" for name in re.findall(r"`([\w.]+)`", names) if name not in known]
    assert missing == []


def test_words_of_the_glossary_are_in_the_files_that_own_them() -> None:
    """Each row's file exists and has the word, as it is written or as a part of a name."""
    page = ROOT / "docs" / "glossary.md"
    rows = re.findall(
        r"^\| ([^|]+?) \| .+ \| \[`[^`]+`\]\(([^)]+)\) \|$", page.read_text(encoding="utf-8"), re.M
    )
    assert 30 < len(rows) < 50
    missing = []
    for word, target in rows:
        source = page.parent / target
        text = source.name + source.read_text(encoding="utf-8") if source.exists() else ""
        if squashed(word.split(" of ")[0]) not in squashed(text):
            missing.append(f"{word}: {target}")
    assert missing == []


def squashed(text: str) -> str:
    return re.sub(r"[\W_#]+", "", text).lower()
