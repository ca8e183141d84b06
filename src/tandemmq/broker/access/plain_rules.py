"""The rules of plain_acl.yml: accounts with permissions by topic and group, and patterns of the addresses
that they may come from (spec semantics 21.2); pure.

Groups stand in `group_permissions` by their own name, not by that of their retry topic.
Patterns: blank: nobody. `*` in every place: everybody. `10.0.0.{1,7}`: these. `10.0.0.1,10.0.0.9`: these.
`10.0.0.*`, `10.0.1-9.*`: ranges from the second place on. Anything else: one address. IPv6 likewise with
`:` and hexadecimal numbers; a `*` there ends the pattern.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final

from tandemmq.broker.access.actions import PUB, SUB, is_administrative
from tandemmq.broker.access.needs import CLUSTER, GROUP, TOPIC, Need
from tandemmq.errors import ConfigError
from tandemmq.protocol.topic_names import RETRY_PREFIX, TRACE_TOPIC

Matcher = Callable[[str], bool]

_EVERYBODY: Final = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")
_CHOICE: Final = re.compile(r"(.+[.:])\{([^{}]+)\}")


def make_matcher(pattern: str) -> Matcher:
    """Tells whether an address is one of the pattern.

    Raises:  ConfigError quoting a pattern that is none.
    """
    text = pattern.strip()
    if not text:
        return lambda _: False
    if text in _EVERYBODY:
        return lambda _: True
    choice = _CHOICE.fullmatch(text)
    if choice is not None:
        return _one_of([choice[1] + last.strip() for last in choice[2].split(",")], pattern)
    if "," in text:
        return _one_of(text.split(","), pattern)
    if "*" in text or "-" in text:
        return _in_ranges(text, pattern)
    return _one_of([text], pattern)


def _one_of(texts: list[str], pattern: str) -> Matcher:
    try:
        wanted = frozenset(ip_address(text.strip()) for text in texts)
    except ValueError:
        raise _fault(pattern) from None
    return lambda address: _parse(address) in wanted


def _in_ranges(text: str, pattern: str) -> Matcher:
    """Every place a number or a range; after the first range only `*` may follow."""
    is_v6 = ":" in text
    count, largest, base = (8, 0xFFFF, 16) if is_v6 else (4, 255, 10)
    places = _places_v6(text) if is_v6 else text.split(".")
    if len(places) > count or not places or (not is_v6 and len(places) != count):
        raise _fault(pattern)
    try:
        ranges = [_range(place, largest, base) for place in places]
    except ValueError:
        raise _fault(pattern) from None
    first = next((at for at, (low, high) in enumerate(ranges) if low != high), len(ranges))
    if first == 0 or any(place != "*" for place in places[first + 1 :]):
        raise _fault(pattern)

    def matches(address: str) -> bool:
        parsed = _parse(address)
        if parsed is None or (parsed.version == 6) != is_v6:
            return False
        numbers = _numbers(parsed)
        return all(low <= number <= high for number, (low, high) in zip(numbers, ranges, strict=False))

    return matches


def _places_v6(text: str) -> list[str]:
    """The places of an IPv6 pattern; `::` stands for the zeros that are missing."""
    if "::" not in text:
        return text.split(":")
    head, _, tail = text.partition("::")
    before = head.split(":") if head else []
    after = tail.split(":") if tail else []
    return [*before, *["0"] * (8 - len(before) - len(after)), *after]


def _range(place: str, largest: int, base: int) -> tuple[int, int]:
    if place == "*":
        return 0, largest
    low, dash, high = place.partition("-")
    numbers = int(low, base), int(high if dash else low, base)
    if not 0 <= numbers[0] <= numbers[1] <= largest:
        raise ValueError
    return numbers


def _numbers(address: IPv4Address | IPv6Address) -> list[int]:
    data = address.packed
    if address.version == 4:
        return list(data)
    return [int.from_bytes(data[at : at + 2], "big") for at in range(0, 16, 2)]


def _parse(address: str) -> IPv4Address | IPv6Address | None:
    """None for what is not an address; an IPv4 address in IPv6 clothes is taken as what it is."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return mapped or parsed


def _fault(pattern: str) -> ConfigError:
    return ConfigError(
        f"address pattern {pattern!r}: must be *, an address, addresses joined by commas, one with"
        " {a,b} as its last place, or one with ranges such as 10.0.1-9.* from the second place on"
    )


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
