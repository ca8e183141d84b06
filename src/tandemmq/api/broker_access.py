"""Users and policies of a broker with RocketMQ 5.3's access control (spec semantics 21.3)."""

from __future__ import annotations

from tandemmq.api.broker_topic import ADMIN_TIMEOUT_S
from tandemmq.api.calls import ask, call
from tandemmq.protocol import rejections
from tandemmq.protocol.bodies.access import AclInfo, UserInfo
from tandemmq.protocol.bodies.codec import decode_body, encode_body
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.requests.access import (
    AclRequest,
    DeleteAclRequest,
    ListAclsRequest,
    ListUsersRequest,
    UserRequest,
)
from tandemmq.remoting.client import RemotingClient


async def create_user(client: RemotingClient, address: str, user: UserInfo) -> None:
    """A user with a new name; a name that is taken is refused."""
    await _tell_user(client, address, RequestCode.AUTH_CREATE_USER, user)


async def update_user(client: RemotingClient, address: str, user: UserInfo) -> None:
    """Change what the info names of a user that is there."""
    await _tell_user(client, address, RequestCode.AUTH_UPDATE_USER, user)


async def delete_user(client: RemotingClient, address: str, name: str) -> None:
    """The user and its policies; an unknown one is not an error."""
    header = UserRequest(username=name)
    await call(client, address, RequestCode.AUTH_DELETE_USER, header, timeout_s=ADMIN_TIMEOUT_S)


async def query_user(client: RemotingClient, address: str, name: str) -> UserInfo | None:
    """The user, None when there is none. The password is there for super users and the user himself."""
    header = UserRequest(username=name)
    answer = await ask(client, address, RequestCode.AUTH_GET_USER, header, timeout_s=ADMIN_TIMEOUT_S)
    if answer.code == ResponseCode.USER_NOT_EXIST:
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return decode_body(answer.body, UserInfo) if answer.body else None


async def query_users(client: RemotingClient, address: str, name_part: str) -> list[UserInfo]:
    """The users whose names hold the part."""
    header = ListUsersRequest(name_part=name_part or None)
    answer = await call(client, address, RequestCode.AUTH_LIST_USER, header, timeout_s=ADMIN_TIMEOUT_S)
    return decode_body(answer.body, list[UserInfo]) if answer.body else []


async def create_acl(client: RemotingClient, address: str, acl: AclInfo) -> None:
    """Add policies to a subject; an entry takes the place of the one for the same resource."""
    await _tell_acl(client, address, RequestCode.AUTH_CREATE_ACL, acl)


async def update_acl(client: RemotingClient, address: str, acl: AclInfo) -> None:
    """Like `create_acl`, for a subject that has policies."""
    await _tell_acl(client, address, RequestCode.AUTH_UPDATE_ACL, acl)


async def delete_acl(client: RemotingClient, address: str, subject: str, resource: str) -> None:
    """What the subject may do with one resource; with an empty one, all its policies."""
    header = DeleteAclRequest(subject=subject, resource=resource or None)
    await call(client, address, RequestCode.AUTH_DELETE_ACL, header, timeout_s=ADMIN_TIMEOUT_S)


async def query_acl(client: RemotingClient, address: str, subject: str) -> AclInfo | None:
    """All policies of a subject; None when it has none."""
    header = AclRequest(subject=subject)
    answer = await ask(client, address, RequestCode.AUTH_GET_ACL, header, timeout_s=ADMIN_TIMEOUT_S)
    if answer.code == ResponseCode.POLICY_NOT_EXIST:
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return decode_body(answer.body, AclInfo) if answer.body else None


async def query_acls(
    client: RemotingClient, address: str, subject_part: str, resource_part: str
) -> list[AclInfo]:
    """The policies whose subjects and resources hold these parts."""
    header = ListAclsRequest(subject_part=subject_part or None, resource_part=resource_part or None)
    answer = await call(client, address, RequestCode.AUTH_LIST_ACL, header, timeout_s=ADMIN_TIMEOUT_S)
    return decode_body(answer.body, list[AclInfo]) if answer.body else []


async def _tell_user(client: RemotingClient, address: str, code: RequestCode, user: UserInfo) -> None:
    header = UserRequest(username=user.username or "")
    await call(client, address, code, header, body=encode_body(user), timeout_s=ADMIN_TIMEOUT_S)


async def _tell_acl(client: RemotingClient, address: str, code: RequestCode, acl: AclInfo) -> None:
    header = AclRequest(subject=acl.subject or "")
    await call(client, address, code, header, body=encode_body(acl), timeout_s=ADMIN_TIMEOUT_S)
