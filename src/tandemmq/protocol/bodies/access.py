"""Bodies of the requests about users and policies (spec semantics 21.3), and of 4.x accounts (21.2)."""

from __future__ import annotations

from msgspec import field

from tandemmq.protocol.bodies.codec import Body


class UserInfo(Body, frozen=True, kw_only=True):
    """A user as tools send and read it; absent fields of an update stay as they are."""

    password: str | None = None
    username: str | None = None
    status: str | None = field(name="userStatus", default=None)
    user_type: str | None = field(name="userType", default=None)


class EntryInfo(Body, frozen=True, kw_only=True):
    """What a subject may or may not do with one resource."""

    actions: tuple[str, ...] = ()
    decision: str = ""
    resource: str = ""
    source_ips: tuple[str, ...] = field(name="sourceIps", default=())


class PolicyInfo(Body, frozen=True, kw_only=True):
    """The entries of one policy type, CUSTOM or DEFAULT; no type is CUSTOM."""

    entries: tuple[EntryInfo, ...] = ()
    policy_type: str | None = field(name="policyType", default=None)


class AclInfo(Body, frozen=True, kw_only=True):
    """All policies of a subject."""

    policies: tuple[PolicyInfo, ...] = ()
    subject: str | None = None


class AccountInfo(Body, frozen=True, kw_only=True):
    """An account of plain_acl.yml as GET_BROKER_CLUSTER_ACL_CONFIG shows it."""

    access_key: str = field(name="accessKey")
    is_admin: bool = field(name="admin", default=False)
    default_group_permission: str | None = field(name="defaultGroupPerm", default=None)
    default_topic_permission: str | None = field(name="defaultTopicPerm", default=None)
    group_permissions: tuple[str, ...] = field(name="groupPerms", default=())
    secret_key: str | None = field(name="secretKey", default=None)
    topic_permissions: tuple[str, ...] = field(name="topicPerms", default=())
    white_remote_address: str | None = field(name="whiteRemoteAddress", default=None)


class AccountsInfo(Body, frozen=True, kw_only=True):
    """The whole of it."""

    global_addresses: tuple[str, ...] = field(name="globalWhiteAddrs", default=())
    accounts: tuple[AccountInfo, ...] = field(name="plainAccessConfigs", default=())
