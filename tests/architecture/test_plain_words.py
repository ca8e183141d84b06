"""Docstrings open with a verb or a noun phrase, and texts avoid the phrases that puzzle a new reader."""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REFUSED = re.compile(r"(What|Who|Whose|Whom|Where|Which|Of|As|So|Until|When|How|Whether)\b")
"""Openings that leave the noun or the verb to a clause behind them."""

PHRASES = {
    re.compile(pattern, re.IGNORECASE): instead
    for pattern, instead in (
        (
            r"(?<!there )\b(is|are|was|were) no (?!(longer|more|less|fewer)\b|\w+er than\b)",
            "is not a ..., lacks",
        ),
        (r"\b(has|have|had) not got\b", "lacks"),
        (r"\b(go|goes|going|gone|went) on\b", "continues, resumes"),
        (r"(?<!, )\bso (many|late)\b(?! that\b)", "a number or a limit: N, at most N"),
        (r"\bwhat is there\b", "the noun"),
        (r"\b(is|are|was|were) not there\b", "is missing, does not exist"),
        (r"\bdeletion marks?\b", "tombstone"),
        (r"\b(is|are|was|were|be|been) passed on\b", "forwards"),
        (r"\bpass(es|ed) over\b", "skips, ignores"),
        (r"\bagain and again\b", "repeatedly"),
        (r"\b(nobody|somebody|everybody|whoever|whomever)\b", "the part: no client, every caller"),
        (r"\bthe own \w+", "its own, this broker's"),
        (r"\bnothing that\b", "no ..."),
        (r"\bturned bits?\b", "bit flip"),
        (r"\btold\b(?! apart)", "notified, reported, known"),
        (r"\bvouch(es|ed|ing)?\b", "guarantees, confirms"),
        (r"\b(lies|stands) (at|in|on|behind|before)\b", "is at, is stored in"),
        (r"\bmend(s|ed|ing)?\b", "repairs"),
        (r"\bbeliev(e|es|ed|ing)\b", "trusts"),
        (r"\b(is|are|was|were|comes?|came) (in|into) doubt\b", "is unverified"),
        (r"\blead(s|ing)? (\w+ )?away\b", "makes read-only, drains"),
    )
}
"""Phrases of a private language, and the words of the field that replace them."""

DOCUMENTS = sorted(
    str(path.relative_to(ROOT).with_suffix(""))
    for path in (ROOT / "docs").rglob("*.md")
    if "spec" not in path.parts
)
"""All pages but the specification, which quotes RocketMQ."""
QUOTES_SOURCES = "plant_catalogue"
"""The start of the names of modules that quote lines of other files."""


ANY_PHRASE = re.compile("|".join(pattern.pattern for pattern in PHRASES), re.IGNORECASE)
"""Finds whether a text has one of the phrases, in one pass."""


@functools.cache
def strings(path: Path) -> tuple[tuple[int, str, bool], ...]:
    """The line and text of each string; True for docstrings, those below attributes included."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    documented = {
        id(one.value)
        for node in nodes
        for one in (node.body if isinstance(getattr(node, "body", None), list) else ())
        if isinstance(one, ast.Expr)
    }
    return tuple(
        (node.lineno, node.value, id(node) in documented)
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """The line and text of each comment; none if no line of the file has a phrase behind a number sign."""
    source = path.read_text(encoding="utf-8")
    if not ANY_PHRASE.search(
        "\n".join(line[line.index("#") :] for line in source.splitlines() if "#" in line)
    ):
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """The line and text of all comments and docstrings; outside of tests, whose strings are often data of
    users, also of all other strings, which are errors and help texts.
    """
    if path.suffix == ".md":
        yield from enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        return
    yield from comments(path)
    is_test = "tests" in path.relative_to(ROOT).parts
    yield from ((line, text) for line, text, is_docstring in strings(path) if is_docstring or not is_test)


def private_language(path: Path) -> Iterator[str]:
    """The refused phrases of a file, each with its line and its replacement."""
    for line, text in prose(path):
        if not ANY_PHRASE.search(text):
            continue
        for pattern, instead in PHRASES.items():
            for match in pattern.finditer(text):
                at = line + text.count("\n", 0, match.start())
                yield f"{path.relative_to(ROOT)}:{at}: {match.group(0)!r}: write {instead}"


@pytest.mark.parametrize("folder", ["src", "tools", "tests"])
def test_docstrings_open_with_a_verb_or_a_noun(folder: str) -> None:
    refused = [
        f"{path.relative_to(ROOT)}:{line}: {text.strip().splitlines()[0]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text, is_docstring in strings(path)
        if is_docstring and REFUSED.match(text.strip())
    ]
    assert refused == []


@pytest.mark.parametrize("folder", ["src", "tools", "tests", "examples"])
def test_texts_use_the_words_of_the_field(folder: str) -> None:
    refused = [
        found
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not path.name.startswith(QUOTES_SOURCES)
        if path != Path(__file__)
        for found in private_language(path)
    ]
    assert refused == []


@pytest.mark.parametrize("document", ["README", "CONTRIBUTING", *DOCUMENTS])
def test_documents_use_the_words_of_the_field(document: str) -> None:
    assert list(private_language(ROOT / f"{document}.md")) == []
