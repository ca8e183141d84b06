"""Access rules of 5.x: policies, users, and the file that stores both.

The policies come first: the rights of a subject on resources, by source address; they are pure. `AuthTable`
holds users and their policies, which are saved in config/auth.json (TandemMQ's own file; RocketMQ stores them
in RocksDB).
Source: spec semantics 21.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final

import msgspec

from tandemmq.broker.access.needs import Need, parse_action
from tandemmq.broker.table_file import StoredTable
from tandemmq.errors import BadRequest, Busy, ConfigError, RequestRejected
from tandemmq.protocol.bodies.codec import Body, decode_body
from tandemmq.protocol.bodies.tables import AclInfo, EntryInfo, PolicyInfo, UserInfo
from tandemmq.protocol.codes import ResponseCode

# Policies.
#
# Of the entries that match a need, those of the most specific resource decide: a named type before Any, a
# literal name before a prefix before `*`, a longer prefix before a shorter one. Among equals a single Deny
# denies, which is stricter than RocketMQ (spec decisions 5). Entries of type CUSTOM decide before those of
# type DEFAULT; if none matches, the need is denied.

ANY: Final = "Any"
KINDS: Final = (ANY, "Cluster", "Namespace", "Topic", "Group")
CUSTOM: Final = "Custom"
DEFAULT: Final = "Default"
POLICY_TYPES: Final = (CUSTOM, DEFAULT)
ALLOW: Final = "Allow"
DENY: Final = "Deny"
SUBJECT_PREFIX: Final = "User:"

_LITERAL: Final = 1 << 20
"""The rank of a literal name, above that of any prefix: names are shorter."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource: `name` is a literal, or a prefix if `is_prefix`; the prefix "" matches every name."""

    kind: str
    name: str
    is_prefix: bool

    def rank(self, need: Need) -> tuple[bool, int] | None:
        """Returns how specific the resource is for the need (higher is more specific); None if it does not
        match.
        """
        if self.kind not in (ANY, need.kind):
            return None
        if not self.is_prefix:
            return (self.kind != ANY, _LITERAL) if self.name == need.name else None
        if not need.name.startswith(self.name):
            return None
        return (self.kind != ANY, len(self.name))


@dataclass(frozen=True, slots=True)
class PolicyLine:
    """One line of a policy: resource, action bits, networks (empty: any address), allowed or denied."""

    resource: Resource
    actions: int
    networks: tuple[IPv4Network | IPv6Network, ...]
    is_allowed: bool

    def fits(self, need: Need, host: str) -> bool:
        """Returns True if the line covers one of the actions and the caller's address."""
        if not self.actions & need.actions:
            return False
        if not self.networks:
            return True
        try:
            address = ip_address(host)
        except ValueError:
            return False
        return any(address in network for network in self.networks)


def decide(policies: Sequence[Sequence[PolicyLine]], need: Need, host: str) -> bool:
    """Returns True if the need is allowed; `policies` are the CUSTOM entries, then the DEFAULT ones."""
    if not need.actions:
        return True
    for entries in policies:
        best: tuple[bool, int] | None = None
        is_allowed = False
        for entry in entries:
            rank = entry.resource.rank(need)
            if rank is None or not entry.fits(need, host) or (best is not None and rank < best):
                continue
            is_allowed = entry.is_allowed and (is_allowed or rank != best)
            best = rank
        if best is not None:
            return is_allowed
    return False


def parse_resource(text: str) -> Resource:
    """Parses `Topic:orders`, `Group:app-*`, `Cluster:*` or `*`.

    Raises:  ConfigError saying what is allowed.
    """
    if text.strip() == "*":
        return Resource(ANY, "", True)
    kind_text, colon, name = text.strip().partition(":")
    kind = next((kind for kind in KINDS if kind.lower() == kind_text.lower()), None)
    if kind is None or not colon or not name or "*" in name[:-1]:
        raise ConfigError(
            f"resource {text!r}: must be Type:name, Type:prefix* or Type:*, with a type of {', '.join(KINDS)}"
        )
    is_prefix = name.endswith("*")
    return Resource(kind, name.removesuffix("*"), is_prefix)


