"""The page of settings is complete and equals the output of its tool."""

from __future__ import annotations

from pathlib import Path

import settings_page
from tandemmq.config.names import (
    BROKER_KEYS,
    CONTROLLER_KEYS,
    NAMESERVER_KEYS,
    PROXY_KEYS,
    TLS_KEYS,
)


def test_every_setting_has_a_chapter_and_an_effect() -> None:
    listed = [name for names in settings_page.CHAPTERS.values() for name in names]
    assert len(listed) == len(set(listed))
    assert set(listed) == BROKER_KEYS.keys() - TLS_KEYS.keys() - settings_page.EXPORT_KEYS.keys()
    programs = (BROKER_KEYS, NAMESERVER_KEYS, CONTROLLER_KEYS, PROXY_KEYS)
    assert settings_page.EFFECTS.keys() == set().union(*programs)
    assert settings_page.EFFECTS.keys() >= settings_page.OURS


def test_the_page_is_up_to_date() -> None:
    page = Path(__file__).parents[3] / "docs" / "settings.md"
    text = "\n".join(settings_page.render()) + "\n"
    assert page.read_text(encoding="utf-8") == text, "run: python -m settings_page > docs/settings.md"
