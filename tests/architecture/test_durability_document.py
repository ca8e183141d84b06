"""Every test that docs/evidence.md names exists."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
DOCUMENT = TESTS.parent / "docs" / "evidence.md"


def test_named_tests_exist() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    defined = {
        name
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))
    }
    named = set(re.findall(r"`(test_\w+)`", text))
    assert len(named) > 10
    assert named - defined == set()
    files = re.findall(r"`(tests/[\w/]+\.py)`", text)
    assert [name for name in files if not (TESTS.parent / name).exists()] == []
