"""The curves of growth, at small sizes: every one gives its figures, and the page shows them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import growth

SMALL = {"backlog": (0,), "size of a message": (64, 1024), "cold readers": (0, 1)}


@pytest.mark.parametrize("curve", growth.CURVES, ids=lambda curve: curve.title)
def test_each_curve_gives_figures_of_each_size(curve: growth.Curve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "OPERATIONS", 32)
    monkeypatch.setattr(growth, "COLD_MESSAGES", 4096)

    async def collect(sizes: tuple[int, ...]) -> list[growth.Point]:
        return [growth.Point(size, figures) async for size, figures in curve.measure(sizes)]

    sizes = SMALL.get(curve.title, (1, 3))
    points = asyncio.run(collect(sizes))
    assert [point.size for point in points] == list(sizes)
    assert all(figure > 0 for point in points for figure in point.figures.values())
    assert len({tuple(point.figures) for point in points}) == 1


def test_the_page_and_its_picture_show_every_figure(tmp_path: Path) -> None:
    points = [growth.Point(1, {"send, us": 12.34}), growth.Point(1_000, {"send, us": 5_678.9})]
    page = growth.render_page([(growth.CURVES[0], points)])
    assert "| 1,000 | 5,678.9 |" in page
    assert growth.CURVES[0].says in page
    growth.draw([(growth.CURVES[0], points)], tmp_path / "growth.png")
    assert (tmp_path / "growth.png").stat().st_size > 0


def test_a_title_that_no_curve_has_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert growth.main(["--only", "nothing of it"]) == 2
    assert "backlog" in capsys.readouterr().out
