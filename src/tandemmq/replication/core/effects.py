"""The effects that a session returns, as values. The shell carries them out in list order.

The order is a guarantee: a report follows the `Store` that it acknowledges, so a slave never acknowledges
bytes that it has not stored. The effects of each message are structs of msgspec, which are made fastest.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import msgspec

from tandemmq.protocol.record_scan import ParsedRecords
from tandemmq.replication.core.epochs import EpochList
from tandemmq.replication.core.progress import TransferStart


class Send(msgspec.Struct, frozen=True, gc=False):
    """Write these bytes to the peer."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the connection; nothing more is sent on it."""

    reason: str


class Acknowledged(msgspec.Struct, frozen=True, gc=False):
    """The slave holds every byte below `log_offset`."""

    log_offset: int


@dataclass(frozen=True, slots=True)
class TransferStarted:
    """The answer to the first report: `start` holds the offset and the rule of the transfer, or the reason
    for a refusal.
    """

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
class RequestHistory:
    """Ask the master's remoting port for the history of its log and answer with `on_history`."""


@dataclass(frozen=True, slots=True)
class HistoryDiffers:
    """The master's log has a different history from `log_offset` on, although the terms are equal. If
    `is_healed`, the slave truncates its log there and copies the rest again; otherwise a `Halt` follows.
    """

    log_offset: int
    detail: str
    is_healed: bool


class Store(msgspec.Struct, frozen=True):
    """Append these verified bytes at exactly `log_offset`. They are whole records of one segment.

    `parsed`: the fields of the first records, or of all.
    """

    log_offset: int
    data: memoryview
    parsed: ParsedRecords = ()


@dataclass(frozen=True, slots=True)
class Align:
    """Truncate the slave's log at `point` if it is longer, adopt `epochs` as its terms, answer with
    `on_aligned`.
    """

    point: int
    epochs: EpochList


class HaltReason(Enum):
    """The reason why a slave stopped copying until an operator acts."""

    SLAVE_AHEAD = "the slave holds more than its master: the master lost its tail, the copies differ"
    DIVERGED = "the master has other bytes where this log ends: it lost its tail and grew past it"
    TOO_OLD = "the master no longer keeps the next byte: only an empty slave can follow it"
    FILE_SIZES_DIFFER = "master and slave have different CommitLog file sizes"
    DAMAGED = "the master sends damaged records"


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedBytes:
    """The bytes at `log_offset` are not a valid record for that position."""

    log_offset: int
    reason: str
    is_final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """Replication stops. The slave keeps its files and continues to serve reads."""

    reason: HaltReason
    log_offset: int
    detail: str


MasterEffect: TypeAlias = Send | Disconnect | Acknowledged | TransferStarted | FellBehind
SlaveEffect: TypeAlias = (
    Send
    | Disconnect
    | Dial
    | RequestHistory
    | CheckTail
    | HistoryDiffers
    | Align
    | Store
    | RejectedBytes
    | Halt
)
