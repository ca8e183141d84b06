"""Access control of one broker: its rules, its guard and its requests, built and started together.

The requests are those of 5.x tools about users and policies, 3001 to 3010 (spec semantics 21.3), and of 4.x
tools about plain_acl.yml, 50 to 54 (spec semantics 21.2).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from tandemmq.broker.access.auth_table import SUPER, AuthTable, render_user
from tandemmq.broker.access.guard import Guard
from tandemmq.broker.access.needs import PUB, TOPIC, Need
from tandemmq.broker.access.plain_rules import (
    PlainFiles,
    PlainRules,
    accounts_in,
    read_tools_credentials,
    set_white_addresses,
)
from tandemmq.broker.options import AccessOptions, BrokerOptions
from tandemmq.broker.table_file import TableFile, TableSaver, save_or_reject
from tandemmq.broker.tables import SAVE_SOON_MS, Tables
from tandemmq.errors import ConfigError, NotPermitted, RequestRejected
from tandemmq.protocol.bodies.codec import DataVersion, decode_body, encode_body
from tandemmq.protocol.bodies.tables import AccountInfo, AccountsInfo, AclInfo, UserInfo
from tandemmq.protocol.codes import RequestCode as Code
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests import admin
from tandemmq.protocol.signature import ACCESS_KEY, Credentials
from tandemmq.remoting.audit import AccessLog
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.dispatch import Guard as RequestGuard
from tandemmq.remoting.dispatch import Handler
from tandemmq.remoting.options import TlsOptions, is_open_to_everybody
from tandemmq.runtime.ports import Address, Disk, Machine
from tandemmq.telemetry import events
from tandemmq.units import Buffer

UPDATE_FAILED: Final = 209
DELETE_FAILED: Final = 210
ADDRESSES_FAILED: Final = 211
"""RocketMQ's error codes for updating an account, deleting an account, and replacing the addresses. Answers
to other requests use these numbers for other errors.
"""


@dataclass(slots=True)
class PlainHandlers:
    """Handles the requests of 4.x tools. `files` is None if aclEnable is off; every change is then
    rejected.
    """

    _files: PlainFiles | None
    _broker: BrokerOptions
    _address: Callable[[], str]

    async def handle_update_account(self, channel: Channel, command: Command) -> Command:
        """Handles UPDATE_AND_CREATE_ACL_CONFIG (50). The answer is sent once the change is on disk."""
        request = command.decode(admin.UpdateAccountRequest)
        files = self._files_or_reject(UPDATE_FAILED)
        path = files.path_of(request.access_key) or files.default_path
        await _change(files, path, lambda document: _put_account(document, request), UPDATE_FAILED)
        return command.reply()

    async def handle_delete_account(self, channel: Channel, command: Command) -> Command:
        """Handles DELETE_ACL_CONFIG (51). The answer is sent once the change is on disk."""
        key = command.decode(admin.DeleteAccountRequest).access_key
        files = self._files_or_reject(DELETE_FAILED)
        path = files.path_of(key)
        if path is None:
            raise RequestRejected(f"there is no account with access key {key}", code=DELETE_FAILED)

        def remove(document: dict[str, Any]) -> None:
            accounts = accounts_in(document)
            accounts[:] = [entry for entry in accounts if entry.get("accessKey") != key]

        await _change(files, path, remove, DELETE_FAILED)
        return command.reply()

    async def handle_update_addresses(self, channel: Channel, command: Command) -> Command:
        """Handles UPDATE_GLOBAL_WHITE_ADDRS_CONFIG (53): replaces the addresses in one file of the rules."""
        request = command.decode(admin.UpdateWhiteAddressesRequest)
        files = self._files_or_reject(ADDRESSES_FAILED)
        path = Path(request.file) if request.file else files.default_path
        if path != files.default_path and path not in files.documents:
            # A path in a request must never create a new file.
            raise RequestRejected(f"{path} is not a file of access rules", code=ADDRESSES_FAILED)
        addresses = [text.strip() for text in request.addresses.split(",") if text.strip()]
        await _change(
            files, path, lambda document: set_white_addresses(document, addresses), ADDRESSES_FAILED
        )
        return command.reply()

    def handle_version(self, channel: Channel, command: Command) -> Command:
        """Handles GET_BROKER_CLUSTER_ACL_INFO (52): returns the files' versions and this broker's
        identity.
        """
        versions = {} if self._files is None else self._files.versions()
        default = (
            DataVersion() if self._files is None else versions.get(self._files.default_path, DataVersion())
        )
        by_file = {str(path): version for path, version in versions.items()}
        header = admin.AccessVersionResponse(
            version=encode_body(default).decode(),
            versions_by_file=encode_body(by_file).decode(),
            broker_name=self._broker.broker_name,
            broker_address=self._address(),
            cluster_name=self._broker.cluster_name,
        )
        return command.reply(0, header)

    def handle_show(self, channel: Channel, command: Command) -> Command:
        """Returns all rules with their secrets, as in RocketMQ; therefore only an administrator may request
        them.
        """
        documents = () if self._files is None else self._files.documents.values()
        addresses: list[str] = []
        accounts: list[AccountInfo] = []
        for document in documents:
            if isinstance(document, dict):
                addresses += map(str, document.get("globalWhiteRemoteAddresses") or [])
                accounts += map(_describe_account, document.get("accounts") or [])
        info = AccountsInfo(global_addresses=tuple(addresses), accounts=tuple(accounts))
        return command.reply(body=encode_body(info))

    def _files_or_reject(self, code: int) -> PlainFiles:
        if self._files is None:
            raise RequestRejected("access control by plain_acl.yml is off (aclEnable=false)", code=code)
        return self._files


async def _change(files: PlainFiles, path: Path, apply: Callable[[dict[str, Any]], None], code: int) -> None:
    # A closed connection cancels its handlers. The shield keeps that from ending the change after the file
    # was written and before the rules in memory follow.
    try:
        await asyncio.shield(files.change(path, apply))
    except (ConfigError, OSError) as error:
        raise RequestRejected(str(error), code=code) from None


def _put_account(document: dict[str, Any], request: admin.UpdateAccountRequest) -> None:
    """Creates or changes an account; keys that the request does not name are kept."""
    accounts = accounts_in(document)
    account = next((entry for entry in accounts if entry.get("accessKey") == request.access_key), None)
    if account is None:
        account = {"accessKey": request.access_key}
        accounts.append(account)
    texts = {
        "secretKey": request.secret_key,
        "whiteRemoteAddress": request.white_remote_address,
        "defaultTopicPerm": request.default_topic_permission,
        "defaultGroupPerm": request.default_group_permission,
    }
    account.update({key: text for key, text in texts.items() if text})
    account["admin"] = request.is_admin
    for key, joined in (
        ("topicPerms", request.topic_permissions),
        ("groupPerms", request.group_permissions),
    ):
        if joined:
            account[key] = [text.strip() for text in joined.split(",") if text.strip()]


def _describe_account(raw: dict[str, Any]) -> AccountInfo:
    def text(key: str) -> str | None:
        return None if raw.get(key) is None else str(raw[key])

    return AccountInfo(
        access_key=str(raw.get("accessKey")),
        secret_key=text("secretKey"),
        white_remote_address=text("whiteRemoteAddress"),
        is_admin=str(raw.get("admin") or "").lower() == "true",
        default_topic_permission=text("defaultTopicPerm"),
        default_group_permission=text("defaultGroupPerm"),
        topic_permissions=tuple(map(str, raw.get("topicPerms") or [])),
        group_permissions=tuple(map(str, raw.get("groupPerms") or [])),
    )


def _visible_user(user: UserInfo, requester: str | None) -> UserInfo:
    """Returns the user without the password, unless the requester may see the password (`requester` as from
    `_requester`). The password is absent, not replaced by another text, so that tools that copy users fail
    instead of setting a wrong password.
    """
    if requester is None or requester == user.username:
        return user
    return msgspec.structs.replace(user, password=None)


@dataclass(slots=True)
class AuthHandlers:
    """Handles the requests of 5.x tools. Changes are answered once they are on disk.

    While authenticationEnabled is off nothing may be changed: otherwise the first client to connect could
    make itself a super user for later.
    """

    _table: AuthTable
    _options: AccessOptions
    _saver: TableSaver
    _file: TableFile

    async def handle_create_user(self, channel: Channel, command: Command) -> Command:
        name = command.decode(admin.UserRequest).username
        return await self._changed(command, lambda info: self._table.create_user(info, name), UserInfo)

    async def handle_update_user(self, channel: Channel, command: Command) -> Command:
        name = command.decode(admin.UserRequest).username
        return await self._changed(command, lambda info: self._table.update_user(info, name), UserInfo)

    async def handle_delete_user(self, channel: Channel, command: Command) -> Command:
        name = command.decode(admin.UserRequest).username
        return await self._changed(command, lambda _: self._table.delete_user(name))

    def handle_get_user(self, channel: Channel, command: Command) -> Command:
        """Returns an empty answer if there is no such user, as in RocketMQ."""
        user = self._table.user(command.decode(admin.UserRequest).username)
        requester = self._requester(command)
        return command.reply(
            body=b"" if user is None else encode_body(_visible_user(render_user(user), requester))
        )

    def handle_list_users(self, channel: Channel, command: Command) -> Command:
        requester = self._requester(command)
        users = self._table.users(command.decode(admin.ListUsersRequest).name_part)
        return command.reply(body=encode_body([_visible_user(user, requester) for user in users]))

    async def handle_create_acl(self, channel: Channel, command: Command) -> Command:
        subject = command.decode(admin.AclRequest).subject
        return await self._changed(command, lambda acl: self._table.create_acl(acl, subject), AclInfo)

    async def handle_update_acl(self, channel: Channel, command: Command) -> Command:
        subject = command.decode(admin.AclRequest).subject
        return await self._changed(command, lambda acl: self._table.update_acl(acl, subject), AclInfo)

    async def handle_delete_acl(self, channel: Channel, command: Command) -> Command:
        one = command.decode(admin.DeleteAclRequest)
        return await self._changed(
            command, lambda _: self._table.delete_acl(one.subject, one.policy_type, one.resource)
        )

    def handle_get_acl(self, channel: Channel, command: Command) -> Command:
        subject = command.decode(admin.AclRequest).subject
        acls = [acl for acl in self._table.acls(None, None) if acl.subject == subject]
        if not acls:
            raise RequestRejected(f"{subject} has no policies", code=ResponseCode.POLICY_NOT_EXIST)
        return command.reply(body=encode_body(acls[0]))

    def handle_list_acls(self, channel: Channel, command: Command) -> Command:
        request = command.decode(admin.ListAclsRequest)
        return command.reply(body=encode_body(self._table.acls(request.subject_part, request.resource_part)))

    def _requester(self, command: Command) -> str | None:
        """Returns the name of the requesting user, who may see only the password of that user; None for a
        super user, who may see all passwords; "" for an unauthenticated request, which may see none.
        """
        options = self._options
        if not options.authentication_enabled or command.code in options.authentication_white_codes:
            return ""
        name = command.fields.get(ACCESS_KEY, "")
        inner, user = options.inner_credentials, self._table.user(name)
        is_super = (user is not None and user.is_super) or (inner is not None and inner.access_key == name)
        return None if is_super else name

    async def _changed(
        self, command: Command, change: Callable[[Any], None], shape: type | None = None
    ) -> Command:
        """Makes a change with the body of the request, if it has a `shape`, and answers once it is saved."""
        if not self._options.authentication_enabled:
            raise NotPermitted("users and policies can be changed only with authenticationEnabled=true")
        change(None if shape is None else decode_body(command.body, shape))
        await save_or_reject(self._saver, self._file)
        return command.reply()


log = logging.getLogger(__name__)

AUTH_FILE = "auth.json"


class AccessService:
    """Access control as used by the broker. `check` guards every request; `check` is None if access control
    is off. `signer` signs this broker's own requests; `signer` is None without credentials.
    """

    def __init__(
        self,
        options: AccessOptions,
        broker: BrokerOptions,
        tables: Tables,
        machine: Machine,
        address: Callable[[], str],
    ) -> None:
        self._options = options
        credentials = own_credentials(options, machine.disk)
        self.signer = None if credentials is None else credentials.sign
        self.users = AuthTable()
        self.audit = AccessLog(machine.clock)
        self._guard: Guard | None = None
        self._files: PlainFiles | None = None
        if options.is_on:
            self._guard = Guard(
                options,
                cluster=broker.cluster_name,
                users=self.users,
                audit=self.audit,
                inner=options.inner_credentials,
            )
        if options.acl_enable:
            self._files = PlainFiles(
                options.acl_directory, disk=machine.disk, clock=machine.clock, on_rules=self._set_rules
            )
        file = tables.add(AUTH_FILE, self.users, SAVE_SOON_MS)
        self._plain = PlainHandlers(self._files, broker, address)
        self._auth = AuthHandlers(self.users, options, tables.saver, file)

    def load(self) -> None:
        """Creates the first user and reads the rules, after the tables were loaded.

        Raises:  ConfigError for invalid content, so that a broker never starts with rules other than the
                 intended ones.
        """
        first = self._options.first_user
        if self._options.authentication_enabled and first is not None:
            self._make_first_user(first)
        if self._files is not None:
            self._files.load()

    def bind(self, read_record: Callable[[int], Buffer | None]) -> None:
        """Sets the function that reads the record at a log offset, for requests that name one."""
        if self._guard is not None:
            self._guard.read_record = read_record

    def may_publish(self, channel: Channel, topic: str) -> bool:
        """Returns True if the client that sends heartbeats over this connection may send to the topic."""
        return self._guard is None or self._guard.may(channel, Need(TOPIC, topic, PUB))

    async def watch(self) -> None:
        """Follows the files of the 4.x rules; returns at once if there are none."""
        if self._files is not None:
            await self._files.watch()

    def close(self) -> None:
        self.audit.close()

    def routes(self) -> dict[int, Handler]:
        """Returns the handlers of the requests about access control."""
        plain, auth = self._plain, self._auth
        return {
            Code.UPDATE_AND_CREATE_ACL_CONFIG: plain.handle_update_account,
            Code.DELETE_ACL_CONFIG: plain.handle_delete_account,
            Code.GET_BROKER_CLUSTER_ACL_INFO: plain.handle_version,
            Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: plain.handle_update_addresses,
            Code.GET_BROKER_CLUSTER_ACL_CONFIG: plain.handle_show,
            Code.AUTH_CREATE_USER: auth.handle_create_user,
            Code.AUTH_UPDATE_USER: auth.handle_update_user,
            Code.AUTH_DELETE_USER: auth.handle_delete_user,
            Code.AUTH_GET_USER: auth.handle_get_user,
            Code.AUTH_LIST_USER: auth.handle_list_users,
            Code.AUTH_CREATE_ACL: auth.handle_create_acl,
            Code.AUTH_UPDATE_ACL: auth.handle_update_acl,
            Code.AUTH_DELETE_ACL: auth.handle_delete_acl,
            Code.AUTH_GET_ACL: auth.handle_get_acl,
            Code.AUTH_LIST_ACL: auth.handle_list_acls,
        }

    @property
    def check(self) -> RequestGuard | None:
        return None if self._guard is None else self._guard.check

    def _make_first_user(self, first: Credentials) -> None:
        if self.users.user(first.access_key) is None:
            self.users.create_user(UserInfo(password=first.secret_key, user_type=SUPER), first.access_key)
            log.info(events.ACCESS_USER_CREATED, extra={"user": first.access_key})

    def _set_rules(self, rules: PlainRules) -> None:
        assert self._guard is not None
        self._guard.rules = rules


def own_credentials(options: AccessOptions, disk: Disk) -> Credentials | None:
    """Returns innerClientAuthenticationCredentials, or else those of tools.yml while aclEnable is on."""
    if options.inner_credentials is not None or not options.acl_enable:
        return options.inner_credentials
    return read_tools_credentials(options.acl_directory, disk)


def warn_if_open(address: Address, options: AccessOptions, tls: TlsOptions) -> None:
    """Logs, once per start of a broker, that every client that reaches its port may do everything."""
    if not options.is_on and is_open_to_everybody(address, tls):
        log.warning(events.BROKER_OPEN, extra={"address": address})
