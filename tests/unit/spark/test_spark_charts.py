"""Tests the charts of reports: their content for any input, and that drawing has no side effects."""

from __future__ import annotations

import math
import re
from concurrent.futures import ThreadPoolExecutor
from xml.etree import ElementTree

import matplotlib
import pytest

from tandemmq.spark.pipelines.charts import (
    BARS_MAX,
    LABEL_CHARS_MAX,
    LINES_MAX,
    POINTS_MAX,
    WIDTH,
    draw_bars,
    draw_lines,
    find_time_step,
    render_number,
    render_seconds,
    thin,
)
from tandemmq.spark.pipelines.events import BarChart, Line, LineChart

NASTY = "a<b> & \"c' $x$ \x01\n订单"
DAY_S = 86_400.0


class Picture:
    """A drawn chart: its `texts`, and the corners of each shape by the shape's title."""

    def __init__(self, drawn: str) -> None:
        svg = ElementTree.fromstring(f"<div>{drawn}</div>")[0]
        _, _, self.width, self.height = map(float, svg.attrib["viewBox"].split())
        self.label = svg.attrib["aria-label"]
        self.texts = [text.text or "" for text in svg.iterfind("text")]
        self.styles: dict[str, str] = {}
        self.corners: dict[str, list[tuple[float, float]]] = {}
        for path in svg.iterfind("path[title]"):
            name, numbers = (
                path.findtext("title", ""),
                list(map(float, re.findall(r"[\d.]+", path.attrib["d"]))),
            )
            self.styles[name] = path.attrib["style"]
            self.corners[name] = list(zip(numbers[::2], numbers[1::2], strict=True))

    def measure(self, name: str) -> float:
        """Returns the width of the shape."""
        xs = [x for x, _ in self.corners[name]]
        return max(xs) - min(xs)


def _lines(*lines: tuple[tuple[float, float], ...], is_clock: bool = False, title: str = "t") -> LineChart:
    named = tuple(Line(f"line {index}", points) for index, points in enumerate(lines))
    return LineChart(title=title, unit="", lines=named, is_clock=is_clock)


def _bars(*bars: tuple[str, float], unit: str = "rows") -> BarChart:
    return BarChart(title="t", unit=unit, bars=bars)


def test_lines_stand_where_their_values_are() -> None:
    picture = Picture(
        draw_lines(_lines(((50.0, 1e6), (100.0, 4e6)), ((0.0, 0.0), (100.0, 4e6)), title='"t" & <'))
    )
    assert picture.label == '"t" & <'
    assert picture.texts == [*("0 s", "30 s", "1:00", "1:30"), *("0", "1M", "2M", "3M", "4M")]
    (late, end), (start, other_end) = picture.corners["line 0"], picture.corners["line 1"]
    assert end == other_end
    # The axis begins at 0 s although the first point of this line is later.
    assert late[0] == pytest.approx((start[0] + end[0]) / 2, abs=1)
    assert late[1] == pytest.approx(start[1] * 3 / 4 + end[1] / 4, abs=1)
    assert picture.styles["line 0"] != picture.styles["line 1"]


def test_a_legend_names_several_lines() -> None:
    assert "legend" not in draw_lines(_lines(((0.0, 1.0), (1.0, 2.0))))
    names = LineChart(title="t", unit="", lines=(Line("p50", ((1.0, 1.0),)), Line(NASTY, ((1.0, 2.0),))))
    drawn = draw_lines(names)
    assert re.findall(r'style="color: var\(--(c\d)\)">(p50|a&lt;b&gt;)', drawn) == [
        ("c0", "p50"),
        ("c1", "a&lt;b&gt;"),
    ]
    many = Picture(draw_lines(_lines(*[((1.0, 1.0), (2.0, 2.0))] * 30)))
    assert len(many.corners) == LINES_MAX


def test_times_of_day_and_dates_are_told() -> None:
    noon = 20_000 * DAY_S + DAY_S / 2
    hour = Picture(draw_lines(_lines(((noon, 1.0), (noon + 3600, 2.0)), is_clock=True)))
    assert hour.texts[:3] == ["12:00", "12:10", "12:20"]
    assert hour.corners["line 0"][0][0] < hour.width / 10
    week = Picture(draw_lines(_lines(((noon, 1.0), (noon + 7 * DAY_S, 2.0)), is_clock=True)))
    assert week.texts[0] == "10-06 00:00"


@pytest.mark.parametrize("unknown", [math.nan, math.inf, -math.inf])
def test_charts_skip_values_that_are_not_numbers(unknown: float) -> None:
    known = ((0.0, 1.0), (2.0, 3.0))
    assert draw_lines(_lines((known[0], (1.0, unknown), known[1]))) == draw_lines(_lines(known))
    assert "nothing to plot" in draw_lines(_lines(((1.0, unknown),)))
    bars = Picture(draw_bars(_bars(("known", 5.0), ("other", unknown))))
    assert bars.texts == ["known", "other", "5 rows", "–"]


