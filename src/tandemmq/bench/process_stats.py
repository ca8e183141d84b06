"""Processor time and memory of another process, as the kernel accounts them."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_USER_FIELD, _SYSTEM_FIELD = 13, 14


def processor_seconds(pid: int) -> float:
    """User and system time that the process has used so far, in seconds (resolution: one kernel tick, 10
    ms)."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    # The command name in parentheses may itself hold spaces; fields are counted behind it.
    fields = text[text.rindex(")") + 2 :].split()
    return (int(fields[_USER_FIELD - 2]) + int(fields[_SYSTEM_FIELD - 2])) / _TICKS_PER_SECOND


def resident_bytes(pid: int) -> int:
    """The process's resident memory in bytes."""
    return _status_bytes(pid, "VmRSS:")


def peak_resident_bytes(pid: int) -> int:
    """The most resident memory that the process had, in bytes."""
    return _status_bytes(pid, "VmHWM:")


def _status_bytes(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


def tree_seconds(root: int, *, without: frozenset[int] = frozenset()) -> float:
    """Processor time of all running descendants of a process, and of the children that they waited for.

    Neither `root` itself nor the subtrees of `without` count. What a child used that ended without being
    waited for is lost.
    """
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            text = (entry / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        fields = text[text.rindex(")") + 2 :].split()
        pid = int(entry.name)
        children.setdefault(int(fields[1]), []).append(pid)
        ticks[pid] = sum(map(int, fields[_USER_FIELD - 2 : _USER_FIELD + 2]))
    total, parents = 0, [root]
    while parents:
        found = [pid for pid in children.get(parents.pop(), ()) if pid not in without]
        total += sum(ticks[pid] for pid in found)
        parents += found
    return total / _TICKS_PER_SECOND
