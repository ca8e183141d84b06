"""Changing the rules of access control: accounts of the 4.x files, users and policies of 5.x.

Source:  spec semantics 21.2, 21.3; field names as RocketMQ's tools write them.
"""

from __future__ import annotations

from msgspec import field

from tandemmq.protocol.header_codec import Header


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
    """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG (53); joined by commas. Without a file the default one is meant."""

    addresses: str = field(name="globalWhiteAddrs")
    file: str | None = field(name="aclFileFullPath", default=None)


class AccessVersionResponse(Header, frozen=True, kw_only=True):
    """Answer to GET_BROKER_CLUSTER_ACL_INFO (52); versions are JSON texts."""

    version: str
    versions_by_file: str = field(name="allAclFileVersion")
    broker_name: str = field(name="brokerName")
    broker_address: str = field(name="brokerAddr")
    cluster_name: str = field(name="clusterName")


class UserRequest(Header, frozen=True, kw_only=True):
    """AUTH_CREATE_USER, AUTH_UPDATE_USER, AUTH_DELETE_USER, AUTH_GET_USER (3001 to 3004)."""

    username: str


class ListUsersRequest(Header, frozen=True, kw_only=True):
    """AUTH_LIST_USER (3005); the filter is a part of the name."""

    name_part: str | None = field(name="filter", default=None)


class AclRequest(Header, frozen=True, kw_only=True):
    """AUTH_CREATE_ACL, AUTH_UPDATE_ACL, AUTH_GET_ACL (3006, 3007, 3009)."""

    subject: str


class DeleteAclRequest(Header, frozen=True, kw_only=True):
    """AUTH_DELETE_ACL (3008); without a resource the subject loses every policy."""

    subject: str
    policy_type: str | None = field(name="policyType", default=None)
    resource: str | None = None


class ListAclsRequest(Header, frozen=True, kw_only=True):
    """AUTH_LIST_ACL (3010); the filters are parts of subject and resource."""

    subject_part: str | None = field(name="subjectFilter", default=None)
    resource_part: str | None = field(name="resourceFilter", default=None)
