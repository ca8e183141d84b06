"""Documents stay true: links resolve, and event names mean one thing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tandemmq.telemetry import events

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
PAGE_LINES_MAX = 400
LONGER = {"CHANGELOG.md", "docs/operations.md", "docs/settings.md"}
"""Pages for looking things up; that of the settings is generated, with a row for each."""
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_to_files_resolve(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    missing = [target for target in LINK.findall(text) if not (document.parent / target).exists()]
    assert missing == []


def test_pages_are_short() -> None:
    """A longer page is split by the question of its reader."""
    lines = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in DOCUMENTS
    }
    longer = {name: count for name, count in lines.items() if count > PAGE_LINES_MAX and name not in LONGER}
    assert longer == {}


def test_event_names_are_unique() -> None:
    names = [value for name, value in vars(events).items() if name.isupper()]
    assert len(names) == len(set(names))