def render_resource(resource: Resource) -> str:
    """Returns the resource in the form that tools use: `Type:name`, `Type:start*` or `Type:*`."""
    return f"{resource.kind}:{resource.name}{'*' if resource.is_prefix else ''}"


def parse_entry(info: EntryInfo) -> PolicyLine:
    """Parses a tool's entry into a policy line.

    Raises:  ConfigError naming what is wrong.
    """
    if not info.actions:
        raise ConfigError(f"resource {info.resource}: no action is given")
    actions = 0
    for name in info.actions:
        actions |= parse_action(name)
    decision = info.decision.strip().lower()
    if decision not in ("allow", "deny"):
        raise ConfigError(f"decision {info.decision!r}: must be Allow or Deny")
    networks = tuple(_network(text) for text in info.source_ips if text.strip())
    return PolicyLine(parse_resource(info.resource), actions, networks, decision == "allow")


def parse_policy_type(text: str | None) -> str:
    """Returns the policy type; CUSTOM if the text is missing.

    Raises:  ConfigError naming what is allowed.
    """
    found = {name.lower(): name for name in POLICY_TYPES}.get((text or CUSTOM).strip().lower())
    if found is None:
        raise ConfigError(f"policy type {text!r}: must be Custom or Default")
    return found


def compile_policies(policies: Iterable[PolicyInfo]) -> tuple[tuple[PolicyLine, ...], ...]:
    """Returns the lines of each policy type, in the order in which they decide. Raises ConfigError."""
    lines: dict[str, list[PolicyLine]] = {kind: [] for kind in POLICY_TYPES}
    for policy in policies:
        lines[parse_policy_type(policy.policy_type)] += map(parse_entry, policy.entries)
    return tuple(map(tuple, lines.values()))


def parse_subject(text: str) -> str:
    """Returns the user name of `User:name`.

    Raises:  ConfigError for any other subject.
    """
    head, name = text[: len(SUBJECT_PREFIX)], text[len(SUBJECT_PREFIX) :]
    if head.lower() != SUBJECT_PREFIX.lower() or not name:
        raise ConfigError(f"subject {text!r}: must be User:name")
    return name


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text.strip(), strict=False)
    except ValueError:
        raise ConfigError(f"source address {text!r}: must be an address or a network a.b.c.d/n") from None


SUPER: Final = "Super"
NORMAL: Final = "Normal"
ENABLE: Final = "enable"
DISABLE: Final = "disable"


class User(Body, frozen=True, kw_only=True):
    """A user. The password is the secret key of the signature, so it is stored unhashed."""

    is_enabled: bool = True
    is_super: bool = False
    password: str
    username: str

    def __repr__(self) -> str:
        return f"User({self.username!r})"


class _StoredUsers(Body, frozen=True, kw_only=True):
    policies: dict[str, dict[str, tuple[EntryInfo, ...]]] = msgspec.field(default_factory=dict)
    users: tuple[User, ...] = ()


