"""The curves of growth, at small sizes: every one gives its figures, and the page shows them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import growth
from tandemmq.errors import TandemError

SMALL = {"backlog": (0,), "size of a message": (64, 1024), "cold readers": (0, 1)}


def lack_java(_cache: Path) -> None:
    raise TandemError("Maven is missing")


@pytest.mark.parametrize("curve", growth.CURVES, ids=lambda curve: curve.title)
def test_each_curve_gives_figures_of_each_size(curve: growth.Curve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "OPERATIONS", 32)
    monkeypatch.setattr(growth, "COLD_MESSAGES", 4096)
    for name in ("ROUTES_S", "WARM_UP_S", "EXPIRY_S"):
        monkeypatch.setattr(growth, name, 0.06)
    monkeypatch.setattr(growth, "prepare_java", lack_java)

    async def collect(sizes: tuple[int, ...]) -> list[growth.Point]:
        return [growth.Point(size, figures) async for size, figures in curve.measure(sizes)]

    sizes = SMALL.get(curve.title, (1, 3))
    points = asyncio.run(collect(sizes))
    assert [point.size for point in points] == list(sizes)
    assert all(figure > 0 for point in points for figure in point.figures.values())
    assert len({tuple(point.figures) for point in points}) == 1


def measured(number: int, figures: growth.Figures, machine: str = "2026-01-02: ours.") -> growth.Measured:
    points = [growth.Point(size, figures) for size in (1, 1_000)]
    return growth.Measured(growth.CURVES[number], points, machine)


def test_the_page_and_its_picture_show_every_figure(tmp_path: Path) -> None:
    one = measured(0, {"send, us": 5_678.9})
    page = growth.render_part([one])
    assert "| 1,000 | 5,678.9 |" in page
    assert one.curve.says in page
    growth.draw([one], tmp_path / "growth.png")
    assert (tmp_path / "growth.png").stat().st_size > 0


def test_a_page_that_was_read_is_written_again_as_it_was() -> None:
    figures = {"send, us": 1_234.5, "private MiB": 0.1}
    every = [measured(0, figures), measured(3, figures, "2026-02-03: elsewhere."), measured(-1, figures)]
    page = growth.render_part(every)
    assert page.count("2026-01-02") == page.count("2026-02-03") == 1
    before, found = growth.read_page(f"# Costs\n\n{page}")
    assert (before, list(found.values())) == ("# Costs\n\n", every)


def test_a_curve_that_is_measured_alone_leaves_the_others_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "images").mkdir()
    page = tmp_path / "costs.md"
    part = growth.render_part([measured(0, {"send, us": 1.5}), measured(3, {"send, us": 2.5})])
    page.write_text(f"# Costs\n\nBy hand.\n\n{part}")
    monkeypatch.setattr(growth, "_measure_alone", lambda _curve: [growth.Point(7, {"send, us": 8.5})])
    assert growth.main(["--only", growth.CURVES[3].title, "--out", str(tmp_path)]) == 0
    assert page.read_text().startswith("# Costs\n\nBy hand.\n\n## ")
    assert "| 1 | 1.5 |" in page.read_text()
    assert "| 7 | 8.5 |" in page.read_text()
    assert "2.5" not in page.read_text()


def test_a_curve_that_fails_costs_no_figures_of_those_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "new"

    def measure_or_fail(curve: growth.Curve) -> list[growth.Point]:
        if curve is growth.CURVES[1]:
            raise OSError("the disk is full")
        return [growth.Point(7, {"send, us": 8.5})]

    monkeypatch.setattr(growth, "_measure_alone", measure_or_fail)
    with pytest.raises(OSError, match="full"):
        growth.main(["--out", str(out)])
    assert "| 7 | 8.5 |" in (out / "costs.md").read_text()
    assert (out / "images" / "growth.png").stat().st_size > 0


def test_a_page_that_cannot_be_read_is_told_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "costs.md").write_text("# Something else\n")
    asked: list[growth.Curve] = []
    monkeypatch.setattr(growth, "_measure_alone", asked.append)
    with pytest.raises(ValueError, match="no heading"):
        growth.main(["--out", str(tmp_path)])
    assert asked == []


def test_a_page_without_java_says_so() -> None:
    assert "Java's was not measured" in growth.render_part([measured(-1, {"registration, us": 1.0})])
    with_java = {"registration, us": 1.0, "registration, us, Java": 2.0}
    assert "Java's was not measured" not in growth.render_part([measured(-1, with_java)])


def test_a_title_that_no_curve_has_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert growth.main(["--only", "nothing of it"]) == 2
    assert "backlog" in capsys.readouterr().out
