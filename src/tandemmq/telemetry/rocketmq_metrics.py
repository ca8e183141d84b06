"""The metrics of a broker that have RocketMQ's names, labels and units (spec metrics 1 to 5).

`broker/lag.py` reads those of consumer groups, `broker/readings.py` the others. RocketMQ's dashboards and
alerts work with them unchanged.
"""

from __future__ import annotations

from typing import Final

from tandemmq.telemetry.metrics import Metric, MetricKind

SERIES_MAX: Final = 8_192
"""The most rows of a table of counts by topic or group, and the most series of a metric."""

SIZE_BUCKETS: Final = (1_024.0, 4_096.0, 524_288.0, 1_048_576.0, 2_097_152.0, 4_194_304.0)
CREATE_BUCKETS_MS: Final = (10.0, 100.0, 1_000.0, 3_000.0, 5_000.0)
RPC_BUCKETS_MS: Final = (1.0, 3.0, 5.0, 7.0, 10.0, 100.0, 1_000.0, 2_000.0, 3_000.0)
FINISH_BUCKETS_S: Final = (5.0, 60.0, 600.0, 3_600.0, 43_200.0, 86_400.0)
DELAY_BUCKETS_S: Final = (60.0, 600.0, 3_600.0, 43_200.0, 86_400.0, 259_200.0)
SNAPSHOT_BOUNDS_S: Final = (5, 60, 300, 900, 3_600, 14_400, 28_800, 86_400)
"""The bounds of `timer_message_snapshot`: each counts the messages due between the bound before it and it."""

_NODE: Final = ("cluster", "node_type", "node_id")
_MEDIUM: Final = (*_NODE, "storage_type", "storage_medium")
_OF_PAIR: Final = (*_NODE, "topic", "consumer_group", "is_retry", "is_system")
_PAIRS: Final = "`metricsOtelCardinalityLimit` groups and topics; twice as many with retry topics of pops"
_TOPICS: Final = "topics, `metricsOtelCardinalityLimit`"
_GROUPS: Final = "topics and groups, `metricsOtelCardinalityLimit`"


def _metric(
    name: str,
    kind: MetricKind,
    text: str,
    *labels: str,
    bound: str = "1",
    base: tuple[str, ...] = _NODE,
) -> Metric:
    return Metric(f"rocketmq_{name}", kind, text, (*base, *labels), bound)


def _of_pair(name: str, text: str) -> Metric:
    return Metric(f"rocketmq_consumer_{name}", MetricKind.GAUGE, text, _OF_PAIR, _PAIRS)


_GAUGE = MetricKind.GAUGE
_COUNTER = MetricKind.COUNTER
_HISTOGRAM = MetricKind.HISTOGRAM