class AuthTable(StoredTable):
    """Users by name, policies by user name and type; `on_change` is called after each change.

    At a bound: a new user or entry is rejected with Busy.
    """

    def __init__(self, *, user_count_max: int = 100_000, entry_count_max: int = 10_000) -> None:
        super().__init__()
        self._user_count_max = user_count_max
        self._entry_count_max = entry_count_max
        self._users: dict[str, User] = {}
        self._stored: dict[str, dict[str, tuple[EntryInfo, ...]]] = {}
        self._compiled: dict[str, tuple[tuple[PolicyLine, ...], ...]] = {}

    def __len__(self) -> int:
        return len(self._users)

    # Queries.

    def user(self, name: str) -> User | None:
        return self._users.get(name)

    def policies(self, name: str) -> Sequence[Sequence[PolicyLine]]:
        """Returns the entries of a user: CUSTOM, then DEFAULT."""
        return self._compiled.get(name, ())

    def users(self, name_part: str | None) -> list[UserInfo]:
        """Returns the users whose name contains the part, in the form for tools."""
        names = sorted(name for name in self._users if not name_part or name_part in name)
        return [render_user(self._users[name]) for name in names]

    def acl(self, name: str) -> AclInfo | None:
        """Returns all policies of a user, or None if there are none."""
        stored = self._stored.get(name)
        if not stored:
            return None
        policies = tuple(
            PolicyInfo(policy_type=kind, entries=stored[kind]) for kind in POLICY_TYPES if kind in stored
        )
        return AclInfo(subject=SUBJECT_PREFIX + name, policies=policies)

    def acls(self, subject_part: str | None, resource_part: str | None) -> list[AclInfo]:
        """Returns the policies whose subject and resource contain these parts."""
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

    # Changes.

    def create_user(self, info: UserInfo, name: str) -> None:
        """Creates a user.

        Raises:  RequestRejected for an existing name or a user without name or password; Busy at the bound.
        """
        if name in self._users:
            raise RequestRejected(f"the user {name} exists already", code=ResponseCode.INVALID_PARAMETER)
        if not name or not info.password:
            raise BadRequest("a user needs a name and a password")
        if len(self._users) >= self._user_count_max:
            raise Busy(f"[OVERLOAD]the broker keeps {self._user_count_max} users")
        self._put(_changed(User(username=name, password=info.password), info))

    def update_user(self, info: UserInfo, name: str) -> None:
        """Changes the fields that the info names. Raises RequestRejected USER_NOT_EXIST."""
        self._put(_changed(self._user_or_reject(name), info))

    def delete_user(self, name: str) -> None:
        """Deletes the user and its policies; unknown users are ignored."""
        self._users.pop(name, None)
        self._stored.pop(name, None)
        self._compiled.pop(name, None)
        self._after_change()

    def create_acl(self, acl: AclInfo, subject: str) -> None:
        """Adds entries; an entry replaces one of the same type and resource.

        Raises:  RequestRejected for an unknown user or an invalid entry; Busy at the bound.
        """
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
        """Adds entries as `create_acl` does, to a subject that has policies. Raises POLICY_NOT_EXIST
        otherwise.
        """
        name = _name_of(subject)
        if name not in self._stored:
            raise RequestRejected(f"{subject} has no policies", code=ResponseCode.POLICY_NOT_EXIST)
        self.create_acl(acl, subject)

    def delete_acl(self, subject: str, policy_type: str | None, resource: str | None) -> None:
        """Deletes all policies of a subject, those of one type, or the entries of one resource."""
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

    # File.

    def snapshot(self) -> _StoredUsers:
        return _StoredUsers(users=tuple(self._users.values()), policies=self._stored)

    def load(self, data: bytes) -> None:
        """Loads the content of auth.json.

        Raises:  RemoteProtocolError, ConfigError for invalid content: rules are never guessed.
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


def render_user(user: User) -> UserInfo:
    """Returns a user in the form for tools. It includes the password, as in RocketMQ, whose copyUser needs
    it: only super users and the user itself may see it.
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
    """Returns the policy's type and its entries, resources in canonical form. Raises BadRequest."""
    try:
        kind = parse_policy_type(policy.policy_type)
        parsed = [parse_entry(info) for info in policy.entries]
    except ConfigError as error:
        raise BadRequest(str(error)) from None
    renamed = zip(policy.entries, parsed, strict=True)
    return kind, tuple(
        msgspec.structs.replace(info, resource=render_resource(entry.resource)) for info, entry in renamed
    )


def _compile(stored: dict[str, tuple[EntryInfo, ...]]) -> tuple[tuple[PolicyLine, ...], ...]:
    return tuple(tuple(parse_entry(info) for info in stored.get(kind, ())) for kind in POLICY_TYPES)


def _narrow(policy: PolicyInfo, resource_part: str | None) -> PolicyInfo:
    entries = tuple(entry for entry in policy.entries if not resource_part or resource_part in entry.resource)
    return PolicyInfo(policy_type=policy.policy_type, entries=entries)


def _name_of(subject: str) -> str:
    try:
        return parse_subject(subject)
    except ConfigError as error:
        raise BadRequest(str(error)) from None
