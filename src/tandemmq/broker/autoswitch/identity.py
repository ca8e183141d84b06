"""The identity of a broker of an elected group: the id that the controllers assigned, the random id of its
group, and the files that store them.

Invariants: the application for an id is on disk before it is sent, so that a broker that was killed in
            between applies for the same id again with the same proof; both ids are saved before their use.
            - Controllers, masters and slaves that belong to another group are refused: clusters and brokers
              of two groups may have the same names, and their logs the same terms.
Bounds:     one id and one group per store directory, for ever.
Source:     spec controller 3.2, 3.3, 10.16.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from tandemmq.errors import ConfigError, RequestRejected, StoreError
from tandemmq.protocol.codes import ResponseCode
from tandemmq.runtime.ports import Clock, Disk
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

IDENTITY_FILE: Final = "brokerIdentity"
APPLICATION_SUFFIX: Final = "-temp"
GROUP_FILE: Final = "brokerGroup"
ATTEMPTS_MAX: Final = 64
"""The most ids for which one call of `obtain_id` applies."""
_GROUP_ID: Final = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Application:
    """An application for an id, and the code that proves that the same broker applies again."""

    broker_id: int
    check_code: str


class IdGiver(Protocol):
    """The requests to the controllers that are needed to obtain an id."""

    async def next_id(self) -> int: ...

    async def apply_id(self, broker_id: int, check_code: str) -> None:
        """Applies for an id. Raises RequestRejected with CONTROLLER_BROKER_ID_INVALID if another broker has
        it.
        """


class IdentityFiles:
    """`brokerIdentity` and the application file beside it, in RocketMQ's format."""

    def __init__(self, path: Path, *, cluster: str, name: str, disk: Disk) -> None:
        for part in (cluster, name):
            if "#" in part:
                raise ConfigError(f"{part!r}: a name with # cannot be kept in {IDENTITY_FILE}")
        self._path = path
        self._application_path = path.with_name(path.name + APPLICATION_SUFFIX)
        self._names = (cluster, name)
        self._disk = disk

    def load_id(self) -> int | None:
        """Returns the assigned id, None if there is none yet.

        Raises:  ConfigError if the file is another broker's; StoreError if it cannot be read.
        """
        parts = self._read(self._path, 3)
        return None if parts is None else int(parts[2])

    def load_application(self) -> Application | None:
        """Returns the pending application. Raises as `load_id`."""
        parts = self._read(self._application_path, 4)
        return None if parts is None else Application(int(parts[2]), parts[3])

    async def save_id(self, broker_id: int) -> None:
        """Saves the assigned id and drops the application. Raises OSError."""
        await self._write(self._path, str(broker_id))
        self.drop_application()

    async def save_application(self, application: Application) -> None:
        """Saves an application before it is sent. Raises OSError."""
        await self._write(self._application_path, str(application.broker_id), application.check_code)

    def drop_application(self) -> None:
        """Removes the application. If it reappears after a power failure, it is refused again, or ignored
        beside an id.
        """
        if self._disk.exists(self._application_path):
            self._disk.remove(self._application_path)

    async def _write(self, path: Path, *values: str) -> None:
        self._disk.make_dirs(path.parent)
        await self._disk.offload(
            self._disk.write_atomically, path, "#".join((*self._names, *values)).encode()
        )

    def _read(self, path: Path, count: int) -> list[str] | None:
        """Returns the parts of the file, the third of which is a number. Like RocketMQ, ignores surrounding
        whitespace.
        """
        if not self._disk.exists(path):
            return None
        try:
            parts = self._disk.read_bytes(path).decode().strip().split("#")
        except (OSError, UnicodeDecodeError) as error:
            raise StoreError(f"{path} cannot be read: {error}") from error
        if len(parts) != count or not (parts[2].isascii() and parts[2].isdecimal()) or int(parts[2]) < 1:
            raise StoreError(f"{path} is not a broker identity: expected cluster#name#id")
        if tuple(parts[:2]) != self._names:
            raise ConfigError(
                f"{path} belongs to the broker {parts[1]} of the cluster {parts[0]}, the settings say"
                f" {self._names[1]} of {self._names[0]}: correct brokerName and brokerClusterName, or give"
                " this broker a store of its own"
            )
        return parts


