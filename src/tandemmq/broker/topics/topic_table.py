"""The topics of this broker and their version, and the topics and groups that exist from the first start.

`system_topics` and `SYSTEM_GROUPS_AT_START` name the latter; `TopicTable` holds all topics.
Source: spec semantics 16.3, 16.4.
"""

from __future__ import annotations

from collections.abc import Mapping

from tandemmq.broker.delay.timers import TIMER_TOPIC
from tandemmq.broker.options import PERMISSION_INHERIT, PERMISSION_READ, PERMISSION_WRITE, BrokerOptions
from tandemmq.broker.table_file import ConfigTable
from tandemmq.protocol import topic_names as names
from tandemmq.protocol.bodies.codec import DataVersion, decode_body
from tandemmq.protocol.bodies.tables import TopicConfig, TopicConfigTable

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
    """Returns a topic with equal numbers of read and write queues."""
    return TopicConfig(
        name=name, read_queue_count=queue_count, write_queue_count=queue_count, permission=permission
    )


def system_topics(options: BrokerOptions, *, delay_level_count: int) -> list[TopicConfig]:
    """Returns all topics that are created at start if missing."""
    cluster, broker = options.cluster_name, options.broker_name
    topics = [
        make_topic(names.SELF_TEST_TOPIC, 1),
        make_topic(names.BENCHMARK_TOPIC, BENCHMARK_QUEUE_COUNT),
        make_topic(cluster, CLUSTER_QUEUE_COUNT, _permission_if(options.cluster_topic_enable)),
        make_topic(broker, 1, _permission_if(options.broker_topic_enable)),
        make_topic(names.OFFSET_MOVED_TOPIC, 1),
        make_topic(names.SCHEDULE_TOPIC, delay_level_count),
        make_topic(names.reply_topic(cluster), 1),
        make_topic(names.REVIVE_TOPIC_PREFIX + cluster, options.revive_queue_count),
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
    """Returns the names of system topics on this broker, including those in `topic_names`."""
    topics = system_topics(options, delay_level_count=1)
    return frozenset(topic.name for topic in topics) | names.SYSTEM_TOPICS


def _permission_if(is_enabled: bool) -> int:
    return PERMISSION_INHERIT | (READ_WRITE if is_enabled else 0)


class TopicTable(ConfigTable[TopicConfig]):
    """Topic configurations (spec store 18: topics.json). A slave adopts the master's version with its table
    (spec replication 6.2).
    """

    def __init__(self, *, count_max: int = 100_000) -> None:
        super().__init__("topics", count_max)

    @property
    def names(self) -> list[str]:
        return list(self._configs)

    def renew(self, now_ms: int) -> None:
        """Reports all topics as changed under a new version, because their advertised data changed."""
        self._change(self.names, self.data_version.next(now_ms))

    def replace_all(self, configs: Mapping[str, TopicConfig], data_version: DataVersion) -> list[str]:
        """Replaces the table by the master's, version included. Returns the topics that were removed."""
        removed = [topic for topic in self._configs if topic not in configs]
        self._configs = dict(configs)
        self._change([*configs, *removed], data_version)
        return removed

    def snapshot(self) -> TopicConfigTable:
        return TopicConfigTable(topics=self._configs, data_version=self.data_version)

    def load(self, data: bytes) -> None:
        """Loads the content of topics.json; a topic's own name wins over its key."""
        table = decode_body(data, TopicConfigTable)
        self._configs = dict(table.topics)
        self.data_version = table.data_version
