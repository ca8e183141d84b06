"""The rules of 4.x (spec semantics 21.2): address patterns, accounts, and the files that contain them.

Patterns and accounts are pure. `PlainFiles` reads plain_acl.yml and acl/**/*.yml, watches them, and changes
them for tools.
Address patterns: blank matches no address; `*` in every position matches all. `10.0.0.{1,7}` and
`10.0.0.1,10.0.0.9` list addresses. `10.0.0.*` and `10.0.1-9.*` are ranges, allowed from the second position
on. Anything else is a single address. IPv6 is analogous, with `:` and hexadecimal numbers; a `*` there ends
the pattern.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any, Final

from tandemmq.broker.access.needs import CLUSTER, GROUP, PUB, SUB, TOPIC, Need, is_administrative
from tandemmq.errors import ConfigError
from tandemmq.protocol.bodies.codec import DataVersion
from tandemmq.protocol.signature import Credentials
from tandemmq.protocol.topic_names import RETRY_PREFIX, TRACE_TOPIC
from tandemmq.runtime.ports import Clock, Disk
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

Matcher = Callable[[str], bool]

_EVERYBODY: Final = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")
_CHOICE: Final = re.compile(r"(.+[.:])\{([^{}]+)\}")


def make_matcher(pattern: str) -> Matcher:
    """Returns a function that returns True if an address matches the pattern.

    Raises:  ConfigError quoting an invalid pattern.
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
        requested = frozenset(ip_address(text.strip()) for text in texts)
    except ValueError:
        raise _pattern_fault(pattern) from None
    return lambda address: _parse_address(address) in requested


def _in_ranges(text: str, pattern: str) -> Matcher:
    """Returns a matcher: each position is a number or a range; after the first range only `*` may follow."""
    is_v6 = ":" in text
    count, largest, base = (8, 0xFFFF, 16) if is_v6 else (4, 255, 10)
    parts = _parts_v6(text) if is_v6 else text.split(".")
    if len(parts) > count or not parts or (not is_v6 and len(parts) != count):
        raise _pattern_fault(pattern)
    try:
        ranges = [_range(part, largest, base) for part in parts]
    except ValueError:
        raise _pattern_fault(pattern) from None
    first = next((at for at, (low, high) in enumerate(ranges) if low != high), len(ranges))
    if first == 0 or any(part != "*" for part in parts[first + 1 :]):
        raise _pattern_fault(pattern)

    def matches(address: str) -> bool:
        parsed = _parse_address(address)
        if parsed is None or (parsed.version == 6) != is_v6:
            return False
        numbers = _numbers(parsed)
        return all(low <= number <= high for number, (low, high) in zip(numbers, ranges, strict=False))

    return matches


def _parts_v6(text: str) -> list[str]:
    """Returns the positions of an IPv6 pattern; `::` is expanded to the missing zeros."""
    if "::" not in text:
        return text.split(":")
    head, _, tail = text.partition("::")
    before = head.split(":") if head else []
    after = tail.split(":") if tail else []
    return [*before, *["0"] * (8 - len(before) - len(after)), *after]


def _range(part: str, largest: int, base: int) -> tuple[int, int]:
    if part == "*":
        return 0, largest
    low, dash, high = part.partition("-")
    numbers = int(low, base), int(high if dash else low, base)
    if not 0 <= numbers[0] <= numbers[1] <= largest:
        raise ValueError
    return numbers


def _numbers(address: IPv4Address | IPv6Address) -> list[int]:
    data = address.packed
    if address.version == 4:
        return list(data)
    return [int.from_bytes(data[at : at + 2], "big") for at in range(0, 16, 2)]


