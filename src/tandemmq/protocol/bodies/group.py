"""Consumer groups of a broker (spec remoting 11.10; spec store 18)."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import UNSET, UnsetType, field

from tandemmq.protocol.bodies.codec import Body, DataVersion, decode_body, encode_body
from tandemmq.protocol.command import Buffer


class ExponentialRetry(Body, frozen=True, kw_only=True):
    """Delays that grow from `initial_ms` by `multiplier` up to `delay_ms_max`."""

    initial_ms: int = field(name="initial", default=5_000)
    delay_ms_max: int = field(name="max", default=7_200_000)
    multiplier: int = 2


class CustomizedRetry(Body, frozen=True, kw_only=True):
    """The delays themselves, in ms."""

    delays_ms: tuple[int, ...] = field(name="next", default=())


class GroupRetryPolicy(Body, frozen=True, kw_only=True):
    """`kind` is CUSTOMIZED or EXPONENTIAL."""

    customized: CustomizedRetry | None = field(name="customizedRetryPolicy", default=None)
    exponential: ExponentialRetry | None = field(name="exponentialRetryPolicy", default=None)
    kind: str = field(name="type", default="CUSTOMIZED")


class SubscriptionGroupConfig(Body, frozen=True, kw_only=True):
    """One consumer group on one broker.

    The wire's `subscriptionDataSet` is never written: with it Java cannot read the whole table (spec
    remoting 6).
    """

    attributes: dict[str, str] = field(default_factory=dict)
    broker_id: int = field(name="brokerId", default=0)
    is_broadcast_enabled: bool = field(name="consumeBroadcastEnable", default=True)
    is_consume_enabled: bool = field(name="consumeEnable", default=True)
    is_from_min_enabled: bool = field(name="consumeFromMinEnable", default=True)
    is_orderly: bool = field(name="consumeMessageOrderly", default=False)
    consume_timeout_minutes: int = field(name="consumeTimeoutMinute", default=15)
    name: str = field(name="groupName", default="")
    retry_policy: GroupRetryPolicy = field(name="groupRetryPolicy", default=GroupRetryPolicy())
    sys_flag: int = field(name="groupSysFlag", default=0)
    notifies_members: bool = field(name="notifyConsumerIdsChangedEnable", default=True)
    retry_count_max: int = field(name="retryMaxTimes", default=16)
    retry_queue_count: int = field(name="retryQueueNums", default=1)
    slow_read_broker_id: int = field(name="whichBrokerWhenConsumeSlowly", default=1)


class SubscriptionGroupTable(Body, frozen=True, kw_only=True):
    """All groups of a broker by name, and forbidden topics as group -> topic -> bits.

    Also the shape of `subscriptionGroup.json`. `deleted`: group -> when it was deleted, in milliseconds;
    ours, RocketMQ ignores it.
    """

    data_version: DataVersion = field(name="dataVersion", default=DataVersion())
    forbidden: dict[str, dict[str, int]] = field(name="forbiddenTable", default_factory=dict)
    groups: dict[str, SubscriptionGroupConfig] = field(name="subscriptionGroupTable", default_factory=dict)
    deleted: dict[str, int] | UnsetType = field(name="tandemDeletedGroups", default=UNSET)


class GroupConfigList(Body, frozen=True, kw_only=True):
    """The body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225)."""

    groups: tuple[SubscriptionGroupConfig, ...] = field(name="groupConfigList", default=())


class GroupForbidden(Body, frozen=True, kw_only=True):
    """The answer to UPDATE_AND_GET_GROUP_FORBIDDEN (353)."""

    group: str = ""
    is_readable: bool = field(name="readable", default=True)
    topic: str = ""


class GroupList(Body, frozen=True, kw_only=True):
    """Names of groups."""

    groups: tuple[str, ...] = field(name="groupList", default=())


def encode_group_config(config: SubscriptionGroupConfig) -> bytes:
    return encode_body(config)


def decode_group_config(data: Buffer) -> SubscriptionGroupConfig:
    return decode_body(data, SubscriptionGroupConfig)


def encode_group_table(table: SubscriptionGroupTable) -> bytes:
    return encode_body(table)


def decode_group_table(data: Buffer) -> SubscriptionGroupTable:
    return decode_body(data, SubscriptionGroupTable)


def encode_group_config_list(groups: Iterable[SubscriptionGroupConfig]) -> bytes:
    return encode_body(GroupConfigList(groups=tuple(groups)))


def decode_group_config_list(data: Buffer) -> tuple[SubscriptionGroupConfig, ...]:
    return decode_body(data, GroupConfigList).groups


def encode_group_list(groups: Iterable[str]) -> bytes:
    return encode_body(GroupList(groups=tuple(groups)))


def decode_group_list(data: Buffer) -> tuple[str, ...]:
    """The names in the order in which they came, each once."""
    return tuple(dict.fromkeys(decode_body(data, GroupList).groups))


def encode_group_forbidden(answer: GroupForbidden) -> bytes:
    return encode_body(answer)
