"""The tables with files under `config/`: loading with a fallback to `.bak`, and saving off the event loop.

`StoredTable` is the base of all tables, `ConfigTable` that of topics and groups; `TableSaver` writes them.

A table changes in memory and marks its file. The file is written once, `delay_ms` later, with everything that
changed meanwhile. Two writes of one file never overlap. A failed write is logged as a warning and retried
after the same delay; the old file and its `.bak` remain, so only the newest changes are at risk (spec store
18).
Each file ends with a checksum of itself: a bit flip could otherwise change an offset or a name. A damaged
file is kept as `.damaged`, because the next save overwrites it.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from tandemmq.errors import Busy, ConfigError, RequestRejected, TandemError
from tandemmq.protocol.bodies.codec import DataVersion, encode_body
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig, TopicConfig
from tandemmq.protocol.hashes import seal_json, unseal_json
from tandemmq.runtime.ports import Clock, Disk
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

RETRY_DELAY_MS_MIN = 1_000


class Loaded(Enum):
    """The source from which a table was loaded."""

    FILE = "file"
    BACKUP = "backup"
    NOTHING = "nothing"


OnSaved = Callable[[OSError | None], None]
"""Called when a file's current content is on disk, or with the error that prevented it."""


class StoredTable(ABC):
    """A table with a file of its own. The callbacks in `on_change` run after each change."""

    def __init__(self) -> None:
        self.on_change: list[Callable[..., None]] = []

    @abstractmethod
    def snapshot(self) -> object:
        """Returns the table's content, valid until the next change: encode it before anything else runs."""

    def encode(self) -> bytes:
        """Returns the content of the file."""
        return encode_body(self.snapshot())

    @abstractmethod
    def load(self, data: bytes) -> None:
        """Replaces the table by the content of a file."""

    def _after_change(self) -> None:
        for callback in self.on_change:
            callback()


C = TypeVar("C", TopicConfig, SubscriptionGroupConfig)


class ConfigTable(StoredTable, Generic[C]):
    """Configurations of one `kind` by name; `get` is a plain dict lookup.

    Invariants: every change raises the data version once. The callbacks in `on_change` get the changed names
                once the table is complete again.
    At a bound: an entry too many is rejected with Busy.
    """

    def __init__(self, kind: str, count_max: int) -> None:
        super().__init__()
        self._kind = kind
        self._count_max = count_max
        self._configs: dict[str, C] = {}
        self.data_version = DataVersion()

    def __len__(self) -> int:
        return len(self._configs)

    def __contains__(self, name: object) -> bool:
        return name in self._configs

    def get(self, name: str) -> C | None:
        return self._configs.get(name)

    @property
    def configs(self) -> list[C]:
        return list(self._configs.values())

    def put(self, config: C, now_ms: int) -> bool:
        """Adds or replaces an entry. Returns False if the table already holds it unchanged.

        Raises:  Busy when the entry is new and the table is full.
        """
        if self._configs.get(config.name) == config:
            return False
        self.require_room([config.name])
        self._configs[config.name] = config
        self._change([config.name], self._next_version(now_ms))
        return True

    def require_room(self, names: Iterable[str]) -> None:
        """Raises Busy unless all of these entries, new ones included, fit into the table."""
        new = sum(name not in self._configs for name in set(names))
        if new and len(self._configs) + new > self._count_max:
            raise Busy(
                f"[OVERLOAD] a broker has at most {self._count_max} {self._kind}, it has {len(self._configs)}"
            )

    def add_missing(self, configs: Iterable[C], now_ms: int) -> None:
        """Adds the missing ones of these entries, as one change."""
        missing: dict[str, C] = {
            config.name: config for config in configs if config.name not in self._configs
        }
        if missing:
            self._configs.update(missing)
            self._change([*missing], self._next_version(now_ms))

    def remove(self, name: str, now_ms: int) -> bool:
        """Removes an entry. Returns False if it does not exist."""
        if self._configs.pop(name, None) is None:
            return False
        self._change([name], self._next_version(now_ms))
        return True

    def _next_version(self, now_ms: int) -> DataVersion:
        return self.data_version.next(now_ms)

    def _change(self, names: list[str], data_version: DataVersion) -> None:
        self.data_version = data_version
        for callback in self.on_change:
            callback(names)


@dataclass(eq=False, slots=True)
class TableFile:
    """One file and the function that returns its whole content."""

    path: Path
    encode: Callable[[], bytes]
    delay_ms: int
    is_changed: bool = False
    is_due: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: list[OnSaved] = field(default_factory=list)


