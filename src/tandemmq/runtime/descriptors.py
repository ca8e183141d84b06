"""File descriptors of this process: their limit (`raise_limit`), their division between connections and files
(`plan_descriptors`), and a reserve for moments when no other is left (`RESERVE`).

A connection uses one descriptor, an open file of the store two: a memory map keeps its own descriptor. The
plan bounds both, so a process reaches its limit only if the whole machine runs out, or if something outside
the plan uses many.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from tandemmq.runtime.ports import NotOpened

DESCRIPTORS_TARGET: Final = 1 << 20
"""The most descriptors that a process requests, even if the system allows more."""
CONNECTIONS_MAX: Final = 16_384
"""The most connections, over all ports of a server."""
CONNECTIONS_TARGET: Final = 1_024
"""The number of connections below which a server warns at its start."""
DESCRIPTORS_KEPT: Final = 128
"""The descriptors for everything except connections and log and queue files: the key index, tables,
listeners, outgoing connections, threads that work for the store, and the reserve.
"""
RESERVE_COUNT: Final = 16

T = TypeVar("T")


def raise_limit() -> int:
    """Raises the soft limit of descriptors to the hard one; returns the number that this process may have."""
    import resource  # not on Windows, where only clients run

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = DESCRIPTORS_TARGET if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_TARGET)
    if soft != resource.RLIM_INFINITY and soft < target:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        except (OSError, ValueError):  # the system has a lower bound
            return soft
        return target
    return target if soft == resource.RLIM_INFINITY else soft


class DescriptorPlan(NamedTuple):
    """The division of a process's descriptors."""

    connections_max: int
    open_file_count_max: int
    replication_connections_max: int

    @property
    def is_short(self) -> bool:
        """True if the process has fewer connections than a server should have."""
        return self.connections_max < CONNECTIONS_TARGET


def plan_descriptors(
    limit: int, open_file_count_max: int = 0, replication_connections_max: int = 0
) -> DescriptorPlan:
    """Divides the limit: `open_file_count_max` open files, or a quarter of the limit if that is less; at most
    an eighth of the rest for the replication port, where unknown peers may also connect; the remainder for
    connections.
    """
    assert limit > 0, limit
    files = min(open_file_count_max, max(8, limit // 4)) if open_file_count_max else 0
    rest = limit - 2 * files - DESCRIPTORS_KEPT
    replication = min(replication_connections_max, max(8, rest // 8)) if replication_connections_max else 0
    return DescriptorPlan(min(CONNECTIONS_MAX, max(16, rest - replication)), files, replication)


class DescriptorReserve:
    """Descriptors of /dev/null. One is released when a file must be opened and no descriptor is left.

    Opening and closing are single system calls, so any thread may use the reserve.
    """

    def __init__(self) -> None:
        self._count = 0
        self._held: list[int] = []

    def hold(self, count: int) -> None:
        """Sets the size of the reserve and fills it."""
        self._count = count
        self.refill()

    def release(self) -> None:
        """Releases the whole reserve."""
        self._count = 0
        while self.lend():
            pass

    def refill(self) -> None:
        """Reopens the released descriptors, as far as the system has some."""
        while len(self._held) < self._count:
            try:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                return

    def lend(self) -> bool:
        """Releases one descriptor to the system; returns False when none is left."""
        try:
            os.close(self._held.pop())
        except IndexError:
            return False
        return True


RESERVE: Final = DescriptorReserve()
"""Empty until a server fills it: clients and tests do not need it."""


def opening(act: Callable[[], T]) -> T:
    """Returns the result of `act`, which opens a file or a map; uses a descriptor of the reserve if no other
    is left.

    Raises:  NotOpened when the process or the machine has no descriptor or memory left: nothing was done; and
             the errors of `act`.
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
