"""Figures of the last minute, hour and day (spec semantics 22)."""

from __future__ import annotations

from datetime import date

from tandemmq.broker.stats import DAY_S, MINUTE_STEP_S, BrokerStats, Series, SeriesTable, StatsTotals


def run(series: Series, seconds: int, per_step: int, at_s: int = 0) -> int:
    """Records `per_step` messages of 100 bytes every step; returns the time at the end."""
    total = series.totals
    for step in range(1, seconds // MINUTE_STEP_S + 1):
        total = StatsTotals(total.messages + per_step, total.bytes + 100 * per_step, total.times + per_step)
        series.note(at_s + step * MINUTE_STEP_S, total)
    return at_s + seconds


def test_spans_of_a_steady_stream() -> None:
    series = Series(0, StatsTotals())
    run(series, 3 * DAY_S, per_step=50)
    figures = series.figures(is_bytes=False)
    assert (figures.minute.sum, figures.minute.tps, figures.minute.average) == (300, 5.0, 1.0)
    assert (figures.hour.sum, figures.hour.tps) == (5 * 3_600, 5.0)
    assert (figures.day.sum, figures.day.tps) == (5 * DAY_S, 5.0)
    sizes = series.figures(is_bytes=True)
    assert (sizes.minute.sum, sizes.minute.average) == (30_000, 100.0)


def test_new_series_counts_from_the_previous_sample() -> None:
    table = SeriesTable()
    table.sample(0, {"old": StatsTotals(7, 700, 7)})
    assert table.get("old") is not None
    table.sample(10, {"old": StatsTotals(7, 700, 7), "new": StatsTotals(20, 2_000, 2)})
    new = table.get("new")
    assert new is not None
    figures = new.figures(is_bytes=False)
    assert (figures.minute.sum, figures.minute.tps, figures.minute.average) == (20, 2.0, 10.0)


def test_quiet_minute_is_zero_while_the_day_remembers() -> None:
    series = Series(0, StatsTotals())
    end = run(series, 600, per_step=10)
    for step in range(1, 12):
        series.note(end + step * MINUTE_STEP_S, series.totals)
    figures = series.figures(is_bytes=False)
    assert (figures.minute.sum, figures.minute.tps, figures.minute.average) == (0, 0.0, 0.0)
    assert figures.day.sum == 600


def test_totals_that_went_back_begin_anew() -> None:
    table = SeriesTable()
    table.sample(0, {"T": StatsTotals(100, 0, 100)})
    table.sample(10, {"T": StatsTotals(3, 0, 3)})
    series = table.get("T")
    assert series is not None
    assert series.figures(is_bytes=False).day.sum == 3


def test_bound_and_forgetting() -> None:
    table = SeriesTable(count_max=2)
    table.sample(0, {name: StatsTotals(1, 1, 1) for name in "abc"})
    assert (len(table), table.get("c")) == (2, None)
    table.keep({"a"}, 10)
    assert (table.get("a") is not None, table.get("b")) == (True, None)
    table.keep({"a"}, DAY_S + 1)
    assert len(table) == 0
    table.sample(DAY_S + 10, {"idle": StatsTotals()})
    assert len(table) == 0


def test_counts_of_days_are_kept_at_midnight() -> None:
    stats = BrokerStats(0.0)
    stats.note_day(date(2026, 1, 1), 0, 0)
    stats.note_day(date(2026, 1, 1), 10, 3)
    assert (stats.put_mornings, stats.got_mornings) == ((0, 0), (0, 0))
    stats.note_day(date(2026, 1, 2), 10, 3)
    assert (stats.put_mornings, stats.got_mornings) == ((0, 10), (0, 3))
    stats.note_day(date(2026, 1, 3), 25, 4)
    assert (stats.put_mornings, stats.got_mornings) == ((10, 25), (3, 4))
