"""Bodies with statistics of topics, groups and brokers (spec remoting 11.7 and 11.13), and of cold reads:
GET_COLD_DATA_FLOW_CTR_INFO (2003; spec semantics 20.3).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec import field
from msgspec.structs import replace

from tandemmq.protocol.bodies.client import SubscriptionData
from tandemmq.protocol.bodies.codec import (
    Body,
    MessageQueue,
    convert,
    convert_queue_map,
    decode_object,
    encode_body,
    encode_queue_map,
    require_object,
)
from tandemmq.protocol.loose_json import LARGE_TEXT
from tandemmq.units import Buffer


class QueueProgress(Body, frozen=True, kw_only=True):
    """The progress of a group in one queue (RocketMQ: OffsetWrapper)."""

    broker_offset: int = field(name="brokerOffset", default=0)
    committed_offset: int = field(name="consumerOffset", default=0)
    last_timestamp_ms: int = field(name="lastTimestamp", default=0)
    pull_offset: int = field(name="pullOffset", default=0)


class ConsumeStats(Body, frozen=True, kw_only=True):
    """One group's progress; the answer to GET_CONSUME_STATS (208)."""

    consume_tps: float = 0.0
    queues: dict[MessageQueue, QueueProgress] = field(default_factory=dict)


class TopicOffset(Body, frozen=True, kw_only=True):
    """The first and last offset of one queue; the time is that of its newest message."""

    updated_at_ms: int = field(name="lastUpdateTimestamp", default=0)
    max_offset: int = field(name="maxOffset", default=0)
    min_offset: int = field(name="minOffset", default=0)


class TopicStats(Body, frozen=True, kw_only=True):
    """The answer to GET_TOPIC_STATS_INFO (202)."""

    queues: dict[MessageQueue, TopicOffset] = field(default_factory=dict)
    put_tps: float = 0.0


class TimerCount(Body, frozen=True, kw_only=True):
    """The waiting timer messages of one topic."""

    count: int = 0


class TimerMetrics(Body, frozen=True, kw_only=True):
    """The answer to GET_TIMER_METRICS (61)."""

    topics: dict[str, TimerCount] = field(name="timingCount", default_factory=dict)


class BrokerStatsItem(Body, frozen=True, kw_only=True):
    """One statistic over one time span."""

    average: float = field(name="avgpt", default=0.0)
    sum: int = 0
    tps: float = 0.0


class BrokerStatsAnswer(Body, frozen=True, kw_only=True):
    """The answer to VIEW_BROKER_STATS_DATA (315)."""

    day: BrokerStatsItem = field(name="statsDay", default=BrokerStatsItem())
    hour: BrokerStatsItem = field(name="statsHour", default=BrokerStatsItem())
    minute: BrokerStatsItem = field(name="statsMinute", default=BrokerStatsItem())


class QueueTimeSpan(Body, frozen=True, kw_only=True):
    """The times of the first, last and consumed message of one queue, and the lag, in ms."""

    consumed_at_ms: int = field(name="consumeTimeStamp", default=0)
    delay_ms: int = field(name="delayTime", default=0)
    newest_at_ms: int = field(name="maxTimeStamp", default=0)
    queue: MessageQueue = field(name="messageQueue", default=MessageQueue())
    oldest_at_ms: int = field(name="minTimeStamp", default=0)


class ConsumeTimeSpan(Body, frozen=True, kw_only=True):
    """The answer to QUERY_CONSUME_TIME_SPAN (303)."""

    spans: tuple[QueueTimeSpan, ...] = field(name="consumeTimeSpanSet", default=())


class ConsumeQueueEntry(Body, frozen=True, kw_only=True):
    """One entry of a ConsumeQueue in the answer to QUERY_CONSUME_QUEUE."""

    log_offset: int = field(name="physicOffset", default=0)
    size_bytes: int = field(name="physicSize", default=0)
    tag_hash: int = field(name="tagsCode", default=0)
    is_match: bool = field(name="eval", default=False)
    extension: str | None = field(name="extendDataJson", default=None)
    bit_map: str | None = field(name="bitMap", default=None)
    message: str | None = field(name="msg", default=None)


class ConsumeQueueView(Body, frozen=True, kw_only=True):
    """The answer to QUERY_CONSUME_QUEUE (321)."""

    HAS_SETS = True

    max_queue_offset: int = field(name="maxQueueIndex", default=0)
    min_queue_offset: int = field(name="minQueueIndex", default=0)
    filter_data: str | None = field(name="filterData", default=None)
    subscription: SubscriptionData | None = field(name="subscriptionData", default=None)
    entries: tuple[ConsumeQueueEntry, ...] = field(name="queueData", default=())


class RunningQueue(Body, frozen=True, kw_only=True):
    """The state of a consumer for one of its queues."""

    cached_count: int = field(name="cachedMsgCount", default=0)
    commit_offset: int = field(name="commitOffset", default=0)
    is_locked: bool = field(name="locked", default=False)
    pulled_at_ms: int = field(name="lastPullTimestamp", default=0)


class RunningInfo(Body, frozen=True, kw_only=True):
    """The answer to GET_CONSUMER_RUNNING_INFO (307), the displayed part. `stack`: from a Java client."""

    properties: dict[str, str] = field(default_factory=dict)
    queues: dict[MessageQueue, RunningQueue] = field(default_factory=dict)
    subscriptions: tuple[SubscriptionData, ...] = field(name="subscriptionSet", default=())
    stack: str | None = field(name="jstack", default=None)


