"""Counts what a run of these tests showed: rows are clients by line or language, columns are who served.

A case counts as passed only when it ran and was right. In a run that requires interoperation a skipped case
is a failure: nothing is known about it. Only a language whose tools are missing is reported as not run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest

JAVA_ROWS = ("java-4.9", "java-5.3", "java-5.x", "java-grpc", "mqadmin")
LANGUAGES = ("c++", "go", "node", "python", "rust")
ROWS = (*JAVA_ROWS, *LANGUAGES)
OTHER = "other"
OURS, BOTH, JAVA = "our servers", "both makers'", "Java's servers"
_LINE_WORDS = {"java-4.9": ("4.9", "java_4"), "java-5.3": ("5.3",), "java-5.x": ("5.x", "java_5")}


@dataclass(frozen=True)
class Place:
    """The column in which a case is counted."""

    row: str
    column: str


def place_of(item: pytest.Item) -> Place:
    """Set by the marker `interop_case(row=, column=)`; what it leaves out by module and parameters."""
    marker = item.get_closest_marker("interop_case")
    told = marker.kwargs if marker is not None else {}
    words = [*_words(item)]
    return Place(told.get("row") or _row(item, words), told.get("column") or _column(words))


GRPC_ROWS = ("python", "node", "go", "java", "rust")
GRPC_COLUMNS = ("ours", "mixed", "control")
"""Our proxy and broker, our proxy before Java's broker, Java's proxy and broker (test_grpc_clients.py)."""


def grpc_place_of(item: pytest.Item) -> Place:
    """Counts a case of the official gRPC clients by its language and servers."""
    params = item.callspec.params  # type: ignore[attr-defined]
    return Place(params["language"], params.get("servers", "ours"))


def _words(item: pytest.Item) -> Iterable[str]:
    callspec = getattr(item, "callspec", None)
    for value in callspec.params.values() if callspec is not None else ():
        yield str(getattr(value, "name", value))


def _row(item: pytest.Item, words: list[str]) -> str:
    if "mqadmin" in item.nodeid.split("::")[0]:
        return "mqadmin"
    for language in LANGUAGES:
        if language in words:
            return language
    for row, known in _LINE_WORDS.items():
        if any(part == word or part in word.split("quick_") for word in words for part in known):
            return row
    return OTHER


def _column(words: list[str]) -> str:
    """Our client at Java's servers counts as both makers': ours takes part."""
    if any(word in ("ours", "quick_ours") for word in words):
        return OURS
    return JAVA if "java" in words else BOTH


@dataclass
class Tally:
    """The counts of one session."""

    places: dict[str, Place] = field(default_factory=dict)
    passed: Counter[Place] = field(default_factory=Counter)
    bad: set[str] = field(default_factory=set)
    """Failed in any phase, or skipped."""
    absent: set[str] = field(default_factory=set)
    """Languages whose tools are missing."""

    def expect(self, items: Iterable[pytest.Item], place: Callable[[pytest.Item], Place] = place_of) -> None:
        self.places.update({item.nodeid: place(item) for item in items})

    def add(self, report: pytest.TestReport) -> None:
        """One phase of one case."""
        place = self.places.get(report.nodeid)
        if place is None:
            return
        if report.outcome == "skipped" and place.row in LANGUAGES and place.column not in GRPC_COLUMNS:
            self.absent.add(place.row)
        elif report.outcome != "passed" or hasattr(report, "wasxfail"):
            self.bad.add(report.nodeid)
        elif report.when == "call":
            self.passed[place] += 1

    @property
    def failed_count(self) -> int:
        return len(self.bad)

    def row_count(self, row: str) -> int:
        """Cases of a row that passed and in which something of ours took part."""
        return self.passed[Place(row, OURS)] + self.passed[Place(row, BOTH)]

    def table(self) -> list[str]:
        """A line per row: the cases that passed by who served."""
        columns = (OURS, BOTH, JAVA)
        lines = [f"{'passed':<10}" + "".join(f"{column:>16}" for column in columns)]
        for row in (*ROWS, OTHER):
            counts = [self.passed[Place(row, column)] for column in columns]
            if row != OTHER or any(counts):
                lines.append(f"{row:<10}" + "".join(f"{count:>16}" for count in counts))
        return lines

    @property
    def is_grpc(self) -> bool:
        """True if the cases are those of the official gRPC clients."""
        return any(place.column in GRPC_COLUMNS for place in self.places.values())

    def grpc_table(self) -> list[str]:
        """A line per language: the cases that passed by who served."""
        lines = [f"{'passed':<10}" + "".join(f"{column:>10}" for column in GRPC_COLUMNS)]
        for row in GRPC_ROWS:
            counts = (self.passed[Place(row, column)] for column in GRPC_COLUMNS)
            lines.append(f"{row:<10}" + "".join(f"{count:>10}" for count in counts))
        return lines

    def grpc_line(self, is_good: bool) -> str:
        """The closing line of `make grpc`: cases through our proxy that passed, by language."""
        counts = {
            row: sum(self.passed[Place(row, column)] for column in GRPC_COLUMNS[:2]) for row in GRPC_ROWS
        }
        told = " ".join(f"{row}={count}" for row, count in counts.items())
        return f"GRPC {'OK' if is_good else 'FAILED'} {told} failed={self.failed_count}"

    def client_line(self, is_good: bool) -> str:
        """The same for a run of our own client's cases alone."""
        ours, java = (self.passed[Place(OTHER, column)] for column in (OURS, BOTH))
        is_good = is_good and bool(ours and java)
        return f"CLIENT {'OK' if is_good else 'FAILED'} ours={ours} java={java} failed={self.failed_count}"

    def closing_line(self, is_good: bool) -> str:
        told = {row: "not-run" if row in self.absent else self.row_count(row) for row in ROWS}
        counts = " ".join(f"{row}={count}" for row, count in told.items())
        return f"INTEROP {'OK' if is_good else 'FAILED'} {counts} failed={self.failed_count}"
