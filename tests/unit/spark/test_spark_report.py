"""Tests reports and metrics of pipelines: complete, self-contained, and safe with any text."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tandemmq.errors import ConfigError
from tandemmq.spark.command_watch import Watch, _render_command, build_reporters
from tandemmq.spark.pipelines.events import (
    AuditDone,
    BarChart,
    BatchDone,
    Line,
    LineChart,
    ReportTable,
    Restarted,
    SideJudged,
    Started,
    Stopped,
)
from tandemmq.spark.pipelines.meters import MetricsReporter
from tandemmq.spark.pipelines.report import SAMPLES_MAX, ReportReporter


def _batch(number: int, lag: int | None = 0) -> BatchDone:
    return BatchDone(
        batch=number,
        rows=10,
        bytes=1000,
        rows_total=10 * (number + 1),
        bytes_total=1000 * (number + 1),
        lag=lag,
        seconds=0.5,
        rate=20,
    )


def test_a_report_is_one_file_with_everything_in_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "report.html"
    report = ReportReporter(path, title="Landing <T>", command="landing --topic '<T>'")
    report.report(Started(topic="T", out="o", rows_total=0, bytes_total=0))
    for number in range(3):
        report.report(_batch(number, None if number == 1 else 5))
    report.report(Restarted(error="no <name> server", pause_seconds=1.0))
    report.report(SideJudged(side="slave 1", is_equal=False, missing=3))
    report.report(BarChart(title="Bars", unit="B", bars=(("a & b", 2.0), ("c", 1.0))))
    report.report(ReportTable(title="Rows", columns=("x", "y"), rows=(("<b>", 1234567), (None, 1.5))))
    report.report(Stopped(reason="signal", rows_total=30, bytes_total=3000))
    report.close()
    page = path.read_text()
    assert "<T>" not in page
    assert "&lt;b&gt;" in page
    assert "1,234,567" in page
    assert not re.search(r"(src|href)=|@import|url\(", page)
    for text in ("Rate", "Lag", "Batches", "Total", "Bars", "Rows", "Verdicts", "Remarks", "Command"):
        assert f"<h2>{text}" in page, text
    assert "no &lt;name&gt; server" in page
    assert 'class="verdict"' in page
    # The body is well-formed, so browsers need not guess.
    body = page[page.index("<main>") : page.index("</main>") + len("</main>")]
    ElementTree.fromstring(body)


def test_a_bad_end_looks_bad_and_a_long_run_stays_bounded(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    report = ReportReporter(path, title="Audit", command="")
    for number in range(3 * SAMPLES_MAX):
        report.report(_batch(number))
    report.report(AuditDone(reason="different"))
    report.close()
    page = path.read_text()
    assert 'class="verdict bad"' in page
    assert f"{30 * SAMPLES_MAX:,}" in page
    assert len(page) < 200_000


def test_curves_begin_with_the_run_and_long_lines_are_wrapped(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    report = ReportReporter(path, title="Landing", command="landing " + "x" * 300)
    report.report(Started(topic="T", out="o", rows_total=0, bytes_total=0))
    report.report(_batch(0))
    report.close()
    page = path.read_text()
    total = page[page.index("<h2>Total") :]
    # The line starts at the initial total; without that point a single batch would be a dot.
    (path,) = re.findall(r' d="([^"]+)"[^>]*><title>Total<', total)
    start, end = re.findall(r"[ML] ([\d.]+ [\d.]+)", path)
    assert start != end
    (cell,) = [rule for rule in page.splitlines() if rule.startswith("td:only-child")]
    assert "overflow-wrap: anywhere" in cell


def test_every_colour_is_one_of_the_page_on_light_and_dark_screens(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    report = ReportReporter(path, title="Landing", command="")
    report.report(_batch(0))
    report.report(_batch(1))
    report.report(BarChart(title="Bars", unit="B", bars=(("a", 2.0),)))
    lines = tuple(Line(f"l{n}", ((0.0, 1.0), (1.0, float(n)))) for n in range(8))
    report.report(LineChart(title="Lines", unit="", lines=lines))
    report.close()
    page = path.read_text()
    light, dark = (set(re.findall(r"(--\w+): #", rule)) for rule in re.findall(r":root \{([^}]+)\}", page))
    assert light == dark
    body = page[page.index("<main>") :]
    assert {"--soft", "--rule", "--c0", "--c5"} <= set(re.findall(r"var\((--\w+)\)", body)) <= light
    assert not re.search(r"(fill|stroke|color): (?!none|var)", body)
    assert body.count("<svg") == 6


def test_metrics_are_served_while_the_pipeline_runs() -> None:
    metrics = MetricsReporter("landing", 0, "127.0.0.1")
    try:
        metrics.report(Started(topic="T", out="o", rows_total=5, bytes_total=7))
        metrics.report(_batch(0, lag=3))
        metrics.report(_batch(1, lag=None))
        metrics.report(Restarted(error="x", pause_seconds=1))
        metrics.report(SideJudged(side="slave 1", is_equal=False, missing=4, loss_seconds=1.5))
        url = f"http://127.0.0.1:{metrics.port}"
        text = urllib.request.urlopen(f"{url}/metrics", timeout=60).read().decode()
        assert 'tandemmq_pipeline_rows_total{pipeline="landing"} 20.0' in text
        assert 'tandemmq_pipeline_batches_total{pipeline="landing"} 2.0' in text
        assert 'tandemmq_pipeline_lag_messages{pipeline="landing"} 3.0' in text
        assert 'tandemmq_pipeline_restarts_total{pipeline="landing"} 1.0' in text
        assert 'tandemmq_pipeline_audit_equal{pipeline="landing",side="slave 1"} 0.0' in text
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{url}/other", timeout=60)
        with pytest.raises(ConfigError, match="--metrics-port"):
            MetricsReporter("other", metrics.port, "127.0.0.1")
    finally:
        metrics.close()


def test_report_hides_secret_options() -> None:
    shown = _render_command(["landing", "--option", "secretKey=abc", "--option", "accessKey=d e", "--x=1"])
    assert shown == "landing --option secretKey=... --option accessKey=... --x=1"
    shown = _render_command(["audit", "--conf=spark.hadoop.fs.s3a.secret.key=abc", "--option=secretKey=abc"])
    assert shown == "audit --conf=spark.hadoop.fs.s3a.secret.key=... --option=secretKey=..."


def test_a_report_that_cannot_be_drawn_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tandemmq.spark.command_watch.find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match="matplotlib: run `pip install"):
        build_reporters("one", "T", Watch(report=Path("report.html")), "")


def test_a_taken_port_is_refused_before_anything_starts() -> None:
    metrics = MetricsReporter("one", 0)
    try:
        with pytest.raises(ConfigError):
            build_reporters("two", "T", Watch(metrics_port=metrics.port), "")
    finally:
        metrics.close()
