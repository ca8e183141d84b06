"""Every page in three looks on both clusters: axe-core, the width of a phone, hostile texts."""

from __future__ import annotations

import pytest
from browser import Reader, picture_name
from sites import Site
from visits import VISITS

from tandemmq.console.pages import ALL
from tandemmq.console.view import Page

pytestmark = [pytest.mark.console, pytest.mark.timeout(600)]
PAGES = ("/login", *(one.path for one in ALL if isinstance(one, Page)))


@pytest.mark.parametrize("page", PAGES)
def test_page(page: str, site: Site, readers: dict[str, Reader]) -> None:
    assert page in VISITS, f"the page {page} has no visit in tests/console/visits.py"
    visit = VISITS[page]
    address = visit.address(site)
    if visit.is_download:
        answer = readers["light"].context.request.get(site.url + address)
        assert answer.status == 200, answer.text()[:500]
        assert "attachment" in answer.headers["content-disposition"]
        assert all(text in answer.text() for text in visit.finds)
        return
    may_lack = visit.ours_only and site.name == "java"
    problems = []
    for look, reader in readers.items():
        response = reader.visit_answered(address)
        text = reader.page.inner_text("main")
        if response.status != visit.status and not (may_lack and response.status != 500):
            problems.append(f"{look}: {address} has status {response.status}: {text[:500]}")
        if missing := [one for one in visit.finds if one not in text and not may_lack]:
            problems.append(f"{look}: {missing} missing in {text[:1500]}")
        try:
            reader.check(picture_name(page))
        except AssertionError as error:
            problems.append(f"{look}: {error}")
    assert not problems, "\n".join(problems)
