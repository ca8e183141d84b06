"""Users and their policies, and the file that keeps them: config/auth.json (ours; RocketMQ has RocksDB)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from tandemmq.broker.access.policy import (
    POLICY_TYPES,
    SUBJECT_PREFIX,
    Entry,
    parse_entry,
    parse_policy_type,
    parse_resource,
    parse_subject,
    render_resource,
)
from tandemmq.errors import BadRequest, Busy, ConfigError, RequestRejected
from tandemmq.protocol.bodies.access import AclInfo, EntryInfo, PolicyInfo, UserInfo
from tandemmq.protocol.bodies.codec import Body, decode_body, encode_body
from tandemmq.protocol.codes import ResponseCode

SUPER: Final = "Super"
NORMAL: Final = "Normal"
ENABLE: Final = "enable"
DISABLE: Final = "disable"


class User(Body, frozen=True, kw_only=True):
    """One user. The password is the secret key of the signature, so it is kept as it is."""

    is_enabled: bool = True
    is_super: bool = False
    password: str
    username: str

    def __repr__(self) -> str:
        return f"User({self.username!r})"


class _StoredUsers(Body, frozen=True, kw_only=True):
    policies: dict[str, dict[str, tuple[EntryInfo, ...]]] = msgspec.field(default_factory=dict)
    users: tuple[User, ...] = ()


class AuthTable:
    """Users by name, policies by user name and type; `on_change` is called after each change.

    At a bound: a new user or entry is refused with Busy.
    """

    def __init__(self, *, user_count_max: int = 100_000, entry_count_max: int = 10_000) -> None:
        self.on_change: list[Callable[[], None]] = []
        self._user_count_max = user_count_max
        self._entry_count_max = entry_count_max
        self._users: dict[str, User] = {}
        self._stored: dict[str, dict[str, tuple[EntryInfo, ...]]] = {}
        self._compiled: dict[str, tuple[tuple[Entry, ...], ...]] = {}

    def __len__(self) -> int:
        return len(self._users)

    # Asking

    def user(self, name: str) -> User | None:
        return self._users.get(name)

    def policies(self, name: str) -> Sequence[Sequence[Entry]]:
        """The entries of a user: CUSTOM, then DEFAULT."""
        return self._compiled.get(name, ())

    def users(self, name_part: str | None) -> list[UserInfo]:
        """Those whose name holds the part, as tools see them."""
        names = sorted(name for name in self._users if not name_part or name_part in name)
        return [render_user(self._users[name]) for name in names]

    def acl(self, name: str) -> AclInfo | None:
        """All policies of a user; None when there are none."""
        stored = self._stored.get(name)
        if not stored:
            return None
        policies = tuple(
            PolicyInfo(policy_type=kind, entries=stored[kind]) for kind in POLICY_TYPES if kind in stored
        )
        return AclInfo(subject=SUBJECT_PREFIX + name, policies=policies)

    def acls(self, subject_part: str | None, resource_part: str | None) -> list[AclInfo]:
        """The policies whose subject and resource hold these parts."""
        found = []
        for name in sorted(self._stored):
            acl = self.acl(name)
            if acl is None or (subject_part and subject_part not in SUBJECT_PREFIX + name):
                continue
            policies = [_narrow(policy, resource_part) for policy in acl.policies]
            kept = tuple(policy for policy in policies if policy.entries)
            if kept:
                found.append(AclInfo(subject=acl.subject, policies=kept))
        return found

    # Changing

    def create_user(self, info: UserInfo, name: str) -> None:
        """Raises RequestRejected for a name that is taken or a user without password."""
        if name in self._users:
            raise RequestRejected(f"the user {name} exists already", code=ResponseCode.INVALID_PARAMETER)
        if not name or not info.password:
            raise BadRequest("a user needs a name and a password")
        if len(self._users) >= self._user_count_max:
            raise Busy(f"[OVERLOAD]the broker keeps {self._user_count_max} users")
        self._put(_changed(User(username=name, password=info.password), info))

    def update_user(self, info: UserInfo, name: str) -> None:
        """Changes what the info names. Raises RequestRejected USER_NOT_EXIST."""
        self._put(_changed(self._user_or_reject(name), info))

    def delete_user(self, name: str) -> None:
        """The user and its policies; unknown users are ignored."""
        self._users.pop(name, None)
        self._stored.pop(name, None)
        self._compiled.pop(name, None)
        self._after_change()

    def create_acl(self, acl: AclInfo, subject: str) -> None:
        """Adds entries; one for a resource that has one of the same type takes its place."""
        name = _name_of(subject)
        self._user_or_reject(name)
        stored = dict(self._stored.get(name, {}))
        for policy in acl.policies:
            kind, entries = _checked(policy)
            kept = {entry.resource: entry for entry in stored.get(kind, ())}
            kept.update((entry.resource, entry) for entry in entries)
            stored[kind] = tuple(kept.values())
        if sum(map(len, stored.values())) > self._entry_count_max:
            raise Busy(f"[OVERLOAD]a user has at most {self._entry_count_max} policy entries")
        self._put_policies(name, stored)

    def update_acl(self, acl: AclInfo, subject: str) -> None:
        """Like `create_acl`, but for a subject that has policies. Raises POLICY_NOT_EXIST."""
        name = _name_of(subject)
        if name not in self._stored:
            raise RequestRejected(f"{subject} has no policies", code=ResponseCode.POLICY_NOT_EXIST)
        self.create_acl(acl, subject)

    def delete_acl(self, subject: str, policy_type: str | None, resource: str | None) -> None:
        """All policies of a subject, those of one type, or the entries of one resource."""
        name = _name_of(subject)
        stored = self._stored.get(name)
        if not stored:
            raise RequestRejected(f"{subject} has no policies", code=ResponseCode.POLICY_NOT_EXIST)
        try:
            kind = parse_policy_type(policy_type) if policy_type else None
            wanted = render_resource(parse_resource(resource)) if resource else None
        except ConfigError as error:
            raise BadRequest(str(error)) from None
        kept = {
            other: tuple(
                entry
                for entry in entries
                if (kind is not None and other != kind) or (wanted is not None and entry.resource != wanted)
            )
            for other, entries in stored.items()
        }
        self._put_policies(name, {other: entries for other, entries in kept.items() if entries})

    # The file

    def encode(self) -> bytes:
        """The content of auth.json."""
        return encode_body(_StoredUsers(users=tuple(self._users.values()), policies=self._stored))

    def load(self, data: bytes) -> None:
        """Take over the content of auth.json.

        Raises:  RemoteProtocolError, ConfigError for what cannot be read: rules are never guessed.
        """
        stored = decode_body(data, _StoredUsers)
        compiled = {name: _compile(policies) for name, policies in stored.policies.items()}
        self._users = {user.username: user for user in stored.users}
        self._stored, self._compiled = dict(stored.policies), compiled

    def _put(self, user: User) -> None:
        self._users[user.username] = user
        self._after_change()

    def _put_policies(self, name: str, stored: dict[str, tuple[EntryInfo, ...]]) -> None:
        compiled = _compile(stored)
        if stored:
            self._stored[name], self._compiled[name] = stored, compiled
        else:
            self._stored.pop(name, None)
            self._compiled.pop(name, None)
        self._after_change()

    def _user_or_reject(self, name: str) -> User:
        user = self._users.get(name)
        if user is None:
            raise RequestRejected(f"there is no user {name}", code=ResponseCode.USER_NOT_EXIST)
        return user

    def _after_change(self) -> None:
        for callback in self.on_change:
            callback()


def render_user(user: User) -> UserInfo:
    """What tools see of a user. The password is part of it, as in RocketMQ, whose copyUser needs it: it is
    for super users and the user himself.
    """
    return UserInfo(
        username=user.username,
        password=user.password,
        user_type=SUPER if user.is_super else NORMAL,
        status=ENABLE if user.is_enabled else DISABLE,
    )


def _changed(user: User, info: UserInfo) -> User:
    is_super, is_enabled = user.is_super, user.is_enabled
    if info.user_type:
        is_super = _one_of(info.user_type, "user type", SUPER, NORMAL) == SUPER
    if info.status:
        is_enabled = _one_of(info.status, "user status", ENABLE, DISABLE) == ENABLE
    password = info.password or user.password
    return User(username=user.username, password=password, is_super=is_super, is_enabled=is_enabled)


def _one_of(text: str, what: str, *allowed: str) -> str:
    for candidate in allowed:
        if text.strip().lower() == candidate.lower():
            return candidate
    raise BadRequest(f"{what} {text!r}: must be one of {', '.join(allowed)}")


def _checked(policy: PolicyInfo) -> tuple[str, tuple[EntryInfo, ...]]:
    """The policy's type and its entries, resources in one spelling. Raises BadRequest."""
    try:
        kind = parse_policy_type(policy.policy_type)
        parsed = [parse_entry(info) for info in policy.entries]
    except ConfigError as error:
        raise BadRequest(str(error)) from None
    renamed = zip(policy.entries, parsed, strict=True)
    return kind, tuple(
        msgspec.structs.replace(info, resource=render_resource(entry.resource)) for info, entry in renamed
    )


def _compile(stored: dict[str, tuple[EntryInfo, ...]]) -> tuple[tuple[Entry, ...], ...]:
    return tuple(tuple(parse_entry(info) for info in stored.get(kind, ())) for kind in POLICY_TYPES)


def _narrow(policy: PolicyInfo, resource_part: str | None) -> PolicyInfo:
    entries = tuple(entry for entry in policy.entries if not resource_part or resource_part in entry.resource)
    return PolicyInfo(policy_type=policy.policy_type, entries=entries)


def _name_of(subject: str) -> str:
    try:
        return parse_subject(subject)
    except ConfigError as error:
        raise BadRequest(str(error)) from None
