"""What to do with the files that a stopped broker left: a decision table, pure.

Invariants: each combination of facts matches exactly one row (a test walks them all).
Knows not:  how facts are gathered or cases carried out: `recovery.py`.
Source:     spec store 12.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryFacts:
    """What is on disk. `has_abort`: the last run did not end cleanly; `had_log`: by the checkpoint, records
    of a log were fsynced; `has_other_queues`: not those, or not to those ends, that a clean stop left.
    """

    has_log: bool
    has_queues: bool
    has_abort: bool
    had_log: bool
    has_other_queues: bool = False


class ScanFrom(Enum):
    """The file in which the scan of the log begins."""

    NOWHERE = "there is no log"
    BEGINNING = "the first file: the queues must be built from all of it"
    DISPATCHED = "the file with the newest record that the queues know"
    CHECKPOINT = "the newest file that begins before the checkpoint's safe time"


class RecoveryCase(Enum):
    """The rows of the table by name."""

    NEW = "nothing is there yet, or no more"
    LOG_LOST = "queues of a log that was never on disk: a power cut took it"
    LOG_MISSING = "queues of a log that was on disk: somebody moved it away"
    CLEAN = "a clean stop"
    CLEAN_WITHOUT_QUEUES = "a clean stop, and the queues are missing"
    CLEAN_WITH_OTHER_QUEUES = "a clean stop, and queues were damaged or taken away since"
    CRASHED = "a crash"
    CRASHED_WITHOUT_QUEUES = "a crash, and the queues are missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPlan:
    """What a case needs. `distrusts_disk`: anything that was not synced may be missing or stale;
    `distrusts_queues`: so may any entry of a record that is in the log.
    """

    case: RecoveryCase
    scan_from: ScanFrom
    drops_queues: bool = False
    is_refused: bool = False
    distrusts_disk: bool = False
    distrusts_queues: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A condition per fact (None: any) and the plan."""

    has_log: bool | None = None
    has_queues: bool | None = None
    has_abort: bool | None = None
    had_log: bool | None = None
    has_other_queues: bool | None = None
    plan: RecoveryPlan

    def matches(self, facts: RecoveryFacts) -> bool:
        """True when every condition holds."""
        return all(
            wanted is None or wanted == actual
            for wanted, actual in (
                (self.has_log, facts.has_log),
                (self.has_queues, facts.has_queues),
                (self.has_abort, facts.has_abort),
                (self.had_log, facts.had_log),
                (self.has_other_queues, facts.has_other_queues),
            )
        )


TABLE = (
    Row(
        has_log=False,
        has_queues=False,
        plan=RecoveryPlan(case=RecoveryCase.NEW, scan_from=ScanFrom.NOWHERE),
    ),
    Row(
        has_log=False,
        has_queues=True,
        had_log=False,
        plan=RecoveryPlan(case=RecoveryCase.LOG_LOST, scan_from=ScanFrom.NOWHERE, drops_queues=True),
    ),
    Row(
        has_log=False,
        has_queues=True,
        had_log=True,
        plan=RecoveryPlan(case=RecoveryCase.LOG_MISSING, scan_from=ScanFrom.NOWHERE, is_refused=True),
    ),
    Row(
        has_log=True,
        has_queues=True,
        has_abort=False,
        has_other_queues=False,
        plan=RecoveryPlan(case=RecoveryCase.CLEAN, scan_from=ScanFrom.DISPATCHED),
    ),
    Row(
        has_log=True,
        has_queues=True,
        has_abort=False,
        has_other_queues=True,
        plan=RecoveryPlan(
            case=RecoveryCase.CLEAN_WITH_OTHER_QUEUES, scan_from=ScanFrom.BEGINNING, distrusts_queues=True
        ),
    ),
    Row(
        has_log=True,
        has_queues=False,
        has_abort=False,
        plan=RecoveryPlan(case=RecoveryCase.CLEAN_WITHOUT_QUEUES, scan_from=ScanFrom.BEGINNING),
    ),
    Row(
        has_log=True,
        has_queues=True,
        has_abort=True,
        plan=RecoveryPlan(case=RecoveryCase.CRASHED, scan_from=ScanFrom.CHECKPOINT, distrusts_disk=True),
    ),
    Row(
        has_log=True,
        has_queues=False,
        has_abort=True,
        plan=RecoveryPlan(
            case=RecoveryCase.CRASHED_WITHOUT_QUEUES, scan_from=ScanFrom.BEGINNING, distrusts_disk=True
        ),
    ),
)


def plan_recovery(facts: RecoveryFacts) -> RecoveryPlan:
    """The plan of the one row that matches."""
    plans = [row.plan for row in TABLE if row.matches(facts)]
    assert len(plans) == 1, (facts, plans)
    return plans[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHead:
    """The first record of a log file; `is_valid` False when the file begins with anything else."""

    base: int
    is_valid: bool
    stored_at_ms: int


def choose_start(heads: Sequence[FileHead], scan_from: ScanFrom, *, dispatched_end: int, safe_ms: int) -> int:
    """The index of the file in which to begin; the first one when no later one qualifies.

    Units:   dispatched_end is where the newest record known to any queue ends; safe_ms as the checkpoint
             says.
    """
    if scan_from is ScanFrom.BEGINNING:
        return 0
    for index in range(len(heads) - 1, 0, -1):
        head = heads[index]
        if not head.is_valid or head.stored_at_ms == 0:
            continue
        if scan_from is ScanFrom.DISPATCHED and head.base <= dispatched_end:
            return index
        if scan_from is ScanFrom.CHECKPOINT and head.stored_at_ms <= safe_ms:
            return index
    return 0