class TableSaver:
    """Writes marked files when they are due; `run` is the only task that writes.

    `unsaved`: by path, contents that an earlier saver of this process could not write; they are newer than
    the files on disk.
    """

    def __init__(self, *, disk: Disk, clock: Clock, unsaved: Mapping[Path, bytes] | None = None) -> None:
        self._disk = disk
        self._inherited = {} if unsaved is None else unsaved
        self._clock = clock
        self._files: list[TableFile] = []
        self._wake = asyncio.Event()
        self._is_closing = False
        self._has_stopped = asyncio.Event()
        self._has_stopped.set()

    def add(self, path: Path, encode: Callable[[], bytes], *, delay_ms: int) -> TableFile:
        file = TableFile(path, encode, delay_ms)
        self._files.append(file)
        return file

    def load(self, file: TableFile, apply: Callable[[bytes], None]) -> Loaded:
        """Loads a table as `load_table` does. An inherited content has precedence and is marked for
        writing.
        """
        content = self._inherited.get(file.path)
        if content is None:
            return load_table(file.path, apply, disk=self._disk)
        apply(content)
        self.mark(file)
        return Loaded.FILE

    def unsaved(self) -> dict[Path, bytes]:
        """Returns the content of each file that is still to be written, for the next saver."""
        return {file.path: file.encode() for file in self._files if file.is_changed}

    def mark(self, file: TableFile, _changed: object = None) -> None:
        """Schedules the file to be written within its delay; cheap if it is already marked. A callback of
        `Table.on_change`.
        """
        if not file.is_changed:
            file.is_changed = True
            self._arm(file, file.delay_ms)

    def save_then(self, file: TableFile, on_saved: OnSaved) -> None:
        """Schedules the file to be written as soon as possible; `on_saved` is called once its current content
        is.
        """
        file.waiting.append(on_saved)
        self._mark_due(file)

    async def save(self, file: TableFile) -> None:
        """Writes the file now if it is marked.

        Raises:  OSError; the file stays marked and is retried.
        """
        async with file.lock:
            waiting, file.waiting = file.waiting, []
            if not file.is_changed:
                file.is_due = False
                _notify(waiting, None)
                return
            file.is_changed = file.is_due = False
            write = partial(_write, file.path, seal_json(file.encode()), disk=self._disk)
            try:
                await self._disk.offload(write)
            except OSError as error:
                file.is_changed = True
                self._arm(file, max(file.delay_ms, RETRY_DELAY_MS_MIN))
                _notify(waiting, error)
                raise
            _notify(waiting, None)

    async def run(self) -> None:
        """Runs until `close`. It must not be cancelled during a write, because the write itself would
        continue.
        """
        self._has_stopped.clear()
        try:
            while not self._is_closing:
                await self._wake.wait()
                self._wake.clear()
                await self._save_each([file for file in self._files if file.is_due])
        finally:
            self._has_stopped.set()

    async def close(self) -> None:
        """Waits for the write in progress, then writes all files that are still marked."""
        self._is_closing = True
        self._wake.set()
        await self._has_stopped.wait()
        await self._save_each(self._files)

    async def _save_each(self, files: list[TableFile]) -> None:
        for file in files:
            try:
                await self.save(file)
            except OSError as error:
                log.warning(
                    events.TABLE_SAVE_FAILED,
                    extra={"path": str(file.path), "reason": str(error)},
                )

    def _arm(self, file: TableFile, delay_ms: int) -> None:
        self._clock.call_later(delay_ms / 1000, self._mark_due, file)

    def _mark_due(self, file: TableFile) -> None:
        file.is_due = True
        self._wake.set()


def _write(path: Path, data: bytes, *, disk: Disk) -> None:
    """Writes the file. The first content is also the backup, so that a bit flip cannot keep the broker from
    starting. Raises OSError.
    """
    disk.write_atomically(path, data, keep_backup=True)
    backup = _backup_of(path)
    if not disk.exists(backup):
        disk.write_atomically(backup, data)


def _backup_of(path: Path) -> Path:
    return path.with_name(path.name + ".bak")


def _notify(waiting: list[OnSaved], error: OSError | None) -> None:
    for on_saved in waiting:
        on_saved(error)


async def save_or_reject(saver: TableSaver, file: TableFile) -> None:
    """Writes a table whose change is about to be answered.

    Raises:  RequestRejected when it cannot be written; the change stays in memory and the write is retried.
    """
    try:
        await saver.save(file)
    except OSError as error:
        raise RequestRejected(
            f"the change is made, but {file.path.name} cannot be written and is tried again: {error}"
        ) from error


def load_table(path: Path, apply: Callable[[bytes], None], *, disk: Disk) -> Loaded:
    """Loads the file or its `.bak`. Returns which one was read; NOTHING if neither exists or both are empty.

    Strategy: the main file comes first; if it is missing, empty or unreadable, `.bak` is read, with a
              warning. The unreadable file is moved aside then, so that the next save does not make it the
              backup.

    Raises:  ConfigError when there is content but none of it can be read: starting with empty tables would
            forget every topic, and only an operator may decide that.
    """
    backup = _backup_of(path)
    error: Exception | None = None
    for candidate in (path, backup):
        if not disk.exists(candidate):
            continue
        try:
            data = disk.read_bytes(candidate)
            if not data.strip(b"\0 \t\r\n"):
                log.warning(
                    events.TABLE_UNREADABLE, extra={"path": str(candidate), "reason": "the file is empty"}
                )
                continue
            apply(unseal_json(data))
        except (TandemError, ValueError, OSError) as reason:
            error = reason
            log.warning(events.TABLE_UNREADABLE, extra={"path": str(candidate), "reason": str(reason)})
            continue
        if candidate is backup:
            log.warning(events.TABLE_LOADED_FROM_BACKUP, extra={"path": str(candidate)})
            if error is not None:
                _put_aside(path, disk)
            return Loaded.BACKUP
        return Loaded.FILE
    if error is not None:
        raise ConfigError(f"{path}: neither the file nor its .bak can be read: {error}") from error
    return Loaded.NOTHING


def _put_aside(path: Path, disk: Disk) -> None:
    aside = path.with_name(path.name + ".damaged")
    try:
        disk.write_atomically(aside, disk.read_bytes(path))
        disk.remove(path)
    except OSError as error:
        log.warning(events.TABLE_UNREADABLE, extra={"path": str(path), "reason": f"not put aside: {error}"})
