"""The metrics of a broker that have RocketMQ's names, labels and units (spec metrics 1 to 5).

`broker/lag.py` reads those of consumer groups, `broker/readings.py` the others. RocketMQ's dashboards and
alerts work with them unchanged.
"""

from __future__ import annotations

from typing import Final

from tandemmq.telemetry.metrics import MetricNamespace, metrics_of

SERIES_MAX: Final = 8_192
"""The most rows of a table of counts by topic or group, and the most series of a metric."""

SIZE_BUCKETS: Final = (1_024.0, 4_096.0, 524_288.0, 1_048_576.0, 2_097_152.0, 4_194_304.0)
CREATE_BUCKETS_MS: Final = (10.0, 100.0, 1_000.0, 3_000.0, 5_000.0)
RPC_BUCKETS_MS: Final = (1.0, 3.0, 5.0, 7.0, 10.0, 100.0, 1_000.0, 2_000.0, 3_000.0)
FINISH_BUCKETS_S: Final = (5.0, 60.0, 600.0, 3_600.0, 43_200.0, 86_400.0)
DELAY_BUCKETS_S: Final = (60.0, 600.0, 3_600.0, 43_200.0, 86_400.0, 259_200.0)
SNAPSHOT_BOUNDS_S: Final = (5, 60, 300, 900, 3_600, 14_400, 28_800, 86_400)
"""The bounds of `timer_message_snapshot`: each counts the messages due between the bound before it and it."""

_PAIRS: Final = "`metricsOtelCardinalityLimit` groups and topics; twice as many with retry topics of pops"
_TOPICS: Final = "topics, `metricsOtelCardinalityLimit`"
_GROUPS: Final = "topics and groups, `metricsOtelCardinalityLimit`"

_LABELS: Final = ("cluster", "node_type", "node_id")
_CONSUMPTION: Final = (*_LABELS, "topic", "consumer_group", "is_retry", "is_system")
_NODE = MetricNamespace("rocketmq_", _LABELS, bound="1")
_OF_TOPIC = MetricNamespace("rocketmq_", (*_LABELS, "topic", "message_type", "is_system"), _TOPICS)
_OF_GROUP = MetricNamespace("rocketmq_", _CONSUMPTION, _GROUPS)
_OF_PAIR = MetricNamespace("rocketmq_consumer_", _CONSUMPTION, _PAIRS)
_MEDIUM = MetricNamespace("rocketmq_", (*_LABELS, "storage_type", "storage_medium"), bound="1")
_OURS = MetricNamespace("tandemmq_")

# load and sizes
WATERMARK: Final = _NODE.gauge(
    "processor_watermark",
    "requests that wait for a thread: always 0, because a request is handled when it arrives",
    "processor",
    bound="processors of RocketMQ, 12",
)
PERMISSION: Final = _NODE.gauge("broker_permission", "what clients may do: 4 read, 2 write, 6 both")
TOPIC_NUMBER: Final = _NODE.gauge("topic_number", "configured topics, including the broker's own")
GROUP_NUMBER: Final = _NODE.gauge("consumer_group_number", "configured subscription groups")
MESSAGES_IN: Final = _OF_TOPIC.counter(
    "messages_in_total",
    "messages stored for sends, and messages of delay levels delivered; retries are not included",
)
BYTES_IN: Final = _OF_TOPIC.counter("throughput_in_total", "bytes of their records in the log")
MESSAGE_SIZE: Final = _OF_TOPIC.histogram("message_size", "bytes of one record; the mean of a batch")
MESSAGES_OUT: Final = _OF_GROUP.counter(
    "messages_out_total", "messages delivered by pulls, by pops and to their topics from delay levels"
)
BYTES_OUT: Final = _OF_GROUP.counter("throughput_out_total", "bytes of their records")
TOPIC_CREATION: Final = _NODE.histogram(
    "topic_create_execution_time_milliseconds",
    "time of a request that creates or changes a topic",
    "invocation_status is_system",
    bound="4",
)
GROUP_CREATION: Final = _NODE.histogram(
    "consumer_group_create_execution_time_milliseconds",
    "time of a request that creates or changes a subscription group",
    "invocation_status",
    bound="2: success, failure",
)
RPC_LATENCY: Final = _NODE.histogram(
    "rpc_latency_milliseconds",
    "time from the arrival of a request to its answer in the output of the connection; of a oneway request, "
    "to the end of its handler. `result`: success, oneway, or cancelled when the connection closed before",
    "protocol_type request_code response_code is_long_polling result",
    bound="request and response codes, `metricsOtelCardinalityLimit`",
)
PRODUCERS: Final = _NODE.gauge(
    "producer_connections",
    "connections of producers, once for each of their groups",
    "language version protocol_type",
    bound="languages and versions of clients",
)
CONSUMERS: Final = _NODE.gauge(
    "consumer_connections",
    "connections of consumers by group",
    "consumer_group language version consume_mode protocol_type is_system",
    bound="groups",
)

