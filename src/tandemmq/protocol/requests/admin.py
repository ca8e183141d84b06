"""Headers for requests of operators and their tools to a broker: statistics, offsets, configuration, topics
and subscription groups, and the rules of access control.

Source:  spec remoting 8.6 and 9.11; spec semantics 21.2, 21.3.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import field

from tandemmq.protocol.header_codec import Header, Int32, Int64


class ConsumeStatsRequest(Header, frozen=True):
    """GET_CONSUME_STATS (208); `topics` are separated by semicolons."""

    consumer_group: str = field(name="consumerGroup")
    topic: str | None = None
    topics: str | None = field(name="topicList", default=None)


class BrokerConsumeStatsRequest(Header, frozen=True, kw_only=True):
    """GET_BROKER_CONSUME_STATS (317)."""

    is_ordered: bool = field(name="isOrder")


class ConsumerConnectionsRequest(Header, frozen=True):
    """GET_CONSUMER_CONNECTION_LIST (203); code 206 if no member is online."""

    consumer_group: str = field(name="consumerGroup")


class ProducerConnectionsRequest(Header, frozen=True):
    """GET_PRODUCER_CONNECTION_LIST (204)."""

    producer_group: str = field(name="producerGroup")


class TopicConsumersRequest(Header, frozen=True):
    """QUERY_TOPIC_CONSUME_BY_WHO (300)."""

    topic: str


class GroupTopicsRequest(Header, frozen=True, kw_only=True):
    """QUERY_TOPICS_BY_CONSUMER (343)."""

    group: str


class GroupSubscriptionRequest(Header, frozen=True, kw_only=True):
    """QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""

    group: str
    topic: str | None = None


class ConsumeTimeSpanRequest(Header, frozen=True, kw_only=True):
    """QUERY_CONSUME_TIME_SPAN (303)."""

    topic: str
    group: str


class CorrectionOffsetRequest(Header, frozen=True, kw_only=True):
    """QUERY_CORRECTION_OFFSET (308)."""

    compare_group: str = field(name="compareGroup")
    topic: str
    filter_groups: str | None = field(name="filterGroups", default=None)


class ResetClientOffsetRequest(Header, frozen=True, kw_only=True):
    """RESET_CONSUMER_CLIENT_OFFSET (220), broker to consumer, oneway; the body holds the offsets."""

    topic: str
    group: str
    timestamp_ms: Int64 = field(name="timestamp")
    is_forced: bool = field(name="isForce")
    queue_id: Int32 | None = field(name="queueId", default=None)


class ResetOffsetRequest(ResetClientOffsetRequest, frozen=True, kw_only=True):
    """INVOKE_BROKER_TO_RESET_OFFSET (222): resets to a time (-1 is the end), or one queue to an offset."""

    offset: Int64 | None = None


class ConsumerStatusRequest(Header, frozen=True, kw_only=True):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223) and GET_CONSUMER_STATUS_FROM_CLIENT (221).

    `client_id` travels as clientAddr but holds a client id.
    """

    topic: str
    group: str
    client_id: str | None = field(name="clientAddr", default=None)


class CloneGroupOffsetRequest(Header, frozen=True):
    """CLONE_GROUP_OFFSET (314)."""

    source_group: str = field(name="srcGroup")
    target_group: str = field(name="destGroup")
    topic: str | None = None
    is_offline: bool = field(name="offline", default=False)


class RunningInfoRequest(Header, frozen=True):
    """GET_CONSUMER_RUNNING_INFO (307), relayed to the client."""

    consumer_group: str = field(name="consumerGroup")
    client_id: str = field(name="clientId")
    has_stack: bool = field(name="jstackEnable", default=False)


class ConsumeDirectlyRequest(Header, frozen=True, kw_only=True):
    """CONSUME_MESSAGE_DIRECTLY (309), relayed with the stored message as body."""

    consumer_group: str = field(name="consumerGroup")
    client_id: str | None = field(name="clientId", default=None)
    message_id: str | None = field(name="msgId", default=None)
    broker_name: str | None = field(name="brokerName", default=None)
    topic: str | None = None
    topic_sys_flag: Int32 | None = field(name="topicSysFlag", default=None)
    group_sys_flag: Int32 | None = field(name="groupSysFlag", default=None)


class BrokerConfigResponse(Header, frozen=True, kw_only=True):
    """The answer to GET_BROKER_CONFIG (26); `version` is a DataVersion as JSON text."""

    version: str


class BrokerStatsRequest(Header, frozen=True):
    """VIEW_BROKER_STATS_DATA (315)."""

    stats_name: str = field(name="statsName")
    stats_key: str = field(name="statsKey")


class ConsumeQueueRequest(Header, frozen=True, kw_only=True):
    """QUERY_CONSUME_QUEUE (321)."""

    topic: str
    queue_id: Int32 = field(name="queueId")
    queue_offset: Int64 = field(name="index")
    count_max: Int32 = field(name="count")
    consumer_group: str | None = field(name="consumerGroup", default=None)


class ResumeCheckRequest(Header, frozen=True, kw_only=True):
    """RESUME_CHECK_HALF_MESSAGE (323); the id is an offset message id."""

    message_id: str = field(name="msgId")
    topic: str | None = None


class GroupForbiddenRequest(Header, frozen=True, kw_only=True):
    """UPDATE_AND_GET_GROUP_FORBIDDEN (353); without `is_readable` nothing changes."""

    group: str
    topic: str
    is_readable: bool | None = field(name="readable", default=None)


class ReadModeRequest(Header, frozen=True):
    """SET_COMMITLOG_READ_MODE (2004): 0 enables the kernel's read-ahead, 1 disables it (madvise's
    numbers).
    """

    mode: Int32 = field(name="READ_AHEAD_MODE")


class IfExists(StrEnum):
    """The change that a creation makes to a topic that the broker has already; ours, in `tmIfExists`. A group
    has KEEP only.
    """

    KEEP = "keep"
    """An existing topic is not changed."""
    GROW = "grow"
    """An existing topic gets the missing queues, and keeps every other setting."""
    NO_FEWER = "noFewer"
    """An existing topic is changed as requested, but keeps its queues if the request has fewer."""


class CreateTopicRequest(Header, frozen=True, kw_only=True):
    """UPDATE_AND_CREATE_TOPIC (17). `attributes` is a comma list of `+key=value` and `-key`. Without
    `if_exists`, an existing topic is changed as requested. RocketMQ's brokers, and our older ones, ignore
    `if_exists` and always do this.
    """

    topic: str
    default_topic: str = field(name="defaultTopic")
    read_queue_count: Int32 = field(name="readQueueNums")
    write_queue_count: Int32 = field(name="writeQueueNums")
    permission: Int32 = field(name="perm")
    topic_filter_type: str = field(name="topicFilterType", default="SINGLE_TAG")
    topic_sys_flag: Int32 | None = field(name="topicSysFlag", default=None)
    is_ordered: bool = field(name="order", default=False)
    attributes: str | None = None
    is_forced: bool | None = field(name="force", default=None)
    if_exists: str | None = field(name="tmIfExists", default=None)  # ours


class DeleteTopicRequest(Header, frozen=True):
    """DELETE_TOPIC_IN_BROKER (215); an unknown topic is still answered 0. `is_passed_on`: sent by a slave."""

    topic: str
    is_passed_on: bool | None = field(name="tmPassedOn", default=None)  # ours


class TopicConfigRequest(Header, frozen=True):
    """GET_TOPIC_CONFIG (351); code 17 if absent."""

    topic: str
    is_logical: bool | None = field(name="lo", default=None)


class TopicStatsRequest(Header, frozen=True):
    """GET_TOPIC_STATS_INFO (202); code 17 if absent."""

    topic: str


class CreateGroupRequest(Header, frozen=True):
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200); the group is in the body. Without `if_exists`, an existing
    group is changed as requested, which brokers that do not know the field always do.
    """

    if_exists: str | None = field(name="tmIfExists", default=None)  # ours


