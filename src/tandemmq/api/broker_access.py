"""Users and policies of a broker with RocketMQ 5.3's access control (spec semantics 21.3)."""

from __future__ import annotations

from typing import Final

from tandemmq.api.broker_topic import ADMIN_TIMEOUT_S
from tandemmq.api.calls import ask
from tandemmq.protocol import rejections
from tandemmq.protocol.bodies.codec import decode_body, encode_body
from tandemmq.protocol.bodies.tables import AclInfo, UserInfo
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Buffer, Header
from tandemmq.protocol.requests.admin import (
    AclRequest,
    DeleteAclRequest,
    ListAclsRequest,
    ListUsersRequest,
    UserRequest,
)
from tandemmq.remoting.client import RemotingClient


async def put_user(client: RemotingClient, address: str, user: UserInfo, *, is_new: bool) -> None:
    """A user with a new name, which is refused when taken; else what the info names of one that is there."""
    code = RequestCode.AUTH_CREATE_USER if is_new else RequestCode.AUTH_UPDATE_USER
    await _call(client, address, code, UserRequest(username=user.username or ""), encode_body(user))


async def delete_user(client: RemotingClient, address: str, name: str) -> None:
    """The user and its policies; an unknown one is not an error."""
    await _call(client, address, RequestCode.AUTH_DELETE_USER, UserRequest(username=name))


async def query_user(client: RemotingClient, address: str, name: str) -> UserInfo | None:
    """The user, None when there is none. The password is there for super users and the user himself."""
    body = await _call(client, address, RequestCode.AUTH_GET_USER, UserRequest(username=name))
    return decode_body(body, UserInfo) if body else None


async def query_users(client: RemotingClient, address: str, name_part: str) -> list[UserInfo]:
    """The users whose names hold the part."""
    header = ListUsersRequest(name_part=name_part or None)
    body = await _call(client, address, RequestCode.AUTH_LIST_USER, header)
    return decode_body(body, list[UserInfo]) if body else []


async def put_acl(client: RemotingClient, address: str, acl: AclInfo, *, is_new: bool) -> None:
    """Add policies to a subject, which has some already unless `is_new`; an entry takes the place of the one
    for the same resource.
    """
    code = RequestCode.AUTH_CREATE_ACL if is_new else RequestCode.AUTH_UPDATE_ACL
    await _call(client, address, code, AclRequest(subject=acl.subject or ""), encode_body(acl))


async def delete_acl(client: RemotingClient, address: str, subject: str, resource: str) -> None:
    """What the subject may do with one resource; with an empty one, all its policies."""
    header = DeleteAclRequest(subject=subject, resource=resource or None)
    await _call(client, address, RequestCode.AUTH_DELETE_ACL, header)


async def query_acl(client: RemotingClient, address: str, subject: str) -> AclInfo | None:
    """All policies of a subject; None when it has none."""
    body = await _call(client, address, RequestCode.AUTH_GET_ACL, AclRequest(subject=subject))
    return decode_body(body, AclInfo) if body else None


async def query_acls(
    client: RemotingClient, address: str, subject_part: str, resource_part: str
) -> list[AclInfo]:
    """The policies whose subjects and resources hold these parts."""
    header = ListAclsRequest(subject_part=subject_part or None, resource_part=resource_part or None)
    body = await _call(client, address, RequestCode.AUTH_LIST_ACL, header)
    return decode_body(body, list[AclInfo]) if body else []


_NOTHING: Final = {
    RequestCode.AUTH_GET_USER: ResponseCode.USER_NOT_EXIST,
    RequestCode.AUTH_GET_ACL: ResponseCode.POLICY_NOT_EXIST,
}
"""Request -> the answer that is no refusal but an empty result."""


async def _call(
    client: RemotingClient, address: str, code: RequestCode, header: Header, body: bytes = b""
) -> Buffer:
    """The body of the answer, empty when there is nothing."""
    answer = await ask(client, address, code, header, body=body, timeout_s=ADMIN_TIMEOUT_S)
    if answer.code == _NOTHING.get(code):
        return b""
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return answer.body
