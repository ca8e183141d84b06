"""Checks that an expression uses metrics that exist, with their labels and as their kind."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tandemmq.telemetry.controller_metrics import CONTROLLER_TABLE, NAMESERVER_TABLE
from tandemmq.telemetry.metrics import TABLE, Metric, MetricKind
from tandemmq.telemetry.proxy_metrics import PROXY_TABLE
from tandemmq.telemetry.rocketmq_metrics import ROCKETMQ_TABLE

METRICS: Final = {
    metric.name: metric
    for metric in (*TABLE, *PROXY_TABLE, *ROCKETMQ_TABLE, *CONTROLLER_TABLE, *NAMESERVER_TABLE)
}
UNPREFIXED: Final = "|".join(rf"{metric.name}(?:_bucket|_count|_sum)?(?=\{{)" for metric in CONTROLLER_TABLE)
"""Controllers' names are words that may also be labels; an expression selects such a metric with braces."""
SCRAPED: Final = {"job", "instance"}
"""The labels that Prometheus adds."""
USE: Final = re.compile(
    rf"\b(rate\(|increase\(|deriv\()?\(?\b((?:tandemmq|rocketmq)_\w+|{UNPREFIXED})(?:\{{([^}}]*)\}})?(\[)?"
)
NAMED: Final = re.compile(r"\b(?:by|on|group_left) \(([^)]*)\)")
MATCHER: Final = re.compile(r'(\w+)(?:=~|!~|!=|=)"[^"]*"')


def used_metrics(expression: str) -> dict[str, Metric]:
    """Returns the metrics of an expression by the names used there, which for histograms have an ending."""
    return {name: metric_of(name) for _, name, _, _ in USE.findall(expression)}


def metric_of(name: str) -> Metric:
    found = METRICS.get(name) or METRICS.get(re.sub(r"_(bucket|count|sum)$", "", name))
    assert found is not None, f"no metric {name}"
    assert (found.name == name) != (found.kind is MetricKind.HISTOGRAM), f"{name} has no series of its own"
    return found


def check_expression(expression: str) -> None:
    """Fails if the expression names a metric or a label that does not exist, or takes the rate of a gauge."""
    known = set(SCRAPED)
    for function, name, matchers, interval in USE.findall(expression):
        metric = metric_of(name)
        labels = {*metric.labels, *({"le"} if name.endswith("_bucket") else ())}
        assert set(MATCHER.findall(matchers)) <= labels | SCRAPED, (name, matchers)
        assert MATCHER.sub("", matchers).strip(", ") == "", matchers
        known |= labels
        is_counted = metric.kind is not MetricKind.GAUGE
        assert is_counted == (function in ("rate(", "increase(")), (
            f"{function}{name} is a {metric.kind.value}"
        )
        assert not is_counted or interval, f"{name} needs an interval"
    named = {label.strip() for names in NAMED.findall(expression) for label in names.split(",")}
    assert named - {""} <= known, expression


def promtool(folder: Path, command: str, files: dict[str, str]) -> None:
    """Writes the files, and runs `promtool COMMAND` on the first one; skips without Prometheus' tools."""
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is missing: `apt-get install prometheus` brings it")
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    words = [tool, *command.split(), next(iter(files))]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