# load and sizes
WATERMARK: Final = _metric(
    "processor_watermark",
    _GAUGE,
    "requests that wait for a thread: always 0, because a request is handled when it arrives",
    "processor",
    bound="processors of RocketMQ, 12",
)
PERMISSION: Final = _metric("broker_permission", _GAUGE, "what clients may do: 4 read, 2 write, 6 both")
TOPIC_NUMBER: Final = _metric("topic_number", _GAUGE, "configured topics, including the broker's own")
GROUP_NUMBER: Final = _metric("consumer_group_number", _GAUGE, "configured subscription groups")
MESSAGES_IN: Final = _metric(
    "messages_in_total",
    _COUNTER,
    "messages stored for sends, and messages of delay levels delivered; retries are not included",
    "topic",
    "message_type",
    "is_system",
    bound=_TOPICS,
)
BYTES_IN: Final = _metric(
    "throughput_in_total",
    _COUNTER,
    "bytes of their records in the log",
    "topic",
    "message_type",
    "is_system",
    bound=_TOPICS,
)
MESSAGE_SIZE: Final = _metric(
    "message_size",
    _HISTOGRAM,
    "bytes of one record; the mean of a batch",
    "topic",
    "message_type",
    "is_system",
    bound=_TOPICS,
)
MESSAGES_OUT: Final = _metric(
    "messages_out_total",
    _COUNTER,
    "messages delivered by pulls, by pops and to their topics from delay levels",
    "topic",
    "consumer_group",
    "is_retry",
    "is_system",
    bound=_GROUPS,
)
BYTES_OUT: Final = _metric(
    "throughput_out_total",
    _COUNTER,
    "bytes of their records",
    "topic",
    "consumer_group",
    "is_retry",
    "is_system",
    bound=_GROUPS,
)
TOPIC_CREATION: Final = _metric(
    "topic_create_execution_time_milliseconds",
    _HISTOGRAM,
    "time of a request that creates or changes a topic",
    "invocation_status",
    "is_system",
    bound="4",
)
GROUP_CREATION: Final = _metric(
    "consumer_group_create_execution_time_milliseconds",
    _HISTOGRAM,
    "time of a request that creates or changes a subscription group",
    "invocation_status",
    bound="2: success, failure",
)
RPC_LATENCY: Final = _metric(
    "rpc_latency_milliseconds",
    _HISTOGRAM,
    "time from the arrival of a request to its answer in the output of the connection; of a oneway request, "
    "to the end of its handler. `result`: success, oneway, or cancelled when the connection closed before",
    "protocol_type",
    "request_code",
    "response_code",
    "is_long_polling",
    "result",
    bound="request and response codes, `metricsOtelCardinalityLimit`",
)
PRODUCERS: Final = _metric(
    "producer_connections",
    _GAUGE,
    "connections of producers, once for each of their groups",
    "language",
    "version",
    "protocol_type",
    bound="languages and versions of clients",
)
CONSUMERS: Final = _metric(
    "consumer_connections",
    _GAUGE,
    "connections of consumers by group",
    "consumer_group",
    "language",
    "version",
    "consume_mode",
    "protocol_type",
    "is_system",
    bound="groups",
)

# consumer groups
LAG_MESSAGES: Final = _of_pair(
    "lag_messages", "messages of the topic that the group has not consumed: in flight and ready"
)
INFLIGHT_MESSAGES: Final = _of_pair(
    "inflight_messages", "messages that consumers got and have neither committed nor acknowledged"
)
READY_MESSAGES: Final = _of_pair("ready_messages", "messages that no consumer of the group got yet")
LAG_LATENCY: Final = _of_pair(
    "lag_latency_milliseconds", "age of the oldest message that is not consumed; 0 without one"
)
QUEUEING_LATENCY: Final = _of_pair(
    "queueing_latency_milliseconds", "age of the oldest message that no consumer got yet; 0 without one"
)
PAIRS_WITHOUT_SERIES: Final = Metric(
    "tandemmq_consumer_pairs_without_series",
    MetricKind.GAUGE,
    "groups and topics without series of their lag: those with the least lag, beyond the limit",
)
QUEUE_LAG: Final = Metric(
    "tandemmq_consumer_queue_lag_messages",
    MetricKind.GAUGE,
    "with metricsPerQueue: messages of the queue that the group has not consumed",
    ("cluster", "broker", "topic", "consumer_group", "queue_id"),
    "queues, `metricsOtelCardinalityLimit`",
)
DEAD_LETTERS: Final = _metric(
    "send_to_dlq_messages_total",
    _COUNTER,
    "messages moved to the group's dead letter topic",
    "topic",
    "consumer_group",
    "is_system",
    bound=_GROUPS,
)

# storage
STORAGE_SIZE: Final = _metric(
    "storage_size_bytes", _GAUGE, "bytes in use on the file system of the CommitLog", base=_MEDIUM
)
FLUSH_BEHIND: Final = _metric(
    "storage_flush_behind_bytes", _GAUGE, "bytes written but not yet fsynced", base=_MEDIUM
)
DISPATCH_BEHIND: Final = _metric(
    "storage_dispatch_behind_bytes", _GAUGE, "bytes written but not yet in queues", base=_MEDIUM
)
RESERVE_TIME: Final = _metric(
    "storage_message_reserve_time_milliseconds",
    _GAUGE,
    "age of the oldest message; absent without messages",
    base=_MEDIUM,
)