def decode_running_info(data: Buffer) -> RunningInfo:
    value = decode_object(data, LARGE_TEXT)
    queues = convert_queue_map(value.get("mqTable"), RunningQueue)
    plain = {key: one for key, one in value.items() if key not in ("mqTable", "mqPopTable", "statusTable")}
    return replace(convert(plain, RunningInfo), queues=queues)


def encode_consume_stats(stats: ConsumeStats) -> bytes:
    tps = encode_body(stats.consume_tps)
    return b'{"consumeTps":' + tps + b',"offsetTable":' + encode_queue_map(stats.queues) + b"}"


def decode_consume_stats(data: Buffer) -> ConsumeStats:
    return _convert_consume_stats(decode_object(data, LARGE_TEXT))


def encode_consume_stats_list(
    broker_address: str,
    groups: Mapping[str, ConsumeStats],
    *,
    total_lag: int = 0,
    total_in_flight: int = 0,
) -> bytes:
    """Encodes the answer to GET_BROKER_CONSUME_STATS (317); lags in messages."""
    rows = [
        b"{" + encode_body(group) + b":[" + encode_consume_stats(stats) + b"]}"
        for group, stats in groups.items()
    ]
    return b"".join(
        (
            b'{"brokerAddr":' + encode_body(broker_address),
            b',"consumeStatsList":[' + b",".join(rows) + b"]",
            b',"totalDiff":%d,"totalInflightDiff":%d}' % (total_lag, total_in_flight),
        )
    )


def decode_consume_stats_list(data: Buffer) -> dict[str, ConsumeStats]:
    """Returns the progress of each group; a RocketMQ broker may split a group's topics into several parts."""
    groups: dict[str, dict[MessageQueue, QueueProgress]] = {}
    for row in decode_object(data, LARGE_TEXT).get("consumeStatsList") or ():
        for group, parts in require_object(row).items():
            for part in parts or ():
                stats = _convert_consume_stats(require_object(part))
                groups.setdefault(group, {}).update(stats.queues)
    return {group: ConsumeStats(queues=queues) for group, queues in groups.items()}


def encode_topic_stats(stats: TopicStats) -> bytes:
    tps = encode_body(stats.put_tps)
    return b'{"offsetTable":' + encode_queue_map(stats.queues) + b',"topicPutTps":' + tps + b"}"


def decode_topic_stats(data: Buffer) -> TopicStats:
    value = decode_object(data, LARGE_TEXT)
    return TopicStats(
        queues=convert_queue_map(value.get("offsetTable"), TopicOffset),
        put_tps=convert(value.get("topicPutTps") or 0.0, float),
    )


_QUEUE_ENTRY = re.compile(
    rb'\{"brokerName":"[^"\\\\]*","queueId":([0-9]+),"topic":"[^"\\\\]*"\}:'
    rb'\{"lastUpdateTimestamp":([0-9]+),"maxOffset":([0-9]+),"minOffset":([0-9]+)\}'
)
"""A queue in the spelling of RocketMQ's brokers and ours."""


class QueueOffsets(NamedTuple):
    """The messages `[begin, end)` of one queue, and the time of the newest one."""

    begin: int
    end: int
    newest_at_ms: int


def decode_queue_offsets(data: Buffer) -> dict[int, QueueOffsets]:
    """Returns the offsets by queue id: the content of `decode_topic_stats` at a fortieth of its cost, for
    topics with thousands of queues.
    """
    raw = bytes(data)
    entries = _QUEUE_ENTRY.findall(raw)
    # Each entry has two braces of either kind; any other body is read, or refused, by the whole parser.
    if raw.count(b"{") == raw.count(b"}") == 2 * len(entries) + 2:
        return {int(number): QueueOffsets(int(low), int(high), int(at)) for number, at, high, low in entries}
    return {
        queue.queue_id: QueueOffsets(limits.min_offset, limits.max_offset, limits.updated_at_ms)
        for queue, limits in decode_topic_stats(raw).queues.items()
    }


def _convert_consume_stats(value: Mapping[str, Any]) -> ConsumeStats:
    return ConsumeStats(
        consume_tps=convert(value.get("consumeTps") or 0.0, float),
        queues=convert_queue_map(value.get("offsetTable"), QueueProgress),
    )


class GroupColdReads(Body, frozen=True, kw_only=True):
    """The cold reads of one group in the current window (RocketMQ: AccAndTimeStamp)."""

    bytes: int = field(name="coldAcc", default=0)
    began_at_ms: int = field(name="createTimeMills", default=0)
    read_at_ms: int = field(name="lastColdReadTimeMills", default=0)


class ColdControlInfo(Body, frozen=True, kw_only=True):
    """The thresholds, by group where one was set, and the amounts of old messages read."""

    group_threshold_bytes: int = field(name="cgColdReadThreshold", default=0)
    thresholds: dict[str, int] = field(name="configTable", default_factory=dict)
    all_bytes: int = field(name="globalAcc", default=0)
    all_threshold_bytes: int = field(name="globalColdReadThreshold", default=0)
    groups: dict[str, GroupColdReads] = field(name="runtimeTable", default_factory=dict)
