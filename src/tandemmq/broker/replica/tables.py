"""The tables that a slave copies from its master (spec replication 6.2)."""

from __future__ import annotations

from dataclasses import dataclass

from tandemmq.broker.assignment.mode_table import ModeTable
from tandemmq.broker.delay.timer_check import TimerProgress
from tandemmq.broker.offsets.delay_offset_table import DelayOffsetTable
from tandemmq.broker.offsets.offset_table import OffsetTable
from tandemmq.broker.topics.group_table import GroupTable
from tandemmq.broker.topics.topic_table import TopicTable


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTables:
    """The broker's own tables: read on a master, replaced on a slave."""

    topics: TopicTable
    groups: GroupTable
    consumer_offsets: OffsetTable
    delay_offsets: DelayOffsetTable
    request_modes: ModeTable
    timer_progress: TimerProgress | None = None
    """None while timers are switched off."""
