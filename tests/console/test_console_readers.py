"""Readers of all kinds: in another time zone, with the keyboard alone, while a broker is killed, with hostile
texts in the messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from browser import KOLKATA, LIGHT, PHONE, Look, Reader
from sites import Site

from waits import until_blocking

pytestmark = [pytest.mark.console, pytest.mark.timeout(600)]
OpenLook = Callable[[Look], Reader]
UTC_TITLE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC")
LOCAL = "%Y-%m-%d %H:%M:%S"
TABS_MAX = 60


def test_times_are_in_the_zone_of_the_reader_and_in_utc(site: Site, open_look: OpenLook) -> None:
    reader = open_look(KOLKATA)
    reader.visit("/")
    assert "Asia/" in reader.page.inner_text("#zone")
    moments = reader.page.locator("main time")
    assert moments.count()
    for number in range(moments.count()):
        moment = moments.nth(number)
        title, shown = moment.get_attribute("title") or "", moment.inner_text()
        assert UTC_TITLE.fullmatch(title), title
        utc = datetime.strptime(title.removesuffix(" UTC"), LOCAL)
        assert datetime.strptime(shown, LOCAL) - utc == timedelta(hours=5, minutes=30), (title, shown)
    reader.check("overview")


def test_pages_are_reached_with_the_keyboard_alone(site: Site, open_look: OpenLook) -> None:
    reader = open_look(LIGHT)
    reader.visit("/")
    page = reader.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    reader.visit("/")
    targets = [link.get_attribute("href") for link in page.locator("#menu a").all()]
    assert targets
    seen: list[str] = []
    for _ in range(TABS_MAX):
        page.keyboard.press("Tab")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        href = page.evaluate("document.activeElement.getAttribute('href')")
        assert outline != "none", f"the focus is invisible at {href}"
        if href in targets and href not in seen:
            seen.append(href)
        if len(seen) == len(targets):
            break
    assert seen == targets, "the menu is walked in its order"
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{targets[-1]}")


def test_the_menu_of_a_phone_opens_and_closes_with_the_keyboard(site: Site, open_look: OpenLook) -> None:
    reader = open_look(PHONE)
    reader.visit("/")
    button = reader.page.get_by_role("button", name="Menu")
    assert button.get_attribute("aria-expanded") == "false"
    button.focus()
    reader.page.keyboard.press("Enter")
    assert button.get_attribute("aria-expanded") == "true"
    reader.check("menu")
    reader.page.keyboard.press("Escape")
    assert button.get_attribute("aria-expanded") == "false"
    assert reader.page.locator("#menu").is_hidden()


def test_an_open_page_says_that_a_broker_was_killed_and_that_it_is_back(
    site: Site, open_look: OpenLook
) -> None:
    if site.up is None:
        return  # Java's only broker serves the other cases
    reader = open_look(LIGHT)
    reader.visit("/")
    main = reader.page.locator("main")
    assert "2 of 2 answer" in main.inner_text()
    site.up.kill_master()
    until_blocking(lambda: "new master" in main.inner_text(), "the page names the new master", 60)
    reader.check("broker-killed")
    until_blocking(lambda: "2 of 2 answer" in main.inner_text(), "the page shows both brokers again", 90)
    site.load.check()
