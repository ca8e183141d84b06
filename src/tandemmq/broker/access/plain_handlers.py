"""Requests of 4.x tools about plain_acl.yml: 50 to 54 (spec semantics 21.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tandemmq.broker.access.plain_files import PlainFiles, accounts_in, set_white_addresses
from tandemmq.errors import ConfigError, RequestRejected
from tandemmq.protocol.bodies.access import AccountInfo, AccountsInfo
from tandemmq.protocol.bodies.codec import encode_body
from tandemmq.protocol.bodies.data_version import DataVersion, encode_data_version
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.access import (
    AccessVersionResponse,
    DeleteAccountRequest,
    UpdateAccountRequest,
    UpdateWhiteAddressesRequest,
)
from tandemmq.remoting.channel import Channel

UPDATE_FAILED: Final = 209
DELETE_FAILED: Final = 210
ADDRESSES_FAILED: Final = 211
"""RocketMQ's codes of these three requests; other requests use the numbers otherwise."""


class PlainHandlers:
    """`files` is None while aclEnable is off: then every change is refused."""

    def __init__(
        self, files: PlainFiles | None, *, broker_name: str, cluster: str, address: Callable[[], str]
    ) -> None:
        self._files = files
        self._broker_name = broker_name
        self._cluster = cluster
        self._address = address

    async def handle_update_account(self, channel: Channel, command: Command) -> Command:
        request = command.decode(UpdateAccountRequest)
        files = self._files_or_reject(UPDATE_FAILED)
        path = files.path_of(request.access_key) or files.default_path
        await _change(files, path, lambda document: _put_account(document, request), UPDATE_FAILED)
        return command.reply()

    async def handle_delete_account(self, channel: Channel, command: Command) -> Command:
        """DELETE_ACL_CONFIG (51), answered when it is on disk."""
        key = command.decode(DeleteAccountRequest).access_key
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
        """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG (53): the addresses of one file of the rules are replaced."""
        request = command.decode(UpdateWhiteAddressesRequest)
        files = self._files_or_reject(ADDRESSES_FAILED)
        path = Path(request.file) if request.file else files.default_path
        if path != files.default_path and path not in files.documents:
            # A path from outside never names a new file.
            raise RequestRejected(f"{path} is no file of the rules", code=ADDRESSES_FAILED)
        addresses = [text.strip() for text in request.addresses.split(",") if text.strip()]
        await _change(
            files, path, lambda document: set_white_addresses(document, addresses), ADDRESSES_FAILED
        )
        return command.reply()

    def handle_version(self, channel: Channel, command: Command) -> Command:
        """GET_BROKER_CLUSTER_ACL_INFO (52): the versions of the files, and who answers."""
        versions = {} if self._files is None else self._files.versions()
        default = (
            DataVersion() if self._files is None else versions.get(self._files.default_path, DataVersion())
        )
        by_file = {str(path): version for path, version in versions.items()}
        header = AccessVersionResponse(
            version=encode_data_version(default).decode(),
            versions_by_file=encode_body(by_file).decode(),
            broker_name=self._broker_name,
            broker_address=self._address(),
            cluster_name=self._cluster,
        )
        return command.reply(0, header)

    def handle_show(self, channel: Channel, command: Command) -> Command:
        """Everything, secrets included, as RocketMQ shows it; so it needs an administrator."""
        documents = () if self._files is None else self._files.documents.values()
        addresses: list[str] = []
        accounts: list[AccountInfo] = []
        for document in documents:
            if isinstance(document, dict):
                addresses += map(str, document.get("globalWhiteRemoteAddresses") or [])
                accounts += map(_show, document.get("accounts") or [])
        info = AccountsInfo(global_addresses=tuple(addresses), accounts=tuple(accounts))
        return command.reply(body=encode_body(info))

    def _files_or_reject(self, code: int) -> PlainFiles:
        if self._files is None:
            raise RequestRejected("access control by plain_acl.yml is off (aclEnable=false)", code=code)
        return self._files


async def _change(files: PlainFiles, path: Path, apply: Callable[[dict[str, Any]], None], code: int) -> None:
    # A connection that breaks must not leave the file changed and the rules not.
    try:
        await asyncio.shield(files.change(path, apply))
    except (ConfigError, OSError) as error:
        raise RequestRejected(str(error), code=code) from None


def _put_account(document: dict[str, Any], request: UpdateAccountRequest) -> None:
    """Makes or changes an account; what the request does not name stays."""
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


def _show(raw: dict[str, Any]) -> AccountInfo:
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
