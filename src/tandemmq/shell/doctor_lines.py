"""The answers of a broker to the doctor, and a line of the doctor's report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tandemmq.manage.tools import Target
from tandemmq.protocol.bodies.replica import HaStatus


@dataclass(frozen=True, slots=True)
class Checkup:
    """The answers of one broker."""

    target: Target
    facts: Mapping[str, str]
    settings: Mapping[str, str]
    replication: HaStatus


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
