"""Grafana's board: its rows of panels as data, and their JSON.

`panels.py` has the rows. The JSON is that of Grafana 10 and later; a newer Grafana converts it on import. The
uid is fixed, so importing a newer board replaces an older one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

BOARD_UID: Final = "tandemmq"
WIDTH: Final = 24
"""Grafana's columns."""
HEIGHT: Final = 7
STAT_HEIGHT: Final = 4
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Query:
    """One expression and the name of its series; labels are in `{{braces}}`."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart, or one number. `unit` is Grafana's name of the unit, `text` explains the chart."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    text: str = ""
    width: int = 8
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """The panels about one subject. A closed row loads nothing until it is opened."""

    title: str
    panels: tuple[Panel, ...]
    is_closed: bool = True


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the head of the board: the values of the label `name` in the series of `source`."""

    name: str
    source: str
    title: str


def render_board(rows: tuple[Row, ...], variables: tuple[Variable, ...]) -> dict[str, Any]:
    """Returns the board as Grafana imports it."""
    return {
        "uid": BOARD_UID,
        "title": "TandemMQ",
        "tags": ["tandemmq", "rocketmq"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": [_SOURCE_CHOICE, *map(_choice, variables)]},
        "panels": list(_place(rows)),
    }


_SOURCE_CHOICE: Final = {
    "name": "datasource",
    "label": "Data source",
    "type": "datasource",
    "query": "prometheus",
}


def _choice(variable: Variable) -> dict[str, Any]:
    query = f"label_values({variable.source}, {variable.name})"
    return {
        "name": variable.name,
        "label": variable.title,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": variable.name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _place(rows: tuple[Row, ...]) -> Iterator[dict[str, Any]]:
    """Yields the rows with their panels from left to right, and from top to bottom."""
    number = y = 0
    for row in rows:
        number += 1
        head = {"id": number, "type": "row", "title": row.title, "collapsed": row.is_closed}
        place = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        y += 1
        placed: list[dict[str, Any]] = []
        x = line_height = 0
        for panel in row.panels:
            if x + panel.width > WIDTH:
                x, y, line_height = 0, y + line_height, 0
            height = STAT_HEIGHT if panel.is_number else HEIGHT
            number += 1
            placed.append(_panel(panel, number, {"x": x, "y": y, "w": panel.width, "h": height}))
            x, line_height = x + panel.width, max(line_height, height)
        y += line_height
        yield {**head, "gridPos": place, "panels": placed if row.is_closed else []}
        if not row.is_closed:
            yield from placed


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + index),
            "datasource": SOURCE,
            "expr": one.expression,
            "legendFormat": one.legend,
        }
        for index, one in enumerate(panel.queries)
    ]
    common = {
        "id": number,
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": targets,
    }
    defaults = {"unit": panel.unit, "min": 0}
    if panel.is_number:
        shown = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none", "graphMode": "area"}
        return {
            **common,
            "type": "stat",
            "fieldConfig": {"defaults": defaults, "overrides": []},
            "options": shown,
        }
    lines = {"lineWidth": 1, "fillOpacity": 8, "showPoints": "never"}
    return {
        **common,
        "type": "timeseries",
        "fieldConfig": {"defaults": {**defaults, "custom": lines}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }
