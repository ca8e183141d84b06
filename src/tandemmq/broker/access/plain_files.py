"""plain_acl.yml and acl/**/*.yml: read, watched, and changed by tools (spec semantics 21.2).

Strategy: the content is compared, not the time of the last change, so nothing is missed and nothing is read
into the rules twice. A change that cannot be used leaves the rules as they are and is told once.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from tandemmq.broker.access.plain_rules import (
    ACCOUNTS_KEY,
    GLOBAL_KEY,
    VERSION_KEY,
    PlainRules,
    build_rules,
)
from tandemmq.errors import ConfigError
from tandemmq.protocol.bodies.codec import DataVersion
from tandemmq.protocol.signature import Credentials
from tandemmq.runtime.ports import Clock, Disk
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

DEFAULT_NAME: Final = "plain_acl.yml"
FOLDER_NAME: Final = "acl"
TOOLS_NAME: Final = "tools.yml"
SUFFIXES: Final = (".yml", ".yaml")
DEPTH_MAX: Final = 8
POLL_S: Final = 1.0

Change = Callable[[dict[str, Any]], None]


class PlainFiles:
    """The files below `directory`; `on_rules` gets the rules at the start and after each change."""

    def __init__(
        self, directory: Path, *, disk: Disk, clock: Clock, on_rules: Callable[[PlainRules], None]
    ) -> None:
        self.default_path = directory / DEFAULT_NAME
        self._folder = directory / FOLDER_NAME
        self._disk = disk
        self._clock = clock
        self._on_rules = on_rules
        self._seen: dict[Path, bytes] = {}
        self._documents: dict[Path, Any] = {}
        self._changing = asyncio.Lock()

    def load(self) -> None:
        """The first reading.

        Raises:  ConfigError when there are no files or one of them cannot be used.
        """
        contents = self._read()
        if not contents:
            raise ConfigError(f"aclEnable=true needs rules, but there is no {self.default_path}")
        self._take(contents)

    async def watch(self) -> None:
        """Takes over what changes on the disk; runs until it is cancelled."""
        while True:
            await self._clock.sleep(POLL_S)
            async with self._changing:
                await self._look()

    @property
    def documents(self) -> Mapping[Path, Any]:
        """The parsed files; not to be changed."""
        return self._documents

    def versions(self) -> dict[Path, DataVersion]:
        """The dataVersion that each file states."""
        return {path: version_of(document) for path, document in self._documents.items()}

    def path_of(self, access_key: str) -> Path | None:
        """The file that has this account."""
        for path, document in self._documents.items():
            if any(entry.get("accessKey") == access_key for entry in _accounts(document)):
                return path
        return None

    async def change(self, path: Path, apply: Change) -> None:
        """Applies a change to one file, on disk first.

        Raises:  ConfigError when the result would not be usable rules, OSError when it cannot be written;
                 then nothing has changed.
        """
        async with self._changing:
            document = copy.deepcopy(self._documents.get(path)) or {}
            apply(document)
            version = version_of(document)
            document[VERSION_KEY] = [{"counter": version.counter + 1, "timestamp": int(self._clock.now_ms())}]
            import yaml

            data = yaml.safe_dump(document, sort_keys=False, allow_unicode=True).encode()
            contents = {**self._seen, path: data}
            rules, documents = _build(contents)
            write = partial(self._disk.write_atomically, path, data, keep_backup=True)
            await self._disk.offload(write)
            self._install(contents, documents, rules)

    async def _look(self) -> None:
        try:
            contents = await self._disk.offload(self._read)
        except OSError as error:
            _tell_refused(str(error))
            return
        if contents == self._seen:
            return
        if not contents:
            _tell_refused(f"{self.default_path} is gone; its rules stay in force")
            self._seen = contents
            return
        try:
            self._take(contents)
        except ConfigError as error:
            self._seen = contents  # told once
            _tell_refused(str(error))

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

    def _take(self, contents: dict[Path, bytes]) -> None:
        rules, documents = _build(contents)
        self._install(contents, documents, rules)

    def _install(self, contents: dict[Path, bytes], documents: dict[Path, Any], rules: PlainRules) -> None:
        self._seen, self._documents = contents, documents
        self._on_rules(rules)
        log.info(events.ACCESS_RULES_LOADED, extra={"files": len(contents), "accounts": len(rules.accounts)})


def read_tools_credentials(directory: Path, disk: Disk) -> Credentials | None:
    """The accessKey and secretKey of tools.yml, with which a slave of 4.x asks its master; None without.

    Raises:  ConfigError when the file is there and cannot be used.
    """
    path = directory / TOOLS_NAME
    if not disk.exists(path):
        return None
    document = _parse(path, disk.read_bytes(path))
    if not isinstance(document, dict) or not document.get("accessKey") or not document.get("secretKey"):
        raise ConfigError(f"{path}: must give accessKey and secretKey")
    return Credentials(str(document["accessKey"]), str(document["secretKey"]))


def version_of(document: Any) -> DataVersion:
    """What a file states about its version; zeros when it says nothing."""
    stated = document.get(VERSION_KEY) if isinstance(document, dict) else None
    first = stated[0] if isinstance(stated, list) and stated and isinstance(stated[0], dict) else {}
    counter, timestamp_ms = first.get("counter"), first.get("timestamp")
    return DataVersion(
        counter=counter if isinstance(counter, int) else 0,
        timestamp_ms=timestamp_ms if isinstance(timestamp_ms, int) else 0,
    )


def accounts_in(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The list of accounts of a file that is being changed; made when it is missing."""
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
    documents = {path: _parse(path, data) for path, data in contents.items()}
    return build_rules({str(path): document for path, document in documents.items()}), documents


def _parse(path: Path, data: bytes) -> Any:
    # Only where there are such files: a broker starts 20 ms sooner without the library.
    import yaml

    try:
        return yaml.safe_load(data)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"{path}: is no YAML: {' '.join(str(error).split())}") from None


def _tell_refused(reason: str) -> None:
    log.warning(events.ACCESS_RULES_REFUSED, extra={"reason": reason})
