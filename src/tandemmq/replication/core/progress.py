"""Values about how far a copy is: ranges, the start of a transfer, in-sync, speed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from tandemmq.replication.core.options import FirstTransfer
from tandemmq.units import align_down

SECOND_MS = 1_000


class LogRange(NamedTuple):
    """What a log holds: [start, end), in bytes."""

    start: int
    end: int


class StartRule(Enum):
    """Why a transfer begins where it begins."""

    RESUMED = "at the slave's end"
    LAST_FILE = "at the start of the last file, because the slave is empty"
    FIRST_FILE = "at the start of the first file, because the slave is empty"
    SLAVE_AHEAD = "nowhere: the slave holds more than the master"
    SLAVE_TOO_OLD = "nowhere: the master no longer keeps the slave's next byte"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferStart:
    """The answer to a slave's first report. `log_offset` is the slave's own end when nothing can be sent.

    `master_end`: our end when we answered; for a slave that is ahead, when it was first found to be.
    """

    reported: int
    log_offset: int
    rule: StartRule
    master_end: int


def plan_start(
    reported: int,
    log: LogRange,
    *,
    segment_bytes: int,
    first_transfer: FirstTransfer,
    is_tandem: bool = False,
    known_ahead: Mapping[int, int] = MappingProxyType({}),
) -> TransferStart:
    """Where to begin for a slave whose first report is `reported`.

    `is_tandem`: the slave is one of ours; an empty one then starts at the first file unless told otherwise.
    `known_ahead`: ends that this slave reported while they lay behind ours, with our end of then. Such a
    copy differs from our log and stays refused after our log has grown past it.
    Source:  spec replication 4.4 (step 2), 4.10; spec decisions 2.
    """
    master_end = known_ahead.get(reported, log.end)
    wants_all = first_transfer is FirstTransfer.FIRST_FILE or (
        is_tandem and first_transfer is FirstTransfer.NEGOTIATED
    )
    if reported > master_end:
        rule, start = StartRule.SLAVE_AHEAD, reported
    elif reported == 0 and not wants_all:
        rule, start = StartRule.LAST_FILE, align_down(log.end, segment_bytes)
    elif reported == 0:
        rule, start = StartRule.FIRST_FILE, log.start
    elif reported < log.start:
        rule, start = StartRule.SLAVE_TOO_OLD, reported
    else:
        rule, start = StartRule.RESUMED, reported
    return TransferStart(reported=reported, log_offset=start, rule=rule, master_end=master_end)


def is_in_sync(log: LogRange, acknowledged: int, *, gap_bytes_max: int) -> bool:
    """Whether a slave counts as in sync; the gap is strict (spec replication 4.8).

    A slave that holds more than the master, or ends before the master's first byte, never does.
    """
    return log.start <= acknowledged <= log.end and log.end - acknowledged < gap_bytes_max


class RateMeter:
    """Bytes per second over the last complete second, as RocketMQ reports it (spec replication 4.8)."""

    __slots__ = ("_count", "_last_count", "_second")

    def __init__(self) -> None:
        self._second = 0
        self._count = 0
        self._last_count = 0

    def add(self, count: int, now_ms: int) -> None:
        self._advance(now_ms)
        self._count += count

    def this_second(self, now_ms: int) -> int:
        """What the running second has counted; the flow control spends from it."""
        self._advance(now_ms)
        return self._count

    def per_second(self, now_ms: int) -> int:
        self._advance(now_ms)
        return self._last_count

    def _advance(self, now_ms: int) -> None:
        second = now_ms // SECOND_MS
        if second != self._second:
            self._last_count = self._count if second == self._second + 1 else 0
            self._count = 0
            self._second = second
