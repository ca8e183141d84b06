"""The rules of plain_acl.yml: accounts with permissions by topic and group (spec semantics 21.2); pure.

Groups stand in `group_permissions` by their own name, not by that of their retry topic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tandemmq.broker.access.actions import PUB, SUB, is_administrative
from tandemmq.broker.access.addresses import Matcher, make_matcher
from tandemmq.broker.access.needs import CLUSTER, GROUP, TOPIC, Need
from tandemmq.errors import ConfigError
from tandemmq.protocol.topic_names import RETRY_PREFIX, TRACE_TOPIC

KEY_CHARS_MIN: Final = 7
ACCOUNTS_MAX: Final = 100_000

GLOBAL_KEY: Final = "globalWhiteRemoteAddresses"
ACCOUNTS_KEY: Final = "accounts"
VERSION_KEY: Final = "dataVersion"
_ACCOUNT_KEYS: Final = (
    "accessKey",
    "secretKey",
    "whiteRemoteAddress",
    "admin",
    "defaultTopicPerm",
    "defaultGroupPerm",
    "topicPerms",
    "groupPerms",
)

_PERMISSIONS: Final = {"PUB": PUB, "SUB": SUB, "PUB|SUB": PUB | SUB, "SUB|PUB": PUB | SUB}


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One account; permissions are PUB and SUB bits, 0 is DENY."""

    access_key: str
    secret_key: bytes = field(repr=False)
    is_admin: bool = False
    matches_address: Matcher = lambda _: False
    default_topic: int = 0
    default_group: int = 0
    topics: Mapping[str, int]
    groups: Mapping[str, int]

    def allows(self, need: Need) -> bool:
        """Whether the account may do this. An administrator without permissions by name may do anything."""
        if not need.actions or (self.is_admin and not self.topics and not self.groups):
            return True
        if need.kind == CLUSTER:
            return self.is_admin
        wanted = need.actions & (PUB | SUB)
        if not wanted:
            return self.is_admin or not is_administrative(need.actions)
        if need.kind == TOPIC:
            if need.name == TRACE_TOPIC and wanted & PUB:
                return True
            return bool(self.topics.get(need.name, self.default_topic) & wanted)
        if need.kind == GROUP:
            return bool(self.groups.get(need.name, self.default_group) & wanted)
        return self.is_admin


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRules:
    """All accounts by access key, and addresses from which everything is allowed."""

    accounts: Mapping[str, Account]
    global_matchers: Sequence[Matcher]

    def is_white(self, host: str) -> bool:
        return any(matches(host) for matches in self.global_matchers)


NO_RULES: Final = PlainRules(accounts={}, global_matchers=())


def build_rules(documents: Mapping[str, Any]) -> PlainRules:
    """The rules of all files, by file name in their order; of two accounts with one key the first counts.

    Raises:  ConfigError naming file and place of what cannot be used.
    """
    accounts: dict[str, Account] = {}
    matchers: list[Matcher] = []
    for name, document in documents.items():
        if document is None:
            continue
        if not isinstance(document, dict):
            raise ConfigError(f"{name}: must be a map with {GLOBAL_KEY} and {ACCOUNTS_KEY}")
        try:
            matchers += [make_matcher(str(text)) for text in _list(document, GLOBAL_KEY)]
            for raw in _list(document, ACCOUNTS_KEY):
                account = build_account(raw)
                accounts.setdefault(account.access_key, account)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None
    if len(accounts) > ACCOUNTS_MAX:
        raise ConfigError(f"there are {len(accounts)} accounts; at most {ACCOUNTS_MAX} are kept")
    return PlainRules(accounts=accounts, global_matchers=tuple(matchers))


def build_account(raw: Any) -> Account:
    """One entry of `accounts`.

    Raises:  ConfigError naming the account and the key that is wrong.
    """
    if not isinstance(raw, dict):
        raise ConfigError(f"{ACCOUNTS_KEY}: each must be a map, not {type(raw).__name__}")
    access_key = _key_text(raw, "accessKey", "an account")
    where = f"account {access_key}"
    unknown = [str(key) for key in raw if key not in _ACCOUNT_KEYS]
    if unknown:
        # What is not understood may have been meant to forbid something.
        raise ConfigError(f"{where}: {unknown[0]} is none of {', '.join(_ACCOUNT_KEYS)}")
    try:
        return Account(
            access_key=access_key,
            secret_key=_key_text(raw, "secretKey", where).encode(),
            is_admin=str(raw.get("admin") or "").strip().lower() == "true",
            matches_address=make_matcher(str(raw.get("whiteRemoteAddress") or "")),
            default_topic=parse_permission(raw.get("defaultTopicPerm")),
            default_group=parse_permission(raw.get("defaultGroupPerm")),
            topics=_permissions(raw, "topicPerms"),
            groups={_group_name(name): bits for name, bits in _permissions(raw, "groupPerms").items()},
        )
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def parse_permission(text: object) -> int:
    """PUB, SUB or both as bits; whatever else stands there is DENY, as in RocketMQ."""
    return _PERMISSIONS.get(str(text or "").replace(" ", "").upper(), 0)


def _permissions(raw: Mapping[str, Any], key: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for entry in _list(raw, key):
        name, equals, permission = str(entry).partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"{key}: {entry!r} must have the form name=PUB|SUB")
        found[name.strip()] = parse_permission(permission)
    return found


def _group_name(name: str) -> str:
    return name.removeprefix(RETRY_PREFIX)


def _key_text(raw: Mapping[str, Any], key: str, where: str) -> str:
    text = str(raw.get(key) or "")
    if len(text) < KEY_CHARS_MIN:
        raise ConfigError(f"{where}: {key} must have at least {KEY_CHARS_MIN} characters")
    return text


def _list(raw: Mapping[str, Any], key: str) -> list[Any]:
    found = raw.get(key) or []
    if not isinstance(found, list):
        raise ConfigError(f"{key}: must be a list")
    return found
