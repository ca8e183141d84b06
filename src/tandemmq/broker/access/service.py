"""Access control of one broker: its rules, its guard, its requests, built and started together."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from tandemmq.broker.access.audit import Audit
from tandemmq.broker.access.auth_handlers import AuthHandlers
from tandemmq.broker.access.auth_table import SUPER, AuthTable
from tandemmq.broker.access.guard import Guard
from tandemmq.broker.access.options import AccessOptions
from tandemmq.broker.access.plain_files import PlainFiles, read_tools_credentials
from tandemmq.broker.access.plain_handlers import PlainHandlers
from tandemmq.broker.access.plain_rules import PlainRules
from tandemmq.broker.table_file import TableSaver, load_table
from tandemmq.protocol.bodies.access import UserInfo
from tandemmq.protocol.codes import RequestCode as Code
from tandemmq.protocol.command import Buffer
from tandemmq.protocol.signature import Credentials
from tandemmq.remoting.dispatch import Guard as RequestGuard
from tandemmq.remoting.dispatch import Handler
from tandemmq.runtime.ports import Clock, Disk
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

AUTH_FILE = "auth.json"
SAVE_SOON_MS = 100


class AccessService:
    """`check` guards every request, None while access control is off; `signer` signs what this broker asks
    others, when it has credentials.
    """

    def __init__(
        self,
        options: AccessOptions,
        *,
        broker_name: str,
        cluster: str,
        address: Callable[[], str],
        config_directory: Path,
        saver: TableSaver,
        disk: Disk,
        clock: Clock,
    ) -> None:
        self._options = options
        self._disk = disk
        credentials = _own_credentials(options, disk)
        self.signer = None if credentials is None else credentials.sign
        self.users = AuthTable()
        self.audit = Audit(clock)
        self._guard: Guard | None = None
        self._files: PlainFiles | None = None
        if options.is_on:
            self._guard = self._make_guard(cluster)
        if options.acl_enable:
            self._files = PlainFiles(options.acl_directory, disk=disk, clock=clock, on_rules=self._set_rules)
        self._auth_file = saver.add(config_directory / AUTH_FILE, self.users.encode, delay_ms=SAVE_SOON_MS)
        self._saver = saver
        self._plain = PlainHandlers(self._files, broker_name=broker_name, cluster=cluster, address=address)
        self._auth = AuthHandlers(self.users, options, saver=saver, file=self._auth_file)

    def load(self) -> None:
        """Reads users and rules.

        Raises:  ConfigError for what cannot be used: a broker does not start with rules that it must guess.
        """
        load_table(self._auth_file.path, self.users.load, disk=self._disk)
        self.users.on_change.append(lambda: self._saver.mark(self._auth_file))
        first = self._options.first_user
        if self._options.authentication_enabled and first is not None:
            self._make_first_user(first)
        if self._files is not None:
            self._files.load()

    def bind(self, read_record: Callable[[int], Buffer | None]) -> None:
        """Requests that name a place in the log are judged by what this reads there."""
        if self._guard is not None:
            self._guard.read_record = read_record

    async def watch(self) -> None:
        """Follows the files of the 4.x rules; returns at once when there are none."""
        if self._files is not None:
            await self._files.watch()

    def close(self) -> None:
        self.audit.close()

    def routes(self) -> dict[int, Handler]:
        """The handlers of the requests about access control."""
        plain, auth = self._plain, self._auth
        routes: dict[Code, Handler] = {
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
        return {int(code): handler for code, handler in routes.items()}

    @property
    def check(self) -> RequestGuard | None:
        return None if self._guard is None else self._guard.check

    def _make_guard(self, cluster: str) -> Guard:
        return Guard(
            self._options,
            cluster=cluster,
            users=self.users,
            audit=self.audit,
            inner=self._options.inner_credentials,
        )

    def _make_first_user(self, first: Credentials) -> None:
        if self.users.user(first.access_key) is None:
            self.users.create_user(UserInfo(password=first.secret_key, user_type=SUPER), first.access_key)
            log.info(events.ACCESS_USER_CREATED, extra={"user": first.access_key})

    def _set_rules(self, rules: PlainRules) -> None:
        assert self._guard is not None
        self._guard.rules = rules


def _own_credentials(options: AccessOptions, disk: Disk) -> Credentials | None:
    """innerClientAuthenticationCredentials, else what tools.yml says while aclEnable is on."""
    if options.inner_credentials is not None or not options.acl_enable:
        return options.inner_credentials
    return read_tools_credentials(options.acl_directory, disk)
