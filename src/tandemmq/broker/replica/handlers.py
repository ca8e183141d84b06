"""The master's side of the config sync, and the state of replication: codes 21, 43, 45, 60, 61, 201, 402,
907.

Every broker serves them, in any role; tools ask slaves too. `dataVersion` is always in the body, because
without it RocketMQ's slaves fail or rewrite their files. Large tables are answered in pages (spec replication
6.2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import msgspec

from tandemmq.broker.delay.timers import encode_timer_answer
from tandemmq.broker.replica.config_sync import ReplicaTables
from tandemmq.broker.replica.ha_status import rocketmq_fields
from tandemmq.errors import RemoteProtocolError, RequestRejected
from tandemmq.protocol.bodies.codec import DataVersion, decode_body, encode_body
from tandemmq.protocol.bodies.replica import HaStatus
from tandemmq.protocol.bodies.tables import ReplicatedTopics
from tandemmq.protocol.codes import OUR_LANGUAGE, RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.replica import (
    AllGroupConfigRequest,
    AllGroupConfigResponse,
    AllTopicConfigRequest,
    AllTopicConfigResponse,
)
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.dispatch import Handler

PAGE_ENTRY_COUNT_MAX = 2_000
"""RocketMQ's splitMetadataSize."""

T = TypeVar("T")


def plan_page(
    total: int, current: DataVersion, *, first: int | None, count_max: int | None, version: str | None
) -> range | None:
    """Returns the positions, in order of names, of the entries to send; None if the caller does not use
    pages: send all.

    A caller that holds the current version and asks beyond the end gets an empty range. A caller that sent
    another version, or none, starts again at 0. A page includes one more entry if that is the last:
    RocketMQ's slaves stop one entry early and would delete it.
    """
    if first is None and count_max is None and version is None:
        return None
    start = max(first or 0, 0) if _is_current(version, current) else 0
    start = min(start, total)
    size = PAGE_ENTRY_COUNT_MAX
    if count_max is not None and count_max > 0:
        size = min(size, count_max)
    end = min(start + size, total)
    if total - end == 1 and end > start:
        end = total
    return range(start, end)


def slice_page(entries: Mapping[str, T], page: range) -> dict[str, T]:
    """Returns the entries at those positions in order of names."""
    return {name: entries[name] for name in islice(sorted(entries), page.start, page.stop)}


def _is_current(version: str | None, current: DataVersion) -> bool:
    if version is None or not version.strip():
        return False
    try:
        return decode_body(version, DataVersion) == current
    except RemoteProtocolError:
        return False


def _paged(
    request: AllTopicConfigRequest | AllGroupConfigRequest, entries: dict[str, T], current: DataVersion
) -> dict[str, T]:
    page = plan_page(
        len(entries),
        current,
        first=request.page,
        count_max=request.count_max,
        version=request.data_version,
    )
    return entries if page is None else slice_page(entries, page)


@dataclass(frozen=True, slots=True)
class ReplicaHandlers:
    """The request handlers. Each answer is encoded from the live tables before anything else can
    change them.
    """

    tables: ReplicaTables
    ha_status: Callable[[], HaStatus]
    deleted_topics: Callable[[], Mapping[str, int]] = dict

    def routes(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_ALL_TOPIC_CONFIG: self.handle_topics,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.handle_consumer_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: self.handle_delay_offsets,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.handle_groups,
            RequestCode.GET_BROKER_HA_STATUS: self.handle_ha_status,
            RequestCode.GET_TIMER_CHECK_POINT: self.handle_timer_check,
            RequestCode.GET_TIMER_METRICS: self.handle_timer_metrics,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self.handle_request_modes,
        }

    def handle_topics(self, _channel: Channel, command: Command) -> Command:
        request = command.decode(AllTopicConfigRequest)
        table = self.tables.topics.snapshot()
        total = len(table.topics)
        table = msgspec.structs.replace(table, topics=_paged(request, table.topics, table.data_version))
        if table.topics and command.language == OUR_LANGUAGE:
            deleted = dict(self.deleted_topics())
            table = ReplicatedTopics(topics=table.topics, data_version=table.data_version, deleted=deleted)
        header = AllTopicConfigResponse(topic_count=total)
        return command.reply(header=header, body=encode_body(table))

    def handle_groups(self, _channel: Channel, command: Command) -> Command:
        request = command.decode(AllGroupConfigRequest)
        table = self.tables.groups.snapshot()
        total = len(table.groups)
        table = msgspec.structs.replace(table, groups=_paged(request, table.groups, table.data_version))
        if not table.groups or command.language != OUR_LANGUAGE:
            table = msgspec.structs.replace(table, deleted=msgspec.UNSET)
        header = AllGroupConfigResponse(group_count=total)
        return command.reply(header=header, body=encode_body(table))

    def handle_consumer_offsets(self, _channel: Channel, command: Command) -> Command:
        return command.reply(body=encode_body(self.tables.consumer_offsets.snapshot()))

    def handle_delay_offsets(self, _channel: Channel, command: Command) -> Command:
        return command.reply(body=encode_body(self.tables.delay_offsets.snapshot()))

    def handle_timer_check(self, _channel: Channel, command: Command) -> Command:
        progress = self.tables.timer_progress
        if progress is None:
            raise RequestRejected("timer messages are switched off on this broker (timerWheelEnable=false)")
        return command.reply(body=encode_timer_answer(progress.check, progress.data_version))

    def handle_timer_metrics(self, _channel: Channel, command: Command) -> Command:
        """Answers with an empty table, because counts by topic are not kept; a RocketMQ slave only displays
        them.
        """
        progress = self.tables.timer_progress
        if progress is None:
            raise RequestRejected("timer messages are switched off on this broker (timerWheelEnable=false)")
        return command.reply(body=encode_body({"timingCount": {}, "dataVersion": progress.data_version}))

    def handle_request_modes(self, _channel: Channel, command: Command) -> Command:
        return command.reply(body=encode_body(self.tables.request_modes.snapshot()))

    def handle_ha_status(self, _channel: Channel, command: Command) -> Command:
        status = self.ha_status()
        if command.language != OUR_LANGUAGE:
            status = rocketmq_fields(status)
        return command.reply(body=encode_body(status))
