"""Topics and subscription groups of a broker (spec remoting 8.6)."""

from __future__ import annotations

from msgspec import field

from tandemmq.protocol.header_codec import Header, Int32


class CreateTopicRequest(Header, frozen=True, kw_only=True):
    """UPDATE_AND_CREATE_TOPIC (17). `attributes` is a comma list of `+key=value` and `-key`."""

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


class DeleteTopicRequest(Header, frozen=True, kw_only=True):
    """DELETE_TOPIC_IN_BROKER (215); an unknown topic is still answered 0. `is_passed_on`: a slave asks."""

    topic: str
    is_passed_on: bool | None = field(name="tmPassedOn", default=None)  # ours


class TopicConfigRequest(Header, frozen=True, kw_only=True):
    """GET_TOPIC_CONFIG (351); 17 when absent."""

    topic: str
    is_logical: bool | None = field(name="lo", default=None)


class TopicStatsRequest(Header, frozen=True, kw_only=True):
    """GET_TOPIC_STATS_INFO (202); 17 when absent."""

    topic: str


class GroupConfigRequest(Header, frozen=True, kw_only=True):
    """GET_SUBSCRIPTIONGROUP_CONFIG (352); 26 when absent."""

    group: str


class DeleteGroupRequest(Header, frozen=True, kw_only=True):
    """DELETE_SUBSCRIPTIONGROUP (207). 4.9 and 5.x name the same wish differently."""

    group: str = field(name="groupName")
    cleans_offsets: bool | None = field(name="cleanOffset", default=None)
    removes_offsets: bool | None = field(name="removeOffset", default=None)
