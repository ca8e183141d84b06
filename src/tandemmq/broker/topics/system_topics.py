"""The topics and groups that every broker has from its first start (spec semantics 16.3, 16.4). Pure."""

from __future__ import annotations

from tandemmq.broker.delay.timer_rule import TIMER_TOPIC
from tandemmq.broker.options import (
    PERMISSION_INHERIT,
    PERMISSION_READ,
    PERMISSION_WRITE,
    BrokerOptions,
)
from tandemmq.protocol import topic_names as names
from tandemmq.protocol.bodies.topic import TopicConfig

READ_WRITE = PERMISSION_READ | PERMISSION_WRITE
BENCHMARK_QUEUE_COUNT = 1024
CLUSTER_QUEUE_COUNT = 16

SYSTEM_GROUPS_AT_START = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)


def make_topic(name: str, queue_count: int, permission: int = READ_WRITE) -> TopicConfig:
    """A topic with as many read queues as write queues."""
    return TopicConfig(
        name=name, read_queue_count=queue_count, write_queue_count=queue_count, permission=permission
    )


def system_topics(options: BrokerOptions, *, delay_level_count: int) -> list[TopicConfig]:
    """All topics that are made when they are missing at start."""
    cluster, broker = options.cluster_name, options.broker_name
    topics = [
        make_topic(names.SELF_TEST_TOPIC, 1),
        make_topic(names.BENCHMARK_TOPIC, BENCHMARK_QUEUE_COUNT),
        make_topic(cluster, CLUSTER_QUEUE_COUNT, _permission_if(options.cluster_topic_enable)),
        make_topic(broker, 1, _permission_if(options.broker_topic_enable)),
        make_topic(names.OFFSET_MOVED_TOPIC, 1),
        make_topic(names.SCHEDULE_TOPIC, delay_level_count),
        make_topic(names.reply_topic(cluster), 1),
        make_topic(f"rmq_sys_REVIVE_LOG_{cluster}", options.revive_queue_count),
        make_topic(f"rmq_sys_SYNC_BROKER_MEMBER_{broker}", 1, PERMISSION_INHERIT),
        make_topic(names.HALF_TOPIC, 1),
        make_topic(names.OP_HALF_TOPIC, 1),
    ]
    if options.auto_create_topic:
        template = READ_WRITE | PERMISSION_INHERIT
        topics.append(make_topic(names.AUTO_CREATE_TOPIC, options.default_topic_queue_count, template))
    if options.timer_wheel_enable:
        topics.append(make_topic(TIMER_TOPIC, 1))
    if options.trace_topic_enable:
        topics.append(make_topic(options.trace_topic_name, 1))
    return topics


def system_topic_names(options: BrokerOptions) -> frozenset[str]:
    """Names that count as system topics on this broker, besides those that `topic_names` knows."""
    topics = system_topics(options, delay_level_count=1)
    return frozenset(topic.name for topic in topics) | names.SYSTEM_TOPICS


def _permission_if(is_enabled: bool) -> int:
    return PERMISSION_INHERIT | (READ_WRITE if is_enabled else 0)
