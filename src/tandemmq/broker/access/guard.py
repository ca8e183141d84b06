"""The guard: decides before the handler whether a request may be served.

A guard exists only while access control is on. It first authenticates (white addresses, access key,
signature), then checks the needed rights, resource by resource. A permission is cached by name, host and
needs, so that a producer's next message costs the signature and one lookup; every change of the rules clears
the cache. The outcome of an administrative request is recorded in the audit log once its handler has run.
Source: spec semantics 21, spec remoting 7.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from tandemmq.broker.access import needs as rights
from tandemmq.broker.access.auth_table import AuthTable, User, decide
from tandemmq.broker.access.plain_rules import NO_RULES, PlainRules
from tandemmq.broker.options import AccessOptions
from tandemmq.errors import NotPermitted, TandemError
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.signature import ACCESS_KEY, Credentials, signature_fault
from tandemmq.remoting.audit import AccessLog
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.dispatch import RequestRecorder
from tandemmq.runtime.ports import Address
from tandemmq.units import Buffer

REMEMBERED_MAX: Final = 65_536

Allows = Callable[[rights.Need], bool]


class Guard:
    """Guards the requests of one broker; `check` is called with every request. The 4.x `rules` are set from
    outside, and so is the store's `read_record`, before the first request.
    """

    def __init__(
        self,
        options: AccessOptions,
        *,
        cluster: str,
        users: AuthTable,
        audit: AccessLog,
        inner: Credentials | None,
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._users = users
        self._audit = audit
        self._inner = None if inner is None else _super_user(inner)
        self._rules = NO_RULES
        self.read_record: Callable[[int], Buffer | None] = lambda _log_offset: None
        self._is_white: dict[str, bool] = {}
        self._allowed: set[tuple[str, str, rights.Needs, int]] = set()
        self._changes: list[tuple[str, str]] = []
        """Name and resource of each administrative right that the request being checked needs."""
        self._clients: dict[Channel, str] = {}
        """By connection: the name under which its last heartbeat was sent."""
        users.on_change.append(self.forget)

    @property
    def rules(self) -> PlainRules:
        return self._rules

    @rules.setter
    def rules(self, rules: PlainRules) -> None:
        self._rules = rules
        self.forget()

    def forget(self) -> None:
        """Clears the cache of earlier permissions."""
        self._allowed.clear()
        self._is_white.clear()

    def check(self, channel: Channel, command: Command) -> RequestRecorder | None:
        """Checks a request. Returns if it may be served: the recorder of its outcome if it is administrative.

        Raises:  NotPermitted with the reason for the peer; RemoteProtocolError for a malformed request.
        """
        host = channel.peer[0]
        is_known = True
        try:
            if self._options.acl_enable:
                self._check_plain(channel, command, host)
            if self._options.authentication_enabled:
                is_known = self._check_user(channel, command, host)
            if is_known:
                channel.make_known()
            if command.code == RequestCode.HEART_BEAT:
                self._remember_client(channel, _access_key_of(command))
        except Exception as error:
            self._changes = []
            # A malformed request's resource is unknown; it was still denied.
            if not isinstance(error, _Denied):
                self._audit.denied(_access_key_of(command), channel.peer, command.code, "", str(error))
                raise
            self._audit.denied(
                _access_key_of(command), channel.peer, command.code, error.resource, error.remark
            )
            raise NotPermitted(error.remark) from None
        if not self._changes:
            return None
        changes, self._changes = self._changes, []
        return partial(self._record, channel.peer, command.code, changes)

    def _record(
        self, peer: Address, code: int, changes: list[tuple[str, str]], outcome: int, reason: str
    ) -> None:
        for name, resource in changes:
            if outcome == ResponseCode.SUCCESS:
                self._audit.allowed(name, peer, code, resource)
            else:
                self._audit.refused(name, peer, code, resource, reason)

    def may(self, channel: Channel, need: rights.Need) -> bool:
        """Returns True if the client that sends heartbeats over this connection has this right now."""
        host, name = channel.peer[0], self._clients.get(channel)
        if name is None or (self._inner is not None and name == self._inner.username):
            return name is not None
        if self._options.acl_enable and not self._rules.is_white(host):
            account = self._rules.accounts.get(name)
            if account is None or not (account.matches_address(host) or account.allows(need)):
                return False
        options = self._options
        if not (options.authentication_enabled and options.authorization_enabled):
            return True
        if RequestCode.HEART_BEAT in options.authentication_white_codes:
            return True  # heartbeats are unauthenticated, so the name is unknown
        user = self._users.user(name)
        if user is None or not user.is_enabled:
            return False
        return user.is_super or decide(self._users.policies(name), need, host)

    def _remember_client(self, channel: Channel, name: str) -> None:
        if channel not in self._clients:
            channel.on_close.append(self._forget_client)
        self._clients[channel] = name

    def _forget_client(self, channel: Channel) -> None:
        self._clients.pop(channel, None)

    # Rules of plain_acl.yml.

    def _check_plain(self, channel: Channel, command: Command, host: str) -> None:
        rules = self._rules
        is_white = self._is_white.get(host)
        if is_white is None:
            is_white = self._check_white(host)
        if is_white:
            return
        name = command.fields.get(ACCESS_KEY)
        if not name:
            raise _Denied(f"the request is not signed: {ACCESS_KEY} is missing")
        if self._inner is not None and name == self._inner.username:
            self._check_signature(command, name, self._inner.password.encode())
            return
        account = rules.accounts.get(name)
        if account is None:
            raise _Denied(f"there is no account with access key {name}")
        if account.matches_address(host):
            return
        self._check_signature(command, name, account.secret_key)
        self._check_needs(command, host, name, account.allows, 4)

    def _check_white(self, host: str) -> bool:
        if len(self._is_white) >= REMEMBERED_MAX:
            self._is_white.clear()
        is_white = self._is_white[host] = self._rules.is_white(host)
        return is_white

    # Users and policies.

    def _check_user(self, channel: Channel, command: Command, host: str) -> bool:
        """Authenticates a request. Returns False if its code needs no authentication."""
        if command.code in self._options.authentication_white_codes:
            return False
        name = command.fields.get(ACCESS_KEY)
        if not name:
            raise _Denied(f"the request is not signed: {ACCESS_KEY} is missing")
        inner = self._inner
        user = inner if inner is not None and inner.username == name else self._users.user(name)
        if user is None:
            raise _Denied(f"there is no user {name}")
        if not user.is_enabled:
            raise _Denied(f"the user {name} is disabled")
        self._check_signature(command, name, user.password.encode())
        if not self._options.authorization_enabled or command.code in self._options.authorization_white_codes:
            return True
        policies = self._users.policies(name)
        is_super = user.is_super
        self._check_needs(command, host, name, lambda need: is_super or decide(policies, need, host), 5)
        return True

    def _check_signature(self, command: Command, name: str, secret_key: bytes) -> None:
        fault = signature_fault(command, secret_key, admits_weak=self._options.weak_signatures)
        if fault is not None:
            raise _Denied(f"access key {name}: {fault}")

    def _stored_needs(self, command: Command) -> rights.Needs:
        """Returns the rights needed for the stored message; none if no record is stored there, which the
        handler reports.
        """
        log_offset = rights.log_offset_of(command)
        raw = None if log_offset is None or log_offset < 0 else self.read_record(log_offset)
        return (
            ()
            if log_offset is None or raw is None
            else rights.needs_of_stored(command, raw, log_offset, self._cluster)
        )

    def _check_needs(self, command: Command, host: str, name: str, allows: Allows, model: int) -> None:
        needs = rights.needs_of(command, self._cluster) + self._stored_needs(command)
        if model == 4 and command.code == RequestCode.CONSUMER_SEND_MSG_BACK:
            needs += _origin_topic(command)
        known = (name, host, needs, model)
        if known in self._allowed:
            return
        needs = tuple(rights.of_broker(need, self._cluster) for need in needs)
        for need in needs:
            if not allows(need):
                resource = f"{need.kind}:{need.name}"
                raise _Denied(f"{name} may not {rights.render_actions(need.actions)} {resource}", resource)
        administrative = [need for need in needs if rights.is_administrative(need.actions)]
        self._changes += [(name, f"{need.kind}:{need.name}") for need in administrative]
        if not administrative:
            if len(self._allowed) >= REMEMBERED_MAX:
                self._allowed.clear()
            self._allowed.add(known)


class _Denied(TandemError):
    """A denial: its reason and its resource."""

    def __init__(self, remark: str, resource: str = "") -> None:
        super().__init__(remark)
        self.remark = remark
        self.resource = resource


def _super_user(credentials: Credentials) -> User:
    return User(username=credentials.access_key, password=credentials.secret_key, is_super=True)


def _origin_topic(command: Command) -> rights.Needs:
    """Returns the right of 4.x for sending a message back: writing to the topic it came from."""
    topic = command.fields.get("originTopic")
    return (rights.Need(rights.TOPIC, topic, rights.PUB),) if topic else ()


def _access_key_of(command: Command) -> str:
    try:
        return command.fields.get(ACCESS_KEY, "")
    except TandemError:
        return ""
