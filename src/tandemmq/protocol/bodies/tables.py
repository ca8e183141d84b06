"""The tables of a broker: topics (configuration, the whole table, lists of names), consumer groups, and
users, policies and accounts of access control.

Source:  spec remoting 11.4, 11.10 and 11.13; spec semantics 21.2, 21.3; spec store 18.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntFlag
from typing import Annotated

from msgspec import UNSET, UnsetType, field

from tandemmq.protocol.bodies.codec import Body, DataVersion, decode_body, encode_body, enum_names
from tandemmq.protocol.loose_json import LARGE_TEXT
from tandemmq.units import Buffer


class Permission(IntFlag):
    """The permissions of a topic's queues; a topic with INHERIT is a template for new topics."""

    INHERIT = 1
    WRITE = 2
    READ = 4
    PRIORITY = 8


PERMISSION_DEFAULT = 6
"""The default permission: read and write."""
TOPIC_UNIT = 1
TOPIC_UNIT_SUBSCRIPTION = 2
"""The bits of a topic's sys flag (RocketMQ: TopicSysFlag)."""


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


def as_changes(attributes: Mapping[str, str]) -> str:
    """Returns the attributes of a configuration as changes: a key without a sign is set."""
    changes = []
    for key, value in attributes.items():
        if key.startswith("-"):
            changes.append(key)
        else:
            changes.append(f"+{key.removeprefix('+')}={value}")
    return ",".join(changes)


class TopicConfigTable(Body, frozen=True, kw_only=True):
    """All topics of a broker by name, or the changed ones (RocketMQ: TopicConfigSerializeWrapper).

    Also the shape of `topics.json`. The mapping tables of static topics are left out: all peers read that as
    empty.
    """

    TEXT_BOUND = LARGE_TEXT

    data_version: DataVersion = field(name="dataVersion", default=DataVersion())
    topics: dict[str, TopicConfig] = field(name="topicConfigTable", default_factory=dict)


class ReplicatedTopics(TopicConfigTable, frozen=True, kw_only=True):
    """The topics as sent to our slaves.

    `deleted`: topic -> log offset below which its records were deleted with it; ours, RocketMQ ignores it.
    """

    deleted: dict[str, int] = field(name="tandemDeletedTopics", default_factory=dict)


class TopicConfigList(Body, frozen=True, kw_only=True):
    """The body of UPDATE_AND_CREATE_TOPIC_LIST (18)."""

    topics: tuple[TopicConfig, ...] = field(name="topicConfigList", default=())


class TopicList(Body, frozen=True, kw_only=True):
    """The names of topics; `broker_address` only in a name server's list of system topics."""

    broker_address: str | None = field(name="brokerAddr", default=None)
    topics: tuple[str, ...] = field(name="topicList", default=())


def encode_topic_config_list(topics: Iterable[TopicConfig]) -> bytes:
    return encode_body(TopicConfigList(topics=tuple(topics)))


def encode_topic_list(topics: Iterable[str], broker_address: str | None = None) -> bytes:
    return encode_body(TopicList(broker_address=broker_address, topics=tuple(topics)))


def decode_topic_list(data: Buffer) -> tuple[str, ...]:
    """Returns the names in order of arrival, each once."""
    return tuple(dict.fromkeys(decode_body(data, TopicList).topics))


# Consumer groups.


class ExponentialRetry(Body, frozen=True, kw_only=True):
    """The delays, which grow from `initial_ms` by the factor `multiplier` up to `delay_ms_max`."""

    initial_ms: int = field(name="initial", default=5_000)
    delay_ms_max: int = field(name="max", default=7_200_000)
    multiplier: int = 2


class CustomizedRetry(Body, frozen=True, kw_only=True):
    """The delays themselves, in ms."""

    delays_ms: tuple[int, ...] = field(name="next", default=())


class GroupRetryPolicy(Body, frozen=True, kw_only=True):
    """The retry policy of a group; `kind` is CUSTOMIZED or EXPONENTIAL."""

    customized: CustomizedRetry | None = field(name="customizedRetryPolicy", default=None)
    exponential: ExponentialRetry | None = field(name="exponentialRetryPolicy", default=None)
    kind: str = field(name="type", default="CUSTOMIZED")


class SubscriptionGroupConfig(Body, frozen=True, kw_only=True):
    """One consumer group on one broker.

    The wire's `subscriptionDataSet` is never written: with it Java cannot read the whole table (spec remoting
    6).
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

    Also the shape of `subscriptionGroup.json`. `deleted`: group -> its deletion time, in milliseconds; ours,
    RocketMQ ignores it.
    """

    TEXT_BOUND = LARGE_TEXT

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


def encode_group_config_list(groups: Iterable[SubscriptionGroupConfig]) -> bytes:
    return encode_body(GroupConfigList(groups=tuple(groups)))


def encode_group_list(groups: Iterable[str]) -> bytes:
    return encode_body(GroupList(groups=tuple(groups)))


def decode_group_list(data: Buffer) -> tuple[str, ...]:
    """Returns the names in order of arrival, each once."""
    return tuple(dict.fromkeys(decode_body(data, GroupList).groups))


# Access control: users and policies of 5.x (spec semantics 21.3), accounts of 4.x (21.2).


class UserInfo(Body, frozen=True, kw_only=True):
    """A user as tools send and read it; absent fields of an update are unchanged."""

    password: str | None = None
    username: str | None = None
    status: str | None = field(name="userStatus", default=None)
    user_type: str | None = field(name="userType", default=None)


class EntryInfo(Body, frozen=True, kw_only=True):
    """The permissions of a subject for one resource."""

    actions: tuple[str, ...] = ()
    decision: str = ""
    resource: str = ""
    source_ips: tuple[str, ...] = field(name="sourceIps", default=())


class PolicyInfo(Body, frozen=True, kw_only=True):
    """The entries of one policy type, CUSTOM or DEFAULT; no type means CUSTOM."""

    entries: tuple[EntryInfo, ...] = ()
    policy_type: str | None = field(name="policyType", default=None)


class AclInfo(Body, frozen=True, kw_only=True):
    """All policies of a subject."""

    policies: tuple[PolicyInfo, ...] = ()
    subject: str | None = None


class AccountInfo(Body, frozen=True, kw_only=True):
    """An account of plain_acl.yml in the answer to GET_BROKER_CLUSTER_ACL_CONFIG."""

    access_key: str = field(name="accessKey")
    is_admin: bool = field(name="admin", default=False)
    default_group_permission: str | None = field(name="defaultGroupPerm", default=None)
    default_topic_permission: str | None = field(name="defaultTopicPerm", default=None)
    group_permissions: tuple[str, ...] = field(name="groupPerms", default=())
    secret_key: str | None = field(name="secretKey", default=None)
    topic_permissions: tuple[str, ...] = field(name="topicPerms", default=())
    white_remote_address: str | None = field(name="whiteRemoteAddress", default=None)


class AccountsInfo(Body, frozen=True, kw_only=True):
    """The answer to GET_BROKER_CLUSTER_ACL_CONFIG."""

    global_addresses: tuple[str, ...] = field(name="globalWhiteAddrs", default=())
    accounts: tuple[AccountInfo, ...] = field(name="plainAccessConfigs", default=())
