"""Cold reads: counts how much each group reads far behind the end of the log, and slows down groups over
their threshold (coldDataFlowControlEnable). Operators set thresholds with UPDATE_COLD_DATA_FLOW_CTR_CONFIG
(2001), REMOVE_ (2002) and GET_COLD_DATA_FLOW_CTR_INFO (2003).

A record is cold if its distance from the end of the log exceeds accessMessageInMemoryMaxRatio of the memory.
At the same distance transfer limits change and consumers are redirected to a slave. RocketMQ asks the kernel
which pages are in memory (mincore); the distance costs nothing.

Shape: bytes are counted in windows of 5 s, the same for all groups, as RocketMQ counts them.
At a bound: reads are counted per group for `GROUPS_MAX` groups; reads of further groups only enter the total.
            `THRESHOLDS_MAX` groups can have their own threshold; more are rejected. Thresholds are lost when
            the broker stops, as in RocketMQ.
Source: spec semantics 20.3 and 23.1.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from tandemmq.broker.clients.consumer_table import ACTIVE_TYPE
from tandemmq.broker.core import BrokerCore
from tandemmq.broker.guards import invalid
from tandemmq.broker.options import BrokerOptions
from tandemmq.errors import BadRequest, ConfigError
from tandemmq.protocol.bodies.codec import encode_body
from tandemmq.protocol.bodies.stats import ColdControlInfo, GroupColdReads
from tandemmq.protocol.command import Command
from tandemmq.protocol.properties_file import parse_properties
from tandemmq.protocol.requests.consume import PullRequest
from tandemmq.protocol.topic_names import group_fault, is_system_group
from tandemmq.remoting.channel import Channel
from tandemmq.runtime.ports import Clock
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

WINDOW_S: Final = 5.0
FORGOTTEN_AFTER_MS: Final = 60_000
GROUPS_MAX: Final = 8_192
THRESHOLDS_MAX: Final = 8_192


@dataclass(slots=True)
class _Reads:
    """The cold reads of one group: bytes in this window, times in epoch milliseconds."""

    bytes: int
    began_at_ms: int
    read_at_ms: int
    is_logged: bool = False


class ColdReads:
    """The counts and thresholds of one broker. `options` is read anew at each call."""

    def __init__(self, options: BrokerOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._groups: dict[str, _Reads] = {}
        self._thresholds: dict[str, int] = {}
        self._all_bytes = 0
        self._window_end_s = clock.monotonic() + WINDOW_S

    def record(self, group: str, size: int) -> None:
        """Counts `size` bytes of cold records read by a group."""
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
        """Returns True if the group, or all groups together, have reached the threshold of this window.
        Always False for a group without cold reads within the last minute.
        """
        self._roll()
        reads = self._groups.get(group)
        if reads is None:
            return False
        threshold = self.threshold(group)
        is_over = reads.bytes >= threshold or self._all_bytes >= self._options.cold_bytes_max
        if is_over and not reads.is_logged:
            reads.is_logged = True
            extra = {"group": group, "bytes": reads.bytes, "all_bytes": self._all_bytes}
            log.info(events.COLD_READS_LIMITED, extra={**extra, "threshold_bytes": threshold})
        return is_over

    def threshold(self, group: str) -> int:
        """Returns the group's threshold, in bytes per window."""
        return self._thresholds.get(group, self._options.cold_bytes_per_group_max)

    def set_thresholds(self, thresholds: dict[str, int]) -> None:
        """Sets thresholds of some groups and keeps those of others; applies all of them or none.

        Raises:  BadRequest when that would be more than `THRESHOLDS_MAX`.
        """
        if len(self._thresholds.keys() | thresholds.keys()) > THRESHOLDS_MAX:
            raise invalid(f"at most {THRESHOLDS_MAX} groups may have a threshold: remove some first")
        self._thresholds.update(thresholds)

    def remove_threshold(self, group: str) -> None:
        """Resets the group to the common threshold."""
        self._thresholds.pop(group, None)

    def info(self) -> ColdControlInfo:
        """Returns the counts and thresholds of the current window."""
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
        """Begins a new window if the current one is over, and forgets groups without cold reads for a
        minute.
        """
        now_s = self._clock.monotonic()
        if now_s < self._window_end_s:
            return
        self._window_end_s = now_s + WINDOW_S
        self._all_bytes = 0
        oldest_ms = self._clock.now_ms() - FORGOTTEN_AFTER_MS
        self._groups = {name: reads for name, reads in self._groups.items() if reads.read_at_ms > oldest_ms}
        for reads in self._groups.values():
            reads.bytes, reads.is_logged = 0, False


@dataclass(slots=True)
class ColdControl:
    """Judges pulls. The broker's own groups and those of tools are never slowed down."""

    core: BrokerCore
    reads: ColdReads

    def record(self, group: str, size: int) -> None:
        """Counts `size` bytes of cold records read by a pull of the group."""
        if not is_system_group(group):
            self.reads.record(group, size)

    def is_over(self, header: PullRequest) -> bool:
        """Returns True if this pull would read cold records and its group is over its threshold."""
        return self.reads.is_over(header.consumer_group) and self.core.store.reader.is_far(
            header.topic, header.queue_id, header.queue_offset
        )

    def is_pushed(self, group: str) -> bool:
        """Returns True if the group's clients are push consumers, which retry by themselves after a
        rejection.
        """
        online = self.core.consumers.get(group)
        return online is not None and online.consumption.consume_type != ACTIVE_TYPE


THRESHOLD_BYTES_MAX = 2**63 - 1


@dataclass(slots=True)
class ColdHandlers:
    """Shows and changes the contents of `ColdReads`, even while coldDataFlowControlEnable is off."""

    reads: ColdReads

    def handle_update(self, channel: Channel, command: Command) -> Command:
        """Handles UPDATE_COLD_DATA_FLOW_CTR_CONFIG: lines `group=bytes`, of which all are applied or none."""
        try:
            settings = parse_properties(bytes(command.body), "the request")
        except ConfigError as error:
            raise BadRequest(f"the body cannot be read: {error}") from None
        thresholds = {group: _parse_threshold(group, setting.text) for group, setting in settings.items()}
        self.reads.set_thresholds(thresholds)
        log.info(events.COLD_THRESHOLDS_CHANGED, extra={"set_bytes": thresholds, "peer": channel.peer})
        return command.reply()

    def handle_remove(self, channel: Channel, command: Command) -> Command:
        """Handles REMOVE_COLD_DATA_FLOW_CTR_CONFIG: the body is the group; a group without a threshold is not
        an error.
        """
        group = bytes(command.body).decode("utf-8", "replace").strip()
        _check_group(group)
        self.reads.remove_threshold(group)
        log.info(events.COLD_THRESHOLDS_CHANGED, extra={"removed": group, "peer": channel.peer})
        return command.reply()

    def handle_show(self, channel: Channel, command: Command) -> Command:
        """Handles GET_COLD_DATA_FLOW_CTR_INFO: returns the thresholds, and the reads in the current window of
        5 s.
        """
        return command.reply(body=encode_body(self.reads.info()))


def _check_group(group: str) -> None:
    fault = group_fault(group)
    if fault:
        raise invalid(fault)


def _parse_threshold(group: str, text: str) -> int:
    _check_group(group)
    digits = text.strip()
    if not (
        digits.isascii() and digits.isdigit() and len(digits) <= 19 and int(digits) <= THRESHOLD_BYTES_MAX
    ):
        raise invalid(f"{group}={text[:32]}: must be bytes per 5 s, within 0..{THRESHOLD_BYTES_MAX}")
    return int(digits)
