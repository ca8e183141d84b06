"""The ports: interfaces to the machine's time, files, sockets and randomness, as Protocols.

All code on the floors above accesses the machine only through these interfaces, so that a whole cluster can
run on simulated ones from a seed. An implementation is chosen once, where a process (or a test) starts, and
passed down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tandemmq.units import Buffer, EpochMs

Address = tuple[str, int]
T = TypeVar("T")


class TimerHandle(Protocol):
    """A pending call; cancelling it twice, or after it ran, does nothing."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Both clocks of the machine, and delayed calls.

    `now_ms` is wall-clock time and may jump; intervals and deadlines are measured with `monotonic`, in
    seconds.
    """

    def now_ms(self) -> EpochMs: ...

    def monotonic(self) -> float: ...

    def call_later(self, delay_s: float, fn: Callable[..., object], *args: Any) -> TimerHandle: ...

    def call_soon(self, fn: Callable[..., object], *args: Any) -> None:
        """Runs `fn(*args)` once in the next turn of the loop, after calls that were scheduled earlier."""

    async def sleep(self, delay_s: float) -> None: ...


class Advice(Enum):
    """The hints to the kernel about an open file."""

    NORMAL = "read-ahead may help (the default)"
    RANDOM = "access is random: read-ahead is wasted"
    IDLE = "the process may drop its mapped pages; the page cache keeps them, and views stay valid"


class NotOpened(OSError):
    """The error of a file, a directory or a map that was not opened, because the process or the machine had
    no descriptor or memory left. Nothing was done, and the disk is intact: try again later.
    """


class File(Protocol):
    """One open file whose length never changes."""

    @property
    def path(self) -> Path: ...

    @property
    def size(self) -> int: ...

    @property
    def is_closed(self) -> bool: ...

    def pwrite(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Writes the buffers one after another from `offset` on.

        Either everything is written or OSError is raised; after an error any part of the range may contain
        new bytes. The range must end within `size`: anything else is a bug of the caller and asserted.
        """

    def pread(self, offset: int, size: int) -> bytes:
        """Returns the bytes at `offset`; fewer than `size` only at the end of the file."""

    def view(self) -> memoryview:
        """Returns the whole file, read-only, with later writes visible. Slices of it outlive `close`."""

    def sync(self) -> None:
        """Returns once written bytes survive a power cut (fdatasync). Blocks: call it through `Disk.offload`.

        The first sync of an open file also makes the names in its directory durable: the process that created
        the file may have ended before its own first sync.
        """

    def advise(self, advice: Advice) -> None:
        """Informs the kernel how the file is used; a hint that cannot fail."""

    def close(self) -> None: ...


class Lock(Protocol):
    """A held lock of a directory; released at the latest when the process ends."""

    def release(self) -> None: ...


class Disk(Protocol):
    """Files in directories. Every error is an OSError with its errno, so a full disk is ENOSPC (or EDQUOT).
    If no descriptor is left for another open file, the error is NotOpened.
    """

    def open(self, path: Path) -> File: ...

    def create(self, path: Path, size: int, *, sparse: bool = False) -> File:
        """Creates a file of `size` zero bytes with its blocks reserved; creates its directories, too.

        With `sparse` no blocks are reserved: for large tables that fill slowly and can be rebuilt.

        Raises:  FileExistsError; OSError when there is no room. After an OSError no new file remains.
        """

    def list(self, directory: Path) -> list[str]:
        """Returns the names in a directory, sorted; an empty list when it does not exist."""

    def exists(self, path: Path) -> bool: ...

    def size(self, path: Path) -> int: ...

    def remove(self, path: Path) -> None:
        """Removes a file, or an empty directory. Raises FileNotFoundError when it does not exist."""

    def make_dirs(self, path: Path) -> None: ...

    def read_bytes(self, path: Path) -> bytes: ...

    def write_atomically(
        self, path: Path, data: Buffer, *, keep_backup: bool = False, is_private: bool = False
    ) -> None:
        """Replaces the content of `path`: readers, also after a power cut, see all of the old or all of the
        new content.

        Blocks for a flush of the disk. With `keep_backup` the old content is kept at `path` + ".bak" (spec
        store 18). With `is_private` only the owner of the process may read a new file. Only one writer per
        path at a time.
        """

    def usage(self, path: Path) -> tuple[int, int]:
        """Returns the (total, free) bytes of the file system that contains `path` or its nearest existing
        parent.

        Both are the bytes available to an ordinary user, without the blocks reserved for root (spec store
        19).
        """

    def lock(self, path: Path) -> Lock:
        """Acquires the exclusive lock file `path`. Raises StoreLocked when any process, including this one,
        holds it.
        """

    def boot_id(self) -> str:
        """Returns an identifier of this boot of the machine, or "" when it is unknown.

        While it stays the same, all written data can be read, synced or not.
        """

    async def offload(self, fn: Callable[..., T], *args: Any) -> T:
        """Runs a blocking call off the loop. Cancelling the wait does not stop the call."""


class Random(Protocol):
    """A random source for identifiers, jitter, choice of a queue. Not for secrets."""

    def below(self, bound: int) -> int:
        """Returns an integer in `[0, bound)`."""

    def token_bytes(self, count: int) -> bytes: ...


class Listener(Protocol):
    """An open listening socket. Closing it leaves accepted connections alone."""

    @property
    def address(self) -> Address: ...

    async def close(self) -> None: ...


StreamProtocol = asyncio.Protocol | asyncio.BufferedProtocol
ProtocolFactory = Callable[[], StreamProtocol]


class Network(Protocol):
    """Stream connections. Each end is an `asyncio.Protocol`, or an `asyncio.BufferedProtocol` where much data
    arrives at once. Every error is an OSError, TimeoutError included.
    """

    async def listen(self, host: str, port: int, protocol_factory: ProtocolFactory) -> Listener: ...

    async def connect(
        self, host: str, port: int, protocol_factory: ProtocolFactory, timeout_s: float
    ) -> asyncio.Transport: ...


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that a server runs on."""

    network: Network
    disk: Disk
    clock: Clock
    chance: Random