# consumer groups
LAG_MESSAGES: Final = _OF_PAIR.gauge(
    "lag_messages", "messages of the topic that the group has not consumed: in flight and ready"
)
INFLIGHT_MESSAGES: Final = _OF_PAIR.gauge(
    "inflight_messages", "messages that consumers got and have neither committed nor acknowledged"
)
READY_MESSAGES: Final = _OF_PAIR.gauge("ready_messages", "messages that no consumer of the group got yet")
LAG_LATENCY: Final = _OF_PAIR.gauge(
    "lag_latency_milliseconds", "age of the oldest message that is not consumed; 0 without one"
)
QUEUEING_LATENCY: Final = _OF_PAIR.gauge(
    "queueing_latency_milliseconds", "age of the oldest message that no consumer got yet; 0 without one"
)
PAIRS_WITHOUT_SERIES: Final = _OURS.gauge(
    "consumer_pairs_without_series",
    "groups and topics without series of their lag: those with the least lag, beyond the limit",
)
QUEUE_LAG: Final = _OURS.gauge(
    "consumer_queue_lag_messages",
    "with metricsPerQueue: messages of the queue that the group has not consumed",
    "cluster broker topic consumer_group queue_id",
    bound="queues, `metricsOtelCardinalityLimit`",
)
DEAD_LETTERS: Final = _NODE.counter(
    "send_to_dlq_messages_total",
    "messages moved to the group's dead letter topic",
    "topic consumer_group is_system",
    bound=_GROUPS,
)

# storage
STORAGE_SIZE: Final = _MEDIUM.gauge("storage_size_bytes", "bytes in use on the file system of the CommitLog")
FLUSH_BEHIND: Final = _MEDIUM.gauge("storage_flush_behind_bytes", "bytes written but not yet fsynced")
DISPATCH_BEHIND: Final = _MEDIUM.gauge("storage_dispatch_behind_bytes", "bytes written but not yet in queues")
RESERVE_TIME: Final = _MEDIUM.gauge(
    "storage_message_reserve_time_milliseconds", "age of the oldest message; absent without messages"
)

# timer messages, while timerWheelEnable is true
TIMER_ENQUEUE_LAG: Final = _MEDIUM.gauge(
    "timer_enqueue_lag", "timer messages that are stored but not yet in the wheel"
)
TIMER_ENQUEUE_LATENCY: Final = _MEDIUM.gauge(
    "timer_enqueue_latency_milliseconds",
    "delay of the way into the wheel: always 0, because the wheel is filled on the way to the next delivery",
)
TIMER_DEQUEUE_LAG: Final = _MEDIUM.gauge("timer_dequeue_lag", "timer messages in the wheel, due or not")
TIMER_DEQUEUE_LATENCY: Final = _MEDIUM.gauge(
    "timer_dequeue_latency_milliseconds", "time for which the first message is overdue"
)
TIMING_MESSAGES: Final = _MEDIUM.gauge("timing_messages", "timer messages that wait", "topic", bound=_TOPICS)
TIMER_ENQUEUED: Final = _MEDIUM.counter(
    "timer_enqueue_total", "timer messages put into the wheel", "topic", bound=_TOPICS
)
TIMER_DEQUEUED: Final = _MEDIUM.counter(
    "timer_dequeue_total", "timer messages delivered", "topic", bound=_TOPICS
)
TIMER_SNAPSHOT: Final = _MEDIUM.gauge(
    "timer_message_snapshot",
    "waiting messages due before this bound and not before the one below it",
    "timer_bound_s",
    bound="8",
)
DELAY_LATENCY: Final = _MEDIUM.histogram(
    "delay_message_latency_seconds", "wanted delays of timer messages, from birth", "topic", bound=_TOPICS
)

# transactions
HALF_MESSAGES: Final = _NODE.gauge(
    "half_messages", "open transactions by the topic of their message", "topic", bound=_TOPICS
)
COMMITS: Final = _NODE.counter(
    "commit_messages_total", "transactions committed by producers", "topic", bound=_TOPICS
)
ROLLBACKS: Final = _NODE.counter(
    "rollback_messages_total", "transactions rolled back by producers", "topic", bound=_TOPICS
)
FINISH_LATENCY: Final = _NODE.histogram(
    "finish_message_latency_milliseconds",
    "**seconds** from the birth of a half message to its commit; RocketMQ's name says milliseconds",
    "topic",
    bound=_TOPICS,
)

# pops
POP_IN: Final = _NODE.counter(
    "pop_revive_in_message_total",
    "records of leases (CK) and of acknowledgements (ACK) in the broker's journal of pops",
    "topic consumer_group revive_message_type put_status",
    bound=_GROUPS,
)
POP_RETRIES: Final = _NODE.counter(
    "pop_revive_retry_messages_total",
    "popped messages stored again because their lease ended",
    "topic consumer_group put_status",
    bound=_GROUPS,
)
POP_CHECKPOINTS: Final = _NODE.gauge("pop_checkpoint_buffer_size", "leases with open messages")

ROCKETMQ_TABLE: Final = metrics_of(globals())