# timer messages, while timerWheelEnable is true
TIMER_ENQUEUE_LAG: Final = _metric(
    "timer_enqueue_lag", _GAUGE, "timer messages that are stored but not yet in the wheel", base=_MEDIUM
)
TIMER_ENQUEUE_LATENCY: Final = _metric(
    "timer_enqueue_latency_milliseconds",
    _GAUGE,
    "delay of the way into the wheel: always 0, because the wheel is filled on the way to the next delivery",
    base=_MEDIUM,
)
TIMER_DEQUEUE_LAG: Final = _metric(
    "timer_dequeue_lag", _GAUGE, "timer messages in the wheel, due or not", base=_MEDIUM
)
TIMER_DEQUEUE_LATENCY: Final = _metric(
    "timer_dequeue_latency_milliseconds", _GAUGE, "time for which the first message is overdue", base=_MEDIUM
)
TIMING_MESSAGES: Final = _metric(
    "timing_messages", _GAUGE, "timer messages that wait", "topic", bound=_TOPICS, base=_MEDIUM
)
TIMER_ENQUEUED: Final = _metric(
    "timer_enqueue_total",
    _COUNTER,
    "timer messages put into the wheel",
    "topic",
    bound=_TOPICS,
    base=_MEDIUM,
)
TIMER_DEQUEUED: Final = _metric(
    "timer_dequeue_total", _COUNTER, "timer messages delivered", "topic", bound=_TOPICS, base=_MEDIUM
)
TIMER_SNAPSHOT: Final = _metric(
    "timer_message_snapshot",
    _GAUGE,
    "waiting messages due before this bound and not before the one below it",
    "timer_bound_s",
    bound="8",
    base=_MEDIUM,
)
DELAY_LATENCY: Final = _metric(
    "delay_message_latency_seconds",
    _HISTOGRAM,
    "wanted delays of timer messages, from birth",
    "topic",
    bound=_TOPICS,
    base=_MEDIUM,
)

# transactions
HALF_MESSAGES: Final = _metric(
    "half_messages", _GAUGE, "open transactions by the topic of their message", "topic", bound=_TOPICS
)
COMMITS: Final = _metric(
    "commit_messages_total", _COUNTER, "transactions committed by producers", "topic", bound=_TOPICS
)
ROLLBACKS: Final = _metric(
    "rollback_messages_total", _COUNTER, "transactions rolled back by producers", "topic", bound=_TOPICS
)
FINISH_LATENCY: Final = _metric(
    "finish_message_latency_milliseconds",
    _HISTOGRAM,
    "**seconds** from the birth of a half message to its commit; RocketMQ's name says milliseconds",
    "topic",
    bound=_TOPICS,
)

# pops
POP_IN: Final = _metric(
    "pop_revive_in_message_total",
    _COUNTER,
    "records of leases (CK) and of acknowledgements (ACK) in the broker's journal of pops",
    "topic",
    "consumer_group",
    "revive_message_type",
    "put_status",
    bound=_GROUPS,
)
POP_RETRIES: Final = _metric(
    "pop_revive_retry_messages_total",
    _COUNTER,
    "popped messages stored again because their lease ended",
    "topic",
    "consumer_group",
    "put_status",
    bound=_GROUPS,
)
POP_CHECKPOINTS: Final = _metric("pop_checkpoint_buffer_size", _GAUGE, "leases with open messages")

ROCKETMQ_TABLE: Final[tuple[Metric, ...]] = tuple(
    value for value in list(globals().values()) if isinstance(value, Metric)
)
"""Every metric, in the order above."""
