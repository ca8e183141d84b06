"""How much groups read from far behind the end of the log, and who has read enough for now.

Shape:      bytes are counted in windows of 5 s, the same for all groups, as RocketMQ counts them.
At a bound: of `GROUPS_MAX` groups the reads are counted, of more only their sum; `THRESHOLDS_MAX` groups have
            a threshold of their own, more are refused. Thresholds hold until the broker stops, as RocketMQ's.
Knows not:  which read is far; the caller that notes it does.
Source:     spec semantics 20.3.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from tandemmq.broker.guards import invalid
from tandemmq.broker.options import BrokerOptions
from tandemmq.protocol.bodies.cold import ColdControlInfo, GroupColdReads
from tandemmq.runtime.ports import Clock
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

WINDOW_S: Final = 5.0
FORGOTTEN_AFTER_MS: Final = 60_000
GROUPS_MAX: Final = 8_192
THRESHOLDS_MAX: Final = 8_192


@dataclass(slots=True)
class _Reads:
    """What one group has read: bytes of this window, times in epoch milliseconds."""

    bytes: int
    began_at_ms: int
    read_at_ms: int
    is_told: bool = False


class ColdReads:
    """The counts and thresholds of one broker. `options` is looked at for each question."""

    def __init__(self, options: BrokerOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._groups: dict[str, _Reads] = {}
        self._thresholds: dict[str, int] = {}
        self._all_bytes = 0
        self._window_end_s = clock.monotonic() + WINDOW_S

    def note(self, group: str, size: int) -> None:
        """A group read so many bytes of old messages."""
        self._roll()
        self._all_bytes += size
        now_ms = self._clock.now_ms()
        reads = self._groups.get(group)
        if reads is not None:
            reads.bytes += size
            reads.read_at_ms = now_ms
        elif len(self._groups) < GROUPS_MAX:
            self._groups[group] = _Reads(size, now_ms, now_ms)

    def is_over(self, group: str) -> bool:
        """Whether the group, or all together, read as much in this window as they may. A group that read
        nothing old within the last minute is not over.
        """
        self._roll()
        reads = self._groups.get(group)
        if reads is None:
            return False
        threshold = self.threshold(group)
        is_over = reads.bytes >= threshold or self._all_bytes >= self._options.cold_bytes_max
        if is_over and not reads.is_told:
            reads.is_told = True
            extra = {"group": group, "bytes": reads.bytes, "all_bytes": self._all_bytes}
            log.info(events.COLD_READS_LIMITED, extra={**extra, "threshold_bytes": threshold})
        return is_over

    def threshold(self, group: str) -> int:
        """Bytes of a window from which on the group is over."""
        return self._thresholds.get(group, self._options.cold_bytes_per_group_max)

    def set_thresholds(self, thresholds: dict[str, int]) -> None:
        """Groups with a threshold of their own, beside those that have one; all of them or none.

        Raises:  BadRequest when that would be more than `THRESHOLDS_MAX`.
        """
        if len(self._thresholds.keys() | thresholds.keys()) > THRESHOLDS_MAX:
            raise invalid(f"at most {THRESHOLDS_MAX} groups may have a threshold: remove some first")
        self._thresholds.update(thresholds)

    def remove_threshold(self, group: str) -> None:
        """The group has the threshold of all others again."""
        self._thresholds.pop(group, None)

    def info(self) -> ColdControlInfo:
        """How everything stands in this window."""
        self._roll()
        return ColdControlInfo(
            group_threshold_bytes=self._options.cold_bytes_per_group_max,
            thresholds=dict(self._thresholds),
            all_bytes=self._all_bytes,
            all_threshold_bytes=self._options.cold_bytes_max,
            groups={
                group: GroupColdReads(
                    bytes=reads.bytes, began_at_ms=reads.began_at_ms, read_at_ms=reads.read_at_ms
                )
                for group, reads in self._groups.items()
            },
        )

    def _roll(self) -> None:
        """Begin a new window when this one is over, and forget groups that read nothing old for a minute."""
        now_s = self._clock.monotonic()
        if now_s < self._window_end_s:
            return
        self._window_end_s = now_s + WINDOW_S
        self._all_bytes = 0
        oldest_ms = self._clock.now_ms() - FORGOTTEN_AFTER_MS
        self._groups = {name: reads for name, reads in self._groups.items() if reads.read_at_ms > oldest_ms}
        for reads in self._groups.values():
            reads.bytes, reads.is_told = 0, False
