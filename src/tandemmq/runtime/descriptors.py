"""File descriptors of this process: how many it may have (`raise_limit`), how connections and files divide
them (`plan_descriptors`), and some that are kept for a moment without any other (`RESERVE`).

A connection takes one descriptor, an open file of the store two: a memory map keeps a descriptor of its own.
Both are bounded by the plan, so a process reaches its limit only when the machine as a whole runs out, or
when something outside the plan takes many.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from tandemmq.runtime.ports import NotOpened

DESCRIPTORS_WANTED: Final = 1 << 20
"""No process asks for more, though the system would give it."""
CONNECTIONS_MAX: Final = 16_384
"""Of all ports of a server."""
CONNECTIONS_WANTED: Final = 1_024
"""With fewer a server warns at its start."""
DESCRIPTORS_KEPT: Final = 128
"""For everything but connections and log and queue files: the key index, tables, listeners, outgoing
connections, threads that work for the store, and the reserve.
"""
RESERVE_COUNT: Final = 16

T = TypeVar("T")


def raise_limit() -> int:
    """How many descriptors this process may have, after its soft limit was raised to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # a system with a lower bound of its own
            return soft
        return wanted
    return wanted if soft == resource.RLIM_INFINITY else soft


class DescriptorPlan(NamedTuple):
    """How the descriptors of a process are divided."""

    connections_max: int
    open_file_count_max: int
    replication_connections_max: int

    @property
    def is_short(self) -> bool:
        """Whether the process has fewer connections than a server should."""
        return self.connections_max < CONNECTIONS_WANTED


def plan_descriptors(
    limit: int, open_file_count_max: int = 0, replication_connections_max: int = 0
) -> DescriptorPlan:
    """Room for so many open files, or a quarter of the limit if that is less; of the rest an eighth at most
    for the replication port, where strangers may sit as well, and what is left for connections.
    """
    assert limit > 0, limit
    files = min(open_file_count_max, max(8, limit // 4)) if open_file_count_max else 0
    rest = limit - 2 * files - DESCRIPTORS_KEPT
    replication = min(replication_connections_max, max(8, rest // 8)) if replication_connections_max else 0
    return DescriptorPlan(min(CONNECTIONS_MAX, max(16, rest - replication)), files, replication)


class DescriptorReserve:
    """Descriptors of /dev/null; one is given back to the system when a file must be opened and none is left.

    Opening and closing are system calls of their own, so the reserve may be used from any thread.
    """

    def __init__(self) -> None:
        self._count = 0
        self._held: list[int] = []

    def hold(self, count: int) -> None:
        """Keep so many from now on."""
        self._count = count
        self.refill()

    def release(self) -> None:
        """Keep none any more."""
        self._count = 0
        while self.lend():
            pass

    def refill(self) -> None:
        """Take back what was lent, as far as there are descriptors."""
        while len(self._held) < self._count:
            try:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                return

    def lend(self) -> bool:
        """Give one back to the system; False when none is left."""
        try:
            os.close(self._held.pop())
        except IndexError:
            return False
        return True


RESERVE: Final = DescriptorReserve()
"""Empty until a server holds some: clients and tests do not need it."""


def opening(act: Callable[[], T]) -> T:
    """What `act` returns, which opens a file or a map; with a descriptor of the reserve if there is no other.

    Raises:  NotOpened when the process or the machine has no descriptor or memory left: nothing was done; and
             what `act` raises.
    """
    try:
        return act()
    except OSError as error:
        if error.errno not in _NONE_LEFT:
            raise
        first = error
    if first.errno != errno.ENOMEM and RESERVE.lend():
        try:
            return act()
        except OSError as error:
            if error.errno not in _NONE_LEFT:
                raise
        finally:
            RESERVE.refill()
    raise NotOpened(first.errno, first.strerror, first.filename) from first


_NONE_LEFT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