def _parse_address(address: str) -> IPv4Address | IPv6Address | None:
    """Parses an address; an IPv4-mapped IPv6 address becomes IPv4. Returns None if it is invalid."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return mapped or parsed


def _pattern_fault(pattern: str) -> ConfigError:
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
    """One account; permissions are PUB and SUB bits, 0 is DENY.

    `groups` is keyed by the group's own name, not by that of its retry topic.
    """

    access_key: str
    secret_key: bytes = field(repr=False)
    is_admin: bool = False
    matches_address: Matcher = lambda _: False
    default_topic: int = 0
    default_group: int = 0
    topics: Mapping[str, int]
    groups: Mapping[str, int]

    def allows(self, need: Need) -> bool:
        """Returns True if the need is allowed. An administrator without named permissions may do anything."""
        if not need.actions or (self.is_admin and not self.topics and not self.groups):
            return True
        if need.kind == CLUSTER:
            return self.is_admin
        requested = need.actions & (PUB | SUB)
        if not requested:
            return self.is_admin or not is_administrative(need.actions)
        if need.kind == TOPIC:
            if need.name == TRACE_TOPIC and requested & PUB:
                return True
            return bool(self.topics.get(need.name, self.default_topic) & requested)
        if need.kind == GROUP:
            return bool(self.groups.get(need.name, self.default_group) & requested)
        return self.is_admin


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRules:
    """All accounts by access key, and the addresses from which everything is allowed."""

    accounts: Mapping[str, Account]
    global_matchers: Sequence[Matcher]

    def is_white(self, host: str) -> bool:
        return any(matches(host) for matches in self.global_matchers)


NO_RULES: Final = PlainRules(accounts={}, global_matchers=())


def build_rules(documents: Mapping[str, Any]) -> PlainRules:
    """Returns the rules of all files, in the order of file names; of two accounts with one key the first
    wins.

    Raises:  ConfigError naming the file and the position of the error.
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
    """Parses one entry of `accounts`.

    Raises:  ConfigError naming the account and the key that is wrong.
    """
    if not isinstance(raw, dict):
        raise ConfigError(f"{ACCOUNTS_KEY}: each must be a map, not {type(raw).__name__}")
    access_key = _key_text(raw, "accessKey", "an account")
    where = f"account {access_key}"
    unknown = [str(key) for key in raw if key not in _ACCOUNT_KEYS]
    if unknown:
        # An unknown key may have been meant as a restriction.
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
    """Returns PUB, SUB or both as bits; any other text is DENY, as in RocketMQ."""
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


DEFAULT_NAME: Final = "plain_acl.yml"
FOLDER_NAME: Final = "acl"
TOOLS_NAME: Final = "tools.yml"
CONTROLLER_SECRET_KEY: Final = "controllerSharedSecret"
SUFFIXES: Final = (".yml", ".yaml")
DEPTH_MAX: Final = 8
POLL_S: Final = 1.0

Change = Callable[[dict[str, Any]], None]


class PlainFiles:
    """The files below `directory`; `on_rules` gets the rules at the start and after each change.

    Strategy: contents are compared rather than modification times, so no change is missed and none is applied
              twice. An invalid change leaves the rules as they are and is logged once.
    """

    def __init__(
        self, directory: Path, *, disk: Disk, clock: Clock, on_rules: Callable[[PlainRules], None]
    ) -> None:
        self.default_path = directory / DEFAULT_NAME
        self._folder = directory / FOLDER_NAME
        self._disk = disk
        self._clock = clock
        self._on_rules = on_rules
        self._last_contents: dict[Path, bytes] = {}
        self._documents: dict[Path, Any] = {}
        self._changing = asyncio.Lock()

    def load(self) -> None:
        """Reads the files for the first time.

        Raises:  ConfigError when there are no files or one of them is invalid.
        """
        contents = self._read()
        if not contents:
            raise ConfigError(f"aclEnable=true needs rules, but there is no {self.default_path}")
        self._apply(contents)

    async def watch(self) -> None:
        """Applies changes on disk; runs until cancelled."""
        while True:
            await self._clock.sleep(POLL_S)
            async with self._changing:
                await self._poll_files()

    @property
    def documents(self) -> Mapping[Path, Any]:
        """The parsed files; callers must not change them."""
        return self._documents

    def versions(self) -> dict[Path, DataVersion]:
        """Returns the dataVersion of each file."""
        return {path: version_of(document) for path, document in self._documents.items()}

    def path_of(self, access_key: str) -> Path | None:
        """Returns the file that contains this account, or None."""
        for path, document in self._documents.items():
            if any(entry.get("accessKey") == access_key for entry in _accounts(document)):
                return path
        return None

    async def change(self, path: Path, apply: Change) -> None:
        """Applies a change to one file, on disk first.

        Raises:  ConfigError when the result would be invalid, OSError when it cannot be written; nothing has
                changed then.
        """
        async with self._changing:
            document = copy.deepcopy(self._documents.get(path)) or {}
            apply(document)
            version = version_of(document)
            document[VERSION_KEY] = [{"counter": version.counter + 1, "timestamp": int(self._clock.now_ms())}]
            import yaml

            data = yaml.safe_dump(document, sort_keys=False, allow_unicode=True).encode()
            contents = {**self._last_contents, path: data}
            rules, documents = _build(contents)
            write = partial(self._disk.write_atomically, path, data, keep_backup=True)
            await self._disk.offload(write)
            self._install(contents, documents, rules)

    async def _poll_files(self) -> None:
        try:
            contents = await self._disk.offload(self._read)
        except OSError as error:
            _log_refused(str(error))
            return
        if contents == self._last_contents:
            return
        if not contents:
            _log_refused(f"{self.default_path} is gone; its rules stay in force")
            self._last_contents = contents
            return
        try:
            self._apply(contents)
        except ConfigError as error:
            self._last_contents = contents  # logged once
            _log_refused(str(error))

    def _read(self) -> dict[Path, bytes]:
        paths = [self.default_path, *self._find(self._folder, DEPTH_MAX)]
        return {path: self._disk.read_bytes(path) for path in paths if self._disk.exists(path)}

    def _find(self, directory: Path, depth: int) -> list[Path]:
        found: list[Path] = []
        for name in self._disk.list(directory):
            if name.endswith(SUFFIXES):
                found.append(directory / name)
            elif "." not in name and depth:
                try:
                    found += self._find(directory / name, depth - 1)
                except NotADirectoryError:
                    continue
        return found

    def _apply(self, contents: dict[Path, bytes]) -> None:
        rules, documents = _build(contents)
        self._install(contents, documents, rules)

    def _install(self, contents: dict[Path, bytes], documents: dict[Path, Any], rules: PlainRules) -> None:
        self._last_contents, self._documents = contents, documents
        self._on_rules(rules)
        log.info(events.ACCESS_RULES_LOADED, extra={"files": len(contents), "accounts": len(rules.accounts)})


