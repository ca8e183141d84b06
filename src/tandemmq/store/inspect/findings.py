"""What an inspection found: damaged ranges of files and remarks about them.

Invariants: damage is what a broker or a reader would stumble over; a note is normal in the state that the
            store is in (a crash leaves `abort` and an unfinished tail), or cannot be judged.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

FINDING_COUNT_MAX = 10_000
"""More are counted, not kept."""


class Severity(Enum):
    """Whether the store is damaged by it."""

    DAMAGE = "damage"
    NOTE = "note"


class Part(Enum):
    """The part of the store that a finding is about."""

    LOG = "CommitLog"
    QUEUE = "ConsumeQueue"
    INDEX = "key index"
    CHECKPOINT = "checkpoint"
    MARKS = "marks"
    CONFIG = "config"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One range of one file. Unknown facts are None; `offset` and `size_bytes` are bytes in the file."""

    severity: Severity
    part: Part
    path: Path
    reason: str
    offset: int = 0
    size_bytes: int = 0
    log_offset: int | None = None
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """The finding in plain values, as `--json` prints it."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        values |= {"severity": self.severity.value, "part": self.part.value, "path": str(self.path)}
        return {name: value for name, value in values.items() if value is not None}


class Findings:
    """All findings of one inspection, in the order in which they came."""

    def __init__(self) -> None:
        self.listed: list[Finding] = []
        self.damage_count = 0
        self.note_count = 0

    def add(self, finding: Finding) -> None:
        """Count it, and keep it while there is room."""
        if finding.severity is Severity.DAMAGE:
            self.damage_count += 1
        else:
            self.note_count += 1
        if len(self.listed) < FINDING_COUNT_MAX:
            self.listed.append(finding)

    def damage(self, part: Part, path: Path, reason: str, **facts: Any) -> None:
        """Something is broken."""
        self.add(Finding(severity=Severity.DAMAGE, part=part, path=path, reason=reason, **facts))

    def note(self, part: Part, path: Path, reason: str, **facts: Any) -> None:
        """Something is worth knowing."""
        self.add(Finding(severity=Severity.NOTE, part=part, path=path, reason=reason, **facts))

    def report(self, part: Part, path: Path, reason: str, *, is_expected: bool, **facts: Any) -> None:
        """Damage, or only a note when the state of the store explains it."""
        (self.note if is_expected else self.damage)(part, path, reason, **facts)

    @property
    def unlisted_count(self) -> int:
        return self.damage_count + self.note_count - len(self.listed)
