"""Counts the pages and actions that a run has driven, for its closing line."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import pytest


@dataclass
class ConsoleTally:
    """A page or an action counts when its cases have passed on every cluster of the run."""

    passed: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    failed: set[str] = field(default_factory=set)
    clusters: set[str] = field(default_factory=set)
    has_run: bool = False

    def add(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """Counts one phase of one case. A skipped case is a failure: nothing is known about it."""
        self.has_run = True
        if report.outcome != "passed":
            self.failed.add(report.nodeid)
        elif report.when == "call":
            params = item.callspec.params if hasattr(item, "callspec") else {}
            if "site" in params:
                self.clusters.add(params["site"])
            for kind in ("page", "action"):
                if kind in params:
                    self.passed[kind].add(params[kind])

    def closing_line(self) -> str:
        """Returns the verdict of the run."""
        is_good = (
            not self.failed and len(self.clusters) == 2 and self.passed["page"] and self.passed["action"]
        )
        return (
            f"CONSOLE {'OK' if is_good else 'FAILED'} pages={len(self.passed['page'])}"
            f" actions={len(self.passed['action'])} clusters={len(self.clusters)} failed={len(self.failed)}"
        )
