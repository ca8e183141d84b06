"""Tables that the server searches, sorts and divides into pages; charts and texts of pages."""

from __future__ import annotations

from tandemmq.console.listing import ROWS_MAX, Listing, make_listing
from tandemmq.console.render import (
    ChartLine,
    draw_lines,
    make_url,
    show_bytes,
    show_duration,
    show_number,
    show_time,
)

NAMES = [f"topic-{number:05}" for number in range(10_000)]


def list_names(**query: str) -> Listing[str]:
    return make_listing(NAMES, query, search=str, sorts={"name": str, "tail": lambda one: one[-1]})


def test_pages_of_ten_thousand_rows() -> None:
    first = list_names()
    assert (first.page, first.pages, first.total, len(first.rows)) == (1, 100, 10_000, ROWS_MAX)
    assert list_names(page="100").rows[-1] == "topic-09999"
    for text in ("0", "-1", "x", "999999999999", "²"):
        assert 1 <= list_names(page=text).page <= 100


def test_search_and_sort() -> None:
    assert list_names(q="TOPIC-0123").found == 10
    assert list_names(sort="-name").rows[0] == "topic-09999"
    assert list_names(sort="unknown").sort == "name"
    found = list_names(q="1", sort="-name", page="2")
    assert found.query(page=3) == {"q": "1", "sort": "-name", "page": 3}
    assert found.sort_link("name") == "name"
    assert found.sort_link("tail") == "tail"


def test_missing_values_come_last() -> None:
    rows = make_listing([3, None, 1], {"sort": "-n"}, search=str, sorts={"n": lambda one: one}).rows
    assert rows == [3, 1, None]


def test_texts() -> None:
    assert (show_bytes(0), show_bytes(1536), show_bytes(None)) == ("0 B", "1.5 KiB", "–")
    assert (show_number(1234567), show_number(0.25, 2)) == ("1\u202f234\u202f567", "0.25")
    assert (show_duration(3.25), show_duration(75), show_duration(90_000)) == (
        "3.2 s",
        "1 min 15 s",
        "1 d 1 h",
    )
    assert 'datetime="2026-01-02T03:04:05.000Z"' in show_time(1767323045000)
    assert (show_time(0), show_time(10**30)) == ("–", str(10**30))
    assert make_url("/x", q="a b&c", page="") == "/x?q=a+b%26c"


def test_chart_fits_its_box() -> None:
    points = [(at, float(at)) for at in range(0, 600_000, 5_000)]
    chart = draw_lines("Rate", [ChartLine("in", points), ChartLine("out", [])], unit="/s")
    assert chart.span_s == 595
    assert chart.scale == 1_000_000
    assert [bool(path) for _, path, _ in chart.lines] == [True, False]
    assert "now in 595" in chart.summary
    assert draw_lines("Empty", []).scale == 1
