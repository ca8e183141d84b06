"""The topics of this broker and their version, and the topics and groups that exist from the first start.

`system_topics` and `SYSTEM_GROUPS_AT_START` name the latter; `TopicTable` holds all topics.
Source: spec semantics 16.3, 16.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tandemmq.broker.delay.timers import TIMER_TOPIC
from tandemmq.broker.options import PERMISSION_INHERIT, PERMISSION_READ, PERMISSION_WRITE, BrokerOptions
from tandemmq.broker.table_file import StoredTable
from tandemmq.errors import Busy
from tandemmq.protocol import topic_names as names
from tandemmq.protocol.bodies.codec import DataVersion, decode_body, encode_body
from tandemmq.protocol.bodies.tables import (
    TopicConfig,
    TopicConfigTable,
)

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


OnTopicsChanged = Callable[[list[str]], None]


class TopicTable(StoredTable):
    """Topic configurations by name (spec store 18: topics.json); `get` is a plain dict lookup. `on_change`
    gets the changed names.

    Invariants: every change raises the data version once and is reported to `on_change` after the table is
                complete again. A slave adopts the master's version with its table (spec replication 6.2).
    At a bound: a topic too many is rejected with Busy.
    """

    def __init__(self, *, count_max: int = 100_000) -> None:
        self._configs: dict[str, TopicConfig] = {}
        self._count_max = count_max
        self.data_version = DataVersion()
        super().__init__()

    def __len__(self) -> int:
        return len(self._configs)

    def get(self, topic: str) -> TopicConfig | None:
        return self._configs.get(topic)

    @property
    def names(self) -> list[str]:
        return list(self._configs)

    @property
    def configs(self) -> list[TopicConfig]:
        return list(self._configs.values())

    def put(self, config: TopicConfig, now_ms: int) -> bool:
        """Adds or replaces a topic. Returns False if the table already holds it unchanged.

        Raises:  Busy when the topic is new and the table is full.
        """
        if self._configs.get(config.name) == config:
            return False
        self.require_room([config.name])
        self._configs[config.name] = config
        self._change([config.name], self.data_version.next(now_ms))
        return True

    def require_room(self, names: Iterable[str]) -> None:
        """Raises Busy unless all of these topics, new ones included, fit into the table."""
        new = sum(name not in self._configs for name in set(names))
        if new and len(self._configs) + new > self._count_max:
            raise Busy(
                f"[OVERLOAD] a broker has at most {self._count_max} topics, it has {len(self._configs)}"
            )

    def add_missing(self, configs: list[TopicConfig], now_ms: int) -> None:
        """Adds the missing ones of these topics, as one change."""
        missing = [config for config in configs if config.name not in self._configs]
        if missing:
            self._configs.update({config.name: config for config in missing})
            self._change([config.name for config in missing], self.data_version.next(now_ms))

    def remove(self, topic: str, now_ms: int) -> bool:
        """Removes a topic. Returns False if it does not exist."""
        if self._configs.pop(topic, None) is None:
            return False
        self._change([topic], self.data_version.next(now_ms))
        return True

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
        """Returns the whole table, valid until the next change: encode it before anything else runs."""
        return TopicConfigTable(topics=self._configs, data_version=self.data_version)

    def encode(self) -> bytes:
        """Returns the content of topics.json."""
        return encode_body(self.snapshot())

    def load(self, data: bytes) -> None:
        """Loads the content of topics.json; a topic's own name wins over its key."""
        table = decode_body(data, TopicConfigTable)
        self._configs = dict(table.topics)
        self.data_version = table.data_version

    def _change(self, topics: list[str], data_version: DataVersion) -> None:
        self.data_version = data_version
        for callback in self.on_change:
            callback(topics)
