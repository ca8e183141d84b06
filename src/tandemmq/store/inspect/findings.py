"""The findings of an inspection: damaged ranges of files, and remarks (`Finding`, `Findings`); and the
readable facts about a damaged record of the CommitLog (`Damage`).

Invariants: damage would disturb a broker or a reader. A note is normal in the state of the store (a crash
            leaves `abort` and an unfinished tail), or cannot be judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from struct import pack_into
from typing import Any

import msgspec

from tandemmq.protocol.record_check import RecordCheck, check_record, parse_record
from tandemmq.protocol.record_layout import MAGIC_V1, MAGIC_V2, PREFIX, RECORD_BYTES_MIN, RecordOutcome
from tandemmq.store.inspect.files import OffsetFile
from tandemmq.units import MIB

FINDING_COUNT_MAX = 10_000
"""The maximum number of findings that are listed; further ones are only counted."""
_LOG_OFFSET_AT = 28
_READ_BYTES_MAX = 64 * MIB
assert PREFIX.size <= _LOG_OFFSET_AT <= RECORD_BYTES_MIN - 8, "the shortest record contains its log offset"


class Severity(Enum):
    """The severity of a finding: damage to the store, or only a note."""

    DAMAGE = "damage"
    NOTE = "note"


class StorePart(Enum):
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
    part: StorePart
    path: Path
    reason: str
    offset: int = 0
    size_bytes: int = 0
    log_offset: int | None = None
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Returns the finding in plain values, as `--json` prints it."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        values |= {"severity": self.severity.value, "part": self.part.value, "path": str(self.path)}
        return {name: value for name, value in values.items() if value is not None}


class Findings:
    """All findings of one inspection, in the order of discovery."""

    def __init__(self) -> None:
        self.listed: list[Finding] = []
        self.damage_count = 0
        self.note_count = 0

    def add(self, finding: Finding) -> None:
        """Counts a finding, and lists it while there is room."""
        assert min(finding.offset, finding.size_bytes) >= 0, finding
        if finding.severity is Severity.DAMAGE:
            self.damage_count += 1
        else:
            self.note_count += 1
        if len(self.listed) < FINDING_COUNT_MAX:
            self.listed.append(finding)

    def damage(self, part: StorePart, path: Path, reason: str, **facts: Any) -> None:
        """Adds damage."""
        self.add(Finding(severity=Severity.DAMAGE, part=part, path=path, reason=reason, **facts))

    def note(self, part: StorePart, path: Path, reason: str, **facts: Any) -> None:
        """Adds a note."""
        self.add(Finding(severity=Severity.NOTE, part=part, path=path, reason=reason, **facts))

    def report(self, part: StorePart, path: Path, reason: str, *, is_expected: bool, **facts: Any) -> None:
        """Adds damage, or only a note if the state of the store explains it."""
        (self.note if is_expected else self.damage)(part, path, reason, **facts)

    @property
    def unlisted_count(self) -> int:
        count = self.damage_count + self.note_count - len(self.listed)
        assert count >= 0, (self.damage_count, self.note_count, len(self.listed))
        assert not count or len(self.listed) == FINDING_COUNT_MAX, (count, len(self.listed))
        return count


@dataclass(slots=True, kw_only=True)
class Damage:
    """Bytes `[begin, end)` of a file; `lost` instead names bytes of the log that are in no file.

    `is_whole`: the record's lengths are consistent, but its content is wrong. `is_tail`: nothing intact
    follows in the log. `is_stale`: bytes left over from an earlier end of the log.
    """

    file: OffsetFile
    begin: int
    end: int
    reason: str
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    lost: tuple[int, int] | None = None
    is_whole: bool = False
    is_stale: bool = False
    is_tail: bool = False

    @property
    def log_offset(self) -> int:
        return self.lost[0] if self.lost is not None else self.file.base + self.begin

    @property
    def log_end(self) -> int:
        return self.lost[1] if self.lost is not None else self.file.base + self.end


def describe_damage(file: OffsetFile, view: memoryview, begin: int, end: int, *, is_stale: bool) -> Damage:
    """Returns the damage between two records, with the facts its bytes still show.

    Strategy: the start of the next record determines the length of the damaged one. With size, magic and
              offset corrected, often only one field was wrong and the topic can be read.
    """
    assert 0 <= begin <= end <= len(view), (file, begin, end, len(view))
    log_offset = file.base + begin
    found = check_record(view, begin, log_offset=log_offset, check_crc=False)
    reason = found.outcome.value
    size = end - begin
    if found.outcome is RecordOutcome.BLANK:
        reason = f"a BLANK of {found.size} bytes must end the file, but {len(view) - begin} bytes are left"
    elif found.outcome is RecordOutcome.END:
        reason = "the file ends without a BLANK" if not any(view[begin:end]) else "zeros, then other bytes"
    elif found.outcome is RecordOutcome.WRONG_OFFSET:
        stored_offset = int.from_bytes(
            view[begin + _LOG_OFFSET_AT : begin + _LOG_OFFSET_AT + 8], "big", signed=True
        )
        reason = f"{reason}: at {stored_offset} instead of {log_offset}"
    if is_stale:
        reason = f"stale bytes after an earlier end of the log ({reason})"
    damage = Damage(file=file, begin=begin, end=end, reason=reason, is_stale=is_stale)
    if RECORD_BYTES_MIN <= size <= _READ_BYTES_MAX:
        _identify_record(damage, view, size)
    return damage


def _identify_record(damage: Damage, view: memoryview, size: int) -> None:
    """Reads topic and queue of the record after correcting the fields that are known."""
    stored_size = PREFIX.unpack_from(view, damage.begin)[0]
    raw = bytearray(view[damage.begin : damage.end])
    assert len(raw) == size >= RECORD_BYTES_MIN, (damage, size)
    pack_into(">q", raw, _LOG_OFFSET_AT, damage.log_offset)
    for magic in (MAGIC_V1, MAGIC_V2):
        PREFIX.pack_into(raw, 0, size, magic)
        parsed = parse_record(raw, 0)
        if not isinstance(parsed, RecordCheck):
            head, _, damage.topic, _ = parsed
            assert (head[0], head[6]) == (size, damage.log_offset), (head, damage)
            damage.queue_id, damage.queue_offset = head[3], head[5]
            if stored_size != size:
                damage.reason = (
                    f"the record's size field is {stored_size}, but the next record begins after {size} bytes"
                )
            return


def damage_at(damages: Sequence[Damage], log_offset: int) -> Damage | None:
    """Returns the damage that contains a byte of the log."""
    assert log_offset >= 0, log_offset
    for damage in damages:
        if damage.log_offset <= log_offset < damage.log_end:
            return damage
    return None
