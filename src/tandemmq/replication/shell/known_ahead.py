"""Slaves that were found ahead of their master: their copies stay refused when its log has grown past them.

A slave is known by its host here (spec replication 4.1), and its copy by where it ended: another slave of the
host, or the same one emptied, reports another end.
At the bounds: the oldest is forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from tandemmq.replication.core.progress import TransferStart

HOST_COUNT_MAX: Final = 64
END_COUNT_MAX: Final = 64
"""Per host."""

Key = TypeVar("Key")
Value = TypeVar("Value")


class KnownAhead:
    """Host -> ends that slaves of it reported, each with the master's end of then."""

    __slots__ = ("_hosts",)

    def __init__(self) -> None:
        self._hosts: dict[str, dict[int, int]] = {}

    def note(self, host: str, start: TransferStart) -> None:
        """A slave was refused by `start`."""
        ends = self._hosts.setdefault(host, {})
        ends[start.reported] = start.master_end
        _drop_oldest(ends, END_COUNT_MAX)
        _drop_oldest(self._hosts, HOST_COUNT_MAX)

    def forget_below(self, log_end: int) -> None:
        """The log has again what it had lost, up to `log_end`: who ends there or before has a copy of it."""
        for host, ends in self._hosts.items():
            self._hosts[host] = {end: master_end for end, master_end in ends.items() if end > log_end}

    def ends_of(self, host: str) -> Mapping[int, int]:
        """What `plan_start` asks for."""
        return self._hosts.get(host, {})


def _drop_oldest(table: dict[Key, Value], count_max: int) -> None:
    if len(table) > count_max:
        del table[next(iter(table))]
