"""Topics of a broker: configuration, the whole table, lists of names.

Source:  spec remoting 11.4 and 11.13; spec store 18.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntFlag
from typing import Annotated

from msgspec import field

from tandemmq.protocol.bodies.codec import Body, DataVersion, decode_body, encode_body, enum_names
from tandemmq.protocol.command import Buffer


class Permission(IntFlag):
    """What may be done with a topic's queues; one that may be inherited serves as template of new topics."""

    INHERIT = 1
    WRITE = 2
    READ = 4
    PRIORITY = 8


PERMISSION_DEFAULT = 6
"""Read and write."""
TOPIC_UNIT = 1
TOPIC_UNIT_SUBSCRIPTION = 2
"""Bits of a topic's sys flag (RocketMQ: TopicSysFlag)."""


class TopicConfig(Body, frozen=True, kw_only=True):
    """One topic on one broker; `filter_type` is SINGLE_TAG or MULTI_TAG."""

    attributes: dict[str, str] = field(default_factory=dict)
    is_ordered: bool = field(name="order", default=False)
    permission: int = field(name="perm", default=PERMISSION_DEFAULT)
    read_queue_count: int = field(name="readQueueNums", default=16)
    filter_type: Annotated[str, enum_names("SINGLE_TAG", "MULTI_TAG")] = field(
        name="topicFilterType", default="SINGLE_TAG"
    )
    name: str = field(name="topicName", default="")
    sys_flag: int = field(name="topicSysFlag", default=0)
    write_queue_count: int = field(name="writeQueueNums", default=16)

    @property
    def is_readable(self) -> bool:
        return self.permission & Permission.READ != 0

    @property
    def is_writable(self) -> bool:
        return self.permission & Permission.WRITE != 0

    @property
    def is_inherited(self) -> bool:
        return self.permission & Permission.INHERIT != 0


def as_changes(attributes: Mapping[str, str]) -> str:
    """The attributes of a configuration as changes: a key that has no sign of its own is set."""
    changes = []
    for key, value in attributes.items():
        if key.startswith("-"):
            changes.append(key)
        else:
            changes.append(f"+{key.removeprefix('+')}={value}")
    return ",".join(changes)


class TopicConfigTable(Body, frozen=True, kw_only=True):
    """All topics of a broker by name, or the changed ones (RocketMQ: TopicConfigSerializeWrapper).

    Also the shape of `topics.json`. The mapping tables of static topics are left out: all peers take them as
    empty.
    """

    data_version: DataVersion = field(name="dataVersion", default=DataVersion())
    topics: dict[str, TopicConfig] = field(name="topicConfigTable", default_factory=dict)


class ReplicatedTopics(TopicConfigTable, frozen=True, kw_only=True):
    """What a slave of ours is told of topics. `deleted`: topic -> log offset, below which its records were
    deleted with it; ours, RocketMQ ignores it.
    """

    deleted: dict[str, int] = field(name="tandemDeletedTopics", default_factory=dict)


class TopicConfigList(Body, frozen=True, kw_only=True):
    """The body of UPDATE_AND_CREATE_TOPIC_LIST (18)."""

    topics: tuple[TopicConfig, ...] = field(name="topicConfigList", default=())


class TopicList(Body, frozen=True, kw_only=True):
    """Names of topics; `broker_address` only in the list of system topics of a name server."""

    broker_address: str | None = field(name="brokerAddr", default=None)
    topics: tuple[str, ...] = field(name="topicList", default=())


def encode_topic_config(config: TopicConfig) -> bytes:
    return encode_body(config)


def decode_topic_config(data: Buffer) -> TopicConfig:
    return decode_body(data, TopicConfig)


def encode_topic_config_table(table: TopicConfigTable) -> bytes:
    return encode_body(table)


def decode_topic_config_table(data: Buffer) -> TopicConfigTable:
    return decode_body(data, TopicConfigTable)


def decode_replicated_topics(data: Buffer) -> ReplicatedTopics:
    return decode_body(data, ReplicatedTopics)


def encode_topic_config_list(topics: Iterable[TopicConfig]) -> bytes:
    return encode_body(TopicConfigList(topics=tuple(topics)))


def decode_topic_config_list(data: Buffer) -> tuple[TopicConfig, ...]:
    return decode_body(data, TopicConfigList).topics


def encode_topic_list(topics: Iterable[str], broker_address: str | None = None) -> bytes:
    return encode_body(TopicList(broker_address=broker_address, topics=tuple(topics)))


def decode_topic_list(data: Buffer) -> tuple[str, ...]:
    """The names in the order in which they came, each once."""
    return tuple(dict.fromkeys(decode_body(data, TopicList).topics))