class ForeignGroup(RequestRejected):
    """A peer belongs to another group than this broker, although the names are equal."""


class GroupIdentity:
    """The random id of the group whose log this broker holds, and the file `brokerGroup` that stores it.

    The controllers create the id with the group. A directory of an older release has no file, and adopts the
    id that the first controller of its group sends; RocketMQ controllers send none.
    """

    def __init__(self, path: Path, *, broker: str, disk: Disk) -> None:
        """`broker`: the name and address of this broker, for errors."""
        self._path = path
        self._broker = broker
        self._disk = disk
        self.group_id: str | None = None
        """The id of the group; None until a controller has sent it."""

    def load(self) -> None:
        """Reads the file, if it exists. Raises StoreError if it cannot be read."""
        if not self._disk.exists(self._path):
            return
        try:
            text = self._disk.read_bytes(self._path).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise StoreError(f"{self._path} cannot be read: {error}") from error
        if not _GROUP_ID.fullmatch(text):
            raise StoreError(f"{self._path} does not hold a group id: expected 32 hexadecimal digits")
        self.group_id = text

    def check(self, reported: str | None, peer: str) -> None:
        """Raises ForeignGroup if `peer` reports another group; an unknown id matches any."""
        if reported and self.group_id is not None and reported != self.group_id:
            raise ForeignGroup(
                f"{peer} belongs to the group {reported}, {self._broker} to the group {self.group_id}: the"
                " names are equal, the groups are not. Correct controllerAddr, or use an empty store"
            )

    async def learn(self, reported: str | None, controller: str) -> None:
        """Checks the id, and saves it if this broker has none yet: on disk before it is used.

        Raises:  ForeignGroup; RequestRejected if it is invalid or cannot be saved.
        """
        self.check(reported, controller)
        if not reported or self.group_id is not None:
            return
        if not _GROUP_ID.fullmatch(reported):
            raise RequestRejected(f"{controller} tells {reported[:40]!r}, which is not a group id")
        self._disk.make_dirs(self._path.parent)
        try:
            await self._disk.offload(self._disk.write_atomically, self._path, reported.encode())
        except OSError as error:
            raise RequestRejected(f"the id of the group cannot be kept in {self._path}: {error}") from error
        self.check(reported, controller)  # another controller may have sent one meanwhile
        self.group_id = reported
        log.info(events.BROKER_GROUP_LEARNED, extra={"group_id": reported, "controller": controller})


async def obtain_id(files: IdentityFiles, giver: IdGiver, *, address: str, clock: Clock) -> int:
    """Returns the id of this broker, from disk or else from the controllers. After a kill, or a temporary
    error, the same call resumes where it was.

    Raises:  the errors of `IdentityFiles.load_id` and of the calls of `giver`.
    """
    kept = files.load_id()
    if kept is not None:
        return kept
    application = files.load_application()
    for _ in range(ATTEMPTS_MAX):
        if application is None:
            application = Application(await giver.next_id(), f"{address};{clock.now_ms()}")
            await files.save_application(application)
        try:
            await giver.apply_id(application.broker_id, application.check_code)
        except RequestRejected as error:
            if error.code != ResponseCode.CONTROLLER_BROKER_ID_INVALID:
                raise
            # Another broker was faster, or the file is outdated: tries the next free id.
            log.info(events.BROKER_ID_REJECTED, extra={"broker_id": application.broker_id})
            files.drop_application()
            application = None
            continue
        await files.save_id(application.broker_id)
        log.info(events.BROKER_ID_ASSIGNED, extra={"broker_id": application.broker_id})
        return application.broker_id
    raise RequestRejected(f"no id was free in {ATTEMPTS_MAX} attempts")