class GroupConfigRequest(Header, frozen=True):
    """GET_SUBSCRIPTIONGROUP_CONFIG (352); code 26 if absent."""

    group: str


class DeleteGroupRequest(Header, frozen=True, kw_only=True):
    """DELETE_SUBSCRIPTIONGROUP (207). 4.9 and 5.x have different names for the same option."""

    group: str = field(name="groupName")
    cleans_offsets: bool | None = field(name="cleanOffset", default=None)
    removes_offsets: bool | None = field(name="removeOffset", default=None)


# Access control: accounts of the 4.x files, users and policies of 5.x. Field names are as RocketMQ's tools
# write them.


class UpdateAccountRequest(Header, frozen=True, kw_only=True):
    """UPDATE_AND_CREATE_ACL_CONFIG (50); lists are joined by commas."""

    access_key: str = field(name="accessKey")
    secret_key: str | None = field(name="secretKey", default=None)
    white_remote_address: str | None = field(name="whiteRemoteAddress", default=None)
    is_admin: bool = field(name="admin", default=False)
    default_topic_permission: str | None = field(name="defaultTopicPerm", default=None)
    default_group_permission: str | None = field(name="defaultGroupPerm", default=None)
    topic_permissions: str | None = field(name="topicPerms", default=None)
    group_permissions: str | None = field(name="groupPerms", default=None)


class DeleteAccountRequest(Header, frozen=True, kw_only=True):
    """DELETE_ACL_CONFIG (51)."""

    access_key: str = field(name="accessKey")


class UpdateWhiteAddressesRequest(Header, frozen=True, kw_only=True):
    """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG (53); joined by commas. Without a file the default one is changed."""

    addresses: str = field(name="globalWhiteAddrs")
    file: str | None = field(name="aclFileFullPath", default=None)


class AccessVersionResponse(Header, frozen=True, kw_only=True):
    """The answer to GET_BROKER_CLUSTER_ACL_INFO (52); versions are JSON texts."""

    version: str
    versions_by_file: str = field(name="allAclFileVersion")
    broker_name: str = field(name="brokerName")
    broker_address: str = field(name="brokerAddr")
    cluster_name: str = field(name="clusterName")


class UserRequest(Header, frozen=True):
    """AUTH_CREATE_USER, AUTH_UPDATE_USER, AUTH_DELETE_USER, AUTH_GET_USER (3001 to 3004)."""

    username: str


class ListUsersRequest(Header, frozen=True):
    """AUTH_LIST_USER (3005); the filter is a substring of the name."""

    name_part: str | None = field(name="filter", default=None)


class AclRequest(Header, frozen=True):
    """AUTH_CREATE_ACL, AUTH_UPDATE_ACL, AUTH_GET_ACL (3006, 3007, 3009)."""

    subject: str


class DeleteAclRequest(Header, frozen=True, kw_only=True):
    """AUTH_DELETE_ACL (3008); without a resource the subject loses every policy."""

    subject: str
    policy_type: str | None = field(name="policyType", default=None)
    resource: str | None = None


class ListAclsRequest(Header, frozen=True):
    """AUTH_LIST_ACL (3010); the filters are substrings of subject and resource."""

    subject_part: str | None = field(name="subjectFilter", default=None)
    resource_part: str | None = field(name="resourceFilter", default=None)
