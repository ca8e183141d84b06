"""Requests of 5.x tools about users and policies: 3001 to 3010 (spec semantics 21.3)."""

from __future__ import annotations

import msgspec

from tandemmq.broker.access.auth_table import AuthTable, render_user
from tandemmq.broker.access.options import AccessOptions
from tandemmq.broker.table_file import TableFile, TableSaver, save_or_reject
from tandemmq.errors import NotPermitted, RequestRejected
from tandemmq.protocol.bodies.access import AclInfo, UserInfo
from tandemmq.protocol.bodies.codec import decode_body, encode_body
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.access import (
    AclRequest,
    DeleteAclRequest,
    ListAclsRequest,
    ListUsersRequest,
    UserRequest,
)
from tandemmq.protocol.signature import ACCESS_KEY
from tandemmq.remoting.channel import Channel


def _shown(user: UserInfo, sees: str | None) -> UserInfo:
    """Without the password, unless the asker sees it: tools that copy users then fail, and never set a wrong
    one.
    """
    return user if sees is None or sees == user.username else msgspec.structs.replace(user, password=None)


class AuthHandlers:
    """Changes are answered once they are on disk.

    While authenticationEnabled is off nothing may be changed: whoever came first could make himself the super
    user of later.
    """

    def __init__(
        self, table: AuthTable, options: AccessOptions, *, saver: TableSaver, file: TableFile
    ) -> None:
        self._table = table
        self._options = options
        self._saver = saver
        self._file = file

    async def handle_create_user(self, channel: Channel, command: Command) -> Command:
        name = command.decode(UserRequest).username
        self._check_on()
        self._table.create_user(decode_body(command.body, UserInfo), name)
        return await self._saved(command)

    async def handle_update_user(self, channel: Channel, command: Command) -> Command:
        name = command.decode(UserRequest).username
        self._check_on()
        self._table.update_user(decode_body(command.body, UserInfo), name)
        return await self._saved(command)

    async def handle_delete_user(self, channel: Channel, command: Command) -> Command:
        name = command.decode(UserRequest).username
        self._check_on()
        self._table.delete_user(name)
        return await self._saved(command)

    def handle_get_user(self, channel: Channel, command: Command) -> Command:
        """An empty answer when there is no such user, as in RocketMQ."""
        user = self._table.user(command.decode(UserRequest).username)
        sees = self._sees(command)
        return command.reply(body=b"" if user is None else encode_body(_shown(render_user(user), sees)))

    def handle_list_users(self, channel: Channel, command: Command) -> Command:
        sees = self._sees(command)
        users = self._table.users(command.decode(ListUsersRequest).name_part)
        return command.reply(body=encode_body([_shown(user, sees) for user in users]))

    async def handle_create_acl(self, channel: Channel, command: Command) -> Command:
        subject = command.decode(AclRequest).subject
        self._check_on()
        self._table.create_acl(decode_body(command.body, AclInfo), subject)
        return await self._saved(command)

    async def handle_update_acl(self, channel: Channel, command: Command) -> Command:
        subject = command.decode(AclRequest).subject
        self._check_on()
        self._table.update_acl(decode_body(command.body, AclInfo), subject)
        return await self._saved(command)

    async def handle_delete_acl(self, channel: Channel, command: Command) -> Command:
        request = command.decode(DeleteAclRequest)
        self._check_on()
        self._table.delete_acl(request.subject, request.policy_type, request.resource)
        return await self._saved(command)

    def handle_get_acl(self, channel: Channel, command: Command) -> Command:
        subject = command.decode(AclRequest).subject
        acls = [acl for acl in self._table.acls(None, None) if acl.subject == subject]
        if not acls:
            raise RequestRejected(f"{subject} has no policies", code=ResponseCode.POLICY_NOT_EXIST)
        return command.reply(body=encode_body(acls[0]))

    def handle_list_acls(self, channel: Channel, command: Command) -> Command:
        request = command.decode(ListAclsRequest)
        return command.reply(body=encode_body(self._table.acls(request.subject_part, request.resource_part)))

    def _sees(self, command: Command) -> str | None:
        """Whose password the asker is shown: his own, None for a super user who sees all, "" for who did not
        show who he is.
        """
        options = self._options
        if not options.authentication_enabled or command.code in options.authentication_white_codes:
            return ""
        name = command.fields.get(ACCESS_KEY, "")
        inner, user = options.inner_credentials, self._table.user(name)
        is_super = (user is not None and user.is_super) or (inner is not None and inner.access_key == name)
        return None if is_super else name

    def _check_on(self) -> None:
        if not self._options.authentication_enabled:
            raise NotPermitted("users and policies are only changed while authenticationEnabled is true")

    async def _saved(self, command: Command) -> Command:
        await save_or_reject(self._saver, self._file)
        return command.reply()
