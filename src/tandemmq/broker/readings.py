"""The readings of a broker's metrics that have RocketMQ's names, except those of consumer groups' lag.

Called at a scrape. The values are counted elsewhere: handlers count nothing for a metric alone.
Strategy: `read` is an iterator with short steps, because there may be thousands of topics and groups. A
          series exists while its topic and its group do.
At a bound: the tables of counts have `SERIES_MAX` rows each. Topics and groups beyond them have no series
            until others are deleted; the totals of `tandemmq_*` include them.
Source: spec metrics 3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tandemmq.broker.clients.consumer_table import Member
from tandemmq.broker.core import BrokerCore
from tandemmq.broker.query import load_record
from tandemmq.protocol.codes import LanguageCode, render_version
from tandemmq.protocol.pop_receipts import popped_topic
from tandemmq.protocol.topic_names import SYSTEM_GROUP_PREFIX, is_retry_topic, is_system_topic
from tandemmq.telemetry import rocketmq_metrics as metrics
from tandemmq.telemetry.metrics import Sample

PROCESSORS: Final = (
    *("send", "async_put", "pull", "ack", "query_message", "client_manager", "heartbeat", "lite_pull"),
    *("transaction", "consumer_manager", "admin", "reply"),
)
ROWS_PER_STEP: Final = 64
_MODES: Final = {"CONSUME_PASSIVELY": "push", "CONSUME_ACTIVELY": "pull", "CONSUME_POP": "pop"}
Node = tuple[str, str, str]


def node_of(core: BrokerCore) -> Node:
    """Returns the values of the labels that all of these metrics have."""
    return core.options.cluster_name, "broker", core.options.broker_name


def flag_text(value: bool) -> str:
    """Returns the value of a label that is a boolean."""
    return "true" if value else "false"


def is_system(topic: str, group: str = "") -> bool:
    """Returns True for a topic or a group of the system."""
    return is_system_topic(topic) or group.upper().startswith(SYSTEM_GROUP_PREFIX)


class Readings:
    """Reads the metrics of one broker."""

    def __init__(self, core: BrokerCore) -> None:
        self.core = core
        self._node = node_of(core)

    def read(self) -> Iterator[Sequence[Sample]]:
        """Yields samples, and other tasks may run where it yields."""
        yield list(self._read_load())
        yield list(self._read_storage())
        yield list(self._read_connections())
        for _ in self.core.stats.arrivals.fold():
            yield ()
        yield from _in_steps(self._read_arrivals())
        yield from _in_steps(self._read_deliveries())
        yield from _in_steps(self._read_dead_letters())

    def _read_load(self) -> Iterator[Sample]:
        core, node = self.core, self._node
        for processor in PROCESSORS:
            yield Sample(metrics.WATERMARK, 0, (*node, processor))
        yield Sample(metrics.PERMISSION, core.options.broker_permission, node)
        yield Sample(metrics.TOPIC_NUMBER, len(core.topics), node)
        yield Sample(metrics.GROUP_NUMBER, len(core.groups), node)

    def _read_storage(self) -> Iterator[Sample]:
        store, labels = self.core.store, (*self._node, "local", "disk")
        total, free = self.core.disk.usage(store.options.log_dir)
        yield Sample(metrics.STORAGE_SIZE, total - free, labels)
        yield Sample(metrics.FLUSH_BEHIND, store.appended.value - store.flushed.value, labels)
        yield Sample(metrics.DISPATCH_BEHIND, store.appended.value - store.dispatched.value, labels)
        oldest = load_record(store, store.min_log_offset)
        if oldest is not None:
            age_ms = self.core.clock.now_ms() - oldest.stored_at_ms
            yield Sample(metrics.RESERVE_TIME, max(0, age_ms), labels)

    def _read_connections(self) -> Iterator[Sample]:
        producers, consumers = self.core.producers, self.core.consumers
        members = (member for group in producers.groups for member in producers.members(group))
        for labels, count in Counter(map(_client_labels, members)).items():
            yield Sample(metrics.PRODUCERS, count, (*self._node, *labels, "remoting"))
        for group in consumers.groups:
            mode = _MODES.get(group.consumption.consume_type, "push")
            tail = (mode, "remoting", flag_text(is_system("", group.name)))
            for labels, count in Counter(map(_client_labels, consumers.members(group.name))).items():
                yield Sample(metrics.CONSUMERS, count, (*self._node, group.name, *labels, *tail))

    def _read_arrivals(self) -> Iterator[Sample]:
        arrivals, topics = self.core.stats.arrivals, self.core.topics
        for (topic, kind), row in list(arrivals.rows.items()):
            if not row.messages or topics.get(topic) is None:
                continue
            labels = (*self._node, topic, kind, flag_text(is_system(topic)))
            yield Sample(metrics.MESSAGES_IN, row.messages, labels)
            yield Sample(metrics.BYTES_IN, row.bytes, labels)
            yield Sample(metrics.MESSAGE_SIZE, row.sizes, labels)

    def _read_deliveries(self) -> Iterator[Sample]:
        for key, (count, size, _) in list(self.core.stats.groups_out.rows.items()):
            topic, _, group = key.partition("@")
            if self._exists(topic, group):
                labels = (*self._node, *_delivery_labels(topic, group))
                yield Sample(metrics.MESSAGES_OUT, count, labels)
                yield Sample(metrics.BYTES_OUT, size, labels)

    def _read_dead_letters(self) -> Iterator[Sample]:
        for key, (count, _, _) in list(self.core.stats.dead_letters.rows.items()):
            topic, _, group = key.partition("@")
            if self._exists(topic, group):
                labels = (*self._node, topic, group, flag_text(is_system(topic, group)))
                yield Sample(metrics.DEAD_LETTERS, count, labels)

    def _exists(self, topic: str, group: str) -> bool:
        if self.core.topics.get(topic) is None:
            return False
        return is_system(topic, group) or self.core.groups.get(group) is not None


def _client_labels(member: Member) -> tuple[str, str]:
    """Returns the language and the version of a client."""
    try:
        language = LanguageCode(member.language).name.lower()
    except ValueError:
        language = "other"
    return language, render_version(member.version).lower()


def _delivery_labels(topic: str, group: str) -> tuple[str, str, str, str]:
    """Returns the labels of deliveries. The topic of a pop is the one popped, also if the messages came from
    its retry topic.
    """
    is_retry = is_retry_topic(topic)
    topic = popped_topic(group, topic)
    return topic, group, flag_text(is_retry), flag_text(is_system(topic, group))


def _in_steps(samples: Iterable[Sample]) -> Iterator[Sequence[Sample]]:
    """Yields the samples in groups."""
    step: list[Sample] = []
    for sample in samples:
        step.append(sample)
        if len(step) >= ROWS_PER_STEP:
            yield step
            step = []
    yield step