def read_tools_credentials(directory: Path, disk: Disk) -> Credentials | None:
    """Returns the accessKey and secretKey of tools.yml, with which a slave of 4.x signs requests to its
    master; None without them.

    Raises:  ConfigError when the file exists and is invalid.
    """
    document = _read_tools(directory, disk)
    names, secret = ("accessKey", "secretKey"), document.get(CONTROLLER_SECRET_KEY)
    if not any(document.get(name) for name in names) and (secret or not document):
        return None
    if not all(document.get(name) for name in names):
        raise ConfigError(f"{directory / TOOLS_NAME}: must give accessKey and secretKey")
    return Credentials(str(document["accessKey"]), str(document["secretKey"]))


def read_controller_secret(directory: Path, disk: Disk) -> str:
    """Returns the controllerSharedSecret of tools.yml (ours), with which a tool signs requests to
    controllers; "" without it.

    Raises:  ConfigError when the file exists and is invalid.
    """
    return str(_read_tools(directory, disk).get(CONTROLLER_SECRET_KEY) or "")


def _read_tools(directory: Path, disk: Disk) -> dict[str, Any]:
    """Returns the settings of tools.yml; empty without the file."""
    path = directory / TOOLS_NAME
    if not disk.exists(path):
        return {}
    document = _parse_file(path, disk.read_bytes(path))
    if not isinstance(document, dict) or not document:
        raise ConfigError(f"{path}: must give accessKey and secretKey")
    return document


def version_of(document: Any) -> DataVersion:
    """Returns the version that a file states; zeros if it states none."""
    stated = document.get(VERSION_KEY) if isinstance(document, dict) else None
    first = stated[0] if isinstance(stated, list) and stated and isinstance(stated[0], dict) else {}
    counter, timestamp_ms = first.get("counter"), first.get("timestamp")
    return DataVersion(
        counter=counter if isinstance(counter, int) else 0,
        timestamp_ms=timestamp_ms if isinstance(timestamp_ms, int) else 0,
    )


def accounts_in(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the account list of a file to be changed, adding it if missing."""
    if not document.get(ACCOUNTS_KEY):
        document[ACCOUNTS_KEY] = []
    found: list[dict[str, Any]] = document[ACCOUNTS_KEY]
    return found


def set_white_addresses(document: dict[str, Any], addresses: list[str]) -> None:
    """Replaces the addresses that need no signature, in one parsed file."""
    document[GLOBAL_KEY] = addresses


def _accounts(document: Any) -> list[dict[str, Any]]:
    found = document.get(ACCOUNTS_KEY) if isinstance(document, dict) else None
    return found or []


def _build(contents: Mapping[Path, bytes]) -> tuple[PlainRules, dict[Path, Any]]:
    documents = {path: _parse_file(path, data) for path, data in contents.items()}
    return build_rules({str(path): document for path, document in documents.items()}), documents


def _parse_file(path: Path, data: bytes) -> Any:
    # Imported only if such files exist: without the library a broker starts 20 ms sooner.
    import yaml

    try:
        return yaml.safe_load(data)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"{path}: is not YAML: {' '.join(str(error).split())}") from None


def _log_refused(reason: str) -> None:
    log.warning(events.ACCESS_RULES_REFUSED, extra={"reason": reason})
