"""A line of the doctor's report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DoctorLine:
    """One line of the report. `level` is ok, warning or problem; `fix` is empty for ok."""

    level: str
    area: str
    text: str
    fix: str = ""


def problem(area: str, text: str, fix: str) -> DoctorLine:
    return DoctorLine("problem", area, text, fix)


def warning(area: str, text: str, fix: str) -> DoctorLine:
    return DoctorLine("warning", area, text, fix)


def ok(area: str, text: str) -> DoctorLine:
    return DoctorLine("ok", area, text)
