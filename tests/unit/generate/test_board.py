"""Grafana's board: metrics, units and places of its panels."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from expressions import check_expression, promtool, used_metrics
from typer.testing import CliRunner

from tandemmq.generate.board import WIDTH, Panel, render_board
from tandemmq.generate.command import app
from tandemmq.generate.panels import ROWS, VARIABLES
from tandemmq.telemetry.metrics import MetricKind

PANELS = [panel for row in ROWS for panel in row.panels]
EXPRESSIONS = [query.expression for panel in PANELS for query in panel.queries]
UNITS = {"bytes": "bytes", "seconds": "s", "milliseconds": "ms", "ratio": "percentunit"}


def shown_panels() -> list[dict[str, Any]]:
    """Returns all panels of the rendered board, rows included."""
    panels = render_board(ROWS, VARIABLES)["panels"]
    return [shown for panel in panels for shown in (panel, *panel.get("panels", ()))]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_panels_use_metrics_that_exist_in_their_unit(panel: Panel) -> None:
    for query in panel.queries:
        check_expression(query.expression)
        metrics = used_metrics(query.expression)
        ends = {name.removesuffix("_bucket").rpartition("_")[2] for name in metrics}
        units = {UNITS[end] for end in ends & UNITS.keys()}
        is_ratio = " / " in query.expression
        if units and not is_ratio and "cpu" not in query.expression:
            assert units == {panel.unit}
        counted = any(metric.kind is MetricKind.COUNTER for metric in metrics.values())
        if counted and "rate(" in query.expression and not is_ratio:
            assert panel.unit in ("cps", "Bps", "percentunit"), "a rate is per second"
        labels = {label for metric in metrics.values() for label in metric.labels}
        assert set(re.findall(r"{{(\w+)}}", query.legend)) <= labels | {"instance"}


def test_variables_are_labels_of_their_series() -> None:
    for variable in VARIABLES:
        is_counter = "_total" in variable.source
        check_expression(f"rate({variable.source}[5m])" if is_counter else variable.source)
        (metric,) = used_metrics(variable.source).values()
        assert variable.name in metric.labels
    names = {variable.name for variable in VARIABLES}
    used = {name for expression in EXPRESSIONS for name in re.findall(r"\$(\w+)", expression)}
    assert used == names | {"__rate_interval"}


def test_panels_do_not_overlap() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in shown_panels():
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= WIDTH
        rows = range(place["y"], place["y"] + place["h"])
        taken = set(itertools.product(range(place["x"], place["x"] + place["w"]), rows))
        assert not taken & cells, panel["title"]
        cells |= taken
    numbers = [panel["id"] for panel in shown_panels()]
    assert len(numbers) == len(set(numbers))


def test_command_prints_the_board() -> None:
    done = CliRunner().invoke(app, ["grafana"])
    assert done.exit_code == 0
    board = json.loads(done.stdout)
    assert board["uid"] == "tandemmq"
    assert [row["title"] for row in board["panels"] if row["type"] == "row"] == [row.title for row in ROWS]


def test_prometheus_parses_the_expressions(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": re.sub(r"\$\w*interval", "5m", expression)}
        for number, expression in enumerate(EXPRESSIONS)
    ]
    groups = {"groups": [{"name": "board", "rules": rules}]}
    promtool(tmp_path, "check rules", {"rules.yml": yaml.safe_dump(groups)})