def test_charts_of_nothing_and_of_one_point_say_so() -> None:
    assert "nothing to plot" in draw_lines(_lines(()))
    assert "nothing to plot" in draw_bars(_bars())
    dot = Picture(draw_lines(_lines(((3.0, 0.0),))))
    assert dot.texts[-2:] == ["0.8", "1"]
    assert "stroke-width: 6; stroke-linecap: round" in dot.styles["line 0"]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (-5.0, 5.0, {"-6", "0", "6"}),
        (-5.0, -3.0, {"-5", "0"}),
        (0.0, 0.0, {"0", "1"}),
        (1e-12, 3e-12, {"0", "3e-12"}),
        (1.0, 9.3e18, {"0", "1e+10G"}),
    ],
)
def test_any_range_is_shown_whole(low: float, high: float, ticks: set[str]) -> None:
    picture = Picture(draw_lines(_lines(((0.0, low), (1.0, high)))))
    assert ticks <= set(picture.texts)
    assert all(0 <= y <= picture.height for _, y in picture.corners["line 0"])


def test_bars_are_as_long_as_their_values() -> None:
    picture = Picture(draw_bars(_bars(("lake", 4e9), ("brokers", 1e9), ("none", 0.0), unit="B")))
    assert picture.texts == ["lake", "brokers", "none", "3.7 GiB", "953.7 MiB", "0 B"]
    assert picture.measure("lake") > WIDTH / 2
    assert picture.measure("brokers") == pytest.approx(picture.measure("lake") / 4, abs=1)
    assert 0 < picture.measure("none") < 3
    many = draw_bars(_bars(*((f"b{n}", 1.0) for n in range(30))))
    assert "and 10 more" in many
    assert len(Picture(many).corners) == BARS_MAX


def test_long_labels_are_cut_and_leave_room() -> None:
    for letter in "il订":
        picture = Picture(draw_bars(_bars((letter * 900, 2.0), ("other", 1.0))))
        assert picture.texts[0] == letter * (LABEL_CHARS_MAX - 1) + "…"
        # A truncated label is shown in full by the bar's tooltip.
        left = min(x for x, _ in picture.corners[letter * 900])
        assert left > LABEL_CHARS_MAX * (12 if letter == "订" else 3)
        assert picture.measure(letter * 900) > WIDTH / 8


def test_any_name_is_told_as_it_is() -> None:
    reported = "a<b> & \"c' $x$ ��订单"
    bars = Picture(draw_bars(_bars((NASTY, 1.0), ("", 1.0), ("var(--c1) #000001", 1.0))))
    assert bars.texts[:2] == [reported, "var(--c1) #000001"]
    assert list(bars.corners) == [reported, "", "var(--c1) #000001"]
    lines = LineChart(
        title=NASTY.replace("\x01", ""), unit="", lines=(Line(NASTY, ((0.0, 1.0), (1.0, 1.0))),)
    )
    assert list(Picture(draw_lines(lines)).corners) == [reported]


def test_a_chart_is_the_same_each_time_and_holds_nothing_that_could_clash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = tuple((float(n), float(n * 7 % 13)) for n in range(200))
    charts = [_lines(points), _lines(points[:1]), _lines(points, points[::2], is_clock=True)]
    first = [*map(draw_lines, charts), draw_lines(charts[0], is_half=True), draw_bars(_bars(("a", 1.0)))]
    # A user's settings have no effect, and are preserved.
    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "path")
    monkeypatch.setitem(matplotlib.rcParams, "grid.linewidth", 9.0)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(draw_lines, charts * 2)) == first[:3] * 2
    assert (matplotlib.rcParams["svg.fonttype"], matplotlib.rcParams["grid.linewidth"]) == ("path", 9.0)
    for drawn in first:
        assert not re.search(
            r"\bid=|href|url\(|<use|<style|<metadata|#[0-9a-f]{3}|<\?|<!|xmlns|font-family", drawn
        )


def test_a_long_line_is_a_bounded_picture_with_its_peaks() -> None:
    points = tuple((float(n), 1000.0 if n == 5_001 else n * 7919 % 600.0) for n in range(20_000))
    kept = thin(points, POINTS_MAX)
    assert len(kept) <= POINTS_MAX
    assert (5_001.0, 1000.0) in kept
    assert kept[0] == points[0]
    drawn = draw_lines(_lines(points))
    assert len(drawn) < 20_000
    picture = Picture(drawn)
    top = min(y for _, y in picture.corners["line 0"])
    assert top < picture.height / 10


def test_times_and_numbers_are_short() -> None:
    assert [find_time_step(59, 6), find_time_step(3000, 6), find_time_step(40 * DAY_S, 6)] == [
        10,
        600,
        7 * DAY_S,
    ]
    assert render_seconds(45) == "45 s"
    assert render_seconds(3725) == "1:02:05"
    assert render_number(1_500_000) == "1.5M"
