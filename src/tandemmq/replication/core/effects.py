"""What a session wants done, as values; the shell carries them out in list order.

Order is the guarantee: a report stands behind the `Store` that it acknowledges, so nothing is acknowledged
that was not stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from tandemmq.protocol.record_scan import RecordColumns
from tandemmq.replication.core.epochs import EpochList
from tandemmq.replication.core.progress import TransferStart


@dataclass(frozen=True, slots=True)
class Send:
    """Write these bytes to the peer."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the connection; nothing more is sent on it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The slave holds every byte below `log_offset`."""

    log_offset: int


@dataclass(frozen=True, slots=True)
class TransferStarted:
    """The first report was answered; `start` says where the transfer begins and by which rule, or why it
    cannot."""

    start: TransferStart


@dataclass(frozen=True, slots=True)
class FellBehind:
    """The log was cleaned past the next byte that this slave needs."""

    log_offset: int
    log_start: int


@dataclass(frozen=True, slots=True)
class Dial:
    """Connect to this address and answer with `on_connected` or `on_failed`."""

    address: str


@dataclass(frozen=True, slots=True)
class CheckTail:
    """Compare the last bytes below `log_end` with the master's and answer with `on_checked`."""

    log_end: int


@dataclass(frozen=True, slots=True)
class AskHistory:
    """Ask the master's remoting port for the history of its log and answer with `on_history`."""


@dataclass(frozen=True, slots=True)
class HistoryDiffers:
    """From `log_offset` on the master's log has another history under equal terms. The own log is cut there
    and copied again if `is_healed`; else a `Halt` follows.
    """

    log_offset: int
    detail: str
    is_healed: bool


@dataclass(frozen=True, slots=True)
class Store:
    """Append these verified bytes at exactly `log_offset`; whole records of one segment.

    `columns`: the fields of the first records, or all, when they were read together.
    """

    log_offset: int
    data: memoryview
    columns: RecordColumns | None = None


@dataclass(frozen=True, slots=True)
class Align:
    """Cut the own log at `point` if it is longer, take `epochs` as its terms, answer with `on_aligned`."""

    point: int
    epochs: EpochList


class HaltReason(Enum):
    """Why a slave gave up until a person acts."""

    SLAVE_AHEAD = "the slave holds more than its master: the master lost its tail, the copies differ"
    DIVERGED = "the master has other bytes where this log ends: it lost its tail and grew past it"
    TOO_OLD = "the master no longer keeps the next byte: only an empty slave can follow it"
    FILE_SIZES_DIFFER = "master and slave have different CommitLog file sizes"
    DAMAGED = "the master sends damaged records"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedBytes:
    """The bytes at `log_offset` are no record that may be stored there."""

    log_offset: int
    reason: str
    is_final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """Replication stops; the slave keeps its files and goes on serving reads."""

    reason: HaltReason
    log_offset: int
    detail: str


MasterEffect: TypeAlias = Send | Disconnect | Acknowledged | TransferStarted | FellBehind
SlaveEffect: TypeAlias = (
    Send | Disconnect | Dial | AskHistory | CheckTail | HistoryDiffers | Align | Store | RefusedBytes | Halt
)
